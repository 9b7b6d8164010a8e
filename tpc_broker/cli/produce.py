"""``tpc produce``: lines of standard input or of a file, each one record."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import IO, TYPE_CHECKING, Any

import click
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tpc_broker.cli.connection import (
    Exit,
    common_options,
    exit_of,
    explain,
    fail,
    fail_with,
    make_client,
    print_json,
)
from tpc_broker.cli.progress import count_progress
from tpc_broker.cli.record_text import CODINGS, Pace, chosen_coding, parse_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

ANY_PARTITION = -1
"""The key, or chance, decides."""
DELIVERY_TIMEOUT_MS = 30_000
RECORD_BYTES_MAX = 1_000_000
"""Key, value and what surrounds them: librdkafka's default, and a little below Kafka's for a batch."""


class WrongLineError(Exception):
    """A line of the input that is no record; those before it are written all the same."""


class Deliveries:
    """Counts what the broker acknowledged, and keeps the first failure."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.acknowledged_bytes = 0
        self.failed = 0
        self.first_failure: KafkaError | None = None
        self.first_failed = ""

    def __call__(self, line: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
            self.acknowledged_bytes += len(message)
            return
        self.failed += 1
        if self.first_failure is None:
            self.first_failure = error
            self.first_failed = f"line {line} ({len(message.value() or b'')} bytes)"


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--key-separator", default=None, metavar="TEXT", help="What stands before it in a line is the key.")
@click.option("--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none")
@click.option("--partition", type=click.IntRange(min=0), default=None, help="To this partition only.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Of every record. Repeatable.")
@click.option("--hex", "as_hex", is_flag=True, help="Keys and values are written in hexadecimal digits.")
@click.option("--base64", "as_base64", is_flag=True, help="Keys and values are written in base64.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Records a second at most.")
@common_options
def produce(  # noqa: PLR0913
    topic: str,
    file: IO[bytes],
    key_separator: str | None,
    compression: str,
    partition: int | None,
    headers: tuple[str, ...],
    as_hex: bool,  # noqa: FBT001
    as_base64: bool,  # noqa: FBT001
    rate: float | None,
    bootstrap: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Write each line of FILE (or standard input) as one record to TOPIC.

    \b
    Examples:
      tpc produce orders events.txt --compression zstd
      tpc produce orders --key-separator : --header source=till --rate 100
      echo 00ff | tpc produce orders --hex --partition 0
    """  # noqa: D301 (click's mark for text that keeps its lines)
    if key_separator == "":
        fail("--key-separator must not be empty", Exit.USAGE)
    coding = chosen_coding(as_hex=as_hex, as_base64=as_base64)
    place = {"headers": parse_headers(headers), "partition": ANY_PARTITION if partition is None else partition}
    producer = make_client(
        Producer,
        bootstrap,
        **{
            "enable.idempotence": True,
            "compression.type": compression,
            "linger.ms": 5,
            "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            "queue.buffering.max.messages": 200_000,
            "message.max.bytes": RECORD_BYTES_MAX,
        },
    )
    deliveries = Deliveries()
    wrong_line: WrongLineError | None = None
    started = time.monotonic()
    pace = Pace(rate)
    try:
        with count_progress(f"to {topic}", _size_of(file), quiet=as_json) as advance:
            try:
                for line, (key, value, size) in enumerate(input_records(file, key_separator, coding), start=1):
                    pace.wait(lambda seconds: _serve(producer, seconds))
                    _send(producer, topic, key, value, place, partial(deliveries, line))
                    advance(deliveries.acknowledged, size)
            except WrongLineError as error:
                wrong_line = error
            while producer.flush(0.2):
                advance(deliveries.acknowledged, 0)
                if deliveries.first_failure is not None:
                    break
    except KafkaException as error:
        fail_with(error, bootstrap)
    except KeyboardInterrupt:
        fail(f"interrupted; {deliveries.acknowledged} records were acknowledged", Exit.INTERRUPTED)
    if deliveries.first_failure is not None:
        failure = KafkaException(deliveries.first_failure)
        said = f"{deliveries.failed} records were not acknowledged, the first is {deliveries.first_failed}"
        fail(f"{said}: {explain(failure, bootstrap)}", exit_of(failure))
    if wrong_line is not None:
        fail(f"{wrong_line}; {deliveries.acknowledged} records before it were acknowledged")
    _report(deliveries, topic, time.monotonic() - started, as_json=as_json)


def _serve(producer: Producer, seconds: float) -> None:
    """What was sent is acknowledged while the next record waits for its time."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        producer.poll(left_s)


def input_records(
    file: IO[bytes], key_separator: str | None, coding: str
) -> Iterator[tuple[bytes | None, bytes, int]]:
    """Key, value and bytes of each line. WrongLineError names the line that is none."""
    separator = key_separator.encode() if key_separator else None
    decode = CODINGS[coding].decode
    for number, line in enumerate(file, start=1):
        size = len(line)
        text = line.removesuffix(b"\n")
        key, found, value = (None, b"", text) if separator is None else text.partition(separator)
        if separator is not None and not found:
            raise WrongLineError(f"line {number} has no key separator {key_separator!r}: {text[:60]!r}")
        try:
            yield None if key is None else decode(key), decode(value), size
        except ValueError:
            raise WrongLineError(f"line {number} is no {coding}: {text[:60]!r}") from None


def _send(  # noqa: PLR0913
    producer: Producer, topic: str, key: bytes | None, value: bytes, place: dict[str, Any], on_delivery: partial[None]
) -> None:
    """`place`: the partition and the headers, where they were given."""
    while True:
        try:
            producer.produce(topic, value=value, key=key, on_delivery=on_delivery, **place)
        except BufferError:
            producer.poll(0.1)
            continue
        except KafkaException as error:
            if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise
            size = len(key or b"") + len(value)
            raise WrongLineError(
                f"line {on_delivery.args[0]} is a record of {size} bytes; the largest that is sent has "
                f"{RECORD_BYTES_MAX}, with what surrounds it"
            ) from None
        producer.poll(0)
        return


def _size_of(file: IO[bytes]) -> int | None:
    try:
        size = os.fstat(file.fileno()).st_size
    except OSError:
        return None
    return size or None


def _report(deliveries: Deliveries, topic: str, seconds: float, *, as_json: bool) -> None:
    if as_json:
        print_json({"topic": topic, "records": deliveries.acknowledged, "bytes": deliveries.acknowledged_bytes,
                    "seconds": round(seconds, 3)})  # fmt: skip
    elif sys.stderr.isatty() or sys.stdout.isatty():
        click.echo(f"{deliveries.acknowledged:,} records acknowledged by {topic} in {seconds:.1f} s", err=True)
