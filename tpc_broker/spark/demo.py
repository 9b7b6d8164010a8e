"""The pipeline on real input, from one command: ``make demo``.

Starts a broker of its own on loopback, sends it web events (made here, the same for the same seed), counts the top
pages by window in a streaming job, archives the topic to Parquet and asks the archive with Spark SQL. Everything lies
in one folder, which is removed at the end unless it was named.
"""

import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import pyarrow as pa
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tpc_broker.client.batches import RecordsPart
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import ClientError
from tpc_broker.client.producing import Producer
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka.compression import Compression
from tpc_broker.native_columns import RecordsWriter
from tpc_broker.spark.pipelines.archive import ArchiveJob, archive, default_checkpoint
from tpc_broker.spark.session import make_session

TOPIC: Final = "web-events"
PARTITIONS: Final = 4
ROUND: Final = 10_000
EVENTS_PER_SECOND: Final = 200
"""In the events' own time, which ends about now."""

BATCH_BYTES: Final = 500_000
READY_SECONDS: Final = 30.0
PAGES: Final = ("/", "/search", "/product/lamp", "/product/chair", "/product/desk", "/cart", "/checkout", "/help")
WEIGHTS: Final = (30, 22, 12, 10, 8, 9, 4, 5)
COUNTRIES: Final = ("DE", "FR", "IN", "BR", "US", "JP", "NG", "PL")
SCHEMA: Final = "user STRING, page STRING, country STRING, ms INT, status INT"
console = Console()


