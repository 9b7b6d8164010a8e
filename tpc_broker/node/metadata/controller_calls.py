"""What a node asks of the controller, and what it answers when it is the controller itself.

A node that does not hear the controller, while another one hears both, has that one pass its questions on: else it
could not start, nor its clients create topics or get producers' ids, though a majority is there.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from tpc_broker.errors import CoreDownError, MailboxError, NotDeliveredError
from tpc_broker.node.metadata.metadata_group import NotControllerError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tpc_broker.broker.payloads import NodeHandler
    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.node.links.links import Links, Peer

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S: Final = 0.2
TIMEOUT_MS: Final = 15_000
CALL: Final = "controller"
FOR_NODE: Final = "for_node"
NOT_CONTROLLER: Final = "not_controller"

Answer = tuple[dict[str, Any], list[bytes]]


# Rule: A node asks the controller by another one where it does not hear it and the other one does, and again only what
# was not delivered. Held by tests/cluster/test_controller_calls.py, tests/simulator/test_cuts.py.
class ControllerCalls:
    """Of one node. `known`: the controller, also by hearsay; `followed`: as its own replica of the metadata knows;
    `is_by_hearsay`: that one knows none, and another node did lately; `told`: another one was named; `check`: whether
    who asks may, MailboxError.
    """

    def __init__(  # noqa: PLR0913  (who leads is known in several ways)
        self,
        links: Links,
        *,
        is_controller: Callable[[], bool],
        known: Callable[[], int | None],
        followed: Callable[[], int | None],
        is_by_hearsay: Callable[[], bool],
        told: Callable[[int | None], None],
        check: Callable[[Hello], None],
    ) -> None:
        self._links = links
        self._is_controller = is_controller
        self._known = known
        self._followed = followed
        self._is_by_hearsay = is_by_hearsay
        self._told = told
        self._check = check
        self._handlers: dict[str, NodeHandler] = {}
        links.serve(CALL, self._answer)

    def serve(self, method: str, handler: NodeHandler) -> None:
        assert method not in self._handlers, method
        self._handlers[method] = handler

    async def ask(self, method: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Here or there, for as long as it takes."""
        while True:
            try:
                if self._is_controller():
                    return (await self._handlers[method](payload, []))[0]
                return (await self.call(method, payload, ()))[0]
            except MailboxError as error:
                log.debug("%s: %s", method, error)
                await trio.sleep(LOOK_S)

    async def call(self, method: str, payload: dict[str, Any], blobs: Sequence[bytes]) -> Answer:
        """NotDeliveredError: it never got there; other MailboxErrors: that is not known."""
        node = self._known()
        if node is None:
            raise NotDeliveredError("no leader of the metadata is known")
        asked, peer = {"method": method, "payload": payload}, self._links.peer_of(node)
        if peer is not None:
            answer, found = await self._while_it_leads(node, partial(_call, peer, asked, blobs))
        elif not self._is_by_hearsay():
            raise NotDeliveredError(f"there is no link to node {node}, which leads the metadata")
        else:
            answer, found = await self._have_passed_on(node, {**asked, FOR_NODE: node}, blobs)
        if NOT_CONTROLLER in answer:
            self._told(answer.get("leader"))
            raise NotDeliveredError("the leader of the metadata is another one")
        return answer["payload"], found

    async def _have_passed_on(self, node: int, asked: dict[str, Any], blobs: Sequence[bytes]) -> Answer:
        """By the first who can. Who has no link says who leads, as an earlier release does that passes nothing on."""
        for helper in [peer for peer in self._links.peers.values() if peer.hello is not None]:
            try:
                answer, found = await self._while_it_leads(node, partial(_call, helper, asked, blobs))
            except NotDeliveredError:
                continue
            if NOT_CONTROLLER not in answer or answer.get("leader") not in (None, node):
                return answer, found
        raise NotDeliveredError(f"there is no link to node {node}, which leads the metadata, and nobody else has one")

    async def _while_it_leads(self, node: int, call: Callable[[], Awaitable[T]]) -> T:
        """What the controller answers; given up when another one has taken its place: it may be paused for long."""
        found: list[T] = []
        failures: list[MailboxError] = []

        async def ask() -> None:
            try:
                found.append(await call())
            except MailboxError as error:
                failures.append(error)
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            while self._known() in (None, node):
                await trio.sleep(LOOK_S)
            nursery.cancel_scope.cancel()
        if failures:
            raise failures[0]
        if not found:
            raise CoreDownError("another node leads the metadata by now; whether this was carried out is not known")
        return found[0]

    # -- what other nodes ask ------------------------------------------------------------------------------------------

    async def _answer(self, hello: Hello, payload: dict[str, Any], blobs: list[bytes]) -> Any:
        self._check(hello)
        if FOR_NODE in payload and not self._is_controller():
            return await self._pass_on(payload, blobs)
        handler = self._handlers.get(str(payload["method"]))
        if handler is None:
            raise MailboxError(f"a controller knows no {payload['method']!r:.60}")
        try:
            answer, found = await handler(payload["payload"], blobs) if self._is_controller() else (None, [])
        except NotControllerError:
            answer = None
        return self._not_controller() if answer is None else ({"payload": answer}, found)

    def _not_controller(self) -> Answer:
        return {NOT_CONTROLLER: True, "leader": self._followed()}, []

    async def _pass_on(self, payload: dict[str, Any], blobs: list[bytes]) -> Answer:
        """To the node that it is for, and no further."""
        asked = {name: value for name, value in payload.items() if name != FOR_NODE}
        peer = self._links.peer_of(int(payload[FOR_NODE]))
        if peer is not None:
            try:
                return await _call(peer, asked, blobs)
            except NotDeliveredError as error:
                log.debug("node %d is asked nothing: %s", payload[FOR_NODE], error)
        return self._not_controller()


async def _call(peer: Peer, asked: dict[str, Any], blobs: Sequence[bytes]) -> Answer:
    return await peer.call(CALL, asked, blobs, timeout_ms=TIMEOUT_MS)
