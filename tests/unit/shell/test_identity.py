"""Who asks, and what they were granted: policy files, claims, the operating system's user; every problem at once."""

from __future__ import annotations

import datetime
import os
import pwd
from pathlib import Path
from typing import Any, Final

import jwt
import pytest

from tidegate.consumers import identity, policy_file
from tidegate.consumers.settings import Permission
from tidegate.consumers.token_rules import TokenRefused
from tidegate.dlq.reach import Grant
from tidegate.dlq.verbs import Role, Verb
from tidegate.inbox.errors import ConfigurationError

SECRET: Final = "0123456789abcdef0123456789abcdef"
ME: Final = f"os:{pwd.getpwuid(os.getuid()).pw_name}"
TOKENS: Final = {"token_secret": SECRET, "token_issuer": "i", "token_audience": "a"}


def settings(**values: Any) -> Permission:
    return Permission.model_validate(values)


def token(**more: Any) -> str:
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    return jwt.encode({"sub": "ada", "iss": "i", "aud": "a", "exp": until} | more, SECRET, "HS256")


def policy(tmp_path: Path, text: str) -> str:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    return str(path)


GRANT: Final = """
[[grant]]
who = ["token:ada", "group:oncall"]
role = "operator"
tenants = ["acme", ""]
handlers = ["invoices"]

[[grant]]
who = ["os:nobody-like-this"]
role = "admin"
tenants = "*"
"""


def test_without_a_policy_the_systems_user_may_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is told by the process, not by a variable that anybody sets."""
    for name in ("USER", "LOGNAME", "USERNAME", "LNAME", "SUDO_USER"):
        monkeypatch.setenv(name, "somebody-else")
    caller = identity.caller(settings(), None)
    assert caller.actor == ME
    assert all(caller.reach(verb) for verb in Verb)


def test_with_a_policy_the_systems_user_has_what_it_says(tmp_path: Path) -> None:
    caller = identity.caller(settings(policy_file=policy(tmp_path, GRANT)), None)
    assert (caller.actor, caller.grants) == (ME, ())
    named = GRANT.replace("os:nobody-like-this", ME)
    assert identity.caller(settings(policy_file=policy(tmp_path, named)), None).grants[0].role is Role.ADMIN


def test_a_token_has_what_the_policy_gives_its_subject_and_its_groups(tmp_path: Path) -> None:
    configured = settings(policy_file=policy(tmp_path, GRANT), **TOKENS)
    ada = identity.caller(configured, token())
    assert ada.actor == "token:ada"
    expected = Grant(role=Role.OPERATOR, tenants=frozenset({"acme", ""}), handlers=frozenset({"invoices"}))
    assert ada.grants == (expected,)
    assert identity.caller(configured, token(sub="bob")).grants == ()
    assert identity.caller(configured, token(sub="bob", groups=["oncall"])).grants == (expected,)


@pytest.mark.parametrize("subject", ["os:root", "group:oncall", "token:ada", ME])
def test_no_subject_speaks_for_somebody_else(tmp_path: Path, subject: str) -> None:
    text = GRANT.replace("os:nobody-like-this", "os:root")
    caller = identity.caller(settings(policy_file=policy(tmp_path, text), **TOKENS), token(sub=subject))
    assert (caller.actor, caller.grants) == (f"token:{subject}", ())


def test_tokens_without_a_policy_leave_nobody_with_everything(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nobody is granted anything"):
        identity.caller(settings(**TOKENS), None)
    assert identity.caller(settings(**TOKENS, grants_claim="grants"), None).grants == (), "the system's user neither"


def test_a_claim_brings_grants_only_where_it_is_believed(tmp_path: Path) -> None:
    brought = {"role": "viewer", "tenants": ["acme"]}
    given = token(grants=[brought])
    believed = settings(**TOKENS, grants_claim="grants")
    assert identity.caller(believed, given).grants == (Grant(role=Role.VIEWER, tenants=frozenset({"acme"})),)
    assert identity.caller(believed, token(grants=brought)).grants == identity.caller(believed, given).grants
    doubting = settings(**TOKENS, policy_file=policy(tmp_path, GRANT))
    assert len(identity.caller(doubting, given).grants) == 1, "only what the file says"


@pytest.mark.parametrize(
    "wrong", [{"role": "king", "tenants": "*"}, {"role": "admin"}, "admin", 7, [[]], {"who": ["x"]}]
)
def test_a_claim_that_is_wrong_is_no_grant_at_all(wrong: object) -> None:
    with pytest.raises(TokenRefused, match="its grants are wrong"):
        identity.caller(settings(**TOKENS, grants_claim="grants"), token(grants=wrong))


def test_every_problem_of_settings_and_file_is_said_at_once(tmp_path: Path) -> None:
    text = """
        granted = 1
        [[grant]]
        who = ["ada"]
        role = "king"
        [[grant]]
        role = "admin"
        tenants = ["*", "x"]
        brands = "north"
        until = 2030
        [[grant]]
        who = []
        role = "viewer"
        tenants = []
    """
    wrong = settings(
        policy_file=policy(tmp_path, text), token_secret="short", token_jwks="http://id.test/jwks",
        token_algorithms="RS256,none",
    )  # fmt: skip
    with pytest.raises(ConfigurationError) as caught:
        identity.read_policy(wrong)
    said = [(problem.key.rpartition("/")[2], problem.what) for problem in caught.value.problems]
    assert [key for key, _ in said] == [
        "permission.token_secret", "permission.token_issuer", "permission.token_audience", "permission.token_secret",
        "permission.token_jwks", "permission.token_algorithms",
        "policy.toml: granted", "policy.toml: grant 1, who", "policy.toml: grant 1, role",
        "policy.toml: grant 1, tenants",
        "policy.toml: grant 2, who", "policy.toml: grant 2, until", "policy.toml: grant 2, tenants",
        "policy.toml: grant 2, brands", "policy.toml: grant 3, who", "policy.toml: grant 3, tenants",
    ]  # fmt: skip
    assert all(problem.fix for problem in caught.value.problems)
    assert "short" not in [word for _, what in said for word in what.split()]


@pytest.mark.parametrize("text", ["", "grant = 1", "[grant]\nrole = 'admin'", "[[grant]", "\0"])
def test_what_is_no_policy_grants_nothing_and_says_so(text: str) -> None:
    with pytest.raises(ConfigurationError):
        policy_file.parse(text, "policy.toml")


def test_a_file_that_is_not_there_is_the_configurations_fault(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        identity.caller(settings(policy_file=str(tmp_path / "nowhere")), None)
    (tmp_path / "latin").write_bytes(b"\xe4")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        identity.caller(settings(policy_file=str(tmp_path / "latin")), None)
