"""Delegation tokens, of which a broker has none.

The answers are those of Kafka where they are not set up: clients know them, and go on without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.auth.principals import ANONYMOUS
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request

NO_TIME = -1
REQUESTER_VERSION = 3
"""CreateDelegationToken tells who asked from here on, besides whose token it is."""

# -- delegation tokens -------------------------------------------------------------------------------------------------


def _why_not(core: Core, request: Request) -> int:
    """As Kafka without a key for tokens: who says nothing of who it is may not ask, and to others there are none."""
    is_known = core.access.subject_of(request).principal != ANONYMOUS
    code = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED if is_known else ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    return int(code)


def handle_create_delegation_token(
    core: Core, request: Request, message: messages.CreateDelegationTokenRequest
) -> messages.CreateDelegationTokenResponse:
    is_for_other, asking = bool(message.owner_principal_name), core.access.subject_of(request).principal
    answer = messages.CreateDelegationTokenResponse(
        error_code=_why_not(core, request),
        principal_type=(message.owner_principal_type or "") if is_for_other else asking.kind,
        principal_name=(message.owner_principal_name or "") if is_for_other else asking.name,
        issue_timestamp_ms=NO_TIME,
        expiry_timestamp_ms=NO_TIME,
        max_timestamp_ms=NO_TIME,
    )
    if request.api_version >= REQUESTER_VERSION:
        answer.token_requester_principal_type, answer.token_requester_principal_name = asking
    return answer


def handle_renew_delegation_token(
    core: Core, request: Request, _message: messages.RenewDelegationTokenRequest
) -> messages.RenewDelegationTokenResponse:
    return messages.RenewDelegationTokenResponse(
        error_code=_why_not(core, request), expiry_timestamp_ms=NO_TIME
    )


def handle_expire_delegation_token(
    core: Core, request: Request, _message: messages.ExpireDelegationTokenRequest
) -> messages.ExpireDelegationTokenResponse:
    return messages.ExpireDelegationTokenResponse(
        error_code=_why_not(core, request), expiry_timestamp_ms=NO_TIME
    )


def handle_describe_delegation_token(
    core: Core, request: Request, _message: messages.DescribeDelegationTokenRequest
) -> messages.DescribeDelegationTokenResponse:
    return messages.DescribeDelegationTokenResponse(error_code=_why_not(core, request))
