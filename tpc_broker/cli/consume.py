"""``tpc consume``: records of a topic to standard output."""

from __future__ import annotations

import base64
import contextlib
import datetime
import io
import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tpc_broker.cli.connection import (
    REQUEST_TIMEOUT_S,
    Exit,
    common_options,
    fail,
    fail_with,
    make_client,
    take_time_to_finish,
)
from tpc_broker.cli.moments import milliseconds, parse_record_time
from tpc_broker.cli.progress import count_progress
from tpc_broker.cli.record_text import CODINGS, Pace, Shown, chosen_coding, parse_format

if TYPE_CHECKING:
    from collections.abc import Callable

POLL_RECORDS = 1000
POLL_S = 0.2
COMMIT_S = 5.0
"""Between two commits of a group, as clients commit by themselves."""


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
@click.option("--partition", "chosen", type=click.IntRange(min=0), multiple=True, help="Only this one. Repeatable.")
@click.option("--format", "template", metavar="TEXT", help="What is printed of each record; see below.")
@click.option("--hex", "as_hex", is_flag=True, help="Keys and values in hexadecimal digits.")
@click.option("--base64", "as_base64", is_flag=True, help="Keys and values in base64.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Records a second at most.")
@common_options
def consume(  # noqa: PLR0913
    topic: str,
    start: str,
    count: int | None,
    group: str | None,
    exit_at_end: bool,  # noqa: FBT001
    chosen: tuple[int, ...],
    template: str | None,
    as_hex: bool,  # noqa: FBT001
    as_base64: bool,  # noqa: FBT001
    rate: float | None,
    bootstrap: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Print the records of TOPIC: values as lines, or with --json one object a line.

    \b
    In --format (kcat's -f): %s value, %k key, %h headers, %t topic, %p partition, %o offset,
    %T timestamp in ms, %S and %K sizes (-1: null), %% a percent sign; \\n \\t \\r \\0 \\x41.

    A record whose checksum does not fit ends the command with its topic, partition and offset, and exit code 1;
    --from OFFSET goes on behind it. With -X check.crcs=false checksums are not looked at.

    \b
    Examples:
      tpc consume orders --from earliest --format '%p %o %k=%s\\n'
      tpc consume orders --from 2026-11-21T08:00:00Z --partition 0 --hex --exit-at-end
    """  # noqa: D301 (click's mark for text that keeps its lines)
    place = parse_start(start)
    coding = chosen_coding(as_hex=as_hex, as_base64=as_base64)
    if template is not None and as_json:
        fail("--format and --json are two ways to print; give one", Exit.USAGE)
    if chosen and group is not None:
        fail("--partition and --group exclude each other: a group's partitions are assigned to it", Exit.USAGE)
    print_one = _printer(template, coding, as_json=as_json)
    _buffer_output()
    consumer = make_client(
        Consumer,
        bootstrap,
        **{
            "group.id": group or "tpc-consume",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest" if start == "earliest" else "latest",
            "enable.partition.eof": True,
            "check.crcs": True,  # librdkafka's default is not to look, and damaged records are printed as good ones
            "allow.auto.create.topics": False,
        },
    )
    try:
        commits = Commits(consumer) if group is not None else None
        _subscribe(consumer, topic, place, chosen, commits, bootstrap)
        _print_records(consumer, count, print_one, Pace(rate), commits, bootstrap, exit_at_end=exit_at_end)
        if commits is not None:
            commits.commit()
    except KafkaException as error:
        fail_with(error, bootstrap)
    finally:
        if commits is not None:
            commits.end()
        consumer.close()


class Commits:
    """Of a member of a group: what was printed, and has left this process. It is committed now and then, before another
    member gets a partition, and before the command ends, also by Ctrl-C, a closed pipe or an error.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._printed: dict[tuple[str, int], int] = {}
        self._flushed: dict[tuple[str, int], int] = {}
        """The next offset of a partition that is this member's."""
        self._is_committed = True
        self._committed_s = time.monotonic()

    def printed(self, message: Message) -> None:
        take_time_to_finish()
        self._printed[message.topic() or "", message.partition() or 0] = (message.offset() or 0) + 1

    def flushed(self) -> None:
        """Those that were printed have left. Now and then they are committed, without waiting for the coordinator."""
        self._take_printed()
        if not self._is_committed and time.monotonic() - self._committed_s >= COMMIT_S:
            with contextlib.suppress(KafkaException):  # later ones say as much
                self._consumer.commit(offsets=self._offsets(), asynchronous=True)
            self._is_committed, self._committed_s = True, time.monotonic()

    def commit(self) -> None:
        """Once. KafkaException: it could not be done."""
        offsets = self._offsets()
        self._flushed.clear()
        if offsets:
            self._consumer.commit(offsets=offsets, asynchronous=False)

    def end(self) -> None:
        """As far as it can be done: the command ends for another reason."""
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            self._take_printed()
        with contextlib.suppress(KafkaException):
            self.commit()

    def _take_printed(self) -> None:
        self._is_committed &= not self._printed
        self._flushed |= self._printed
        self._printed.clear()

    def _offsets(self) -> list[TopicPartition]:
        return [TopicPartition(*partition, offset) for partition, offset in self._flushed.items()]

    def revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.end()
        self.lost(consumer, partitions)

    def lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Somebody else's: what he has committed would be taken back."""
        for one in partitions:
            self._printed.pop((one.topic, one.partition), None)
            self._flushed.pop((one.topic, one.partition), None)


def parse_start(text: str) -> int | datetime.datetime:
    """OFFSET_BEGINNING, OFFSET_END, an offset, or an instant."""
    if text in ("earliest", "latest"):
        return OFFSET_BEGINNING if text == "earliest" else OFFSET_END
    if text.isdecimal():
        return int(text)
    try:
        return parse_record_time(text)
    except ValueError:
        allowed = "earliest, latest, an offset (a number) or an ISO 8601 timestamp of the years 1970 to 9999"
        fail(f"--from {text}: expected {allowed}", Exit.USAGE)


def _subscribe(  # noqa: PLR0913 - what was given
    consumer: Consumer,
    topic: str,
    place: int | datetime.datetime,
    chosen: tuple[int, ...],
    commits: Commits | None,
    bootstrap: str,
) -> None:
    metadata = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic]
    if metadata.error is not None:
        fail_with(KafkaException(metadata.error), bootstrap, topic, topic=topic)
    if commits is not None:
        if not isinstance(place, datetime.datetime) and place >= 0:
            _check_offset(consumer, [TopicPartition(topic, index) for index in metadata.partitions], place)
        consumer.subscribe(
            [topic], on_assign=lambda c, partitions: _place_group(c, partitions, place),
            on_revoke=commits.revoked, on_lost=commits.lost,
        )  # fmt: skip
        return
    missing = sorted(set(chosen) - metadata.partitions.keys())
    if missing:
        fail(f"{topic} has no partition {missing[0]}; it has 0 to {len(metadata.partitions) - 1}", Exit.NOT_FOUND)
    partitions = [TopicPartition(topic, index) for index in sorted(set(chosen)) or metadata.partitions]
    if not isinstance(place, datetime.datetime) and place >= 0:
        _check_offset(consumer, partitions, place)
    consumer.assign(_placed(consumer, partitions, place))


def _check_offset(consumer: Consumer, partitions: list[TopicPartition], offset: int) -> None:
    """A partition that does not have the offset would be read from its end, without a word."""
    bounds = [consumer.get_watermark_offsets(one, timeout=REQUEST_TIMEOUT_S) for one in partitions]
    missing = [
        f"{one.topic}-{one.partition} has [{low}, {high})"
        for one, (low, high) in zip(partitions, bounds, strict=True)
        if not low <= offset <= high
    ]
    if len(missing) == len(partitions):
        fail(f"--from {offset}: no partition has this offset: {', '.join(missing)}")
    if missing:
        where = f"without that offset, and read from the end: {', '.join(missing)}"
        click.echo(f"tpc: --from {offset}: {where}", err=True)


def _place_group(consumer: Consumer, partitions: list[TopicPartition], place: int | datetime.datetime) -> None:
    """A group goes on where it committed; only an offset or an instant given by hand moves it."""
    if isinstance(place, datetime.datetime) or place >= 0:
        try:
            consumer.assign(_placed(consumer, partitions, place))
        except BaseException:  # noqa: TRY203 (a C extension called this: its error is an exception once it is caught)
            raise


def _placed(
    consumer: Consumer, partitions: list[TopicPartition], place: int | datetime.datetime
) -> list[TopicPartition]:
    if not isinstance(place, datetime.datetime):
        return [TopicPartition(p.topic, p.partition, place) for p in partitions]
    timestamp_ms = milliseconds(place)
    asked = [TopicPartition(p.topic, p.partition, timestamp_ms) for p in partitions]
    found: list[TopicPartition] = consumer.offsets_for_times(asked, timeout=REQUEST_TIMEOUT_S)
    return found


def _print_records(  # noqa: PLR0913 - what was given
    consumer: Consumer,
    count: int | None,
    print_one: Callable[[Message], None],
    pace: Pace,
    commits: Commits | None,
    bootstrap: str,
    *,
    exit_at_end: bool,
) -> None:
    printed = 0
    ended: set[tuple[str, int]] = set()
    quiet = sys.stdout.isatty()  # records and a bar on one terminal would overwrite each other

    def flush() -> None:
        sys.stdout.flush()
        if commits is not None:
            commits.flushed()

    def wait(ahead_s: float) -> None:
        flush()
        time.sleep(ahead_s)

    with count_progress("consumed", None, quiet=quiet) as advance:
        while count is None or printed < count:
            wanted = POLL_RECORDS if count is None else min(POLL_RECORDS, count - printed)
            for message in consumer.consume(wanted, POLL_S):
                partition = (message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        ended.add(partition)
                    else:
                        _fail_at(message, error, bootstrap, is_member=commits is not None)
                    continue
                ended.discard(partition)
                pace.wait(wait)
                print_one(message)
                if commits is not None:
                    commits.printed(message)
                printed += 1
                advance(printed, len(message))
            flush()
            if exit_at_end and len(ended) == len(consumer.assignment()) > 0:
                break


def _fail_at(message: Message, error: KafkaError, bootstrap: str, *, is_member: bool) -> None:
    """End the command with where it could not go on. librdkafka itself would go on behind a damaged batch; and it looks
    for a group's coordinator though nobody is a member, which is nothing that the user has asked for.
    """
    if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED and not is_member:
        return
    if message.topic() is None:
        fail_with(KafkaException(error), bootstrap)
    where = f"{message.topic()}-{message.partition()}, offset {message.offset()}"
    if error.code() != KafkaError._BAD_MSG:
        fail_with(KafkaException(error), bootstrap, where)
    fail(f"{where}: the record batch there is damaged and is not printed ({error.str()})")


def _printer(template: str | None, coding: str, *, as_json: bool) -> Callable[[Message], None]:
    encode = CODINGS[coding].encode
    if as_json:
        return lambda message: _write(_json_line(_as_json(_shown(message), coding)))
    if template is None:
        return lambda message: _write(encode(message.value() or b"") + b"\n")
    written = parse_format(template)

    def print_formatted(message: Message) -> None:
        one = _shown(message)
        key, value = (None if data is None else encode(data) for data in (one.key, one.value))
        _write(written(one._replace(key=key, value=value)))

    return print_formatted


def _buffer_output() -> None:
    """Also with PYTHONUNBUFFERED: what is printed leaves when it is flushed, and by then it was counted, so that a
    member that is interrupted commits all that left.
    """
    if isinstance(sys.stdout.buffer, io.RawIOBase):
        out = sys.stdout
        sys.stdout = open(out.fileno(), "w", encoding=out.encoding, errors=out.errors, closefd=False)  # noqa: SIM115


def _json_line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)


def _shown(message: Message) -> Shown:
    _kind, timestamp_ms = message.timestamp()
    key, value = (None if data is None else bytes(data) for data in (message.key(), message.value()))
    place = (message.topic() or "", message.partition() or 0, message.offset() or 0)
    return Shown(*place, timestamp_ms, key, value, _headers(message))


def _as_json(one: Shown, coding: str) -> dict[str, Any]:
    encode = CODINGS[coding].encode

    def told(data: bytes | None) -> Any:
        return _text(data) if data is None or not coding else encode(data).decode()

    headers = [[name, _text(value)] for name, value in one.headers]
    return {**one._asdict(), "key": told(one.key), "value": told(one.value), "headers": headers}


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
