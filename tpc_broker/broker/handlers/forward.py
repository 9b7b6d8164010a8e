"""Carries a request to the core that decides, body and answer as raw bytes.

A request that never reached the other core is tried again until ``FORWARD_TIMEOUT_MS`` (core 0 may be restarting). One
that may have been carried out there is not: its connection is closed, and the client finds out by asking, as it does
when a Kafka controller fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker.errors import NotDeliveredError
from tpc_broker.kafka.api_keys import api
from tpc_broker.kafka.codec import codec

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.dispatch import Handler
    from tpc_broker.broker.ports import Request
    from tpc_broker.model import CoreId

FORWARD_TIMEOUT_MS = 15_000
FORWARD_RETRY_S = 0.1


@dataclass(slots=True)
class ForwardedRequest:
    """What a handler sees of a request that came from another core."""

    api_key: int
    api_version: int
    client_id: str | None
    body: memoryview
    connection: int = -1
    correlation_id: int = -1


@dataclass(frozen=True, slots=True)
class EncodedResponse:
    """A response body that is encoded already."""

    body: bytes


def on_core(target: CoreId, handler: Handler) -> Handler:
    """The handler itself on the target core; on any other, a handler that forwards there."""

    async def handle(core: Core, request: Request, message: Any) -> Any:
        if core.core_id == target:
            return await handler(core, request, message)
        payload = {"api_key": request.api_key, "api_version": request.api_version, "client_id": request.client_id}
        body = bytes(request.body)
        deadline_s = trio.current_time() + FORWARD_TIMEOUT_MS / 1000
        while True:
            try:
                _payload, blobs = await core.mailboxes.call(target, "api", payload, [body])
            except NotDeliveredError:
                if trio.current_time() > deadline_s:
                    raise
                await trio.sleep(FORWARD_RETRY_S)
                continue
            return EncodedResponse(blobs[0])

    return handle


def serve_forwarded(core: Core, handlers: dict[int, Handler]) -> None:
    """Answer requests that other cores forward to this one."""

    async def serve(_caller: CoreId, payload: dict[str, Any], blobs: list[bytes]) -> tuple[dict[str, Any], list[bytes]]:
        request = ForwardedRequest(
            payload["api_key"], payload["api_version"], payload["client_id"], memoryview(blobs[0])
        )
        facts = api(request.api_key)
        message = codec(facts.request_name, request.api_version).decode(request.body)
        response = await handlers[request.api_key](core, request, message)
        body = b"".join(codec(facts.response_name, request.api_version).encode_parts(response))
        return {}, [body]

    core.mailboxes.serve("api", serve)
