"""Whether the broker lives and is ready, and if not, why: for load balancers, orchestrators and people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from tpc_broker import limits

if TYPE_CHECKING:
    from tpc_broker.runtime.counters import CoreStatus


class Health(NamedTuple):
    """`reasons`: why it is not ready. `warnings`: what an operator should know and what keeps no client out."""

    reasons: list[str]
    warnings: list[str]

    @property
    def is_ready(self) -> bool:
        return not self.reasons


def health_of(cores: list[CoreStatus], *, is_draining: bool) -> Health:
    """Ready is a broker all of whose cores answer and can write: each has partitions that no other core serves."""
    health = Health(["the broker is draining"] if is_draining else [], [])
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
        if core["restarts"]:
            health.warnings.append(f"core {core['core']} was restarted {core['restarts']} times")
    return health


def _why_not_ready(core: CoreStatus) -> str | None:
    if core["pid"] is None:
        return "is down"
    if not core["ready"]:
        return "is starting: it recovers its journal"
    counters = core.get("counters")
    if counters is None:
        return f"gave no answer within {limits.STATUS_ANSWER_MS} ms"
    error = counters["journal"]["error"]
    return f"cannot write its journal: {os.strerror(error)}" if error else None
