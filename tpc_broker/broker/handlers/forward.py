"""Carries a request to the core that decides, body and answer as raw bytes.

A request that never reached the other core is tried again until ``FORWARD_TIMEOUT_MS`` (core 0 may be restarting). One
that may have been carried out there is not: its connection is closed, and the client finds out by asking, as it does
when a Kafka controller fails. In a cluster of nodes core 0 carries it on to the node that leads the metadata, and
answers itself when there is none, or none that answers (`no_controller`).
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker.auth.principals import ANONYMOUS, Principal, Subject, host_of
from tpc_broker.broker.handlers.api_rows import Served
from tpc_broker.broker.handlers.no_controller import Said, what_is_said
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.errors import MailboxError, NotDeliveredError, PartitionOfflineError
from tpc_broker.kafka.api_keys import api
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.message import Message

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.broker.core import Core
    from tpc_broker.broker.dispatch import Handled, Handler
    from tpc_broker.broker.payloads import Answer, Payload
    from tpc_broker.broker.ports import Request
    from tpc_broker.model import CoreId

    WithoutController = Callable[[int, Any, Said], Message]
    """The answer to a version and its message where no controller gave one. `Any`: that of its API."""

log = logging.getLogger(__name__)

FORWARD_TIMEOUT_MS = 15_000
FORWARD_RETRY_S = 0.1


@dataclass(slots=True)
class ForwardedRequest:
    """What a handler sees of a request that came from another core."""

    api_key: int
    api_version: int
    client_id: str | None
    body: memoryview
    listener: int
    """Its number on the node that the request came to."""
    peer: str
    """The client's address, as its own core knows it."""
    listener_name: str
    subject: Subject
    """Who asks."""
    connection: int = -1
    correlation_id: int = -1
    received_ns: int = 0
    fallback_reason: int = 0
    throttle_ms: int = 0
    is_from_node: bool = False
    """It came from another node, which takes this one for the leader of the metadata."""


@dataclass(frozen=True, slots=True)
class EncodedResponse:
    """A response body that is encoded already."""

    body: bytes


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


async def result_of(handler: Handler, core: Core, request: Request, message: Message) -> Handled:
    """Of a handler that waits, or of one that does not."""
    result = handler(core, request, message)
    return await result if inspect.isawaitable(result) else result


async def _here(
    core: Core, request: Request, message: Message, handler: Handler, without: WithoutController
) -> Handled:
    try:
        return await result_of(handler, core, request, message)
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
        answers.append(await result_of(handler, core, request, message))
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


def _subject(payload: Payload) -> Subject:
    """An earlier release's node does not say: it has no authentication, and its client's host is in the address."""
    principal, host = payload.get("principal"), payload.get("host")
    return Subject(
        ANONYMOUS if principal is None else Principal(*principal), host_of(payload["peer"]) if host is None else host
    )


async def _rules_known(core: Core) -> None:
    """A core is called from its start on, before it has the metadata; refusals for want of a right end a client's work.
    NotDeliveredError: they are not there in time.
    """
    with trio.move_on_after(FORWARD_TIMEOUT_MS / 1000):
        await core.access.is_known.wait()
        return
    raise NotDeliveredError(f"core {core.core_id} has not read the rules yet")


def serve_forwarded(core: Core, handlers: dict[int, Handler]) -> None:
    """Answer requests that other cores forward to this one."""

    async def serve(_caller: CoreId, payload: Payload, blobs: list[bytes]) -> Answer:
        request = ForwardedRequest(
            payload["api_key"],
            payload["api_version"],
            payload["client_id"],
            memoryview(blobs[0]),
            payload["listener"],
            payload["peer"],
            payload.get("listener_name", ""),  # an earlier release's node does not say
            _subject(payload),
            is_from_node=payload.get("node", core.view.node) != core.view.node,
        )
        await _rules_known(core)
        facts = api(request.api_key)
        message = codec(facts.request_name, request.api_version).decode(request.body)
        response = await result_of(handlers[request.api_key], core, request, message)
        if isinstance(response, EncodedResponse):  # as the node that leads the metadata has answered this one's core 0
            return {}, [response.body]
        assert isinstance(response, Message), "what is forwarded is answered"
        body = b"".join(codec(facts.response_name, request.api_version).encode_parts(response))
        return {}, [body]

    core.mailboxes.serve("api", serve)
    core.metadata.serve_nodes("api", serve)
