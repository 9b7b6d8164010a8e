"""Ends of moves that several nodes tell at about the same time are one change of the metadata."""

from __future__ import annotations

from types import SimpleNamespace

import trio

from tests.metadata.test_rebalance import Balanced
from tests.support.placing import plan_rebalance
from tpc_broker.broker.replica_moves import SETTLED_TOGETHER_S, ReplicaMoves
from tpc_broker.errors import NotDeliveredError
from tpc_broker.metadata.replica_moves import all_moves, moving


class Controller:
    """With moves that are under way."""

    def __init__(self, nursery):
        self.nodes = Balanced("---")
        self.nodes.make(12, 3)
        for node in (4, 5):
            self.nodes.join(node)
        planned = plan_rebalance(self.nodes.image, SimpleNamespace(gone=frozenset(), away=frozenset(), may_balance=True,
                                                                   full=frozenset()))  # fmt: skip
        for number, one in enumerate(planned):
            topic = self.nodes.image.topic_by_id(one.key.topic_id)
            self.nodes.apply([moving(topic, one.key.partition, one.wanted, one.reason, number + 1, 1)])
        self.changes: list[int] = []
        self.fails = False
        nothing = SimpleNamespace(serve=lambda *_: None)
        metadata = SimpleNamespace(serve_at_controller=lambda *_: None, change=self.change)
        core = SimpleNamespace(metadata=metadata, mailboxes=nothing, cluster=None, start_soon=nursery.start_soon)
        self.served = ReplicaMoves(core, SimpleNamespace(), SimpleNamespace())

    async def change(self, decide):
        if self.fails:
            raise NotDeliveredError("another node leads the metadata, for a test")
        records, _answer = decide(self.nodes.image)
        self.changes.append(len(records))
        self.nodes.apply(records)

    def under_way(self):
        moves = all_moves(self.nodes.image)
        return [[move.topic_id.hex, int(move.partition), move.move_id, 3] for _topic, move in moves]

    async def tell(self, rows):
        assert await self.served._serve_settled(0, {"moves": rows}, []) == ({}, [])


async def test_what_is_told_by_and_by_is_one_change(autojump_clock):
    async with trio.open_nursery() as nursery:
        controller = Controller(nursery)
        rows = controller.under_way()
        assert len(rows) > 5
        for row in rows[:4]:
            await controller.tell([row, rows[0]])
            await trio.sleep(SETTLED_TOGETHER_S / 5)
        assert controller.changes == []
        await trio.sleep(SETTLED_TOGETHER_S)
        assert controller.changes == [4], "each once, however often it was told"
        assert controller.under_way() == rows[4:]
        await controller.tell(rows[4:])
        await trio.sleep(2 * SETTLED_TOGETHER_S)
        assert controller.changes == [4, len(rows) - 4]
        assert controller.under_way() == []


async def test_what_came_to_nothing_is_told_again(autojump_clock):
    async with trio.open_nursery() as nursery:
        controller = Controller(nursery)
        rows, controller.fails = controller.under_way(), True
        await controller.tell(rows)
        await trio.sleep(2 * SETTLED_TOGETHER_S)
        assert controller.under_way() == rows
        controller.fails = False
        await controller.tell(rows)
        await trio.sleep(2 * SETTLED_TOGETHER_S)
        assert controller.under_way() == []
