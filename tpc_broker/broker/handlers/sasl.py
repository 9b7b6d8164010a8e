"""SaslHandshake and SaslAuthenticate: how a client of a SASL listener shows who it is (`broker.authentication`).

Where nobody logs in both are answered ILLEGAL_SASL_STATE, and the connection goes on, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request

NOT_IN_A_LOGIN: Final = "SaslAuthenticate request received after successful authentication"
"""Kafka's words, also where there is no authentication."""


def handle_sasl_handshake(
    core: Core, request: Request, message: messages.SaslHandshakeRequest
) -> messages.SaslHandshakeResponse | Awaitable[None]:
    state = core.dispatcher.state_of(request.connection)
    return core.authentication.shake_hands(None if state is None else state.sasl, request, message)


def handle_sasl_authenticate(
    core: Core, request: Request, message: messages.SaslAuthenticateRequest
) -> messages.SaslAuthenticateResponse | Awaitable[None] | None:
    state = core.dispatcher.state_of(request.connection)
    if state is None or state.sasl is None or state.sasl.is_open:
        code = int(ErrorCode.ILLEGAL_SASL_STATE)
        return messages.SaslAuthenticateResponse(error_code=code, error_message=NOT_IN_A_LOGIN)
    return core.authentication.take(state, state.sasl, request, bytes(message.auth_bytes))
