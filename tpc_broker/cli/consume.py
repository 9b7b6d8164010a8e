"""``tpc consume``: records of a topic to standard output."""

from __future__ import annotations

import base64
import datetime
import sys
from typing import Any

import click
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tpc_broker.cli.connection import REQUEST_TIMEOUT_S, client_configuration, common_options, explain, fail, print_json
from tpc_broker.cli.progress import count_progress

POLL_RECORDS = 1000
POLL_S = 0.2


@click.command()
@click.argument("topic")
@click.option(
    "--from",
    "start",
    default="latest",
    show_default=True,
    metavar="earliest|latest|OFFSET|TIMESTAMP",
    help="Where to begin. A timestamp is ISO 8601, for example 2026-11-21T08:00:00Z; without a zone it is local time.",
)
@click.option("--count", type=click.IntRange(min=1), default=None, help="End after this many records.")
@click.option("--group", default=None, help="Consume as a member of this group, and commit.")
@click.option("--exit-at-end", is_flag=True, help="End when every partition has been read to its end.")
@common_options
def consume(  # noqa: PLR0913
    topic: str,
    start: str,
    count: int | None,
    group: str | None,
    exit_at_end: bool,  # noqa: FBT001
    bootstrap: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Print the records of TOPIC: values as lines, or with --json one object a line."""
    place = parse_start(start)
    consumer = Consumer(
        client_configuration(
            bootstrap,
            **{
                "group.id": group or "tpc-consume",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest" if start == "earliest" else "latest",
                "enable.partition.eof": True,
                "allow.auto.create.topics": False,
            },
        )
    )
    try:
        _subscribe(consumer, topic, place, group, bootstrap)
        _print_records(consumer, count, commit=group is not None, exit_at_end=exit_at_end, as_json=as_json)
    except KafkaException as error:
        fail(explain(error, bootstrap))
    except KeyboardInterrupt:
        pass
    finally:
        consumer.close()


def parse_start(text: str) -> int | datetime.datetime:
    """OFFSET_BEGINNING, OFFSET_END, an offset, or an instant."""
    if text in ("earliest", "latest"):
        return OFFSET_BEGINNING if text == "earliest" else OFFSET_END
    if text.isdecimal():
        return int(text)
    try:
        instant = datetime.datetime.fromisoformat(text)
    except ValueError:
        fail(f"--from {text}: expected earliest, latest, an offset (a number) or an ISO 8601 timestamp", 2)
    return instant.astimezone()


def _subscribe(
    consumer: Consumer, topic: str, place: int | datetime.datetime, group: str | None, bootstrap: str
) -> None:
    metadata = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
    if metadata.error is not None:
        fail(explain(KafkaException(metadata.error), bootstrap))
    if group is not None:
        consumer.subscribe([topic], on_assign=lambda c, partitions: _place_group(c, partitions, place))
        return
    consumer.assign(_placed(consumer, [TopicPartition(topic, index) for index in metadata.partitions], place))


def _place_group(consumer: Consumer, partitions: list[TopicPartition], place: int | datetime.datetime) -> None:
    """A group goes on where it committed; only an offset or an instant given by hand moves it."""
    if isinstance(place, datetime.datetime) or place >= 0:
        consumer.assign(_placed(consumer, partitions, place))


def _placed(
    consumer: Consumer, partitions: list[TopicPartition], place: int | datetime.datetime
) -> list[TopicPartition]:
    if not isinstance(place, datetime.datetime):
        return [TopicPartition(p.topic, p.partition, place) for p in partitions]
    timestamp_ms = int(place.timestamp() * 1000)
    asked = [TopicPartition(p.topic, p.partition, timestamp_ms) for p in partitions]
    found: list[TopicPartition] = consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
    return found


def _print_records(
    consumer: Consumer, count: int | None, *, commit: bool, exit_at_end: bool, as_json: bool
) -> None:
    printed = 0
    ended: set[tuple[str, int]] = set()
    quiet = sys.stdout.isatty()  # records and a bar on one terminal would overwrite each other
    with count_progress("consumed", None, quiet=quiet) as advance:
        while count is None or printed < count:
            wanted = POLL_RECORDS if count is None else min(POLL_RECORDS, count - printed)
            for message in consumer.consume(wanted, POLL_S):
                partition = (message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    ended.add(partition)
                    continue
                ended.discard(partition)
                _print_one(message, as_json=as_json)
                printed += 1
                advance(printed, len(message))
            sys.stdout.flush()
            if exit_at_end and len(ended) == len(consumer.assignment()) > 0:
                break
    if commit and printed:
        consumer.commit(asynchronous=False)


def _print_one(message: Message, *, as_json: bool) -> None:
    if not as_json:
        sys.stdout.buffer.write((message.value() or b"") + b"\n")
        return
    _kind, timestamp_ms = message.timestamp()
    print_json(
        {
            "topic": message.topic(),
            "partition": message.partition(),
            "offset": message.offset(),
            "timestamp_ms": timestamp_ms,
            "key": _text(message.key()),
            "value": _text(message.value()),
            "headers": [[name, _text(value)] for name, value in _headers(message)],
        }
    )


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    headers: Any = message.headers()
    return list(headers or [])


def _text(data: bytes | None) -> Any:
    """Text where it is UTF-8, else {"base64": …}: nothing is lost."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
