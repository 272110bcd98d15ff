"""Every act that a person can order, as data: its name, the permission that it needs, whether it changes anything.

No IO; time is an argument. A verb is allowed by its permission, a permission is held by roles, a role is given within
a reach (`reach.py`). The verb's value is the act's name in the audit, so it never changes. A verb whose act does not
exist yet has its row already: it can be neither built nor granted without one.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class Permission(enum.StrEnum):
    """What a role is made of."""

    VIEW = "view"
    """See what there is, without keys, payloads and results."""
    REVEAL = "reveal"
    """See keys, payloads and results too."""
    OPERATE = "operate"
    """Have work done again, later, or not any more."""
    REVIEW = "review"
    """Say what became of what nobody can know, and repair content."""
    ADMINISTER = "administer"
    """Change what is true for a whole handler, topic or database, and erase."""


class Role(enum.StrEnum):
    """What a policy gives to people."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    REVIEWER = "reviewer"
    ADMIN = "admin"


ROLES: Final[Mapping[Role, frozenset[Permission]]] = MappingProxyType(
    {
        Role.VIEWER: frozenset({Permission.VIEW}),
        Role.OPERATOR: frozenset({Permission.VIEW, Permission.OPERATE}),
        Role.REVIEWER: frozenset({Permission.VIEW, Permission.REVEAL, Permission.REVIEW}),
        Role.ADMIN: frozenset(Permission),
    }
)
"""Who has work done again need not see what is in it; who judges content has to. Only an admin has both, and more."""


class Verb(enum.StrEnum):
    """What is ordered; the value is the act's name in the audit."""

    LIST_LETTERS = "dlq_list"
    SHOW_LETTER = "dlq_show"
    REVEAL = "dlq_reveal"
    EXPORT = "dlq_export"
    REPLAY = "dlq_replay"
    DISCARD = "dlq_discard"
    EDIT = "dlq_edit"
    REDACT = "dlq_redact"
    NOTE = "dlq_note"
    LIST_REVIEW = "list_review"
    SHOW_REVIEW = "show_review"
    REVEAL_RESULT = "reveal_result"
    REVIEW_RESOLVE = "review_resolve"
    CANCEL = "dlq_cancel"
    LIST_BREAKERS = "list_breakers"
    CLOSE_BREAKER = "close_breaker"
    LIST_HANDLERS = "list_handlers"
    DISCARD_HANDLER = "discard_handler"
    RESET_TOPIC = "reset_topic"
    RESTORED = "restored"
    LIST_AUDIT = "list_audit"
    EXPORT_AUDIT = "export_audit"
    VERIFY_AUDIT = "verify_audit"
    BACKFILL = "backfill"
    LIST_BACKFILLS = "list_backfills"
    ABANDON_BACKFILL = "abandon_backfill"
    REBUILD = "rebuild"
    SWAP = "swap"
    ROLLBACK = "rollback"
    DROP = "drop"
    PAUSE = "pause"
    RESUME = "resume"
    RUN = "run"
    RELEASE = "release"


class Rule(NamedTuple):
    """What is true of a verb. `is_audited`: it needs a reason, and its act leaves a line in the audit with it.

    Whatever `mutates` is audited; a reveal changes nothing, and that it was done is written down all the same.
    """

    needs: Permission
    mutates: bool
    is_audited: bool
    says: str


def _look(says: str, needs: Permission = Permission.VIEW) -> Rule:
    return Rule(needs, mutates=False, is_audited=False, says=says)


def _reveal(says: str) -> Rule:
    return Rule(Permission.REVEAL, mutates=False, is_audited=True, says=says)


def _change(needs: Permission, says: str) -> Rule:
    return Rule(needs, mutates=True, is_audited=True, says=says)


VERBS: Final[Mapping[Verb, Rule]] = MappingProxyType(
    {
        Verb.LIST_LETTERS: _look("list and count dead letters"),
        Verb.SHOW_LETTER: _look("show what is known of a letter"),
        Verb.REVEAL: _reveal("show a letter's key, value and headers"),
        Verb.EXPORT: _reveal("write letters with their bytes to a file"),
        Verb.REPLAY: _change(Permission.OPERATE, "have letters handled again"),
        Verb.DISCARD: _change(Permission.OPERATE, "say that letters are not wanted any more"),
        Verb.EDIT: _change(Permission.REVIEW, "repair a letter's value"),
        Verb.REDACT: _change(Permission.ADMINISTER, "erase the payloads of a key"),
        Verb.NOTE: _change(Permission.OPERATE, "leave a note on a group of letters"),
        Verb.LIST_REVIEW: _look("list what waits for a person"),
        Verb.SHOW_REVIEW: _look("show what is known of a case"),
        Verb.REVEAL_RESULT: _reveal("show what a call returned"),
        Verb.REVIEW_RESOLVE: _change(Permission.REVIEW, "say what became of a case"),
        Verb.CANCEL: _change(Permission.OPERATE, "end a retry that waits"),
        Verb.LIST_BREAKERS: _look("list breakers"),
        Verb.CLOSE_BREAKER: _change(Permission.OPERATE, "let events go on behind an open breaker"),
        Verb.LIST_HANDLERS: _look("list handlers and what they left"),
        Verb.DISCARD_HANDLER: _change(Permission.ADMINISTER, "discard what a gone handler left"),
        Verb.RESET_TOPIC: _change(Permission.ADMINISTER, "declare that a topic was made anew"),
        Verb.RESTORED: _change(Permission.ADMINISTER, "declare that the database was put back"),
        Verb.LIST_AUDIT: _look("read the audit"),
        Verb.EXPORT_AUDIT: _look("write the audit to a file"),
        Verb.VERIFY_AUDIT: _look("check that no line of the audit was changed"),
        Verb.BACKFILL: _change(Permission.ADMINISTER, "read a window of a topic again"),
        Verb.LIST_BACKFILLS: _look("list backfills"),
        Verb.ABANDON_BACKFILL: _change(Permission.ADMINISTER, "give a backfill up"),
        Verb.REBUILD: _change(Permission.ADMINISTER, "build a projection's new version"),
        Verb.SWAP: _change(Permission.ADMINISTER, "make a projection's new version the live one"),
        Verb.ROLLBACK: _change(Permission.ADMINISTER, "make a projection's former version the live one"),
        Verb.DROP: _change(Permission.ADMINISTER, "remove a projection's version"),
        Verb.PAUSE: _change(Permission.OPERATE, "hold a topic, handler or tenant up"),
        Verb.RESUME: _change(Permission.OPERATE, "let it go on"),
        Verb.RUN: _change(Permission.OPERATE, "start a job by hand"),
        Verb.RELEASE: _change(Permission.ADMINISTER, "take a lock from its holder"),
    }
)
"""One row for each verb; `tests/tidy` refuses one without."""
