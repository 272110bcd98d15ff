"""Tokens: whose one is, and each way in which one is not believed; nothing that is said holds a part of it."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jwt
import jwt.algorithms
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tidegate.consumers import tokens
from tidegate.consumers.settings import Permission
from tidegate.consumers.token_rules import TokenRefused
from tidegate.inbox.errors import ConfigurationError, TidegateError

SECRET: Final = "0123456789abcdef0123456789abcdef"
RSA: Final = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
OTHER: Final = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
EC: Final = ec.generate_private_key(ec.SECP256R1())
ED: Final = ed25519.Ed25519PrivateKey.generate()


def claims(**more: Any) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC)
    given = {"sub": "ada", "iss": "https://id.test", "aud": "tidegate", "exp": now + datetime.timedelta(hours=1)} | more
    return {name: value for name, value in given.items() if value is not None}


def by_secret(**more: Any) -> Permission:
    return Permission.model_validate(
        {"token_secret": SECRET, "token_issuer": "https://id.test", "token_audience": "tidegate"} | more
    )


def jwk(key: Any, kid: str, algorithm: str) -> dict[str, Any]:
    kinds: dict[str, Any] = {"RS256": jwt.algorithms.RSAAlgorithm, "ES256": jwt.algorithms.ECAlgorithm,
                             "EdDSA": jwt.algorithms.OKPAlgorithm}  # fmt: skip
    return kinds[algorithm].to_jwk(key.public_key(), as_dict=True) | {"kid": kid, "use": "sig"}


@pytest.fixture(scope="module")
def jwks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "jwks.json"
    keys = [jwk(RSA, "r", "RS256"), jwk(EC, "e", "ES256"), jwk(ED, "d", "EdDSA")]
    path.write_text(json.dumps({"keys": keys}))
    return path


def by_keys(where: object, **more: Any) -> Permission:
    return by_secret(token_secret="", token_jwks=str(where), **more)


def refused(token: str, settings: Permission) -> str:
    with pytest.raises(TokenRefused) as caught:
        tokens.read(token, settings)
    said = str(caught.value)
    assert not [part for part in token.split(".") if len(part) > 8 and part in said]
    assert caught.value.__suppress_context__, "no traceback shows what the library said of the token"
    assert "Fix: " in said
    return said


@pytest.mark.parametrize(("key", "algorithm", "kid"), [(RSA, "RS256", "r"), (RSA, "PS512", "r"), (EC, "ES256", "e"),
                                                       (ED, "EdDSA", "d"), (RSA, "RS256", None)])  # fmt: skip
def test_a_token_of_each_kind_of_key_is_believed(jwks: Path, key: Any, algorithm: str, kid: str | None) -> None:
    token = jwt.encode(claims(groups=["oncall"]), key, algorithm, headers={} if kid is None else {"kid": kid})
    bearer = tokens.read(token, by_keys(jwks))
    assert (bearer.subject, bearer.groups) == ("ada", {"oncall"})


def test_a_shared_secret_is_believed_as_far_as_it_is_long_enough() -> None:
    assert tokens.read(jwt.encode(claims(groups="one"), SECRET, "HS256"), by_secret()).groups == {"one"}
    long = SECRET * 2
    token = jwt.encode(claims(), long, "HS512")
    assert tokens.read(token, by_secret(token_secret=long)).subject == "ada"
    assert "no configured key takes" in refused(token, by_secret()), "HS512 needs 64 bytes"


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"exp": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)}, "it has expired"),
        ({"nbf": datetime.datetime(2099, 1, 1, tzinfo=datetime.UTC)}, "it is not valid yet"),
        ({"aud": "another"}, "made for another audience"),
        ({"aud": ["another", "third"]}, "made for another audience"),
        ({"iss": "https://evil.test"}, "from another issuer"),
        ({"exp": None}, "it has no exp"),
        ({"iss": None}, "it has no iss"),
        ({"aud": None}, "it has no aud"),
        ({"sub": None}, "it has no sub"),
        ({"sub": ""}, "its subject"),
        ({"sub": "x" * 201}, "its subject"),
        ({"exp": "soon"}, "it is malformed"),
    ],
)
def test_claims_that_do_not_fit_are_refused_one_by_one(more: dict[str, Any], why: str) -> None:
    assert why in refused(jwt.encode(claims(**more), SECRET, "HS256"), by_secret())


def test_a_subject_that_is_no_text_is_refused() -> None:
    body = {**claims(), "sub": 7, "exp": 4_000_000_000}
    assert "its subject" in refused(hs256(body, SECRET.encode()), by_secret())


def encoded(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def hs256(body: dict[str, Any], key: bytes, header: dict[str, Any] | None = None) -> str:
    """Signed by hand: the library itself refuses to sign with a public key's text."""
    signed = f"{encoded({'alg': 'HS256', 'typ': 'JWT'} | (header or {}))}.{encoded(body)}"
    return f"{signed}.{encoded(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"


