"""What the commands share: options, clients, errors in one line, and output for people or for programs."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NoReturn, TypeVar

import click
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from rich.console import Console
from rich.table import Table

from tpc_broker.cli.profile_file import Profile, ProfileError, load_profiles
from tpc_broker.host_port import NO_HOST, PORT_MAX, may_name_a_host, read_port

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
REQUEST_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0
INTERRUPT_GRACE_S = 1.0
FINISH_S = 5.0


class Exit(IntEnum):
    """What a command's exit code says; docs/commands.md has the table."""

    FAILED = 1
    """The broker refused it, or something here failed."""
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    CONFLICT = 5
    """It cannot be done in the state that things are in: the group has members, the topic exists already."""
    DENIED = 6
    INTERRUPTED = 130
    """After Ctrl-C, as a shell tells it of a process that SIGINT ended."""


_UNREACHABLE = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT}
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
_EXITS = {
    Exit.UNREACHABLE: {*_UNREACHABLE, KafkaError.REQUEST_TIMED_OUT, KafkaError._RESOLVE},
    Exit.NOT_FOUND: {
        KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.UNKNOWN_TOPIC_ID, KafkaError.GROUP_ID_NOT_FOUND,
        KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_GROUP,
    },
    Exit.CONFLICT: {
        KafkaError.TOPIC_ALREADY_EXISTS, KafkaError.NON_EMPTY_GROUP, KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.GROUP_SUBSCRIBED_TO_TOPIC,
    },
    Exit.DENIED: {
        KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    },
}  # fmt: skip

Command = TypeVar("Command", bound=Callable[..., Any])
Client = TypeVar("Client", AdminClient, Consumer, Producer)
ADDRESSES = {"bootstrap.servers", "metadata.broker.list"}
_PROPERTIES = "tpc.properties"
_PROFILE = "tpc.profile"

_HELP_SHOWN: tuple[type[Exception], ...] = (
    (click.exceptions.NoArgsIsHelpError,) if hasattr(click.exceptions, "NoArgsIsHelpError") else ()  # since click 8.2
)
_watching = threading.Event()
_has_to_finish = threading.Event()
quiet_logger = logging.getLogger("tpc.librdkafka")
quiet_logger.addHandler(logging.NullHandler())
quiet_logger.propagate = False


def common_options(command: Command) -> Command:
    """--bootstrap, --profile, -X and --json."""
    command = click.option(
        "--bootstrap", default=None, callback=_choose_bootstrap, metavar="HOST:PORT",
        help=f"Any core of any node. Default: the profile's, else {DEFAULT_BOOTSTRAP}.",
    )(command)
    command = click.option(
        "--profile", default="", is_eager=True, expose_value=False, callback=_keep_profile, metavar="NAME",
        envvar="TPC_PROFILE", show_envvar=True, help="An address and settings that `tpc profile` keeps.",
    )(command)  # fmt: skip
    command = click.option(
        "-X", "properties", multiple=True, metavar="NAME=VALUE", expose_value=False, callback=_keep_properties,
        help="A setting of librdkafka, for example -X security.protocol=ssl. Repeatable.",
    )(command)  # fmt: skip
    return click.option("--json", "as_json", is_flag=True, help="One JSON value (or one a line) for programs.")(command)


def split_settings(option: str, given: Iterable[str], example: str) -> dict[str, str]:
    """`NAME=VALUE` of an option that may be given several times."""
    settings = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name:
            fail(f"{option} {text}: expected NAME=VALUE, for example {example}", Exit.USAGE)
        settings[name] = value
    return settings


def librdkafka_settings(given: Iterable[str]) -> dict[str, str]:
    """Those of -X. Not the address, which the commands that need no librdkafka would not see."""
    settings = split_settings("-X", given, "security.protocol=ssl")
    refuse_addresses("-X", settings)
    return settings


def refuse_addresses(where: str, settings: Iterable[str]) -> None:
    for name in ADDRESSES & set(settings):
        fail(f"{where} {name}: the address is given by --bootstrap HOST:PORT, or by `tpc profile set`", Exit.USAGE)


def _keep_profile(context: click.Context, _parameter: click.Parameter, name: str) -> None:
    """Which profile is meant; the options that are read after it ask for it."""
    try:
        profiles = load_profiles()
    except ProfileError as error:
        fail(str(error), Exit.USAGE)
    try:
        context.meta[_PROFILE] = profiles.find(name or profiles.current) if name or profiles.current else None
    except ProfileError as error:
        fail(str(error), Exit.NOT_FOUND)


def _choose_bootstrap(context: click.Context, _parameter: click.Parameter, given: str | None) -> str:
    profile: Profile | None = context.meta.get(_PROFILE)
    return given if given is not None else (profile.bootstrap if profile else DEFAULT_BOOTSTRAP)


