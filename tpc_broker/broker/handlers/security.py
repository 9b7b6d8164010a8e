"""Delegation tokens, of which a broker has none.

The answers are those of Kafka where they are not set up: clients know them, and go on without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.auth.principals import ANONYMOUS, USER
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request

NO_TIMES = {
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: -1,
    ErrorCode.INVALID_PRINCIPAL_TYPE: -1,
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: 0,
}
"""What Kafka says in place of a token's times."""
REQUESTER_VERSION = 3
"""CreateDelegationToken tells who asked from here on, besides whose token it is."""

# -- delegation tokens -------------------------------------------------------------------------------------------------


def _why_not(core: Core, request: Request) -> ErrorCode:
    """As Kafka without a key for tokens: who says nothing of who it is may not ask, and to others there are none."""
    is_known = core.access.subject_of(request).principal != ANONYMOUS
    return ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED if is_known else ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def handle_create_delegation_token(
    core: Core, request: Request, message: messages.CreateDelegationTokenRequest
) -> messages.CreateDelegationTokenResponse:
    is_for_other, asking = bool(message.owner_principal_name), core.access.subject_of(request).principal
    code = _why_not(core, request)
    if code is ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED and any(one.principal_type != USER for one in message.renewers):
        code = ErrorCode.INVALID_PRINCIPAL_TYPE
    answer = messages.CreateDelegationTokenResponse(
        error_code=int(code),
        principal_type=(message.owner_principal_type or "") if is_for_other else asking.kind,
        principal_name=(message.owner_principal_name or "") if is_for_other else asking.name,
        issue_timestamp_ms=NO_TIMES[code],
        expiry_timestamp_ms=NO_TIMES[code],
        max_timestamp_ms=NO_TIMES[code],
    )
    if request.api_version >= REQUESTER_VERSION:
        answer.token_requester_principal_type, answer.token_requester_principal_name = asking
    return answer


def handle_renew_delegation_token(
    core: Core, request: Request, _message: messages.RenewDelegationTokenRequest
) -> messages.RenewDelegationTokenResponse:
    code = _why_not(core, request)
    return messages.RenewDelegationTokenResponse(error_code=int(code), expiry_timestamp_ms=NO_TIMES[code])


def handle_expire_delegation_token(
    core: Core, request: Request, _message: messages.ExpireDelegationTokenRequest
) -> messages.ExpireDelegationTokenResponse:
    code = _why_not(core, request)
    return messages.ExpireDelegationTokenResponse(error_code=int(code), expiry_timestamp_ms=NO_TIMES[code])


def handle_describe_delegation_token(
    core: Core, request: Request, _message: messages.DescribeDelegationTokenRequest
) -> messages.DescribeDelegationTokenResponse:
    return messages.DescribeDelegationTokenResponse(error_code=int(_why_not(core, request)))