PLAIN: Final = {"sub": "ada", "iss": "https://id.test", "aud": "tidegate", "exp": 4_000_000_000}


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", ""])
def test_what_nobody_signed_is_refused(jwks: Path, algorithm: str) -> None:
    token = f"{encoded({'alg': algorithm, 'typ': 'JWT'})}.{encoded(PLAIN)}."
    for settings in (by_secret(), by_keys(jwks)):
        assert "refused" in refused(token, settings)


def test_a_public_key_is_no_secret(jwks: Path) -> None:
    """HS256 with the text of the public key in any of its forms: the algorithm follows from the key, not the token."""
    public = RSA.public_key()
    texts = [
        public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo),
        json.dumps(jwk(RSA, "r", "RS256")).encode(),
        jwks.read_bytes(),
    ]
    for text in texts:
        for header in ({"kid": "r"}, {}):
            assert "no configured key takes" in refused(hs256(PLAIN, text, header), by_keys(jwks))


def test_a_secret_takes_no_public_keys_algorithm(jwks: Path) -> None:
    assert "no configured key takes" in refused(jwt.encode(claims(), RSA, "RS256"), by_secret())


def test_what_another_key_signed_is_refused(jwks: Path) -> None:
    forged = jwt.encode(claims(), OTHER, "RS256", headers={"kid": "r"})
    assert "its signature is not by the configured key" in refused(forged, by_keys(jwks))
    assert "no configured key takes" in refused(jwt.encode(claims(), RSA, "RS256", headers={"kid": "x"}), by_keys(jwks))
    whole = jwt.encode(claims(), SECRET, "HS256")
    head, _, signature = whole.split(".")
    assert "its signature" in refused(f"{head}.{encoded({**PLAIN, 'sub': 'eve'})}.{signature}", by_secret())


def test_only_listed_algorithms_are_taken(jwks: Path) -> None:
    token = jwt.encode(claims(), RSA, "RS256", headers={"kid": "r"})
    assert "no configured key takes" in refused(token, by_keys(jwks, token_algorithms="ES256"))
    assert tokens.read(token, by_keys(jwks, token_algorithms="RS256,ES256")).subject == "ada"


def test_a_key_that_comes_with_the_token_is_not_looked_at(jwks: Path) -> None:
    header = {"kid": "r", "jwk": jwk(OTHER, "r", "RS256"), "jku": "http://127.0.0.1:1/jwks", "x5u": "http://x"}
    assert "its signature" in refused(jwt.encode(claims(), OTHER, "RS256", headers=header), by_keys(jwks))


@pytest.mark.parametrize("token", ["", "x", "a.b", "a.b.c", "a.b.c.d.e", "\N{SNOWMAN}" * 9, "e30.e30.e30", "." * 9])
def test_what_is_no_token_is_refused(token: str) -> None:
    assert "refused" in refused(token, by_secret())


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"keys": 1}', '{"keys": []}', '{"keys": [{"kty": "RSA"}]}', "x" * 1_000_001,
                '{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}', '{"keys": ["x"]}'],
)  # fmt: skip
def test_what_is_no_set_of_public_keys_is_the_configurations_fault(tmp_path: Path, content: str) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"permission\.token_jwks: .*is no JSON Web Key Set"):
        tokens.read(jwt.encode(claims(), RSA, "RS256"), by_keys(path))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        tokens.read(jwt.encode(claims(), RSA, "RS256"), by_keys(tmp_path / "nowhere"))


def test_a_token_without_a_key_to_check_it_is_never_ignored() -> None:
    with pytest.raises(ConfigurationError, match="no key to check it with"):
        tokens.read(jwt.encode(claims(), SECRET, "HS256"), Permission())


# ------------------------------------------------------------------------------------------------- keys at an address


@pytest.fixture
def address(jwks: Path) -> Iterator[str]:
    """Keys by HTTP from this machine; `/moved` sends elsewhere, `/broken` does not work."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = {"/jwks": 200, "/moved": 302}.get(self.path, 500)
            self.send_response(status)
            self.send_header("Location", "/jwks")
            self.end_headers()
            self.wfile.write(jwks.read_bytes())

        def log_message(self, format: str, *args: object) -> None:
            """Nothing to tell."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_keys_are_fetched_and_nobody_is_sent_elsewhere(address: str) -> None:
    token = jwt.encode(claims(), EC, "ES256", headers={"kid": "e"})
    assert tokens.read(token, by_keys(f"{address}/jwks")).subject == "ada"
    for path, why in (("moved", "answers 302"), ("broken", "answers 500")):
        with pytest.raises(TidegateError, match=why):
            tokens.read(token, by_keys(f"{address}/{path}"))
    with pytest.raises(TidegateError, match="does not answer"):
        tokens.read(token, by_keys("http://127.0.0.1:1/jwks"))
