"""A broker in memory from a program's side: addresses, settings, end, clocks, and what it does without."""

from __future__ import annotations

import json
import subprocess
import sys

import anyio
import pytest
import trio
import trio.testing

from tests.log.log_batches import batch
from tests.support.both_loops import on_both_loops
from tests.support.dialogue import Dialogue
from tests.support.kept_security import ACCESS
from tests.support.waiting import PATIENCE_S
from tpc_broker.client import connect
from tpc_broker.client.acls import Acl
from tpc_broker.client.coordinators import CoordinatorKind
from tpc_broker.client.errors import AuthenticationError, ClientError, UnreachableError
from tpc_broker.client.requests import Node, TopicPartition
from tpc_broker.client.security import Mechanism, SaslSettings
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.testing import MemoryBroker


@on_both_loops
async def test_topics_are_there_and_others_come_on_first_use():
    async with MemoryBroker(topics={"orders": 3, "bills": 1}) as broker, connect(broker) as client:
        assert len((await client.fleet.topic("orders")).leaders) == 3
        assert len((await client.fleet.topic("bills")).leaders) == 1
        kind = messages.MetadataRequest
        asked = kind(topics=[kind.MetadataRequestTopic(name="new")], allow_auto_topic_creation=True)
        await Dialogue(client, "new").ask(asked, 12)
        assert len((await client.fleet.topic("new")).leaders) == 1


@on_both_loops
async def test_a_program_sends_and_reads():
    async with MemoryBroker(topics={"orders": 3}, brokers=2) as broker, connect(broker) as client:
        sent = [await client.send("orders", b"%d" % number, key=b"%d" % (number % 5)) for number in range(20)]
        assert {one.partition for one in sent} <= {0, 1, 2}
        read = []
        async with client.read("orders", group="billing") as stream:
            while len(read) < 20:
                async with stream.work() as batch:
                    read += [int(record.value) for record in batch.records]
        assert sorted(read) == list(range(20))
        await client.send("orders", b"later", headers={"a": b"1"})
        async with client.read("orders", group="billing") as stream, stream.work() as batch:
            assert [(record.value, record.headers) for record in batch.records] == [(b"later", (("a", b"1"),))]


@on_both_loops
async def test_settings_are_the_brokers():
    async with MemoryBroker(settings={"auto.create.topics.enable": False}) as broker, connect(broker) as client:
        dialogue, kind = Dialogue(client, "none"), messages.MetadataRequest
        asked = kind(topics=[kind.MetadataRequestTopic(name="none")], allow_auto_topic_creation=True)
        answer = await dialogue.ask(asked, 12)
        assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        MemoryBroker(settings={"no.such.setting": 1})


@on_both_loops
async def test_several_brokers_share_partitions():
    async with MemoryBroker(topics={"orders": 6}, brokers=3) as broker, connect(broker) as client:
        assert len(await client.fleet.broker_ids()) == 3
        assert len(set((await client.fleet.topic("orders")).leaders.values())) == 3
        for partition in range(6):
            assert not (await client.fleet.leader(TopicPartition("orders", partition))).is_closed
        assert await client.fleet.answered(lambda: client.fleet.coordinator(CoordinatorKind.GROUP, "some"))
    with pytest.raises(ValueError, match="brokers=0"):
        MemoryBroker(brokers=0)


@on_both_loops
async def test_a_topic_that_cannot_be_is_named():
    with pytest.raises(ValueError, match=r"topic 'no/name' cannot be created"):
        async with MemoryBroker(topics={"no/name": 1}):
            pass


@on_both_loops
async def test_it_ends_with_its_block_and_then_nothing_is_there():
    broker = MemoryBroker(topics={"orders": 1})
    with pytest.raises(RuntimeError, match="async with"):
        _ = broker.bootstrap
    async with broker, connect(broker) as client:
        await client.fleet.topic("orders")
        node = Node("memory", 9092)
        await broker.dial(node)
    with pytest.raises(UnreachableError, match="memory:9092"):
        await broker.dial(node)
    with pytest.raises(RuntimeError, match="once"):
        await broker.__aenter__()


