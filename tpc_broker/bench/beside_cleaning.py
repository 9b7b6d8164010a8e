"""A loaded broker whose cleaner works all the time, beside one that does not clean.

A tail of one minute and one of the next are not of the same machine. So brokers with and without a cleaner are started
in turn, the first of a pair being the second of the next, and the ratio is that of the medians. Meanwhile one stock
consumer reads the compacted partitions from their beginning to their end, again and again; whatever it is refused, or
comes out of order, is a failed read.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tpc_broker.bench.bars import CLEANING_P99, FAILED_READS, SWAP_LOCK_MS
from tpc_broker.bench.kafka_requests import produce_request
from tpc_broker.bench.load import Connection, LoadFailed, run_load
from tpc_broker.bench.measured import Round, Stage, Workload, make_round
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.kafka.records import Record, build_batch
from tpc_broker.telemetry.status import read_status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tpc_broker.bench.load import LoadResult, Plan
    from tpc_broker.bench.server import Server

PAIRS: Final = 4
MEASURED_TIMES: Final = 5
"""As long as other loads: many cleanings."""
CLEANINGS_MIN: Final = 5
"""Of a measured time; with fewer there is no figure."""
COMPACTED_PARTITIONS: Final = 4
_RECORDS, _REQUESTS, _KEYS = 16, 256, 4096
_SETTINGS: Final = {
    "cleanup.policy": "compact", "segment.bytes": str(4 << 20), "min.cleanable.dirty.ratio": "0.1",
}  # fmt: skip
_READ_PAUSE_S: Final = 0.02
_READ_RECORDS: Final = 200


class _Cleaning(TpcPeer):
    """With a cleaner that looks for work all the time."""

    overrides: ClassVar[tuple[str, ...]] = ("log.cleaner.backoff.ms=100",)

    def node(self, folder: Path, port: int, *more: str, host: str = "127.0.0.1", prefix: Sequence[str] = ()) -> Server:
        told = [text for one in self.overrides for text in ("--override", one)]
        return super().node(folder, port, *told, *more, host=host, prefix=prefix)

    def cleaning(self) -> list[dict[str, int]]:
        """What each core has counted."""
        return [core["counters"]["cleaning"] for core in read_status(self.folder / "data")["cores"]]


class _NotCleaning(_Cleaning):
    overrides: ClassVar = ("log.cleaner.enable=false",)


_ORDERS: Final = (
    (("without", _NotCleaning), ("beside", _Cleaning)),
    (("beside", _Cleaning), ("without", _NotCleaning)),
)


class _Reader:
    """Reads a topic from its beginning to its end, over and over, at a bounded rate. A context."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.failures: list[str] = []
        self.records_count = self.laps_count = 0
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        consumer = Consumer({
            "bootstrap.servers": self._bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0,
            "auto.offset.reset": "error", "enable.partition.eof": True,
        })  # fmt: skip
        try:
            while not self._over.is_set():
                self._lap(consumer)
        except KafkaException as error:
            self.failures.append(str(error))
        finally:
            consumer.close()

    def _lap(self, consumer: Consumer) -> None:
        """Until the end of each partition was met."""
        consumer.assign([TopicPartition(self._topic, partition, 0) for partition in range(self._partitions)])
        at = dict.fromkeys(range(self._partitions), -1)
        ended: set[int] = set()
        while len(ended) < self._partitions and not self._over.wait(_READ_PAUSE_S):
            for message in consumer.consume(_READ_RECORDS, timeout=0.1):
                self._take(message, at, ended)
        self.laps_count += 1

    def _take(self, message: Any, at: dict[int, int], ended: set[int]) -> None:
        error, partition = message.error(), message.partition()
        if error is not None and error.name() == "_PARTITION_EOF":
            ended.add(partition)
        elif error is not None:
            self.failures.append(error.str())
        elif message.offset() <= at[partition]:
            self.failures.append(f"offset {message.offset()} behind {at[partition]} of partition {partition}")
        else:
            at[partition] = message.offset()
            self.records_count += 1


