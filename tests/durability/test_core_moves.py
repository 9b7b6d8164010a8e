"""Partitions are moved between cores of a running broker, under load and under kill -9: nothing is lost, nothing comes
twice, the order is kept, and clients follow by themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.durability.conftest import against_kafka
from tests.support.broker_process import TpcBroker
from tests.support.ports import free_port_range
from tests.support.replicated_load import Bumps, differences
from tests.support.waiting import PATIENCE_S, eventually, patiently
from tpc_broker.cli.partitions import alter, ongoing
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import UnreachableError
from tpc_broker.model import BrokerId, coordinator_partition

pytestmark = [pytest.mark.crash, pytest.mark.skipif(against_kafka(), reason="moves of ours")]
CORES, PARTITIONS = 3, 2
GROUP = "followers"


@pytest.fixture
def broker(tmp_path):
    one = TpcBroker(tmp_path / "broker", cores_count=CORES)
    one.start()
    admin = AdminClient({"bootstrap.servers": one.bootstrap})
    admin.create_topics([NewTopic("moved", PARTITIONS, 1)])["moved"].result(PATIENCE_S)
    yield one
    one.kill()


def tpc(broker, *arguments):
    command = [sys.executable, "-m", "tpc_broker.cli.main", *arguments, "--bootstrap", broker.bootstrap]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * 2, check=True)


def move(broker, topic, partition, core):
    """As the command does, without waiting for the end, in this process."""
    with Cluster(ClusterSettings(broker.bootstrap, retry_seconds=PATIENCE_S)) as client:
        alter(client, {(topic, partition): BrokerId(core)})


def wait_moved(broker):
    """A core that has just been started again closes the connections that waited for the one before."""
    with Cluster(ClusterSettings(broker.bootstrap, retry_seconds=PATIENCE_S)) as client:
        eventually(lambda: not ongoing(client), "no move is left", not_yet=(UnreachableError,))


class Load:
    """An idempotent producer that numbers what it sends to each partition, and counts what was acknowledged."""

    def __init__(self, broker):
        self.bumps = Bumps()
        self._producer = Producer({
            "bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 1,
            "delivery.timeout.ms": PATIENCE_S * 1000, "message.timeout.ms": PATIENCE_S * 1000,
            "log_level": 7, "debug": "eos", "logger": self.bumps,
        })  # fmt: skip
        self.sent = [0] * PARTITIONS
        self.errors = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _told(self, error, _message):
        if error is not None:
            self.errors.append(error)

    def _run(self):
        while not self._stop.is_set():
            for partition in range(PARTITIONS):
                number = self.sent[partition]
                self._producer.produce("moved", b"%d" % number, partition=partition, on_delivery=self._told)
                self.sent[partition] += 1
            self._producer.poll(0)
            time.sleep(0.004)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        self.left = self._producer.flush(PATIENCE_S)


def read_all(broker, sent, consumer=None, found=None):
    """Until all that was sent is there, and a little longer: nothing may come twice."""
    found = found or [[] for _ in sent]
    if consumer is None:
        consumer = Consumer({
            "bootstrap.servers": broker.bootstrap, "group.id": "readers", "enable.auto.commit": False,
            "auto.offset.reset": "error",
        })  # fmt: skip
        consumer.assign([TopicPartition("moved", partition, 0) for partition in range(PARTITIONS)])
    give_up_at, quiet = time.monotonic() + PATIENCE_S, 0
    while quiet < 3 and time.monotonic() < give_up_at:
        messages = consumer.consume(5000, 0.3)
        for message in messages:
            if message.error() is None:
                found[message.partition()].append(int(message.value()))
            else:
                print(f"reading: {message.error()}")
        is_whole = all(len(each) >= count for each, count in zip(found, sent, strict=True))
        quiet = quiet + 1 if is_whole and not messages else 0
    consumer.close()
    return found


def check_all(broker, load, found):
    """A failure tells what is wrong where, and whether it is the broker that has it so, or one reading; and whether the
    producer began another epoch. What is there twice then was sent as new records; that it had to begin one is wrong.
    """
    sent, bumps = load.sent, load.bumps.found

    def wrong_in(read):
        return [differences(numbers, range(count)) for numbers, count in zip(read, sent, strict=True)]

    wrong = wrong_in(found)
    if any(wrong) or bumps:
        again = wrong_in(read_all(broker, sent))
        pytest.fail(
            f"sent {sent}; read {wrong}; read again {again}; {len(bumps)} bumps of the producer's epoch {bumps[:5]}; "
            f"the log ends in {broker.log_text()[-6000:]}"
        )


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ([0, 2, 3], "missing 1: 1;"),
        ([0, 1, 2], "missing 1: 3;"),
        ([0, 1, 1, 2, 3], "there before: 1: (2, 1);"),
        ([0, 2, 1, 3], "where they fall: 1: (2, 2, 1);"),
    ],
    ids=["missing", "missing at the end", "twice", "in another order"],
)
def test_what_is_missing_twice_or_in_another_order_is_told(numbers, told):
    assert told in differences(numbers, range(4))
    assert not differences([0, 1, 2, 3], range(4))


@pytest.mark.parametrize(
    ("numbers", "bumps", "is_right"),
    [([0, 1], 0, True), ([0, 1], 1, False), ([0, 1, 1], 0, False), ([0, 1, 1], 2, False)],
)
def test_a_failure_tells_how_often_the_producer_began_another_epoch(monkeypatch, numbers, bumps, is_right):
    load = SimpleNamespace(sent=[2], bumps=Bumps())
    for text in ["Starting idempotent producer", *["Beginning partition drain for epoch bump"] * bumps]:
        load.bumps.debug(text)
    monkeypatch.setattr(sys.modules[__name__], "read_all", lambda _broker, _sent: [numbers])
    broker = SimpleNamespace(log_text=lambda: "what it logged")
    with nullcontext() if is_right else pytest.raises(pytest.fail.Exception, match=f"{bumps} bumps of the producer's"):
        check_all(broker, load, [numbers])


def test_clients_follow_partitions_that_move(broker):
    """Those of the group's coordinator too; its offsets go with it."""
    consumer = Consumer({
        "bootstrap.servers": broker.bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    })  # fmt: skip
    consumer.subscribe(["moved"])
    found, offsets = [[] for _ in range(PARTITIONS)], {}

    def read(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for message in consumer.consume(2000, 0.1):
                if message.error() is None:
                    found[message.partition()].append(int(message.value()))
                    offsets[message.partition()] = message.offset() + 1

    def commit():
        places = [TopicPartition("moved", partition, offset) for partition, offset in offsets.items()]
        consumer.commit(offsets=places, asynchronous=False)

    with Load(broker) as load:
        for _ in patiently("records of each partition"):
            if len(offsets) >= PARTITIONS:
                break
            read(0.2)
        offsets_topic = consumer.list_topics("__consumer_offsets", PATIENCE_S).topics["__consumer_offsets"]
        coordinator = coordinator_partition(GROUP, len(offsets_topic.partitions))
        stdout = tpc(broker, "partition", "move", "moved-0", "moved-1", "--core", "2").stdout
        assert stdout == "moved-0: is on core 2.\nmoved-1: is on core 2.\n"
        for core in (1, 0):
            for partition in range(PARTITIONS):
                move(broker, "moved", partition, core)
                read(0.1)
            move(broker, "__consumer_offsets", coordinator, core)
            wait_moved(broker)
            read(0.1)
            commit()
    assert (load.errors, load.left) == ([], 0)
    committed = consumer.committed([TopicPartition("moved", partition) for partition in range(PARTITIONS)], PATIENCE_S)
    assert all(one.offset > 0 for one in committed)
    check_all(broker, load, read_all(broker, load.sent, consumer, found))
    broker.restart()
    check_all(broker, load, read_all(broker, load.sent))
    assert "is offline" not in broker.log_text()


def test_kill_9_in_the_midst_of_moves(broker, chance):
    """Of the whole broker, and of each of the cores that have a part in it; moves that were begun are finished."""
    with Load(broker) as load:
        for victim in ("broker", 0, 1, 2):
            wait_moved(broker)
            for partition in range(PARTITIONS):
                move(broker, "moved", partition, chance.randrange(CORES))
            time.sleep(chance.random() * 0.03)
            if victim == "broker":
                broker.kill()
                broker.start()
            else:
                process = broker.core_process(victim)
                process.kill()
                broker.wait_core_replaced(victim, process.pid)
        wait_moved(broker)
    assert (load.errors, load.left) == ([], 0)
    broker.kill()
    broker.start()
    check_all(broker, load, read_all(broker, load.sent))
    assert "is offline" not in broker.log_text()


def test_busy_partitions_of_one_core_are_parted(broker):
    """Both on core 0, both written to: one of them goes."""
    for partition in range(PARTITIONS):
        move(broker, "moved", partition, 0)
    wait_moved(broker)
    with Load(broker) as load:
        plan = json.loads(tpc(broker, "partition", "balance", "--seconds", "1", "--dry-run", "--json").stdout)
        assert plan["moved"] is False
        (one,) = plan["moves"]
        assert one["from"] == 0
        assert one["cpu"] > 0
        assert "Moved 1 partitions." in tpc(broker, "partition", "balance", "--seconds", "1").stdout
    assert (load.errors, load.left) == ([], 0)
    with Cluster(ClusterSettings(broker.bootstrap, retry_seconds=PATIENCE_S)) as client:
        leaders = client.topic("moved").leaders
    assert sorted(broker == 0 for broker in leaders.values()) == [False, True]


def appended_from_datagrams(broker):
    return [counters["datagrams"]["appended"] for counters in broker.counters()]


def test_datagrams_follow_a_partition(tmp_path):
    """With the kernel's program, and without it, where they go to the owner over a link."""
    broker = TpcBroker(tmp_path / "broker", cores_count=2)
    port = free_port_range(1)
    broker.more_options = ["--datagram", f"127.0.0.1:{port}"]
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("moved", 1, 1)])["moved"].result(PATIENCE_S)
        for core in (1, 0):
            tpc(broker, "partition", "move", "moved-0", "--core", str(core))
            before = appended_from_datagrams(broker)
            send = ["send", "moved", "--to", f"127.0.0.1:{port}", "--partition", "0"]
            subprocess.run(
                [sys.executable, "-m", "tpc_broker.cli.main", *send], input="a record\n" * 5, text=True, check=True,
                timeout=PATIENCE_S,
            )  # fmt: skip
            after = appended_from_datagrams(broker)
            assert after[core] >= before[core] + 5
            assert after[1 - core] == before[1 - core]
    finally:
        broker.kill()
