"""``tpc-broker status --watch``: what each core does now, from the differences between two looks."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from tpc_broker.telemetry.health import Disk, disk_of
from tpc_broker.telemetry.status import listener_rows, read_status

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.telemetry.counters import CoreCounters, CoreStatus
    from tpc_broker.telemetry.status import BrokerStatus

WAITS_BY_DESIGN: Final = frozenset({"Fetch", "JoinGroup", "SyncGroup"})
MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
INTERVAL_S: Final = 2.0
COLUMNS: Final = {
    "core": "Core", "state": "State", "requests_per_s": "Requests/s", "received_mib_per_s": "In MiB/s",
    "sent_mib_per_s": "Out MiB/s", "answered_within_ms": "99 % ms", "produced_within_ms": "Produce 99 % ms",
    "commits_within_ms": "Commits 99 % ms", "connections": "Connections", "unanswered": "Unanswered",
    "waiting": "Waiting", "tasks": "Tasks", "journal_used": "Journal %", "budget_mib": "Budget MiB",
    "records_mib": "Records MiB", "python_share": "Python %",
}  # fmt: skip


LISTENER_COLUMNS: Final = {
    "listener": "Listener", "mode": "Mode", "requests_per_s": "Requests/s", "received_mib_per_s": "In MiB/s",
    "sent_mib_per_s": "Out MiB/s", "connections": "Connections", "opened_per_s": "Opened/s",
    "refused_per_s": "Refused/s",
}  # fmt: skip


def watch_status(data: Path, interval_s: float, count: int | None, *, as_json: bool) -> None:
    """A live table on a terminal, tables one below the other elsewhere, or one JSON object a line."""
    before, before_s = read_status(data), time.monotonic()
    live = Live(auto_refresh=False) if sys.stdout.isatty() and not as_json else None
    if live is not None:
        live.start()
    try:
        shown = 0
        while count is None or shown < count:
            time.sleep(interval_s)
            now, now_s = read_status(data), time.monotonic()
            _show(Look(before, now, now_s - before_s, disk_of(data)), live, as_json=as_json)
            before, before_s = now, now_s
            shown += 1
    finally:
        if live is not None:
            live.stop()


class Look(NamedTuple):
    """Two statuses, the seconds between them, and the data directory's disk."""

    before: BrokerStatus
    now: BrokerStatus
    seconds: float
    disk: Disk

    def told(self) -> dict[str, Any]:
        return {
            "cores": rates(self.before, self.now, self.seconds),
            "listeners": listener_rates(self.before, self.now, self.seconds),
            "disk": self.disk._asdict(),
        }


def _show(look: Look, live: Live | None, *, as_json: bool) -> None:
    told = look.told()
    if as_json:
        click.echo(json.dumps(told))
        return
    disk = look.disk
    shown = Group(
        _table(COLUMNS, told["cores"]),
        _table(LISTENER_COLUMNS, told["listeners"]),
        f"Disk: {disk.free_bytes / GIB:,.1f} of {disk.total_bytes / GIB:,.1f} GiB free, "
        f"{disk.left_bytes / GIB:,.1f} GiB of it for records",
    )
    if live is not None:
        live.update(shown, refresh=True)
    else:
        Console(width=240).print(shown)


def _table(columns: dict[str, str], rows: list[dict[str, Any]]) -> Table:
    table = Table(*columns.values(), header_style="bold")
    for row in rows:
        cells = (row.get(name) for name in columns)
        table.add_row(*("" if cell is None else cell if isinstance(cell, str) else f"{cell:,}" for cell in cells))
    return table


