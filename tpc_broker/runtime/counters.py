"""What a core counts, as one structure of plain numbers: for `tpc-broker status` and whoever else asks.

The counters live in C, beside what they count, and cost nothing but their increments; they are read when somebody asks.
They start at 0 with the core's process. Names with ``_now`` at their end, and those that the C headers call "now", are
what is; all others only grow. Bytes and ns as the names say.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

if TYPE_CHECKING:
    from tpc_broker.runtime.connections import Connections
    from tpc_broker.runtime.data_plane import RingDataPlane
    from tpc_broker.runtime.ring import Ring

Numbers = dict[str, int]


class CoreCounters(TypedDict):
    """`plane`, `journal`, `ring`: fields of the C structures `tpc_plane_statistics`, `tpc_journal_statistics`,
    `tpc_ring_statistics`. `fetches`: of `FetchStatistics`; `fetches_left`: to Python, by reason. `connections`: of
    `ConnectionStatistics`; `closed`: by reason. `python_spans`: how often Python took how long between two visits of C,
    [i] less than 2^i us, the last one all longer times too; `commit_spans`: the same of the journal's commits.
    """

    plane: Numbers
    journal: Numbers
    fetches: Numbers
    fetches_left: Numbers
    connections: Numbers
    closed: Numbers
    ring: Numbers
    python_spans: list[int]
    commit_spans: list[int]


class CoreStatus(TypedDict):
    """One core as the supervisor sees it. Without `counters` it is starting, or gave no answer in time."""

    core: int
    pid: int | None
    ready: bool
    restarts: int
    up_ms: int
    counters: NotRequired[CoreCounters]


def core_counters(ring: Ring, connections: Connections, plane: RingDataPlane) -> CoreCounters:
    fetches: dict[str, Any] = asdict(plane.fetch_statistics())
    left = fetches.pop("left")
    counted: dict[str, Any] = asdict(connections.statistics())
    closed = counted.pop("closed_by_reason")
    looped: dict[str, Any] = asdict(ring.statistics())
    python_spans = list(looped.pop("python_spans"))
    return CoreCounters(
        plane=plane.plane_statistics(),
        journal=plane.journal_statistics(),
        fetches=fetches,
        fetches_left=left,
        connections=counted,
        closed={reason.name.lower(): count for reason, count in closed.items()},
        ring=looped,
        python_spans=python_spans,
        commit_spans=plane.commit_spans(),
    )
