"""The pipeline on real input, from one command: ``make demo``.

Starts a broker of its own on loopback, sends it web events (made here, the same for the same seed), counts the top
pages by window in a streaming job, archives the topic to Parquet, asks the archive with Spark SQL and draws what it
says. Everything lies in one folder, which is removed at the end unless it was named.
"""

import math
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
from matplotlib.dates import DateFormatter
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from tpc_broker.client.batches import RecordsPart
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import ClientError
from tpc_broker.client.producing import Producer
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka.compression import Compression
from tpc_broker.native_columns import RecordsWriter
from tpc_broker.spark.pipelines.archive import ArchiveJob, archive, default_checkpoint
from tpc_broker.spark.pipelines.progress import OnProgress, follow, patiently
from tpc_broker.spark.pipelines.progress import Progress as JobProgress
from tpc_broker.spark.session import make_session

TOPIC: Final = "web-events"
PARTITIONS: Final = 4
ROUND: Final = 10_000
EVENTS_PER_SECOND: Final = 200
"""On average, in the events' own time, which ends about now; it goes up and down by `SWING` within `TIDE_SECONDS`."""

SWING: Final = 0.6
TIDE_SECONDS: Final = 3000
TROUBLE: Final = (0.70, 0.74)
"""Between these parts of all events the checkout fails."""

BATCH_BYTES: Final = 500_000
READY_SECONDS: Final = 30.0
PAGES: Final = ("/", "/search", "/product/lamp", "/product/chair", "/product/desk", "/cart", "/checkout", "/help")
WEIGHTS: Final = (30, 22, 12, 10, 8, 9, 4, 5)
COUNTRIES: Final = ("DE", "FR", "IN", "BR", "US", "JP", "NG", "PL")
SCHEMA: Final = "user STRING, page STRING, country STRING, ms INT, status INT"
console = Console()


