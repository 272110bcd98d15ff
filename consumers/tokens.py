"""Says whose token it is, or refuses it: forged, expired, made for others, or signed in a way that is not taken.

Which algorithms may have signed it is decided by the key that it is checked with, never by the token: a public key
takes RS, PS, ES or EdDSA by its type, a shared secret HS, nothing takes `none`. So a token that names HS256 and is
signed with the text of a public key finds no key at all. Nothing that is raised here holds a part of a token.

This module is loaded only where a token is given: its cryptography takes a tenth of a second.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, cast

import jwt

from ..inbox.errors import ConfigurationError, TidegateError
from .settings import Permission
from .token_rules import ALGORITHMS, TokenRefused

JWKS_BYTES_MAX: Final = 1_000_000
"""A hundred times what an issuer publishes."""

FETCH_S: Final = 5.0
"""A person waits for it."""

SUBJECT_CHARS_MAX: Final = 200
"""With its prefix it stands in the audit uncut, so that two people never share a name there."""


class Bearer(NamedTuple):
    """Who holds a token, as its claims say."""

    subject: str
    groups: frozenset[str]
    claims: Mapping[str, Any]


class _Key(NamedTuple):
    kind: str
    key: Any
    kid: str | None
    algorithm: str | None


def read(token: str, settings: Permission) -> Bearer:
    """Whose token it is.

    Raises:
        TokenRefused: it is not believed.
        ConfigurationError: no key is configured, or it cannot be used.
        TidegateError: the keys' address does not answer.
    """
    keys = _keys(settings)
    algorithm, kid = _header(token)
    fitting = [key for key in keys if _takes(key, algorithm, kid, settings)]
    if not fitting:
        _refuse("no configured key takes its algorithm and key id", "get one from the configured issuer")
    claims = _verified(token, fitting, algorithm, settings)
    subject = claims.get("sub")
    if not isinstance(subject, str) or not subject.strip() or len(subject) > SUBJECT_CHARS_MAX:
        _refuse(f"its subject (sub) is empty, no text, or longer than {SUBJECT_CHARS_MAX} characters", _ANOTHER)
    return Bearer(subject, _groups(claims, settings.groups_claim), claims)


_ANOTHER: Final = "get a new token"


def _refuse(why: str, fix: str) -> NoReturn:
    raise TokenRefused(f"the token is refused: {why}. Fix: {fix}") from None


def _header(token: str) -> tuple[str, str | None]:
    try:
        header = jwt.get_unverified_header(token)
    except jwt.InvalidTokenError:
        _refuse("it is no signed token (JWS)", "give the token alone, as the issuer handed it out")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm.lower() == "none":
        _refuse("nobody signed it", "get one that is signed")
    return algorithm, kid if isinstance(kid, str) else None


def _takes(key: _Key, algorithm: str, kid: str | None, settings: Permission) -> bool:
    allowed = settings.token_algorithms or ALGORITHMS[key.kind]
    if algorithm not in allowed or algorithm not in ALGORITHMS[key.kind]:
        return False
    if key.algorithm is not None and key.algorithm != algorithm:
        return False
    if key.kind == "secret" and len(key.key.encode()) * 8 < int(algorithm.removeprefix("HS")):
        return False  # a secret that is shorter than the hash is easier to guess than it looks
    return kid is None or key.kid is None or kid == key.kid


def _verified(token: str, keys: list[_Key], algorithm: str, settings: Permission) -> dict[str, Any]:
    """The claims, by the first key that signed it: where the token names no key, several may fit."""
    for key in keys:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=settings.token_audience,
                issuer=settings.token_issuer,
                leeway=settings.token_leeway_s,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except jwt.InvalidSignatureError:
            continue
        except jwt.InvalidTokenError as error:
            _refuse(*_why(error))
        except (jwt.PyJWTError, TypeError, ValueError):  # a claim of a type that no rule foresees
            _refuse("its claims are of the wrong kind", _ANOTHER)
        return claims
    _refuse("its signature is not by the configured key", "get one from the configured issuer")


_REASONS: Final[tuple[tuple[type[jwt.PyJWTError], str, str], ...]] = (
    (jwt.ExpiredSignatureError, "it has expired", _ANOTHER),
    (jwt.ImmatureSignatureError, "it is not valid yet", "wait, or look at the clocks"),
    (jwt.InvalidAudienceError, "it was made for another audience", "get one for permission.token_audience"),
    (jwt.InvalidIssuerError, "it is from another issuer", "get one from permission.token_issuer"),
    (jwt.exceptions.InvalidSubjectError, "its subject (sub) is no text", _ANOTHER),
)


def _why(error: jwt.InvalidTokenError) -> tuple[str, str]:
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"it has no {error.claim}", "get one with exp, iss, aud and sub"
    for kind, why, fix in _REASONS:
        if isinstance(error, kind):
            return why, fix
    return "it is malformed", _ANOTHER


def _groups(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    value = claims.get(claim) if claim else None
    members = cast("list[object]", value) if isinstance(value, list) else [value]
    return frozenset(member for member in members if isinstance(member, str) and member)


# --------------------------------------------------------------------------------------------------------------- keys


def _keys(settings: Permission) -> list[_Key]:
    secret = settings.token_secret.get_secret_value()
    if secret:
        return [_Key("secret", secret, None, None)]
    where = settings.token_jwks
    if not where:
        raise ConfigurationError.of(
            "permission.token_jwks", "a token is given, and no key to check it with", "set it, or leave the token out"
        )
    return _public_keys(_fetched(where) if "://" in where else _read(where), where)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        what = f"{path} cannot be read ({error.strerror})"
        raise ConfigurationError.of("permission.token_jwks", what, "mount or correct that file") from None


def _fetched(address: str) -> bytes:
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(address, timeout=FETCH_S) as answer:
            return answer.read(JWKS_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        why = f"answers {error.code}" if isinstance(error, urllib.error.HTTPError) else "does not answer"
        raise TidegateError(f"the keys' address (permission.token_jwks) {why}: nobody's token can be checked") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Where keys come from is configured, never answered."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


def _public_keys(document: bytes, where: str) -> list[_Key]:
    problem = ConfigurationError.of(
        "permission.token_jwks", f"{where} is no JSON Web Key Set of public keys", 'it looks like {"keys": [...]}'
    )
    if len(document) > JWKS_BYTES_MAX:
        raise problem
    try:
        listed = cast("list[dict[str, Any]]", json.loads(document)["keys"])
        found = [_public_key(entry) for entry in listed]
    except (ValueError, KeyError, TypeError, AttributeError, jwt.PyJWTError):
        raise problem from None
    keys = [key for key in found if key is not None]
    if not keys:
        raise problem
    return keys


def _public_key(entry: dict[str, Any]) -> _Key | None:
    """A key that signatures are checked with; None for what is of no use here."""
    kind = entry.get("kty")
    if kind not in ("RSA", "EC", "OKP") or entry.get("use", "sig") != "sig":
        return None
    parsed = jwt.PyJWK(entry, algorithm=entry.get("alg") or _algorithm(entry))
    return _Key(kind, parsed.key, entry.get("kid"), entry.get("alg") or _by_curve(entry))


def _algorithm(entry: dict[str, Any]) -> str:
    return _by_curve(entry) or "RS256"


def _by_curve(entry: dict[str, Any]) -> str | None:
    """An EC key signs with the one algorithm of its curve; an RSA key with any of its family."""
    return {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA", "Ed448": "EdDSA"}.get(
        str(entry.get("crv"))
    )
