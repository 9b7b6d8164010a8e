"""The newest value of each key, written all the while by one thread and read by others, whatever becomes of the broker.

Each record has a number, of which its value is made, so a reader knows it for whole. One idempotent producer writes, so
the records of a key are in the log in the order of their numbers, each once.
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker
from tests.support.waiting import LOOK_S, PATIENCE_S, eventually, let_pass, patiently
from tpc_broker.log.files import parse_cleaned_file_name

SETTINGS: Final = {"log.cleaner.backoff.ms": "100", "journal.bytes.max": str(8 << 20)}
COMPACTED: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(1 << 20),
    "segment.ms": "300",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}
"""Segments are small and many, so that something is put in its place nearly all the time. A reader that is slower than
`delete.retention.ms` may keep what was deleted."""
RETRIED: Final = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_TIMED_OUT")
"""Of a consumer whose broker is away: it goes on by itself."""


def value_of(number: int) -> bytes:
    """300 to 1,300 bytes that no codec makes smaller."""
    return b"%d|" % number + hashlib.shake_128(b"%d" % number).digest(300 + number * 37 % 1000)


def number_of(value: bytes) -> int:
    """AssertionError: it is not whole."""
    number = int(value[: value.index(b"|")])
    assert value == value_of(number), f"the value of record {number} is damaged"
    return number


class NewestValues:
    """What a topic has to hold. Used by several threads."""

    def __init__(self, topic: str, partitions_count: int, keys_count: int, seed: int, deletions: float = 0.05) -> None:
        self.topic, self.partitions_count = topic, partitions_count
        self._keys_count, self._deletions, self._random = keys_count, deletions, random.Random(seed)
        self._lock = threading.Lock()
        self._sent: dict[bytes, list[int]] = defaultdict(list)
        self._deleting: set[int] = set()
        self._acknowledged: dict[bytes, int] = {}
        self.sent_count = self.acknowledged_count = 0

    def create(self, bootstrap: str, config: dict[str, str]) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        new = NewTopic(self.topic, self.partitions_count, 1, config=config)
        admin.create_topics([new])[self.topic].result(PATIENCE_S)

    def produce(self, producer: Producer) -> None:
        """The next record."""
        few = self._keys_count // 10 if self._random.random() < 0.9 else self._keys_count
        key = b"key-%d" % self._random.randrange(few)
        with self._lock:
            number, self.sent_count = self.sent_count, self.sent_count + 1
            self._sent[key].append(number)
            if self._random.random() < self._deletions:
                self._deleting.add(number)
        value = None if number in self._deleting else value_of(number)
        partition = int(key[4:]) % self.partitions_count
        while True:
            try:
                producer.produce(
                    self.topic, value, key, partition,
                    on_delivery=lambda error, _message: self._delivered(key, number, error),
                )  # fmt: skip
            except BufferError:
                producer.poll(0.1)
            else:
                return

    def _delivered(self, key: bytes, number: int, error: KafkaError | None) -> None:
        assert error is None, error
        with self._lock:
            self._acknowledged[key] = max(number, self._acknowledged.get(key, -1))
            self.acknowledged_count += 1

    def acknowledged(self) -> dict[bytes, int]:
        """The last record of each key of which the broker has said that it is there."""
        with self._lock:
            return self._acknowledged.copy()

    def problems(self, found: dict[bytes, int | None], acknowledged: dict[bytes, int]) -> list[str]:
        """Of what a reader has found of each key (None: it was deleted) that began behind those acknowledgements and
        has read to the end of the log. One that stops before it may miss what was replaced meanwhile: `unchanged`.
        """
        told = []
        with self._lock:
            for key, number in found.items():
                if number is not None and number not in self._sent[key]:
                    told.append(f"{key!r} is record {number}, which is not of this key")
            for key, last in acknowledged.items():
                number = found.get(key)
                may_be_gone = any(one in self._deleting for one in self._sent[key] if one >= last)
                if (not may_be_gone) if number is None else number < last:
                    told.append(f"{key!r} is record {number}, and record {last} was acknowledged")
        return told

    def unchanged(self, acknowledged: dict[bytes, int]) -> dict[bytes, int]:
        """What is the newest of its key to this moment, sent or acknowledged."""
        with self._lock:
            return {key: last for key, last in acknowledged.items() if self._sent[key][-1] == last}


def check(bootstrap: str, values: NewestValues, acknowledged: dict[bytes, int] | None = None) -> None:
    """Who reads from the beginning on finds what was acknowledged up to now (or up to some moment before). Offsets
    rise, and so do the records of a key. AssertionError: one of that is not so.
    """
    acknowledged = values.acknowledged() if acknowledged is None else acknowledged
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "check.crcs": True,
        "enable.partition.eof": True, "auto.offset.reset": "error", "log_level": 0, "reconnect.backoff.max.ms": 200,
    })  # fmt: skip
    found: dict[bytes, int | None] = {}
    last_number: dict[bytes, int] = {}
    last_offset, problems = [-1] * values.partitions_count, list[str]()
    behind, at_end = set[int](), set[int]()
    try:
        places = [TopicPartition(values.topic, index, 0) for index in range(values.partitions_count)]
        ends = [_end_offset(consumer, place) for place in places]
        consumer.assign(places)
        for _ in patiently(lambda: f"only {behind} are read, to {last_offset} of {ends}", 3 * PATIENCE_S):
            for message in consumer.consume(1000, 1.0):
                index, error = message.partition(), message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    behind.add(index)
                    at_end.add(index)
                elif error is not None:
                    assert error.name() in RETRIED, error
                else:
                    assert message.offset() > last_offset[index], f"{index}: {message.offset()}, {last_offset[index]}"
                    key, value = message.key(), message.value()
                    number = None if value is None else number_of(value)
                    if number is not None:
                        assert number > last_number.get(key, -1), f"{key!r}: {number} behind {last_number[key]}"
                        last_number[key] = number
                    found[key], last_offset[index] = number, message.offset()
                    at_end.discard(index)
                    if message.offset() >= ends[index] - 1:
                        behind.add(index)
            if len(behind) == values.partitions_count:
                problems = values.problems(found, acknowledged)
                if not problems or len(at_end) == values.partitions_count:
                    break
    finally:
        consumer.close()
    assert not problems, "\n".join(problems[:20])


def _end_offset(consumer: Consumer, place: TopicPartition) -> int:
    for _ in patiently(f"the end of {place}"):
        try:
            return consumer.get_watermark_offsets(place, LOOK_S)[1]
        except KafkaException as failure:
            if failure.args[0].name() not in RETRIED:
                raise
    raise AssertionError  # patiently has raised


def cleaned_names(broker: TpcBroker, values: NewestValues) -> set[str]:
    """Of files that cleaners have written, and that are not in their places."""
    topics = broker.data_folder / "topics"
    folders = [topics / f"{values.topic}-{index}" for index in range(values.partitions_count)]
    paths = [path for folder in folders for path in folder.iterdir()]
    return {f"{path.parent.name}/{path.name}" for path in paths if parse_cleaned_file_name(path.name)}


def wait_cleaning(broker: TpcBroker, values: NewestValues) -> None:
    """Until a cleaner writes, or has just written."""
    before = cleaned_names(broker, values)
    eventually(lambda: cleaned_names(broker, values) - before, "a cleaning", pause_s=0.0005)


def cleanings(broker: TpcBroker) -> int:
    """That came to their ends, since the broker was started."""
    return sum(core["cleaning"]["cleanings"] for core in broker.counters())


class _Worker:
    """A thread until `finish`, which raises what it has raised."""

    def __init__(self) -> None:
        self.ends = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            for _ in self.turns():
                if self.ends.is_set():
                    return
        except BaseException as failure:
            self._failure = failure

    def turns(self) -> Iterator[None]:
        raise NotImplementedError

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        self.ends.set()
        self._thread.join(4 * PATIENCE_S)
        assert not self._thread.is_alive()
        self.check()


class Writing(_Worker):
    """Some hundred records a second."""

    def __init__(self, bootstrap: str, values: NewestValues, codec: str = "lz4") -> None:
        self._producer = Producer({
            "bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "enable.idempotence": True,
            "compression.type": codec, "message.timeout.ms": 600_000, "retry.backoff.ms": 50,
            "reconnect.backoff.max.ms": 200, "queue.buffering.max.messages": 5_000, "log_level": 0,
        })  # fmt: skip
        self._values = values
        super().__init__()

    def write(self, count: int) -> None:
        for _ in range(count):
            self._values.produce(self._producer)
            self._producer.poll(0)

    def turns(self) -> Iterator[None]:
        while True:
            self.write(10)
            let_pass(0.01)
            yield

    def finish(self) -> None:
        """All is acknowledged then."""
        super().finish()
        assert self._producer.flush(PATIENCE_S) == 0


class Reading(_Worker):
    """From the beginning to the end, and again."""

    def __init__(self, bootstrap: str, values: NewestValues) -> None:
        self._bootstrap, self._values, self.passes = bootstrap, values, 0
        super().__init__()

    def turns(self) -> Iterator[None]:
        while True:
            check(self._bootstrap, self._values)
            self.passes += 1
            yield
