"""Commands of ``tpc-broker`` that look after a data directory beside the broker: what they take and print."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from tpc_broker.operations.backup import BackupReport

EXIT_DAMAGED, EXIT_REFUSED, EXIT_INTERRUPTED = 1, 2, 130
RATE_DEFAULT: Final = "32M"
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def refuse(reason: str) -> NoReturn:
    click.echo(f"tpc-broker: {reason}", err=True)
    sys.exit(EXIT_REFUSED)


def parse_rate(text: str) -> int:
    """Bytes a second of `50M`, `1.5G`, `800000`; StartError."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,3})?)([KMG]?)", text, re.ASCII)
    rate = int(float(match[1]) * _UNITS[match[2]]) if match else 0
    if rate <= 0:
        raise StartError(f"--rate {text}: expected bytes a second, such as 800000, 50M or 1.5G")
    return rate


@contextmanager
def progress(title: str, *, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """What takes done and all bytes, and shows a bar on a terminal."""
    if not (shown and sys.stderr.isatty()):
        yield lambda _done, _total: None
        return
    from rich.console import Console  # noqa: PLC0415 (only who sees it waits for it)
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

    columns = (TextColumn(title), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=max(total, 1))


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM, and SIGHUP unless it is ignored, end what is in the block as Ctrl-C does: cleaned up, and said.

    Whoever has taken SIGINT by then is asked: trio, while it runs, lets none of its own steps end in the midst.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    ignores_ctrl_c = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignores_ctrl_c:  # a shell's background job; trio takes only what has Python's own handler
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, _as_ctrl_c)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if ignores_ctrl_c:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # with those that came meanwhile
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _as_ctrl_c(_number: int, frame: FrameType | None) -> None:
    taken = signal.getsignal(signal.SIGINT)
    (taken if callable(taken) else signal.default_int_handler)(signal.SIGINT, frame)


