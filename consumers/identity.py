"""Who asks, and what they were granted: from a signed token, or from the operating system's user.

| what is configured | who one is | what one may do |
|---|---|---|
| nothing | `os:` and the user's name | everything: whoever has the database's password has it anyway |
| a policy file | the same | what the policy grants to `os:` and that name |
| keys for tokens, a policy or `grants_claim` | `token:` and its subject | what both grant; without a token: as above |

The prefix stands in the audit too, so that nobody's token can speak for a user of the machine. The user is told by the
process's own uid, not by a variable that anybody can set.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from ..dlq.reach import Caller, unlimited
from ..inbox.errors import ConfigurationError, Problem
from . import policy_file
from .policy_file import Policy
from .settings import Permission
from .token_rules import SECRET_BYTES_MIN, TokenRefused, fitting, is_safe_address


def caller(settings: Permission, token: str | None) -> Caller:
    """Whoever runs this process, or holds this token.

    Raises:
        ConfigurationError: the permission settings or the policy are wrong, or a token is given and no key is.
        TokenRefused: the token is not believed.
    """
    policy = read_policy(settings)
    if token is not None:
        return _bearer(settings, policy, token)
    actor = os_user()
    if is_open(settings):
        return unlimited(actor)
    return Caller(actor, policy.grants(frozenset({actor})))


def is_open(settings: Permission) -> bool:
    """Whether nothing is configured, so that everybody may do everything."""
    return not settings.policy_file and not _has_keys(settings)


def _has_keys(settings: Permission) -> bool:
    return bool(settings.token_jwks or settings.token_secret.get_secret_value())


def os_user() -> str:
    """The user whose process this is, by uid; `os:#1000` where no name is known."""
    uid = os.getuid()
    try:
        return f"os:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"os:#{uid}"


def read_policy(settings: Permission) -> Policy:
    """The policy in force, empty without a file. Raises ConfigurationError with every problem of both."""
    problems = _problems(settings)
    policy = Policy()
    if settings.policy_file:
        try:
            policy = policy_file.parse(_text(settings.policy_file), settings.policy_file)
        except ConfigurationError as error:
            problems += error.problems
    if problems:
        raise ConfigurationError(problems)
    return policy


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        what = f"{path} cannot be read ({error.strerror})"
        raise ConfigurationError.of(policy_file.KEY, what, "mount or correct that file") from None
    except UnicodeDecodeError:
        raise ConfigurationError.of(policy_file.KEY, f"{path} is not UTF-8 text", "save it as UTF-8") from None


def _problems(settings: Permission) -> list[Problem]:
    """Settings that do not fit together."""
    secret = settings.token_secret.get_secret_value()
    taken = fitting(is_secret=bool(secret))
    strange = [name for name in settings.token_algorithms if name not in taken]
    found: list[tuple[bool, str, str, str]] = [
        (
            bool(settings.token_jwks and secret),
            "token_secret",
            "token_jwks is given too: tokens have one kind of key",
            "keep one of the two",
        ),
        (
            _has_keys(settings) and not settings.token_issuer,
            "token_issuer",
            "it is not set, so anybody's issuer would do",
            "name the `iss` of your tokens",
        ),
        (
            _has_keys(settings) and not settings.token_audience,
            "token_audience",
            "it is not set, so tokens made for other programs would do",
            "name the `aud` of your tokens",
        ),
        (
            _has_keys(settings) and not settings.policy_file and not settings.grants_claim,
            "policy_file",
            "tokens are checked, and nobody is granted anything",
            "write a policy, or name the claim that brings grants (permission.grants_claim)",
        ),
        (
            bool(secret) and len(secret.encode()) < SECRET_BYTES_MIN,
            "token_secret",
            f"it is shorter than {SECRET_BYTES_MIN} bytes: it can be guessed",
            "make a longer one",
        ),
        (
            "://" in settings.token_jwks and not is_safe_address(settings.token_jwks),
            "token_jwks",
            "keys on their way by http could be exchanged for others",
            "use https, or http from this machine only",
        ),
        (
            bool(strange),
            "token_algorithms",
            f"{', '.join(strange)}: not for keys of this kind",
            f"name some of: {', '.join(taken)}",
        ),
    ]
    return [Problem(f"permission.{key}", what, fix) for is_wrong, key, what, fix in found if is_wrong]


def _bearer(settings: Permission, policy: Policy, token: str) -> Caller:
    from . import tokens  # only here: its cryptography takes a tenth of a second

    bearer = tokens.read(token, settings)
    actor = f"token:{bearer.subject}"
    names = frozenset({actor, *(f"group:{group}" for group in bearer.groups)})
    grants = policy.grants(names)
    brought = bearer.claims.get(settings.grants_claim) if settings.grants_claim else None
    if brought is not None:
        claimed, problems = policy_file.claimed(brought, settings.grants_claim)
        if problems:
            raise TokenRefused(f"the token is refused: its grants are wrong: {problems[0]}")
        grants += claimed
    return Caller(actor, grants)
