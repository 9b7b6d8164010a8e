"""What a workload is, where it runs, and what one round of it gives.

A round loads a topic of its own and checks that the server holds exactly what it acknowledged; a difference is a
`CountsDiffer`, never a figure. Workloads of one group share a running server one after the other (`Stage`), so that ten
gigabytes are written once and read in several ways.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tpc_broker.bench.peers import Peer, Shape
from tpc_broker.bench.peers.kafka_like import KafkaLikePeer

if TYPE_CHECKING:
    import socket

    from tpc_broker.bench.load import LoadResult
    from tpc_broker.bench.server import Server


class CountsDiffer(RuntimeError):  # noqa: N818 (it says what is)
    """The server does not hold what it acknowledged, or a reader did not get what was there."""


@dataclass(frozen=True)
class Extent:
    """How long a round takes and how much data it makes."""

    warm_up: float = 1.0
    """Seconds."""
    measured: float = 4.0
    """Seconds."""
    gigabytes: float = 10.0
    """Of values that are stored before a catch-up or a recovery."""
    soak_minutes: float = 60.0
    faults: tuple[int, int, int] = (50, 50, 50)
    """Kills, pauses and isolations of nodes."""


@dataclass
class Round:
    """What one peer did in one round of one workload."""

    requests_per_s: float = 0.0
    records_per_s: float = 0.0
    mb_per_s: float = 0.0
    """Millions of bytes of values (produce) or of batches (fetch)."""
    latency_us: dict[str, float] = field(default_factory=dict)
    cpu_s_per_gb: float = 0.0
    cpu_us_per_request: float = 0.0
    resident_mib: float = 0.0
    generator_was_limit: bool = False
    generator_cpu_share: float = 0.0
    per_100ms: list[int] = field(default_factory=list)
    buckets: list[tuple[int, int]] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Values over time: (seconds, value)."""
    silences_s: dict[str, list[float]] = field(default_factory=dict)
    """Of each fault, by its kind: how long not all partitions were acknowledged."""
    others_cpus: float = 0.0
    """CPUs that neither the server nor the bench kept busy meanwhile."""


@dataclass
class Stage:
    """A peer that runs, and what earlier workloads of a group left there for later ones."""

    peer: Peer
    extent: Extent
    facts: dict[str, float] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    """End offsets of the topic `STORED`, once it is filled."""
    idle: list[socket.socket] = field(default_factory=list)

    @property
    def server(self) -> Server:
        assert self.peer.server is not None
        return self.peer.server

    @property
    def kafka_like(self) -> KafkaLikePeer:
        assert isinstance(self.peer, KafkaLikePeer)
        return self.peer

    def close(self) -> None:
        for one in self.idle:
            one.close()
        self.idle.clear()
        self.peer.kill()


Runner = Callable[["Workload", Stage], Round]


@dataclass(frozen=True)
class Workload:
    key: str
    title: str
    run: Runner
    shape: Shape = field(default_factory=Shape)
    group: str = ""
    """Workloads of the same group share a server; none: a server of its own."""
    peers: tuple[str, ...] = ()
    """Names or labels of those it makes sense for; none: all."""
    brief: tuple[str, ...] = ()
    """Names or labels of those measured in the brief selection; none: it is no part of it."""
    count: int = 0
    """Consumers, or idle connections, or partitions: what the runner varies."""
    share: float = 0.0
    """Of the highest load."""
    is_asked_for: bool = False
    """Runs only when it is named: not even `all` means it."""
    needs_server: bool = True
    """The peer is started before."""

    def suits(self, peer: str, *, only_brief: bool) -> bool:
        """Whether a peer, by its label, is measured under this."""
        names = {peer, peer.split(maxsplit=1)[0]}
        if only_brief:
            return bool(names & set(self.brief))
        return not self.peers or bool(names & set(self.peers))


def make_round(found: LoadResult, stage: Stage, *, records: float, value_bytes: float, used_cpu_s: float) -> Round:
    """`records` and `value_bytes` are those of one request."""
    requests_all = max(1, found.requests_all)
    gigabytes = requests_all * value_bytes / 1e9
    return Round(
        requests_per_s=round(found.requests_per_s, 1),
        records_per_s=round(found.requests_per_s * records, 1),
        mb_per_s=round(found.requests_per_s * value_bytes / 1e6, 3),
        latency_us=found.histogram.percentiles_us(),
        cpu_s_per_gb=round(used_cpu_s / gigabytes, 3) if gigabytes else 0.0,
        cpu_us_per_request=round(used_cpu_s / requests_all * 1e6, 2),
        resident_mib=round(stage.server.resident_bytes() / 2**20, 1),
        generator_was_limit=found.generator_was_limit,
        generator_cpu_share=found.generator_cpu_share,
        per_100ms=found.slots,
        buckets=found.histogram.buckets(),
    )


def figures_round(stage: Stage, extra: dict[str, float]) -> Round:
    """A round whose figures are not those of a load."""
    resident_mib = round(stage.server.resident_bytes() / 2**20, 1)
    return Round(resident_mib=resident_mib, extra=extra)


def check_stored(peer: Peer, topic: str, records: int, within_s: float = 10.0) -> None:
    """What is acknowledged before it is durable is counted when it is: a while later, where the disk is slow."""
    deadline_s = time.monotonic() + within_s
    stored = peer.stored_count(topic)
    while stored is not None and stored < records and time.monotonic() < deadline_s:
        time.sleep(0.05)
        stored = peer.stored_count(topic)
    if stored is not None and stored != records:
        raise CountsDiffer(f"{peer.label}: {records} records were acknowledged, {topic} holds {stored}")
