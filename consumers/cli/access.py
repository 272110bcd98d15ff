"""Whose act a command is: the settings, who asks, and the gate where the services ask whether they may."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from ...dlq.permission import Gate
from ...dlq.reach import Caller
from ...inbox.errors import ConfigurationError
from ...inbox.migrate import check_schema
from .. import identity
from ..layers import TOKEN_VARIABLE
from ..settings import Settings
from .preparing import open_store, settings_only


@final
@dataclass(frozen=True, slots=True)
class Access:
    """The settings in force, and who asks."""

    settings: Settings
    caller: Caller


def access(app: str | None, config: Path | None, needs: tuple[str, ...], token_file: Path | None) -> Access:
    """For verbs that need no app. Raises ConfigurationError, and TokenRefused for a token that is not believed."""
    return access_to(settings_only(app, config, needs).settings, token_file)


def access_to(settings: Settings, token_file: Path | None) -> Access:
    """The same with settings that are loaded already."""
    return Access(settings, identity.caller(settings.permission, _token(token_file)))


@asynccontextmanager
async def open_gate(access: Access, member: str) -> AsyncGenerator[Gate]:
    """The caller's gate on a schema of this release; `member` is shown in `pg_stat_activity`."""
    store = open_store(access.settings, member)
    try:
        async with store.look() as conn:
            await check_schema(conn, store.tables)
        yield Gate(store, access.caller)
    finally:
        await store.database.close()


TOKEN_BYTES_MAX: Final = 64 * 1024
"""More than any web server takes in a header; a wrong file is told by its size."""


def _token(file: Path | None) -> str | None:
    """The token as it is given, if one is; a file wins over the variable."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        with file.open("rb") as opened:
            content = opened.read(TOKEN_BYTES_MAX + 1)
        text = content.decode("ascii").strip()
    except OSError as error:
        what = f"{file} cannot be read ({error.strerror})"
        raise ConfigurationError.of("--token-file", what, "name a file that this user may read") from None
    except UnicodeDecodeError:
        text = ""
    if not 0 < len(text) <= TOKEN_BYTES_MAX:
        raise ConfigurationError.of("--token-file", f"{file} holds no token", "put the token alone into it")
    return text
