"""The client's side of SASL as machines without I/O: PLAIN (RFC 4616), SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677), and
OAUTHBEARER (RFC 7628).

A machine gives the first message, then turns each answer of the broker into the next message until it gives None: the
client is let in, and (with SCRAM) the broker has proved that it knows the password as well. As Kafka does, names and
passwords are taken as UTF-8 without SASLprep.
"""

import base64
import hashlib
import hmac
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tpc_broker.client.errors import AuthenticationError
from tpc_broker.client.security import Mechanism, SaslSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ITERATIONS_MIN: Final = 4096
"""Fewer would make the password cheap to guess for a broker that is not the right one."""
ITERATIONS_MAX: Final = 1_000_000


class SaslMachine(Protocol):
    def first(self) -> bytes: ...
    def next(self, answer: bytes) -> bytes | None: ...


class Plain:
    """One message; the broker answers nothing or an error."""

    def __init__(self, settings: SaslSettings) -> None:
        self._message = b"\0".join([b"", settings.username.encode(), settings.password.encode()])
        if self._message.count(b"\0") != 2:
            raise AuthenticationError("a name or password with NUL cannot be sent with PLAIN")

    def first(self) -> bytes:
        return self._message

    def next(self, answer: bytes) -> bytes | None:
        del answer
        return None


class Scram:
    """``nonce`` is the client's: printable, without comma, new for every connection."""

    def __init__(self, settings: SaslSettings, nonce: str) -> None:
        self._hash = {Mechanism.SCRAM_SHA_256: "sha256", Mechanism.SCRAM_SHA_512: "sha512"}[settings.mechanism]
        self._password = settings.password.encode()
        name = settings.username.replace("=", "=3D").replace(",", "=2C")
        self._nonce = nonce
        self._first_bare = f"n={name},r={nonce}"
        self._server_signature = b""
        self._state: Callable[[bytes], bytes | None] = self._on_server_first

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def next(self, answer: bytes) -> bytes | None:
        """`AuthenticationError` when the broker's answer proves nothing."""
        return self._state(answer)

    def _on_server_first(self, answer: bytes) -> bytes:
        fields = _fields(answer)
        try:
            nonce, iterations = fields["r"], int(fields["i"])
            salt = base64.b64decode(fields["s"], validate=True)
        except (KeyError, ValueError):
            raise AuthenticationError("the broker's first SCRAM message is malformed") from None
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise AuthenticationError("the broker's SCRAM nonce is not one for this client")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise AuthenticationError(
                f"the broker asks for {iterations} SCRAM iterations; allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}"
            )
        return self._proof(salt, iterations, nonce, answer)

    def _proof(self, salt: bytes, iterations: int, nonce: str, server_first: bytes) -> bytes:
        salted = _salted(self._hash, self._password, salt, iterations)
        client_key = self._hmac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        without_proof = f"c=biws,r={nonce}".encode()
        message = b",".join([self._first_bare.encode(), server_first, without_proof])
        signature = self._hmac(stored_key, message)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), message)
        self._state = self._on_server_final
        return without_proof + b",p=" + base64.b64encode(proof)

    def _on_server_final(self, answer: bytes) -> None:
        fields = _fields(answer)
        if "e" in fields:
            raise AuthenticationError(f"the broker refused the SCRAM proof: {fields['e']}")
        try:
            signature = base64.b64decode(fields["v"], validate=True)
        except (KeyError, ValueError):
            raise AuthenticationError("the broker's last SCRAM message is malformed") from None
        if not hmac.compare_digest(signature, self._server_signature):
            raise AuthenticationError("the broker does not know the password: it is not the one it should be")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.new(key, message, self._hash).digest()


class OAuthBearer:
    """One message with the token; a broker that does not take it says why in JSON, which is acknowledged to be refused
    by it.
    """

    def __init__(self, token: str, extensions: "Mapping[str, str] | None" = None) -> None:
        if not _TOKEN.fullmatch(token):
            raise AuthenticationError("the token is none of RFC 6750: letters, digits and -._~+/=")
        more = dict(extensions or {})
        for name, value in more.items():
            if name == "auth" or not _EXTENSION_NAME.fullmatch(name) or not _EXTENSION_VALUE.fullmatch(value):
                raise AuthenticationError(f"the extension {name!r} of the token is none of RFC 7628")
        pairs = {"auth": f"Bearer {token}", **more}
        fields = [f"{name}={value}" for name, value in pairs.items()]
        self._message = "\1".join(["n,,", *fields, "", ""]).encode()
        self._reason = ""

    def first(self) -> bytes:
        return self._message

    def next(self, answer: bytes) -> bytes | None:
        if self._reason:
            raise AuthenticationError(f"the broker refused the token: {self._reason}")
        if not answer:
            return None
        self._reason = answer.decode(errors="replace")
        return b"\x01"


_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_EXTENSION_NAME: Final = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE: Final = re.compile(r"[\x21-\x7E \t\r\n]+")


class Login(NamedTuple):
    """What one login needs: a new one for each connection, and each time that it is done again."""

    mechanism: str
    who: str
    """For errors."""
    machine: SaslMachine


@lru_cache(maxsize=16)
def _salted(hash_name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """PBKDF2: 3 ms (SHA-256) or 7 ms (SHA-512) with Kafka's 4,096 iterations, in which nothing else of the thread runs;
    a second with the most that a broker may ask for. Kept (RFC 5802, 5.1), so that further connections and renewed
    sessions do not pay it again.
    """
    return hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)


def _fields(message: bytes) -> dict[str, str]:
    parts = message.decode(errors="replace").split(",")
    return {part[0]: part[2:] for part in parts if part[1:2] == "="}


def sasl_machine(settings: SaslSettings, nonce: str) -> SaslMachine:
    return Plain(settings) if settings.mechanism == Mechanism.PLAIN else Scram(settings, nonce)


def login_of(settings: SaslSettings, nonce: str) -> Login:
    return Login(str(settings.mechanism), settings.username, sasl_machine(settings, nonce))


def login_with_token(token: str, extensions: "Mapping[str, str]") -> Login:
    return Login("OAUTHBEARER", "the token", OAuthBearer(token, extensions))