@on_both_loops
async def test_a_client_that_outlives_it_is_told():
    ends = anyio.Event()

    async def run(*, task_status):
        async with MemoryBroker(topics={"orders": 1}) as broker:
            task_status.started(broker)
            await ends.wait()

    async with anyio.create_task_group() as tasks:
        broker = await tasks.start(run)
        async with connect(broker) as client:
            channel = await client.fleet.any_channel()
            ends.set()
            with pytest.raises(UnreachableError), anyio.fail_after(PATIENCE_S):
                while True:
                    await Dialogue(client, "orders").ask(messages.DescribeClusterRequest(), 1, on=channel)


@on_both_loops
async def test_dropped_connections_are_made_anew():
    async with MemoryBroker(topics={"orders": 1}) as broker, connect(broker) as client:
        dialogue = Dialogue(client, "orders")
        first = await dialogue.leader()
        await dialogue.produce(batch(0, [b"a"]))
        broker.drop_connections()
        with anyio.fail_after(PATIENCE_S):
            while not first.is_closed:
                await anyio.lowlevel.checkpoint()
        assert (await dialogue.produce(batch(0, [b"b"]))).responses[0].partition_responses[0].base_offset == 1


@on_both_loops
async def test_one_comes_after_another():
    for _twice in range(3):
        async with MemoryBroker() as broker, connect(broker) as client:
            await client.fleet.broker_ids()


@on_both_loops
async def test_some_begin_while_others_end():
    async def once(seed):
        async with MemoryBroker(seed=seed) as broker, connect(broker) as client:
            for _some in range(seed):
                await client.fleet.broker_ids()

    async with anyio.create_task_group() as tasks:
        for seed in range(6):
            tasks.start_soon(once, seed)


@on_both_loops
async def test_what_the_block_raises_comes_out_as_it_is():
    with pytest.raises(ZeroDivisionError):
        async with MemoryBroker() as broker, connect(broker) as client:
            await client.fleet.broker_ids()
            raise ZeroDivisionError


@on_both_loops
async def test_a_cancelled_block_ends():
    with anyio.CancelScope() as scope:
        async with MemoryBroker() as broker, connect(broker) as client:
            await client.fleet.broker_ids()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


@on_both_loops
async def test_brokers_side_by_side_have_nothing_in_common():
    async with (
        MemoryBroker(topics={"one": 1}) as first, MemoryBroker(topics={"two": 1}) as second,
        connect(first) as client, connect(second) as other,
    ):  # fmt: skip
        await client.fleet.topic("one")
        await other.fleet.topic("two")
        assert set((await other.fleet.metadata_once(None)).topics) == {"two"}


@on_both_loops
async def test_who_logs_in_may_do_what_the_rules_say():
    """Passwords, rights of reading and writing, and what a stranger is told."""
    async with MemoryBroker(topics={"orders": 1}, settings=ACCESS) as broker, connect(broker) as admin:
        await admin.admin.users.set("alice", "pass", iterations=4096)
        await admin.admin.acls.add(Acl("topic", "orders", "literal", "User:alice", "*", "WRITE", "ALLOW"))
        await admin.admin.acls.add(Acl("cluster", "kafka-cluster", "literal", "User:alice", "*", "ALL", "ALLOW"))
        alice = SaslSettings(Mechanism.SCRAM_SHA_512, "alice", "pass")
        async with connect(broker.login, auth=alice) as client:
            assert (await client.send("orders", b"a")).offset == 0
            with pytest.raises(ClientError, match="AUTHORIZATION"):
                async with client.read("orders") as stream:
                    await anext(stream)
        wrong = SaslSettings(Mechanism.SCRAM_SHA_512, "alice", "other")
        async with connect(broker.login, auth=wrong) as client:
            with pytest.raises(AuthenticationError):
                await client.fleet.broker_ids()
        async with connect(broker.login) as client:
            with pytest.raises(ClientError):
                await client.fleet.answered(lambda: client.fleet.metadata_once([]), 0.01)


