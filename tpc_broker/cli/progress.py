"""Progress on a terminal's standard error; nothing where there is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

Advance = Callable[[int, int], None]
"""Called with the number of records so far and the bytes added since the last call."""
REFRESH_EVERY = 500
LINE_SECONDS = 30.0


@contextmanager
def count_progress(label: str, total_bytes: int | None, *, quiet: bool = False) -> Iterator[Advance]:
    if quiet or not sys.stderr.isatty():
        yield lambda _records, _size: None
        return
    texts = (TextColumn("{task.description}"), TextColumn("{task.fields[records]:,} records"))
    columns: list[ProgressColumn] = [SpinnerColumn(), *texts, BarColumn(), TransferSpeedColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total_bytes, records=0)
        waiting_bytes = waiting_calls = 0

        def advance(records: int, size: int) -> None:
            nonlocal waiting_bytes, waiting_calls
            waiting_bytes += size
            waiting_calls += 1
            if waiting_calls >= REFRESH_EVERY or size == 0:
                bar.update(task, advance=waiting_bytes, records=records)
                waiting_bytes = waiting_calls = 0

        yield advance
        bar.update(task, advance=waiting_bytes)


class _RowsColumn(ProgressColumn):
    """Rows a second, and how long it will take; behind a source that goes on for ever, how far behind."""

    def render(self, task: Task) -> Text:
        written = task.fields["written_count"]
        unit = "rows" if written is None else "offsets"
        parts = [f"{task.completed:,.0f} {unit}"]
        if task.finished_speed or task.speed:
            parts.append(f"{task.finished_speed or task.speed or 0:,.0f} {unit}/s")
        if written is not None:
            parts.append(f"{written:,} rows written")
        if task.fields["lag_rows"] is not None:
            parts.append(f"{task.fields['lag_rows']:,} behind")
        return Text("  ".join(parts))


class RowsProgress:
    """What a pipeline tells while it runs: a bar on a terminal, a line now and then where there is none."""

    def __init__(self, label: str, bar: Progress | None) -> None:
        self._label = label
        self._bar = bar
        self._task = None if bar is None else bar.add_task(label, total=None, lag_rows=None, written_count=None)
        self._next_line_at = time.monotonic() + LINE_SECONDS

    def __call__(
        self, rows_count: int, rows_total: int | None, lag_rows: int | None, written_count: int | None = None
    ) -> None:
        """With ``written_count`` the others count offsets, of which so many rows were written."""
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, completed=rows_count, total=rows_total, lag_rows=lag_rows, written_count=written_count
            )
        elif time.monotonic() >= self._next_line_at:
            self._next_line_at += LINE_SECONDS
            total = "" if rows_total is None else f" of {rows_total}"
            behind = "" if lag_rows is None else f", {lag_rows} behind"
            done = "rows" if written_count is None else f"offsets, {written_count} rows written"
            click.echo(f"{self._label}: {rows_count}{total} {done}{behind}", err=True)


@contextmanager
def rows_progress(label: str, *, quiet: bool) -> Iterator[RowsProgress | None]:
    """None: nobody is to be told."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty():
        yield RowsProgress(label, None)
        return
    texts = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), _RowsColumn())
    columns: list[ProgressColumn | str] = [SpinnerColumn(), *texts, TimeElapsedColumn(), "eta", TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=20) as bar:
        yield RowsProgress(label, bar)
