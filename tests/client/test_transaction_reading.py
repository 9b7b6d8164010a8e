"""Exactly once: transactions of the asynchronous client with what its streams read, on both loops."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from tests.support.both_loops import on_both_loops, on_loops_in_turn
from tpc_broker.client import GroupSettings, connect
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.errors import FencedError
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.transaction.owner import Outcome

COUNT = 9


@pytest.fixture
def broker(shared_broker):
    """Another module runs these against Kafka."""
    return shared_broker


@asynccontextmanager
async def topics_of(client, *names, partitions=1):
    """Deleted at the end, with the groups of the same names, so that the other loop finds none."""
    for name in names:
        await client.admin.topics.create(name, partitions=partitions)
    try:
        yield names
    finally:
        await client.admin.topics.delete(*names)
        await client.admin.groups.delete(*names, missing_ok=True)


async def read(client, topic, count, **options):
    """The first values that readers see."""
    found = []
    async with client.read(topic, **options) as stream:
        async for record in stream:
            found.append(record.value)
            if len(found) == count:
                return found
    raise AssertionError


@on_loops_in_turn("protocol", ["classic", "consumer"])
async def test_what_was_read_is_written_once(broker, protocol):
    """Every second transaction is aborted, and its batch is read again."""
    async with connect(broker.bootstrap) as client, topics_of(client, "eos-in", "eos-out"):
        await client.send_all("eos-in", [b"%d" % number for number in range(COUNT)])
        group = GroupSettings("eos-in", protocol=protocol)
        attempts = 0
        done = 0
        async with client.read("eos-in", group=group) as stream:
            async for batch in stream.batches(max_records=3):
                attempts += 1
                try:
                    async with client.transaction("eos-in") as tx:
                        for record in batch.records:
                            await tx.post("eos-out", record=record)
                        tx.done(batch)
                        if attempts % 2:
                            raise ZeroDivisionError
                except ZeroDivisionError:
                    continue
                done += len(batch.records)
                committed = await client.admin.groups.offsets("eos-in", [batch.where], require_stable=True)
                assert committed[batch.where].offset == batch.next_offset
                if done == COUNT:
                    break
        assert await read(client, "eos-out", COUNT) == [b"%d" % number for number in range(COUNT)]
        shown = await read(client, "eos-out", attempts, isolation="read_uncommitted")
        assert len(shown) == attempts
        assert attempts > COUNT // 3
        lag = await client.admin.groups.lag("eos-in")
        assert [one.records for one in lag.values()] == [0]


@on_both_loops
async def test_record_by_record_in_one_transaction(broker):
    async with connect(broker.bootstrap) as client, topics_of(client, "eos-records", "eos-records-out"):
        await client.send_all("eos-records", [b"%d" % number for number in range(6)])
        where = TopicPartition("eos-records", 0)
        async with client.read("eos-records", group="eos-records", commit_seconds=0.01) as stream:
            records = aiter(stream)
            assert (await anext(records)).value == b"0"
            with pytest.raises(ZeroDivisionError):
                async with client.transaction("eos-records") as tx:
                    for expected in (b"1", b"2", b"3"):
                        record = await anext(records)
                        assert record.value == expected
                        await tx.send("eos-records-out", record=record)
                        tx.done(record)
                    for _ in range(10):  # the stream commits meanwhile, but nothing that the transaction has
                        found = await client.admin.groups.offsets("eos-records")
                        assert found.get(where, Position(0)).offset <= 1
                    raise ZeroDivisionError
            async with client.transaction("eos-records") as tx:
                for expected in (b"1", b"2"):
                    record = await anext(records)
                    assert record.value == expected
                    await tx.send("eos-records-out", record=record)
                    tx.done(record)
            committed = await client.admin.groups.offsets("eos-records", [where], require_stable=True)
            assert committed[where].offset == 3
            assert (await anext(records)).value == b"3"
        assert await read(client, "eos-records-out", 2) == [b"1", b"2"]


@on_both_loops
async def test_what_is_not_done_in_order_is_refused(broker):
    async with connect(broker.bootstrap) as client, topics_of(client, "eos-order"):
        await client.send_all("eos-order", [b"%d" % number for number in range(6)])
        async with (
            client.read("eos-order", group="eos-order") as stream,
            client.read("eos-order") as groupless,
            client.transaction("eos-order") as tx,
        ):
            batches = aiter(stream.batches(max_records=2))
            first = await anext(batches)
            with pytest.raises(ValueError, match="2 streams of this client read eos-order-0: say which one"):
                tx.done(first)
            with pytest.raises(ValueError, match="read without a group"):
                tx.done(first, stream=groupless)
            with pytest.raises(ValueError, match="no stream of this client reads eos-order-9"):
                tx.done({TopicPartition("eos-order", 9): 1})
            with pytest.raises(ValueError, match="offset 0 is under way"):
                tx.done(first.records[1], stream=stream)
            with pytest.raises(TypeError, match="not int"):
                tx.done(1, stream=stream)
            second = await anext(batches)
            with pytest.raises(ValueError, match="offset 2 is under way"):
                tx.done(first, stream=stream)
            tx.done({second.where: second.next_offset}, stream=stream)
        assert tx.outcome is Outcome.COMMITTED
        committed = await client.admin.groups.offsets("eos-order", [second.where], require_stable=True)
        assert [one.offset for one in committed.values()] == [4]


@on_both_loops
async def test_a_zombie_is_fenced_and_what_it_had_read_is_read_again(broker):
    address = broker.bootstrap
    async with connect(address) as one, connect(address) as other, topics_of(one, "eos-zombie", "eos-zombie-out"):
        await one.send_all("eos-zombie", [b"a", b"b"])
        async with one.read("eos-zombie", group="eos-zombie") as stream:
            batch = await anext(aiter(stream.batches()))
            with pytest.raises(FencedError, match="eos-zombie"):
                async with one.transaction("eos-zombie") as zombie:
                    await zombie.send_all("eos-zombie-out", [record.value for record in batch.records])
                    zombie.done(batch)
                    async with other.transaction("eos-zombie") as tx:
                        await tx.send("eos-zombie-out", b"new")
            assert zombie.outcome is Outcome.ABORTED
            again = await anext(aiter(stream.batches()))
            assert again == batch
        assert await read(other, "eos-zombie-out", 1) == [b"new"]
        assert await other.admin.groups.offsets("eos-zombie") == {}


@on_both_loops
async def test_a_partition_that_moved_on_aborts_the_transaction(broker):
    """A second member takes both partitions' halves: what the first had of the other one it may not commit any more."""
    async with connect(broker.bootstrap) as client, topics_of(client, "eos-moved", "eos-moved-out"):
        await client.send("eos-moved", b"a")
        async with client.read("eos-moved", group="eos-moved") as stream:
            batch = await anext(aiter(stream.batches()))
            with pytest.raises(Exception, match="went to another member") as caught:
                async with client.transaction("eos-moved") as tx:
                    await tx.send("eos-moved-out", b"a")
                    tx.done(batch)
                    stream.ledger.forget([batch.where])
            assert "it was aborted" in str(caught.value)
            assert tx.outcome is Outcome.ABORTED
        async with client.transaction("eos-moved") as tx:
            await tx.send("eos-moved-out", b"b")
        assert await read(client, "eos-moved-out", 1) == [b"b"]


@on_both_loops
async def test_open_transactions_are_told_and_aborted_from_outside(broker):
    async with connect(broker.bootstrap) as client, topics_of(client, "tx-admin"):
        admin, where = client.admin.transactions, TopicPartition("tx-admin", 0)
        with pytest.raises(FencedError, match="tx-admin"):
            async with client.transaction("tx-admin", timeout_seconds=300) as tx:
                await tx.send("tx-admin", b"x")
                (listed,) = (one for one in await admin.list(states=["Ongoing"]) if one.transactional_id == "tx-admin")
                found = (await admin.describe("tx-admin"))["tx-admin"]
                assert (found.is_open, found.timeout_ms, found.partitions) == (True, 300_000, (where,))
                assert found.producer_id == listed.producer_id
                (producer,) = (await admin.producers([where]))[where]
                assert producer.first_offset == 0
                assert await admin.hanging([where]) == []
                assert (await admin.abort("tx-admin")) == found
        with pytest.raises(Exception, match="nothing to abort"):
            await admin.abort("tx-admin")
        with pytest.raises(Exception, match="unknown to its coordinator"):
            await admin.abort("tx-admin-never")
