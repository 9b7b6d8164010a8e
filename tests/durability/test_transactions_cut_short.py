"""Transactions whose topic, producer or time is gone before their end: nothing hangs, and nothing of them is shown."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.durability.conftest import against_kafka
from tests.support.bank import committed_values
from tests.support.bank_run import ends, settle
from tests.support.broker_process import TpcBroker
from tests.support.cluster_nodes import create_topic
from tests.support.raw_client import RawConnection
from tests.support.raw_transactions import AbortableError, FencedError, RawProducer, Shown, fetch_committed
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.crash, pytest.mark.skipif(against_kafka(), reason="the differential tests ask Kafka")]
COMMITTED, ALL = "read_committed", "read_uncommitted"


@pytest.fixture(scope="module")
def broker(module_tmp_path):
    one = TpcBroker(module_tmp_path / "broker", 2)
    one.start()
    yield one
    one.kill()


def topic(broker: TpcBroker, partitions: int = 2, name: str = "") -> str:
    name = name or uuid.uuid4().hex

    def make() -> bool:
        create_topic(broker.bootstrap, name, partitions)
        return True

    assert eventually(make, "it is made", not_yet=(KafkaException,))
    return name


def delete(broker: TpcBroker, name: str) -> None:
    client = AdminClient({"bootstrap.servers": broker.bootstrap})  # kept until the answer is there
    client.delete_topics([name])[name].result(PATIENCE_S)
    del client


@contextmanager
def producer(broker: TpcBroker, name: str, timeout_ms: int = 60_000) -> Iterator[RawProducer]:
    with closing(RawProducer(broker.bootstrap, name, timeout_ms, PATIENCE_S)) as made:
        made.init()
        yield made


def values(broker: TpcBroker, name: str, index: int = 0) -> list[bytes]:
    """Committed ones, by whichever core leads the partition."""
    for port in broker.ports:
        with RawConnection(broker.host, port) as line:
            shown = fetch_committed(line, name, index, 0, max_bytes=1 << 20)
        if isinstance(shown, Shown):
            return [value for _offset, value in committed_values(shown.records, shown.aborted, shown.aborts)]
    raise AssertionError("nobody leads it")


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_topic_is_deleted_in_the_midst_of_a_transaction(broker, commit, is_made_again):
    """The rest of it ends as its producer says, and the next transaction of the same id goes on."""
    kept, doomed = topic(broker), topic(broker)
    with producer(broker, f"deletes {commit} {is_made_again}") as one:
        one.write(kept, 0, b"kept")
        one.write(doomed, 1, b"doomed")
        delete(broker, doomed)
        if is_made_again:
            topic(broker, name=doomed)
        one.end(commit=commit)
        settle(broker.bootstrap, kept, 2)
        assert values(broker, kept) == [b"kept"] * commit
        one.write(kept, 0, b"next")
        if is_made_again:
            one.write(doomed, 1, b"next")
        one.end(commit=True)
    settle(broker.bootstrap, kept, 2)
    assert values(broker, kept) == [b"kept"] * commit + [b"next"]
    if is_made_again:
        settle(broker.bootstrap, doomed, 2)
        assert values(broker, doomed, 1) == [b"next"]


def test_who_comes_too_late_has_been_aborted_and_its_successor_goes_on(broker):
    name = topic(broker, 1)
    with producer(broker, "late", timeout_ms=1_000) as late:
        late.write(name, 0, b"late")
        assert ends(broker.bootstrap, COMMITTED, name, 1) == {0: 0}
        eventually(lambda: ends(broker.bootstrap, COMMITTED, name, 1)[0] > 0, "its time is over")
        with pytest.raises(AbortableError, match="INVALID_PRODUCER_EPOCH"):
            late.write(name, 0, b"too late")
        with pytest.raises(FencedError):
            late.end(commit=True)
    with producer(broker, "late") as successor:
        successor.write(name, 0, b"in time")
        successor.end(commit=True)
    settle(broker.bootstrap, name, 1)
    assert values(broker, name) == [b"in time"]


@pytest.mark.parametrize("restart", ["kill", "stop", "one core", "a core is killed"])
def test_the_time_of_a_transaction_goes_on_over_a_restart(broker, restart):
    """Nobody ends it but the broker."""
    name = topic(broker, 1)
    with producer(broker, f"gone {restart}", timeout_ms=3_000) as gone:
        gone.write(name, 0, b"gone")
    if restart == "a core is killed":
        victim = broker.core_process(1)
        victim.kill()
        broker.wait_core_replaced(1, victim.pid)
    else:
        broker.stop() if restart == "stop" else broker.kill()
        broker.cores_count = 1 if restart == "one core" else 2
        broker.start()
    settle(broker.bootstrap, name, 1)
    assert values(broker, name) == []
    assert ends(broker.bootstrap, ALL, name, 1) == {0: 2}
    broker.stop()
    broker.cores_count = 2
    broker.start()
