"""What a program gets wrong is told where it is done, and harms nothing else of its client."""

from __future__ import annotations

import datetime as dt

import anyio
import pytest

from tests.support.both_loops import on_both_loops
from tests.support.waiting import PATIENCE_S
from tpc_broker.client import connect
from tpc_broker.client.errors import ClientError, ClosedError, DeliveryError
from tpc_broker.client.values import Record
from tpc_broker.testing import MemoryBroker


def record(**changes):
    return Record("t", 0, 0, 1, None, b"x", (), 0)._replace(**changes)


@pytest.mark.parametrize(
    "timestamp",
    [1.5, 2**63, -1, "1", dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
    ids=["float", "large", "negative", "text", "datetime"],
)
@on_both_loops
async def test_a_time_stamp_that_is_none(timestamp):
    async with MemoryBroker(topics={"t": 1}) as broker, connect(broker) as client:
        for put in (client.send, client.post):
            with pytest.raises((TypeError, ValueError), match="ms since 1970"):
                await put("t", b"x", timestamp=timestamp)
        if timestamp != -1:  # as records are read that have none
            with pytest.raises((TypeError, ValueError), match="ms since 1970"):
                await client.send_all("t", [record(timestamp=timestamp)])
        with pytest.raises(TypeError, match="value"):
            await client.send_all("t", [record(value="text")])
        assert (await client.send("t", b"good")).offset == 0


@on_both_loops
async def test_a_topic_that_has_no_name():
    async with MemoryBroker(topics={"t": 1}) as broker, connect(broker) as client:
        for topic in (5, None, b"t"):
            with pytest.raises(TypeError, match="the name of a topic is str"):
                await client.send(topic, b"x")
        for topics in ([b"t"], [5]):
            for group in (None, "g"):
                with pytest.raises(TypeError, match="the name of a topic is str"):
                    async with client.read(topics, group=group):
                        pass
        assert (await client.send("t", b"good")).offset == 0


@on_both_loops
async def test_an_assignment_of_pairs_and_of_what_is_none():
    async with MemoryBroker(topics={"t": 1}) as broker, connect(broker) as client:
        await client.send("t", b"x")
        async with client.read(assignment={("t", 0): "earliest"}) as stream:
            assert (await anext(stream)).value == b"x"
        for assignment in ([("t", 0)], {"t": 0}, {("t", "0"): 0}):
            with pytest.raises(TypeError, match="an assignment is"):
                async with client.read(assignment=assignment):
                    pass


@pytest.mark.parametrize("is_used", [True, False])
@on_both_loops
async def test_a_client_that_was_left_says_so(is_used):
    async with MemoryBroker(topics={"t": 1}) as broker:
        async with connect(broker) as client:
            if is_used:
                await client.send("t", b"x")
        with pytest.raises(ClosedError, match="its block has been left"):
            await client.send("t", b"x")
        with pytest.raises(ClosedError, match="its block has been left"):
            await client.send_all("t", [b"x"])
        with pytest.raises(ClosedError, match="its block has been left"):
            async with client.transaction("id"):
                pass
        with pytest.raises(ClosedError, match="closed"):
            async with client.read("t"):
                await anyio.sleep_forever()
        await client.flush()


@on_both_loops
async def test_what_other_tasks_wait_for_ends_with_the_client():
    async with MemoryBroker(topics={"t": 1}) as broker, anyio.create_task_group() as tasks:
        ended = []

        async def send_in_transactions(client, is_open):
            with pytest.raises(ClientError) as caught:
                async with client.transaction("id") as transaction:
                    await transaction.send("t", b"first")
                    is_open.set()
                    while True:
                        await transaction.send("t", b"x")
            ended.append(caught.value)

        async with connect(broker) as client:
            is_open = anyio.Event()
            tasks.start_soon(send_in_transactions, client, is_open)
            await is_open.wait()
        with anyio.fail_after(PATIENCE_S):
            while not ended:
                await anyio.sleep(0.01)


@on_both_loops
async def test_a_topic_that_is_created_again_with_fewer_partitions():
    """Keys that went to partitions that are no more go to others, as soon as that is known."""
    async with MemoryBroker(topics={"t": 8}) as broker, connect(broker) as client:
        keys = [b"%d" % number for number in range(20)]
        for key in keys:
            await client.send("t", b"before", key=key)
        await client.admin.topics.delete("t")
        await client.admin.topics.create("t", partitions=1)
        with pytest.raises(DeliveryError, match="created again with 1 partitions"):
            for key in keys:
                await client.send("t", b"after", key=key)
        assert {(await client.send("t", b"after", key=key)).partition for key in keys} == {0}
        assert (await client.send_all("t", [(key, b"after") for key in keys])).partitions.keys() == {0}
