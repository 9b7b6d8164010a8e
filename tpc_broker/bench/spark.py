"""``tpc bench spark``: the data source beside Spark's own Kafka connector and the machine's limits, in one session.

The same rows lie in our broker and in Kafka. Each job is run once to warm up and to check that it gives every row, then
round after round, so that a slow minute meets all of them. A job whose row count is wrong is left out with the reason;
one that Spark gives up is told, and tried again in the next round.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tpc_broker.bench import machine
from tpc_broker.bench.kafka_jars import CONNECTOR_VERSION, connector_jars
from tpc_broker.bench.measured import CountsDiffer
from tpc_broker.bench.peers.kafka import KafkaPeer
from tpc_broker.bench.peers.tpc import TpcPeer
from tpc_broker.bench.server import PeerUnavailable, ServerFailed
from tpc_broker.bench.spark_load import delete_topic, load_topic, make_topic, rows_in, rows_that_fit
from tpc_broker.bench.spark_results import Cell, Round, SparkResults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tpc_broker.bench.peers.kafka_like import KafkaLikePeer

TOPIC: Final = "load"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Settings:
    parts: tuple[str, ...] = ("read", "archive", "sink")
    rows: int = 4_000_000
    value_bytes: int = 200
    partitions: int = 4
    rounds: int = 5
    warm_ups: int = 2
    cores: int = 2
    """Of Spark (`local[cores]`) and of our broker."""
    folder: Path | None = None
    """Where servers and archives keep their data."""
    driver_memory: str = "3g"
    note: str = ""


@dataclass(frozen=True)
class Job:
    """`run` does it once and gives the seconds and the rows that were seen; `server` is what it talks to."""

    cell: Cell
    run: Callable[[], tuple[float, int]]
    server: KafkaLikePeer | None = None
    count: Callable[[], int] | None = None
    """The rows that it reads, counted by Spark, where `run` cannot tell."""


def tree_cpu_s(pid: int) -> float:
    """CPU time of a process and of all that it has started, with what those have waited for."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                ticks[int(folder.name)] = sum(map(int, fields[11:15]))
                children.setdefault(int(fields[1]), []).append(int(folder.name))
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        total += ticks.get(one, 0)
        waiting += children.get(one, [])
    return total / _TICKS_PER_S


