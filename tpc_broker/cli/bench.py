"""``tpc bench``: load generators, peers, report."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import click


@click.group(invoke_without_command=True)
@click.option("-w", "--workload", "workloads", multiple=True, help="As in docs/benchmarks/README.md, or: all.")
@click.option("-p", "--peer", "peers", multiple=True, help="tpc, kafka, redis, nats, bare, or 'kafka default'.")
@click.option("-r", "--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("-s", "--seconds", default=4.0, show_default=True, type=click.FloatRange(0.1), help="Per round.")
@click.option("--warm-up", default=1.0, show_default=True, type=click.FloatRange(0), help="Seconds, per round.")
@click.option(
    "--gigabytes", default=10.0, show_default=True, type=click.FloatRange(0.001),
    help="Stored before a catch-up or a recovery; the disk needs about twice as much.",
)  # fmt: skip
@click.option("--soak", default=0.0, metavar="MINUTES", help="The soak, for so long; alone unless -w names others.")
@click.option(
    "--faults", type=click.IntRange(0), nargs=3, metavar="KILLS PAUSES ISOLATIONS",
    help="Of nodes, in cluster-failovers. Default: 50 of each, 2 without -w.",
)  # fmt: skip
@click.option("--minutes", default=0.0, help="Begin no round that would end later; 0: no limit.")
@click.option("--cores", default=1, show_default=True, type=click.IntRange(1), help="Of the tpc brokers.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True, file_okay=False), help="On the disk to measure.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="For the report; default: only shown.")
@click.option("--name", default="", help="Of the report's files; default: date and commit.")
@click.option("--note", default="", help="A sentence that stands above the report.")
@click.pass_context
def bench(  # noqa: PLR0913 - one parameter per option
    context: click.Context, workloads: tuple[str, ...], peers: tuple[str, ...], rounds: int, seconds: float,
    warm_up: float, gigabytes: float, soak: float, faults: tuple[int, int, int] | None, minutes: float, cores: int,
    folder: Path | None, output: Path | None, name: str, note: str,
) -> None:  # fmt: skip
    """Measure this broker beside its peers and the machine's limits. Needs a source tree and a C compiler.

    What a peer lacks on this machine is said in the report.
    """
    if context.invoked_subcommand is not None:
        return
    from tpc_broker.bench.compiled import CannotBuild  # noqa: PLC0415 (the clients start without it)
    from tpc_broker.bench.run import Run, Settings, write_report  # noqa: PLC0415
    from tpc_broker.bench.table import render  # noqa: PLC0415

    settings = Settings(
        workloads=workloads, peers=peers, rounds=rounds, warm_up_s=warm_up, measured_s=seconds, gigabytes=gigabytes,
        soak_minutes=soak, faults=faults, minutes_max=minutes, cores=cores, folder=folder or Path.cwd(), note=note,
    )  # fmt: skip
    end_on_signals()
    try:
        results = Run(settings).run()
    except (CannotBuild, ValueError) as refusal:
        raise click.ClickException(str(refusal)) from None
    click.echo(render(results))
    if output is not None:
        chosen = name or f"{time.strftime('%Y-%m-%d')}-{results.machine['commit'].replace('+', '-')}"
        for path in write_report(results, chosen, output):
            click.echo(path, err=True)


def end_on_signals() -> None:
    """SIGTERM and SIGHUP end the process as Ctrl-C does: in order, and the servers it started with it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))


@bench.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(["read", "archive", "sink"]), help="Default: all.")
@click.option("--rows", default=4_000_000, show_default=True, type=click.IntRange(1))
@click.option("--value-bytes", default=200, show_default=True, type=click.IntRange(2))
@click.option("--partitions", default=4, show_default=True, type=click.IntRange(1))
@click.option("-r", "--rounds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--warm-ups", default=2, show_default=True, type=click.IntRange(1), help="Rounds that do not count.")
@click.option("--cores", default=2, show_default=True, type=click.IntRange(1), help="Of Spark and of the broker.")
@click.option("--folder", type=click.Path(path_type=Path, exists=True, file_okay=False), help="On the disk to measure.")
@click.option("--output", type=click.Path(path_type=Path, file_okay=False), help="For the report; default: only shown.")
@click.option("--name", default="", help="Of the report's files; default: date, commit and 'spark'.")
@click.option("--note", default="", help="A sentence that stands above the report.")
def spark(output: Path | None, name: str, folder: Path | None, parts: tuple[str, ...], **options: Any) -> None:
    """The Spark data source beside Spark's own Kafka connector and the machine's limits.

    Needs the extra `spark`, Java 17 or newer, and Maven for Kafka and the connector.
    """
    try:
        import pyspark  # noqa: F401, PLC0415
    except ImportError:
        raise click.ClickException("this needs PySpark: pip install 'tpc-broker[spark]'") from None
    from tpc_broker.bench.spark import Settings, run  # noqa: PLC0415
    from tpc_broker.bench.spark_results import render, write_report  # noqa: PLC0415

    chosen: dict[str, Any] = {**options, **({"parts": parts} if parts else {})}
    end_on_signals()
    results = run(Settings(folder=folder or Path.cwd(), **chosen))
    click.echo(render(results))
    if output is not None:
        default = f"{time.strftime('%Y-%m-%d')}-{results.machine['commit'].replace('+', '-')}-spark"
        for path in write_report(results, name or default, output):
            click.echo(path, err=True)
