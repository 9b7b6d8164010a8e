"""Stock clients on a broker with two listeners of different modes: each is told the addresses of its own listener, and
nobody who follows them asks a core for what another one owns.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer

from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import run_tool
from tests.support.raw_client import RawConnection
from tests.support.record_batches import Record, batch
from tests.support.waiting import PATIENCE_S, eventually

CORES, PARTITIONS, RECORDS = 3, 7, 210
NOT_LEADER_OR_FOLLOWER, NOT_COORDINATOR = 6, 16
PORTS, ADDRESSES = "PLAINTEXT", "CORES"

pytestmark = pytest.mark.usefixtures("kafka_tools")  # Kafka's definitions of its messages come with them


class ListenersBroker(TpcBroker):
    """One port a core, and beside it one address a core with one port."""

    def __init__(self, folder) -> None:
        super().__init__(folder, cores_count=CORES)
        self.cores_count_max = CORES + 1

    def endpoints(self, listener: str) -> list[tuple[str, int]]:
        """By core."""
        if listener == PORTS:
            return [(self.host, port) for port in self.ports]
        return [(f"127.0.0.{core + 1}", self.ports[-1] + 1) for core in range(CORES)]

    def bootstrap_of(self, listener: str) -> str:
        host, port = self.endpoints(listener)[-1]
        return f"{host}:{port}"

    def command(self) -> list[str]:
        host, port = self.endpoints(ADDRESSES)[0]
        return [
            *super().command(),
            f"--listen={ADDRESSES}://{host}:{port}",
            f"--override=listener.{ADDRESSES}.mode=per-core-address",
        ]

    def counted(self, name: str) -> int:
        """Over all cores."""
        return sum(core["broker"][name] for core in self.counters())


@pytest.fixture(scope="module")
def broker(module_tmp_path) -> Iterator[ListenersBroker]:
    """Topics and the groups' topic are there before a test counts: so no client asks for what is being made."""
    broker = ListenersBroker(module_tmp_path / "broker")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(params=[PORTS, ADDRESSES])
def listener(request) -> str:
    return request.param


