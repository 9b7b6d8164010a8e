"""An idempotent producer that goes on while brokers fail, and what must be there afterwards."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterable
from statistics import quantiles
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.cluster_nodes import eventually
from tests.support.waiting import LOOK_S, PATIENCE_S

PACE_S = 0.002
FULL_S = 0.1


class Bumps(logging.Logger):
    """Why a client began another producer epoch. It sends again then, as new records, what was refused with errors that
    may be of records in the log.
    """

    def __init__(self) -> None:
        super().__init__("producer", logging.DEBUG)
        self.found: list[str] = []

    def handle(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "epoch bump" in text or "ERRSEQ" in text:
            self.found.append(text)


class Load:
    """Values 0, 1, 2, … of each partition in order, with acks=all. Nothing may fail: everything is retried.

    `digits`: how many bytes a value has at least; `pace_s`: between two records of a partition.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, digits: int = 1, pace_s: float = PACE_S) -> None:
        self.topic, self.partitions = topic, partitions
        self.acknowledged: list[dict[int, int | None]] = [{} for _ in range(partitions)]
        """Values, and where they are; None: the leader had it already, and did not say where."""
        self.errors: list[str] = []
        self.told: list[KafkaError] = []
        """What the client itself was told, of connections for example."""
        self.bumps = Bumps()
        self.gaps_s = [0.0] * partitions
        """The longest time between two acknowledgements."""
        self._answered_at: list[float | None] = [None] * partitions
        self.sent = [0] * partitions
        self.starts = [0] * partitions
        """Records in front of these offsets were deleted."""
        self._bootstrap = bootstrap
        self._digits = digits
        self._pace_s = pace_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _run(self) -> None:
        producer = Producer({
            "bootstrap.servers": self._bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 2,
            "message.timeout.ms": 120_000, "retry.backoff.ms": 50, "retry.backoff.max.ms": 200,
            "reconnect.backoff.max.ms": 500, "log_level": 7, "debug": "eos", "logger": self.bumps,
            "error_cb": self.told.append,
        })  # fmt: skip
        for number in itertools.count():
            if self._stop.is_set():
                break
            for partition in range(self.partitions):
                self._send(producer, partition, str(number).zfill(self._digits))
            producer.poll(self._pace_s)
        if producer.flush(PATIENCE_S):
            self.errors.append("not everything was acknowledged")

    def _send(self, producer: Producer, partition: int, value: str) -> None:
        while True:
            try:
                producer.produce(self.topic, value, partition=partition, on_delivery=self._delivered)
            except BufferError:  # its queue is full, of what nobody takes just now
                producer.poll(FULL_S)
            else:
                self.sent[partition] += 1
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(f"{message.partition()}: {error}")
            return
        partition, now = message.partition() or 0, time.monotonic()
        self.acknowledged[partition][int(message.value() or b"-1")] = message.offset()
        if (before := self._answered_at[partition]) is not None:
            self.gaps_s[partition] = max(self.gaps_s[partition], now - before)
        self._answered_at[partition] = now

    def wait_progress(self, patience_s: float = PATIENCE_S) -> None:
        """Until of every partition one more record is acknowledged than have been sent so far: one that was sent from
        now on, also right after the start, when nothing has been.
        """
        sent = list(self.sent)
        eventually(
            lambda: self.errors or all(map(int.__lt__, sent, map(len, self.acknowledged))), "it goes on", patience_s
        )
        assert not self.errors, self.errors[:3]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def check(self, bootstrap: str, read: Iterable[int] | None = None) -> None:
        """Everything that was sent was acknowledged, and is there once, in order, where it was: of these partitions, or
        of all.
        """
        assert not self.errors, self.errors[:3]
        assert not self.bumps.found, self.bumps.found[:5]
        assert [len(each) for each in self.acknowledged] == self.sent
        for partition in range(self.partitions) if read is None else read:
            starts = self.starts[partition]
            found = read_all(bootstrap, self.topic, partition, starts)
            reread = [(*one, offset) for one, (offset, _) in itertools.pairwise(found) if offset <= one[0]]
            assert not reread, f"{self.topic}-{partition}: the reader was given offsets again: {_few(reread)}"
            wrong = differences([value for _offset, value in found], range(starts, self.sent[partition]))
            assert not wrong, f"{self.topic}-{partition}: {wrong}"
            known = {
                value: offset
                for value, offset in self.acknowledged[partition].items()
                if offset is not None and value >= starts
            }
            assert {value: offset for offset, value in found if value in known} == known


