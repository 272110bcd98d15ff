"""Roles and scopes through the command line: each role in a process of its own, with tokens, on one database."""

from __future__ import annotations

import asyncio
import datetime
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
import pytest
import sqlalchemy as sa
from confluent_kafka import Producer

from tests.integration.dlq.conftest import Graveyard
from tests.services.topics import Topic
from tests.support.cli import ROOT, environment, tidegate
from tests.support.permission_acts import ACTS, World
from tidegate.dlq.verbs import VERBS, Role, Verb
from tidegate.inbox import audit_seal
from tidegate.inbox.database import Database, DatabaseSettings
from tidegate.inbox.handlers import register_handlers
from tidegate.inbox.tables import tables

SECRET: Final = "0123456789abcdef0123456789abcdef"
NOT_PERMITTED: Final = 77

POLICY: Final = "".join(
    f'[[grant]]\nwho = ["token:{role}"]\nrole = "{role}"\ntenants = "*"\n'
    f'[[grant]]\nwho = ["token:{role} of acme"]\nrole = "{role}"\ntenants = ["acme"]\n'
    f'[[grant]]\nwho = ["token:{role} of other"]\nrole = "{role}"\ntenants = ["other"]\n'
    for role in Role
)

SHOP: Final = """
import os
from tidegate.consumers import App, Json, header

app = App("shop", owner="tests")
topic = os.environ.get("TOPIC", "shop.orders")
billing = app.consumer("billing", topics=[topic], codec=Json(), event_id=header("ce_id"))

@billing.projection("kept", only_if_newer=True)
async def kept(events, tx):
    pass
"""

WHY: Final = ("--reason", "a test")

WINDOW: Final = ("--from", "2020-01-01", "--to", "2100-01-01")

LINES: Final[dict[str, tuple[Verb, str, tuple[str, ...]]]] = {
    "dlq list": (Verb.LIST_LETTERS, "letter", ("--json", "--limit", "10000")),
    "dlq groups": (Verb.LIST_LETTERS, "", ()),
    "dlq note": (Verb.NOTE, "group", ("{}", "--text", "look here", *WHY)),
    "dlq show": (Verb.SHOW_LETTER, "letter", ("{}",)),
    "dlq show --reveal": (Verb.REVEAL, "letter", ("{}", *WHY)),
    "dlq replay": (Verb.REPLAY, "letter", ("{}", "--all-tenants", "--yes", *WHY)),
    "dlq discard": (Verb.DISCARD, "letter", ("{}", "--yes", *WHY)),
    "dlq cancel": (Verb.CANCEL, "waiting", ("{}", "--yes", *WHY)),
    "cancel": (Verb.CANCEL, "waiting", ("{}", "--yes", *WHY)),
    "dlq redact": (Verb.REDACT, "letter", ("{}", "--yes", *WHY)),
    "dlq export": (Verb.EXPORT, "letter", ("{}", *WHY)),
    "dlq edit": (Verb.EDIT, "letter", ("{}", "--raw", "--value-file", "repaired", "--yes", *WHY)),
    "review list": (Verb.LIST_REVIEW, "case", ("--json", "--limit", "10000")),
    "review show": (Verb.SHOW_REVIEW, "case", ("{}",)),
    "review show --payload": (Verb.REVEAL_RESULT, "case", ("{}", *WHY)),
    "review resolve": (Verb.REVIEW_RESOLVE, "case", ("{}", "--discard", *WHY)),
    "breakers list": (Verb.LIST_BREAKERS, "breaker", ()),
    "breakers close": (Verb.CLOSE_BREAKER, "breaker", ("{}", *WHY)),
    "handlers list": (Verb.LIST_HANDLERS, "", ()),
    "handlers discard": (Verb.DISCARD_HANDLER, "", ("invoices", "--yes", *WHY)),
    "topic reset": (Verb.RESET_TOPIC, "topic", ("{}", "--by-hand", *WHY)),
    "audit list": (Verb.LIST_AUDIT, "", ()),
    "audit export": (Verb.EXPORT_AUDIT, "", ()),
    "audit verify": (Verb.VERIFY_AUDIT, "", ()),
    "backfill": (Verb.BACKFILL, "", ("billing", "--handler", "kept", "--all-tenants", *WINDOW, "--yes", *WHY)),
    "backfill list": (Verb.LIST_BACKFILLS, "backfill", ("--json",)),
    "backfill abandon": (Verb.ABANDON_BACKFILL, "backfill", ("{}", "--yes", *WHY)),
    "restored": (Verb.RESTORED, "", ("--consumer", "billing", "--yes", *WHY)),
}
"""Each command: its verb, what is prepared for it, and the rest of its line."""