def events(count: int, first_ms: int, seed: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Key, value and time of each event. Some users make many of the visits, as on any site."""
    chance = random.Random(seed)
    elapsed_ms = 0.0
    for number in range(count):
        user = f"u{int(50_000 * chance.random() ** 3)}"
        page = chance.choices(PAGES, WEIGHTS)[0]
        is_troubled = page == "/checkout" and TROUBLE[0] <= number / count < TROUBLE[1]
        status = 500 if chance.random() < (0.6 if is_troubled else 0.01) else 200
        tide = 1 + SWING * math.sin(elapsed_ms / 1000 * 2 * math.pi / TIDE_SECONDS)
        elapsed_ms += 1000 / EVENTS_PER_SECOND / tide
        value = (
            f'{{"user":"{user}","page":"{page}","country":"{chance.choice(COUNTRIES)}",'
            f'"ms":{int(chance.expovariate(1 / 80))},"status":{status}}}'
        )
        yield user.encode(), value.encode(), first_ms + int(elapsed_ms)


@contextmanager
def running_broker(folder: Path) -> Iterator[str]:
    """host:port of a broker that is stopped in order at the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    place = ["--data", str(folder / "data"), "--listen", address, "--cores", "1"]
    with (folder / "broker.log").open("wb") as log:
        command = [sys.executable, "-m", "tpc_broker.process.main", "serve", *place]
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
    with Cluster(ClusterSettings(address)) as cluster, _progress(has_end=True) as bar:
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
    given = {"bootstrap": address, "subscribe": TOPIC, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 250_000}
    stream = (
        patiently(spark.readStream.format("tpc").options(**given).load)
        .selectExpr("timestamp", f"from_json(cast(value AS STRING), '{SCHEMA}') AS event")
        .selectExpr("window(timestamp, '10 minutes') AS window", "event.page AS page", "event.ms AS ms")
    )
    counted = stream.groupBy("window", "page").agg({"*": "count", "ms": "avg"})
    named = counted.withColumnsRenamed({"count(1)": "visits", "avg(ms)": "mean_ms"})
    writer = (
        named.writeStream.format("memory")
        .queryName("top_pages")
        .outputMode("complete")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
    )
    with _watched("counting") as told:
        follow(writer.start, told, follows=False)
    ranked = "SELECT *, row_number() OVER (PARTITION BY window ORDER BY visits DESC) AS place FROM top_pages"
    last = f"SELECT * FROM ({ranked}) WHERE place <= 3 ORDER BY window.start DESC, place LIMIT 9"
    return list(spark.sql(last).collect())


def show(columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
    table = Table(header_style="bold")
    for name in columns:
        table.add_column(name, justify="left" if name in ("window", "page", "country") else "right")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console.print(table)


def _progress(*, has_end: bool) -> Progress:
    columns: list[ProgressColumn | str] = [SpinnerColumn(), TextColumn("{task.description:<9}"), BarColumn()]
    columns += [TextColumn("{task.completed:>9,.0f} events"), TimeElapsedColumn()]
    return Progress(*columns, *([TimeRemainingColumn()] if has_end else []), console=console)


@contextmanager
def _watched(what: str) -> Iterator[OnProgress]:
    with _progress(has_end=True) as bar:
        task = bar.add_task(what, total=None)

        def told(now: JobProgress) -> None:
            if now.rows_count:
                bar.update(task, completed=now.rows_count, total=now.rows_total)

        yield told


def run(folder: Path, count: int, seed: int, master: str, picture: Path) -> None:
    """All of it; ClickException when the archive does not hold every event once."""
    with running_broker(folder) as address:
        console.rule(f"1. A broker on {address}, and {count:,} web events", align="left")
        seconds = send(address, count, seed)
        rate = f"{count / seconds:,.0f} events a second, each of them on the disk"
        console.print(f"{rate}: {folder / 'data'}", soft_wrap=True)
        spark = make_session("tpc demo", master, configuration={"spark.sql.shuffle.partitions": "4"})
        try:
            console.rule("2. A streaming job: top pages by window of ten minutes", align="left")
            rows = top_pages(spark, address, str(folder / "top-pages"))
            found = [(f"{row.window.start:%H:%M}", row.page, f"{row.visits:,}", f"{row.mean_ms:.0f}") for row in rows]
            show(("window", "page", "visits", "mean ms"), found)
            console.rule("3. The topic as Parquet, each event once", align="left")
            out = str(folder / "archive")
            with _watched("archiving") as told:
                result = archive(spark, ArchiveJob(address, TOPIC, out, default_checkpoint(out)), told)
            megabytes = f"{result.size_bytes / 1e6:,.1f} MB"
            said = f"{result.rows_count:,} events in {result.files_count} files, {megabytes}: {out}"
            console.print(said, soft_wrap=True)
            console.rule("4. Spark SQL on the archive", align="left")
            ask_archive(spark, out, count)
            draw(by_minute(spark), picture)
            console.print(f"Events a minute as a picture: {picture}", soft_wrap=True)
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
    show(("country", "visits", "mean ms", "failed"), rows)


def by_minute(spark: Any) -> list[Any]:
    """Of the archive: minute, page, visits, failed ones."""
    return list(
        spark.sql(f"""
            SELECT date_trunc('MINUTE', _ts) AS minute, event.page AS page, count(*) AS visits,
                   count_if(event.status >= 500) AS failed
            FROM (SELECT _ts, from_json(cast(value AS STRING), '{SCHEMA}') AS event FROM archive)
            GROUP BY minute, page ORDER BY minute, page
        """).collect()
    )


def draw(rows: list[Any], picture: Path) -> None:
    """Visits a minute, stacked by page, and below them the failed ones."""
    figure = Figure(figsize=(11, 6), dpi=110, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    minutes = sorted({row.minute for row in rows})
    minutes = minutes[1:-1] or minutes  # the first and the last are not whole
    visits = {(row.minute, row.page): row.visits for row in rows}
    series = [[visits.get((minute, page), 0) for minute in minutes] for page in PAGES]
    above.stackplot(minutes, series, labels=PAGES, colors=[f"C{number}" for number in range(len(PAGES))])
    above.set_ylabel("visits a minute")
    above.legend(*(entry[::-1] for entry in above.get_legend_handles_labels()), frameon=False, bbox_to_anchor=(1, 1))
    failed: dict[Any, int] = dict.fromkeys(minutes, 0)
    for row in rows:
        if row.minute in failed:
            failed[row.minute] += row.failed
    below.fill_between(minutes, list(failed.values()), color="#b3261e")
    below.set_ylabel("failed a minute")
    below.xaxis.set_major_formatter(DateFormatter("%H:%M"))  # type: ignore[no-untyped-call]
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(0)
        axes.margins(x=0)
    figure.suptitle("Web events, from the Parquet archive", x=0.01, ha="left")
    figure.savefig(picture)


@click.command(help=__doc__)
@click.option("--events", "count", default=1_000_000, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=1, show_default=True)
@click.option("--master", default="local[2]", show_default=True)
@click.option("--folder", type=click.Path(path_type=Path), help="Keep everything here.")
@click.option("--picture", type=click.Path(path_type=Path, dir_okay=False), help="Where the picture goes.")
def main(count: int, seed: int, master: str, folder: Path | None, picture: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=False)
        run(folder, count, seed, master, picture or folder / "events.png")
        return
    with tempfile.TemporaryDirectory(prefix="tpc-demo-") as temporary:
        run(Path(temporary), count, seed, master, picture or Path(tempfile.gettempdir()) / "tpc-demo.png")


if __name__ == "__main__":
    main()
