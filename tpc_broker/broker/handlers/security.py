"""Delegation tokens, of which a broker has none.

The answers are those of Kafka where they are not set up: clients know them, and go on without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request

USER, ANONYMOUS = "User", "ANONYMOUS"
NO_TIME = -1
REQUESTER_VERSION = 3
"""CreateDelegationToken tells who asked from here on, besides whose token it is."""

# -- delegation tokens -------------------------------------------------------------------------------------------------


def handle_create_delegation_token(
    _core: Core, request: Request, message: messages.CreateDelegationTokenRequest
) -> messages.CreateDelegationTokenResponse:
    is_for_other = bool(message.owner_principal_name)
    answer = messages.CreateDelegationTokenResponse(
        error_code=int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED),
        principal_type=(message.owner_principal_type or "") if is_for_other else USER,
        principal_name=(message.owner_principal_name or "") if is_for_other else ANONYMOUS,
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
    )
    if request.api_version >= REQUESTER_VERSION:
        answer.token_requester_principal_type, answer.token_requester_principal_name = USER, ANONYMOUS
    return answer


def handle_renew_delegation_token(
    _core: Core, _request: Request, _message: messages.RenewDelegationTokenRequest
) -> messages.RenewDelegationTokenResponse:
    return messages.RenewDelegationTokenResponse(
        error_code=int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED), expiry_timestamp_ms=NO_TIME
    )


def handle_expire_delegation_token(
    _core: Core, _request: Request, _message: messages.ExpireDelegationTokenRequest
) -> messages.ExpireDelegationTokenResponse:
    return messages.ExpireDelegationTokenResponse(
        error_code=int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED), expiry_timestamp_ms=NO_TIME
    )


def handle_describe_delegation_token(
    _core: Core, _request: Request, _message: messages.DescribeDelegationTokenRequest
) -> messages.DescribeDelegationTokenResponse:
    return messages.DescribeDelegationTokenResponse(error_code=int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED))
