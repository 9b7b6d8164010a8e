"""DescribeClientQuotas: there are none, and what is asked is checked as Kafka checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request

    _Component = messages.DescribeClientQuotasRequest.ComponentData

EXACT, DEFAULT, SPECIFIED = range(3)
IP = "ip"
ENTITY_TYPES = frozenset(("user", "client-id", IP))
IP_WITH_OTHERS = (
    "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter "
    "component."
)


def handle_describe_client_quotas(
    _core: Core, _request: Request, message: messages.DescribeClientQuotasRequest
) -> messages.DescribeClientQuotasResponse:
    code, why = _fault(message.components)
    return messages.DescribeClientQuotasResponse(error_code=int(code), error_message=why, entries=None if code else [])


def _fault(components: Sequence[_Component]) -> tuple[ErrorCode, str]:
    seen: set[str] = set()
    for one in components:
        if not one.entity_type:
            return ErrorCode.INVALID_REQUEST, "Invalid empty entity type."
        if one.entity_type in seen:
            return (
                ErrorCode.INVALID_REQUEST,
                f"Entity type {one.entity_type} cannot appear more than once in the filter.",
            )
        if one.entity_type not in ENTITY_TYPES:
            return ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {one.entity_type}"
        seen.add(one.entity_type)
        why = _match_fault(one)
        if why:
            return ErrorCode.INVALID_REQUEST, why
    if IP in seen and len(seen) > 1:
        return ErrorCode.INVALID_REQUEST, IP_WITH_OTHERS
    return ErrorCode.NONE, ""


def _match_fault(component: _Component) -> str:
    if component.match_type == EXACT:
        return (
            "" if component.match is not None else "Request specified MATCH_TYPE_EXACT, but set match string to null."
        )
    if component.match_type not in {DEFAULT, SPECIFIED}:
        return f"Unknown match type {component.match_type}"
    if component.match is None:
        return ""
    name = "DEFAULT" if component.match_type == DEFAULT else "SPECIFIED"
    return f"Request specified MATCH_TYPE_{name}, but also specified a match string."