@on_both_loops
async def test_a_transaction_is_read_when_it_is_committed():
    async with MemoryBroker(topics={"orders": 1, "bills": 1}, brokers=2) as broker, connect(broker) as client:
        for number in range(3):
            await client.send("orders", b"%d" % number)
        async with (
            client.read("orders", group="billing") as stream, stream.work(commit=False) as batch,
            client.transaction("billing-1") as tx,
        ):  # fmt: skip
            for record in batch.records:
                await tx.send("bills", record.value)
            tx.done(batch)
        with pytest.raises(ZeroDivisionError):
            async with client.transaction("billing-1") as tx:
                await tx.send("bills", b"never")
                raise ZeroDivisionError
        await client.send("bills", b"end")
        async with client.read("bills") as stream:
            assert [(await anext(stream)).value for _number in range(4)] == [b"0", b"1", b"2", b"end"]
        async with client.read("orders", group="billing", start="latest") as stream:
            await client.send("orders", b"3")
            assert (await anext(stream)).value == b"3"


@on_both_loops
async def test_a_request_that_is_none_ends_its_connection():
    async with MemoryBroker() as broker:
        wire = await broker.dial(Node("memory", 9092))
        wire.write([b"\0\0\0\2", b"??"])
        assert not await wire.receive_into(memoryview(bytearray(10)))
        with pytest.raises(UnreachableError):
            wire.write([b"\0\0\0\2", b"??"])
        wire.close()


def test_time_is_the_programs():
    """A group's member that is silent is out after its session's time-out: some seconds by a clock that jumps."""

    async def main():
        async with MemoryBroker(topics={"orders": 1}) as broker, connect(broker) as client:
            dialogue = Dialogue(client, "orders")
            coordinator, kind, member = await dialogue.coordinator(dialogue.group), messages.JoinGroupRequest, ""
            for _twice in range(2):
                answer = await dialogue.ask(kind(
                    group_id=dialogue.group, session_timeout_ms=10_000, rebalance_timeout_ms=5_000, member_id=member,
                    protocol_type="consumer", protocols=[kind.JoinGroupRequestProtocol(name="range", metadata=b"m")],
                ), 9, on=coordinator)  # fmt: skip
                member = answer.member_id
            began = trio.current_time()
            who = {"group_id": dialogue.group, "generation_id": answer.generation_id, "member_id": member}
            sync = messages.SyncGroupRequest(**who, protocol_type="consumer", protocol_name="range", assignments=[])
            await dialogue.ask(sync, 5, on=coordinator)
            await trio.sleep(11)
            answer = await dialogue.ask(messages.HeartbeatRequest(**who), on=coordinator)
            assert ErrorCode(answer.error_code) is ErrorCode.UNKNOWN_MEMBER_ID
            assert trio.current_time() - began < 60

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_seed_repeats_what_was_left_to_chance(seed):
    async def topic_id():
        async with MemoryBroker(topics={"orders": 1}, seed=seed) as broker, connect(broker) as client:
            return (await client.fleet.topic("orders")).topic_id

    assert trio.run(topic_id) == anyio.run(topic_id, backend="asyncio")


@pytest.fixture(scope="module")
def loaded_modules():
    """By a fresh interpreter in which the ring cannot be imported."""
    text = "import json, tpc_broker.testing; print(json.dumps(sorted(sys.modules)))"
    code = f"import sys; sys.modules['tpc_broker._ring'] = None; {text}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(found.stdout))


def test_the_ring_is_not_needed(loaded_modules):
    assert "tpc_broker.testing" in loaded_modules
    assert not [name for name in loaded_modules if name.startswith(("tpc_broker.engine", "confluent_kafka"))]
