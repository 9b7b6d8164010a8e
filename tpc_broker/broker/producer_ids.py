"""Producer ids of one core: from blocks that core 0 reserves durably, none ever given out twice.

A core that starts again begins with a new block: whatever it had given out of the old one stays used.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from tpc_broker.errors import MailboxError
from tpc_broker.model import CoreId, ProducerId

if TYPE_CHECKING:
    from tpc_broker.broker.core_ground import CoreGround
    from tpc_broker.broker.payloads import Answer, Payload

log = logging.getLogger(__name__)


class ProducerIds:
    def __init__(self, core: CoreGround) -> None:
        self._core = core
        self._next = self._end = 0
        self._reserving = trio.Lock()
        core.metadata.serve_at_controller("producer_ids.reserve", self._serve_reserve)

    async def take(self) -> ProducerId | None:
        """A fresh producer id; None when no block can be had now (core 0 is away): the client is to try again."""
        async with self._reserving:
            await self._reserve()
            return self._first_at_hand()

    def take_nowait(self) -> ProducerId | None:
        """The same; None also where a block is being reserved from now on."""
        found = self._first_at_hand()
        if found is None and not self._reserving.locked():
            self._core.start_soon(self.have_some)
        return found

    async def have_some(self) -> None:
        """See that some are at hand, if that can be. Who comes while a block is being reserved hears what became of
        that one, and does not wait for another.
        """
        is_under_way = self._reserving.locked()
        if self._next == self._end:
            async with self._reserving:
                if not is_under_way:
                    await self._reserve()

    def _first_at_hand(self) -> ProducerId | None:
        if self._next == self._end:
            return None
        self._next += 1
        return ProducerId(self._next - 1)

    async def _reserve(self) -> None:
        """Unless there are some."""
        if self._next == self._end:
            try:
                block, _blobs = await self._core.mailboxes.call(CoreId(0), "producer_ids.reserve", self._who)
            except MailboxError as error:
                log.warning("producer ids: no block could be reserved (%s)", error)
                return
            self._next, self._end = block["first"], block["first"] + block["count"]

    @property
    def _who(self) -> Payload:
        """Whose block it is: a core's, and in a cluster one of all nodes' cores."""
        return {"broker": self._core.broker_id} if self._core.view.image.nodes else {}

    async def _serve_reserve(self, caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        owner = CoreId(payload.get("broker", caller))
        block = await self._core.metadata.change(lambda image: self._core.controller(image).reserve_producer_ids(owner))
        return {"first": block.first, "count": block.count}, []
