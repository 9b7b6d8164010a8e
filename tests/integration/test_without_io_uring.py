"""The main job of a broker, with a stock client, where a filter of system calls refuses io_uring.

So it is in a container of Docker's or Podman's own profile, and with less where a sandbox knows few calls.
"""

from __future__ import annotations

import errno
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from tests.support import cluster_nodes, seccomp
from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import cluster, consume, create_topic
from tests.support.seccomp import IO_URING, refusing, under
from tests.support.waiting import PATIENCE_S, patiently
from tpc_broker.runtime.status import read_status

COUNT = 500
TOPIC = "without-io-uring"
KNOWN_SINCE_LONG = ("epoll_pwait2", "preadv2", "pwritev2", "cachestat")
"""What a sandbox may lack besides; each has an older call in its place."""


def under_filter(error: int, names: tuple[str, ...], folder: Path) -> list[str]:
    try:
        seccomp.libseccomp()
    except OSError as reason:
        pytest.skip(f"no libseccomp: {reason}")
    return under(refusing(error, *names), folder)


@pytest.fixture(params=[(errno.EPERM, IO_URING), (errno.ENOSYS, (*IO_URING, *KNOWN_SINCE_LONG))], ids=["filter", "old"])
def broker(request, tmp_path: Path):
    made = TpcBroker(tmp_path, cores_count=2, overrides={"num.partitions": "4"})
    made.prefix = under_filter(*request.param, tmp_path)
    made.start()
    yield made
    made.kill()


def produce(broker: TpcBroker, numbers: range) -> None:
    """Returns when all are acknowledged."""
    failures = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 2})
    for number in numbers:
        producer.produce(
            TOPIC, str(number).encode(), key=str(number).encode(),
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert failures == []


def take_from_group(broker: TpcBroker, count: int) -> list[int]:
    """As a member of the group, from where it stands; what was taken is committed."""
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "readers", "enable.auto.commit": False}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    taken: list[int] = []
    try:
        consumer.subscribe([TOPIC])
        for _ in patiently(lambda: f"{len(taken)} of {count} records"):
            for message in consumer.consume(count - len(taken), 1.0):
                if message.error():
                    raise KafkaException(message.error())
                taken.append(int(message.value()))
            if len(taken) == count:
                break
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return taken


def test_produce_consume_group_and_restarts_by_kill(broker: TpcBroker) -> None:
    produce(broker, range(COUNT))
    assert sorted(take_from_group(broker, COUNT)) == list(range(COUNT))
    produce(broker, range(COUNT, 2 * COUNT))
    told = read_status(broker.data_folder)["backend"]
    assert (told["name"], "a seccomp filter" in told["reason"]) == ("plain", True)
    maps = [Path(f"/proc/{child.pid}/maps").read_text() for child in broker_processes(broker)]
    assert len(maps) > 1
    assert not any("io_uring" in each for each in maps)
    assert broker.log_text().count("the backend is plain, without io_uring: a seccomp filter") == 1

    broker.kill()
    broker.start()
    assert sorted(take_from_group(broker, COUNT)) == list(range(COUNT, 2 * COUNT)), "the group goes on where it was"
    victim = broker.core_process(0)
    victim.kill()
    broker.wait_core_replaced(0, victim.pid)
    produce(broker, range(2 * COUNT, 3 * COUNT))
    assert sorted(take_from_group(broker, COUNT)) == list(range(2 * COUNT, 3 * COUNT))
    broker.stop()
    assert "Traceback" not in broker.log_text()


@pytest.mark.plain
def test_three_nodes_go_on_without_one_that_is_killed_and_it_comes_back(tmp_path: Path) -> None:
    """Replicated records and a group, by a stock client; then all nodes are killed at once."""
    prefix = under_filter(errno.EPERM, IO_URING, tmp_path)
    with cluster(tmp_path) as three:
        for node in three.nodes:
            node.prefix = prefix
        three.start(1, 2, 3)
        create_topic(three[1].bootstrap, TOPIC, 3, replicas=3)
        written = [f"{number:05}" for number in range(300)]
        cluster_nodes.produce(three[2].bootstrap, TOPIC, written, 3)
        three.kill(3)
        more = [f"{number:05}" for number in range(300, 600)]
        cluster_nodes.produce(three[1].bootstrap, TOPIC, more, 3)
        three.start(3)
        assert consume(three[3].bootstrap, TOPIC, 600) == [*written, *more]
        three.kill_all()
        three.start(1, 2, 3)
        assert consume(three[2].bootstrap, TOPIC, 600, group="others") == [*written, *more]
        assert {read_status(node.data_folder)["backend"]["name"] for node in three.nodes} == {"plain"}


def broker_processes(broker: TpcBroker) -> list[psutil.Process]:
    supervisor = psutil.Process(read_status(broker.data_folder)["pid"])
    return [supervisor, *supervisor.children()]