def listener_rates(before: BrokerStatus, now: BrokerStatus, seconds: float) -> list[dict[str, Any]]:
    """One row for each listener, over all cores; without rates when a core was started again in between."""
    earlier = {row["listener"]: row for row in listener_rows(before)}
    is_same = [core["pid"] for core in before["cores"]] == [core["pid"] for core in now["cores"]]
    found = []
    for row in listener_rows(now):
        told = {name: row[name] for name in ("listener", "mode", "connections")}
        then = earlier.get(row["listener"])
        if is_same and then is not None:
            told |= {
                "opened_per_s": round((row["opened"] - then["opened"]) / seconds, 1),
                "refused_per_s": round((row["refused"] - then["refused"]) / seconds, 1),
                "requests_per_s": round((row["requests"] - then["requests"]) / seconds),
                "received_mib_per_s": round((row["received_bytes"] - then["received_bytes"]) / seconds / MIB, 1),
                "sent_mib_per_s": round((row["sent_bytes"] - then["sent_bytes"]) / seconds / MIB, 1),
            }
        found.append(told)
    return found


def rates(before: BrokerStatus, now: BrokerStatus, seconds: float) -> list[dict[str, Any]]:
    """One row for each core. Rates are those of the time between the looks; a core that was started in between, or did
    not answer both times, has none.
    """
    earlier = {core["core"]: core for core in before["cores"]}
    return [_row(earlier.get(core["core"]), core, seconds) for core in now["cores"]]


def _row(before: CoreStatus | None, now: CoreStatus, seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"core": now["core"], "state": _state(now)}
    counters = now.get("counters")
    if counters is None:
        return row
    row |= _levels(counters)
    if before is not None and before["pid"] == now["pid"] and "counters" in before:
        row |= _differences(before["counters"], counters, seconds)
    return row


def _state(core: CoreStatus) -> str:
    if core["pid"] is None:
        return "down"
    if not core["ready"]:
        return "starting"
    return "up" if "counters" in core else "silent"


def _levels(now: CoreCounters) -> dict[str, Any]:
    connections, journal = now["connections"], now["journal"]
    return {
        "connections": connections["connections"],
        "unanswered": connections["requests_unanswered"],
        "tasks": sum(queue["waiting_now"] for queue in now["queues"].values()),
        "waiting": now["fetches"]["parked_now"] + now["plane"]["produces_pending"],
        "journal_used": round(100 * journal["blocks_used"] / max(1, journal["region_blocks"])),
        "budget_mib": round(connections["budget_bytes_used"] / MIB, 1),
        "records_mib": round(now["plane"]["tail_bytes"] / MIB, 1),
    }


def _differences(before: CoreCounters, now: CoreCounters, seconds: float) -> dict[str, Any]:
    def rate(field: str) -> float:
        return (now["connections"][field] - before["connections"][field]) / seconds

    def ring(field: str) -> int:
        return now["ring"][field] - before["ring"][field]

    spans = {api: _less(latency["spans"], before, api) for api, latency in now["latencies"].items()}
    all_spans = [sum(column) for column in zip(*(s for a, s in spans.items() if a not in WAITS_BY_DESIGN), strict=True)]
    commits = [late - early for late, early in zip(now["commit_spans"], before["commit_spans"], strict=True)]
    loop_ns = max(1, ring("wait_ns") + ring("work_ns") + ring("python_ns"))
    return {
        "requests_per_s": round(rate("requests")),
        "received_mib_per_s": round(rate("received_bytes") / MIB, 1),
        "sent_mib_per_s": round(rate("sent_bytes") / MIB, 1),
        "answered_within_ms": within_ms(all_spans),
        "produced_within_ms": within_ms(spans.get("Produce", [])),
        "commits_within_ms": within_ms(commits),
        "python_share": round(100 * ring("python_ns") / loop_ns),
    }


def _less(spans: list[int], before: CoreCounters, api: str) -> list[int]:
    earlier = before["latencies"].get(api)
    if earlier is None:
        return spans
    return [late - early for late, early in zip(spans, earlier["spans"], strict=True)]


def within_ms(spans: list[int]) -> float | None:
    """The bound under which 99 % of the times are, in ms; None where there are none. Spans as in `CoreCounters`."""
    seen, total = 0, sum(spans)
    for place, count in enumerate(spans):
        seen += count
        if total and seen >= 0.99 * total:
            return round((1 << place) / 1000, 3)
    return None
