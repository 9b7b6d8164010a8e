"""Carries a request to the core that decides, body and answer as raw bytes.

A request that never reached the other core is tried again until ``FORWARD_TIMEOUT_MS`` (core 0 may be restarting). One
that may have been carried out there is not: its connection is closed, and the client finds out by asking, as it does
when a Kafka controller fails. In a cluster of nodes core 0 carries it on to the node that leads the metadata, and
answers itself when there is none, or none that answers (`no_controller`).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker.broker.forwarded import FORWARD_TIMEOUT_MS
from tpc_broker.broker.handled import EncodedResponse, ForwardedRequest, settled
from tpc_broker.broker.handlers.api_rows import Served
from tpc_broker.broker.handlers.no_controller import Said, what_is_said
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.errors import MailboxError, NotDeliveredError, PartitionOfflineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.broker.core import Core, Handler
    from tpc_broker.broker.handled import Handled, Request
    from tpc_broker.broker.payloads import Answer, Payload
    from tpc_broker.kafka.message import Message
    from tpc_broker.model import CoreId

    WithoutController = Callable[[int, Any, Said], Message]
    """The answer to a version and its message where no controller gave one. `Any`: that of its API."""

log = logging.getLogger(__name__)

FORWARD_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class AtController:
    """A place (`api_rows.Place`): core 0 of the node that leads the metadata decides."""

    without: WithoutController
    served: Served = Served.CONTROLLER

    def serving(self, handler: Handler) -> Handler:
        """The handler itself on core 0; on any other, a handler that forwards there."""

        async def handle(core: Core, request: Request, message: Message) -> Handled:
            if core.core_id == METADATA_CORE:
                if core.cluster is None or (isinstance(request, ForwardedRequest) and request.is_from_node):
                    return await _here(core, request, message, handler, self.without)
                return await _at_controller(core, request, message, handler, self.without)
            body = bytes(request.body)
            core.note_forwarded()
            deadline_s = trio.current_time() + FORWARD_TIMEOUT_MS / 1000
            while True:
                try:
                    return await carry(core, request, METADATA_CORE, body)
                except NotDeliveredError:
                    if trio.current_time() > deadline_s:
                        raise
                    await trio.sleep(FORWARD_RETRY_S)

        return handle


async def _here(
    core: Core, request: Request, message: Message, handler: Handler, without: WithoutController
) -> Handled:
    try:
        return await settled(handler(core, request, message))
    except PartitionOfflineError as error:
        _tell(core, request, error)
        return without(request.api_version, message, what_is_said(error))


def _tell(core: Core, request: Request, error: Exception) -> None:
    """Once in a minute for each of these APIs, whoever asks: it is the cluster that is not well."""
    text = f"a request of {peer_of(core, request)} could not be carried out: {error}"
    core.log_limiter.say(log, "not carried out", f"API {request.api_key}", text)


async def _at_controller(
    core: Core, request: Request, message: Message, handler: Handler, without: WithoutController
) -> Handled:
    """By this node if it leads the metadata, else by the one that does."""
    payload = {**_facts(core, request), "node": core.view.node}
    answers: list[Handled] = []

    async def here() -> Answer:
        answers.append(await settled(handler(core, request, message)))
        return {}, []

    try:
        _payload, blobs = await core.metadata.at_controller("api", payload, [bytes(request.body)], here)
    except MailboxError as error:
        _tell(core, request, error)
        return without(request.api_version, message, what_is_said(error))
    return answers[0] if answers else EncodedResponse(blobs[0])


def _facts(core: Core, request: Request) -> Payload:
    subject = core.access.subject_of(request)
    return {
        "api_key": request.api_key,
        "api_version": request.api_version,
        "client_id": request.client_id,
        "listener": request.listener,
        "listener_name": listener_name_of(core, request),
        "peer": peer_of(core, request),
        "principal": list(subject.principal),
        "host": subject.host,
    }


async def carry(
    core: Core, request: Request, target: CoreId, body: bytes, *, timeout_ms: int | None = None
) -> EncodedResponse:
    """A body of the request's API and version to another core, once, and its answer back. Raises MailboxError."""
    _payload, blobs = await core.mailboxes.call(target, "api", _facts(core, request), [body], timeout_ms=timeout_ms)
    return EncodedResponse(blobs[0])


def peer_of(core: Core, request: Request) -> str:
    """Who asks, wherever the request came to."""
    return request.peer if isinstance(request, ForwardedRequest) else core.dispatcher.peer_of(request.connection)


def listener_name_of(core: Core, request: Request) -> str:
    """Of the listener that a request came to, on whichever node."""
    return request.listener_name if isinstance(request, ForwardedRequest) else core.view.listener_name(request.listener)
