"""What the broker itself has appended is told to be committed where it is, or not at all."""

from __future__ import annotations

import pytest
import trio

from tests.log.log_batches import batch
from tests.support.memory_clients import create_topic
from tests.support.memory_node import running_node
from tpc_broker.errors import LeadershipLostError


async def test_what_is_not_below_the_high_watermark_is_not_told_to_be_committed(autojump_clock, caplog):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        plane, partition = node.lives[0].plane, node[0].partitions.find("t", 0)
        assert await partition.append_durably(batch(0, [b"first"])) == 0
        plane.holds = True

        async def at_once(_handle, _end_offset, _leader_epoch):
            await trio.lowlevel.checkpoint()

        plane.wait_committed = at_once
        with pytest.raises(LeadershipLostError):
            await partition.append_durably(batch(0, [b"second"]))
        del plane.wait_committed
        assert "t-0: what would be told to be committed at [1, 2) is not there" in caplog.text
