"""What the commands share: options, clients, errors in one line, and output for people or for programs."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

import click
from confluent_kafka import KafkaError, KafkaException
from rich.console import Console
from rich.table import Table

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
REQUEST_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0

Command = TypeVar("Command", bound=Callable[..., Any])

quiet_logger = logging.getLogger("tpc.librdkafka")
quiet_logger.addHandler(logging.NullHandler())
quiet_logger.propagate = False


def common_options(command: Command) -> Command:
    """--bootstrap and --json."""
    command = click.option(
        "--bootstrap", default=DEFAULT_BOOTSTRAP, show_default=True, metavar="HOST:PORT", help="Any core of any node."
    )(command)
    return click.option("--json", "as_json", is_flag=True, help="One JSON value (or one a line) for programs.")(command)


def client_configuration(bootstrap: str, **more: Any) -> dict[str, Any]:
    """What every client of librdkafka is told. Ends the command at once where nobody listens: librdkafka would try on
    until its time-outs, and then not say why.
    """
    _require_listener(bootstrap)
    return {"bootstrap.servers": bootstrap, "logger": quiet_logger, "client.id": "tpc", **more}


def _require_listener(bootstrap: str) -> None:
    problem = "no address given"
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or not port.isdigit():
            fail(f"--bootstrap {address}: expected HOST:PORT, for example {DEFAULT_BOOTSTRAP}", 2)
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
        except (OSError, OverflowError) as error:
            problem = str(error)
        else:
            return
    fail(f"no broker answers at {bootstrap} ({problem}); is it running?")


def fail(message: str, code: int = 1) -> NoReturn:
    click.echo(f"tpc: {message}", err=True)
    sys.exit(code)


def explain(error: BaseException, bootstrap: str) -> str:
    """One line for what a client library says."""
    if isinstance(error, KafkaException):
        cause = error.args[0]
        if isinstance(cause, KafkaError):
            if cause.code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT):
                return f"no broker answers at {bootstrap} ({cause.str()}); is it running?"
            return cause.str()
    return str(error)


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """A table on a terminal, tab-separated lines in a pipe."""
    if not sys.stdout.isatty():
        for row in rows:
            click.echo("\t".join("" if cell is None else str(cell) for cell in row))
        return
    table = Table(*columns, title=title, title_justify="left", header_style="bold")
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console().print(table)
