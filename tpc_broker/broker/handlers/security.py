"""Delegation tokens and SCRAM credentials, of which a broker without authentication has none.

The answers are those of Kafka where they are not set up: clients know them, and go on without.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request

USER, ANONYMOUS = "User", "ANONYMOUS"
NO_AUTHENTICATION = "This broker has no authentication yet, so it keeps no users."
ASKED_FOR_USERS = "users"
NO_TIME = -1
REQUESTER_VERSION = 3
"""CreateDelegationToken tells who asked from here on, besides whose token it is."""
ITERATIONS_LEAST, ITERATIONS_MOST = 4096, 16_384
SCRAM_SHA_256, SCRAM_SHA_512 = 1, 2

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


# -- users -------------------------------------------------------------------------------------------------------------


def handle_describe_user_scram_credentials(
    _core: Core, _request: Request, message: messages.DescribeUserScramCredentialsRequest
) -> messages.DescribeUserScramCredentialsResponse:
    asked = Counter(user.name for user in message.users or ())
    return messages.DescribeUserScramCredentialsResponse(
        error_message="", results=[_no_user(name, times) for name, times in sorted(asked.items())]
    )


def _no_user(name: str, times: int) -> messages.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult:
    code, why = ErrorCode.RESOURCE_NOT_FOUND, f"Attempt to describe a user credential that does not exist: {name}"
    if times > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        why = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
    return messages.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult(
        user=name, error_code=int(code), error_message=why
    )


def handle_alter_user_scram_credentials(
    core: Core, request: Request, message: messages.AlterUserScramCredentialsRequest
) -> messages.AlterUserScramCredentialsResponse:
    """Checked as Kafka checks it; one change for each user. There is none to be deleted, and none is taken."""
    faults: dict[str, tuple[ErrorCode, str]] = {}
    for one in message.deletions:
        missing = ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        faults.setdefault(one.name, _scram_fault(one.name, one.mechanism) or missing)
    wanted: set[str] = set()
    for upsertion in message.upsertions:
        name = upsertion.name
        if name in wanted:
            wanted.remove(name)
            why = "A user credential cannot be altered twice in the same request"
            faults[name] = ErrorCode.DUPLICATE_RESOURCE, why
        elif name not in faults:
            fault = _scram_fault(name, upsertion.mechanism) or _iterations_fault(upsertion.iterations)
            if fault is None:
                wanted.add(name)
            else:
                faults[name] = fault
    if wanted:
        core.dispatcher.note_in_vain(
            request, ASKED_FOR_USERS, "a user's credential is refused: there is no authentication yet"
        )
    refused = dict.fromkeys(wanted, (ErrorCode.UNSUPPORTED_SASL_MECHANISM, NO_AUTHENTICATION))
    kind = messages.AlterUserScramCredentialsResponse
    return kind(
        results=[
            kind.AlterUserScramCredentialsResult(user=name, error_code=int(code), error_message=why)
            for name, (code, why) in sorted((faults | refused).items())
        ]
    )


def _scram_fault(name: str, mechanism: int) -> tuple[ErrorCode, str] | None:
    if not name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if mechanism not in {SCRAM_SHA_256, SCRAM_SHA_512}:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    return None


def _iterations_fault(iterations: int) -> tuple[ErrorCode, str] | None:
    if ITERATIONS_LEAST <= iterations <= ITERATIONS_MOST:
        return None
    return ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Too {'few' if iterations < ITERATIONS_LEAST else 'many'} iterations"
