"""``tpc-broker``: the server's command line."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click
import trio

from tpc_broker import __version__
from tpc_broker.cli.examples import TPC_BROKER, add_examples
from tpc_broker.engine.backend import CHOICES, choose_backend
from tpc_broker.engine.data_directory import closed_to_others
from tpc_broker.engine.listener_tls import warnings_of
from tpc_broker.engine.ring import RingUnavailable
from tpc_broker.metadata.config_types import ConfigError
from tpc_broker.metadata.listener_settings import DEFAULT_LISTEN, plan_listeners
from tpc_broker.metadata.sasl_settings import check_logins
from tpc_broker.metadata.settings import listener_settings, load_settings, without_comments, without_effect
from tpc_broker.metadata.ssl_settings import ssl_of_listeners
from tpc_broker.node.membership.options import plan_cluster
from tpc_broker.operations.data_commands import COMMANDS, refuse
from tpc_broker.operations.redaction import LEFT_OUT, is_shown
from tpc_broker.operations.user_commands import user
from tpc_broker.options import ServeOptions, StartError, choose_cores, parse_admin, parse_datagram
from tpc_broker.process.fallbacks import without_pins
from tpc_broker.process.listening import check_steering
from tpc_broker.process.logs import line_of, log_facts, set_up_logging
from tpc_broker.process.supervisor import (
    CHECK_ONLY_VARIABLE,
    EXIT_CANNOT_RUN,
    EXIT_FAILED,
    EXIT_OK,
    RELOAD_SIGNAL,
    Supervisor,
    ignore_hangups,
)
from tpc_broker.process.token_support import check_token_support

if TYPE_CHECKING:
    from collections.abc import Callable

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
KCAT_HINT = """
Try it:
  kcat -b {address} -t hello -P <<< 'hello, log'
  kcat -b {address} -t hello -C -e
