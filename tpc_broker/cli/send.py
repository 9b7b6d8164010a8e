"""``tpc send``: lines of standard input or of a file, each one datagram."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import cycle
from typing import IO, TYPE_CHECKING

import click

from tpc_broker.cli.admin import admin_client, partitions_of
from tpc_broker.cli.connection import Exit, common_options, fail, print_json
from tpc_broker.cli.produce import WrongLineError, input_records
from tpc_broker.cli.record_text import chosen_coding
from tpc_broker.host_port import NO_HOST, may_name_a_host, split_host_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpc_broker.client.datagrams import DatagramProducer

Line = tuple[bytes | None, bytes, int]


@dataclass
class Sent:
    records: int = 0
    sent_again: int = 0
    first_failure: Exception | None = None


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--to", "target", required=True, metavar="HOST:PORT[,…]",
              help="Where `tpc-broker serve --datagram` listens; of a cluster the ports of its nodes.")  # fmt: skip
@click.option("--partition", type=click.IntRange(min=0), default=None, help="To this one only. Default: all, by turns.")
@click.option("--key-separator", default=None, metavar="TEXT", help="What stands before it in a line is the key.")
@click.option("--hex", "as_hex", is_flag=True, help="Keys and values are written in hexadecimal digits.")
@click.option("--base64", "as_base64", is_flag=True, help="Keys and values are written in base64.")
@click.option("--unconfirmed", is_flag=True, help="Send each once, and ask for no acknowledgement.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=30.0, show_default=True,
              metavar="SECONDS", help="For the acknowledgement of a record.")  # fmt: skip
@common_options
def send(  # noqa: PLR0913
    topic: str,
    file: IO[bytes],
    target: str,
    partition: int | None,
    key_separator: str | None,
    as_hex: bool,  # noqa: FBT001
    as_base64: bool,  # noqa: FBT001
    unconfirmed: bool,  # noqa: FBT001
    timeout: float,
    bootstrap: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Send each line of FILE (or standard input) as a datagram, and again until it is acknowledged.

    A record is written at least once. Without --partition the topic's partitions are asked of --bootstrap, and a key
    has no say in which one it is.

    \b
    Examples:
      tpc send metrics --to 127.0.0.1:9095 < readings.txt
      echo kitchen=21.5 | tpc send metrics --to 127.0.0.1:9095 --partition 3 --key-separator =
    """  # noqa: D301 (click's mark for text that keeps its lines)
    addresses = [_address(each, target) for each in target.split(",")]
    if key_separator == "":
        fail("--key-separator must not be empty", Exit.USAGE)
    coding = chosen_coding(as_hex=as_hex, as_base64=as_base64)
    places = [partition] if partition is not None else partitions_of(admin_client(bootstrap), topic, bootstrap)
    lines = input_records(file, key_separator, coding)
    started = time.monotonic()
    sent = _send_all(addresses, topic, places, lines, timeout, confirmed=not unconfirmed)
    if sent.first_failure is not None:
        from tpc_broker.client.errors import UnreachableError  # noqa: PLC0415

        code = Exit.UNREACHABLE if isinstance(sent.first_failure, UnreachableError) else Exit.FAILED
        fail(f"{sent.first_failure}; {sent.records} records were {'sent' if unconfirmed else 'acknowledged'}", code)
    seconds = time.monotonic() - started
    if as_json:
        print_json({"topic": topic, "records": sent.records, "sent_again": sent.sent_again,
                    "acknowledged": not unconfirmed, "seconds": round(seconds, 3)})  # fmt: skip


def _address(text: str, given: str) -> tuple[str, int]:
    host, port = split_host_port(text.strip())
    if not host or port is None:
        fail(f"--to {given}: expected HOST:PORT, several with commas between them", Exit.USAGE)
    if not may_name_a_host(host):
        fail(f"--to {given}: {NO_HOST}", Exit.USAGE)
    return host, port


def _send_all(  # noqa: PLR0913
    addresses: list[tuple[str, int]],
    topic: str,
    places: list[int],
    lines: Iterator[Line],
    timeout_s: float,
    *,
    confirmed: bool,
) -> Sent:
    import anyio  # noqa: PLC0415 (the other commands need none of it)

    from tpc_broker.client.datagrams import DatagramProducer, DatagramSettings  # noqa: PLC0415
    from tpc_broker.client.errors import ClientError  # noqa: PLC0415

    sent = Sent()
    settings = DatagramSettings(give_up_seconds=timeout_s)
    room = settings.in_flight_max

    async def one(producer: DatagramProducer, partition: int, line: Line, free: anyio.Semaphore) -> None:
        key, value, _size = line
        try:
            if confirmed:
                await producer.send(topic, partition, value, key=key)
            else:
                await producer.send_unconfirmed(topic, partition, value, key=key)
            sent.records += 1
        except ClientError as error:
            sent.first_failure = sent.first_failure or error
        finally:
            free.release()

    async def every() -> None:
        free = anyio.Semaphore(room)
        async with DatagramProducer(*addresses[0], settings, other_nodes=addresses[1:]) as producer:
            async with anyio.create_task_group() as tasks:
                partitions = cycle(places)
                while sent.first_failure is None:
                    await free.acquire()
                    line = await anyio.to_thread.run_sync(_next_line, lines)
                    if line is None or isinstance(line, WrongLineError):
                        sent.first_failure = sent.first_failure or line
                        break
                    tasks.start_soon(one, producer, next(partitions), line, free)
            sent.sent_again = producer.sent_again

    try:
        anyio.run(every, backend="asyncio")  # trio wants the signals, which are watched here already
    except ClientError as error:
        sent.first_failure = error
    except KeyboardInterrupt:
        fail(f"interrupted; {sent.records} records were acknowledged", Exit.INTERRUPTED)
    return sent


def _next_line(lines: Iterator[Line]) -> Line | WrongLineError | None:
    try:
        return next(lines, None)
    except WrongLineError as error:
        return error
