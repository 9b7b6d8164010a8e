"""A broker with a port for datagrams: each goes to its partition's core, and all acknowledged ones are there.

With the kernel's program, and where there is none: then the cores send them on.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker, run_command, run_here, serve_refusing
from tests.support.ports import free_port_range
from tests.support.steering_loader import skip_without
from tests.support.waiting import PATIENCE_S, eventually, patiently
from tpc_broker.ebpf.steering import Select
from tpc_broker.native_bytes import crc32c

CORES, PARTITIONS = 3, 13
DATAGRAMS = 1009
WINDOW = 64
RESEND_S = 0.3
"""A datagram may be lost: after so long without an answer it is sent again."""
HEADER = struct.Struct(">BBHIII")
UNKNOWN_TOPIC, NOT_LEADER = 3, 6


class DatagramBroker(TpcBroker):
    def __init__(self, folder, loader: str) -> None:
        super().__init__(folder, cores_count=CORES, overrides={"ebpf.loader": loader, "num.partitions": "13"})
        self.datagrams = "127.0.0.1", free_port_range(1)
        self.more_options = ["--datagram", f"127.0.0.1:{self.datagrams[1]}"]

    def counts(self, name: str) -> list[int]:
        return [core["datagrams"][name] for core in self.counters()]

    def owners(self, topic: str) -> list[int]:
        """The core of each partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        found = admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        return [found[index].leader % 1024 for index in range(len(found))]


@pytest.fixture(scope="module", params=["libbpf", "off"])
def broker(request, module_tmp_path) -> Iterator[DatagramBroker]:
    if request.param != "off":
        skip_without(request.param, Select.OWNER)
    broker = DatagramBroker(module_tmp_path / request.param, request.param)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def topic(broker, request) -> str:
    name = request.node.name.replace("[", "-").replace("]", "")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(PATIENCE_S)
    return name


class Sender:
    """Sends until acknowledged, with some under way. Each has one request id; what was sent again is counted."""

    def __init__(self, broker: DatagramBroker) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(broker.datagrams)
        self.socket.settimeout(RESEND_S)
        self.sent_again: set[int] = set()
        self.refusals: list[int] = []

    def send(self, topic: str, partition: int, value: bytes, request_id: int) -> None:
        head = HEADER.pack(1, 1, 0, crc32c(topic.encode()), partition, request_id)
        try:
            self.socket.send(head + value)
        except ConnectionRefusedError:
            return

    def deliver(self, topic: str, records: dict[int, tuple[int, bytes]]) -> None:
        """{request id: (partition, value)}, all of them, or an assertion."""
        left, under_way = dict(records), {}
        for _ in patiently(lambda: f"{len(left)} left, {len(under_way)} under way, {self.refusals[-5:]}"):
            if not left and not under_way:
                break
            while left and len(under_way) < WINDOW:
                request_id, record = left.popitem()
                under_way[request_id] = record
                self.send(topic, *record, request_id)
            try:
                data = self.socket.recv(100)
            except (TimeoutError, ConnectionRefusedError):
                for request_id, record in under_way.items():
                    self.sent_again.add(request_id)
                    self.send(topic, *record, request_id)
                continue
            _version, flags, code, _topic, _partition, request_id = HEADER.unpack(data)
            assert flags == 128
            if code == 0:
                under_way.pop(request_id, None)
            elif request_id in under_way:
                self.refusals.append(code)
                self.sent_again.add(request_id)
                self.send(topic, *under_way[request_id], request_id)


@pytest.fixture
def sender(broker) -> Iterator[Sender]:
    made = Sender(broker)
    yield made
    made.socket.close()


def values_of(broker: DatagramBroker, topic: str) -> dict[int, list[bytes]]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    try:
        places = [TopicPartition(topic, index, 0) for index in range(PARTITIONS)]
        ends = {
            place.partition: consumer.get_watermark_offsets(place, timeout=PATIENCE_S, cached=False)[1]
            for place in places
        }
        consumer.assign(places)
        found: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
        for _ in patiently("all values"):
            if all(len(found[index]) >= ends[index] for index in found):
                break
            for message in consumer.consume(1000, timeout=1):
                assert message.error() is None
                found[message.partition()].append(message.value())
        return found
    finally:
        consumer.close()


