"""The raw load generator (`native/bench/load.c`): a plan of connections and prebuilt requests, and what came of it."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from tpc_broker.bench.compiled import program
from tpc_broker.bench.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KAFKA_PRODUCE: Final = 0
REDIS: Final = 1
NATS: Final = 2
KAFKA_FETCH: Final = 3
OFFSET_LAST: Final = 2**63 - 1
GENERATOR_LIMIT_SHARE: Final = 0.9
"""A generator that used this much of its CPU may have been what was measured."""
_HEADER: Final = struct.Struct("<8s6IdQQQQ")
_CONNECTION: Final = struct.Struct("<4s9Iqq")
_NONE: Final = 2**32 - 1


class LoadFailed(RuntimeError):  # noqa: N818 (it says what happened)
    """The generator gave up: a refused request, a closed connection."""


def until(is_so: Callable[[], object], what: str, within_s: float, look_s: float) -> None:
    """Look again and again, every `look_s`. LoadFailed: it is not so within `within_s`; `what` says what was to be."""
    give_up_at = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > give_up_at:
            raise LoadFailed(f"not after {within_s:g} s: {what}")
        time.sleep(look_s)


@dataclass(frozen=True)
class Connection:
    """One connection: where to, what to send first, which requests in turn."""

    host: str
    port: int
    requests: Sequence[bytes]
    preamble: bytes = b""
    is_tls: bool = False
    """Whoever answers: its certificate is not looked at."""


@dataclass(frozen=True)
class FetchConnection:
    """Reads one partition from `offset_first` to `offset_end` with `requests`: whole, and with nothing changed."""

    host: str
    port: int
    requests: Sequence[bytes]
    offset_position: int
    session_position: int = 0
    """Where session id and epoch stand; 0: without a session."""
    offset_first: int = 0
    offset_end: int = OFFSET_LAST
    pair: int | None = None
    """Place of the only connection that writes this partition, from its first record on."""


@dataclass(frozen=True)
class Plan:
    """Senders speak `protocol`; fetches run beside them, or alone."""

    protocol: int
    connections: Sequence[Connection] = ()
    fetches: Sequence[FetchConnection] = ()
    depth: int = 1
    answers_per_request: int = 1
    records_per_request: int = 1
    rate: float = 0.0
    """Requests per second of all senders together; 0: as many as `depth` allows."""
    warm_up_s: float = 0.5
    measure_s: float = 2.0
    requests_max: int = 0
    """End after so many; 0: no such end."""
    passes_max: int = 0
    """Each sender ends after so many passes over its requests; 0: no such end."""

    def _row(self, connection: Connection | FetchConnection, blobs: list[bytes], places: dict[int, int]) -> bytes:
        if id(connection.requests) not in places:
            places[id(connection.requests)] = len(blobs)
            blobs.extend(connection.requests)
        target = (socket.inet_aton(connection.host), connection.port)
        requests = (places[id(connection.requests)], len(connection.requests))
        if isinstance(connection, FetchConnection):
            pair = _NONE if connection.pair is None else connection.pair
            return _CONNECTION.pack(
                *target, _NONE, *requests, connection.offset_position, KAFKA_FETCH, pair,
                connection.session_position, 0, connection.offset_first, connection.offset_end,
            )  # fmt: skip
        preamble = _NONE
        if connection.preamble:
            preamble = len(blobs)
            blobs.append(connection.preamble)
        how = self.protocol, _NONE, 0, int(connection.is_tls)
        return _CONNECTION.pack(*target, preamble, *requests, 0, *how, 0, OFFSET_LAST)

    def write(self, path: Path) -> None:
        blobs: list[bytes] = []
        places: dict[int, int] = {}
        rows = [self._row(connection, blobs, places) for connection in self.connections]
        rows += [self._row(connection, blobs, places) for connection in self.fetches]
        header = _HEADER.pack(
            b"TPCLOAD3", len(rows), len(self.connections), self.depth, self.answers_per_request, len(blobs),
            self.records_per_request, self.rate, int(self.warm_up_s * 1e9), int(self.measure_s * 1e9),
            self.requests_max, self.passes_max,
        )  # fmt: skip
        with path.open("wb") as file:
            file.write(header + b"".join(rows))
            for blob in blobs:
                file.write(struct.pack("<I", len(blob)))
                file.write(blob)


@dataclass
class LoadResult:
    """What the generator counted. `*_all` are totals with warm-up and drain, the others belong to the measured time."""

    requests: int
    requests_all: int
    elapsed_s: float
    generator_cpu_share: float
    histogram: Histogram
    records: int = 0
    records_all: int = 0
    data_bytes: int = 0
    data_bytes_all: int = 0
    unanswered: int = 0
    silence_longest_s: float = 0.0
    """The longest part of the measured time in which no connection got an answer."""
    end_to_end: Histogram = field(default_factory=Histogram)
    """From the intended sending to the arrival at a paired fetch, once per request."""
    lateness: Histogram = field(default_factory=Histogram)
    """Open loop: from the intended sending to the sending, which is part of the other two."""
    slots: list[int] = field(default_factory=list)
    """Answers (fetch: records) per 100 ms."""

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def generator_was_limit(self) -> bool:
        return self.generator_cpu_share >= GENERATOR_LIMIT_SHARE


def _result(found: dict[str, Any]) -> LoadResult:
    return LoadResult(
        requests=found["requests"],
        requests_all=found["requests_all"],
        elapsed_s=found["elapsed_ns"] / 1e9,
        generator_cpu_share=round(found["cpu_ns"] / max(1, found["run_ns"]), 3),
        histogram=Histogram((bucket, count) for bucket, count in found["histogram"]),
        records=found["records"],
        records_all=found["records_all"],
        data_bytes=found["bytes"],
        data_bytes_all=found["bytes_all"],
        unanswered=found["unanswered"],
        silence_longest_s=found["silence_longest_ns"] / 1e9,
        end_to_end=Histogram((bucket, count) for bucket, count in found["end_to_end"]),
        lateness=Histogram((bucket, count) for bucket, count in found["lateness"]),
        slots=found["slots"],
    )


class RunningLoad:
    """A generator at work; `result()` waits for its end. Usable as a context manager, which ends it for sure."""

    def __init__(self, plan: Plan) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "plan"
        plan.write(path)
        self._deadline_s = plan.warm_up_s + plan.measure_s + 60
        self._process = subprocess.Popen(
            [str(program("load")), str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def result(self) -> LoadResult:
        """`LoadFailed` with the generator's words when it gave up."""
        out, err = self._process.communicate(timeout=self._deadline_s)
        if self._process.returncode:
            raise LoadFailed(err.strip() or f"the generator ended with {self._process.returncode}")
        found = _result(json.loads(out))
        if found.unanswered:
            raise LoadFailed(f"{found.unanswered} requests were not answered within 30 s of the end")
        return found


def run_load(plan: Plan) -> LoadResult:
    with RunningLoad(plan) as running:
        return running.result()
