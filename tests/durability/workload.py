"""Clients that work against a broker that dies: idempotent producers, a reader, and actors for everything else that a
broker acknowledges. What each was told goes into the ledger.

All are stock clients (librdkafka). What a crash leaves open is retried: by the library for records, by the actor for
the rest. An error that no crash excuses (a fatal producer error, an offset out of range, a delivery given up) is
kept in `Workload.failures` and fails the test.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.durability.following import FollowingReader
from tests.durability.ledger import Identity, Ledger, Partition
from tests.support.waiting import PATIENCE_S, eventually

COMPRESSIONS = ["none", "lz4", "zstd", "snappy", "gzip"]
QUICK_RETRY = {
    "retry.backoff.ms": 20,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.interval.ms": 2000,
    "socket.timeout.ms": 10_000,
    "log_level": 0,
}
ALTERED = "settings-altered"
TRIMMED = "trimmed"
GROUP = "committing"


def client_settings(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": bootstrap, **QUICK_RETRY, **more}


def create_topics(bootstrap: str, topics: dict[str, int], config: dict[str, str] | None = None) -> None:
    """Create topics (name to number of partitions) and wait until their partitions have leaders."""
    admin = AdminClient(client_settings(bootstrap))
    wanted = [NewTopic(name, count, 1, config=config or {}) for name, count in topics.items()]
    for future in admin.create_topics(wanted, operation_timeout=PATIENCE_S, request_timeout=PATIENCE_S).values():
        future.result()

    def have_leaders() -> bool:
        found = admin.list_topics(timeout=PATIENCE_S).topics
        return all(
            name in found
            and len(found[name].partitions) == count
            and all(one.leader >= 0 for one in found[name].partitions.values())
            for name, count in topics.items()
        )

    eventually(have_leaders, f"leaders for {topics}", not_yet=())


class Workload:
    """Producers, a reader, and actors, each a thread; `start`, then crash the broker at will, then `finish`.

    `bootstrap` should name every port that the broker may ever use. What is sent follows from `seed`, not when. A
    rationed one sends no more bytes of values than `allow` gave it (but for the burst that each producer is in).
    """

    def __init__(
        self,
        bootstrap: str,
        topics: dict[str, int],
        *,
        producers_count: int,
        records_per_second: float,
        seed: int,
        config: dict[str, str] | None = None,
        is_rationed: bool = False,
    ) -> None:
        self.bootstrap = bootstrap
        self.topics = topics
        self.ledger = Ledger([(name, index) for name, count in topics.items() for index in range(count)])
        self.failures: list[str] = []
        self._config = config
        self._records_per_second = records_per_second / producers_count
        self._producers_count = producers_count
        self._seed = seed
        self._is_rationed = is_rationed
        self._bytes_allowed = self._bytes_sent = 0
        self._given_up = False
        self._stop = threading.Event()
        self._stop_reading = threading.Event()
        self._threads: list[threading.Thread] = []
        self._reader: threading.Thread | None = None
        self.reader = FollowingReader(
            client_settings(bootstrap), self.ledger.partitions, take=self._observe, fail=self.failures.append
        )

    # -- the run -----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make the topics and start everyone."""
        create_topics(self.bootstrap, self.topics, self._config)
        create_topics(self.bootstrap, {ALTERED: 1, TRIMMED: 1})
        actors: list[Callable[[], None]] = [partial(self._produce, number) for number in range(self._producers_count)]
        actors += [self._commit, self._alter, self._create_and_delete, self._trim]
        self._threads = [threading.Thread(target=self._guarded, args=[actor], daemon=True) for actor in actors]
        self._reader = threading.Thread(target=self._guarded, args=[self._read], daemon=True)
        for thread in [*self._threads, self._reader]:
            thread.start()

    def run_for(self, seconds: float) -> None:
        """Let it go on; raises as soon as something failed."""
        self._stop.wait(seconds)
        self.check()

    def allow(self, size: int) -> None:
        """So many more bytes may be sent by a rationed workload."""
        self._bytes_allowed += size

    def check(self) -> None:
        assert not self.failures, "\n".join(self.failures[:20])

    def finish(self) -> None:
        """No new records; wait until everything sent is acknowledged and read. The broker must be up."""
        self._stop.set()
        give_up_at = time.monotonic() + PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.1, give_up_at - time.monotonic()))
            if thread.is_alive():
                self.failures.append(f"{thread.name} is not done {PATIENCE_S} s after the broker came back")
        self._stop_reading.set()
        if self._reader is not None:
            self._reader.join(PATIENCE_S)
        self.check()

    def abandon(self) -> None:
        """End all threads without waiting for answers; for a test that failed."""
        self._given_up = True
        self._stop.set()
        self._stop_reading.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _guarded(self, actor: Callable[[], None]) -> None:
        try:
            actor()
        except BaseException as problem:
            self.failures.append(f"{actor}: {type(problem).__name__}: {problem}")
            self._stop.set()

    # -- records -----------------------------------------------------------------------------------------------------

    def _produce(self, number: int) -> None:
        chooser = random.Random(self._seed * 1000 + number)
        settings = client_settings(
            self.bootstrap,
            **{
                "enable.idempotence": True,
                "linger.ms": chooser.choice([0, 1, 5]),
                "compression.type": COMPRESSIONS[number % len(COMPRESSIONS)],
                "message.timeout.ms": 0,
                "batch.num.messages": chooser.choice([10, 100, 10_000]),
                "queue.buffering.max.messages": 3000,
                "error_cb": partial(self._on_producer_error, number),
            },
        )
        producer = Producer(settings)
        mine = chooser.sample(self.ledger.partitions, max(1, len(self.ledger.partitions) * 2 // 3))
        while not self._stop.is_set():
            if self._is_rationed and self._bytes_sent >= self._bytes_allowed:
                producer.poll(0.02)
                continue
            burst = chooser.choice([1, 1, 5, 20, 60])
            topic, index = chooser.choice(mine)
            for _ in range(burst):
                self._send(producer, number, topic, index)
            producer.poll(0)
            self._stop.wait(burst / self._records_per_second * chooser.uniform(0.5, 1.5))
        give_up_at = time.monotonic() + PATIENCE_S
        while left := producer.flush(1):
            if self._given_up:
                producer.purge()
                return
            if time.monotonic() > give_up_at:
                self.failures.append(f"producer {number}: {left} records were never answered")
                return

    def _send(self, producer: Producer, number: int, topic: str, index: int) -> None:
        sequence = self.ledger.sent[(topic, index), number]
        identity = Identity(number, topic, index, sequence)
        value = identity.value
        while True:
            try:
                producer.produce(topic, value, partition=index, on_delivery=partial(self._delivered, identity))
            except BufferError:
                if self._stop.is_set():
                    return
                producer.poll(0.05)
            else:
                self.ledger.sent[(topic, index), number] = sequence + 1
                with self.ledger.lock:
                    self._bytes_sent += len(value)
                return

    def _delivered(self, identity: Identity, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self.failures.append(f"{identity} was given up: {error}")
        else:
            self.ledger.acknowledge((identity.topic, identity.partition), message.offset(), identity)

    def _on_producer_error(self, number: int, error: KafkaError) -> None:
        if error.fatal():
            self.failures.append(f"producer {number}: fatal {error}")

    def _read(self) -> None:
        """Follow every partition from the beginning, through all crashes."""
        self.reader.run(self._stop_reading, lambda: self._given_up)

    def _observe(self, key: Partition, offset: int, value: bytes) -> None:
        self.ledger.observe(key, offset, Identity.of(value))

    # -- the rest of what is acknowledged ----------------------------------------------------------------------------

    def _until_done(self, attempt: Callable[[], None]) -> bool:
        """Repeat until it succeeds; False when the run ends before."""
        while not self._stop.is_set():
            try:
                attempt()
            except KafkaException:
                self._stop.wait(0.05)
            else:
                return True
        return False

    def _commit(self) -> None:
        """Commit offsets 1, 2, 3, … of one partition for a group."""
        progress = self.ledger.progress_of("committed")
        consumer = Consumer(client_settings(self.bootstrap, **{"group.id": GROUP, "enable.auto.commit": False}))
        topic, index = self.ledger.partitions[0]

        def commit() -> None:
            done = consumer.commit(offsets=[TopicPartition(topic, index, progress.attempted)], asynchronous=False)
            if done[0].error is not None:
                raise KafkaException(done[0].error)

        while not self._stop.is_set():
            progress.attempted += 1
            if self._until_done(commit):
                progress.acknowledged = progress.attempted
            self._stop.wait(0.02)
        consumer.close()

    def _alter(self) -> None:
        """Set a topic's retention.ms to 100_000_000_000 + 1, + 2, …"""
        progress = self.ledger.progress_of("altered")
        admin = AdminClient(client_settings(self.bootstrap))

        def alter() -> None:
            text = str(ALTER_BASE + progress.attempted)
            entry = ConfigEntry("retention.ms", text, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ResourceType.TOPIC, ALTERED, incremental_configs=[entry])
            admin.incremental_alter_configs([resource], request_timeout=5)[resource].result()

        while not self._stop.is_set():
            progress.attempted += 1
            if self._until_done(alter):
                progress.acknowledged = progress.attempted
            self._stop.wait(0.1)

    def _create_and_delete(self) -> None:
        """Create topics made-1, made-2, …, and delete them again in the same order, five behind."""
        made, deleted = self.ledger.progress_of("made"), self.ledger.progress_of("deleted")
        admin = AdminClient(client_settings(self.bootstrap))

        def make() -> None:
            self._ask_topic(admin.create_topics, NewTopic(f"made-{made.attempted}", 2, 1), "TOPIC_ALREADY_EXISTS")

        def delete() -> None:
            self._ask_topic(admin.delete_topics, f"made-{deleted.attempted}", "UNKNOWN_TOPIC_OR_PART")

        while not self._stop.is_set():
            made.attempted += 1
            if self._until_done(make):
                made.acknowledged = made.attempted
            if made.acknowledged > deleted.attempted + 5:
                deleted.attempted += 1
                if self._until_done(delete):
                    deleted.acknowledged = deleted.attempted
            self._stop.wait(0.2)

    @staticmethod
    def _ask_topic(ask: Callable[..., dict[str, Any]], subject: Any, done_before: str) -> None:
        """One create or delete; an answer that an earlier, unanswered attempt explains counts as done."""
        [future] = ask([subject], request_timeout=5, operation_timeout=4).values()
        try:
            future.result()
        except KafkaException as problem:
            if problem.args[0].name() != done_before:
                raise

    def _trim(self) -> None:
        """Append to a topic of its own and delete its records, up to offset 1, 2, 3, …"""
        progress = self.ledger.progress_of("trimmed")
        admin = AdminClient(client_settings(self.bootstrap))
        producer = Producer(client_settings(self.bootstrap, **{"enable.idempotence": True, "message.timeout.ms": 0}))
        delivered = threading.Semaphore(0)

        def trim() -> None:
            wanted = TopicPartition(TRIMMED, 0, progress.attempted)
            [future] = admin.delete_records([wanted], request_timeout=5).values()
            future.result()

        while not self._stop.is_set():
            producer.produce(TRIMMED, b"short-lived", partition=0, on_delivery=lambda *_: delivered.release())
            while not delivered.acquire(blocking=False):
                if self._stop.is_set():
                    return
                producer.poll(0.05)
            progress.attempted += 1
            if self._until_done(trim):
                progress.acknowledged = progress.attempted
            self._stop.wait(0.1)


ALTER_BASE = 100_000_000_000


def found_progress(bootstrap: str, topic: str, index: int) -> dict[str, Any]:
    """What a broker has of the actors' work, by the names of their progress; topics are sets of numbers."""
    admin = AdminClient(client_settings(bootstrap))
    asked = ConsumerGroupTopicPartitions(GROUP, [TopicPartition(topic, index)])
    [group] = [one.result() for one in admin.list_consumer_group_offsets([asked]).values()]
    committed = group.topic_partitions[0].offset
    resource = ConfigResource(ResourceType.TOPIC, ALTERED)
    retention = admin.describe_configs([resource])[resource].result()["retention.ms"].value
    asked_offsets = {TopicPartition(TRIMMED, 0): OffsetSpec.earliest()}
    [earliest] = [one.result() for one in admin.list_offsets(asked_offsets).values()]
    names = admin.list_topics(timeout=PATIENCE_S).topics
    return {
        "committed": max(committed, 0),
        "altered": max(int(retention) - ALTER_BASE, 0),
        "trimmed": earliest.offset,
        "topics": {int(name.removeprefix("made-")) for name in names if name.startswith("made-")},
    }


def describe(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"
