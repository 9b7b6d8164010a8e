"""Two nodes join three under load, and leave again: what producers notice while replicas move by themselves.

An idempotent librdkafka producer sends at a steady rate, in turn over all partitions; a latency counts from when the
record was due. Phases begin with what the bench does and end with what the cluster shows: nodes start, replicas move
until all nodes hold as many within one, nodes are drained until they hold nothing, and are stopped and removed.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tpc_broker.bench.bars import JOIN_RATIO, LEAVE_RATIO, UNEVEN
from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.load import LoadFailed, until
from tpc_broker.bench.measured import Round, Stage, Workload, check_stored
from tpc_broker.bench.peers.clusters import NODES, TpcClusterPeer
from tpc_broker.bench.plots import DRAINED_AT, JOINED_AT
from tpc_broker.cli.cluster_facts import cluster_facts
from tpc_broker.cli.info import CORES_PER_NODE
from tpc_broker.cli.nodes import DRAINING
from tpc_broker.client.errors import ClientError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import KafkaError, Message

    from tpc_broker.bench.peers import Shape

JOINING: Final = 2
"""Nodes."""
WARM_UP_S_MIN: Final = 5.0
WARM_UP_ROUNDS: Final = 12
"""Records that each partition has before anything is counted: their files are made, the journals have grown, and the
first checkpoint is done.
"""
BEFORE_S_MIN: Final = 10.0
_LED_S: Final = 300.0
_BALANCED_S: Final = 3600.0
_REMOVED_S: Final = 120.0
_FLUSH_S: Final = 120.0
_LOOK_S: Final = 1.0
_until = partial(until, look_s=_LOOK_S)
_SETTLED_BY_S: Final = 60.0
_POLL_S: Final = 0.001
_SLOT_NS: Final = 10**8
_SECOND_NS: Final = 10**9


@dataclass(frozen=True)
class Acknowledged:
    """When a record was due, and when it was acknowledged."""

    due_ns: int
    ended_ns: int


@dataclass
class Phase:
    """What was due in a part of the run. A silence is a time without any acknowledgement."""

    name: str
    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def latencies(self, found: Iterable[Acknowledged]) -> Histogram:
        histogram = Histogram()
        for one in found:
            if self.start_ns <= one.due_ns < self.end_ns:
                histogram.add(one.ended_ns - one.due_ns)
        return histogram

    def silence_ms(self, found: Iterable[Acknowledged]) -> float:
        """The longest that began or ended in it."""
        ends = sorted(one.ended_ns for one in found)
        pairs = itertools.pairwise([*ends, self.end_ns] if not ends or ends[-1] < self.end_ns else ends)
        longest = max((b - a for a, b in pairs if b > self.start_ns and a < self.end_ns), default=0)
        return longest / 1e6


@dataclass
class _Load:
    """Records at the shape's rate, however late the answers, from a thread of its own."""

    producer: Producer
    topic: str
    shape: Shape
    found: list[Acknowledged] = field(default_factory=list)
    sent: int = 0
    failed: str = ""

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._begun_ns = 0

    def _send(self) -> None:
        due_ns = self._begun_ns + int(self.sent / self.shape.rate * 1e9)

        def delivered(error: KafkaError | None, _message: Message) -> None:
            if error is not None:
                self.failed = str(error)
            self.found.append(Acknowledged(due_ns, time.monotonic_ns()))

        partition, value = self.sent % self.shape.partitions, bytes(self.shape.value_bytes)
        self.producer.produce(self.topic, value, partition=partition, on_delivery=delivered)
        self.sent += 1

    def _run(self) -> None:
        self._begun_ns = time.monotonic_ns()
        while not self._over.is_set():
            passed_s = (time.monotonic_ns() - self._begun_ns) / 1e9
            while self.sent < passed_s * self.shape.rate:
                self._send()
            self.producer.poll(_POLL_S)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """How many were not acknowledged."""
        self._over.set()
        self._thread.join()
        return self.producer.flush(_FLUSH_S)


def rebalance(workload: Workload, stage: Stage) -> Round:
    """Every record has to be acknowledged in the end, and to be there once."""
    peer, shape, topic = stage.peer, workload.shape, f"load-{workload.key}"
    assert isinstance(peer, TpcClusterPeer)
    peer.ask_for_topic(topic, shape.partitions)
    _until(lambda: len(peer.leaders(topic)) == shape.partitions, f"{topic} is led", _LED_S)
    stage.server.settle(_SETTLED_BY_S)
    settings = {
        "bootstrap.servers": peer.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0,
        "message.timeout.ms": int(_FLUSH_S * 1000),
    }  # fmt: skip
    load = _Load(Producer(settings), topic, shape)
    load.start()
    try:
        phases, uneven = _phases(peer, stage, shape)
    finally:
        unsent = load.stop()
    if load.failed or unsent:
        raise LoadFailed(f"{unsent} records were not acknowledged: {load.failed}")
    check_stored(peer, topic, load.sent)
    return _round(load.found, stage, phases, uneven)