"""

_CONFIGURATION: Final = (
    click.option(
        "--listen",
        multiple=True,
        metavar="[NAME://]HOST:PORT",
        help=f"Where clients are awaited; core i answers on PORT+i. Repeatable. Default: {DEFAULT_LISTEN}.",
    ),
    click.option(
        "--advertise",
        multiple=True,
        metavar="[NAME://]HOST[:PORT]",
        help="What clients of a listener are told; core i advertises PORT+i. Once for each listener.",
    ),
    click.option("--cores", type=int, default=None, help="Number of cores. Default: all CPUs that may be used."),
    click.option("--oversubscribe", is_flag=True, help="Share the CPUs: cores may be more, and none is pinned."),
    click.option("--config", type=click.Path(), default=None, help="File of KEY=VALUE lines, with Kafka's names."),
    click.option(
        "--override", multiple=True, metavar="KEY=VALUE", help="One setting; stronger than the file. Repeatable."
    ),
    click.option(
        "--backend",
        type=click.Choice(CHOICES),
        default=None,
        help="io_uring, or plain where it is refused: slower. Default: auto, io_uring where it is there.",
    ),
    click.option(
        "--admin",
        default=None,
        metavar="[HOST:]PORT",
        help="Metrics, health and counters over HTTP, without passwords; on loopback where no host is given.",
    ),
    click.option(
        "--datagram",
        default=None,
        metavar="[ADDRESS:]PORT",
        help="Records as UDP datagrams, one port for all cores (docs/datagrams.md); on loopback where no address is "
        "given.",
    ),
    click.option(
        "--cluster", default=None, metavar="HOST:PORT", help="Where other nodes reach this one; core i at PORT+i."
    ),
    click.option("--seeds", default=None, metavar="HOST:PORT,…", help="Cluster addresses of the nodes that found it."),
    click.option("--node-id", type=int, default=None, metavar="N", help="Of this node in its cluster."),
    click.option("--rack", default=None, metavar="NAME", help="Where it stands: replicas are spread over racks."),
    click.option(
        "--cluster-secret", default=None, metavar="FILE", help="What all nodes of the cluster know, and nobody else."
    ),
)
"""What `serve` takes and `check-config` judges."""
Command = TypeVar("Command", bound="Callable[..., object]")


def _configured(command: Command) -> Command:
    for option in reversed(_CONFIGURATION):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tpc-broker")
@click.pass_context
def main(context: click.Context) -> None:
    """A durable, thread-per-core message broker that speaks the Kafka protocol."""
    before = os.umask(0)
    os.umask(closed_to_others(before))
    context.call_on_close(partial(os.umask, before))


@main.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log.")
@_configured
@click.option("--log-style", type=click.Choice(["auto", "readable", "json"]), default="auto", show_default=True)
@click.option("--log-level", type=click.Choice(LOG_LEVELS), default="INFO", show_default=True)
def serve(**arguments: object) -> None:
    """Run the broker in the foreground until SIGTERM."""
    try:
        sys.exit(_serve(arguments))
    except StartError as error:
        refuse(str(error))


@main.command("check-config")
@_configured
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
def check_config(as_json: bool, **arguments: object) -> None:  # noqa: FBT001
    """Whether `serve` would take these options and settings, and what they come to. Nothing is started or bound.

    Exit code 0 when it would, 2 when it would not, with one line that says what is wrong. More cores than this machine
    has CPUs are no fault: the configuration may be another machine's.
    """
    unused: dict[str, object] = {"data": ".", "oversubscribe": True, "log_style": "auto", "log_level": "INFO"}
    try:
        options = _serve_options({**arguments, **unused})
    except StartError as error:
        if as_json:
            click.echo(json.dumps({"good": False, "reason": str(error)}))
        refuse(str(error))
    given = load_settings(options.settings_text, options.overrides).given
    places = [listener.summary() for listener in options.listeners]
    settings = {name: value if is_shown(name) else LEFT_OUT for name, value in sorted(given.items())}
    cluster = options.cluster
    if as_json:
        told = {"good": True, "cores": options.cores, "listeners": places, "settings": settings}
        told["warnings"] = options.open_doors
        told |= {"without_effect": options.settings_ignored, "cluster": None}
        if cluster is not None:
            seeds = [str(seed) for seed in cluster.seeds]
            told["cluster"] = {"node": cluster.node_id, "address": str(cluster.address), "seeds": seeds,
                               "rack": cluster.rack, "has_secret": bool(cluster.secret_path)}  # fmt: skip
        click.echo(json.dumps(told))
        return
    click.echo(f"The configuration is good: {options.cores} cores on {' and '.join(places)}.")
    if cluster is not None:
        founds = "a founder" if cluster.address in cluster.seeds else "no founder"
        seeds_text = ", ".join(map(str, cluster.seeds))
        click.echo(f"Node {cluster.node_id} of a cluster at {cluster.address}, {founds}; seeds: {seeds_text}.")
    for warning in options.open_doors:
        click.echo(f"Warning: {warning}.")
    for name, value in settings.items():
        click.echo(f"  {name}={value}{'  (without effect here)' if name in options.settings_ignored else ''}")


@main.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log; it need not exist yet.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
def doctor(data: str, as_json: bool) -> None:  # noqa: FBT001
    """Examine this host: can the broker run here, how fast, and which command mends what is wrong.

    Exit code 0 when the broker can run here, 2 when it cannot. Nothing is changed.
    """
    from tpc_broker.operations.doctor import Severity, examine_host  # noqa: PLC0415 (a start need not wait for it)
    from tpc_broker.operations.doctor import report as doctor_report  # noqa: PLC0415

    findings = examine_host(Path(data).expanduser().resolve())
    click.echo(doctor_report(findings, as_json=as_json))
    sys.exit(EXIT_CANNOT_RUN if any(finding.severity is Severity.FAILURE for finding in findings) else EXIT_OK)


@main.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs, with every counter.")
@click.option("--watch", is_flag=True, help="Rates, latencies, queues and memory of each core, again and again.")
@click.option("--interval", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Of --watch. Default: 2.")
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Of --watch: end after so many looks.")
def status(data: str, as_json: bool, watch: bool, interval: float | None, count: int | None) -> None:  # noqa: FBT001
    """What the running broker counts, by core: connections, requests answered in C and by Python, waits, journal.

    Counters begin when a core starts. Exit code 2 when no broker answers for this directory.
    """
    from tpc_broker.telemetry.status import read_status, status_report  # noqa: PLC0415 (a start need not wait for it)
    from tpc_broker.telemetry.status_watch import INTERVAL_S, watch_status  # noqa: PLC0415

    for option, given in (("--interval", interval), ("--count", count)):
        if given is not None and not watch:
            refuse(f"{option} goes with --watch")
    folder = Path(data).expanduser().resolve()
    try:
        if watch:
            watch_status(folder, interval or INTERVAL_S, count, as_json=as_json)
            return
        found = read_status(folder)
    except StartError as error:
        refuse(str(error))
    click.echo(status_report(found, as_json=as_json))


@main.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
def steering(data: str, as_json: bool) -> None:  # noqa: FBT001
    """Which core gets what: listeners, partitions by core, and what the kernel's program placed where.

    How long a decision takes is told while the kernel measures it: sysctl -w kernel.bpf_stats_enabled=1.
    """
    from tpc_broker.telemetry.status import read_status, steering_report  # noqa: PLC0415 (a start need not wait for it)

    try:
        found = read_status(Path(data).expanduser().resolve())
    except StartError as error:
        refuse(str(error))
    click.echo(steering_report(found, as_json=as_json))


@main.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log.")
@click.option("--partition", default=None, metavar="TOPIC-N", help="Bring it back with what can be read.")
@click.option("--all", "every_partition", is_flag=True, help="All that are offline or named by a scrub.")
@click.option("--accept-loss", is_flag=True, help="With --partition or --all: do it; what cannot be read is lost.")
@click.option("--core", type=int, default=None, help="The core whose damaged journal is to be used up to the damage.")
@click.option("--accept-journal-damage", is_flag=True, help="With --core: do it; what lies behind the damage is lost.")
@click.option("--rebuild-metadata", is_flag=True, help="Make the cluster's metadata again from the topics' folders.")
@click.option("--apply", "apply_it", is_flag=True, help="Do what was said; not when records would be lost.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done: so without --apply and --accept-….")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
def repair(  # noqa: PLR0913 (click hands each option over by name)
    data: str,
    partition: str | None,
    core: int | None,
    *,
    every_partition: bool,
    accept_loss: bool,
    accept_journal_damage: bool,
    rebuild_metadata: bool,
    apply_it: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """List what is offline or damaged and why, or bring it back with all that can be read.

    Damage in a partition that is not offline is known once tpc-broker scrub has found it. The broker must be stopped.
    First it is said what would be done, and nothing is changed without --apply or --accept-…. What is replaced is kept
    in lost+found. Exit code 1 when the disk refuses files of some of --all, or the journal of their core, which are
    named, and the others were seen to; 2 when it is refused, also by the disk while the journals are replayed, which
    comes before anything is brought back.
    """
    from tpc_broker.operations.repair import PartlyRepairedError, RepairRequest  # noqa: PLC0415 (the server needs none)
    from tpc_broker.operations.repair import repair as run_repair  # noqa: PLC0415

    if accept_loss and partition is None and not every_partition:
        refuse("--accept-loss goes with --partition or --all: the records that cannot be read are lost")
    if accept_journal_damage and core is None:
        refuse("--accept-journal-damage goes with --core: what lies behind the damage is lost")
    if core is not None and apply_it and not accept_journal_damage:
        refuse("--core needs --accept-journal-damage: what lies behind the damage is lost")
    if dry_run and (apply_it or accept_loss or accept_journal_damage):
        refuse("--dry-run only says what would be done; leave it out, or --apply and --accept-…")
    if (partition is not None) + every_partition + (core is not None) + rebuild_metadata > 1:
        refuse("one repair at a time: --partition, --all, --core or --rebuild-metadata")
    does = apply_it or accept_loss or accept_journal_damage
    request = RepairRequest(partition, every_partition, core, rebuild_metadata, does, accept_loss, as_json)
    try:
        click.echo(run_repair(Path(data).expanduser().resolve(), request))
    except PartlyRepairedError as partly:
        click.echo(str(partly))
        sys.exit(EXIT_FAILED)
    except (StartError, RingUnavailable) as error:
        refuse(str(error))


for command in (*COMMANDS, user):
    main.add_command(command)
add_examples(main, TPC_BROKER)


def _serve(arguments: dict[str, object]) -> int:
    options = _serve_options(arguments)
    if os.environ.pop(CHECK_ONLY_VARIABLE, ""):
        check_steering(options.listeners, load_settings(options.settings_text, options.overrides).settings.ebpf_loader)
        return EXIT_OK
    signal.signal(RELOAD_SIGNAL, signal.SIG_IGN)  # one that comes before the supervisor listens ends nothing
    ignore_hangups()
    node = load_settings(options.settings_text, options.overrides).settings.node_id
    set_up_logging("supervisor", log_facts(node), style=options.log_style, level=options.log_level)
    try:
        chosen = choose_backend(load_settings(options.settings_text, options.overrides).settings.ring_backend)
    except RingUnavailable as error:
        raise StartError(f"{error}; or let it do without, slower: --backend plain") from error
    except ValueError as error:  # a variable names what there is not
        raise StartError(str(error)) from error
    options = replace(options, backend=chosen)
    unpinned = without_pins() if options.cpus else None
    if unpinned is not None:
        options = replace(options, cpus=None, fallbacks=(str(unpinned),))
    _raise_descriptor_limit()

    def say(text: str) -> None:
        click.echo(text if sys.stdout.isatty() else line_of(text))
        if sys.stdout.isatty():
            click.echo(KCAT_HINT.format(address=options.listeners[0].advertised[0]))

    supervisor = Supervisor(options, say)
    code = trio.run(supervisor.run)
    supervisor.start_anew()
    return code


def _serve_options(arguments: dict[str, object]) -> ServeOptions:
    asked = arguments["cores"]
    oversubscribe = bool(arguments["oversubscribe"])
    cores, cpus = choose_cores(asked if isinstance(asked, int) else None, oversubscribe=oversubscribe)
    overrides = (*_texts(arguments["override"]), *_of_node(arguments))
    text = _read_config(arguments["config"])
    try:
        file_name = f"--config {arguments['config']}"
        configured = load_settings(text, overrides, file_name=file_name)
        of_listeners = listener_settings(text, overrides, file_name=file_name)
        listeners = plan_listeners(_texts(arguments["listen"]), _texts(arguments["advertise"]), of_listeners, cores)
        open_doors = check_logins(listeners, configured.settings)
        check_token_support(listeners, configured.settings)
        with_tls = ssl_of_listeners(listeners, configured.settings, of_listeners)
    except ConfigError as error:
        raise StartError(str(error)) from error
    open_doors += [warning for each in with_tls.values() for warning in warnings_of(each)]
    return ServeOptions(
        data=Path(str(arguments["data"])).expanduser().resolve(),
        listeners=listeners,
        cores=cores,
        cpus=cpus,
        settings_text=without_comments(text),
        settings_ignored=tuple(without_effect(configured.given)),
        overrides=overrides,
        log_style=str(arguments["log_style"]),
        log_level=str(arguments["log_level"]),
        admin=None if arguments["admin"] is None else parse_admin(str(arguments["admin"])),
        datagram=None if arguments["datagram"] is None else parse_datagram(str(arguments["datagram"])),
        cluster=plan_cluster(
            arguments,
            cores,
            configured.settings.cluster_links_encryption,
            is_authorizing=configured.settings.has_authorizer,
        ),
        open_doors=tuple(open_doors),
    )


def _of_node(arguments: dict[str, object]) -> tuple[str, ...]:
    """What the command line says of the node, as the settings that it is."""
    given = {"ring.backend": arguments.get("backend")}
    if arguments.get("cluster") is not None:
        given |= {"node.id": arguments.get("node_id"), "broker.rack": arguments.get("rack")}
    return tuple(f"{name}={value}" for name, value in given.items() if value is not None)


def _texts(values: object) -> tuple[str, ...]:
    """Of an option that may be given several times."""
    assert isinstance(values, tuple)
    return tuple(str(value) for value in values)


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
