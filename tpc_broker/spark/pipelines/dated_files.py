"""Rows of a topic to Parquet files in folders by date, with Arrow's own writer, inside a task.

Spark's road to Parquet takes each row out of Arrow into the JVM and there into columns again, which costs several times
what the columns themselves cost. `DatedFiles` stays with columns: Arrow batches of a task come in, files come out below
one folder, ``date=YYYY-MM-DD/part-….parquet``, with the columns of `archive_schema`. Their names are new for every
task attempt, so attempts never meet; which files count is for whoever collects `WrittenFile`.

What is held in memory is bounded whatever dates the rows have: `GROUP_BYTES` of rows wait for their row group, all
dates together, and at most `OPEN_FILES_MAX` files are open. A file ends when it has ``target_bytes``.

Encodings: dictionaries where they are small enough (Arrow gives them up by itself), differences for offsets and times,
which makes a byte or two of eight. Spark, pyarrow, DuckDB and Trino read them; times are microseconds in UTC.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs, parquet

from tpc_broker.native_columns import COLUMN_TYPES

LOG_COLUMNS: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
"""What is read of the log, in the order in which it is stored; ``headers`` may follow."""
STORED_NAMES: Final = {"topic": "_topic", "partition": "_partition", "offset": "_offset", "timestamp": "_ts",
                       "key": "_key"}  # fmt: skip
GROUP_BYTES: Final = 32 * 1024 * 1024
OPEN_FILES_MAX: Final = 32
_NO_DICTIONARY: Final = ("_offset", "_ts")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """``name`` is relative to the folder that was given."""

    name: str
    rows_count: int


def is_local(url: str) -> bool:
    """Whether a folder is one of the machine's own file system, which Arrow reaches as Spark does."""
    return urlsplit(url).scheme in ("", "file")


def archive_schema(*, with_headers: bool) -> Any:
    """The columns of the files, as Arrow has them."""
    names = (*LOG_COLUMNS, *(["headers"] if with_headers else []))
    return pa.schema([pa.field(STORED_NAMES.get(name, name), COLUMN_TYPES[name]) for name in names])


@dataclass
class _OpenFile:
    """A file of one date: what is written, and what waits for the next row group."""

    name: str
    sink: Any
    writer: Any
    rows_count: int = 0
    waiting: list[Any] = field(default_factory=list)
    waiting_bytes: int = 0

    def write_group(self) -> None:
        if self.waiting:
            table = pa.Table.from_batches(self.waiting)
            self.writer.write_table(table, row_group_size=table.num_rows)
            self.rows_count += table.num_rows
            self.waiting, self.waiting_bytes = [], 0


class DatedFiles:
    """The files of one task. Either `finish` or `abandon` ends it."""

    def __init__(self, folder_url: str, schema: Any, compression: str, target_bytes: int) -> None:
        """``folder_url`` is local (`is_local`); it need not exist. ``target_bytes``: of one file, about."""
        assert is_local(folder_url), folder_url
        self._files = fs.LocalFileSystem()
        self._folder = unquote(urlsplit(folder_url).path)
        self._schema = schema
        self._target_bytes = target_bytes
        self._group_bytes = min(GROUP_BYTES, target_bytes)
        self._settings: dict[str, Any] = {
            "compression": compression,
            "use_dictionary": [name for name in schema.names if name not in _NO_DICTIONARY],
            "column_encoding": dict.fromkeys(_NO_DICTIONARY, "DELTA_BINARY_PACKED"),
            "store_schema": False,
        }
        if "headers" in schema.names:  # nested columns are named by their leaves there
            leaves = ("headers.list.element.key", "headers.list.element.value")
            flat = [name for name in self._settings["use_dictionary"] if name != "headers"]
            self._settings["use_dictionary"] = [*flat, *leaves]
        self._open: dict[str, _OpenFile] = {}
        self._waiting_bytes = 0
        self._written: list[WrittenFile] = []

    def add(self, batch: Any) -> None:
        """Rows with the columns of the schema, under whatever names, in its order."""
        rows = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        for date, part in by_date(rows, rows.column("_ts")):
            file = self._open.pop(date, None) or self._create(date)
            self._open[date] = file  # the last one is the one that was used last
            file.waiting.append(part)
            file.waiting_bytes += part.nbytes
            self._waiting_bytes += part.nbytes
        while self._waiting_bytes >= self._group_bytes:
            date = max(self._open, key=lambda name: self._open[name].waiting_bytes)
            self._write_group(date)

    def finish(self) -> list[WrittenFile]:
        """All files whole, in the order in which they ended."""
        while self._open:
            self._close(next(iter(self._open)))
        return self._written

    def abandon(self) -> None:
        """The task has failed: nothing of it is left, as far as that can be done."""
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.writer.close()
            with contextlib.suppress(OSError):
                file.sink.close()
        for name in [file.name for file in self._open.values()] + [file.name for file in self._written]:
            self._files.delete_file(f"{self._folder}/{name}")
        self._open.clear()

    def _create(self, date: str) -> _OpenFile:
        if len(self._open) >= OPEN_FILES_MAX:
            self._close(next(iter(self._open)))
        name = f"date={date}/part-{uuid4()}.parquet"
        self._files.create_dir(f"{self._folder}/date={date}", recursive=True)
        sink = self._files.open_output_stream(f"{self._folder}/{name}")
        return _OpenFile(name, sink, parquet.ParquetWriter(sink, self._schema, **self._settings))

    def _write_group(self, date: str) -> None:
        file = self._open[date]
        self._waiting_bytes -= file.waiting_bytes
        file.write_group()
        if file.sink.tell() >= self._target_bytes:
            self._close(date)

    def _close(self, date: str) -> None:
        file = self._open.pop(date)
        self._waiting_bytes -= file.waiting_bytes
        file.write_group()
        file.writer.close()
        file.sink.close()
        self._written.append(WrittenFile(file.name, file.rows_count))


def by_date(rows: Any, times: Any) -> Iterator[tuple[str, Any]]:
    """Rows by their UTC date (as Spark writes one), in order; nearly always all of a batch have the same."""
    days = times.cast(pa.date32())
    ends = pc.min_max(days)
    if ends["min"] == ends["max"]:
        yield date_text(ends["min"].value), rows
        return
    for day in pc.unique(days):
        yield date_text(day.value), rows.filter(pc.equal(days, day))


def date_text(days: int) -> str:
    """Days since 1970 as YYYY-MM-DD; years above 9999 with a sign before them."""
    text = str(pa.scalar(days, pa.date32()).cast(pa.string()).as_py())
    return f"+{text}" if text.index("-") > len("9999") else text
