"""The server's side of OAUTHBEARER (RFC 7628): a token in one message, by which its issuer says who the client is.

    n,[a=NAME],^Aauth=Bearer TOKEN^A[KEY=VALUE^A]…^A

A token that is not believed is answered with `{"status":"invalid_token"}`, and the client's next message, ^A, is
answered with the failure: so the RFC has it. What is malformed fails at once. Why a token is not believed is told to
the log alone.

A token may be signed by a key that its issuer has just begun to use: then the keys are asked for once more, which their
source does only now and then.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from tpc_broker.auth.exchange import Challenge, Done, Failed, Work
from tpc_broker.auth.principals import USER, Principal

if TYPE_CHECKING:
    from tpc_broker.auth.exchange import Step
    from tpc_broker.auth.tokens import Believed

MESSAGE_BYTES_MAX: Final = 80 * 1024
"""A token, a name, and some pairs."""
REFUSED: Final = b'{"status":"invalid_token"}'
"""The client's next message is ^A, as the RFC has it; the failure says the same, as Kafka's does."""
ACTS_FOR_ANOTHER: Final = (
    "Authentication failed: Client requested an authorization id ({}) that is different from the token's principal "
    "name ({})"
)
"""Kafka's words."""
_NAME: Final = rb"(?:[\x02-\x2b\x2d-\x3c\x3e-\x7e\x80-\xff]|=2C|=3D)+"
_MESSAGE: Final = re.compile(
    rb"n,(?:a=(?P<name>" + _NAME + rb"))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]*\x01)+)\x01"
)
_BEARER: Final = re.compile(rb"bearer +(?P<token>[A-Za-z0-9._~+/=-]+)", re.IGNORECASE)


class Tokens(Protocol):
    """Who checks tokens, by keys that it gets from elsewhere."""

    def check(self, token: bytes) -> Believed | str | None:
        """Whom it names, or why it is not believed; None: it may be signed by a key that is not known yet."""
        ...

    async def ask_for_keys(self) -> None:
        """Again, unless it was just done. It takes seconds at most, and raises nothing."""
        ...


class OAuthBearerExchange:
    """One login."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._refused = ""

    def step(self, message: bytes) -> Step:
        if self._refused:  # whatever comes now: another token is for another login
            return Failed(self._refused, REFUSED.decode())
        read = read_message(message)
        if isinstance(read, Failed):
            return read
        name, token = read
        found = self._tokens.check(token)
        if found is None:
            return Work(self._tokens.ask_for_keys, lambda _none: self._again(name, token), is_async=True)
        return self._judge(name, found)

    def _again(self, name: str, token: bytes) -> Step:
        found = self._tokens.check(token)
        return self._judge(name, "a token is not believed: it is signed by a key that is not known" if found is None
                           else found)  # fmt: skip

    def _judge(self, name: str, found: Believed | str) -> Step:
        if isinstance(found, str):
            self._refused = found
            return Challenge(REFUSED)
        if name and name != found.subject:
            told = ACTS_FOR_ANOTHER.format(name, found.subject)
            return Failed("a client asks to act for another than its token names", told)
        return Done(Principal(USER, found.subject), expires_ms=found.expires_ms)


def read_message(message: bytes) -> tuple[str, bytes] | Failed:
    """The name that is asked for, "" where none is, and the token."""
    if len(message) > MESSAGE_BYTES_MAX:
        return Failed("an OAUTHBEARER message is too long")
    matched = _MESSAGE.fullmatch(message)
    if matched is None:
        return Failed("an OAUTHBEARER message is malformed")
    pairs = [pair.partition(b"=") for pair in matched["pairs"].split(b"\x01")[:-1]]
    values = [value for key, _equals, value in pairs if key == b"auth"]
    bearer = _BEARER.fullmatch(values[0]) if len(values) == 1 else None
    if bearer is None:
        return Failed("an OAUTHBEARER message has not one bearer token")
    try:
        name = (matched["name"] or b"").replace(b"=2C", b",").replace(b"=3D", b"=").decode()
    except UnicodeDecodeError:
        return Failed("the name in an OAUTHBEARER message is no UTF-8")
    return name, bearer["token"]


