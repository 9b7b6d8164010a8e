"""A program that is one member of a group, by librdkafka: it writes what happens to it into a file that all members of
the group share, a line at a time, so that the order of the lines is the order in which things happened.

What a member is told to give back it has written down before it says so to the broker, and what it is given only
afterwards: two members that have a partition at a time therefore show in the file, without any clock. Arguments: the
file, the member's name, the topic or pattern, and its settings as JSON. The end of standard input: it leaves the group.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

COMMIT_EVERY = 20


class Member:
    def __init__(self, path: str, name: str, topics: str, settings: dict[str, Any]) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._name = name
        self._consumer = Consumer({"auto.offset.reset": "earliest", "enable.auto.commit": False, **settings})
        self._next: dict[tuple[str, int], int] = {}
        """What is to be committed for the partitions that it has: the offset after what was handled last."""
        self._handled = 0
        self._consumer.subscribe([topics], on_assign=self._given, on_revoke=self._back, on_lost=self._lost)

    def _write(self, what: str, *facts: object) -> None:
        os.write(self._file, (json.dumps([self._name, what, *facts]) + "\n").encode())

    def _given(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._write("given", [[one.topic, one.partition] for one in partitions])

    def _back(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        self._forget("back", partitions)

    def _lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget("lost", partitions)

    def _forget(self, what: str, partitions: list[TopicPartition]) -> None:
        for one in partitions:
            self._next.pop((one.topic, one.partition), None)
        self._write(what, [[one.topic, one.partition] for one in partitions])

    def _commit(self) -> None:
        """What was handled since the last time. What cannot be committed now is the next time."""
        if not self._next:
            return
        wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in self._next.items()]
        try:
            done = self._consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as failure:
            self._write("not committed", str(failure))
            return
        good = [one for one in done or () if one.error is None]
        self._write("committed", [[one.topic, one.partition, one.offset] for one in good])
        for one in good:
            if self._next.get((one.topic, one.partition)) == one.offset:
                del self._next[one.topic, one.partition]

    def run(self, is_to_leave: threading.Event) -> None:
        while not is_to_leave.is_set():
            record = self._consumer.poll(0.1)
            if record is None:
                self._commit()
            elif record.error() is not None:
                self._write("error", record.error().name())
                assert record.error().code() != KafkaError._FATAL, record.error()
            else:
                place = record.topic(), record.partition()
                self._write("handled", *place, record.offset())
                self._next[place] = record.offset() + 1
                self._handled += 1
                if self._handled % COMMIT_EVERY == 0:
                    self._commit()
        self._consumer.close()
        self._write("left")


def main() -> None:
    path, name, topics, settings = sys.argv[1:]
    is_to_leave = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), is_to_leave.set()), daemon=True).start()
    Member(path, name, topics, json.loads(settings)).run(is_to_leave)


if __name__ == "__main__":
    main()
