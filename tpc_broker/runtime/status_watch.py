"""``tpc-broker status --watch``: what each core does now, from the differences between two looks."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from tpc_broker.runtime.status import read_status

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.runtime.counters import CoreCounters, CoreStatus
    from tpc_broker.runtime.status import BrokerStatus

WAITS_BY_DESIGN: Final = frozenset({"Fetch", "JoinGroup", "SyncGroup"})
MIB: Final = 1024 * 1024
INTERVAL_S: Final = 2.0
COLUMNS: Final = {
    "core": "Core", "state": "State", "requests_per_s": "Requests/s", "received_mib_per_s": "In MiB/s",
    "sent_mib_per_s": "Out MiB/s", "answered_within_ms": "99 % ms", "produced_within_ms": "Produce 99 % ms",
    "commits_within_ms": "Commits 99 % ms", "connections": "Connections", "unanswered": "Unanswered",
    "waiting": "Waiting", "journal_used": "Journal %", "budget_mib": "Budget MiB", "records_mib": "Records MiB",
    "python_share": "Python %",
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
            rows = rates(before, now, now_s - before_s)
            _show(rows, live, as_json=as_json)
            before, before_s = now, now_s
            shown += 1
    finally:
        if live is not None:
            live.stop()


def _show(rows: list[dict[str, Any]], live: Live | None, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"cores": rows}))
        return
    table = Table(*COLUMNS.values(), header_style="bold")
    for row in rows:
        table.add_row(*("" if row.get(name) is None else f"{row[name]:,}" if name != "state" else row[name]
                        for name in COLUMNS))  # fmt: skip
    if live is not None:
        live.update(table, refresh=True)
    else:
        Console(width=240).print(table)


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