def events(count: int, first_ms: int, seed: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Key, value and time of each event. Few users make most of the visits, as on any site."""
    chance = random.Random(seed)
    for number in range(count):
        user = f"u{int(chance.paretovariate(1.2)) % 50_000}"
        page = chance.choices(PAGES, WEIGHTS)[0]
        status = 200 if chance.random() < 0.985 else 500
        value = (
            f'{{"user":"{user}","page":"{page}","country":"{chance.choice(COUNTRIES)}",'
            f'"ms":{int(chance.expovariate(1 / 80))},"status":{status}}}'
        )
        yield user.encode(), value.encode(), first_ms + number * 1000 // EVENTS_PER_SECOND


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """host:port of a broker that is stopped in order at the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    place = ["--data", str(folder / "data"), "--listen", address, "--cores", "1"]
    with (folder / "broker.log").open("wb") as log:
        command = [sys.executable, "-m", "tpc_broker.runtime.main", "serve", *place]
        broker = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_answering(broker, address, folder)
        yield address
    finally:
        broker.terminate()
        broker.wait(30)


def _wait_answering(broker: subprocess.Popen[bytes], address: str, folder: Path) -> None:
    give_up_at = time.monotonic() + READY_SECONDS
    while True:
        try:
            with Cluster(ClusterSettings(address, retry_seconds=0.5)) as cluster:
                cluster.topic_names()
        except ClientError as error:
            if broker.poll() is not None or time.monotonic() > give_up_at:
                raise click.ClickException(f"the broker did not start; see {folder / 'broker.log'}: {error}") from error
        else:
            return


def send(address: str, count: int, seed: int) -> float:
    """All events into the topic; the seconds it took."""
    began = time.monotonic()
    first_ms = int(time.time() * 1000) - count * 1000 // EVENTS_PER_SECOND
    with Cluster(ClusterSettings(address)) as cluster, _progress() as bar:
        cluster.create_topic(TOPIC, PARTITIONS)
        producer = Producer(cluster, Compression.ZSTD)
        task = bar.add_task("sending", total=count)
        made = events(count, first_ms, seed)
        while rows := [event for _number, event in zip(range(ROUND), made, strict=False)]:
            _send_round(producer, rows)
            bar.update(task, advance=len(rows))
    return time.monotonic() - began


def _send_round(producer: Producer, rows: list[tuple[bytes, bytes, int]]) -> None:
    keys, values, times = (list(column) for column in zip(*rows, strict=True))
    writer = RecordsWriter(
        key=pa.array(keys, pa.binary()), value=pa.array(values, pa.binary()), timestamps_ms=pa.array(times, pa.int64())
    )
    chosen = writer.partitions(PARTITIONS).to_pylist()
    waiting = {
        number: pa.array([row for row, at in enumerate(chosen) if at == number], pa.int32()) for number in set(chosen)
    }
    while waiting:
        parts = {number: writer.write(numbers, 0, BATCH_BYTES) for number, numbers in waiting.items()}
        producer.send(
            {
                TopicPartition(TOPIC, number): RecordsPart(
                    part.data, part.records_count, part.base_timestamp, part.max_timestamp
                )
                for number, part in parts.items()
            }
        )
        left = {number: numbers[parts[number].records_count :] for number, numbers in waiting.items()}
        waiting = {number: numbers for number, numbers in left.items() if len(numbers)}


def top_pages(spark: Any, address: str, checkpoint: str) -> list[Any]:
    """A streaming job: visits by page and window of ten minutes, as they come; the last windows' top pages."""
    stream = (
        spark.readStream.format("tpc")
        .option("bootstrap", address)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 250_000)
        .load()
        .selectExpr("timestamp", f"from_json(cast(value AS STRING), '{SCHEMA}') AS event")
        .selectExpr("window(timestamp, '10 minutes') AS window", "event.page AS page", "event.ms AS ms")
    )
    counted = stream.groupBy("window", "page").agg({"*": "count", "ms": "avg"})
    named = counted.withColumnsRenamed({"count(1)": "visits", "avg(ms)": "mean_ms"})
    query = (
        named.writeStream.format("memory")
        .queryName("top_pages")
        .outputMode("complete")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    with _progress() as bar:
        task = bar.add_task("counting", total=None)
        rows: dict[int, int] = {}
        ended = False
        while not ended:
            ended = query.awaitTermination(0.5)
            rows |= {progress.batchId: progress.numInputRows for progress in query.recentProgress}
            bar.update(task, completed=sum(rows.values()))
    ranked = "SELECT *, row_number() OVER (PARTITION BY window ORDER BY visits DESC) AS place FROM top_pages"
    last = f"SELECT * FROM ({ranked}) WHERE place <= 3 ORDER BY window.start DESC, place LIMIT 9"
    return list(spark.sql(last).collect())


def show(title: str, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(*columns, header_style="bold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console.print(title, style="italic")
    console.print(table)


def _progress() -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} events"))
    return Progress(*columns, TimeElapsedColumn(), console=console)


def run(folder: Path, count: int, seed: int, master: str) -> None:
    """All of it; ClickException when the archive does not hold every event once."""
    with running_broker(folder) as address:
        console.print(f"A broker on {address}, data in {folder / 'data'}")
        seconds = send(address, count, seed)
        console.print(f"{count:,} events sent in {seconds:.1f} s, all of them on the disk")
        spark = make_session("tpc demo", master, configuration={"spark.sql.shuffle.partitions": "4"})
        try:
            rows = top_pages(spark, address, str(folder / "top-pages"))
            found = [(row.window.start, row.page, f"{row.visits:,}", f"{row.mean_ms:.0f}") for row in rows]
            show("Top pages of the last windows (streaming)", ("window", "page", "visits", "mean ms"), found)
            out = str(folder / "archive")
            result = archive(spark, ArchiveJob(address, TOPIC, out, default_checkpoint(out)))
            console.print(f"{result.rows_count:,} events archived to {out}")
            ask_archive(spark, out, count)
        finally:
            spark.stop()


def ask_archive(spark: Any, out: str, count: int) -> None:
    """The archive with Spark SQL."""
    spark.read.parquet(out).createOrReplaceTempView("archive")
    total = spark.sql("SELECT count(*) AS n, count(DISTINCT _partition, _offset) AS once FROM archive").first()
    if (total.n, total.once) != (count, count):
        raise click.ClickException(f"{count} events were sent; the archive holds {total.n}, {total.once} different")
    query = f"""
        SELECT event.country AS country, count(*) AS visits, round(avg(event.ms)) AS mean_ms,
               sum(CASE WHEN event.status >= 500 THEN 1 ELSE 0 END) AS failed
        FROM (SELECT from_json(cast(value AS STRING), '{SCHEMA}') AS event FROM archive)
        GROUP BY country ORDER BY visits DESC
    """
    rows = [(row.country, f"{row.visits:,}", int(row.mean_ms), row.failed) for row in spark.sql(query).collect()]
    show("Visits by country (Spark SQL on the Parquet archive)", ("country", "visits", "mean ms", "failed"), rows)


@click.command(help=__doc__)
@click.option("--events", "count", default=1_000_000, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=1, show_default=True)
@click.option("--master", default="local[2]", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep everything here.")
def main(count: int, seed: int, master: str, folder: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=False)
        run(folder, count, seed, master)
        return
    with tempfile.TemporaryDirectory(prefix="tpc-demo-") as temporary:
        run(Path(temporary), count, seed, master)


if __name__ == "__main__":
    main()
