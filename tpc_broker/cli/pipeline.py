"""``tpc pipeline``: jobs on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tpc_broker.cli.connection import fail, print_json, print_table
from tpc_broker.cli.pipeline_runs import (
    Size,
    broker,
    check_folder,
    errors_in_one_line,
    job_options,
    program,
    report,
    run,
    target_options,
    window_choices,
    window_options,
)

ROWS_MIN = click.IntRange(min=1)


@click.group()
def pipeline() -> None:
    """Jobs on Spark. They need the extra `spark` and Java 17 or newer.

    Each runs on any Spark (--master), shows how far it is, and started again goes on where it was.
    """


@pipeline.command()
@click.option("--topic", "topics", required=True, multiple=True, help="May be given several times.")
@click.option("--out", required=True, metavar="FOLDER", help="Where the files go; any place Spark can write to.")
@click.option("--checkpoint", metavar="FOLDER", help="Where the job remembers how far it is; default OUT/_checkpoint.")
@click.option("--from", "starting_offsets", type=click.Choice(["earliest", "latest"]), default="earliest",
              show_default=True, help="Where the first run begins.")
@click.option("--follow", is_flag=True, help="Go on for ever, instead of ending when all is archived.")
@click.option("--headers", "with_headers", is_flag=True, help="Keep the records' headers too.")
@click.option("--file-size", type=Size(), default="128MB", show_default=True,
              help="Small files are merged into files of about this size.")
@click.option("--compression", type=click.Choice(["snappy", "zstd", "gzip", "lz4", "none"]), default="snappy",
              show_default=True, help="Of the Parquet files.")
@click.option("--rows-per-epoch", type=ROWS_MIN, default=8_000_000, show_default=True,
              help="How much is done, and committed, at a time.")
@click.option("--keep-replaced", type=click.FloatRange(min=0), default=600.0, show_default=True, metavar="SECONDS",
              help="How long files that were merged stay for readers that are at work.")
@click.option("--skip-lost", is_flag=True,
              help="Go on, and say what is lost, when offsets are gone, or topics (or are others of that name now).")
@click.option("--through-spark", is_flag=True,
              help="Let Spark write the files also where its tasks could do it by themselves, which is faster.")
@click.option("--path", default="", metavar="DATA-DIR",
              help="The broker's data folder, where Spark sees it: complete segments are read there.")
@job_options
def archive(**options: Any) -> None:
    """Topic to Parquet, exactly once.

    Columns _topic, _partition, _offset, _ts, _key, value; folders by date (UTC). Read it with Spark, which sees each
    epoch whole: the list of files is in OUT/_spark_metadata, and a file that is not in the list is not in the archive.

    \b
    tpc pipeline archive --topic events --out /archive/events
    tpc pipeline archive --topic events --out s3a://lake/events --master spark://host:7077 --follow
    """  # noqa: D301 - click's own mark
    jobs = program("pipelines.archive")
    out = options["out"]
    job = jobs.ArchiveJob(
        broker(options), ",".join(options["topics"]), out,
        options["checkpoint"] or jobs.default_checkpoint(out), options["starting_offsets"], options["rows_per_epoch"],
        options["follow"], not options["skip_lost"], options["with_headers"], options["file_size"],
        options["keep_replaced"], options["compression"], options["path"], options["through_spark"],
    )  # fmt: skip
    result = run("archive", options, lambda spark, told: jobs.archive(spark, job, told), options["topics"])
    report(options, "archived", {
        "rows": result.rows_count, "epochs": result.epochs_count, "merges": result.merges_count,
        "archive_rows": result.archive_rows_count, "files": result.files_count, "bytes": result.size_bytes, "out": out,
    })  # fmt: skip


@pipeline.command()
@click.option("--from", "source", required=True, metavar="FOLDER", help="An archive, or other Parquet files.")
@click.option("--topic", required=True, help="Where the records go.")
@click.option("--checkpoint", required=True, metavar="FOLDER", help="Where the job remembers how far it is.")
@click.option("--only-topic", "topics", multiple=True, help="Of an archive, only this; may be given several times.")
@click.option("--select", multiple=True, metavar="SQL", help="What key, value, timestamp and headers are, one each.")
@click.option("--rows-per-step", type=ROWS_MIN, default=500_000, show_default=True,
              help="How much is done, and noted, at a time; so much at most is written again after a kill.")
@click.option("--even-if-expired", is_flag=True,
              help="Write though the topic would delete records as old as these, or change their times.")
@target_options
@job_options
def backfill(**options: Any) -> None:
    """Parquet to topic, with keys, times and headers.

    At least once: a job that was killed writes the step again that was under way, and nothing else.

    \b
    tpc pipeline backfill --from /archive/events --topic events-again --checkpoint /jobs/again --rate 20MB/s
    tpc pipeline backfill --from /tables/users --topic users --checkpoint /jobs/users \\
        --select "cast(id AS string) AS key" --select "to_json(struct(name, mail)) AS value"
    """  # noqa: D301 - click's own mark
    jobs = program("pipelines.backfill")
    job = jobs.BackfillJob(
        options["source"], _target(options, options["topic"]), options["checkpoint"], options["topics"],
        options["select"], options["rows_per_step"], options["even_if_expired"],
    )  # fmt: skip
    check_folder(options, job.source)
    result = run("backfill", options, lambda spark, told: jobs.backfill(spark, job, told), (options["topic"],))
    report(options, "written", {
        "rows": result.rows_count, "offsets": result.offsets_count, "steps": result.steps_count, "from": job.source,
        "topic": options["topic"],
    })  # fmt: skip


@pipeline.command()
@click.option("--topic", "topics", required=True, multiple=True, help="Where from; may be given several times.")
@click.option("--to", "target", required=True, metavar="TOPIC", help="Where the records go.")
@click.option("--checkpoint", required=True, metavar="FOLDER", help="Where the job remembers how far it is.")
@click.option("--where", default="", metavar="SQL", help="Only rows for which this holds.")
@click.option("--select", multiple=True, metavar="SQL", help="What key, value, timestamp and headers are, one each.")
@click.option("--sql", default="", metavar="SQL", help="Instead of --select, a whole SELECT … FROM records.")
@click.option("--rows-per-step", type=ROWS_MIN, default=500_000, show_default=True,
              help="How much is done, and noted, at a time; so much at most is written again after a kill.")
@click.option("--skip-lost", is_flag=True,
              help="Go on, and say what is lost, when offsets are gone, or topics (or are others of that name now).")
@window_choices
@target_options
@job_options
def replay(**options: Any) -> None:
    """Topic to topic, filtered and transformed with SQL.

    The SQL works row by row on `records`: key, value, topic, partition, offset, timestamp, timestampType, headers.
    At least once: a job that was killed writes the step again that was under way, and nothing else.

    \b
    tpc pipeline replay --topic events --to errors --checkpoint /jobs/errors \\
        --where "get_json_object(cast(value AS string), '$.status') >= 500" --from 2026-11-20
    tpc pipeline replay --topic events --to small --checkpoint /jobs/small \\
        --sql "SELECT key, upper(cast(value AS string)) AS value, timestamp FROM records"
    """  # noqa: D301 - click's own mark
    if options["select"] and options["sql"]:
        fail("--select and --sql say the same thing in two ways; give one", 2)
    jobs, origins = program("pipelines.replay"), program("pipelines.origins")
    sql = f"SELECT {', '.join(options['select'])} FROM records" if options["select"] else options["sql"]
    job = jobs.ReplayJob(
        ",".join(options["topics"]), _target(options, options["target"]), options["checkpoint"],
        origins.Window(window_options(options["start"], options["end"])), options["where"], sql,
        options["rows_per_step"], not options["skip_lost"],
    )  # fmt: skip
    result = run(
        "replay", options, lambda spark, told: jobs.replay(spark, job, told), options["topics"], options["target"]
    )
    report(options, "replayed", {
        "rows": result.rows_count, "offsets": result.offsets_count, "steps": result.steps_count, "from": job.source,
        "to": options["target"],
    })  # fmt: skip


@pipeline.command()
@click.option("--topic", "topics", multiple=True, help="May be given several times; with --archive, only these.")
@click.option("--archive", default="", metavar="FOLDER", help="Look at an archive instead of the broker.")
@click.option("--checkpoint", required=True, metavar="FOLDER",
              help="Where the job keeps what it noted (about 30 bytes a record); the next run looks at what is new.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a report with pictures here.")
@click.option("--late-seconds", type=click.FloatRange(min=0), default=60.0, show_default=True,
              help="A record is late when it is so much older than one before it.")
@click.option("--rows-per-step", type=ROWS_MIN, default=2_000_000, show_default=True,
              help="How much is noted at a time.")
@window_choices
@job_options
def quality(**options: Any) -> None:
    """Count records, gaps, repetitions, late ones and null keys, by partition.

    \b
    tpc pipeline quality --topic events --checkpoint /jobs/events-quality --html events.html
    tpc pipeline quality --archive /archive/events --checkpoint /jobs/archive-quality
    """  # noqa: D301 - click's own mark
    if not options["topics"] and not options["archive"]:
        fail("--topic or --archive is needed", 2)
    if options["archive"] and (options["start"] or options["end"]):
        fail("--from and --until are for topics; an archive is looked at whole", 2)
    jobs, reports, origins = (program(f"pipelines.{name}") for name in ("quality", "quality_report", "origins"))
    job = jobs.QualityJob(
        broker(options), options["topics"], options["checkpoint"], options["archive"],
        origins.Window(window_options(options["start"], options["end"])), options["late_seconds"],
        options["rows_per_step"],
    )  # fmt: skip
    asked = () if options["archive"] else options["topics"]
    if options["archive"]:
        check_folder(options, options["archive"])
    result = run("quality", options, lambda spark, told: jobs.examine(spark, job, told), asked)
    if options["html"]:
        with errors_in_one_line():
            text = reports.to_html(result, options["archive"] or ", ".join(options["topics"]))
            options["html"].write_text(text, encoding="utf-8")
    if options["as_json"]:
        print_json([{name: getattr(row, name) for name in row.__slots__} for row in result.partitions])
        return
    print_table(reports.HEADINGS, reports.table_rows(result), title="quality")
    if options["html"]:
        click.echo(f"report: {options['html']}", err=True)


@pipeline.command("compact-archive")
@click.option("--from", "source", required=True, metavar="FOLDER", help="An archive.")
@click.option("--out", required=True, metavar="FOLDER", help="Where the table of the latest records is.")
@click.option("--only-topic", "topics", multiple=True, help="Of an archive, only this; may be given several times.")
@click.option("--file-size", type=Size(), default="128MB", show_default=True, help="About the size of the files.")
@click.option("--rows-per-step", type=ROWS_MIN, default=20_000_000, show_default=True,
              help="How much of the archive is taken at a time; each step writes the whole table.")
@click.option("--keep-replaced", type=click.FloatRange(min=0), default=600.0, show_default=True, metavar="SECONDS",
              help="How long the files of the last step stay for readers that are at work.")
@job_options
def compact_archive(**options: Any) -> None:
    """Of an archive, the latest record of each key, without keys that were deleted.

    A later run takes in what the archive got since then. The table is not partitioned by date, as every update would
    move a key's record to another date; its rows are sorted by key.

    \b
    tpc pipeline compact-archive --from /archive/users --out /tables/users
    """  # noqa: D301 - click's own mark
    jobs = program("pipelines.compacting")
    job = jobs.CompactJob(
        options["source"], options["out"], options["topics"], options["rows_per_step"], options["file_size"],
        options["keep_replaced"],
    )  # fmt: skip
    check_folder(options, job.source)
    result = run("compact-archive", options, lambda spark, told: jobs.compact(spark, job, told))
    report(options, "compacted", {
        "rows": result.offsets_count, "without_key": result.keyless_count, "keys": result.keys_count,
        "files": result.files_count, "out": job.out,
    })  # fmt: skip


def _target(options: dict[str, Any], topic: str) -> Any:
    placing, pace = program("pipelines.placing"), program("pace")
    with errors_in_one_line():
        rate = pace.parse_rate(options["rate"]) if options["rate"] else None
    keeps_partitions = options["partitions"] == "same"
    return placing.Target(broker(options), topic, keeps_partitions, options["compression"], rate)
