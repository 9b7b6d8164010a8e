"""How a connection begins, as a machine without I/O: agree about versions, then log in; and how a session is renewed.

Both are generators of requests that are sent answers: each request is sent when the answer to the one before has come.
They return how many seconds the session lasts; infinity: as long as the connection. What goes wrong is an
`AuthenticationError`, or another `ClientError`, and the connection is to be closed: nothing falls back to less than was
asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tpc_broker.client.conversation import CLIENT_SOFTWARE, HELLO_VERSION, Conversation
from tpc_broker.client.errors import AuthenticationError, UnsupportedError
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    from collections.abc import Generator

    from tpc_broker.client.sasl import Login

FOREVER: Final = float("inf")
NONCE_BYTES: Final = 24
"""Of chance, for each login."""


class Ask(NamedTuple):
    key: ApiKey
    version: int
    message: Any


def introduction(conversation: Conversation, place: str, login: Login | None) -> Generator[Ask, Any, float]:
    """``place`` names the broker in errors."""
    yield from _versions(conversation, place)
    if login is None:
        return FOREVER
    return (yield from renewal(conversation, place, login))


def _versions(conversation: Conversation, place: str) -> Generator[Ask, Any, None]:
    name, software_version = CLIENT_SOFTWARE
    asked = messages.ApiVersionsRequest(client_software_name=name, client_software_version=software_version)
    version = HELLO_VERSION
    answer = yield Ask(ApiKey.API_VERSIONS, version, asked)
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        offered = [row for row in answer.api_keys if row.api_key == ApiKey.API_VERSIONS]
        if any(row.min_version > version for row in offered):
            raise UnsupportedError(f"{place} and this client have no version of ApiVersions in common")
        version = min((row.max_version for row in offered), default=0)
        answer = yield Ask(ApiKey.API_VERSIONS, min(version, HELLO_VERSION - 1), asked)
    if answer.error_code:
        raise UnsupportedError(f"{place} does not say what it can: {_name_of(answer.error_code)} to ApiVersions")
    conversation.agree(answer)


# Rule: A client that is to log in sends nothing else before the broker has let it in, and nothing while it logs in
# again; a broker that knows no logins gets no password. See also tpc_broker/client/sasl.py,
# tpc_broker/client/net/channel.py. Held by tests/client/test_security.py, tests/client/test_channel_security.py.
def renewal(conversation: Conversation, place: str, login: Login) -> Generator[Ask, Any, float]:
    """A login, the first or another one before the session ends (KIP-368): nothing else may be asked in between."""
    for key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
        if not conversation.knows(key):
            raise AuthenticationError(f"{place} knows no SASL, and a login is asked for")
    version = conversation.version(ApiKey.SASL_HANDSHAKE)
    if version < 1:  # tokens that are no requests: Kafka before 1.0
        raise AuthenticationError(f"{place} is too old for SASL with this client")
    answer = yield Ask(ApiKey.SASL_HANDSHAKE, version, messages.SaslHandshakeRequest(mechanism=login.mechanism))
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        there = ", ".join(answer.mechanisms) or "none"
        raise AuthenticationError(f"{place} knows no SASL {login.mechanism}; it has {there}")
    if answer.error_code:
        raise AuthenticationError(f"{place} knows no SASL at this listener: {_name_of(answer.error_code)}")
    version = conversation.version(ApiKey.SASL_AUTHENTICATE)
    token: bytes | None = login.machine.first()
    while token is not None:
        answer = yield Ask(ApiKey.SASL_AUTHENTICATE, version, messages.SaslAuthenticateRequest(auth_bytes=token))
        if answer.error_code:
            why = answer.error_message or _name_of(answer.error_code)
            raise AuthenticationError(f"{place} does not let {login.who} in: {why}")
        token = login.machine.next(bytes(answer.auth_bytes))
    return answer.session_lifetime_ms / 1000 if answer.session_lifetime_ms > 0 else FOREVER


def _name_of(code: int) -> str:
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error {code}"