def _keyed_requests(topic: str, partition: int, value_bytes: int) -> list[bytes]:
    """They are sent again and again, so that but for the last ones all records are dead."""
    requests, now_ms = [], int(time.time() * 1000)
    for number in range(_REQUESTS):
        first = number * _RECORDS
        records = [
            Record(bytes(value_bytes), b"key-%06d" % ((first + place) % _KEYS), timestamp_ms=now_ms)
            for place in range(_RECORDS)
        ]
        requests.append(produce_request(topic, partition, bytes(build_batch(records))))
    return requests


def _plan(workload: Workload, peer: TpcPeer, seconds: tuple[float, float]) -> Plan:
    """The workload's shape to a topic that is not compacted, and as many requests of 16 records to one that is."""
    plan = peer.produce_plan(f"load-{workload.key}", workload.shape, seconds)
    peer.topic_extras = dict(_SETTINGS)
    compacted = f"compacted-{workload.key}"
    leaders = peer.create_topic(compacted, COMPACTED_PARTITIONS)
    more = [
        Connection(*address, _keyed_requests(compacted, partition, workload.shape.value_bytes))
        for partition, address in leaders.items()
    ]
    return replace(plan, connections=[*plan.connections, *more])


def _run(workload: Workload, stage: Stage, peer: _Cleaning, extra: dict[str, list[float]]) -> LoadResult:
    seconds = stage.extent.warm_up, MEASURED_TIMES * stage.extent.measured
    plan = _plan(workload, peer, seconds)
    peer.server.settle()  # type: ignore[union-attr]
    compacted = f"compacted-{workload.key}"
    with _Reader(peer.bootstrap, compacted, COMPACTED_PARTITIONS) as reader:
        found = run_load(plan)
    own = sum(peer.end_offsets(f"load-{workload.key}", workload.shape.partitions).values())
    others = sum(peer.end_offsets(compacted, COMPACTED_PARTITIONS).values())
    if own + others // _RECORDS != found.requests_all:
        raise LoadFailed(f"{found.requests_all} requests were acknowledged, {own} and {others} records are there")
    extra["failed"].append(float(len(reader.failures)))
    extra["laps"].append(float(reader.laps_count))
    return found


def beside_cleaning(workload: Workload, stage: Stage) -> Round:
    """Figures are those beside a cleaner."""
    folder, p99_us = stage.peer.folder, {"without": list[float](), "beside": list[float]()}
    extra: dict[str, list[float]] = {name: [] for name in ("failed", "laps", "cleanings", "swaps", "mean", "max")}
    for pair in range(PAIRS):
        for name, kind in _ORDERS[pair % 2]:
            stage.peer = peer = kind(folder / f"{name}-{pair}", "durable")
            try:
                peer.start()
                found = _run(workload, stage, peer, extra)
                p99_us[name].append(found.histogram.percentiles_us()["99"])
                counted = peer.cleaning()
                made = make_round(found, stage, records=1, value_bytes=workload.shape.value_bytes, used_cpu_s=0.0)
            finally:
                peer.kill()
            if name == "beside":
                _count(counted, extra)
    middle = {name: median(each) for name, each in p99_us.items()}
    made.extra = {
        "p99 µs without": round(middle["without"], 1),
        "p99 µs beside": round(middle["beside"], 1),
        CLEANING_P99: round(middle["beside"] / middle["without"], 3),
        FAILED_READS: sum(extra["failed"]),
        "times that all was read": sum(extra["laps"]),
        "cleanings": sum(extra["cleanings"]),
        "swaps": sum(extra["swaps"]),
        "ms that a swap locked, mean": round(median(extra["mean"]), 3),
        SWAP_LOCK_MS: max(extra["max"]),
    }
    return made


def _count(counted: list[dict[str, int]], extra: dict[str, list[float]]) -> None:
    """LoadFailed: the cleaner hardly worked."""
    cleanings, swaps = (sum(core[name] for core in counted) for name in ("cleanings", "swaps"))
    if cleanings < CLEANINGS_MIN or not swaps:
        raise LoadFailed(f"there were only {cleanings} cleanings, so nothing was measured beside them")
    extra["cleanings"].append(cleanings)
    extra["swaps"].append(swaps)
    extra["mean"].append(sum(core["swaps_locked_us"] for core in counted) / 1000 / swaps)
    extra["max"].append(max(core["swap_locked_us_max"] for core in counted) / 1000)
