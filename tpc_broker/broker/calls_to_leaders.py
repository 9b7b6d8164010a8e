"""Questions of a core to the cores that lead partitions, wherever those are: `CallsToLeaders`.

This core itself is asked by a call, another one of the node by its mailbox, one on another node by way of its core 0,
which has the links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.model import CoreId, NodeId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tpc_broker.broker.core_ground import CoreGround
    from tpc_broker.broker.payloads import Answer, Payload, Row
    from tpc_broker.model import Replica

CALL_TIMEOUT_MS: Final = 10_000


class CallsToLeaders:
    """One kind of question, of one core. Rows are asked, and each has an answer."""

    def __init__(self, core: CoreGround, method: str, answer: Callable[[Sequence[Row]], Awaitable[Row]]) -> None:
        """`answer`: what a core says that is asked, to each in order."""
        self._core = core
        self._method, self._by_node = method, f"{method}_by_node"
        self._answer = answer
        core.mailboxes.serve(self._method, self._serve)
        core.mailboxes.serve(self._by_node, self._serve_by_node)
        if core.cluster is not None:
            core.cluster.serve(self._method, self._serve_node)

    async def ask(self, place: Replica, rows: Sequence[Row]) -> Row:
        """The answers. MailboxError: nothing is known of what became of it."""
        if place.node == self._core.view.node:
            return await self.ask_core(place.core, rows)
        return await self._call(METADATA_CORE, self._by_node, {"node": place.node, "core": place.core, "rows": rows})

    async def ask_core(self, number: CoreId, rows: Sequence[Row]) -> Row:
        """The same, of a core of this node."""
        if number == self._core.core_id:
            return await self._answer(rows)
        return await self._call(number, self._method, {"rows": rows})

    async def _call(self, number: CoreId, method: str, payload: Payload) -> Row:
        answer, _blobs = await self._core.mailboxes.call(number, method, payload, timeout_ms=CALL_TIMEOUT_MS)
        found: Row = answer["answers"]
        return found

    async def _serve(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        return {"answers": await self._answer(payload["rows"])}, []

    async def _serve_by_node(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        """On core 0, for another core."""
        assert self._core.cluster is not None
        return await self._core.cluster.ask(NodeId(payload.pop("node")), self._method, payload)

    async def _serve_node(self, payload: Payload, _blobs: list[bytes]) -> Answer:
        """On core 0 of the node that is asked."""
        return {"answers": await self.ask_core(CoreId(payload["core"]), payload["rows"])}, []
