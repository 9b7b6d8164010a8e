"""ACLs and delegation tokens, of which a broker without authorizer has none.

The answers are those of Kafka where they are not set up: clients know them, and go on without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.errors import DecodeError

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request

    _Filter = messages.DescribeAclsRequest | messages.DeleteAclsRequest.DeleteAclsFilter

UNKNOWN = 0
"""Of a kind of resource, pattern, operation or permission: no client may ask for it."""
USER, ANONYMOUS = "User", "ANONYMOUS"
NO_AUTHORIZER = "No Authorizer is configured."
NO_TIME = -1
REQUESTER_VERSION = 3
"""CreateDelegationToken tells who asked from here on, besides whose token it is."""

# -- ACLs --------------------------------------------------------------------------------------------------------------


def handle_describe_acls(
    _core: Core, _request: Request, message: messages.DescribeAclsRequest
) -> messages.DescribeAclsResponse:
    _check_filter(message)
    return messages.DescribeAclsResponse(
        error_code=int(ErrorCode.SECURITY_DISABLED), error_message="No Authorizer is configured on the broker"
    )


def handle_create_acls(
    _core: Core, _request: Request, message: messages.CreateAclsRequest
) -> messages.CreateAclsResponse:
    for one in message.creations:
        _check(one.resource_type, one.resource_pattern_type, one.operation, one.permission_type)
    result = messages.CreateAclsResponse.AclCreationResult
    code = int(ErrorCode.SECURITY_DISABLED)
    return messages.CreateAclsResponse(
        results=[result(error_code=code, error_message=NO_AUTHORIZER) for _ in message.creations]
    )


def handle_delete_acls(
    _core: Core, _request: Request, message: messages.DeleteAclsRequest
) -> messages.DeleteAclsResponse:
    for one in message.filters:
        _check_filter(one)
    result = messages.DeleteAclsResponse.DeleteAclsFilterResult
    code = int(ErrorCode.SECURITY_DISABLED)
    return messages.DeleteAclsResponse(
        filter_results=[result(error_code=code, error_message=NO_AUTHORIZER) for _ in message.filters]
    )


def _check_filter(asked: _Filter) -> None:
    _check(asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type)


def _check(*kinds: int) -> None:
    """As in Kafka the connection is closed."""
    if UNKNOWN in kinds:
        raise DecodeError("an ACL of unknown resource, pattern, operation or permission")


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
