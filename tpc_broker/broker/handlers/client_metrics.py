"""GetTelemetrySubscriptions and PushTelemetry: what a client is to push, and what it pushes (KIP-714)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.telemetry.pushed.instances import ACCEPTED_COMPRESSIONS, Push

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.handled import Request


def handle_get_telemetry_subscriptions(
    core: Core, request: Request, message: messages.GetTelemetrySubscriptionsRequest
) -> messages.GetTelemetrySubscriptionsResponse:
    given = core.client_telemetry.ask(request, uuid.UUID(bytes=bytes(message.client_instance_id)))
    if isinstance(given, ErrorCode):
        return messages.GetTelemetrySubscriptionsResponse(error_code=int(given))
    return messages.GetTelemetrySubscriptionsResponse(
        client_instance_id=given.instance_id.bytes,
        subscription_id=given.subscription_id,
        accepted_compression_types=list(map(int, ACCEPTED_COMPRESSIONS)),
        push_interval_ms=given.asked.interval_ms,
        telemetry_max_bytes=core.client_telemetry.bytes_max,
        delta_temporality=True,
        requested_metrics=list(given.asked.metrics),
    )


def handle_push_telemetry(
    core: Core, request: Request, message: messages.PushTelemetryRequest
) -> messages.PushTelemetryResponse | Awaitable[messages.PushTelemetryResponse]:
    data = memoryview(message.metrics)
    push = Push(
        uuid.UUID(bytes=bytes(message.client_instance_id)),
        message.subscription_id,
        message.terminating,
        message.compression_type,
        len(data),
    )
    fault = core.client_telemetry.push(request, push)
    return messages.PushTelemetryResponse(error_code=int(fault)) if fault else _read(core, request, push, data)


async def _read(core: Core, request: Request, push: Push, data: memoryview) -> messages.PushTelemetryResponse:
    return messages.PushTelemetryResponse(error_code=int(await core.client_telemetry.read(request, push, data)))