def cause_of(text: str) -> str:
    """Of what Spark says about a job that failed: the line of the exception that began it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return (causes or lines or ["no reason given"])[-1 if causes else 0]


def timed(action: Callable[[], Any]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


class SparkRun:
    """Servers, session and jobs of one run; a context manager."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rows = rows_that_fit(settings.rows, settings.partitions)
        self.base = Path(tempfile.mkdtemp(prefix="tpc-bench-spark-", dir=settings.folder))
        told: dict[str, Any] = {
            "rows": self.rows, "value_bytes": settings.value_bytes, "partitions": settings.partitions,
            "cores": settings.cores, "rounds": settings.rounds, "warm_ups": settings.warm_ups,
        }  # fmt: skip
        if settings.note:
            told["note"] = settings.note
        self.results = SparkResults(machine.describe(self.base), told)
        self.log_bytes = 0
        self._spark: Any = None
        self._tpc = TpcPeer(self.base / "tpc", "durable")
        self._jars: list[str] = []
        self._kafka: KafkaPeer | None = None
        self._numbers = iter(range(1, 2**31))
        self.jobs: list[Job] = []

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        TpcPeer.cores_count = self.settings.cores
        self._start_peer(self._tpc)
        self._tpc.stop()  # all of the log is in segments then
        self._tpc.start()
        try:
            if {"read", "sink"} & set(self.settings.parts):
                self._jars = list(map(str, connector_jars()))
                self._kafka = KafkaPeer(self.base / "kafka", "default")
                self._start_peer(self._kafka)
        except (PeerUnavailable, ServerFailed) as reason:
            self._jars, self._kafka = [], None
            self.results.skipped["kafka and spark-sql-kafka"] = str(reason)
        self._spark = self._session()
        makers = {"read": self._read_jobs, "archive": self._archive_jobs, "sink": self._sink_jobs}
        self.jobs = [job for part in self.settings.parts for job in makers[part]()]
        self.results.cells = [job.cell for job in self.jobs]

    def __exit__(self, *_exception: object) -> None:
        for peer in (self._tpc, self._kafka):
            if peer is not None:
                peer.kill()
        shutil.rmtree(self.base, ignore_errors=True)
        if self._spark is not None:
            self._spark.stop()

    def _start_peer(self, peer: KafkaLikePeer) -> None:
        peer.start()
        assert peer.server is not None
        peer.server.settle()
        self.results.versions[peer.name] = peer.version()
        if {"read", "archive"} & set(self.settings.parts):
            settings = self.settings
            self.log_bytes = load_topic(peer.bootstrap, TOPIC, self.rows, settings.partitions, settings.value_bytes)

    def _session(self) -> Any:
        from tpc_broker.bench.spark_ready import ReadySource  # noqa: PLC0415 - needs the extra `spark`
        from tpc_broker.spark.session import make_session  # noqa: PLC0415

        spark = make_session(
            "tpc bench spark", f"local[{self.settings.cores}]", self.settings.driver_memory,
            spark__jars=",".join(self._jars), spark__driver__host="127.0.0.1", spark__driver__bindAddress="127.0.0.1",
        )  # fmt: skip
        spark.dataSource.register(ReadySource)
        self.results.versions |= {"spark": spark.version, "connector": CONNECTOR_VERSION}
        return spark

    def _cell(self, key: str, title: str, part: str) -> Cell:
        log_bytes = self.log_bytes or self.rows * self.settings.value_bytes
        return Cell(key, title, part, self.rows, log_bytes)

    # What is read.

    def _ready(self, rows: int = 0) -> Any:
        reader = self._spark.read.format("tpc_ready")
        settings = self.settings
        options = {"partitions": settings.partitions, "valueBytes": settings.value_bytes}
        return reader.options(rows=rows or self.rows, **options).load()

    def _ours(self, **options: str) -> Any:
        reader = self._spark.read.format("tpc").option("subscribe", TOPIC)
        return reader.options(**options).load()

    def _connector(self, peer: KafkaLikePeer) -> Any:
        options = {"subscribe": TOPIC, "kafka.bootstrap.servers": peer.bootstrap}
        return self._spark.read.format("kafka").options(**options).load()

    def _read_jobs(self) -> Iterator[Job]:
        def job(key: str, title: str, frame: Callable[[], Any], server: KafkaLikePeer | None = None) -> Job:
            def run() -> tuple[float, int]:
                return timed(lambda: frame().write.format("noop").mode("overwrite").save()), self.rows

            return Job(self._cell(key, title, "read"), run, server, lambda: int(frame().count()))

        bootstrap, folder = self._tpc.bootstrap, str(self._tpc.folder / "data")
        yield job("ready", "ready-made Arrow batches", self._ready)
        yield job("broker", "tpc through the broker", lambda: self._ours(bootstrap=bootstrap), self._tpc)
        yield job("files", "tpc from the files", lambda: self._ours(path=folder), self._tpc)
        if kafka := self._kafka:
            yield job("connector-tpc", "spark-sql-kafka from our broker", lambda: self._connector(self._tpc), self._tpc)
            yield job("connector-kafka", "spark-sql-kafka from Kafka", lambda: self._connector(kafka), kafka)

    # What goes to Parquet.

    def _out(self) -> Path:
        return self.base / f"parquet-{next(self._numbers)}"

    def _archive_jobs(self) -> Iterator[Job]:
        from tpc_broker.spark.pipelines.archive import ArchiveJob, archive  # noqa: PLC0415 - needs `spark`

        def ready() -> tuple[float, int]:
            rows, out = self._ready(), self._out()
            seconds = timed(lambda: rows.write.parquet(str(out)))
            shutil.rmtree(out)
            return seconds, self.rows

        def ours() -> tuple[float, int]:
            out = self._out()
            job = ArchiveJob(self._tpc.bootstrap, TOPIC, str(out), str(out / "_checkpoint"))
            began = time.perf_counter()
            found = archive(self._spark, job)
            seconds = time.perf_counter() - began
            shutil.rmtree(out)
            return seconds, found.rows_count

        yield Job(self._cell("parquet-ready", "Spark's Parquet write of ready-made batches", "archive"), ready)
        yield Job(self._cell("archive", "tpc pipeline archive", "archive"), ours, self._tpc)

    # What is written to a topic.

    def _sink_jobs(self) -> Iterator[Job]:
        from pyspark.sql.functions import lit  # noqa: PLC0415 - needs the extra `spark`

        settings = self.settings
        value = bytearray(byte % 251 for byte in range(settings.value_bytes))

        def rows() -> Any:
            return self._spark.range(0, self.rows, 1, settings.partitions).select(lit(value).alias("value"))

        def discard() -> tuple[float, int]:
            return timed(lambda: rows().write.format("tpc_ready").mode("append").save()), self.rows

        def job(key: str, title: str, source: str, peer: KafkaLikePeer) -> Job:
            def run() -> tuple[float, int]:
                topic = f"sink-{next(self._numbers)}"
                make_topic(peer.bootstrap, topic, settings.partitions)
                options = {"topic": topic, "kafka.bootstrap.servers": peer.bootstrap}
                seconds = timed(lambda: rows().write.format(source).options(**options).mode("append").save())
                found = rows_in(peer.bootstrap, topic)
                delete_topic(peer.bootstrap, topic)
                return seconds, found

            return Job(self._cell(key, title, "sink"), run, peer)

        yield Job(self._cell("sink-discarded", "Arrow batches to Python, thrown away", "sink"), discard)
        yield job("sink", "tpc to our broker", "tpc", self._tpc)
        if kafka := self._kafka:
            yield job("sink-connector-tpc", "spark-sql-kafka to our broker", "kafka", self._tpc)
            yield job("sink-connector-kafka", "spark-sql-kafka to Kafka", "kafka", kafka)

    # Rounds.

    def one(self, job: Job, *, is_warm_up: bool) -> None:
        """Run a job; `CountsDiffer` when it saw other rows than there are."""
        if is_warm_up and job.count is not None and (count := job.count()) != self.rows:
            raise CountsDiffer(f"{job.cell.title}: {count} rows, not {self.rows}")
        server = job.server.server if job.server is not None else None
        if job.cell.part != "read":
            os.sync()  # what the job before has written shall not slow this one
        jvm_pid = self._spark.sparkContext._gateway.proc.pid  # noqa: SLF001 - Spark has no other way to tell
        spark_before, server_before = tree_cpu_s(jvm_pid), server.cpu_s() if server else 0.0
        seconds, rows = job.run()
        spark_used = tree_cpu_s(jvm_pid) - spark_before
        server_used = (server.cpu_s() if server else 0.0) - server_before
        if rows != self.rows:
            raise CountsDiffer(f"{job.cell.title}: {rows} rows, not {self.rows}")
        if not is_warm_up:
            job.cell.rounds.append(Round(round(seconds, 4), round(spark_used, 2), round(server_used, 2)))

    def one_round(self, *, is_warm_up: bool, tell: Callable[[str], None] = lambda _title: None) -> None:
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - needs the extra `spark`
        from pyspark.errors import PySparkException  # noqa: PLC0415

        self._ready(self.settings.partitions).count()  # starts Python workers, which end when they are idle
        for job in self.jobs:
            tell(job.cell.title)
            if job.cell.key not in self.results.skipped:
                try:
                    self.one(job, is_warm_up=is_warm_up)
                except CountsDiffer as reason:
                    self.results.skipped[job.cell.key] = str(reason)
                    job.cell.rounds.clear()
                except (PySparkException, Py4JJavaError) as reason:
                    self.results.failed.append(f"{job.cell.title}: {cause_of(str(reason))}")


def run(settings: Settings) -> SparkResults:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("loading", total=None)
        with SparkRun(settings) as running:
            progress.update(bar, total=len(running.jobs) * (settings.warm_ups + settings.rounds))

            def tell(title: str) -> None:
                progress.update(bar, description=title, advance=1)

            for number in range(settings.warm_ups + settings.rounds):
                running.one_round(is_warm_up=number < settings.warm_ups, tell=tell)
            return running.results