LOOKS: Final = {
    *("dlq list", "dlq groups", "dlq show", "review list", "review show", "breakers list", "handlers list"),
    *("audit list", "audit export", "audit verify", "backfill list"),
}
OPERATES: Final = {"dlq replay", "dlq discard", "dlq cancel", "cancel", "dlq note", "breakers close"}
REVIEWS: Final = {"dlq show --reveal", "dlq export", "dlq edit", "review show --payload", "review resolve"}
WHOLE: Final = {"dlq note", "breakers close", "handlers discard", "topic reset", "backfill", "restored", "audit verify"}
"""What concerns every tenant."""

MAY: Final[dict[str, set[str]]] = {
    "nobody": set(),
    Role.VIEWER: LOOKS,
    Role.OPERATOR: LOOKS | OPERATES,
    Role.REVIEWER: LOOKS | REVIEWS,
    Role.ADMIN: set(LINES),
}


@dataclass
class House:
    """A database, a policy, an app, and somebody to hand out tokens."""

    world: World
    folder: Path
    variables: dict[str, str]

    def token(self, subject: str, **more: Any) -> str:
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        claims = {"sub": subject, "iss": "https://id.test", "aud": "tidegate", "exp": until} | more
        return jwt.encode(claims, SECRET, "HS256")

    async def line(self, command: str) -> list[str]:
        """A command line with something new to act on."""
        _, prepared, rest = LINES[command]
        target = await getattr(self.world, prepared)() if prepared else ""
        return [*command.split(), *(word.format(target) for word in rest)]

    async def typed(self, lines: list[tuple[list[str], str]]) -> list[tuple[int, str, str]]:
        """Run them in one process."""
        given = json.dumps([{"words": words, "token": token} for words, token in lines])
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "tests.support.typed_commands"],
            input=given, capture_output=True, text=True, cwd=ROOT, env=environment(self.variables), check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return [tuple(each) for each in json.loads(done.stdout)]

    async def typed_alone(self, subject: str, *words: str) -> tuple[int, str, str]:
        """Run one in a process of its own."""
        variables = self.variables | {"TIDEGATE_TOKEN": self.token(subject)}
        ended = await asyncio.to_thread(tidegate, *words, variables=variables)
        return ended.code, ended.out, ended.err

    async def lines_of(self, *, allowed: bool) -> Counter[str]:
        """How many lines of the audit there are of each act, of those that were allowed, or that were denied."""
        async with self.world.graveyard.db.transaction() as conn:
            asked = sa.text("SELECT act, count(*) AS n FROM tidegate.audit WHERE allowed = :allowed GROUP BY act")
            rows = await conn.execute(asked, {"allowed": allowed})
            return Counter({row.act: row.n for row in rows})


@pytest.fixture
async def house(migrated_url: str, tmp_path: Path, kafka_bootstrap: str, topic: Topic) -> AsyncIterator[House]:
    """All of it, on a database and a topic of this test's own."""
    database = Database(migrated_url, member="test", settings=DatabaseSettings(pool_max=2, tx_pool_max=1))
    async with database.transaction() as conn:
        handlers = await register_handlers(conn, tables(), "billing", ["revenue", "invoices", "kept"])
    orders = topic(partitions=1)
    await asyncio.to_thread(_send, kafka_bootstrap, orders)
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "shop_of_roles.py").write_text(SHOP)
    (tmp_path / "repaired").write_bytes(b'{"cents": 100}')
    variables = {
        "TIDEGATE_DATABASE_URL": migrated_url,
        "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap,
        "TIDEGATE_APP": "shop_of_roles:app",
        "TOPIC": orders,
        "PYTHONPATH": ":".join([str(tmp_path), str(ROOT), *sys.path]),
        "TIDEGATE_PERMISSION_POLICY_FILE": str(tmp_path / "policy.toml"),
        "TIDEGATE_PERMISSION_TOKEN_SECRET": SECRET,
        "TIDEGATE_PERMISSION_TOKEN_ISSUER": "https://id.test",
        "TIDEGATE_PERMISSION_TOKEN_AUDIENCE": "tidegate",
    }
    yield House(World(Graveyard(database, tables(), handlers)), tmp_path, variables)
    await database.close()


