"""Quotas of clients: there are none and none can be set; what is asked or wanted is checked as Kafka checks it."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.ports import Request

    _Component = messages.DescribeClientQuotasRequest.ComponentData
    _Op = messages.AlterClientQuotasRequest.OpData

EXACT, DEFAULT, SPECIFIED = range(3)
IP = "ip"
ENTITY_TYPES = frozenset(("user", "client-id", IP))
IP_WITH_OTHERS = (
    "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter "
    "component."
)
ASKED_FOR: Final = "quotas"
NOT_SETTABLE: Final = "it cannot be set, because this broker has no quotas yet."
_LARGEST: Final[Mapping[str, int | None]] = {
    "producer_byte_rate": 2**63 - 1,
    "consumer_byte_rate": 2**63 - 1,
    "request_percentage": None,
    "controller_mutation_rate": None,
}
"""Of each quota of users and clients; None: any number above 0, whole or not."""
_LARGEST_OF_IPS: Final[Mapping[str, int | None]] = {"connection_creation_rate": 2**31 - 1}
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,253}")


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


# -- changes -----------------------------------------------------------------------------------------------------------


def handle_alter_client_quotas(
    core: Core, request: Request, message: messages.AlterClientQuotasRequest
) -> messages.AlterClientQuotasResponse:
    """What takes away quotas that there are not is well; what would set one is refused."""
    results: dict[frozenset[tuple[str, str | None]], tuple[ErrorCode, str | None]] = {}
    for entry in message.entries:
        entity = {one.entity_type: one.entity_name for one in entry.entity}  # the last one counts, as in Kafka
        key = frozenset(entity.items())
        is_first = key not in results
        results[key] = _change_fault(entity, entry.ops) if is_first else _invalid("Ignoring duplicate entity")
    if any(code == ErrorCode.INVALID_CONFIG for code, _why in results.values()):
        core.dispatcher.note_in_vain(request, ASKED_FOR, "a quota is refused: there are none yet")
    kind = messages.AlterClientQuotasResponse
    return kind(
        entries=[
            kind.EntryData(
                error_code=int(code),
                error_message=why,
                entity=[kind.EntityData(entity_type=of_type, entity_name=name) for of_type, name in sorted(entity)],
            )
            for entity, (code, why) in results.items()
        ]
    )


def _change_fault(entity: Mapping[str, str | None], ops: Sequence[_Op]) -> tuple[ErrorCode, str | None]:
    if len({op.key for op in ops}) < len(ops):
        return _invalid("Duplicate quota key")
    why = _entity_fault(entity)
    if why:
        return _invalid(why)
    largest = _LARGEST_OF_IPS if IP in entity else _LARGEST
    wanted = [op for op in ops if not op.remove]
    for op in wanted:
        why = _value_fault(op.key, op.value, largest)
        if why:
            return _invalid(why)
    return (ErrorCode.INVALID_CONFIG, f"{wanted[0].key}: {NOT_SETTABLE}") if wanted else (ErrorCode.NONE, None)


def _invalid(why: str) -> tuple[ErrorCode, str]:
    return ErrorCode.INVALID_REQUEST, why


def _entity_fault(entity: Mapping[str, str | None]) -> str:
    if not entity:
        return "Invalid empty client quota entity"
    for of_type, name in entity.items():
        if of_type not in ENTITY_TYPES:
            return f"Unhandled client quota entity type: {of_type}"
        if name == "":
            return f"Empty {of_type} not supported"
    if IP not in entity:
        return ""
    if len(entity) > 1:
        return "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
    address = entity[IP]
    return "" if address is None or _may_be_host(address) else f"{address} is not a valid IP or resolvable host."


def _may_be_host(text: str) -> bool:
    """No name is looked up for it."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None
    return True


def _value_fault(key: str, value: float, largest: Mapping[str, int | None]) -> str:
    if key not in largest:
        return f"Invalid configuration key {key}"
    if value <= 0:
        return f"Quota {key} must be greater than 0"
    limit = largest[key]
    if limit is None:
        return ""
    if value > limit:
        return f"Proposed value for {key} is too large."
    return "" if value.is_integer() else f"{key} cannot be a fractional value."
