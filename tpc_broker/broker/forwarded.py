"""Requests that other cores, and other nodes, have sent on to this one (`handlers.forward`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.auth.principals import ANONYMOUS, Principal, Subject, host_of
from tpc_broker.broker.handled import EncodedResponse, ForwardedRequest, settled
from tpc_broker.errors import NotDeliveredError
from tpc_broker.kafka.api_keys import ApiKey, api
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.message import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.broker.dispatch import CoreWithClients, Handle
    from tpc_broker.broker.payloads import Answer, Payload
    from tpc_broker.model import CoreId

FORWARD_TIMEOUT_MS: Final = 15_000
"""For the core that decides to be there, and to know the rules."""


def _subject(payload: Payload) -> Subject:
    """An earlier release's node does not say: it has no authentication, and its client's host is in the address."""
    principal, host = payload.get("principal"), payload.get("host")
    return Subject(
        ANONYMOUS if principal is None else Principal(*principal), host_of(payload["peer"]) if host is None else host
    )


async def _rules_known(core: CoreWithClients) -> None:
    """A core is called from its start on, before it has the metadata; refusals for want of a right end a client's work.
    NotDeliveredError: they are not there in time.
    """
    with trio.move_on_after(FORWARD_TIMEOUT_MS / 1000):
        await core.access.is_known.wait()
        return
    raise NotDeliveredError(f"core {core.core_id} has not read the rules yet")


def serve_forwarded(core: CoreWithClients, handlers: Mapping[ApiKey, Handle]) -> None:
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
        response = await settled(handlers[ApiKey(request.api_key)](request, message))
        if isinstance(response, EncodedResponse):  # as the node that leads the metadata has answered this one's core 0
            return {}, [response.body]
        assert isinstance(response, Message), "what is forwarded is answered"
        body = b"".join(codec(facts.response_name, request.api_version).encode_parts(response))
        return {}, [body]

    core.mailboxes.serve("api", serve)
    core.metadata.serve_nodes("api", serve)
