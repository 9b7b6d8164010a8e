"""DescribeClientQuotas and AlterClientQuotas: the image has the quotas, the controller decides what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.auth.operations import Operation
from tpc_broker.broker.handlers.refusals import while_allowed
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.metadata.quota_control import QuotaAlteration, QuotaController, matching
from tpc_broker.metadata.records import ENTITY_TYPES, IP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.quota_control import AlteredQuota
    from tpc_broker.metadata.records import MetadataRecord

    _Component = messages.DescribeClientQuotasRequest.ComponentData

EXACT, DEFAULT, SPECIFIED = range(3)
IP_WITH_OTHERS = (
    "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter "
    "component."
)


def handle_describe_client_quotas(
    core: Core, _request: Request, message: messages.DescribeClientQuotasRequest
) -> messages.DescribeClientQuotasResponse:
    kind = messages.DescribeClientQuotasResponse
    code, why = _fault(message.components)
    if code:
        return kind(error_code=int(code), error_message=why, entries=None)
    wanted = {one.entity_type: one.match for one in message.components if one.match_type != SPECIFIED}
    named = frozenset(one.entity_type for one in message.components if one.match_type == SPECIFIED)
    return kind(
        error_code=0,
        error_message=why,
        entries=[
            kind.EntryData(
                entity=[kind.EntityData(entity_type=of_type, entity_name=name) for of_type, name in entity],
                values=[kind.ValueData(key=key, value=value) for key, value in sorted(quotas.items())],
            )
            for entity, quotas in matching(core.view.image, wanted, named, strict=message.strict)
        ],
    )


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


async def handle_alter_client_quotas(
    core: Core, request: Request, message: messages.AlterClientQuotasRequest
) -> messages.AlterClientQuotasResponse:
    alterations = [
        QuotaAlteration(
            {one.entity_type: one.entity_name for one in entry.entity},  # the last one counts, as in Kafka
            tuple((op.key, None if op.remove else op.value) for op in entry.ops),
        )
        for entry in message.entries
    ]

    def decide(image: ClusterImage) -> tuple[list[MetadataRecord], list[AlteredQuota]]:
        return QuotaController(image).alter(alterations, validate_only=message.validate_only)

    results = await core.metadata.change(while_allowed(core, request, Operation.ALTER_CONFIGS, decide))
    kind = messages.AlterClientQuotasResponse
    return kind(
        entries=[
            kind.EntryData(
                error_code=int(result.error_code),
                error_message=result.error_message,
                entity=[kind.EntityData(entity_type=of_type, entity_name=name) for of_type, name in result.entity],
            )
            for result in results
        ]
    )
