"""A listener that all cores share: one broker to its clients, connections placed by the kernel's program.

Beside it one with a port a core, over which a test reaches the core that it wants.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from functools import partial

import psutil
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.integration.matrix import SESSION_MS
from tests.integration.test_listeners import CLIENTS, values
from tests.support.broker_process import TpcBroker, run_command, run_here
from tests.support.cluster_nodes import run_tpc
from tests.support.definitions import decode_response
from tests.support.kafka_peer import run_tool
from tests.support.raw_client import RawConnection
from tests.support.record_batches import Record, batch
from tests.support.server_process import ServerFailed, answers_api_versions
from tests.support.steering_loader import skip_without
from tests.support.waiting import PATIENCE_S, eventually, in_one_go, let_pass, patiently
from tpc_broker.ebpf.steering import Select
from tpc_broker.telemetry.status import read_status

CORES, PARTITIONS, RECORDS, CONNECTIONS = 3, 7, 70, 64
BURST_GAP_S = 0.2
"""After so long without a connection the program forgets what it placed in the burst before (BURST_GAP_NS)."""
BURST_S = 0.1
"""What it placed within so long it remembers."""
WINDOW_S = 1800
"""Of quotas: none is over while a test runs, so what was used once stays counted, however long the machine pauses."""
NODE = 5
INVALID_REQUEST = 42
UNKNOWN_TOPIC_OR_PARTITION = 3

pytestmark = pytest.mark.usefixtures("kafka_tools")  # Kafka's definitions of its messages come with them


class SharedBroker(TpcBroker):
    def __init__(self, folder) -> None:
        own = {"node.id": str(NODE), "ebpf.loader": "libbpf", "quota.window.size.seconds": str(WINDOW_S)}
        super().__init__(folder, cores_count=CORES, overrides=own)
        self.cores_count_max = CORES + 1

    @property
    def shared(self) -> tuple[str, int]:
        return self.host, self.ports[-1] + 1

    @property
    def shared_bootstrap(self) -> str:
        return f"{self.host}:{self.shared[1]}"

    def command(self) -> list[str]:
        return [
            *super().command(), f"--listen=ONE://{self.shared_bootstrap}", "--override=listener.ONE.mode=shared",
        ]  # fmt: skip

    def endpoints(self, _listener: str) -> list[tuple[str, int]]:
        """For the clients of `test_listeners`, which look whom they speak to: the shared port counts."""
        return [self.shared]

    def steering(self) -> dict:
        (of_one,) = [one for one in read_status(self.data_folder)["listeners"] if one["name"] == "ONE"]
        return of_one["steering"]

    def selected(self) -> list[int]:
        return self.steering()["selected"]


@pytest.fixture(scope="module")
def broker(module_tmp_path) -> Iterator[SharedBroker]:
    skip_without("libbpf", Select.LOAD)
    broker = SharedBroker(module_tmp_path / "broker")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def filled_topic(broker, topic) -> str:
    """Over all cores, the same number of records in each partition, written over the listener with a port a core."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, f"value {number}", partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0
    return topic


def test_clients_see_one_broker_with_the_nodes_id(broker, filled_topic):
    with RawConnection(*broker.shared) as client:
        told = client.ask("Metadata", 12, {"Topics": None})
        assert [(one["NodeId"], one["Host"], one["Port"]) for one in told["Brokers"]] == [(NODE, *broker.shared)]
        assert told["ControllerId"] == NODE
        (described,) = [one for one in told["Topics"] if one["Name"] == filled_topic]
        assert {one["LeaderId"] for one in described["Partitions"]} == {NODE}
        assert all(one["ReplicaNodes"] == [NODE] for one in described["Partitions"])
        groups = [f"group {number}" for number in range(12)]
        found = client.ask("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": groups})["Coordinators"]
        assert {(one["NodeId"], one["Host"], one["Port"]) for one in found} == {(NODE, *broker.shared)}
    with RawConnection(broker.host, broker.ports[1]) as client:
        told = client.ask("Metadata", 12, {"Topics": None})
        assert sorted(one["NodeId"] for one in told["Brokers"]) == [NODE * 1024 + core for core in range(CORES)]


def test_producers_are_asked_for_where_each_partition_is_led(broker, filled_topic):
    asked = {"Topics": [{"Name": filled_topic, "PartitionIndexes": [*range(PARTITIONS), 99]}]}
    with RawConnection(*broker.shared) as client:
        (told,) = client.ask("DescribeProducers", 0, asked)["Topics"]
    codes = {one["PartitionIndex"]: one["ErrorCode"] for one in told["Partitions"]}
    assert codes == {**dict.fromkeys(range(PARTITIONS), 0), 99: UNKNOWN_TOPIC_OR_PARTITION}


