"""No act without its verb: every verb has a row, its audit line and its tests; every command has its verb, or none.

What changes something is found in the source: an act is built as soon as its verb is named outside of the table.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any, Final

import typer

from tests.support.permission_acts import ACTS
from tests.tidy.source import Module, product
from tidegate.consumers.cli.entry import app
from tidegate.dlq.verbs import ROLES, VERBS, Permission, Role, Verb

TABLE: Final = "dlq/verbs.py"

COMMANDS: Final[dict[str, set[Verb]]] = {
    "dlq list": {Verb.LIST_LETTERS},
    "dlq groups": {Verb.LIST_LETTERS},
    "dlq note": {Verb.NOTE},
    "dlq show": {Verb.SHOW_LETTER, Verb.REVEAL},
    "dlq replay": {Verb.REPLAY},
    "dlq replays": {Verb.REPLAY},
    "dlq discard": {Verb.DISCARD},
    "dlq cancel": {Verb.CANCEL},
    "cancel": {Verb.CANCEL},
    "dlq edit": {Verb.EDIT},
    "dlq export": {Verb.EXPORT},
    "dlq redact": {Verb.REDACT},
    "review list": {Verb.LIST_REVIEW},
    "review show": {Verb.SHOW_REVIEW, Verb.REVEAL_RESULT},
    "review resolve": {Verb.REVIEW_RESOLVE},
    "breakers list": {Verb.LIST_BREAKERS},
    "breakers close": {Verb.CLOSE_BREAKER},
    "handlers list": {Verb.LIST_HANDLERS},
    "handlers discard": {Verb.DISCARD_HANDLER},
    "topic reset": {Verb.RESET_TOPIC},
    "restored": {Verb.RESTORED},
    "backfill": {Verb.BACKFILL, Verb.LIST_BACKFILLS, Verb.ABANDON_BACKFILL},
    "audit list": {Verb.LIST_AUDIT},
    "audit export": {Verb.EXPORT_AUDIT},
    "audit verify": {Verb.VERIFY_AUDIT},
}

WITHOUT: Final[dict[str, str]] = {
    "run": "the worker itself: its role in the database is its permission",
    "check": "looks at the installation, and shows nothing of an event",
    "migrate": "the schema's owner: its role in the database is its permission",
    "config": "looks at this process only",
    "explain": "looks at the app only",
    "lag": "counts offsets, and shows nothing of an event",
    "topic create": "the principal's rights in Kafka are its permission",
    "demo": "a shop of its own",
}

MUTATING: Final = (
    *("failure.requeue", "failure.discard", "failure.complete", "failure.bury", "effect_findings.resolve"),
    *("breaker_rows.close", "raise_incarnation", "declare_restored", "mark_discarded", "repairs.edit"),
    *("repairs.unedit", "repairs.redact", "repairs.redact_message", "audit.write"),
    *("repairs.redact_results", "repairs.withdraw", "outbox.give_up"),
)
"""What changes what operators act on. The command line calls none of them: services do, behind their verbs."""


ROOTS: Final = ("acting", "exporting", "looking", "editing", "grouping", "Replays", "Adoptions", "Backfiller")
"""What the command line calls a service by."""


def test_every_verb_has_its_row_and_every_role_its_permissions() -> None:
    assert set(VERBS) == set(Verb)
    assert set(ROLES) == set(Role)
    assert ROLES[Role.ADMIN] == set(Permission)
    assert all(rule.is_audited for rule in VERBS.values() if rule.mutates)
    assert all(rule.needs is not Permission.VIEW for rule in VERBS.values() if rule.mutates)


def test_every_act_that_is_built_is_in_the_permission_matrix() -> None:
    """The matrix orders each with every role and scope: it is allowed and audited, or denied and audited."""
    assert built() == set(ACTS), "tests/support/permission_acts.py has one for each verb that the product names"


def test_every_act_that_mutates_is_audited_in_the_matrix() -> None:
    forgotten = {verb for verb, act in ACTS.items() if VERBS[verb].mutates and not act.audited}
    assert forgotten <= {Verb.BACKFILL}, "a backfill's lines are looked at where a broker runs: test_who_may_do_what.py"


def test_every_command_has_its_verbs_or_says_why_it_needs_none() -> None:
    assert commands() == set(COMMANDS) | set(WITHOUT)
    assert not set(COMMANDS) & set(WITHOUT)
    assert set[Verb]().union(*COMMANDS.values()) == set(ACTS), "every act has a command"


def test_every_command_that_is_audited_takes_a_reason() -> None:
    """The audit says why: whatever changes or reveals something is asked for it."""
    silent = {
        name
        for name, command in registered().items()
        if any(VERBS[verb].is_audited for verb in COMMANDS.get(name, ())) and "reason" not in parameters(command)
    }
    assert silent == {"dlq replays"}, "which lists replays: none is ordered by it"


def test_the_command_line_changes_nothing_by_itself() -> None:
    offenders = [
        f"{module.name}:{call.lineno} calls {ast.unparse(call.func)}"
        for module in product()
        if module.name.startswith("consumers/cli/")
        for call in module.walk()
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(MUTATING)
    ]
    assert not offenders, "\n".join(offenders)


def test_what_an_operator_changes_is_changed_behind_a_verb() -> None:
    """A module that has a service of an operator's and changes something names its verb, and writes the audit."""
    for module in product():
        if module.room == "dlq" and module.name != "dlq/permission.py" and _changes(module):
            assert re.search(r"\bVerb\.[A-Z_]+|\bREPLAY\b", module.text), f"{module.name} changes without a verb"


