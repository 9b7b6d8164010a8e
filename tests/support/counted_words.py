"""Words written at a pace while somebody counts them exactly once, and what a reader of committed ones finds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final, Self

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.waiting import PATIENCE_S, eventually

PARTITIONS: Final = 2
KINDS: Final = 7
PACE_S: Final = 0.003
"""Between two words."""


class CountedWords:
    """Of the topic `source`, by a program that writes each word's count, by the word, to `target`: 1, 2, … if each is
    counted once. A context manager, which writes in a thread of its own until it is left.
    """

    def __init__(self, bootstrap: str, source: str, replicas: int = 1) -> None:
        self.bootstrap, self.source, self.target = bootstrap, source, f"{source}-counts"
        self.written: Counter[str] = Counter()
        self.counts: dict[str, list[int]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._failure: BaseException | None = None
        admin = AdminClient({"bootstrap.servers": bootstrap})
        wanted = [NewTopic(name, PARTITIONS, replicas) for name in (self.source, self.target)]
        for made in admin.create_topics(wanted).values():
            made.result(PATIENCE_S)
        self._reader = Consumer({
            "bootstrap.servers": bootstrap, "group.id": source, "enable.auto.commit": False,
            "isolation.level": "read_committed",
        })  # fmt: skip
        self._reader.assign([TopicPartition(self.target, number, 0) for number in range(PARTITIONS)])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._reader.close()

    def _write(self) -> None:
        chance = Random(self.source)
        producer = Producer({
            "bootstrap.servers": self.bootstrap, "enable.idempotence": True, "linger.ms": 5,
            "message.timeout.ms": 1000 * PATIENCE_S,
        })  # fmt: skip
        try:
            while not self._over.wait(PACE_S):
                word = f"word {chance.randrange(KINDS)}"
                producer.produce(self.source, word.encode(), on_delivery=self._delivered)
                self.written[word] += 1
                producer.poll(0)
            assert producer.flush(PATIENCE_S) == 0
        except BaseException as failure:
            self._failure = failure

    def _delivered(self, error: KafkaError | None, _message: object) -> None:
        assert error is None, error

    def _look(self) -> None:
        for message in self._reader.consume(10_000, timeout=0.1):
            key, value = message.key(), message.value()
            if message.error() is None and key is not None and value is not None:
                self.counts.setdefault(key.decode(), []).append(int(value))

    def found(self) -> int:
        self._look()
        return sum(map(len, self.counts.values()))

    def wait_more(self, count: int, is_well: Callable[[], bool]) -> None:
        """Until so many more are counted. `is_well`: whether there is somebody who counts."""
        self._wait(self.found() + count, is_well)

    def _wait(self, wanted: int, is_well: Callable[[], bool]) -> None:
        def look() -> bool:
            assert is_well(), "who counts has ended"
            return self.found() >= wanted

        eventually(look, f"{wanted} are counted", not_yet=())

    def check(self, is_well: Callable[[], bool]) -> None:
        """Write no more; each word is counted to its number, and nothing else."""
        self._over.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        wanted = {word: list(range(1, count + 1)) for word, count in self.written.items()}
        total = sum(self.written.values())
        try:
            self._wait(total, is_well)
        except AssertionError as failure:
            found = {word: set(self.counts.get(word, [])) for word in wanted}
            failure.add_note(f"missing: {[(word, sorted(set(wanted[word]) - found[word])[:5]) for word in wanted]}")
            raise
        for _ in range(5):  # what should not come
            self._look()
        assert self.counts == wanted, {word: (len(self.counts.get(word, [])), len(wanted[word])) for word in wanted}
