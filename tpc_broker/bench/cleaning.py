"""One thread of our cleaner beside one of Apache Kafka's, on the same files: `python -m tpc_broker.bench.cleaning`.

A log of 1 KiB records is written once for each codec; every key comes twice, at random places, so that half of the
records are dead. Each round copies it for both, and has Kafka's own `Cleaner` (`tools/CleanerReferee.java`, a JVM that
has cleaned the same log before, with Kafka's default buffers) and ours clean all of it from the first offset on.

What is told are medians of the rounds, which take turns: MB of log a second, by the time that a cleaning takes from its
first read to the last file being durable, and MB a second of the cleaning thread's CPU time, which other work on the
machine and the disk change less. The JVM's compilers and collector run in other threads and are not counted.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, Self

from tpc_broker.bench.kafka_jars import java_command, kafka_jars
from tpc_broker.kafka.compression import Compression
from tpc_broker.kafka.records import Record, build_batch
from tpc_broker.log.cleaning_job import CleaningJob, CleaningSource
from tpc_broker.log.files import LOG_SUFFIX, segment_file_name
from tpc_broker.runtime.cleaner.cleaning_run import clean

PROGRAM: Final = Path(__file__).resolve().parents[2] / "tools" / "CleanerReferee.java"
CODECS: Final = (Compression.NONE, Compression.LZ4, Compression.ZSTD)
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
    begun, cpu_begun = time.monotonic(), time.thread_time()
    report = clean(job, lambda _group: None, lambda _bytes: None, lambda: False)
    assert 2 * report.records_kept == report.records_read, report
    return time.monotonic() - begun, time.thread_time() - cpu_begun


def measure(folder: Path, codec: Compression, log_bytes: int, rounds: int) -> dict[str, Any]:
    """MB/s of both, of each round and the medians."""
    source = folder / "source"
    end_offset = write_log(source, log_bytes, codec)
    size = sum(path.stat().st_size for path in source.iterdir())
    found: dict[str, list[float]] = {"ours": [], "kafka": [], "ours, CPU": [], "kafka, CPU": []}
    with KafkaCleaner() as kafka:
        for number in range(rounds + 1):  # the first is for the JVM's compilers, and for memory
            for name, run in (("ours", clean_ours), ("kafka", kafka.clean)):
                copy = folder / f"{name}-0"
                shutil.copytree(source, copy)
                seconds, cpu_seconds = run(copy, end_offset)
                shutil.rmtree(copy)
                if number:
                    found[name].append(size / 1e6 / seconds)
                    found[f"{name}, CPU"].append(size / 1e6 / cpu_seconds)
    shutil.rmtree(source)
    medians = {name: statistics.median(each) for name, each in found.items()}
    return {"codec": codec.name.lower(), "log_mb": size / 1e6, "medians": medians, "rounds": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mebibytes", type=int, default=256, help="of the log, before it is compressed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for codec in CODECS:
            found = measure(Path(folder), codec, options.mebibytes << 20, options.rounds)
            for what in ("", ", CPU"):
                ours, kafka = found["medians"][f"ours{what}"], found["medians"][f"kafka{what}"]
                told = f"{ours:7.1f} MB/s, Kafka's {kafka:7.1f} MB/s, {ours / kafka:.2f} x"
                print(f"{found['codec'] + what:9} {told}", file=sys.stderr)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