class TimedLoad(Load):
    """How long acknowledgements take. Records leave one after the other, `every_s` apart, partition by partition."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, digits: int, every_s: float) -> None:
        super().__init__(bootstrap, topic, partitions, digits, pace_s=0)
        self._every_s, self._next_s = every_s, time.monotonic()
        self._sent_at: dict[tuple[int | None, bytes | None], float] = {}
        self._took: list[tuple[float, float]] = []
        """When it was sent, and how long it took."""

    def _send(self, producer: Producer, partition: int, value: str) -> None:
        self._next_s = max(self._next_s + self._every_s, time.monotonic() - self._every_s)
        while (left_s := self._next_s - time.monotonic()) > 0:
            producer.poll(left_s)
        self._sent_at[partition, value.encode()] = time.monotonic()
        super()._send(producer, partition, value)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        super()._delivered(error, message)
        sent_at = self._sent_at.pop((message.partition(), message.value()))
        self._took.append((sent_at, time.monotonic() - sent_at))

    def figures(self, seconds: float) -> str:
        """Of what is sent from now on for so long, once all of it is acknowledged."""
        begun = time.monotonic()
        time.sleep(seconds)
        ended = time.monotonic()
        self.wait_progress()
        took = [found for sent_at, found in self._took if begun <= sent_at < ended]
        cuts = quantiles(took, n=100)
        shown = ", ".join(f"p{share} {cuts[share - 1]:.3f} s" for share in (50, 90, 99))
        return f"{len(took)} records, {shown}, at most {max(took):.3f} s"


def differences(found: list[int], wanted: range) -> str:
    """What is wrong with values that should be these, in order and once each; "": nothing."""
    if found == list(wanted):
        return ""
    known, seen, twice = set(found), set[int](), []
    for place, value in enumerate(found):
        if value in seen:
            twice.append((place, value))
        seen.add(value)
    falls = [(place + 1, *pair) for place, pair in enumerate(itertools.pairwise(found)) if pair[1] < pair[0]]
    missing = [value for value in wanted if value not in known]
    others = sorted(known - set(wanted))
    return (
        f"{len(found)} values, of {wanted}; missing {_few(missing)}; (place, value) of those that were there before: "
        f"{_few(twice)}; (place, value before, value) where they fall: {_few(falls)}; never sent: {_few(others)}"
    )


def _few(values: list[Any]) -> str:
    shown = [*values[:5], "…", *values[-3:]] if len(values) > 8 else values
    return f"{len(values)}: {', '.join(map(str, shown))}" if values else "none"


def read_all(bootstrap: str, topic: str, partition: int, starts: int = 0) -> list[tuple[int, int]]:
    """(offset, value) of every record of a partition that is shown, from an offset on. No group is needed for it."""
    where: Any = TopicPartition(topic, partition, starts)

    def begin() -> tuple[Consumer, int]:
        """A consumer that has once heard of no leader does not soon ask again: each attempt has one of its own."""
        consumer = Consumer({
            "bootstrap.servers": bootstrap, "group.id": "nobody", "enable.auto.commit": False, "log_level": 0,
        })  # fmt: skip
        try:
            return consumer, consumer.get_watermark_offsets(where, timeout=LOOK_S)[1]
        except KafkaException:
            consumer.close()
            raise

    consumer, end = eventually(begin, "its end is told")
    found: list[tuple[int, int]] = []
    give_up_at = time.monotonic() + PATIENCE_S
    try:
        consumer.assign([where])
        while (not found or found[-1][0] + 1 < end) and end and time.monotonic() < give_up_at:
            for message in consumer.consume(1000, timeout=0.5):
                if message.error() is None:
                    found.append((message.offset() or 0, int(message.value() or b"-1")))
    finally:
        consumer.close()
    return found
