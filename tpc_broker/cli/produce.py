"""``tpc produce``: lines of standard input or of a file, each one record."""

from __future__ import annotations

import os
import sys
import time
from typing import IO, TYPE_CHECKING, Any

import click
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tpc_broker.cli.connection import client_configuration, common_options, explain, fail, print_json
from tpc_broker.cli.progress import count_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

DELIVERY_TIMEOUT_MS = 30_000
POLL_EVERY_RECORDS = 1_000


class WrongLineError(Exception):
    """A line of the input that is no record; those before it are written all the same."""


class Deliveries:
    """Counts what the broker acknowledged, and keeps the first failure."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.acknowledged_bytes = 0
        self.failed = 0
        self.first_failure: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
            self.acknowledged_bytes += len(message)
            return
        self.failed += 1
        self.first_failure = self.first_failure or error


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--key-separator", default=None, metavar="TEXT", help="What stands before it in a line is the key.")
@click.option("--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none")
@click.option("--partition", type=int, default=None, help="To this partition only.")
@common_options
def produce(  # noqa: PLR0913
    topic: str,
    file: IO[bytes],
    key_separator: str | None,
    compression: str,
    partition: int | None,
    bootstrap: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Write each line of FILE (or standard input) as one record to TOPIC."""
    if key_separator == "":
        fail("--key-separator must not be empty", 2)
    producer = Producer(
        client_configuration(
            bootstrap,
            **{
                "enable.idempotence": True,
                "compression.type": compression,
                "linger.ms": 5,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
                "queue.buffering.max.messages": 200_000,
            },
        )
    )
    deliveries = Deliveries()
    wrong_line: WrongLineError | None = None
    started = time.monotonic()
    try:
        with count_progress(f"to {topic}", _size_of(file), quiet=as_json) as advance:
            try:
                for key, value, size in _records(file, key_separator):
                    _send(producer, topic, key, value, partition, deliveries)
                    advance(deliveries.acknowledged, size)
            except WrongLineError as error:
                wrong_line = error
            while producer.flush(0.2):
                advance(deliveries.acknowledged, 0)
                if deliveries.first_failure is not None:
                    break
    except KafkaException as error:
        fail(explain(error, bootstrap))
    if deliveries.first_failure is not None:
        reason = explain(KafkaException(deliveries.first_failure), bootstrap)
        fail(f"{deliveries.failed} records were not acknowledged; {reason}")
    if wrong_line is not None:
        fail(f"{wrong_line}; {deliveries.acknowledged} records before it were acknowledged")
    _report(deliveries, topic, time.monotonic() - started, as_json=as_json)


def _records(file: IO[bytes], key_separator: str | None) -> Iterator[tuple[bytes | None, bytes, int]]:
    separator = key_separator.encode() if key_separator else None
    for number, line in enumerate(file, start=1):
        size = len(line)
        text = line.removesuffix(b"\n")
        if separator is None:
            yield None, text, size
            continue
        key, found, value = text.partition(separator)
        if not found:
            raise WrongLineError(f"line {number} has no key separator {key_separator!r}: {text[:60]!r}")
        yield key, value, size


def _send(  # noqa: PLR0913
    producer: Producer, topic: str, key: bytes | None, value: bytes, partition: int | None, deliveries: Deliveries
) -> None:
    place: dict[str, Any] = {} if partition is None else {"partition": partition}
    while True:
        try:
            producer.produce(topic, value=value, key=key, on_delivery=deliveries, **place)
        except BufferError:
            producer.poll(0.1)
            continue
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
