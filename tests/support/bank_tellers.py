"""Producers of transfers (`bank`) as a process of their own, so that `kill -9` can end several of them at once.

``python -m tests.support.bank_tellers SETTINGS`` with `Settings` as JSON. What each producer knows is in a file before
the next step is taken, a line each: ``told transfer``. A line on standard input ends the process when all that was
begun is ended. SIGUSR1: where each thread is goes to standard error.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.bank import Told, request_name, transfer_between
from tests.support.raw_transactions import AbortableError, FencedError, RawProducer
from tests.support.waiting import PATIENCE_S

CALL_S: Final = 5.0
"""Of one attempt at a call of librdkafka, which is made again."""
PADDING: Final = 2_000
HANGS_S: Final = PATIENCE_S
"""After which a producer is given up, with what it has begun, and another one begins under its name."""


@dataclass(frozen=True)
class Settings:
    """`requests`: topic from which some take what to transfer (`takes_requests`); "": none."""

    bootstrap: str
    topic: str
    accounts: int
    numbers: list[int]
    log: str
    seed: int
    requests: str = ""
    pace_s: float = 0.1
    timeout_ms: int = 10_000

    def arguments(self) -> list[str]:
        return [sys.executable, "-m", "tests.support.bank_tellers", json.dumps(asdict(self))]


class Gone(Exception):  # noqa: N818 (it says what happened)
    """This producer is of no more use: it was fenced, or failed for good, or hangs."""


class Aborted(Exception):  # noqa: N818 (it says what happened)
    """The transaction is over, and was aborted."""


class Log:
    """Lines of the whole process; one write each, so that what was said is there whenever the process is killed."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(self, what: str, about: str) -> None:
        os.write(self._file, f"{what} {about}\n".encode())


class RdkafkaProducer:
    """One life of a producer of librdkafka."""

    def __init__(self, settings: Settings, name: str, log: Log) -> None:
        self._log, self._name = log, name
        self._producer = Producer({
            "bootstrap.servers": settings.bootstrap, "transactional.id": name, "linger.ms": 1, "log_level": 0,
            "transaction.timeout.ms": settings.timeout_ms, "message.timeout.ms": settings.timeout_ms,
            "retry.backoff.ms": 20, "retry.backoff.max.ms": 200, "reconnect.backoff.max.ms": 500,
            "socket.timeout.ms": 10_000,
        })  # fmt: skip
        self._call("init", lambda: self._producer.init_transactions(CALL_S))

    def _call(self, what: str, call: Callable[[], Any]) -> None:
        give_up_at = time.monotonic() + HANGS_S
        while True:
            try:
                call()
            except KafkaException as problem:
                error = problem.args[0]
                if error.txn_requires_abort() and what != "abort":
                    self.abort()
                    raise Aborted(str(error)) from problem
                if not error.retriable():
                    raise Gone(f"{what}: {error}") from problem
                if time.monotonic() > give_up_at:
                    self._log.say("hangs", f"{self._name} {what}: {error}")
                    raise Gone(f"{what} hangs: {error}") from problem
                time.sleep(0.02)
            else:
                return

    def begin(self) -> None:
        self._call("begin", self._producer.begin_transaction)

    def write(self, topic: str, account: int, leg: bytes) -> None:
        self._call("produce", lambda: self._producer.produce(topic, leg, partition=account))

    def flush(self) -> None:
        self._call("flush", lambda: self._producer.flush(CALL_S))

    def send_offset(self, consumer: Consumer, where: TopicPartition) -> None:
        group = consumer.consumer_group_metadata()
        self._call("send offset", lambda: self._producer.send_offsets_to_transaction([where], group, CALL_S))

    def commit(self) -> None:
        self._call("commit", lambda: self._producer.commit_transaction(CALL_S))

    def abort(self) -> None:
        self._call("abort", lambda: self._producer.abort_transaction(CALL_S))

    def close(self) -> None:
        """Nothing is ended by it."""


class ProtocolTwoProducer:
    """One life of a producer that speaks the second protocol of transactions (KIP-890), which librdkafka does not."""

    def __init__(self, settings: Settings, name: str, log: Log) -> None:
        self._raw = RawProducer(settings.bootstrap, name, settings.timeout_ms, HANGS_S)
        self._log, self._name = log, name
        self._call("init", self._raw.init)

    def _call(self, what: str, call: Callable[[], None]) -> None:
        try:
            call()
        except AbortableError as problem:
            if what in ("abort", "init"):
                raise Gone(str(problem)) from problem
            self.abort()
            raise Aborted(str(problem)) from problem
        except FencedError as problem:
            raise Gone(f"{what}: {problem}") from problem
        except TimeoutError as problem:
            self._log.say("hangs", f"{self._name} {what}: {problem}")
            raise Gone(f"{what} hangs: {problem}") from problem

    def begin(self) -> None:
        """Begins with the first record."""

    def write(self, topic: str, account: int, leg: bytes) -> None:
        self._call("produce", lambda: self._raw.write(topic, account, leg))

    def flush(self) -> None:
        """Each record is acknowledged before the next one."""

    def send_offset(self, _consumer: Consumer, where: TopicPartition) -> None:
        group = f"requests-{where.partition}"
        self._call("send offset", lambda: self._raw.send_offset(group, where.topic, where.partition, where.offset))

    def commit(self) -> None:
        self._call("commit", lambda: self._raw.end(commit=True))

    def abort(self) -> None:
        self._call("abort", lambda: self._raw.end(commit=False))

    def close(self) -> None:
        self._raw.close()


