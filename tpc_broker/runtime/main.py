"""``tpc-broker``: the server's command line."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import NoReturn

import click
import trio

from tpc_broker import __version__
from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.metadata.settings import load_settings, without_comments
from tpc_broker.runtime.logs import set_up_logging
from tpc_broker.runtime.options import ServeOptions, StartError, choose_cores, resolve_addresses
from tpc_broker.runtime.ring import Ring, RingUnavailable
from tpc_broker.runtime.supervisor import EXIT_CANNOT_RUN, EXIT_OK, Supervisor

PROBE_ENTRIES = 8
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
KCAT_HINT = """
Try it:
  kcat -b {address} -t hello -P <<< 'hello, log'
  kcat -b {address} -t hello -C -e
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tpc-broker")
def main() -> None:
    """A durable, thread-per-core message broker that speaks the Kafka protocol."""


@main.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log.")
@click.option("--listen", default="127.0.0.1:9092", show_default=True, help="HOST:PORT; core i answers on PORT+i.")
@click.option("--advertise", default=None, help="HOST[:PORT] that clients are told; core i advertises PORT+i.")
@click.option("--cores", type=int, default=None, help="Number of cores. Default: all CPUs that may be used.")
@click.option("--config", type=click.Path(), default=None, help="File of KEY=VALUE lines, with Kafka's names.")
@click.option("--override", multiple=True, metavar="KEY=VALUE", help="One setting; stronger than the file. Repeatable.")
@click.option("--log-style", type=click.Choice(["auto", "readable", "json"]), default="auto", show_default=True)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="INFO", show_default=True)
def serve(**arguments: object) -> None:
    """Run the broker in the foreground until SIGTERM."""
    try:
        sys.exit(_serve(arguments))
    except StartError as error:
        _refuse(str(error))


@main.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log; it need not exist yet.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
def doctor(data: str, as_json: bool) -> None:  # noqa: FBT001
    """Examine this host: can the broker run here, how fast, and which command mends what is wrong.

    Exit code 0 when the broker can run here, 2 when it cannot. Nothing is changed.
    """
    from tpc_broker.runtime.doctor import Severity, examine_host  # noqa: PLC0415 (a start need not wait for it)
    from tpc_broker.runtime.doctor import report as doctor_report  # noqa: PLC0415

    findings = examine_host(Path(data).expanduser().resolve())
    click.echo(doctor_report(findings, as_json=as_json))
    sys.exit(EXIT_CANNOT_RUN if any(finding.severity is Severity.FAILURE for finding in findings) else EXIT_OK)


@main.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs, with every counter.")
def status(data: str, as_json: bool) -> None:  # noqa: FBT001
    """What the running broker counts, by core: connections, requests answered in C and by Python, waits, journal.

    Counters begin when a core starts. Exit code 2 when no broker answers for this directory.
    """
    from tpc_broker.runtime.status import read_status, status_report  # noqa: PLC0415 (a start need not wait for it)

    try:
        found = read_status(Path(data).expanduser().resolve())
    except StartError as error:
        _refuse(str(error))
    click.echo(status_report(found, as_json=as_json))


@main.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log.")
@click.option("--partition", default=None, metavar="TOPIC-N", help="Bring this partition back with what can be read.")
@click.option("--accept-loss", is_flag=True, help="With --partition: what cannot be read is lost.")
@click.option("--core", type=int, default=None, help="The core whose damaged journal is to be used up to the damage.")
@click.option("--accept-journal-damage", is_flag=True, help="With --core: what lies behind the damage is lost.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
def repair(  # noqa: PLR0913 (click hands each option over by name)
    data: str,
    partition: str | None,
    core: int | None,
    *,
    accept_loss: bool,
    accept_journal_damage: bool,
    as_json: bool,
) -> None:
    """List what is offline and why, or bring it back with what can be read.

    The broker must be stopped. Without --partition or --core nothing is changed. Exit code 2 when it is refused.
    """
    from tpc_broker.runtime.repair import repair as run_repair  # noqa: PLC0415 (the server needs none of it)

    if (partition is not None) != accept_loss:
        _refuse("--partition and --accept-loss go together: the records that cannot be read are lost")
    if (core is not None) != accept_journal_damage:
        _refuse("--core and --accept-journal-damage go together: what lies behind the damage is lost")
    if partition is not None and core is not None:
        _refuse("one repair at a time: either --partition or --core")
    try:
        click.echo(run_repair(Path(data).expanduser().resolve(), partition=partition, core=core, as_json=as_json))
    except (StartError, RingUnavailable) as error:
        _refuse(str(error))


def _refuse(reason: str) -> NoReturn:
    click.echo(f"tpc-broker: {reason}", err=True)
    sys.exit(EXIT_CANNOT_RUN)


def _serve(arguments: dict[str, object]) -> int:
    options = _serve_options(arguments)
    set_up_logging("supervisor", style=options.log_style, level=options.log_level)
    try:
        Ring(PROBE_ENTRIES).close()
    except (RingUnavailable, ValueError) as error:  # ValueError: TPC_HIDE_FEATURES names what there is not
        raise StartError(str(error)) from error
    _raise_descriptor_limit()

    def say(text: str) -> None:
        address = f"{options.advertised_host}:{options.advertised_port}"
        click.echo(text)
        if sys.stdout.isatty():
            click.echo(KCAT_HINT.format(address=address))

    return trio.run(Supervisor(options, say).run)


def _serve_options(arguments: dict[str, object]) -> ServeOptions:
    host, port, advertised_host, advertised_port = resolve_addresses(
        str(arguments["listen"]), arguments["advertise"] and str(arguments["advertise"])  # type: ignore[arg-type]
    )
    asked = arguments["cores"]
    cores, cpus = choose_cores(asked if isinstance(asked, int) else None)
    overrides: tuple[str, ...] = tuple(arguments["override"])  # type: ignore[arg-type]
    text = _read_config(arguments["config"])
    try:
        load_settings(text, overrides, file_name=f"--config {arguments['config']}")
    except ConfigError as error:
        raise StartError(str(error)) from error
    return ServeOptions(
        data=Path(str(arguments["data"])).expanduser().resolve(),
        host=host,
        port=port,
        advertised_host=advertised_host,
        advertised_port=advertised_port,
        cores=cores,
        cpus=cpus,
        settings_text=without_comments(text),
        overrides=overrides,
        log_style=str(arguments["log_style"]),
        log_level=str(arguments["log_level"]),
    )


def _read_config(path: object) -> str:
    if path is None:
        return ""
    try:
        return Path(str(path)).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise StartError(f"--config {path}: not UTF-8 text (byte {error.start})") from error
    except OSError as error:
        raise StartError(f"--config {path}: {error.strerror}") from error


def _raise_descriptor_limit() -> None:
    """As many descriptors as the hard limit gives: connections and segments need them."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    main()
