"""DescribeAcls, CreateAcls, DeleteAcls: rules of access, in Kafka's words and with its errors.

Without an authorizer there are none, and the answers are those of a Kafka that has none. Who may ask is said by their
rows (`table.py`).
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from tpc_broker.auth.acl_filters import AclFilter, Wanted
from tpc_broker.auth.acls import AclBinding, Pattern, Permission
from tpc_broker.auth.operations import CLUSTER_NAME, Operation, Resource
from tpc_broker.auth.principals import Principal
from tpc_broker.broker.handlers.refusals import while_allowed
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.kafka.errors import DecodeError
from tpc_broker.metadata.acl_control import create_acls, delete_acls
from tpc_broker.metadata.assignment_requests import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord

    _Filter = messages.DescribeAclsRequest | messages.DeleteAclsRequest.DeleteAclsFilter
    _Creation = messages.CreateAclsRequest.AclCreation

UNKNOWN: Final = 0
"""Of a kind of resource, pattern, operation or permission: no client may ask for it."""
ANY: Final = 1
MATCH: Final = 2
"""A pattern of filters."""
NO_AUTHORIZER: Final = "No Authorizer is configured."
NO_AUTHORIZER_AT_BROKER: Final = "No Authorizer is configured on the broker"
_RESOURCES, _PATTERNS, _OPERATIONS, _PERMISSIONS = (
    frozenset(map(int, kind)) for kind in (Resource, Pattern, Operation, Permission)
)


# -- what there is -----------------------------------------------------------------------------------------------------


def handle_describe_acls(
    core: Core, _request: Request, message: messages.DescribeAclsRequest
) -> messages.DescribeAclsResponse:
    _check_filter(message)
    try:
        _check_authorizer(core, NO_AUTHORIZER_AT_BROKER)
        found = _filter_of(message).found_in(core.view.image.acls)
    except _NothingMatchesError:
        found = iter(())
    except Refusal as refusal:
        return messages.DescribeAclsResponse(error_code=int(refusal.code), error_message=refusal.message)
    answer = messages.DescribeAclsResponse
    resources = [
        answer.DescribeAclsResource(
            resource_type=int(resource),
            pattern_type=int(pattern),
            resource_name=name,
            acls=[
                answer.AclDescription(
                    principal=str(rule.principal),
                    host=rule.host,
                    operation=int(rule.operation),
                    permission_type=int(rule.permission),
                )
                for rule in rules
            ],
        )
        for (resource, pattern, name), rules in groupby(sorted(found), key=lambda rule: rule[:3])
    ]
    return answer(error_message="", resources=resources)


# -- changes, at the controller ----------------------------------------------------------------------------------------


async def handle_create_acls(
    core: Core, request: Request, message: messages.CreateAclsRequest
) -> messages.CreateAclsResponse:
    for one in message.creations:
        _check(one.resource_type, one.resource_pattern_type, one.operation, one.permission_type)
    try:
        _check_authorizer(core, NO_AUTHORIZER)
        results = await _created(core, request, message.creations)
    except Refusal as refusal:
        results = [refusal] * len(message.creations)
    result = messages.CreateAclsResponse.AclCreationResult
    return messages.CreateAclsResponse(
        results=[
            result(error_message="")
            if refused is None
            else result(error_code=int(refused.code), error_message=refused.message)
            for refused in results
        ]
    )


async def _created(core: Core, request: Request, creations: Sequence[_Creation]) -> list[Refusal | None]:
    """Of each. Refusal: of all of them."""
    results: list[Refusal | None] = []
    bindings: list[AclBinding] = []
    for one in creations:
        _check_is_no_filter(one)
        try:
            bindings.append(_binding_of(one))
        except Refusal as refusal:
            results.append(refusal)
        else:
            results.append(None)

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[Refusal | None]]:
        try:
            return create_acls(image, bindings)
        except Refusal as refusal:
            return [], [refusal] * len(bindings)

    change = while_allowed(core, request, Operation.ALTER, decide)
    decided = iter(await core.metadata.change(change) if bindings else ())
    return [next(decided) if refused is None else refused for refused in results]


async def handle_delete_acls(
    core: Core, request: Request, message: messages.DeleteAclsRequest
) -> messages.DeleteAclsResponse:
    for one in message.filters:
        _check_filter(one)
    try:
        _check_authorizer(core, NO_AUTHORIZER)
        results = await _deleted(core, request, message.filters)
    except Refusal as refusal:
        results = [_filter_refused(refusal) for _ in message.filters]
    return messages.DeleteAclsResponse(filter_results=results)


async def _deleted(
    core: Core, request: Request, filters: Sequence[messages.DeleteAclsRequest.DeleteAclsFilter]
) -> list[messages.DeleteAclsResponse.DeleteAclsFilterResult]:
    wanted: list[AclFilter | Refusal] = []
    for one in filters:
        try:
            wanted.append(_filter_of(one))
        except _NothingMatchesError:
            is_of_entry = one.operation not in {ANY, *_OPERATIONS} or one.permission_type not in {ANY, *_PERMISSIONS}
            wanted.append(_invalid(f"Unknown {'entryFilter' if is_of_entry else 'patternFilter'}."))
    sound = [one for one in wanted if isinstance(one, AclFilter)]

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[list[AclBinding]] | Refusal]:
        try:
            return delete_acls(image, sound)
        except Refusal as refusal:
            return [], refusal

    change = while_allowed(core, request, Operation.ALTER, decide)
    decided = await core.metadata.change(change) if sound else []
    if isinstance(decided, Refusal):
        raise decided
    found = iter(decided)
    return [
        _filter_refused(one) if isinstance(one, Refusal) else _filter_found(next(found))
        for one in wanted
    ]


def _filter_refused(refusal: Refusal) -> messages.DeleteAclsResponse.DeleteAclsFilterResult:
    return messages.DeleteAclsResponse.DeleteAclsFilterResult(
        error_code=int(refusal.code), error_message=refusal.message, matching_acls=[]
    )


def _filter_found(rules: Sequence[AclBinding]) -> messages.DeleteAclsResponse.DeleteAclsFilterResult:
    answer = messages.DeleteAclsResponse
    matching = [
        answer.DeleteAclsMatchingAcl(
            error_message=None,
            resource_type=int(rule.resource),
            resource_name=rule.name,
            pattern_type=int(rule.pattern),
            principal=str(rule.principal),
            host=rule.host,
            operation=int(rule.operation),
            permission_type=int(rule.permission),
        )
        for rule in rules
    ]
    return answer.DeleteAclsFilterResult(error_message=None, matching_acls=matching)


# -- what was asked ----------------------------------------------------------------------------------------------------


class _NothingMatchesError(Exception):
    """A filter by a number that means nothing here."""


def _check_authorizer(core: Core, without: str) -> None:
    """Refusal."""
    if core.access.authorizer is None:
        raise Refusal(ErrorCode.SECURITY_DISABLED, without)


def _check_filter(asked: _Filter) -> None:
    _check(asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type)


def _check(*kinds: int) -> None:
    """As in Kafka the connection is closed."""
    if UNKNOWN in kinds:
        raise DecodeError("an ACL of unknown resource, pattern, operation or permission")


def _check_is_no_filter(one: _Creation) -> None:
    """Kafka cannot make a rule of that, and says so of all that were to be made at once. Refusal."""
    is_any = ANY in (one.resource_type, one.resource_pattern_type, one.operation, one.permission_type)
    if is_any or one.resource_pattern_type == MATCH:
        raise Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, None)


def _binding_of(one: _Creation) -> AclBinding:
    """Refusal."""
    if one.resource_type == Resource.CLUSTER and one.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not one.resource_name:
        raise _invalid("Invalid empty resource name")
    if one.resource_type not in _RESOURCES:
        raise _invalid("Invalid resourceType UNKNOWN")
    if one.resource_pattern_type not in _PATTERNS:
        raise _invalid("Invalid patternType UNKNOWN")
    if one.operation not in _OPERATIONS:
        raise _invalid("Invalid operation UNKNOWN")
    if one.permission_type not in _PERMISSIONS:
        raise _invalid("Invalid permissionType UNKNOWN")
    principal = Principal.parsed(one.principal)
    if principal is None:
        raise _invalid(
            f"Could not parse principal from `{one.principal}` (no colon is present separating the principal type from "
            "the principal name)"
        )
    return AclBinding(
        Resource(one.resource_type), Pattern(one.resource_pattern_type), one.resource_name, principal,
        one.host, Operation(one.operation), Permission(one.permission_type),
    )  # fmt: skip


def _filter_of(asked: _Filter) -> AclFilter:
    """_NothingMatchesError."""
    try:
        return AclFilter(
            None if asked.resource_type_filter == ANY else Resource(asked.resource_type_filter),
            {ANY: Wanted.ANY, MATCH: Wanted.MATCH}.get(asked.pattern_type_filter)
            or Pattern(asked.pattern_type_filter),
            asked.resource_name_filter,
            asked.principal_filter,
            asked.host_filter,
            None if asked.operation == ANY else Operation(asked.operation),
            None if asked.permission_type == ANY else Permission(asked.permission_type),
        )
    except ValueError:
        raise _NothingMatchesError from None


def _invalid(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
