"""The generator of transactions (`native/bench/transaction_load.c`): a plan of producers and readers, and what came."""

from __future__ import annotations

import json
import socket
import struct
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.bench.compiled import program
from tpc_broker.bench.grouping import coordinator_of
from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.kafka_requests import (
    end_transaction_request,
    fetch_requests,
    new_producer,
    record_batch,
    transactional_produce_request,
    without_session,
)
from tpc_broker.bench.load import LoadFailed, LoadResult

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import BinaryIO

    from tpc_broker.bench.peers.kafka_like import Address

_HEADER: Final = struct.Struct("<8s6IQQQQ")
_PRODUCER: Final = struct.Struct("<4sI4sIqIIII64I")
_READER: Final = struct.Struct("<4sIII")
_BATCHES_MAX: Final = 64
FETCH_WAIT_MS: Final = 500
TRANSACTION_KEY_TYPE: Final = 1


@dataclass(frozen=True)
class Transactions:
    """What each producer does: in every request a batch of so many records to each of its partitions, `depth` under
    way, and after so many requests, or so long, the transaction's end. Neither: it is idempotent, no more.
    """

    producers: int = 1
    depth: int = 1
    records: int = 1
    value_bytes: int = 1024
    partitions: int = 1
    """Of the topic, and of each producer."""
    requests: int = 0
    every_ms: float = 0.0
    abort_every: int = 0
    """The last one of so many is aborted; 0: none."""
    is_followed: bool = False
    """Readers on all partitions, for each of which a transaction's end is awaited: of one producer only."""
    requests_max: int = 0
    """No request is begun after so many of all producers; 0: no such end."""

    @property
    def is_transactional(self) -> bool:
        return bool(self.requests or self.every_ms)


@dataclass
class TransactionsResult:
    """Counted by the generator. `*_all` are totals, the others belong to the measured time."""

    load: LoadResult
    """Requests are Produces. `end_to_end`: from sending EndTxn until all readers were past its markers."""
    commits: Histogram = field(default_factory=Histogram)
    """From sending EndTxn to its answer."""
    transactions: int = 0
    transactions_all: int = 0
    aborted_all: int = 0
    resent_all: int = 0
    """Requests that the server wanted to be sent again."""

    @property
    def per_s(self) -> float:
        return self.transactions / self.load.elapsed_s if self.load.elapsed_s > 0 else 0.0

    def offsets(self, what: Transactions) -> int:
        """That all its records and markers took."""
        return (self.load.requests_all * what.records + self.transactions_all) * what.partitions


def run_transactions(
    leaders: dict[int, Address], topic: str, what: Transactions, seconds: tuple[float, float]
) -> TransactionsResult:
    """Warm-up and measured seconds. `LoadFailed` with the generator's words when it gave up."""
    if len(set(leaders.values())) != 1 or what.partitions > _BATCHES_MAX:
        raise LoadFailed(f"one leader of at most {_BATCHES_MAX} partitions is wanted")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan"
        with path.open("wb") as file:
            _write(file, leaders[0], topic, what, seconds)
        done = subprocess.run(
            [str(program("transaction_load")), str(path)], capture_output=True, text=True, check=False,
            timeout=sum(seconds) + 60,
        )  # fmt: skip
    if done.returncode:
        raise LoadFailed(done.stderr.strip() or f"the generator ended with {done.returncode}")
    return _result(json.loads(done.stdout))


def _write(
    file: BinaryIO, leader: Address, topic: str, what: Transactions, seconds: tuple[float, float]
) -> None:
    readers = range(what.partitions if what.is_followed else 0)
    file.write(
        _HEADER.pack(
            b"TPCTXNS1", what.producers, len(readers), what.depth, what.records, what.requests, what.abort_every,
            *(int(one * 1e9) for one in seconds), int(what.every_ms * 1e6), what.requests_max,
        )
    )
    batch = record_batch(what.records, what.value_bytes, is_transactional=what.is_transactional)
    for number in range(what.producers):
        name = f"{topic}-{number}" if what.is_transactional else ""
        coordinator = coordinator_of(leader, name, TRANSACTION_KEY_TYPE) if name else leader
        producer = new_producer(coordinator, name)
        request = transactional_produce_request(topic, range(what.partitions), batch, name)
        end, end_position = end_transaction_request(name)
        positions = _positions(request, batch, what.partitions)
        file.write(
            _PRODUCER.pack(
                *_place(leader), *_place(coordinator), *producer, what.partitions, end_position, 0,
                *positions, *[0] * (_BATCHES_MAX - len(positions)),
            )
        )
        _write_blobs(file, (request, end))
    for partition in readers:
        wanted = fetch_requests(
            topic, partition, bytes_max=1 << 20, wait_ms=FETCH_WAIT_MS, is_committed_only=True
        )
        file.write(_READER.pack(*_place(leader), 0, wanted.offset_position))
        _write_blobs(file, (without_session(wanted),))


def _place(address: Address) -> tuple[bytes, int]:
    return socket.inet_aton(address[0]), address[1]


def _write_blobs(file: BinaryIO, blobs: Sequence[bytes]) -> None:
    file.writelines(struct.pack("<I", len(blob)) + blob for blob in blobs)


def _positions(request: bytes, batch: bytes, count: int) -> list[int]:
    """Where the batches stand in the request."""
    found = [request.index(batch)]
    while len(found) < count:
        found.append(request.index(batch, found[-1] + len(batch)))
    return found


def _result(found: dict[str, Any]) -> TransactionsResult:
    if found["unanswered"]:
        raise LoadFailed(f"{found['unanswered']} producers did not come to their end within 30 s")
    histograms = {name: Histogram(map(tuple, found[name])) for name in ("histogram", "commits", "end_to_end")}
    load = LoadResult(
        requests=found["requests"],
        requests_all=found["requests_all"],
        elapsed_s=found["elapsed_ns"] / 1e9,
        generator_cpu_share=round(found["cpu_ns"] / max(1, found["run_ns"]), 3),
        histogram=histograms["histogram"],
        end_to_end=histograms["end_to_end"],
        slots=found["slots"],
    )
    return TransactionsResult(
        load, histograms["commits"], found["transactions"], found["transactions_all"], found["aborted_all"],
        found["resent_all"],
    )  # fmt: skip