def _keep_properties(context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> None:
    """Of the whole invocation: every client that the command makes has them. They are stronger than the profile's."""
    profile: Profile | None = context.meta.get(_PROFILE)
    kept = profile.properties if profile else {}
    refuse_addresses("the profile's setting", kept)
    context.meta[_PROPERTIES] = {**kept, **librdkafka_settings(given)}


def client_configuration(bootstrap: str, **more: Any) -> dict[str, Any]:
    """What every client of librdkafka is told; what was given with -X is stronger. Ends the command at once where
    nobody listens: librdkafka would try on until its time-outs, and then not say why.
    """
    _end_when_interrupted()
    _require_listener(bootstrap)
    return given_configuration(bootstrap, **more)


def given_configuration(bootstrap: str, **more: Any) -> dict[str, Any]:
    """The same, whether somebody listens or not."""
    context = click.get_current_context(silent=True)
    given = context.meta.get(_PROPERTIES, {}) if context else {}
    return {"bootstrap.servers": bootstrap, "logger": quiet_logger, "client.id": "tpc", **more, **given}


def make_client(kind: type[Client], bootstrap: str, **more: Any) -> Client:
    """A client of librdkafka; a setting that it does not take ends the command with its name."""
    configuration = client_configuration(bootstrap, **more)
    try:
        return kind(configuration)
    except KafkaException as error:
        if error.args[0].code() == KafkaError._INVALID_ARG:
            fail(f"-X: {error.args[0].str()}", Exit.USAGE)
        fail_with(error, bootstrap)
    except ValueError as error:
        fail(f"-X: {error}", Exit.USAGE)


def _end_when_interrupted() -> None:
    """Ctrl-C ends the command also while it is inside librdkafka, where Python's handler does not get its turn: it has
    `INTERRUPT_GRACE_S` to end by itself.
    """
    if threading.current_thread() is not threading.main_thread() or _watching.is_set():
        return
    _watching.set()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        while signal.SIGINT not in os.read(reading, 64):
            pass
        time.sleep(INTERRUPT_GRACE_S + (FINISH_S if _has_to_finish.is_set() else 0))
        os._exit(Exit.INTERRUPTED)

    threading.Thread(target=watch, name="interrupt", daemon=True).start()


def take_time_to_finish() -> None:
    """What the command does last when it is interrupted may take longer than `INTERRUPT_GRACE_S`."""
    _has_to_finish.set()


def leave_interrupts_alone() -> None:
    """For a process that is not only this command."""
    _watching.set()


def _require_listener(bootstrap: str) -> None:
    problem = "no address given"
    for address in [_read_address(each) for each in bootstrap.split(",")]:  # whoever answers, none may be mistyped
        try:
            socket.create_connection(address, timeout=CONNECT_TIMEOUT_S).close()
        except OSError as error:
            problem = str(error)
        else:
            return
    fail(f"no broker answers at {bootstrap} ({problem}); is it running?", Exit.UNREACHABLE)


def _read_address(address: str) -> tuple[str, int]:
    host, _, port_text = address.strip().rpartition(":")
    host, port = host.strip("[]"), read_port(port_text)
    if not host or not port_text.isdecimal():
        fail(f"--bootstrap {address}: expected HOST:PORT, for example {DEFAULT_BOOTSTRAP}", Exit.USAGE)
    if port is None:
        fail(f"--bootstrap {address}: port {port_text} is not a number from 1 to {PORT_MAX}", Exit.USAGE)
    if not may_name_a_host(host):
        fail(f"--bootstrap {address}: {NO_HOST}", Exit.USAGE)
    return host, port


class CommandGroup(click.Group):
    """Commands that end with one line and a fixed exit code also when they are interrupted or cannot write."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except _HELP_SHOWN:
            raise
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else ctx.command_path
            fail(f"{error.format_message().rstrip('.')}; `{path} --help` shows what may be given", Exit.USAGE)
        except BrokenPipeError:
            raise  # whoever reads has had enough; click knows what to do
        except KeyboardInterrupt:
            fail("interrupted", Exit.INTERRUPTED)
        except OSError as error:
            with contextlib.suppress(OSError):  # what is left in the buffer would fail once more at the exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            where = f"{error.filename}: " if error.filename else ""
            fail(f"{where}{error.strerror or error}")


def fail(message: str, code: int = Exit.FAILED) -> NoReturn:
    click.echo(f"tpc: {message}", err=True)
    sys.exit(int(code))


def no_topic(name: str) -> NoReturn:
    fail(f"there is no topic {name!r}; `tpc topic list` shows those that are", Exit.NOT_FOUND)


def fail_with(error: BaseException, bootstrap: str, what: str = "", *, topic: str = "") -> NoReturn:
    """End the command with what a client library says, after `what`, and the exit code for its kind. `topic`: the one
    that is meant where it says that there is none.
    """
    cause = error.args[0] if isinstance(error, KafkaException) else None
    if topic and isinstance(cause, KafkaError) and cause.code() in _NO_TOPIC:
        no_topic(topic)
    fail(f"{what}: {explain(error, bootstrap)}" if what else explain(error, bootstrap), exit_of(error))


def exit_of(error: BaseException) -> Exit:
    """The exit code for the kind of trouble that an error is."""
    if isinstance(error, TimeoutError):
        return Exit.UNREACHABLE
    cause = error.args[0] if isinstance(error, KafkaException) else None
    code = cause.code() if isinstance(cause, KafkaError) else None
    return next((found for found, codes in _EXITS.items() if code in codes), Exit.FAILED)


def explain(error: BaseException, bootstrap: str) -> str:
    """One line for what a client library says."""
    if isinstance(error, KafkaException):
        cause = error.args[0]
        if isinstance(cause, KafkaError):
            if cause.code() in _UNREACHABLE:
                return f"no broker answers at {bootstrap} ({cause.str()}); is it running?"
            return cause.str()
    return str(error) or f"no answer from {bootstrap} in time"


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def writes_to_terminal() -> bool:
    return sys.stdout.isatty()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """A table on a terminal. In a pipe tab-separated lines, the first with the columns' names; nothing without rows, so
    that a script sees at once whether there are any.
    """
    if not writes_to_terminal():
        found = list(rows)
        for row in [columns, *found] if found and any(columns) else found:
            click.echo("\t".join("" if cell is None else str(cell) for cell in row))
        return
    Console().print(rich_table(columns, rows, title=title))


def rich_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> Table:
    table = Table(*columns, title=title, title_justify="left", header_style="bold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    return table
