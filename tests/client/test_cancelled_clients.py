"""A client that is cancelled as a whole, from outside its block: what its streams do on their way out still works."""

from __future__ import annotations

import anyio
import anyio.lowlevel

from tests.support.both_loops import on_both_loops
from tpc_broker.client import TopicPartition, connect
from tpc_broker.client.transaction.owner import Outcome
from tpc_broker.testing import MemoryBroker


@on_both_loops
async def test_a_stream_commits_and_leaves_its_group_when_its_client_is_cancelled():
    async with MemoryBroker(topics={"t": 1}) as broker, connect(broker) as other:
        await other.send_all("t", [b"%d" % number for number in range(10)])
        with anyio.CancelScope() as scope:
            async with connect(broker) as client, client.read("t", group="g", commit_seconds=60) as stream:
                async for record in stream:
                    if record.offset == 5:
                        scope.cancel()
                    await anyio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        committed = await other.admin.groups.offsets("g")
        assert committed[TopicPartition("t", 0)].offset == 5
        assert not (await other.admin.groups.describe("g")).members, "it would hold its partitions for a session"


@on_both_loops
async def test_a_transaction_is_aborted_when_its_client_is_cancelled():
    async with MemoryBroker(topics={"t": 1}) as broker, connect(broker) as other:
        with anyio.CancelScope() as scope:
            async with connect(broker) as client, client.transaction("id") as transaction:
                await transaction.send("t", b"x")
                scope.cancel()
                await transaction.post("t", b"y")
                await anyio.lowlevel.checkpoint()
        assert transaction.outcome is Outcome.ABORTED
        (told,) = await other.admin.transactions.list()
        assert told.state == "CompleteAbort"
