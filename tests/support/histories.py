"""What clients asked of a cluster and were told, operation by operation, and whether one log explains all of it.

Two checks. Porcupine (`tests/linearizability`, a Go module) judges what must be linearizable: appends with acks=all,
and committed offsets of groups, which are read by an index. The prefix check is ours: what a fetch shows is what the
log has at that place in the end, late perhaps and never anything else.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.log.log_batches import batch
from tests.support.cluster_nodes import Node, eventually
from tests.support.raw_client import RawConnection
from tests.support.record_batches import read_batches
from tpc_broker.error_codes import ErrorCode

MODULE: Final = Path(__file__).parents[1] / "linearizability"
ANSWER_S: Final = 4.0
"""Longer than a Produce is held between leaders."""
PACE_S: Final = 0.01
CHECK_S: Final = 300


@dataclass(frozen=True)
class Operation:
    """Times in ns of the monotonic clock; `ended_ns` None: what became of it is not known."""

    key: str
    kind: str
    client: int
    call_ns: int
    ended_ns: int | None
    offset: int = -1
    value: int = -1


@dataclass(frozen=True)
class Shown:
    """What one fetch has shown: the high watermark, and values by offset."""

    node: int
    partition: int
    high_watermark: int
    values: dict[int, int]


@dataclass
class History:
    """Filled by several threads; both lists only grow."""

    operations: list[Operation] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)

    def settled(self, logs: list[list[tuple[int, int]]]) -> list[Operation]:
        """With the outcome of what its clients did not learn, as the logs and other clients know it.

        What has had no effect that anybody saw is left out: it may come after everything else.
        """
        offsets = {value: offset for log in logs for offset, value in log}
        read = {(one.key, one.value) for one in self.operations if one.kind == "read"}
        found = []
        for one in self.operations:
            if one.ended_ns is None and one.kind == "append":
                if one.value in offsets:
                    found.append(replace(one, offset=offsets[one.value]))
            elif one.ended_ns is not None or (one.key, one.value) in read:
                found.append(one)
        now_ns = time.monotonic_ns()
        for partition, log in enumerate(logs):
            found.append(Operation(f"log {partition}", "end", -1, now_ns, now_ns + 1, offset=len(log)))
        return found

    def problems(self, checker: Path, logs: list[list[tuple[int, int]]]) -> list[str]:
        """`logs`: (offset, value) of every record of each partition, read after everything was over."""
        return [*not_linearizable(checker, self.settled(logs)), *not_prefixes(self.shown, logs),
                *missing(self.operations, logs)]  # fmt: skip


def missing(operations: Iterable[Operation], logs: list[list[tuple[int, int]]]) -> list[str]:
    """Records that were acknowledged and are not where they were said to be."""
    there = [dict(log) for log in logs]
    return [
        f"{one.key}: value {one.value} was acknowledged at {one.offset}, where {found} is"
        for one in operations
        if one.kind == "append" and one.ended_ns is not None
        and (found := there[int(one.key.split()[1])].get(one.offset)) != one.value
    ]  # fmt: skip


def not_prefixes(shown: Iterable[Shown], logs: list[list[tuple[int, int]]]) -> list[str]:
    """What was shown, and is not what the log has."""
    there, found = [dict(log) for log in logs], []
    for one in shown:
        log = there[one.partition]
        if one.high_watermark > len(log):
            found.append(f"log {one.partition}: node {one.node} told of {one.high_watermark} records of {len(log)}")
        for offset, value in one.values.items():
            if log.get(offset) != value:
                found.append(
                    f"log {one.partition}: node {one.node} showed {value} at {offset}, where {log.get(offset)} is"
                )
    return found


# -- Porcupine ---------------------------------------------------------------------------------------------------------


class CheckerUnavailable(RuntimeError):  # noqa: N818 (it says what is)
    """The message is the reason for a skip."""


def build_checker(folder: Path) -> Path:
    """The checker's binary."""
    go = shutil.which("go")
    if go is None:
        raise CheckerUnavailable("Go is not installed, so that histories cannot be checked by Porcupine")
    environment = {**os.environ, "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
    fetched = subprocess.run(
        [go, "mod", "download"], cwd=MODULE, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if fetched.returncode:
        raise CheckerUnavailable(f"Porcupine could not be fetched: {fetched.stderr.strip()[-300:]}")
    target = folder / "linearizability"
    built = subprocess.run(
        [go, "build", "-o", str(target), "."], cwd=MODULE, env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return target


def not_linearizable(checker: Path, operations: Iterable[Operation]) -> list[str]:
    """The keys for which no order explains what clients were told."""
    lines = []
    for one in operations:
        fields = asdict(one)
        fields["call"], fields["return"] = fields.pop("call_ns"), fields.pop("ended_ns")
        lines.append(json.dumps(fields))
    done = subprocess.run(
        [checker], input="\n".join(lines), capture_output=True, text=True, timeout=CHECK_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return [f"{key}: {why}" for key, why in json.loads(done.stdout).items()]


# -- clients -----------------------------------------------------------------------------------------------------------


class Client:
    """One thread's connections; every trouble of them is a `ConnectionError` or `TimeoutError`."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self._lines: dict[int, RawConnection] = {}

    def ask(self, number: int, api: str, version: int, values: dict[str, Any]) -> dict[str, Any]:
        """Of core 0 of a node; a connection that fails is given up."""
        node = self.nodes[number - 1]
        try:
            if number not in self._lines:
                self._lines[number] = RawConnection(node.host, node.ports[0], ANSWER_S)
            return self._lines[number].ask(api, version, values)
        except OSError:
            self.drop(number)
            raise

    def drop(self, number: int) -> None:
        line = self._lines.pop(number, None)
        if line is not None:
            line.close()

    def close(self) -> None:
        for number in list(self._lines):
            self.drop(number)


class Actors:
    """Appenders and fetchers of each partition, writers and readers of the committed offset of a group.

    Each goes from node to node until one takes what it asks: what nodes say of each other is not relied upon, and
    whoever takes itself for the leader is asked, too.
    """

    def __init__(self, nodes: list[Node], topic: str, partitions: int, group: str) -> None:
        self.history = History()
        self.topic, self.partitions, self.group = topic, partitions, group
        self.failures: list[BaseException] = []
        self._nodes = nodes
        self._values = itertools.count(1)
        self._done: list[int] = []
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @contextmanager
    def at_work(self) -> Iterator[None]:
        eventually(self._has_coordinator, "the group has a coordinator")
        for partition in range(self.partitions):
            for act in (self._append, self._append, self._fetch):
                self._begin(act, partition)
        for act in (self._write, self._read, self._read):
            self._begin(act, 0)
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        assert not self.failures, self.failures

    def _has_coordinator(self) -> bool:
        """The first who asks has the internal topic made."""
        client = Client(self._nodes)
        try:
            found = client.ask(1, "FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [self.group]})
        finally:
            client.close()
        return bool(found["Coordinators"][0]["ErrorCode"] == 0)

    def wait_progress(self) -> None:
        """Until each of them has got what it asked for since now."""
        before = list(self._done)
        eventually(lambda: self.failures or all(map(int.__lt__, before, self._done)), "everybody goes on")
        assert not self.failures, self.failures

    def _begin(self, act: Callable[[Client, int, int, int], bool], partition: int) -> None:
        me = len(self._done)
        self._done.append(0)

        def run() -> None:
            client, node = Client(self._nodes), itertools.cycle(range(1, len(self._nodes) + 1))
            asked = next(node)
            try:
                while not self._stop.is_set():
                    try:
                        is_done = act(client, me, asked, partition)
                    except OSError:  # ended, silent, or not there
                        is_done = False
                    self._done[me] += is_done
                    if not is_done or act == self._fetch or act == self._read:
                        asked = next(node)
                    self._stop.wait(PACE_S)
            except BaseException as problem:
                self.failures.append(problem)
                raise
            finally:
                client.close()

        self._threads.append(threading.Thread(target=run))

    def append(self, client: Client, me: int, node: int, partition: int, acks: int = -1) -> bool:
        """Whether it was acknowledged."""
        value, call_ns = next(self._values), time.monotonic_ns()
        data = {"Index": partition, "Records": batch(0, [b"%d" % value])}
        asked = {"Acks": acks, "TimeoutMs": 3_000, "TopicData": [{"Name": self.topic, "PartitionData": [data]}]}
        ended_ns, offset = None, -1
        try:
            (topic,) = client.ask(node, "Produce", 9, asked)["Responses"]
            (answer,) = topic["PartitionResponses"]
            if answer["ErrorCode"] == 0:
                ended_ns, offset = time.monotonic_ns(), answer["BaseOffset"]
        finally:
            self.history.operations.append(
                Operation(f"log {partition}", "append", me, call_ns, ended_ns, offset, value)
            )
        return ended_ns is not None

    def _append(self, client: Client, me: int, node: int, partition: int) -> bool:
        return self.append(client, me, node, partition)

    def _fetch(self, client: Client, me: int, node: int, partition: int) -> bool:
        known = [each for each in self.history.shown if each.partition == partition][-1:]
        begin = max((max(each.values, default=0) - 5 for each in known), default=0)
        wanted = {"Partition": partition, "FetchOffset": max(begin, 0), "PartitionMaxBytes": 1 << 16}
        asked = {"MaxWaitMs": 20, "MinBytes": 1, "Topics": [{"Topic": self.topic, "Partitions": [wanted]}]}
        (topic,) = client.ask(node, "Fetch", 11, asked)["Responses"]
        (answer,) = topic["Partitions"]
        if answer["ErrorCode"] or not answer["Records"]:
            return False
        values = {
            each["base_offset"] + record[0]: int(record[3])
            for each in read_batches(answer["Records"]) for record in each["records"]
        }  # fmt: skip
        self.history.shown.append(Shown(node, partition, answer["HighWatermark"], values))
        return True

    def _write(self, client: Client, me: int, node: int, _partition: int) -> bool:
        value, call_ns = next(self._values), time.monotonic_ns()
        place = {"PartitionIndex": 0, "CommittedOffset": value, "CommittedMetadata": ""}
        asked = {"GroupId": self.group, "MemberId": "", "Topics": [{"Name": self.topic, "Partitions": [place]}]}
        ended_ns = None
        try:
            (topic,) = client.ask(node, "OffsetCommit", 7, asked)["Topics"]
            if topic["Partitions"][0]["ErrorCode"] == 0:
                ended_ns = time.monotonic_ns()
        finally:
            key = f"offset {self.group}"
            self.history.operations.append(Operation(key, "write", me, call_ns, ended_ns, value=value))
        return ended_ns is not None

    def _read(self, client: Client, me: int, node: int, _partition: int) -> bool:
        call_ns = time.monotonic_ns()
        asked = {"GroupId": self.group, "Topics": [{"Name": self.topic, "PartitionIndexes": [0]}]}
        found = client.ask(node, "OffsetFetch", 5, asked)
        if found["ErrorCode"]:
            return False
        place = found["Topics"][0]["Partitions"][0]
        assert place["ErrorCode"] == 0, ErrorCode(place["ErrorCode"])
        value, ended_ns = place["CommittedOffset"], time.monotonic_ns()
        self.history.operations.append(Operation(f"offset {self.group}", "read", me, call_ns, ended_ns, value=value))
        return True