@pytest.fixture
def made_topic(broker, topic) -> str:
    """A topic over all cores, that clients on both listeners see with its leaders; and the groups' own."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE_S)

    def has_leaders() -> bool:
        with RawConnection(*broker.endpoints(PORTS)[0]) as client:
            client.ask("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": ["g"]})
        found = [
            partition
            for core in range(CORES)
            for one in asked_metadata(broker, PORTS, core)["Topics"]
            if one["Name"] in {topic, "__consumer_offsets"}
            for partition in one["Partitions"]
        ]
        return len(found) == CORES * (PARTITIONS + 50) and all(one["LeaderId"] >= 0 for one in found)

    eventually(has_leaders, "every core knows all leaders")
    return topic


def asked_metadata(broker: ListenersBroker, listener: str, core: int) -> dict:
    with RawConnection(*broker.endpoints(listener)[core]) as client:
        return client.ask("Metadata", 12, {"Topics": None})


def values() -> list[str]:
    return [f"value {number}" for number in range(RECORDS)]


def own_peers(broker: ListenersBroker) -> set[tuple[str, int]]:
    """Addresses of the broker that this process is connected to now."""
    every = {*broker.endpoints(PORTS), *broker.endpoints(ADDRESSES)}
    found = {tuple(one.raddr) for one in psutil.Process().net_connections("tcp") if one.raddr}
    return found & every


def by_librdkafka(broker: ListenersBroker, address: str, topic: str) -> tuple[list[str], set[tuple[str, int]]]:
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5})
    for number, value in enumerate(values()):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    settings = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": address, **settings})
    consumer.subscribe([topic])
    read: list[str] = []
    eventually(lambda: extended(read, consumer), "all is read")
    consumer.commit(asynchronous=False)
    peers = own_peers(broker)
    consumer.close()
    return read, peers


def extended(read: list[str], consumer: Consumer) -> bool:
    read.extend(record.value().decode() for record in consumer.consume(RECORDS, timeout=0.5) if record.error() is None)
    return len(read) >= RECORDS


def by_kafka_python(broker: ListenersBroker, address: str, topic: str) -> tuple[list[str], set[tuple[str, int]]]:
    producer = KafkaProducer(bootstrap_servers=address, acks="all")
    for number, value in enumerate(values()):
        producer.send(topic, value.encode(), partition=number % PARTITIONS)
    producer.flush(PATIENCE_S)
    settings = {"group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
    consumer = KafkaConsumer(topic, bootstrap_servers=address, **settings)
    read: list[str] = []
    eventually(lambda: len(consumer.partitions_for_topic(topic) or ()) == PARTITIONS, "they are known")

    def all_read() -> bool:
        for records in consumer.poll(timeout_ms=500).values():
            read.extend(record.value.decode() for record in records)
        return len(read) >= RECORDS

    eventually(all_read, "all is read")
    consumer.commit()
    peers = own_peers(broker)
    producer.close()
    consumer.close()
    return read, peers


def by_aiokafka(broker: ListenersBroker, address: str, topic: str) -> tuple[list[str], set[tuple[str, int]]]:
    async def exchange() -> tuple[list[str], set[tuple[str, int]]]:
        producer = AIOKafkaProducer(bootstrap_servers=address, acks="all")
        await producer.start()
        sent = [
            await producer.send(topic, value.encode(), partition=number % PARTITIONS)
            for number, value in enumerate(values())
        ]
        await asyncio.gather(*sent)
        settings = {"group_id": topic, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        consumer = AIOKafkaConsumer(topic, bootstrap_servers=address, **settings)
        await consumer.start()
        read: list[str] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(read) < RECORDS:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    read.extend(record.value.decode() for record in records)
        await consumer.commit()
        peers = own_peers(broker)
        await producer.stop()
        await consumer.stop()
        return read, peers

    return asyncio.run(exchange())


def by_kcat(_broker: ListenersBroker, address: str, topic: str) -> tuple[list[str], None]:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (Debian: kcat)")

    def kcat(*arguments: str, standard_input: str = "") -> list[str]:
        done = subprocess.run(
            ["kcat", "-b", address, *arguments],
            input=standard_input, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    for partition in range(PARTITIONS):
        kcat("-P", "-t", topic, "-p", str(partition), standard_input="\n".join(values()[partition::PARTITIONS]) + "\n")
    return kcat("-q", "-X", "auto.offset.reset=earliest", "-G", topic, "-c", str(RECORDS), topic), None


def by_java(_broker: ListenersBroker, address: str, topic: str) -> tuple[list[str], None]:
    place = ["--bootstrap-server", address, "--topic", topic]
    # Without batches each record goes to a partition of its own choice, so that all cores are written to.
    spread = ["--command-property", "partitioner.class=org.apache.kafka.clients.producer.RoundRobinPartitioner"]
    sent = run_tool("console-producer", *place, *spread, standard_input="\n".join(values()) + "\n")
    assert sent.returncode == 0, sent.stderr
    bounds = [
        "--group",
        topic,
        "--from-beginning",
        "--max-messages",
        str(RECORDS),
        "--timeout-ms",
        f"{1000 * PATIENCE_S:.0f}",
    ]
    received = run_tool("console-consumer", *place, *bounds)
    assert received.returncode == 0, received.stderr
    return received.stdout.splitlines(), None


CLIENTS = [
    pytest.param(by_librdkafka, id="librdkafka"),
    pytest.param(by_kafka_python, id="kafka-python"),
    pytest.param(by_aiokafka, id="aiokafka"),
    pytest.param(by_kcat, id="kcat"),
    pytest.param(by_java, id="java", marks=pytest.mark.kafka),
]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_works_on_either_listener_and_never_asks_the_wrong_core(broker, made_topic, listener, client):
    before = {name: broker.counted(name) for name in ("asked_of_wrong_core", "requests_forwarded")}
    read, peers = client(broker, broker.bootstrap_of(listener), made_topic)
    assert sorted(read) == sorted(values())
    assert {name: broker.counted(name) for name in before} == before
    if peers is not None:
        assert peers == set(broker.endpoints(listener)), "it speaks to all cores, by this listener only"


def test_metadata_names_the_addresses_of_the_listener_that_was_asked(broker, made_topic):
    """Twice by turns, so that what one listener's clients are told is there to be told to the other's by mistake."""
    for listener in (PORTS, ADDRESSES, PORTS, ADDRESSES):
        for core in range(CORES):
            told = asked_metadata(broker, listener, core)["Brokers"]
            assert places(told) == list(enumerate(broker.endpoints(listener)))
    assert sum(core["plane"]["prepared_answers"] for core in broker.counters()) > 0
    assert made_topic


def test_the_cluster_and_coordinators_are_told_by_listener(broker, made_topic, listener):
    endpoints = broker.endpoints(listener)
    with RawConnection(*endpoints[1]) as client:
        cluster = client.ask("DescribeCluster", 0)
        assert places(cluster["Brokers"], "BrokerId") == list(enumerate(endpoints))
        groups = [f"group {number}" for number in range(12)]
        found = client.ask("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": groups})["Coordinators"]
        assert all(endpoints[core] == address for core, address in places(found))
        assert {one["NodeId"] for one in found} == set(range(CORES))
        one = client.ask("FindCoordinator", 3, {"KeyType": 0, "Key": groups[0]})
        assert places([one]) == places(found[:1])
    assert made_topic


def test_who_asks_the_wrong_core_is_counted_and_sent_to_the_right_one(broker, made_topic, listener):
    endpoints = broker.endpoints(listener)
    (described,) = [one for one in asked_metadata(broker, listener, 0)["Topics"] if one["Name"] == made_topic]
    (leader,) = [one["LeaderId"] for one in described["Partitions"] if one["PartitionIndex"] == 0]
    before = broker.counted("asked_of_wrong_core")
    with RawConnection(*endpoints[(leader + 1) % CORES]) as client:
        part = {"Index": 0, "Records": batch([Record(b"value")])}
        data = [{"Name": made_topic, "PartitionData": [part]}]
        answer = client.ask("Produce", 12, {"Acks": -1, "TimeoutMs": 1000, "TopicData": data})
        (told,) = answer["Responses"][0]["PartitionResponses"]
        assert (told["ErrorCode"], told["CurrentLeader"]["LeaderId"]) == (NOT_LEADER_OR_FOLLOWER, leader)
        assert places(answer["NodeEndpoints"]) == [(leader, endpoints[leader])]
        parts = [{"Partition": 0, "FetchOffset": 0, "PartitionMaxBytes": 1000}]
        topics = [{"TopicId": described["TopicId"], "Partitions": parts}]
        answer = client.ask("Fetch", 16, {"MaxWaitMs": 0, "MinBytes": 0, "MaxBytes": 1000, "Topics": topics})
        (told,) = answer["Responses"][0]["Partitions"]
        assert (told["ErrorCode"], told["CurrentLeader"]["LeaderId"]) == (NOT_LEADER_OR_FOLLOWER, leader)
        assert places(answer["NodeEndpoints"]) == [(leader, endpoints[leader])]
        coordinator = client.ask("FindCoordinator", 3, {"KeyType": 0, "Key": made_topic})["NodeId"]
    with RawConnection(*endpoints[(coordinator + 1) % CORES]) as client:
        beat = {"GroupId": made_topic, "GenerationId": 1, "MemberId": "m"}
        assert client.ask("Heartbeat", 3, beat)["ErrorCode"] == NOT_COORDINATOR
    assert broker.counted("asked_of_wrong_core") == before + 3


def test_a_core_that_dies_is_found_again_on_every_listener(broker, made_topic):
    """Its sockets outlive it: the supervisor has them all."""
    broker.core_process(1).kill()

    def serves_all() -> bool:
        try:
            return all(
                len(asked_metadata(broker, listener, core)["Brokers"]) == CORES
                for listener in (PORTS, ADDRESSES)
                for core in range(CORES)
            )
        except OSError:
            return False

    eventually(serves_all, "every core answers on both listeners")
    read, peers = by_librdkafka(broker, broker.bootstrap_of(ADDRESSES), made_topic)
    assert sorted(read) == sorted(values())
    assert peers == set(broker.endpoints(ADDRESSES))


def places(brokers: list[dict], node_id: str = "NodeId") -> list[tuple[int, tuple[str, int]]]:
    return sorted((one[node_id], (one["Host"], one["Port"])) for one in brokers)