def _phases(peer: TpcClusterPeer, stage: Stage, shape: Shape) -> tuple[list[Phase], dict[str, float]]:
    """What happened when, and by how many replicas the fullest node exceeded the emptiest one at the end of each."""
    time.sleep(max(stage.extent.warm_up, WARM_UP_S_MIN, WARM_UP_ROUNDS * shape.partitions / shape.rate))
    total = NODES * shape.partitions
    marks = [("before", time.monotonic_ns())]
    time.sleep(max(stage.extent.measured, BEFORE_S_MIN))
    marks.append(("starting", time.monotonic_ns()))
    joined = peer.join(JOINING)
    _until(lambda: _facts(peer)["moves"], "replicas move", _LED_S)
    marks.append(("joining", time.monotonic_ns()))
    everybody = {*range(1, NODES + 1), *joined}
    uneven = {f"{UNEVEN}, {NODES + JOINING} nodes": _wait_even(peer, everybody, total)}
    marks.append(("between", time.monotonic_ns()))
    time.sleep(max(stage.extent.measured, BEFORE_S_MIN))
    marks.append(("leaving", time.monotonic_ns()))
    _drain(peer, joined)
    uneven[f"{UNEVEN}, {NODES} nodes"] = _wait_even(peer, everybody - joined, total)
    marks.append(("removal", time.monotonic_ns()))
    for node in sorted(joined):
        peer.leave(node)
    for node in sorted(joined):
        _until(partial(_is_removed, peer, node), f"node {node} is removed", _REMOVED_S)
    marks.append(("after", time.monotonic_ns()))
    time.sleep(stage.extent.measured)
    marks.append(("", time.monotonic_ns()))
    return [Phase(name, start, end) for (name, start), (_name, end) in itertools.pairwise(marks)], uneven


def _facts(peer: TpcClusterPeer) -> dict[str, Any]:
    try:
        return cluster_facts(peer.bootstrap)[1]
    except (ClientError, SystemExit):
        return {"moves": [], "nodes": []}


def _wait_even(peer: TpcClusterPeer, nodes: set[int], total: int) -> float:
    """Until nothing moves and these nodes hold all replicas; by how many the fullest exceeds the emptiest then."""
    while_s, give_up_at = 0.0, time.monotonic() + _BALANCED_S
    while time.monotonic() < give_up_at:
        facts = _facts(peer)
        held = {row["node"]: row["replicas"] for row in facts["nodes"]}
        within = [held.get(node, 0) for node in nodes]
        if not facts["moves"] and sum(within) >= total and sum(within) == sum(held.values()):
            uneven = float(max(within) - min(within))
            if uneven <= 1 or while_s > _SETTLED_BY_S:
                return uneven
            while_s += _LOOK_S
        time.sleep(_LOOK_S)
    raise LoadFailed(f"not even after {_BALANCED_S:g} s: {held}, {len(facts['moves'])} replicas move")


def _drain(peer: TpcClusterPeer, nodes: set[int]) -> None:
    """As `tpc node drain` does."""
    change = ConfigEntry(DRAINING, "true", incremental_operation=AlterConfigOpType.SET)
    wanted = [
        ConfigResource(ResourceType.BROKER, str(node * CORES_PER_NODE), incremental_configs=[change])
        for node in sorted(nodes)
    ]
    admin = AdminClient({"bootstrap.servers": peer.bootstrap, "log_level": 0})
    for one in wanted:
        for future in admin.incremental_alter_configs([one], request_timeout=30).values():
            future.result()


def _is_removed(peer: TpcClusterPeer, node: int) -> bool:
    command = [sys.executable, "-m", "tpc_broker.cli.main", "node", "remove", str(node), "--bootstrap", peer.bootstrap]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _round(found: list[Acknowledged], stage: Stage, phases: list[Phase], uneven: dict[str, float]) -> Round:
    whole = Phase("all", phases[0].start_ns, phases[-1].end_ns)
    extra: dict[str, float] = {}
    p99_ms = {}
    for phase in phases:
        histogram = phase.latencies(found)
        p99_ms[phase.name] = histogram.percentile(99) / 1e6
        extra |= {
            f"s {phase.name}": round(phase.seconds, 1),
            f"p99 ms {phase.name}": round(p99_ms[phase.name], 2),
            f"p50 ms {phase.name}": round(histogram.percentile(50) / 1e6, 2),
            f"longest ms {phase.name}": round(histogram.percentile(100) / 1e6, 1),
            f"longest silence ms {phase.name}": round(phase.silence_ms(found), 1),
        }
    before_ms = max(p99_ms["before"], 0.001)
    starts = {phase.name: (phase.start_ns - whole.start_ns) / 1e9 for phase in phases}
    extra |= {
        JOIN_RATIO: round(p99_ms["joining"] / before_ms, 2),
        LEAVE_RATIO: round(p99_ms["leaving"] / before_ms, 2),
        JOINED_AT: starts["joining"],
        DRAINED_AT: starts["leaving"],
        **uneven,
    }
    slots = [0] * int(whole.seconds * 10)
    for one in found:
        place = (one.ended_ns - whole.start_ns) // _SLOT_NS
        if 0 <= place < len(slots):
            slots[place] += 1
    rate = sum(slots) / whole.seconds
    histogram = whole.latencies(found)
    return Round(
        requests_per_s=round(rate, 1), records_per_s=round(rate, 1), latency_us=histogram.percentiles_us(),
        resident_mib=round(stage.server.resident_bytes() / 2**20, 1), per_100ms=slots, buckets=histogram.buckets(),
        extra=extra, series={"p99 of each second, ms": _p99_by_second(found, whole)},
    )  # fmt: skip


def _p99_by_second(found: list[Acknowledged], whole: Phase) -> list[tuple[float, float]]:
    by_second: dict[int, list[int]] = {}
    for one in found:
        if whole.start_ns <= one.due_ns < whole.end_ns:
            by_second.setdefault((one.due_ns - whole.start_ns) // _SECOND_NS, []).append(one.ended_ns - one.due_ns)
    return [(float(at), sorted(took)[int(len(took) * 0.99)] / 1e6) for at, took in sorted(by_second.items())]
