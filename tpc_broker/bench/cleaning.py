"""Rounds of cleaning: one thread of our cleaner, or one of Apache Kafka's, on copies of the same log.

A log of 1 KiB records is written once in a run for each codec; every key comes twice, at random places, so that half of
the records are dead. Kafka's own `Cleaner` (`tools/CleanerReferee.java`, with Kafka's default buffers, in a JVM that
has cleaned the same log before) and ours clean all of it from the first offset on.

Figures are medians of a round's passes: MB of log a second, by the time from the first read to the last file being
durable; and CPU seconds for a GB of log, which other work on the machine and the disk change less: of our process, and
of Kafka's cleaning thread, whose JVM's compilers and collector run in others and are not counted.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Self

from tpc_broker.bench.kafka_jars import java_command, kafka_jars
from tpc_broker.bench.measured import Round, Stage, Workload
from tpc_broker.bench.peers.kafka import KafkaPeer
from tpc_broker.cleaner.cleaning_run import clean
from tpc_broker.kafka.records import Record, build_batch
from tpc_broker.log.cleaning_job import CleaningJob, CleaningSource
from tpc_broker.log.files import LOG_SUFFIX, segment_file_name

if TYPE_CHECKING:
    from tpc_broker.bench.measured import Runner
    from tpc_broker.kafka.compression import Compression

PROGRAM: Final = Path(__file__).resolve().parents[2] / "tools" / "CleanerReferee.java"
LOG_BYTES: Final = 128 << 20
"""Before it is compressed."""
WARM_PASSES, PASSES = 2, 5
"""The first ones are for the JVM's compilers, and for memory."""
VALUE_BYTES: Final = 1000
RECORDS_PER_BATCH: Final = 16
SEGMENT_BYTES: Final = 64 << 20
DEDUPE_BYTES: Final = 128 << 20
IO_BUFFER_BYTES: Final = 256 << 10
"""Of one of Kafka's threads, by its defaults."""
BEGIN_MS: Final = 1_700_000_000_000
DAY_MS: Final = 86_400_000
_WORDS: Final = 4096


class KafkaCleaner:
    """A JVM that cleans one log after the other; to be entered."""

    def __init__(self) -> None:
        options = ["-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=off", "-cp", f"{kafka_jars()}/*"]
        self._command = [java_command(), *options, str(PROGRAM)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_reason: object) -> None:
        self._process.communicate()

    def _ask(self, *words: object) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(f"{words[0]}: {answer['error']}")
        return answer

    def clean(self, folder: Path, end_offset: int) -> tuple[float, float]:
        """Seconds, and those of CPU."""
        self._ask("open", folder)
        done = self._ask("clean", 0, end_offset, BEGIN_MS + DAY_MS, DEDUPE_BYTES, IO_BUFFER_BYTES)
        self._ask("close")
        return float(done["seconds"]), float(done["cpu_seconds"])


def write_log(folder: Path, log_bytes: int, codec: Compression) -> int:
    """Segments and an empty one behind them; the end offset."""
    chance = random.Random(codec)
    words = [chance.randbytes(8).hex().encode() for _ in range(_WORDS)]
    count = log_bytes // (VALUE_BYTES + 24) // RECORDS_PER_BATCH * RECORDS_PER_BATCH
    keys = [number // 2 for number in range(count)]
    chance.shuffle(keys)
    folder.mkdir(parents=True)
    file, written = (folder / segment_file_name(0, LOG_SUFFIX)).open("wb"), 0
    for base in range(0, count, RECORDS_PER_BATCH):
        if written >= SEGMENT_BYTES:
            file.close()
            file, written = (folder / segment_file_name(base, LOG_SUFFIX)).open("wb"), 0
        records = [
            Record(b" ".join(chance.choices(words, k=59))[:VALUE_BYTES], b"key-%012d" % key, BEGIN_MS)
            for key in keys[base : base + RECORDS_PER_BATCH]
        ]
        written += file.write(build_batch(records, base_offset=base, compression=codec, partition_leader_epoch=0))
    file.close()
    (folder / segment_file_name(count, LOG_SUFFIX)).touch()
    return count


def clean_ours(folder: Path, end_offset: int) -> tuple[float, float]:
    """Seconds, and those of CPU."""
    paths = sorted(folder.glob(f"*{LOG_SUFFIX}"))[:-1]
    bases = [int(path.stem) for path in paths]
    sources = tuple(
        CleaningSource(base, end, path.stat().st_size, path.stat().st_ino, False, 0, BEGIN_MS)  # noqa: FBT003 (a row)
        for base, end, path in zip(bases, [*bases[1:], end_offset], paths, strict=True)
    )
    job = CleaningJob(
        label=folder.name, folder=str(folder), sources=sources, log_start_offset=0, first_dirty_offset=0,
        now_ms=BEGIN_MS + DAY_MS, delete_retention_ms=DAY_MS, segment_bytes=1 << 30, segment_index_bytes=10 << 20,
        index_interval_bytes=4096, batch_bytes_max=1_048_588, decompressed_bytes_max=64 << 20,
        dedupe_bytes=DEDUPE_BYTES, aborted=(), producers=(),
    )  # fmt: skip
    begun, cpu_begun = time.monotonic(), time.process_time()
    report = clean(job, lambda _group: None, lambda _bytes: None, lambda: False)
    assert 2 * report.records_kept == report.records_read, report
    return time.monotonic() - begun, time.process_time() - cpu_begun


def cleaning(codec: Compression) -> Runner:
    """A log whose batches are compressed so."""

    def run(workload: Workload, stage: Stage) -> Round:
        source = stage.peer.folder.parent / workload.key  # of the whole run
        end_offset = _end_of(source) if source.exists() else write_log(source, LOG_BYTES, codec)
        size = _log_bytes(source)
        passes = []
        with KafkaCleaner() if isinstance(stage.peer, KafkaPeer) else nullcontext() as kafka:
            for _ in range(WARM_PASSES + PASSES):
                copy = stage.peer.folder / f"{codec.name.lower()}-0"
                _copy(source, copy)
                passes.append((kafka.clean if kafka is not None else clean_ours)(copy, end_offset))
                left = _log_bytes(copy)
                shutil.rmtree(copy)
        seconds, cpu_seconds = (median(one) for one in zip(*passes[WARM_PASSES:], strict=True))
        return Round(
            mb_per_s=round(size / 1e6 / seconds, 1),
            cpu_s_per_gb=round(cpu_seconds / (size / 1e9), 3),
            extra={"% of the log that stays": round(100 * left / size, 2)},
        )

    return run


def _copy(source: Path, copy: Path) -> None:
    """Durable, as segments that may be cleaned are, and in the page cache: dirty ones would be written when dropped."""
    shutil.copytree(source, copy)
    for path in copy.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _end_of(folder: Path) -> int:
    return max(int(path.stem) for path in folder.glob(f"*{LOG_SUFFIX}"))


def _log_bytes(folder: Path) -> int:
    """Of the log: where cleaned segments lie beside it, theirs."""
    cleaned = list(folder.glob(f"*{LOG_SUFFIX}.cleaned-*"))
    return sum(path.stat().st_size for path in cleaned or folder.glob(f"*{LOG_SUFFIX}"))
