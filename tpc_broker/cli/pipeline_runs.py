"""What the commands of ``tpc pipeline`` share: options, a session, progress, errors in one line."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import re
import signal
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpc_broker.cli.connection import DEFAULT_BOOTSTRAP, fail, print_json, print_table
from tpc_broker.cli.progress import rows_progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SOURCES_WAY_OUT = "set failOnDataLoss to false"
SIZES = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3}


class Size(click.ParamType[int]):
    """A number of bytes with a unit: 128MB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = re.fullmatch(r"(\d+)\s*([kmg]?)i?b?", str(value).strip().lower())
        if not found or not int(found[1]):
            self.fail(f"{value!r} is not a size; write it as 128MB", param, ctx)
        return int(found[1]) * SIZES[found[2]]


class Place(click.ParamType[tuple[str, str]]):
    """Where to begin or to end in a topic, as a kind and its value: ("offsets", …) or ("time", milliseconds)."""

    name = "place"

    def __init__(self, end_of_log: str) -> None:
        """``end_of_log``: which of earliest and latest there is to say."""
        self._end_of_log = end_of_log

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        text = str(value).strip()
        if text == self._end_of_log:
            return "offsets", text
        if text.startswith("{"):
            try:
                json.loads(text)
            except ValueError as error:
                self.fail(f"{text} is not JSON: {error}", param, ctx)
            return "offsets", text
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f'{text!r} is none of {self._end_of_log}, 2026-11-21T10:00, {{"topic": {{"0": 5}}}}', param, ctx)
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        return "time", str(int(when.timestamp() * 1000))


def window_options(start: tuple[str, str] | None, end: tuple[str, str] | None) -> tuple[tuple[str, str], ...]:
    """The data source's options for a window."""
    names = {"offsets": "Offsets", "time": "Timestamp"}
    given = (("starting", start), ("ending", end))
    return tuple((f"{which}{names[place[0]]}", place[1]) for which, place in given if place is not None)


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What every job takes: where the broker is, where Spark is, how to print."""
    added = (
        click.option("--bootstrap", default=DEFAULT_BOOTSTRAP, show_default=True, metavar="HOST:PORT",
                     help="Any core of any node."),
        click.option("--option", "broker_options", multiple=True, metavar="KEY=VALUE",
                     help="How to speak to the broker, as in Spark: kafka.security.protocol=SASL_SSL, …"),
        click.option("--master", default="local[*]", show_default=True,
                     help="Spark's master: local[N], spark://HOST:PORT, yarn, k8s://…"),
        click.option("--driver-memory", default="1g", show_default=True, help="Memory of Spark's driver."),
        click.option("--conf", "configuration", multiple=True, metavar="KEY=VALUE",
                     help="More of Spark's configuration; may be given several times."),
        click.option("--json", "as_json", is_flag=True, help="One JSON value for programs, no progress."),
    )  # fmt: skip
    return add_options(command, added)


def window_choices(command: Callable[..., Any]) -> Callable[..., Any]:
    """--from and --until of a topic."""
    how = 'a time (2026-11-21T10:00, UTC) or {"topic": {"0": 5}}'
    added = (
        click.option("--from", "start", type=Place("earliest"), metavar="PLACE",
                     help=f"Where to begin: earliest (what is assumed), {how}."),
        click.option("--until", "end", type=Place("latest"), metavar="PLACE",
                     help="Where to end, before that: latest (what is assumed), or in the same forms."),
    )  # fmt: skip
    return add_options(command, added)


def target_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How rows go into a topic."""
    added = (
        click.option("--partitions", type=click.Choice(["key", "same"]), default="key", show_default=True,
                     help="The key decides the partition, or it is that of the source."),
        click.option("--rate", metavar="RATE", help="At most so much: 5000 (records a second) or 20MB/s."),
        click.option("--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="zstd",
                     show_default=True, help="Of the batches."),
    )  # fmt: skip
    return add_options(command, added)


def add_options(command: Callable[..., Any], added: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(added), command)


