"""What a verb starts from: the app and the settings, judged together, every problem of both at once."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ...inbox.database import Database
from ...inbox.errors import ConfigurationError, Problem
from ...inbox.store import Store
from ...inbox.tables import tables
from ..app import App, Consumer
from ..layers import Effective, load
from ..settings import Settings
from .cluster import property_problems
from .loading import load_app


@dataclass(frozen=True, slots=True)
class Prepared:
    """An app and the settings that its process runs with."""

    app: App
    effective: Effective

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.effective.settings


def prepare(app_path: str | None, config: Path | None, needs: tuple[str, ...]) -> Prepared:
    """Load both. Raises ConfigurationError with the problems of app, declarations and settings together."""
    prepared, problems = judge(app_path, config, needs)
    if problems or prepared is None:
        raise ConfigurationError(problems)
    return prepared


def judge(app_path: str | None, config: Path | None, needs: tuple[str, ...]) -> tuple[Prepared | None, list[Problem]]:
    """Load both, and every problem of both; None where the app or the settings are not to be had at all."""
    problems: list[Problem] = []
    app = None
    try:
        app = load_app(app_path)
        problems += app.problems()
    except ConfigurationError as error:
        problems += error.problems
    try:
        effective = load(os.environ, config, app.settings if app is not None else {}, needs)
    except ConfigurationError as error:
        return None, [*problems, *error.problems]
    problems += property_problems(effective.settings)
    if app is not None:
        problems += drain_problems(effective.settings, app)
    return (None if app is None else Prepared(app, effective)), problems


def drain_problems(settings: Settings, app: App) -> list[Problem]:
    """A stop that is shorter than a call leaves calls whose end nobody knows."""
    longest = max(app.effects.values(), key=lambda effect: effect.deadline_s + effect.margin_s, default=None)
    if longest is None:
        return []
    needed_s, budget_s = longest.deadline_s + longest.margin_s, settings.worker.drain_budget_s
    if needed_s <= budget_s:
        return []
    what = f"{budget_s:g} s are less than a call of effect {longest.name!r} may take with its margin ({needed_s:g} s)"
    fix = "raise it (and the grace period of whatever stops the process), or shorten deadline_s= or margin_s="
    return [Problem("worker.drain_budget_s", what, fix)]


def settings_only(app_path: str | None, config: Path | None, needs: tuple[str, ...] = ()) -> Effective:
    """For verbs that need no app: its code settings count only if it is named."""
    return load(os.environ, config, load_app(app_path).settings if app_path else {}, needs)


def choose(app: App, name: str | None) -> Consumer:
    """The consumer called `name`; the only one where none is named. Raises ConfigurationError."""
    if name is None and len(app.consumers) == 1:
        return next(iter(app.consumers.values()))
    found = app.consumers.get(name or "")
    if found is None:
        known = ", ".join(app.consumers) or "none"
        what = "it is not given" if name is None else f"the app {app.name!r} has no consumer {name!r}"
        raise ConfigurationError.of("--consumer", what, f"name one of: {known}")
    return found


def chosen(app: App, name: str | None) -> tuple[Consumer, ...]:
    """The consumer called `name`, or all of them. Raises ConfigurationError."""
    return tuple(app.consumers.values()) if name is None else (choose(app, name),)


def open_store(settings: Settings, member: str) -> Store:
    """The inbox of these settings; nothing is connected yet. `member` is shown in `pg_stat_activity`."""
    database = Database(settings.database.dsn(), member=member, settings=settings.database.pools())
    return Store(database, tables(settings.database.schema_name))