def connections(broker, core: int) -> int:
    """That are open."""
    return broker.counters()[core]["connections"]["connections"]


def test_connections_are_spread_over_the_cores(broker):
    """A machine that stands still meanwhile may make two bursts of them, before any is accepted."""

    def all_others_are_closed() -> None:
        eventually(lambda: not any(connections(broker, core) for core in range(CORES)), "all others are closed")
        let_pass(BURST_GAP_S)

    def one_burst() -> list[int]:
        before = broker.selected()
        with ExitStack() as open_now:
            for _each in range(CONNECTIONS):
                open_now.enter_context(socket.create_connection(broker.shared))
            return [now - then for now, then in zip(broker.selected(), before, strict=True)]

    spread = in_one_go(one_burst, BURST_S, "they are one burst", all_others_are_closed)
    assert sum(spread) == CONNECTIONS
    assert max(spread) <= 1.3 * min(spread)


def test_connections_that_are_open_count(broker):
    """What one core has over its own port keeps new ones away from it: it is compared with itself in one of nine."""
    with ExitStack() as open_now:
        for _each in range(CONNECTIONS):
            open_now.enter_context(socket.create_connection((broker.host, broker.ports[0])))
        eventually(lambda: connections(broker, 0) >= CONNECTIONS, "they are accepted")
        let_pass(BURST_GAP_S)
        before = broker.selected()
        for _each in range(CORES * 20):
            open_now.enter_context(socket.create_connection(broker.shared))
        reached = [now - then for now, then in zip(broker.selected(), before, strict=True)]
    assert reached[0] < min(reached[1:]), reached


@pytest.fixture
def clients(broker) -> Iterator[list[RawConnection]]:
    """On every core at least one."""
    with ExitStack() as open_now:
        clients = []
        before = broker.selected()
        while not all(now > then for now, then in zip(broker.selected(), before, strict=True)):
            assert len(clients) < 50
            clients.append(open_now.enter_context(RawConnection(*broker.shared)))
        yield clients