@click.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log.")
@click.option(
    "--rate", default=RATE_DEFAULT, show_default=True, metavar="BYTES", help="To read each second at most: 800000, 50M."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
def scrub(data: str, rate: str, as_json: bool) -> None:  # noqa: FBT001
    """Read every stored batch and say which are damaged, beside a running broker or on a stopped one's directory.

    Nothing is repaired. What is found stays in `tpc-broker status` and in the metrics until a later scrub finds it
    sound. Of a stopped broker the journals are checked too. Exit code 1 when something is damaged, 2 when refused.
    """
    from tpc_broker.operations.scrub import Scrub  # noqa: PLC0415 (a start need not wait for it)
    from tpc_broker.storage.recovery.scrub_report import report_lines  # noqa: PLC0415

    try:
        with ended_by_signals(), progress("scrub", shown=not as_json) as on_progress:
            report = Scrub(Path(data).expanduser().resolve(), parse_rate(rate), on_progress).run()
    except StartError as error:
        refuse(str(error))
    except KeyboardInterrupt:
        click.echo("tpc-broker: interrupted; `tpc-broker status` shows what was found until then", err=True)
        sys.exit(EXIT_INTERRUPTED)
    click.echo(json.dumps(report.as_json()) if as_json else "\n".join(report_lines(report)))
    sys.exit(EXIT_DAMAGED if report.damaged_count else 0)


@click.command()
@click.argument("target", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--data", default="./data", show_default=True, help="Directory of the log.")
@click.option("--copy", "with_copies", is_flag=True, help="Copy everything, also what could be shared with the log.")
@click.option("--accept-behind", is_flag=True, help="Of a cluster's node: also where no leader says what is missing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
def backup(
    target: Path,
    data: str,
    with_copies: bool,  # noqa: FBT001
    accept_behind: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
) -> None:
    """Make a copy of a node's data as of one moment in DIR, while its broker runs, or of a stopped one.

    Every record that was acknowledged before the command is in it. DIR is missing or empty. On the same file system,
    segments that are written no more are hard links and take no space; with --copy, copies. Exit code 2 when it is
    refused or fails; DIR then says that it is not whole.

    Of a running node of a cluster it has the partitions that are on that node, and of each what was committed. It is
    restored as a broker of its own, never as the node that it was.
    """
    from tpc_broker.operations.backup import backup as run_backup  # noqa: PLC0415 (a start need not wait for it)

    try:
        with ended_by_signals(), progress("backup", shown=not as_json) as on_progress:
            folders = (Path(data).expanduser().resolve(), target.expanduser().absolute())
            report = run_backup(*folders, on_progress, with_links=not with_copies, accept_behind=accept_behind)
    except StartError as error:
        refuse(str(error))
    except KeyboardInterrupt:
        click.echo(f"tpc-broker: interrupted; {target} is not whole, remove it", err=True)
        sys.exit(EXIT_INTERRUPTED)
    if as_json:
        click.echo(json.dumps(asdict(report)))
        return
    for line in _of_node(report):
        click.echo(line)
    moment = f"; the cores stood still for {report.stood_still_ms:.1f} ms" if report.is_running else ""
    click.echo(
        f"{len(report.files):,} files in {target}: {report.copied_bytes / 2**20:,.1f} MiB copied, "
        f"{report.linked_bytes / 2**20:,.1f} MiB shared with the log{moment}"
    )


def _of_node(report: BackupReport) -> Iterator[str]:
    """What the copy of a cluster's node has and lacks."""
    from tpc_broker.operations.backup_node import some  # noqa: PLC0415

    if report.node is not None:
        yield f"{report.partitions:,} partitions of node {report.node}, up to what was committed"
    if report.left_out:
        yield f"not in it: {len(report.left_out):,} partitions that are on other nodes: {some(report.left_out)}"
    if report.behind:
        yield f"may lack what was acknowledged: {some(report.behind)}"


@click.command()
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.option("--data", required=True, metavar="DIR", help="Directory to make; missing or empty.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
def restore(source: Path, data: str, as_json: bool) -> None:  # noqa: FBT001
    """Make a data directory of a backup. A broker that is started with it has what was there at the backup's moment.

    That of a cluster's node becomes a broker without a cluster, with an id of its own. Started with --cluster it founds
    a new one, which nodes with an empty --data join. The backup stays as it is. Exit code 2 when it is refused or
    fails; DIR then says that it is not whole.
    """
    from tpc_broker.operations.backup import restore as run_restore  # noqa: PLC0415 (a start need not wait for it)

    folder = Path(data).expanduser().absolute()
    try:
        with ended_by_signals(), progress("restore", shown=not as_json) as on_progress:
            manifest = run_restore(source.expanduser().absolute(), folder, on_progress)
    except StartError as error:
        refuse(str(error))
    except KeyboardInterrupt:
        click.echo(f"tpc-broker: interrupted; {folder} is not whole, remove it", err=True)
        sys.exit(EXIT_INTERRUPTED)
    files: dict[str, int] = manifest.pop("files")
    told = {**manifest, "files_count": len(files), "bytes": sum(files.values())}
    taken = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(manifest["taken_ms"] / 1000))
    text = f"{len(files):,} files of {taken} restored; start it: tpc-broker serve --data {folder}"
    if as_json:
        click.echo(json.dumps(told))
        return
    for line in _restored_of_node(manifest):
        click.echo(line)
    click.echo(text)


def _restored_of_node(manifest: dict[str, Any]) -> Iterator[str]:
    from tpc_broker.operations.backup_node import some  # noqa: PLC0415

    if "of_node" in manifest:
        yield f"it is cluster {manifest['cluster_id']} now, and no node of {manifest['of_cluster']}"
    if manifest.get("left_out"):
        yield f"{len(manifest['left_out']):,} partitions begin empty: {some(manifest['left_out'])}"
    if manifest.get("shorter"):
        yield f"shorter than they were: {some(manifest['shorter'])}"


@click.command()
@click.option("--data", default="./data", show_default=True, help="Directory of the log.")
@click.option("--out", type=click.Path(path_type=Path), default=None, metavar="FILE", help="A new .tar.gz file.")
@click.option("--config", type=click.Path(path_type=Path), default=None, help="The broker's, for its settings.")
@click.option("--override", multiple=True, metavar="KEY=VALUE", help="As of serve. Repeatable.")
@click.option("--log", type=click.Path(path_type=Path), default=None, help="The broker's log. Default: journalctl.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object for programs.")
def bundle(  # noqa: PLR0913 (click hands each option over by name)
    data: str,
    out: Path | None,
    config: Path | None,
    override: tuple[str, ...],
    log: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Put what one needs to understand a problem into one file: counters, host, settings, log, files of the log.

    No records are in it and no secrets: values of settings that are secret or unknown are left out, and taken out of
    the log too. Names of topics, hosts and addresses are in it. The broker may run, or be stopped.
    """
    from tpc_broker.operations.bundle import Bundle  # noqa: PLC0415 (a start need not wait for it)

    folder = Path(data).expanduser().resolve()
    target = out or Path(time.strftime("tpc-bundle-%Y%m%dT%H%M%SZ.tar.gz", time.gmtime()))
    if not folder.is_dir():
        refuse(f"--data {folder}: there is no such directory")
    try:
        sizes = Bundle(folder, config, override, log).write(target)
    except StartError as error:
        refuse(str(error))
    if as_json:
        click.echo(json.dumps({"file": str(target), "parts": sizes}))
        return
    click.echo(f"{target}: {', '.join(sizes)}. Names of topics and hosts are in it; look before you send it.")


@click.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--records", is_flag=True, help="Each record too, with its key, value and headers.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line for programs.")
def dump(files: tuple[Path, ...], records: bool, as_json: bool) -> None:  # noqa: FBT001
    """Show the batches of segment files (DATA/topics/TOPIC-N/*.log), also beside a running broker.

    Of one that was cleaned it is said first what its seal (*.seal) says, which can be shown alone, too.

    Of users in the metadata it is shown who they are, without their credentials.

    Exit code 1 when something is damaged, 2 when a file cannot be read.
    """
    from tpc_broker.operations.dump import dump as rows_of  # noqa: PLC0415 (a start need not wait for it)
    from tpc_broker.operations.dump import line_of  # noqa: PLC0415

    damaged = False
    for path in files:
        try:
            if not as_json and len(files) > 1:
                click.echo(f"{path}:")
            for row in rows_of(path.expanduser(), records=records):
                damaged |= "problem" in row
                click.echo(json.dumps({"file": str(path), **row}) if as_json else line_of(row))
        except StartError as error:
            refuse(str(error))
    if damaged:
        sys.exit(EXIT_DAMAGED)


COMMANDS: Final = (scrub, backup, restore, bundle, dump)