def _send(bootstrap: str, orders: str) -> None:
    """One event, for a backfill to find."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(orders, key=b"k", value=b"{}", headers=[("ce_id", b"o-1"), ("ce_type", b"Order")])
    assert producer.flush(30) == 0


def test_every_act_is_typed_by_every_role_in_every_scope() -> None:
    """The matrix of the services and that of the command line order the same."""
    assert {verb for verb, _, _ in LINES.values()} == set(ACTS)
    assert set[str]().union(*MAY.values()) == set(LINES)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("role", list(MAY), ids=str)
async def test_each_role_does_what_it_may_where_it_may_and_is_denied_all_else(house: House, role: str) -> None:
    """Every command, for everything, for the tenant, and for another tenant; each denial stands in the audit.

    Case: B42
    Parts: real (PostgreSQL, Kafka)
    Red when: dlq/reach.py's Grant.covers does not look at the tenant
    """
    scopes = {role: True, f"{role} of acme": True, f"{role} of other": False}
    lines: list[tuple[str, str, list[str]]] = []
    for command in LINES:
        for subject in scopes:
            words = [*(await house.line(command))]
            words = [str(house.folder / word) if word == "repaired" else word for word in words]
            lines.append((command, subject, words))
    answers = await house.typed([(words, house.token(subject)) for _, subject, words in lines])
    denied, done = Counter[str](), Counter[str]()
    for (command, subject, words), (code, out, err) in zip(lines, answers, strict=True):
        said = f"{subject}: tidegate {' '.join(words)} ended with {code}\n{out}{err}"
        may = command in MAY[role]
        if command in WHOLE:
            may = may and subject == role
        lists = command in LOOKS and command not in ("dlq show", "review show", "audit verify")
        if lists and role != "nobody":
            assert code == 0, said
        elif may and scopes[subject]:
            assert code in ((0, 78) if command in ("restored", "handlers discard") else (0,)), said
            done[LINES[command][0]] += VERBS[LINES[command][0]].is_audited and code == 0
        else:
            denied[LINES[command][0]] += 1
            nothing = (
                "no letter is known",
                "nothing is known",
                "not open",
                "no letter is in a group",
                "exported 0 letters",
                "there is no backfill",
            )
            assert code == NOT_PERMITTED or any(text in out + err for text in nothing), said
        if not scopes[subject]:
            assert "acme" not in out + err.replace(subject, ""), said
    assert await house.lines_of(allowed=False) >= denied, "each denial stands in the audit"
    assert await house.lines_of(allowed=True) >= +done, "and so does each act that was done"


async def test_a_process_of_its_own_is_told_the_same(house: House) -> None:
    """A sample of the matrix, as a shell types it: allowed, denied for want of the role, and as if it were not there.

    Case: B42
    Parts: real (PostgreSQL, process)
    Red when: dlq/reach.py's Grant.covers does not look at the tenant
    """
    number, discard = await house.world.letter(), ("--yes", *WHY)
    here, elsewhere = "operator of acme", "operator of other"
    assert (await house.typed_alone(here, "dlq", "redact", str(number), *discard))[0] == NOT_PERMITTED
    code, out, err = await house.typed_alone(elsewhere, "dlq", "discard", str(number), *discard)
    assert (code, "no letter is known" in out, "acme" in out + err) == (1, True, False)
    assert (await house.typed_alone("nobody", "dlq", "list"))[0] == NOT_PERMITTED
    assert await house.lines_of(allowed=True) == {}
    assert (await house.typed_alone(here, "dlq", "discard", str(number), *discard))[0] == 0
    assert await house.lines_of(allowed=True) == {"dlq_discard": 1}
    assert await house.lines_of(allowed=False) == {"dlq_redact": 1, "dlq_discard": 1, "dlq_list": 1}


async def test_a_token_that_is_not_believed_opens_nothing(house: House) -> None:
    number = await house.world.letter()
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."
    tokens = [house.token("admin", exp=past), house.token("admin", aud="another"), none, "nonsense",
              house.token("admin")[:-4] + "AAAA"]  # fmt: skip
    words = ["dlq", "discard", str(number), "--yes", *WHY]
    for (code, out, err), token in zip(await house.typed([(words, token) for token in tokens]), tokens, strict=True):
        assert (code, out) == (NOT_PERMITTED, ""), err
        assert "the token is refused" in err
        assert not [part for part in token.split(".") if len(part) > 8 and part in err]
    assert await house.lines_of(allowed=False) == {}


async def test_without_a_token_the_systems_user_has_what_the_policy_gives(house: House) -> None:
    """Nothing here; a token may also stand in a file."""
    variables = house.variables
    listed = await asyncio.to_thread(tidegate, "dlq", "list", variables=variables)
    assert listed.code == NOT_PERMITTED
    assert "os:" in listed.err
    (house.folder / "token").write_text(f"{house.token('viewer')}\n")
    by_file = ("dlq", "list", "--token-file", str(house.folder / "token"))
    assert (await asyncio.to_thread(tidegate, *by_file, variables=variables)).code == 0


async def test_the_audit_is_listed_exported_and_checked(house: House) -> None:
    """By actor, act, time, event and correlation id; a line that was changed by a superuser is found."""
    number = await house.world.letter()
    admin, acme = house.token("admin"), house.token("viewer of acme")
    await house.typed([(["dlq", "discard", str(number), "--yes", *WHY], admin),
                       (["dlq", "discard", str(number), "--yes", *WHY], house.token("viewer of other"))])  # fmt: skip
    lists: list[tuple[tuple[str, ...], str, int]] = [
        ((), admin, 2), ((), acme, 2), ((), house.token("viewer of other"), 0), (("--denied",), admin, 1),
        (("--actor", "token:admin"), admin, 1), (("--act", "dlq_discard"), admin, 2), (("--act", "x"), admin, 0),
        (("--event-id", "o-1"), admin, 2), (("--event-id", "o-2"), admin, 0), (("--correlation-id", "o-1"), admin, 2),
        (("--since", "2020-01-01"), admin, 2), (("--until", "2020-01-01"), admin, 0),
    ]  # fmt: skip
    for (options, _, expected), (code, out, err) in zip(
        lists, await house.typed([(["audit", "list", "--json", *options], token) for options, token, _ in lists]),
        strict=True,
    ):  # fmt: skip
        assert code == 0, err
        assert len(json.loads(out)) == expected, options
    ((_, out, _),) = await house.typed([(["audit", "export"], admin)])
    assert [(line["actor"], line["allowed"]) for line in map(json.loads, out.splitlines())] == [
        ("token:admin", True), ("token:viewer of other", False),
    ]  # fmt: skip
    graveyard = house.world.graveyard
    sealed = 0
    while sealed < 2:
        async with graveyard.db.transaction() as conn:
            sealed += (await audit_seal.seal(conn, graveyard.t))[1]
    ((code, out, _),) = await house.typed([(["audit", "verify"], admin)])
    assert (code, "2 sealed lines stand" in out) == (0, True)
    head = out.split()[-1]
    async with graveyard.db.transaction() as conn:
        await conn.execute(sa.text("SET LOCAL session_replication_role = replica"))
        await conn.execute(sa.text("UPDATE tidegate.audit SET actor = 'os:somebody' WHERE allowed"))
    ((code, out, err), (_, _, other)) = await house.typed(
        [(["audit", "verify", "--head", head], admin), (["audit", "verify", "--head", "1:00"], admin)]
    )
    assert code == 1
    assert "is not as it was sealed" in err
    assert "is no head" in other


def test_check_says_once_that_no_policy_is_configured(migrated_url: str, kafka_bootstrap: str, tmp_path: Path) -> None:
    (tmp_path / "shop_of_roles.py").write_text(SHOP)
    variables = {
        "TIDEGATE_DATABASE_URL": migrated_url, "TIDEGATE_KAFKA_BOOTSTRAP_SERVERS": kafka_bootstrap,
        "TIDEGATE_APP": "shop_of_roles:app", "PYTHONPATH": ":".join([str(tmp_path), str(ROOT), *sys.path]),
    }  # fmt: skip
    said = tidegate("check", variables=variables).err
    assert said.count("no policy is configured") == 1
    (tmp_path / "policy.toml").write_text("[[grant]]\nwho = 'me'")
    judged = tidegate("check", variables=variables | {"TIDEGATE_PERMISSION_POLICY_FILE": str(tmp_path / "policy.toml")})
    assert judged.code == 78
    assert "grant 1, who" in judged.err
    assert "no policy is configured" not in judged.err
