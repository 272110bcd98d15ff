"""Which keys and algorithms are taken for tokens, and from where: rules only, without a key or a token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from ..inbox.errors import EXIT_NOT_PERMITTED, TidegateError

ALGORITHMS: Final[Mapping[str, tuple[str, ...]]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
    "secret": ("HS256", "HS384", "HS512"),
}
"""What a key of each type may have signed with. A JWKS holds public keys: an `oct` in it is a secret that got out."""

SECRET_BYTES_MIN: Final = 32
"""As long as HS256's hash (RFC 7518, 3.2): a shorter one can be guessed from a single token."""


class TokenRefused(TidegateError):
    """The token is not believed; the message says why and holds no part of it."""

    exit_code = EXIT_NOT_PERMITTED


def fitting(*, is_secret: bool) -> tuple[str, ...]:
    """Every algorithm that a shared secret, or a set of public keys, takes."""
    kinds = ("secret",) if is_secret else ("RSA", "EC", "OKP")
    return tuple(name for kind in kinds for name in ALGORITHMS[kind])


def is_safe_address(address: str) -> bool:
    """Whether keys may be fetched from there: nobody on the way can exchange them."""
    parts = urlsplit(address)
    if parts.scheme == "http":
        return parts.hostname in ("127.0.0.1", "localhost", "::1")
    return parts.scheme == "https" and bool(parts.hostname)
