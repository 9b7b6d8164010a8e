"""Whether the broker lives and is ready, and if not, why: for load balancers, orchestrators and people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker import limits

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.node.counters import ClusterCounters
    from tpc_broker.telemetry.counters import CoreStatus


DISK_LEFT_WARNING: Final = 0.1


class Disk(NamedTuple):
    """The file system of the data directory. `left_bytes`: what clients' records may still take (`segment_space`)."""

    total_bytes: int
    free_bytes: int
    left_bytes: int


def disk_of(data: Path) -> Disk:
    found = os.statvfs(data)
    total_bytes, free_bytes = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return Disk(total_bytes, free_bytes, max(0, free_bytes - min(limits.DISK_HEADROOM_BYTES, total_bytes // 16)))


def cluster_of(cores: list[CoreStatus]) -> ClusterCounters | None:
    """What the node among others tells, where it is one and its core 0 has answered."""
    return next((core["cluster"] for core in cores if "cluster" in core), None)


class Health(NamedTuple):
    """`reasons`: why it is not ready. `warnings`: what an operator should know and what keeps no client out."""

    reasons: list[str]
    warnings: list[str]

    @property
    def is_ready(self) -> bool:
        return not self.reasons


def health_of(cores: list[CoreStatus], *, is_draining: bool, disk: Disk | None = None) -> Health:
    """Ready is a broker all of whose cores answer and can write, since each has partitions that no other core serves,
    and have returned with their replicas (`broker.replica_watch`).
    """
    health = Health(["the broker is draining"] if is_draining else [], [])
    if disk is not None and disk.left_bytes < disk.total_bytes * DISK_LEFT_WARNING:
        health.warnings.append(f"the disk is nearly full: {disk.left_bytes:,} bytes are left for records")
    for core in cores:
        reason = _why_not_ready(core)
        if reason is not None:
            health.reasons.append(f"core {core['core']} {reason}")
        counters = core.get("counters")
        if counters is None:
            continue
        offline = counters["broker"]["partitions_offline"]
        if offline:
            health.warnings.append(f"core {core['core']}: {offline} partitions have no leader: their files are damaged")
        readiness = counters.get("readiness") or {}
        health.reasons.extend(f"core {core['core']}: {text}" for text in readiness.get("reasons", ()))
        health.warnings.extend(f"core {core['core']}: {text}" for text in readiness.get("warnings", ()))
        replicas = counters.get("replicas")
        if replicas and replicas["leaderless"]:
            health.warnings.append(f"core {core['core']}: {replicas['leaderless']} partitions have no leader")
        if replicas and replicas["under_replicated"]:
            count = replicas["under_replicated"]
            health.warnings.append(f"core {core['core']}: {count} partitions that it leads lack replicas")
        if core["restarts"]:
            health.warnings.append(f"core {core['core']} was restarted {core['restarts']} times")
    cluster = cluster_of(cores)
    if cluster is not None:
        health.warnings.extend(_of_cluster(cluster))
    return health


def _of_cluster(told: ClusterCounters) -> list[str]:
    """What is not well with the other nodes, as this one sees them."""
    warnings = []
    if told["conflict"]:
        warnings.append(told["conflict"])
    if told["absent"]:
        warnings.append(f"nodes that are away: {', '.join(map(str, told['absent']))}")
    if told["metadata"]["leader"] is None:
        warnings.append("no node is known to lead the metadata: nothing can be changed")
    missing = [row for row in told["links_to"] if not row["up"] and row["node"] not in told["absent"]]
    for row in missing:
        node = "a seed" if row["node"] is None else f"node {row['node']}"
        why = f": {row['refused']}" if row["refused"] else ""
        warnings.append(f"there is no link to {node} at {row['address']}{why}")
    return warnings


def _why_not_ready(core: CoreStatus) -> str | None:
    if core["pid"] is None:
        return "is down"
    if not core["ready"]:
        return f"is starting: it {_what_it_does(core.get('cluster'))}"
    counters = core.get("counters")
    if counters is None:
        return f"gave no answer within {limits.STATUS_ANSWER_MS} ms"
    error = counters["journal"]["error"]
    if error:
        return f"cannot write its journal: {os.strerror(error)}"
    return "refuses records: the disk is full" if counters["storage"]["disk_full"] else None


def _what_it_does(cluster: ClusterCounters | None) -> str:
    if cluster is not None and not cluster["membership"]:
        return "looks for its cluster"
    if cluster is not None and cluster["metadata"]["leader"] is None:
        return "waits for a majority of the metadata's voters"
    return "recovers its journal"
