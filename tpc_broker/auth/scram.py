"""The server's side of SCRAM-SHA-256 and -512 (RFC 5802, RFC 7677). As in Kafka, names and passwords are taken as UTF-8
without SASLprep.

A client that names an unknown user gets a salt all the same, the same one each time and after the same work, and fails
at the last message after the same work, so that it does not learn who there is. The salt is as long as most users' is,
and the iterations are as many (`Shape`); a user who has others can be told from one who is not there.

Channels are not bound (`-PLUS`): a client that binds (`p=`) is refused, one that only could (`y`) is let in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from tpc_broker.auth.credentials import ITERATIONS_MIN, SALT_BYTES, ScramCredential, user_name_fault
from tpc_broker.auth.exchange import Challenge, Done, Failed
from tpc_broker.auth.principals import USER, Principal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.auth.credentials import ScramMechanism
    from tpc_broker.auth.exchange import Step

NONCE_BYTES: Final = 24
"""Of the server's part, before base64."""
MESSAGE_BYTES_MAX: Final = 4096
CLIENT_NONCE_BYTES_MAX: Final = 1024

ACTS_FOR_ANOTHER: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)
"""Kafka's words."""

_FIRST = re.compile(
    r"(?P<header>(?P<binding>[ny]|p=[A-Za-z0-9.-]+),(?:a=(?P<authzid>[^,]*))?,)"
    r"(?P<bare>n=(?P<name>[^,]*),r=(?P<nonce>[^,]*)(?P<extensions>(?:,[A-Za-z][A-Za-z]*=[^,]*)*))"
)
_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<binding>[^,]*),r=(?P<nonce>[^,]*)(?:,[A-Za-z]=[^,]*)*?),p=(?P<proof>[^,]*)"
)
_NONCE = re.compile(r"[\x21-\x2b\x2d-\x7e]+")
_ESCAPE = re.compile(r"=(2C|3D)?")


def fits(credential: ScramCredential, mechanism: ScramMechanism) -> bool:
    """Whether it is of that mechanism: keys of another hash prove nothing."""
    return len(credential.stored_key) == len(credential.server_key) == mechanism.key_bytes and credential.iterations > 0


class Shape(NamedTuple):
    """What a client sees of a credential."""

    salt_bytes: int = SALT_BYTES
    iterations: int = ITERATIONS_MIN


def usual_shape(credentials: Iterable[ScramCredential]) -> Shape:
    """That most of them have."""
    counted = Counter(Shape(len(each.salt), each.iterations) for each in credentials)
    return max(counted, key=lambda shape: (counted[shape], shape), default=Shape())


def stand_in(mechanism: ScramMechanism, user: str, secret: bytes, shape: Shape) -> ScramCredential:
    """For a user who is not there: the same each time, and of no password. `secret`: the server's own."""

    def of(what: bytes) -> bytes:
        return hmac.digest(secret, what + b" " + bytes([mechanism]) + user.encode(), mechanism.hash_name)

    salt = hashlib.shake_256(of(b"salt")).digest(shape.salt_bytes)
    return ScramCredential(salt, shape.iterations, of(b"stored"), of(b"server"))


class Users(Protocol):
    """Whose passwords are known, as of now."""

    def credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None: ...

    def stand_in(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """For one who is not there."""
        ...

    def usual_verifier(self) -> ScramMechanism:
        """What the password of one who is not there is checked against (`auth.plain`)."""
        ...


class ScramExchange:
    """One login. `nonce`: the server's part, printable, without comma, new for each."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        users: Users,
        nonce: str,
    ) -> None:
        self._mechanism = mechanism
        self._hash = mechanism.hash_name
        self._users = users
        self._own_nonce = nonce
        self._header = self._bare = self._nonce = self._server_first = self._user = ""
        self._known: ScramCredential | None = None
        self._credential: ScramCredential | None = None

    def step(self, message: bytes) -> Step:
        if len(message) > MESSAGE_BYTES_MAX:
            return Failed("a SCRAM message is too long")
        try:
            text = message.decode()
        except UnicodeDecodeError:
            return Failed("a SCRAM message is no UTF-8")
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> Step:
        match = _FIRST.fullmatch(text)
        if match is None:
            return Failed("the first SCRAM message is malformed")
        user, authzid = unescaped(match["name"]), unescaped(match["authzid"] or "")
        nonce = match["nonce"]
        if authzid not in ("", user):
            return Failed(f"{user!r} asks to act for somebody else", ACTS_FOR_ANOTHER)
        refused = (
            "the client wants its channel bound, which is not offered" * match["binding"].startswith("p")
            or "the user's name is malformed" * (user is None or user_name_fault(user) is not None)
            or "the client's nonce is malformed" * (not _NONCE.fullmatch(nonce) or len(nonce) > CLIENT_NONCE_BYTES_MAX)
            or "delegation tokens are not offered" * (",tokenauth=true" in match["extensions"].lower())
        )
        if refused or user is None:
            return Failed(refused)
        known = self._users.credential(user, self._mechanism)
        self._known = known if known is not None and fits(known, self._mechanism) else None
        instead = self._users.stand_in(user, self._mechanism)  # whoever it is: its time would tell who is not there
        credential = self._known or instead
        self._user, self._credential = user, credential
        self._header, self._bare, self._nonce = match["header"], match["bare"], nonce + self._own_nonce
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={credential.iterations}"
        return Challenge(self._server_first.encode())

    def _final(self, text: str, credential: ScramCredential) -> Step:
        match = _FINAL.fullmatch(text)
        if match is None:
            return Failed("the last SCRAM message is malformed")
        if match["binding"] != base64.b64encode(self._header.encode()).decode():
            return Failed("the client has changed what it said of channels")
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()):
            return Failed("the client answers with another nonce")
        signed = ",".join([self._bare, self._server_first, match["without_proof"]]).encode()
        is_right = self._proves(match["proof"], signed, credential)
        server_signature = hmac.digest(credential.server_key, signed, self._hash)
        known_now = self._users.credential(self._user, self._mechanism)
        refused = (
            f"there is no user {self._user!r} for {self._mechanism.sasl_name}" * (self._known is None)
            or f"the credential of user {self._user!r} has just been changed" * (known_now != self._known)
            or f"wrong password of user {self._user!r}" * (not is_right)
        )
        if refused:
            return Failed(refused)
        return Done(Principal(USER, self._user), b"v=" + base64.b64encode(server_signature))

    def _proves(self, proof_text: str, signed: bytes, credential: ScramCredential) -> bool:
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except ValueError:
            return False
        if len(proof) != len(signature):
            return False
        client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
        return hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)


def unescaped(name: str) -> str | None:
    """A name as RFC 5802 writes it, `=2C` for a comma and `=3D` for an equals sign; None: malformed."""
    parts = _ESCAPE.split(name)
    if None in parts:
        return None
    return "".join({"2C": ",", "3D": "="}[part] if at % 2 else part for at, part in enumerate(parts))
