"""A bank on real brokers: tellers in processes that are killed, watchers that read what is committed meanwhile, and all
the ways in which accounts are read in the end.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.bank import Ledger, Leg, Statement, Told, View, committed_legs
from tests.support.bank_tellers import Settings, takes_requests
from tests.support.raw_client import RawConnection
from tests.support.raw_transactions import Shown, fetch_committed
from tests.support.waiting import LOOK_S, PATIENCE_S, eventually

T = TypeVar("T")
TOPIC, REQUESTS = "accounts", "requests"
ACCOUNTS: Final = 6
TELLERS: Final = 20
PROCESSES: Final = 4
REQUESTS_EACH: Final = 2_000
COORDINATORS: Final = {"transaction.state.log.num.partitions": "8", "offsets.topic.num.partitions": "8"}
AFTER_TROUBLE_S, BETWEEN_FETCHES_S = 0.2, 0.02


def soon(look: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    not_yet = (KafkaException, AssertionError, OSError)
    return eventually(look, what, not_yet=not_yet, pause_s=0.1, patience_s=patience_s)


@dataclass(frozen=True)
class Source:
    """One broker that is asked for committed records, as a client in its rack would."""

    name: str
    host: str
    port: int


class Bank:
    """`sources`: all brokers, whether they lead or not. Tellers with an odd number speak the second protocol."""

    def __init__(self, bootstrap: str, folder: Path, seed: int, sources: list[Source], replicas: int = 1,
                 pace_s: float = 0.1) -> None:  # fmt: skip
        self.bootstrap, self.folder, self.sources = bootstrap, folder, sources
        self._replicas, self._seed, self._pace_s = replicas, seed, pace_s
        self._log = folder / "tellers.log"
        self._log.touch()
        self._processes: dict[int, subprocess.Popen[str]] = {}
        self._stop = threading.Event()
        self._watchers: list[threading.Thread] = []
        self.ledger = Ledger()
        self.failures: list[str] = []
        self.shown_by: dict[str, int] = {}
        """How many views each reader has given."""

    # -- before and after ----------------------------------------------------------------------------------------------

    def open(self, settings: dict[str, str] | None = None) -> None:
        """Make the topics, and write all requests."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        config: Any = settings or {}
        topics = [NewTopic(TOPIC, ACCOUNTS, self._replicas, config=config), NewTopic(REQUESTS, TELLERS, self._replicas)]
        for future in admin.create_topics(topics).values():
            future.result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "log_level": 0})
        for number in range(TELLERS):
            if takes_requests(number):
                for _ in range(REQUESTS_EACH):
                    producer.produce(REQUESTS, b"move something", partition=number)
        assert producer.flush(PATIENCE_S) == 0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Tellers and watchers; at the end tellers finish what they have begun."""
        for number in range(PROCESSES):
            self._hire(number)
        for source in self.sources:
            thread = threading.Thread(target=self._watch, args=(source,))
            self._watchers.append(thread)
            thread.start()
        try:
            yield
            self._finish()
        finally:
            for process in self._processes.values():
                process.kill()
                process.communicate()
            self._stop.set()
            for thread in self._watchers:
                thread.join()

    def _hire(self, number: int) -> None:
        settings = Settings(
            self.bootstrap, TOPIC, ACCOUNTS, list(range(number, TELLERS, PROCESSES)), str(self._log), self._seed,
            REQUESTS, self._pace_s,
        )  # fmt: skip
        with (self.folder / f"tellers-{number}.err").open("ab") as errors:
            self._processes[number] = subprocess.Popen(
                settings.arguments(), stdin=subprocess.PIPE, stderr=errors, text=True
            )

    def kill_tellers(self, chance: Random) -> None:
        """Some, with all that they have begun; others begin under their names."""
        number = chance.choice(list(self._processes))
        self._processes[number].kill()
        self._processes[number].communicate()
        self._hire(number)

    def pause_tellers(self, chance: Random, seconds: float) -> None:
        """Longer than their transactions may take, or not: they are aborted meanwhile."""
        process = self._processes[chance.choice(list(self._processes))]
        process.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)

    def _finish(self) -> None:
        for process in self._processes.values():
            assert process.poll() is None, f"tellers ended by themselves: {process.returncode}"
            assert process.stdin is not None
            process.stdin.write("stop\n")
            process.stdin.flush()
        for process in self._processes.values():
            process.wait(2 * PATIENCE_S)  # of which a producer may hang for one

    # -- what tellers say ----------------------------------------------------------------------------------------------

    def said(self) -> list[tuple[str, str]]:
        """What, and of which transfer or about what, in order."""
        lines = self._log.read_text().splitlines()
        return [(what, about) for what, _, about in (line.partition(" ") for line in lines)]

    def committed(self) -> dict[int, int]:
        """By number of the teller: transfers whose commit was acknowledged."""
        found = dict.fromkeys(range(TELLERS), 0)
        for what, about in self.said():
            if what == Told.COMMITTED:
                found[teller_of(about)] += 1
        return found

    def wait_progress(self, patience_s: float = PATIENCE_S) -> None:
        """Until each teller has committed something since now."""
        before = self.committed()

        def look() -> bool:
            now = self.committed()
            late = [number for number in before if now[number] <= before[number]]
            assert not late, f"tellers {late} do not go on"
            return True

        try:
            soon(look, "all tellers go on", patience_s)
        except AssertionError:
            for process in self._processes.values():
                process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            raise

    # -- watchers ------------------------------------------------------------------------------------------------------

    def _watch(self, source: Source) -> None:
        """Read each account again and again, from near its end and from its beginning, at one broker."""
        chance, line = Random(f"{self._seed} {source.name}"), None
        known = dict.fromkeys(range(ACCOUNTS), 0)
        while not self._stop.is_set():
            account = chance.randrange(ACCOUNTS)
            begin = 0 if chance.random() < 0.05 else max(0, known[account] - chance.randrange(40))
            try:
                line = line or RawConnection(source.host, source.port, 10)
                shown = fetch_committed(line, TOPIC, account, begin, max_bytes=1 << 16)
            except (OSError, ValueError) as _problem:
                if line is not None:
                    line.close()
                line = None
                self._stop.wait(AFTER_TROUBLE_S)
                continue
            if isinstance(shown, Shown):
                known[account] = shown.next_offset
                self._note(source.name, account, begin, shown)
            self._stop.wait(BETWEEN_FETCHES_S)
        if line is not None:
            line.close()

    def _note(self, name: str, account: int, begin: int, shown: Shown) -> None:
        if shown.next_offset > max(begin, shown.last_stable_offset):
            self.failures.append(f"{name}: account {account} from {begin} was shown up to {shown.next_offset}, and the "
                                 f"last stable offset is {shown.last_stable_offset}")  # fmt: skip
        if shown.next_offset == begin:
            return
        legs = committed_legs(shown.records, shown.aborted, shown.aborts)
        view = View(name, account, begin, shown.next_offset, [each for each in legs if each[0] >= begin])
        self.ledger.views.append(view)
        self.shown_by[name] = self.shown_by.get(name, 0) + 1

    # -- the end -------------------------------------------------------------------------------------------------------

    def note_all(self) -> None:
        for what, about in self.said():
            if what in set(Told):
                self.ledger.note(about, Told(what))
            elif what == "wrong":
                self.failures.append(about)

    def hangs(self) -> list[str]:
        return [about for what, about in self.said() if what == "hangs"]

    def see(self, reader: str, statements: dict[int, Statement], ends_of: dict[int, int]) -> None:
        """As views of whole accounts."""
        for account, statement in statements.items():
            self.ledger.views.append(View(reader, account, 0, ends_of[account], statement))

    def requests_done(self) -> dict[int, int]:
        """Committed offsets of the requests' groups, stable ones."""
        return {number: committed_offset(self.bootstrap, number) for number in filter(takes_requests, range(TELLERS))}

    def figures(self) -> str:
        counts = {each.value: self.ledger.count(each) for each in Told}
        said = self.said()
        others = {what: sum(each == what for each, _ in said) for what in ("gone", "refused", "hangs")}
        return f"transfers {counts}, tellers {others}, {len(self.ledger.views)} views by {self.shown_by}"


