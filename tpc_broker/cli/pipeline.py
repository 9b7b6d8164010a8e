"""``tpc pipeline``: jobs on Spark."""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tpc_broker.cli.connection import common_options, fail, print_json, print_table
from tpc_broker.cli.progress import count_progress

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.group()
def pipeline() -> None:
    """Jobs on Spark. They need the extra `spark` and Java 17 or newer."""


@pipeline.command()
@common_options
@click.option("--topic", "topics", required=True, multiple=True, help="May be given several times.")
@click.option("--out", required=True, metavar="FOLDER", help="Where the Parquet files go.")
@click.option("--checkpoint", metavar="FOLDER", help="Where the job remembers how far it is; default OUT/_checkpoint.")
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.option("--driver-memory", default="1g", show_default=True)
@click.option("--from", "start", type=click.Choice(["earliest", "latest"]), default="earliest", show_default=True)
@click.option("--rows-per-epoch", type=click.IntRange(min=1), default=2_000_000, show_default=True)
@click.option("--follow", is_flag=True, help="Go on for ever, instead of ending when all is archived.")
@click.option("--skip-lost", is_flag=True, help="Go on when offsets are gone from the log, instead of failing.")
def archive(bootstrap: str, as_json: bool, topics: tuple[str, ...], out: str, **options: Any) -> None:  # noqa: FBT001 - click
    """Topic to Parquet, exactly once; started again, it goes on where it was."""
    program = _program("archive")
    job = program.ArchiveJob(
        bootstrap,
        ",".join(topics),
        out,
        options["checkpoint"] or program.default_checkpoint(out),
        options["start"],
        options["rows_per_epoch"],
        options["follow"],
        not options["skip_lost"],
    )
    with _errors_in_one_line():
        program.check_topics(job)
        with (
            _spark("tpc archive", options["master"], options["driver_memory"]) as spark,
            count_progress("archive", None, quiet=as_json) as advance,
        ):
            result = program.archive(spark, job, lambda rows: advance(rows, 0))
    if as_json:
        print_json({"rows": result.rows_count, "epochs": result.epochs_count, "out": out})
    else:
        print_table(("rows", "epochs", "out"), [(result.rows_count, result.epochs_count, out)], title="archived")


def _program(name: str) -> Any:
    try:
        return importlib.import_module(f"tpc_broker.spark.{name}")
    except ModuleNotFoundError as error:
        fail(f"{error}; install the extra: pip install 'tpc-broker[spark]'")


@contextmanager
def _spark(name: str, master: str, driver_memory: str) -> Iterator[Any]:
    session = _program("session").make_session(name, master, driver_memory)
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _errors_in_one_line() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        fail("stopped; the next run goes on from here", 130)
    except Exception as error:  # noqa: BLE001 - whatever the query ended with
        fail(_last_line(error))


def _last_line(error: Exception) -> str:
    """What a task said, without the stack that Spark puts around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line and line.startswith("tpc_broker.")]
    return (named or lines or [repr(error)])[-1 if named else 0]
