"""Apache Kafka's own cleaner in a JVM (`tools/CleanerReferee.java`): on logs that tests give it, at times of theirs.

It keeps one log open at a time, as a broker would, so that what it knows of producers goes on from pass to pass.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tests.support.kafka_peer import JAVA_FLAGS, kafka_jars
from tpc_broker.bench.kafka_jars import java_command

if TYPE_CHECKING:
    from collections.abc import Mapping

PROGRAM = Path(__file__).resolve().parents[2] / "tools" / "CleanerReferee.java"
MAP_BYTES = 1 << 20
"""Of a map of keys that is large enough for any test."""


class KafkaRefusedError(AssertionError):
    """Kafka threw something; the message says what."""


class DumpedBatch(NamedTuple):
    """A batch as Kafka reads it."""

    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    horizon: int | None
    producer: tuple[int, int, int]
    """Its id, its epoch, the first sequence."""
    count: int
    records: tuple[tuple[int, int, str | None, str | None, tuple[tuple[str, str | None], ...]], ...]
    """Offset, time, key, value (both in hexadecimal) and headers of each."""
    crc: int

    @classmethod
    def of(cls, row: dict[str, Any]) -> Self:
        records = tuple((*one[:4], tuple((name, value) for name, value in one[4])) for one in row["records"])
        found = row | {"records": records, "producer": tuple(row["producer"])}
        return cls(*(found[name] for name in cls._fields))


Dump = dict[int, list[DumpedBatch]]
"""The batches of a log by the bases of its segments."""


class CleanerReferee:
    """The JVM, to be entered."""

    def __init__(self, heap_mebibytes: int = 256) -> None:
        self._command = [
            java_command(), f"-Xmx{heap_mebibytes}m", *JAVA_FLAGS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
            "-cp", f"{kafka_jars()}/*", str(PROGRAM),
        ]  # fmt: skip
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_reason: object) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def ask(self, *words: object) -> Any:
        """One command and its answer. KafkaRefusedError."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if isinstance(answer, dict) and "error" in answer:
            raise KafkaRefusedError(f"{words[0]}: {answer['error']}")
        return answer

    def open(self, folder: Path, settings: Mapping[str, object]) -> None:
        """A log in a folder, whose name must be that of a partition; what was open before is closed."""
        folder.mkdir(parents=True, exist_ok=True)
        self.ask("open", folder, *(f"{name}={value}" for name, value in settings.items()))

    def configure(self, settings: Mapping[str, object]) -> None:
        """Other settings of the log that is open."""
        self.ask("configure", *(f"{name}={value}" for name, value in settings.items()))

    def append(self, batches: bytes) -> None:
        """With the offsets that they have."""
        self.ask("append", batches.hex())

    def roll(self) -> int:
        """The base of the new segment."""
        return int(self.ask("roll")["base"])

    def clean(self, first_dirty: int, upper: int, now_ms: int, map_bytes: int = MAP_BYTES) -> dict[str, Any]:
        """One pass over the segments below `upper`: where it ended (`end`), and what it counted."""
        return dict(self.ask("clean", first_dirty, upper, now_ms, map_bytes))

    def dump(self, folder: Path) -> Dump:
        """The batches of a folder's segments by their bases; a segment that is not read to its end is an error."""
        return {base: [DumpedBatch.of(row) for row in rows] for base, rows in self.ask("dump", folder)}