def takes_requests(number: int) -> bool:
    """Whether this teller does what is asked for in the partition of its number. None of librdkafka's does: when the
    broker has gone some stand still for good in the call that sends offsets along
    (docs/decisions/2026-11-29-verification.md).
    """
    return number % 4 == 1


AnyProducer = RdkafkaProducer | ProtocolTwoProducer


class Teller:
    """Transfers one after the other, under one transactional id, over many lives of a producer."""

    def __init__(self, settings: Settings, number: int, log: Log, stop: threading.Event) -> None:
        self._settings, self._number, self._log, self._stop = settings, number, log, stop
        self._name = f"teller-{number}"
        self._chance = Random(f"{settings.seed} {number} {os.getpid()}")
        self._life, self._count = f"{self._name}/{time.time_ns():x}", 0
        self._kind = (RdkafkaProducer, ProtocolTwoProducer)[number % 2]
        self._has_requests = bool(settings.requests) and takes_requests(number)
        self._zombie: AnyProducer | None = None

    def run(self) -> None:
        while not self._stop.is_set():
            producer = None
            try:
                producer = self._kind(self._settings, self._name, self._log)
                self._try_zombie()
                self._live(producer)
            except Gone as why:
                self._log.say("gone", f"{self._name}: {why}")
                time.sleep(0.1)
            except Aborted as why:  # by the first call of all
                self._log.say("gone", f"{self._name}: at its beginning {why}")
            if producer is not None and producer is not self._zombie:
                producer.close()

    def _try_zombie(self) -> None:
        """Whoever had the name before must not commit any more what it had begun."""
        zombie, self._zombie = self._zombie, None
        if zombie is not None:
            try:
                zombie.commit()
            except (Gone, Aborted):
                pass
            else:
                self._log.say("wrong", f"{self._name}: a producer that was fenced has committed")
            zombie.close()

    def _live(self, producer: AnyProducer) -> None:
        consumer = self._consumer() if self._has_requests else None
        try:
            while not self._stop.is_set() and self._zombie is None:
                try:
                    if consumer is None:
                        self._transfer(producer)
                    else:
                        self._do_request(producer, consumer)
                except Aborted as why:
                    self._log.say("refused", f"{self._name}: {why}")
                    if consumer is not None:
                        consumer.close()
                        consumer = self._consumer()
                self._stop.wait(self._settings.pace_s * self._chance.random() * 2)
        finally:
            if consumer is not None:
                consumer.close()

    def _transfer(self, producer: AnyProducer) -> None:
        self._count += 1
        self._move(producer, f"{self._life}/{self._count}", None, None)

    def _move(self, producer: AnyProducer, name: str, consumer: Consumer | None, done: TopicPartition | None) -> None:
        self._log.say(Told.BEGUN, name)
        try:
            producer.begin()
            for account, leg in transfer_between(name, self._settings.accounts, self._chance).items():
                producer.write(self._settings.topic, account, leg.encode(self._chance.randrange(PADDING)))
                if self._chance.random() < 0.3:
                    producer.flush()
                    time.sleep(self._chance.random() * 0.05)
            if consumer is not None and done is not None:
                producer.send_offset(consumer, done)
            what = self._chance.random()
            if what < 0.1:
                producer.abort()
                raise Aborted("on purpose")
            if what < 0.12:
                self._zombie = producer  # with its transaction
                return
            self._log.say(Told.ASKED, name)
            producer.commit()
        except Aborted:
            self._log.say(Told.ABORTED, name)
            raise
        self._log.say(Told.COMMITTED, name)

    # -- requests ------------------------------------------------------------------------------------------------------

    def _consumer(self) -> Consumer:
        """Of the requests in the partition that has the producer's number."""
        partition = self._number
        consumer = Consumer({
            "bootstrap.servers": self._settings.bootstrap, "group.id": f"requests-{partition}", "log_level": 0,
            "enable.auto.commit": False, "isolation.level": "read_committed", "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 500, "retry.backoff.ms": 20, "retry.backoff.max.ms": 200,
        })  # fmt: skip
        give_up_at = time.monotonic() + HANGS_S
        while True:
            try:
                (where,) = consumer.committed([TopicPartition(self._settings.requests, partition)], CALL_S)
                if where.error is not None:
                    raise KafkaException(where.error)
            except KafkaException as problem:
                if time.monotonic() > give_up_at:
                    consumer.close()
                    self._log.say("hangs", f"{self._name} committed: {problem}")
                    raise Gone(f"its offset is not told: {problem}") from problem
                time.sleep(0.05)
            else:
                break
        consumer.assign([TopicPartition(self._settings.requests, partition, max(where.offset, 0))])
        return consumer

    def _do_request(self, producer: AnyProducer, consumer: Consumer) -> None:
        message = consumer.poll(0.5)
        if message is None or message.error() is not None:
            return
        self._count += 1
        partition, offset = message.partition() or 0, message.offset() or 0
        name = request_name(partition, offset, f"{self._life}.{self._count}".replace("/", "-"))
        done = TopicPartition(self._settings.requests, partition, offset + 1)
        self._move(producer, name, consumer, done)


def main() -> None:
    faulthandler.register(signal.SIGUSR1)
    settings = Settings(**json.loads(sys.argv[1]))
    log, stop = Log(settings.log), threading.Event()
    tellers = [Teller(settings, number, log, stop) for number in settings.numbers]
    threads = [threading.Thread(target=teller.run) for teller in tellers]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    stop.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
