"""Progress on a terminal's standard error; nothing where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

Advance = Callable[[int, int], None]
"""Called with the number of records so far and the bytes added since the last call."""
REFRESH_EVERY = 500


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
