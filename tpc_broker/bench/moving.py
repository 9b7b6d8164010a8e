"""A partition that goes back and forth between two cores under load: what its clients notice, and what the cores count.

The load is librdkafka's, which follows the partition as any client does; its own retries and metadata requests are in
the latencies. It waits 100 ms and more before it sends again what was refused, so all is done twice: with a client as
it is by default, and with one that waits `QUICK_BACK_OFF_MS`. What is counted by the cores is the pause alone: from the
last append on one core to the adoption on the other. Acknowledged records are counted at the end, once each.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

from tpc_broker.bench.measured import CountsDiffer, Round, Stage, Workload
from tpc_broker.bench.peers.tpc import TpcPeer, cores_options
from tpc_broker.bench.server import Server, free_ports
from tpc_broker.cli.partitions import alter, ongoing
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.telemetry.status import read_status

if TYPE_CHECKING:
    from collections.abc import Sequence

CORES: Final = 2
RECORD_BYTES: Final = 100_000
RECORDS_PER_S: Final = 1_000
"""100 MB/s, as far as the machine comes."""
QUEUED_BYTES: Final = 16_000_000
QUICK_BACK_OFF_MS: Final = 5
BETWEEN_S: Final = 1.0
BEHIND_S: Final = 0.25
"""What is sent so soon after a move was asked for, or after it was done, counts as sent during a move."""
_LOOPBACK: Final = "127.0.0.1"


class _TwoCores(TpcPeer):
    def start(self) -> None:
        self.port = free_ports(CORES)
        command = [sys.executable, "-m", "tpc_broker.process.main", "serve", "--data", str(self.folder / "data")]
        command += ["--listen", f"{_LOOPBACK}:{self.port}", *cores_options(CORES)]
        self.server = Server(command, self.folder / "tpc.log")
        self.server.start(range(self.port, self.port + CORES))

    def counted(self, name: str) -> int:
        return sum(core["counters"]["storage"][name] for core in read_status(self.folder / "data")["cores"])


class _Load:
    """Records in open loop; when each was due, and how long it took to be acknowledged, in seconds."""

    def __init__(self, bootstrap: str, topic: str, back_off_ms: int | None) -> None:
        """`back_off_ms`: before a retry; None: the client's own."""
        back_off = {} if back_off_ms is None else {"retry.backoff.ms": back_off_ms, "retry.backoff.max.ms": back_off_ms}
        self._producer = Producer({
            **back_off,
            "bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, "message.max.bytes": 8_000_000,
            "batch.size": 1_000_000, "queue.buffering.max.kbytes": QUEUED_BYTES // 1024,
        })  # fmt: skip
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.took: list[tuple[float, float]] = []
        self.failed_count = 0

    def _told(self, due_s: float, error: Any, _message: Any) -> None:
        if error is not None:
            self.failed_count += 1
        else:
            self.took.append((due_s, time.monotonic() - due_s))

    def _run(self) -> None:
        value, due_s = bytes(RECORD_BYTES), time.monotonic()
        while not self._over.is_set():
            try:
                self._producer.produce(self._topic, value, partition=0, on_delivery=partial(self._told, due_s))
            except BufferError:
                self._producer.poll(0.01)  # the machine does not come so far: what is due waits
                due_s = time.monotonic()
                continue
            due_s += 1 / RECORDS_PER_S
            self._producer.poll(max(0.0, due_s - time.monotonic()))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._producer.flush(60)


def _p99_ms(values: Sequence[float]) -> float:
    return round(sorted(values)[int(len(values) * 0.99)] * 1000, 1) if values else 0.0


def _to_and_fro(client: Cluster, topic: str, until_s: float) -> list[tuple[float, float]]:
    """From when to when records were sent that a move may have met."""
    here, windows = client.topic(topic).leaders[0], list[tuple[float, float]]()
    while time.monotonic() < until_s or not windows:
        time.sleep(BETWEEN_S)
        here, asked_s = 1 - here, time.monotonic()
        alter(client, {(topic, 0): here})
        while ongoing(client):
            time.sleep(0.002)
        windows.append((asked_s - 0.01, time.monotonic() + BEHIND_S))
    return windows


def moves(workload: Workload, stage: Stage) -> Round:
    """One partition, to and fro, written by one client and then by another."""
    extra = _moved(workload, stage, None)
    quick = _moved(workload, stage, QUICK_BACK_OFF_MS)
    return Round(extra=extra | {f"{name}, back-off {QUICK_BACK_OFF_MS} ms": value for name, value in quick.items()})


def _moved(workload: Workload, stage: Stage, back_off_ms: int | None) -> dict[str, float]:
    peer = _TwoCores(stage.peer.folder / f"moves-{back_off_ms}", "durable")
    topic = f"load-{workload.key}"
    try:
        peer.start()
        with Cluster(ClusterSettings(peer.bootstrap)) as client:
            client.create_topic(topic, 1)
            while client.topic(topic).leaders[0] < 0:
                client.forget_topics()
            load = _Load(peer.bootstrap, topic, back_off_ms)
            load.start()
            try:
                time.sleep(stage.extent.warm_up)
                begun_s = time.monotonic()
                windows = _to_and_fro(client, topic, begun_s + stage.extent.measured)
                time.sleep(BETWEEN_S)
            finally:
                load.stop()
        if load.failed_count or peer.stored_count(topic) != len(load.took):
            raise CountsDiffer(f"{len(load.took)} were acknowledged, {peer.stored_count(topic)} are there")
        moved = max(1, peer.counted("partitions_adopted"))
        stopped_ms, adopting_ms = (
            peer.counted(f"moves_{what}_us") / 1000 / moved for what in ("stopped", "adopting")
        )  # fmt: skip
    finally:
        peer.kill()
    measured = [one for one in load.took if one[0] >= begun_s]
    during = [took for due_s, took in measured if any(first <= due_s <= last for first, last in windows)]
    between = [took for due_s, took in measured if not any(first <= due_s <= last for first, last in windows)]
    seconds = max(due_s for due_s, _took in measured) - begun_s
    return {
        "moves": float(len(windows)),
        "MB/s": round(len(measured) * RECORD_BYTES / 1e6 / seconds, 1),
        "p99 ms during moves": _p99_ms(during),
        "p99 ms between": _p99_ms(between),
        "longest ms": round(max(took for _due, took in measured) * 1000, 1),
        "ms without appends until released, mean": round(stopped_ms, 1),
        "ms until adopted, mean": round(adopting_ms, 1),
    }