def settle(bootstrap: str, topic: str = TOPIC, partitions: int = ACCOUNTS) -> dict[int, int]:
    """The end of each account, when no transaction is open any more."""

    def look() -> dict[int, int]:
        committed, all_of_it = (
            ends(bootstrap, isolation, topic, partitions) for isolation in ("read_committed", "read_uncommitted")
        )
        assert committed == all_of_it, f"last stable offsets {committed}, high watermarks {all_of_it}"
        return committed

    return soon(look, "every transaction is over")


def teller_of(transfer: str) -> int:
    """Its number."""
    place = transfer.index("teller-") + len("teller-")
    return int("".join(each for each in transfer[place : place + 2] if each.isdigit()))


def committed_offset(bootstrap: str, partition: int) -> int:
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": f"requests-{partition}", "isolation.level": "read_committed",
        "log_level": 0,
    })  # fmt: skip
    try:
        def look() -> tuple[int]:
            (found,) = consumer.committed([TopicPartition(REQUESTS, partition)], LOOK_S)
            assert found.error is None, found.error
            return (max(found.offset, 0),)

        return soon(look, f"the offset of requests {partition} is told")[0]
    finally:
        consumer.close()


def ends(bootstrap: str, isolation: str, topic: str, partitions: int) -> dict[int, int]:
    """By librdkafka's ListOffsets."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "nobody", "isolation.level": isolation, "log_level": 0,
    })  # fmt: skip
    try:
        return {
            account: consumer.get_watermark_offsets(TopicPartition(topic, account), timeout=LOOK_S)[1]
            for account in range(partitions)
        }
    finally:
        consumer.close()


def read_by_librdkafka(
    bootstrap: str, ends_of: dict[int, int], rack: str = "", topic: str = TOPIC
) -> dict[int, Statement]:
    """Every account up to its end, by one consumer of committed records."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "nobody", "isolation.level": "read_committed", "client.rack": rack,
        "enable.auto.commit": False, "auto.offset.reset": "earliest", "enable.partition.eof": True, "log_level": 0,
    })  # fmt: skip
    found: dict[int, Statement] = {account: [] for account in ends_of}
    missing, give_up_at = {account for account, end in ends_of.items() if end}, time.monotonic() + PATIENCE_S
    try:
        consumer.assign([TopicPartition(topic, account, 0) for account in sorted(missing)])
        while missing and time.monotonic() < give_up_at:
            for message in consumer.consume(1000, timeout=0.5):
                account = message.partition() or 0
                if (error := message.error()) is None:
                    found[account].append((message.offset() or 0, Leg.decode(message.value() or b"")))
                elif error.name() == "_PARTITION_EOF" and (message.offset() or 0) >= ends_of[account]:
                    missing.discard(account)
        assert not missing, f"accounts {missing} were not read to their ends"
    finally:
        consumer.close()
    return found


def read_raw(sources: list[Source], account: int, end: int, max_bytes: int) -> Statement:
    """The account from its beginning to its end, by Fetch after Fetch of whoever leads it."""
    found: Statement = []
    offset, give_up_at = 0, time.monotonic() + PATIENCE_S
    while offset < end:
        assert time.monotonic() < give_up_at, f"account {account} was read up to {offset}"
        for source in sources:
            with contextlib.suppress(ConnectionError), RawConnection(source.host, source.port, 10) as line:
                while offset < end:
                    shown = fetch_committed(line, TOPIC, account, offset, max_bytes=max_bytes)
                    if not isinstance(shown, Shown) or shown.next_offset == offset:
                        break
                    legs = committed_legs(shown.records, shown.aborted, shown.aborts)
                    found += [each for each in legs if each[0] >= offset]
                    offset = shown.next_offset
    return found