def test_any_core_tells_the_offsets_of_all(broker, filled_topic, clients):
    partitions = [{"PartitionIndex": index, "CurrentLeaderEpoch": -1, "Timestamp": -1} for index in range(PARTITIONS)]
    asked = {"ReplicaId": -1, "IsolationLevel": 0, "Topics": [{"Name": filled_topic, "Partitions": partitions}]}
    for client in clients:
        (told,) = client.ask("ListOffsets", 7, asked)["Topics"]
        offsets = {one["PartitionIndex"]: (one["ErrorCode"], one["Offset"]) for one in told["Partitions"]}
        assert offsets == dict.fromkeys(range(PARTITIONS), (0, RECORDS // PARTITIONS))


def joined_as(client: RawConnection, join: dict) -> dict:
    """Empty while the coordinator, whose partition was perhaps made a moment ago, takes over."""
    joined = client.ask("JoinGroup", 3, join)
    return joined if joined["ErrorCode"] == 0 else {}


def test_groups_work_from_any_core(broker, filled_topic, clients):
    """Members join over the shared listener, whichever core coordinates the group."""
    for number, client in enumerate(clients):
        group = f"{filled_topic} {number}"
        protocols = [{"Name": "range", "Metadata": b""}]
        join = {
            "GroupId": group, "SessionTimeoutMs": SESSION_MS, "RebalanceTimeoutMs": SESSION_MS, "MemberId": "",
            "ProtocolType": "consumer", "Protocols": protocols,
        }  # fmt: skip
        client.ask("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [group]})
        joined = eventually(partial(joined_as, client, join), "its coordinator lets a member in")
        member = {"GroupId": group, "GenerationId": joined["GenerationId"], "MemberId": joined["MemberId"]}
        assert client.ask("SyncGroup", 3, {**member, "Assignments": []})["ErrorCode"] == 0
        assert client.ask("Heartbeat", 3, member)["ErrorCode"] == 0
        told = client.ask("DescribeGroups", 5, {"Groups": [group, "none"]})["Groups"]
        assert {one["GroupId"]: len(one["Members"]) for one in told} == {group: 1, "none": 0}
        (described,) = [one for one in told if one["GroupId"] == group]
        assert described["Members"][0]["ClientHost"] == "/127.0.0.1"
    wanted = {f"{filled_topic} {number}" for number in range(len(clients))}
    for client in clients:
        listed = [one["GroupId"] for one in client.ask("ListGroups", 4)["Groups"]]
        assert wanted <= set(listed)
        assert len(listed) == len(set(listed))


def test_offsets_are_committed_and_read_by_librdkafka(broker, filled_topic):
    settings = {"group.id": filled_topic, "enable.auto.commit": False, "bootstrap.servers": broker.shared_bootstrap}
    committed = [TopicPartition(filled_topic, index, index + 1) for index in range(PARTITIONS)]
    consumer = Consumer(settings)
    consumer.commit(offsets=committed, asynchronous=False)
    read = consumer.committed([TopicPartition(filled_topic, index) for index in range(PARTITIONS)], PATIENCE_S)
    assert [one.offset for one in read] == [one.offset for one in committed]
    consumer.close()


@pytest.mark.kafka
def test_clients_that_say_which_broker_they_mean_are_right_at_every_core(broker, filled_topic, newest_kafka):
    """As Java's do since 4.4; who is told that it means another begins anew, for ever."""
    for address in (broker.shared_bootstrap, broker.bootstrap):
        bounds = ["--max-messages", str(RECORDS), "--timeout-ms", "60000", "--from-beginning", "--group", filled_topic]
        command = ["--bootstrap-server", address, "--topic", filled_topic, *bounds]
        done = run_tool("console-consumer", *command, version=newest_kafka)
        assert sorted(done.stdout.splitlines()) == sorted(f"value {number}" for number in range(RECORDS)), done.stderr
        done = run_tool("consumer-groups", *command[:2], "--delete", "--group", filled_topic, version=newest_kafka)
        assert "was successful" in done.stdout, done.stderr


def test_the_one_broker_is_described_and_altered_on_every_core(broker, clients):
    admin = AdminClient({"bootstrap.servers": broker.shared_bootstrap})
    resource = ConfigResource(
        ConfigResource.Type.BROKER, str(NODE),
        incremental_configs=[ConfigEntry("max.connections", "4321", incremental_operation=AlterConfigOpType.SET)],
    )  # fmt: skip
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    for client in clients:
        asked = {"ResourceType": 4, "ResourceName": str(NODE), "ConfigurationKeys": ["max.connections"]}
        (told,) = client.ask("DescribeConfigs", 4, {"Resources": [asked]})["Results"]
        assert (told["ErrorCode"], [one["Value"] for one in told["Configs"]]) == (0, ["4321"])
    change = {"Name": "max.connections", "ConfigOperation": 0, "Value": "1"}
    asked = {"Resources": [{"ResourceType": 4, "ResourceName": str(NODE * 1024), "Configs": [change]}]}
    (told,) = clients[0].ask("IncrementalAlterConfigs", 1, asked)["Responses"]
    assert told["ErrorCode"] == INVALID_REQUEST, "that is core 0, to clients of the other listener"


def test_directories_show_the_partitions_of_all_cores(broker, filled_topic, clients):
    for client in clients:
        (told,) = client.ask("DescribeLogDirs", 4, {"Topics": None})["Results"]
        (of_topic,) = [one for one in told["Topics"] if one["Name"] == filled_topic]
        assert sorted(one["PartitionIndex"] for one in of_topic["Partitions"]) == list(range(PARTITIONS))


def test_a_core_that_dies_gets_no_connection_until_it_is_back(broker):

    def is_down() -> bool:
        return not broker.steering()["alive"][1]

    def killed_and_held() -> psutil.Process | None:
        """What is started in its place, if that is held before it is up: it stays down as long as this looks at it."""
        old = broker.core_process(1)
        old.kill()
        new = eventually(lambda: replaced(old.pid), "it is started again", pause_s=0.01)
        new.suspend()
        if is_down():
            return new
        new.resume()
        return None

    def replaced(pid: int) -> psutil.Process | None:
        with suppress(ServerFailed):
            found = broker.core_process(1)
            return found if found.pid != pid else None
        return None

    new = eventually(killed_and_held, "it is held while it is down")
    before = broker.selected()
    with ExitStack() as open_now:
        for _each in range(10):
            client = open_now.enter_context(RawConnection(*broker.shared))
            assert client.ask("ApiVersions", 0)["ErrorCode"] == 0
    assert sum(broker.selected()) >= sum(before) + 10
    new.resume()
    eventually(lambda: answers_api_versions(broker.host, broker.ports[1]), "it answers")
    eventually(lambda: not is_down(), "it is placed on again")


def test_the_command_says_who_gets_what(broker):
    done = run_here("steering", "--data", str(broker.data_folder))
    assert done.returncode == 0, done.stderr
    assert f"ONE: shared on {broker.shared_bootstrap}" in done.stdout
    assert "placed by load, loaded by libbpf" in done.stdout
    assert "PLAINTEXT: per-core-port on " in done.stdout
    done = run_here("steering", "--data", str(broker.data_folder), "--json")
    assert len(json.loads(done.stdout)["partitions"]) == CORES


def test_a_port_that_another_broker_shares_is_refused(broker, tmp_path):
    """SO_REUSEPORT alone would let it in, and clients would reach one or the other."""
    done = run_command(
        "serve", "--data", str(tmp_path / "data"), "--listen", broker.shared_bootstrap, "--cores", "1",
        "--override", "listener.PLAINTEXT.mode=shared", "--override", "ebpf.loader=libbpf",
    )  # fmt: skip
    assert done.returncode == 2
    assert f"port {broker.shared[1]} on 127.0.0.1 is in use" in done.stderr


def counted(broker, section: str, name: str) -> int:
    """Over all cores."""
    return sum(counters[section][name] for counters in broker.counters())


def produce_over(bootstrap: str, topic: str, numbers: Iterable[int], **settings) -> None:
    """Each acknowledged, or the test fails."""
    failed = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, **settings})
    for number in numbers:
        producer.produce(
            topic, b"%d" % number, partition=number % PARTITIONS,
            on_delivery=lambda error, _message: failed.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def consume_over(bootstrap: str, topic: str, count: int) -> list[list[int]]:
    """So many records by partition, in their order; and no more than these."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    ends: set[int] = set()
    for _ in patiently(lambda: f"{sum(map(len, found))} of {count} records, {len(ends)} ends"):
        if sum(map(len, found)) >= count and len(ends) == PARTITIONS:
            break
        for message in consumer.consume(500, 0.5):
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ends.add(message.partition())
            else:
                found[message.partition()].append(int(message.value()))
    consumer.close()
    return found


def in_partitions(numbers: Iterable[int]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(PARTITIONS)]
    for number in numbers:
        found[number % PARTITIONS].append(number)
    return found


@pytest.fixture
def empty_topic(broker, topic) -> str:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE_S)
    return topic


def test_librdkafka_writes_and_reads_what_other_cores_own(broker, empty_topic):
    """From C to C: no core is asked for what is another's, which is what Python would see."""
    asked = counted(broker, "broker", "asked_of_wrong_core")
    before = {name: counted(broker, "forwards", name) for name in ("produces", "fetches")}
    numbers = range(20 * PARTITIONS)
    produce_over(broker.shared_bootstrap, empty_topic, numbers, **{"enable.idempotence": True})
    assert consume_over(broker.shared_bootstrap, empty_topic, len(numbers)) == in_partitions(numbers)
    assert counted(broker, "forwards", "produces") > before["produces"]
    assert counted(broker, "forwards", "fetches") > before["fetches"]
    assert counted(broker, "broker", "asked_of_wrong_core") == asked

    def is_told() -> bool:  # a core that does not answer in time is shown without its figures
        return "sent to other cores" in run_here("status", "--data", str(broker.data_folder)).stdout

    eventually(is_told, "people are told of forwards")


@pytest.mark.parametrize("client", CLIENTS)
def test_stock_clients_write_and_read_what_all_cores_own(broker, empty_topic, client):
    """A record for each partition in turn, and a group; most is another core's, whichever takes the connection."""
    before = counted(broker, "forwards", "fetches")
    read, _peers = client(broker, broker.shared_bootstrap, empty_topic)
    assert sorted(read) == sorted(values())
    assert counted(broker, "forwards", "fetches") > before, "one connection reads what all cores own"


def test_a_client_that_follows_metadata_causes_no_forward(broker, empty_topic):
    before = counted(broker, "forwards", "parts")
    numbers = range(10 * PARTITIONS)
    produce_over(broker.bootstrap, empty_topic, numbers)
    assert consume_over(broker.bootstrap, empty_topic, len(numbers)) == in_partitions(numbers)
    assert counted(broker, "forwards", "parts") == before


def test_one_request_for_the_partitions_of_all_cores(broker, filled_topic, clients):
    """A raw client sends what no owner has alone, to each core."""
    for number, client in enumerate(clients):
        topics = [{"Topic": filled_topic, "Partitions": [
            {"Partition": index, "CurrentLeaderEpoch": -1, "FetchOffset": 0, "LastFetchedEpoch": -1,
             "LogStartOffset": -1, "PartitionMaxBytes": 1 << 20} for index in range(PARTITIONS)]}]  # fmt: skip
        asked = {"ReplicaId": -1, "MaxWaitMs": 100, "MinBytes": 1, "MaxBytes": 1 << 20, "IsolationLevel": 1,
                 "SessionId": 0, "SessionEpoch": -1, "Topics": topics, "ForgottenTopicsData": [],
                 "RackId": ""}  # fmt: skip
        (told,) = client.ask("Fetch", 12, asked)["Responses"]
        assert [one["PartitionIndex"] for one in told["Partitions"]] == list(range(PARTITIONS)), number
        assert [one["ErrorCode"] for one in told["Partitions"]] == [0] * PARTITIONS
        assert all(one["HighWatermark"] == RECORDS // PARTITIONS and one["Records"] for one in told["Partitions"])


def test_an_owner_that_dies_loses_nothing_and_doubles_nothing(broker, empty_topic):
    """Its producers and consumers are at other cores, which tell them to try again."""
    halves = range(30 * PARTITIONS), range(30 * PARTITIONS, 60 * PARTITIONS)
    produce_over(broker.shared_bootstrap, empty_topic, halves[0], **{"enable.idempotence": True})
    old = broker.core_process(1)
    old.kill()
    produce_over(broker.shared_bootstrap, empty_topic, halves[1], **{"enable.idempotence": True})
    broker.wait_core_replaced(1, old.pid)
    numbers = [*halves[0], *halves[1]]
    assert consume_over(broker.shared_bootstrap, empty_topic, len(numbers)) == in_partitions(numbers)


def test_forwards_follow_a_partition_that_moves(broker, empty_topic):
    """The move is asked for at the shared port, too, where the node is one broker and cores are named all the same."""

    def tpc(*arguments) -> str:
        code, said = run_tpc(*arguments, "--bootstrap", broker.shared_bootstrap)
        assert code == 0, said
        return said

    def owner() -> int:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        return admin.list_topics(empty_topic, PATIENCE_S).topics[empty_topic].partitions[0].leader - NODE * 1024

    numbers = []
    for round_, core in enumerate((0, 2, 1, 0)):
        told = tpc("partition", "move", f"{empty_topic}-0", "--core", str(core))
        assert told == f"{empty_topic}-0: is on core {core}.\n"
        assert owner() == core
        more = range(round_ * 5 * PARTITIONS, (round_ + 1) * 5 * PARTITIONS)
        before = counted(broker, "forwards", "produces")
        produce_over(broker.shared_bootstrap, empty_topic, more, **{"enable.idempotence": True})
        assert counted(broker, "forwards", "produces") > before
        numbers += more
    assert consume_over(broker.shared_bootstrap, empty_topic, len(numbers)) == in_partitions(numbers)
    assert "nothing to move" in tpc("partition", "balance", "--seconds", "0.2")


def test_a_client_s_quota_is_the_nodes_whichever_cores_its_connections_are_on(broker, topic):
    """A byte a second is as much as 20 kB in 11 windows of half an hour, of all cores together; each connection brings
    10 kB.
    """
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(PATIENCE_S)
    limit = ("--client-id", "held", "producer_byte_rate=1")
    code, said = run_tpc("quota", "set", *limit, "--bootstrap", broker.bootstrap)
    assert code == 0, said
    told = []
    with ExitStack() as clients:
        for number in range(CONNECTIONS // 2):
            client = clients.enter_context(RawConnection(*broker.shared))
            data = {"Index": number % PARTITIONS, "Records": batch([Record(bytes(10_000))])}
            asked = {"Acks": -1, "TimeoutMs": 30_000, "TopicData": [{"Name": topic, "PartitionData": [data]}]}
            client.send("Produce", 9, {"TransactionalId": None, **asked}, "held")
            told.append(decode_response("Produce", 9, client.receive_frame())[1]["ThrottleTimeMs"])
        counted = [core["quotas"]["produce_throttled"] for core in broker.counters()]
    run_tpc("quota", "remove", *limit[:2], "--bootstrap", broker.bootstrap)
    assert told[0] == 0
    assert min(told[3:]) > 0
    assert sum(count > 0 for count in counted) > 1, "their connections are spread"