def run(
    name: str,
    options: dict[str, Any],
    work: Callable[[Any, Any], Any],
    topics: tuple[str, ...] = (),
    target: str = "",
) -> Any:
    """``work(session, on_progress)``, when the topics are there that are read, of which some may be missing with
    --skip-lost, and the one that is written; whatever goes wrong is one line.
    """
    skips = options.get("skip_lost", False)
    configuration = dict(_pair("--conf", "spark.", entry) for entry in options["configuration"])
    watched = program("pipelines.progress")
    with errors_in_one_line("give --skip-lost" if "skip_lost" in options else "take another --checkpoint"):
        check = program("pipelines.topics").check_topics
        if target:
            check(broker(options), (target,))
        if topics:
            check(broker(options), topics, some_may_be_missing=skips)
        with (
            _spark(f"tpc {name}", options["master"], options["driver_memory"], configuration) as spark,
            rows_progress(name, quiet=options["as_json"]) as show,
        ):
            if show is None:
                return work(spark, watched.unwatched)
            return work(spark, lambda said: show(said.rows_count, said.rows_total, said.lag_rows, said.written_count))


def broker(options: dict[str, Any]) -> Any:
    """The broker that --bootstrap and --option name."""
    pairs = tuple(_pair("--option", "kafka.", entry) for entry in options["broker_options"])
    return program("pipelines.topics").Broker(options["bootstrap"], pairs)


def check_folder(options: dict[str, Any], folder: str) -> None:
    """Without waiting for Spark to say so: a local job's folder that is not there."""
    if options["master"].startswith("local") and "://" not in folder and not Path(folder).is_dir():
        fail(f"there is no folder {folder}")


def report(options: dict[str, Any], title: str, facts: dict[str, Any]) -> None:
    """What the job did: a table, or JSON."""
    if options["as_json"]:
        print_json(facts)
        return
    cells = [f"{value:,}" if isinstance(value, int) else value for value in facts.values()]
    print_table([name.replace("_", " ") for name in facts], [cells], title=title)


def program(name: str) -> Any:
    """A module of `tpc_broker.spark`, which is there when PySpark is."""
    try:
        return importlib.import_module(f"tpc_broker.spark.{name}")
    except ImportError as error:
        fail(f"{error}; install the extra: pip install 'tpc-broker[spark]'")


def _pair(option: str, prefix: str, entry: str) -> tuple[str, str]:
    key, separator, value = entry.partition("=")
    if not separator or not key.startswith(prefix):
        fail(f"{option} {entry}: expected {prefix}KEY=VALUE", 2)
    return key, value


@contextmanager
def _spark(name: str, master: str, driver_memory: str, configuration: dict[str, str]) -> Iterator[Any]:
    session = program("session").make_session(name, master, driver_memory, configuration)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # PySpark's asks the JVM while the JVM is being asked
    signal.signal(signal.SIGTERM, _terminate)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    root = logging.getLogger()
    root.addFilter(_is_not_py4js)
    try:
        yield session
    finally:
        session.stop()
        root.removeFilter(_is_not_py4js)


class Terminated(KeyboardInterrupt):
    """SIGTERM: what Ctrl-C does, with another exit code."""


def _terminate(*_: object) -> None:
    raise Terminated


def _is_not_py4js(record: logging.LogRecord) -> bool:
    """For the root logger, to which Py4J, beside its own, writes a page when Ctrl-C ends a call into the JVM."""
    return record.msg not in ("KeyboardInterrupt while sending command.", "Exception while sending command.")


@contextmanager
def errors_in_one_line(way_out: str = SOURCES_WAY_OUT) -> Iterator[None]:
    """``way_out``: what one gives here for the data source's option that allows losses."""
    try:
        yield
    except (KeyboardInterrupt, Exception) as error:  # noqa: BLE001 - whatever the query ended with
        if interruption := _interruption(error):
            code = 143 if isinstance(interruption, Terminated) else 130
            fail("stopped; the next run goes on from here", code)
        fail(_last_line(error).replace(SOURCES_WAY_OUT, way_out))


def _interruption(error: BaseException) -> KeyboardInterrupt | None:
    """Ctrl-C or SIGTERM, also where something failed because of it while all was put away."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt):
        cause = cause.__context__
    return cause


def _last_line(error: BaseException) -> str:
    """What a task said, without the stack that Spark puts around it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if "Error: " in line and line.startswith(("tpc_broker.", "ImportError: "))]
    return (named or lines or [repr(error)])[-1 if named else 0]