def send_all(broker: DatagramBroker, topic: str, sender: Sender) -> dict[int, tuple[int, bytes]]:
    records = {number: (number % PARTITIONS, b"value %d" % number) for number in range(DATAGRAMS)}
    sender.deliver(topic, records)
    return records


def wait_owned(broker: DatagramBroker, topic: str) -> None:
    """Until the kernel's map has the topic. Without a program there is none."""
    wanted = [broker.owners(topic).count(core) for core in range(CORES)]

    def is_told() -> bool:
        found = steered(broker)
        return found is None or all(has >= wants for has, wants in zip(found["owned"], wanted, strict=True))

    eventually(is_told, f"the map has {wanted}")


def steered(broker: DatagramBroker) -> dict | None:
    done = run_here("steering", "--data", str(broker.data_folder), "--json")
    (port,) = [one for one in json.loads(done.stdout)["listeners"] if one["name"] == "datagrams"]
    return port["steering"]


def test_each_core_gets_its_own_and_every_acknowledged_one_is_there(broker, topic, sender):
    wait_owned(broker, topic)
    owners = broker.owners(topic)
    appended, forwarded = broker.counts("appended"), broker.counts("forwarded")
    records = send_all(broker, topic, sender)
    found: dict[int, list[bytes]] = {}

    def are_counted() -> bool:
        """What was sent again is written once more, which may be after its first answer."""
        found.update(values_of(broker, topic))
        added = [now - then for now, then in zip(broker.counts("appended"), appended, strict=True)]
        return added == [sum(len(found[i]) for i in found if owners[i] == core) for core in range(CORES)]

    eventually(are_counted, "each core has written its own, and nothing else")
    for index in range(PARTITIONS):
        wanted = sorted(value for partition, value in records.values() if partition == index)
        again = {value for request_id, (_, value) in records.items() if request_id in sender.sent_again}
        assert sorted(set(found[index])) == wanted
        assert sorted(value for value in found[index] if value not in again) == [v for v in wanted if v not in again]
    came = [now - then for now, then in zip(broker.counts("forwarded"), forwarded, strict=True)]
    if steered(broker) is None:
        assert sum(came) > 0, "one sender's datagrams all come to one core"
    else:
        assert sum(came) == 0


def test_a_core_that_is_killed_takes_them_again_when_it_is_back(broker, topic, sender):
    first = {number: (number % PARTITIONS, b"before %d" % number) for number in range(60)}
    sender.deliver(topic, first)
    victim = broker.core_process(1)
    victim.kill()
    second = {100 + number: (number % PARTITIONS, b"after %d" % number) for number in range(60)}
    sender.deliver(topic, second)
    broker.wait_core_replaced(1, victim.pid)
    found = values_of(broker, topic)
    wanted = {value for _, value in (*first.values(), *second.values())}
    assert {value for values in found.values() for value in values} == wanted


def test_a_topic_that_is_gone_is_unknown(broker, topic, sender):
    sender.deliver(topic, {1: (0, b"v")})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    code = 0
    for _ in patiently("it is unknown"):
        if code == UNKNOWN_TOPIC:
            break
        sender.send(topic, 0, b"v", 2)
        try:
            code = HEADER.unpack(sender.socket.recv(100))[2]
        except (TimeoutError, ConnectionRefusedError):
            continue
        assert code in (0, UNKNOWN_TOPIC, NOT_LEADER)


def test_status_tells_what_came(broker, topic, sender):
    sender.deliver(topic, {1: (0, b"v")})

    def is_told() -> bool:  # a core that does not answer in time is shown without its figures
        text = run_here("status", "--data", str(broker.data_folder)).stdout
        return "datagrams" in text and " acknowledged; " in text

    eventually(is_told, "people are told of datagrams")


def test_a_port_that_is_taken_is_named(broker, tmp_path):
    done = run_command(
        "serve", "--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{free_port_range(1)}", "--cores", "1",
        *broker.more_options,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"--datagram 127.0.0.1:{broker.datagrams[1]}: the UDP port is in use" in done.stderr


@pytest.mark.parametrize("given", ["nonsense", "localhost:9", "127.0.0.1:0", "127.0.0.1:70000", ":x"])
def test_what_cannot_be_a_port_is_refused(tmp_path, given):
    done = serve_refusing("--data", str(tmp_path), "--datagram", given)
    assert done.returncode == 2
    assert done.stderr.startswith(f"tpc-broker: --datagram {given}: expected ADDRESS:PORT")
