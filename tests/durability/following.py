"""A reader that follows every partition through all crashes of a broker, and tells a log that was cut from a client
that only believes so.

librdkafka validates its position when the leader epoch rises: it asks where the epoch of its last record ended, and
compares the answer with the position that it has when the answer comes. A refresh of its metadata in between may have
moved that position, so that the end of an epoch is held against an offset of the next one, and "log truncation" is
reported though every record is there. So when it says so, the broker itself is asked about the last record that was
read; only when its answer does not hold that record was anything lost. Whether all of them are still what they were is
compared at the end in any case.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.durability.ledger import Partition
from tests.support.raw_client import RawConnection
from tests.support.waiting import LOOK_S, PATIENCE_S

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

IDLE_SECONDS = 1.0
LEADER_SECONDS = PATIENCE_S
TRUNCATED = "log truncation detected"


def end_of_epoch(host: str, port: int, partition: Partition, epoch: int) -> tuple[int, int, int]:
    """OffsetForLeaderEpoch (version 2) of one partition: error code, the largest epoch up to that one, and its end."""
    topic, index = partition
    name = struct.pack(">h", len(topic)) + topic.encode()
    asked = struct.pack(">hhih", 23, 2, 1, -1) + struct.pack(">i", 1) + name + struct.pack(">iiii", 1, index, -1, epoch)
    with RawConnection(host, port) as peer:
        peer.send_frame(asked)
        answer = peer.receive_frame()
    code, _index, found, end_offset = struct.unpack(">hiiq", answer[-18:])
    return code, found, end_offset


def contradiction(consumer: Consumer, partition: Partition, last_offset: int, epoch: int, *, given_up: Any) -> str:
    """How the leader's epochs contradict that the record at an offset was written in an epoch; "" when they do not.

    Asked again while nobody leads the partition.
    """
    topic, index = partition
    give_up_at, problem = time.monotonic() + LEADER_SECONDS, "nobody was asked"
    while time.monotonic() < give_up_at and not given_up():
        try:
            found = consumer.list_topics(topic, timeout=LOOK_S)
            leader = found.brokers[found.topics[topic].partitions[index].leader]
            code, its_epoch, end_offset = end_of_epoch(leader.host, leader.port, partition, epoch)
        except (KafkaException, KeyError, OSError) as error:
            problem = f"no leader: {error!r}"
        else:
            if code == 0 and its_epoch == epoch and end_offset > last_offset:
                return ""
            if code == 0:
                return f"asked for epoch {epoch} the broker says that epoch {its_epoch} ended at {end_offset}"
            problem = f"error {code}"
        time.sleep(0.05)
    return problem


class FollowingReader:
    """Reads all partitions from their beginnings until it is stopped and nothing comes any more."""

    def __init__(
        self,
        settings: dict[str, Any],
        partitions: Sequence[Partition],
        *,
        take: Callable[[Partition, int, bytes], None],
        fail: Callable[[str], None],
    ) -> None:
        self._settings = {
            **settings,
            "group.id": "following",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 100,
        }
        self._next = dict.fromkeys(partitions, 0)
        self._epochs: dict[Partition, int] = {}
        """Of the last record that was read."""
        self._take = take
        self._fail = fail
        self.false_truncations = 0
        """That the client reported and the broker denied."""

    def run(self, stop: threading.Event, given_up: Callable[[], bool]) -> None:
        consumer = Consumer(self._settings)
        self._assign(consumer)
        idle_since: float | None = None
        while True:
            messages = consumer.consume(500, 0.1)
            if not messages and stop.is_set():
                idle_since = idle_since or time.monotonic()
                if time.monotonic() - idle_since > IDLE_SECONDS:
                    break
            for message in messages:
                idle_since = None
                key, error = (message.topic() or "", message.partition() or 0), message.error()
                if error is None:
                    offset, epoch = message.offset() or 0, message.leader_epoch()
                    self._take(key, offset, message.value() or b"")
                    self._next[key] = offset + 1
                    if epoch is not None:
                        self._epochs[key] = epoch
                elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    self._judge(consumer, key, error, given_up)
                    break  # the rest of what was taken is read again
        consumer.close()

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign([TopicPartition(*key, offset) for key, offset in self._next.items()])

    def _judge(self, consumer: Consumer, key: Partition, error: KafkaError, given_up: Callable[[], bool]) -> None:
        """Fail, or go on behind what was read of each partition."""
        problem = ""
        if TRUNCATED not in error.str() or key not in self._epochs:
            problem = "no truncation"
        else:
            problem = contradiction(consumer, key, self._next[key] - 1, self._epochs[key], given_up=given_up)
        if problem:
            self._fail(f"reader: {key[0]}-{key[1]}, next {self._next[key]}: {error} ({problem})")
        else:
            self.false_truncations += 1
        self._assign(consumer)
