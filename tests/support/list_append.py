"""Histories of transactions that read some logs and append to some, and what no correct history has.

Each reads committed records of two logs and appends its name to two. Besides what holds of every ledger (`bank`: none
torn, lost, twice; nobody is shown what was aborted): who was acknowledged before another one began is in front of it in
every log that both wrote, and nobody reads, not even by way of others, what was written by somebody who has read him.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from random import Random
from typing import Final

from tests.support.bank import Ledger, Leg, Statement, Told, View, committed_legs
from tests.support.cluster_nodes import Node, eventually
from tests.support.raw_client import RawConnection
from tests.support.raw_transactions import AbortableError, FencedError, RawProducer, Shown, fetch_committed
from tests.support.waiting import PATIENCE_S

ANSWER_S: Final = 4.0
PACE_S: Final = 0.01
APPENDERS, READERS = 5, 3
TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Transaction:
    """Times in ns of the monotonic clock; `ended_ns` None: it was not acknowledged. `reads`: names of transactions."""

    name: str
    begun_ns: int
    ended_ns: int | None
    reads: frozenset[str] = frozenset()


def out_of_order(transactions: Iterable[Transaction], final: Mapping[int, Statement]) -> list[str]:
    """Those that are in a log in front of somebody who had ended before they began."""
    known, found = {one.name: one for one in transactions}, []
    for log, statement in final.items():
        earliest: Transaction | None = None  # to end, of those behind
        for offset, leg in reversed(statement):
            one = known.get(leg.transfer, Transaction(leg.transfer, 0, None))
            if earliest is not None and earliest.ended_ns is not None and earliest.ended_ns < one.begun_ns:
                found.append(f"log {log}: {one.name} at {offset} is in front of {earliest.name}, which ended before")
            if one.ended_ns is not None and (earliest is None or one.ended_ns < (earliest.ended_ns or 0)):
                earliest = one
    return found


def cyclic_reads(transactions: Iterable[Transaction]) -> list[str]:
    try:
        tuple(TopologicalSorter({one.name: one.reads for one in transactions}).static_order())
    except CycleError as problem:
        return [f"they read each other: {problem.args[1]}"]
    return []


@dataclass
class History:
    """Filled by several threads."""

    ledger: Ledger = field(default_factory=Ledger)
    transactions: list[Transaction] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    """What was shown above the last stable offset."""

    def problems(self, final: Mapping[int, Statement]) -> list[str]:
        in_vain = {name for name, told in self.ledger.told.items() if told in (Told.BEGUN, Told.ABORTED)}
        aborted = [f"{one.name} has read {sorted(one.reads & in_vain)}" for one in self.transactions
                   if one.reads & in_vain]  # fmt: skip
        return [
            *self.beyond, *aborted, *self.ledger.problems(final), *out_of_order(self.transactions, final),
            *cyclic_reads(self.transactions),
        ]  # fmt: skip


class Reader:
    """Committed records of any node that shows some; each look is a view of the ledger."""

    def __init__(self, nodes: list[Node], topic: str, history: History, name: str) -> None:
        self._nodes, self._topic, self._history, self._name = nodes, topic, history, name
        self._lines: dict[int, RawConnection] = {}

    def look(self, number: int, log: int, begin: int) -> View | None:
        """From an offset on."""
        node = self._nodes[number]
        try:
            if number not in self._lines:
                self._lines[number] = RawConnection(node.host, node.ports[0], ANSWER_S)
            shown = fetch_committed(self._lines[number], self._topic, log, begin, max_bytes=1 << 14)
        except OSError:
            self.drop(number)
            return None
        if not isinstance(shown, Shown) or shown.next_offset == begin:
            return None
        if shown.next_offset > shown.last_stable_offset:
            self._history.beyond.append(
                f"node {node.number} showed log {log} up to {shown.next_offset}, last stable {shown.last_stable_offset}"
            )
        legs = [each for each in committed_legs(shown.records, shown.aborted, shown.aborts) if each[0] >= begin]
        view = View(f"{self._name} at node {node.number}", log, begin, shown.next_offset, legs)
        self._history.ledger.views.append(view)
        return view

    def drop(self, number: int) -> None:
        if (line := self._lines.pop(number, None)) is not None:
            line.close()

    def close(self) -> None:
        for number in list(self._lines):
            self.drop(number)


class Appenders:
    """Threads that append, and threads that only read; each goes from node to node."""

    def __init__(self, nodes: list[Node], topic: str, logs: int, seed: int) -> None:
        self.history, self.failures = History(), list[BaseException]()
        self._nodes, self._topic, self._logs, self._seed = nodes, topic, logs, seed
        self._bootstrap = ",".join(node.bootstrap for node in nodes)
        self._done = [0] * (APPENDERS + READERS)
        self._known = [0] * logs
        self._stop = threading.Event()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._run, args=(number,)) for number in range(APPENDERS + READERS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        assert not self.failures, self.failures

    def wait_progress(self) -> None:
        """Until each of them has got what it asked for since now."""
        before = list(self._done)
        eventually(lambda: self.failures or all(map(int.__lt__, before, self._done)), "everybody goes on")
        assert not self.failures, self.failures

    def _run(self, number: int) -> None:
        reader = Reader(self._nodes, self._topic, self.history, f"reader {number}")
        chance = Random(f"{self._seed} {number}")
        try:
            if number < APPENDERS:
                self._append_all(number, reader, chance)
            else:
                while not self._stop.is_set():
                    self._done[number] += self._look(reader, chance) is not None
                    self._stop.wait(PACE_S)
        except BaseException as problem:
            self.failures.append(problem)
            raise
        finally:
            reader.close()

    def _look(self, reader: Reader, chance: Random) -> View | None:
        log = chance.randrange(self._logs)
        begin = 0 if chance.random() < 0.05 else max(0, self._known[log] - chance.randrange(30))
        view = reader.look(chance.randrange(len(self._nodes)), log, begin)
        if view is not None:
            self._known[log] = max(self._known[log], view.last_stable_offset)
        return view

    def _append_all(self, number: int, reader: Reader, chance: Random) -> None:
        """Lives of a producer, one after the other."""
        names = (f"{number}.{count}" for count in itertools.count())
        while not self._stop.is_set():
            producer = RawProducer(self._bootstrap, f"appender-{number}", TIMEOUT_MS, PATIENCE_S)
            try:
                producer.init()
                while not self._stop.is_set():
                    self._done[number] += self._append(producer, next(names), reader, chance)
                    self._stop.wait(PACE_S)
            except (FencedError, AbortableError):
                self._stop.wait(PACE_S)
            finally:
                producer.close()

    def _append(self, producer: RawProducer, name: str, reader: Reader, chance: Random) -> bool:
        """Whether it was acknowledged."""
        ledger, begun_ns, ended_ns = self.history.ledger, time.monotonic_ns(), None
        ledger.note(name, Told.BEGUN)
        views = [self._look(reader, chance) for _ in range(2)]
        reads = frozenset(leg.transfer for view in views if view is not None for _offset, leg in view.legs)
        try:
            for log in chance.sample(range(self._logs), 2):
                producer.write(self._topic, log, Leg(name, 2, 0).encode())
            if chance.random() < 0.2:
                producer.end(commit=False)
                return False
            ledger.note(name, Told.ASKED)
            producer.end(commit=True)
            ended_ns = time.monotonic_ns()
            ledger.note(name, Told.COMMITTED)
        except AbortableError:
            producer.end(commit=False)
            ledger.note(name, Told.ABORTED)
        finally:
            self.history.transactions.append(Transaction(name, begun_ns, ended_ns, reads))
        return ended_ns is not None