def test_a_service_that_is_called_from_above_is_told_who_asks() -> None:
    """`permit` has a default for the house itself and for tests; the command line never relies on it."""
    services = r"\b(?:Replays|Adoptions|Backfiller|steps|export|look|reveal|note|editable|edit|erase_leftovers)\("
    for module in product():
        if not module.name.startswith("consumers/cli/"):
            continue
        for call in module.walk():
            if isinstance(call, ast.Call) and re.match(services, f"{ast.unparse(call.func).rpartition('.')[2]}("):
                text = ast.unparse(call)
                root = ast.unparse(call.func).partition(".")[0]
                if root in (
                    "acting",
                    "exporting",
                    "looking",
                    "editing",
                    "grouping",
                    "Replays",
                    "Adoptions",
                    "Backfiller",
                ):
                    assert "caller" in text, f"{module.name}:{call.lineno} does not say who asks"


def built() -> set[Verb]:
    """Verbs that the product names outside of the table."""
    named = {
        name for module in product() if module.name != TABLE for name in re.findall(r"\bVerb\.([A-Z_]+)\b", module.text)
    }
    verbs = {verb.name: verb for verb in Verb}
    return {verbs[name] for name in named if name in verbs} | ({Verb.BACKFILL} if _backfills() else set[Verb]())


def _backfills() -> bool:
    return any(module.name.startswith("consumers/backfill/") and "VERB" in module.text for module in product())


def _changes(module: Module) -> bool:
    return any(
        isinstance(call, ast.Call)
        and ast.unparse(call.func).endswith(tuple(name for name in MUTATING if name != "audit.write"))
        for call in module.walk()
    )


def commands() -> set[str]:
    """Every command, as it is typed."""
    return set(registered())


def registered(group: typer.Typer = app, prefix: str = "") -> dict[str, Callable[..., Any]]:
    """Every command, as it is typed, with its function."""
    found = {
        f"{prefix}{command.name or command.callback.__name__}": command.callback
        for command in group.registered_commands
        if command.callback is not None
    }
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        found |= registered(inner.typer_instance, f"{prefix}{inner.name} ")
    return found


def parameters(command: Callable[..., Any]) -> set[str]:
    """What its command line takes."""
    return set(inspect.signature(command).parameters)
