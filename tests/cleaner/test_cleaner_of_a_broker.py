"""A broker compacts with its cleaners: what is killed meanwhile costs nothing, and people see what was done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.support.broker_process import TpcBroker
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.cli.cleanings import cleanings_of

pytestmark = pytest.mark.crash
TOPIC, KEYS = "kept", 50
SLOW, FAST = "200000", "1e300"
CONFIG = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.1"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcBroker]:
    overrides = {"log.cleaner.backoff.ms": "200", "log.cleaner.io.max.bytes.per.second": SLOW}
    broker = TpcBroker(tmp_path, cores_count=1, overrides=overrides)
    broker.start()
    yield broker
    broker.kill()


def create(broker: TpcBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})  # its requests end with it
    admin.create_topics([NewTopic(TOPIC, 1, config=CONFIG)])[TOPIC].result(PATIENCE_S)


def write(broker: TpcBroker, seed: int, count: int = 12_000) -> dict[bytes, bytes]:
    """The newest value of each key."""
    chance, newest = Random(seed), {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": "lz4", "linger.ms": 5})
    for _ in range(count):
        key = b"key %d" % chance.randrange(KEYS)
        newest[key] = chance.randbytes(300)
        producer.produce(TOPIC, newest[key], key, partition=0)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    return newest


def read(broker: TpcBroker) -> tuple[dict[bytes, bytes], int]:
    """The same, and how many records there are."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    _low, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), PATIENCE_S)
    newest, count = {}, 0
    while consumer.position([TopicPartition(TOPIC, 0)])[0].offset < high:
        for message in consumer.consume(1000, PATIENCE_S):
            assert message.error() is None
            newest[message.key()] = message.value()
            count += 1
    consumer.close()
    return newest, count


def set_rate(broker: TpcBroker, rate: str) -> None:
    entry = ConfigEntry(
        "log.cleaner.io.max.bytes.per.second", rate, incremental_operation=AlterConfigOpType.SET
    )  # fmt: skip
    resource = ConfigResource(ConfigResource.Type.BROKER, "0", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(PATIENCE_S)


def job_under_way(broker: TpcBroker) -> psutil.Process:
    """The process that carries it out."""
    eventually(lambda: broker.counters()[0]["cleanings_under_way"], "a cleaning")
    return eventually(lambda: [one for one in broker.cleaner_processes() if one.nice() == 19], "its process")[0]


def test_cleaners_and_cores_are_killed_and_the_log_is_compacted(broker: TpcBroker) -> None:
    assert broker.cleaner_processes() == []
    create(broker)
    newest = write(broker, 1)
    job_under_way(broker).kill()
    eventually(lambda: broker.counters()[0]["cleaning"]["cleaner_away"], "that its job came to nothing")
    job = job_under_way(broker)
    broker.kill_core(0)
    eventually(lambda: not job.is_running(), "the end of the job of a core that is gone")
    job_under_way(broker)
    set_rate(broker, FAST)
    eventually(lambda: broker.counters()[0]["cleaning"]["cleanings"], "a cleaning that came to its end")
    eventually(lambda: broker.counters()[0]["cleaning"]["dirty_bytes_now"] == 0, "that nothing is dirty")
    (told,) = cleanings_of(broker.bootstrap, TOPIC, {0: 0}).values()
    assert told["bytes_saved"] > 1 << 20
    assert told["dirty_ratio"] == 0.0
    assert told["uncleanable"] is None
    found, count = read(broker)
    assert found == newest
    assert count < 12_000 / 2
    assert f"cleaned {TOPIC}-0: read " in broker.log_text()
    broker.stop()


def test_cleaners_end_with_their_supervisor_and_before_a_drain(broker: TpcBroker) -> None:
    create(broker)
    write(broker, 2)
    job_under_way(broker)
    cleaners = broker.cleaner_processes()
    psutil.Process(broker.process.pid).kill()
    eventually(lambda: not any(one.is_running() for one in cleaners), "the end of cleaners without a supervisor")
    broker.kill()
    broker.start()
    job_under_way(broker)
    broker.stop()
    assert "did not drain in time" not in broker.log_text()
