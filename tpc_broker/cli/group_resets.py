"""``tpc group reset-offsets``: where a group goes on reading."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the package re-exports it without saying so
    AdminClient,
    OffsetSpec,
)

from tpc_broker.cli.admin import Place, admin_client, list_offsets, only_result, partitions_of
from tpc_broker.cli.connection import (
    REQUEST_TIMEOUT_S,
    Exit,
    common_options,
    fail,
    fail_with,
    print_json,
    print_table,
)
from tpc_broker.cli.group_facts import WITHOUT_MEMBERS, committed_offsets
from tpc_broker.cli.moments import Instant, Span, milliseconds, now_ms
from tpc_broker.cli.own_client import own_client
from tpc_broker.client.groups import describe_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CHOICES = (
    "--to-earliest", "--to-latest", "--to-current", "--to-offset", "--to-datetime", "--by-duration", "--shift-by",
)  # fmt: skip
COLUMNS = ("Topic", "Partition", "Committed", "New offset", "Note")


@dataclass(frozen=True, slots=True)
class Target:
    """Where to; one of them is given."""

    spec: Any = None
    offset: int | None = None
    shift: int | None = None
    is_current: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    topic: str
    partition: int
    committed_offset: int | None
    new_offset: int
    note: str


@click.command("reset-offsets")
@click.argument("group")
@click.option(
    "--topic", "topics", multiple=True, metavar="TOPIC[:P,…]", help="A topic, or some of its partitions. Repeatable."
)
@click.option("--all-topics", is_flag=True, help="Every topic for which the group has committed.")
@click.option("--to-earliest", is_flag=True, help="To the first record that is there.")
@click.option("--to-latest", is_flag=True, help="To the end: only what comes later is read.")
@click.option("--to-current", is_flag=True, help="To what is committed, else to the end.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="OFFSET", help="To this offset.")
@click.option("--to-datetime", type=Instant(), help="To the first record at or after an ISO 8601 timestamp.")
@click.option("--by-duration", type=Span(), help="To the first record of the last so much time: 90s, 1h30m, PT1H30M.")
@click.option("--shift-by", type=int, metavar="N", help="N records on from what is committed; negative: back.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done: so without --execute.")
@click.option("--execute", is_flag=True, help="Do it.")
@common_options
def reset_offsets(  # noqa: PLR0913 - one parameter per option
    group: str, topics: tuple[str, ...], all_topics: bool, dry_run: bool, execute: bool,  # noqa: FBT001
    bootstrap: str, as_json: bool, **places: Any,  # noqa: FBT001
) -> None:  # fmt: skip
    """Set the committed offsets of GROUP, which must have no members. Nothing is changed without --execute.

    Offsets outside of what a partition has become the nearest that it has.

    \b
    Examples:
      tpc group reset-offsets readers --topic orders --to-earliest
      tpc group reset-offsets readers --topic orders:0,2 --shift-by -100 --execute
      tpc group reset-offsets readers --all-topics --by-duration 1h --execute
    """  # noqa: D301 (click's mark for text that keeps its lines)
    if dry_run and execute:
        fail("--dry-run only shows what would be done; leave it out, or --execute", Exit.USAGE)
    if bool(topics) == all_topics:
        fail("give --topic TOPIC (or TOPIC:0,1), once or more, or --all-topics", Exit.USAGE)
    target = _target(places)
    asked = [_parse_topic(text) for text in topics]
    admin = admin_client(bootstrap)
    _require_no_members(group, bootstrap)
    committed = committed_offsets(admin, group, bootstrap)
    where = sorted(committed) if all_topics else _places(admin, asked, bootstrap)
    if not where:
        fail(f"group {group!r} has committed nothing: name the topics with --topic", Exit.NOT_FOUND)
    resets = _plan(admin, where, committed, target, bootstrap)
    if execute:
        _commit(admin, group, resets, bootstrap)
    if as_json:
        print_json({"group": group, "executed": execute, "partitions": [asdict(reset) for reset in resets]})
        return
    print_table(COLUMNS, [tuple(asdict(reset).values()) for reset in resets], title=group)
    if not execute:
        click.echo("tpc: nothing was changed; --execute does it", err=True)


def _target(places: dict[str, Any]) -> Target:
    given = [name for name, value in places.items() if value is not None and value is not False]
    if len(given) != 1:
        fail(f"give one of {', '.join(CHOICES)}", Exit.USAGE)
    makers: dict[str, Callable[[Any], Target]] = {
        "to_earliest": lambda _: Target(spec=OffsetSpec.earliest()),  # type: ignore[no-untyped-call]
        "to_latest": lambda _: Target(spec=OffsetSpec.latest()),  # type: ignore[no-untyped-call]
        "to_current": lambda _: Target(is_current=True),
        "to_offset": lambda offset: Target(offset=offset),
        "shift_by": lambda shift: Target(shift=shift),
        "to_datetime": lambda instant: _at(milliseconds(instant)),
        "by_duration": lambda span: _at(now_ms() - int(span / datetime.timedelta(milliseconds=1))),
    }
    return makers[given[0]](places[given[0]])


def _at(time_ms: int) -> Target:
    return Target(spec=OffsetSpec.for_timestamp(max(0, time_ms)))


def _parse_topic(text: str) -> tuple[str, list[int] | None]:
    name, separator, numbers = text.partition(":")
    parts = numbers.split(",") if separator else []
    if not name or not all(part.isascii() and part.isdecimal() for part in parts):
        fail(f"--topic {text}: expected TOPIC, or TOPIC:0,1 for some partitions", Exit.USAGE)
    return name, [int(part) for part in parts] if separator else None


def _places(admin: AdminClient, asked: list[tuple[str, list[int] | None]], bootstrap: str) -> list[Place]:
    places: set[Place] = set()
    for topic, chosen in asked:
        present = partitions_of(admin, topic, bootstrap)
        missing = sorted(set(chosen or ()) - set(present))
        if missing:
            fail(f"{topic} has no partition {missing[0]}; it has 0 to {present[-1]}", Exit.NOT_FOUND)
        places |= {(topic, index) for index in (present if chosen is None else chosen)}
    return sorted(places)


def _require_no_members(group: str, bootstrap: str) -> None:
    """A member would commit over it. The broker refuses it, too; this says why."""
    with own_client(bootstrap) as client:
        told = describe_group(client, group)
    if told.state not in WITHOUT_MEMBERS:
        fail(f"group {group} is {told.state} with {len(told.members)} members: stop them first", Exit.CONFLICT)


def _plan(
    admin: AdminClient, where: list[Place], committed: dict[Place, int], target: Target, bootstrap: str
) -> list[Reset]:
    starts = list_offsets(admin, where, OffsetSpec.earliest(), bootstrap)  # type: ignore[no-untyped-call]
    ends = list_offsets(admin, where, OffsetSpec.latest(), bootstrap)  # type: ignore[no-untyped-call]
    found = list_offsets(admin, where, target.spec, bootstrap) if target.spec is not None else {}
    resets = []
    for place in where:
        if place not in starts or place not in ends:
            fail(f"{place[0]}-{place[1]} is not there any more; name the topics with --topic", Exit.NOT_FOUND)
        start, end, now = starts[place], ends[place], committed.get(place)
        if target.shift is not None and now is None:
            fail(f"--shift-by: the group has committed nothing for {place[0]}-{place[1]}", Exit.NOT_FOUND)
        wanted, note = _wanted(target, now, found.get(place, -1), end)
        if not start <= wanted <= end:
            note = f"{wanted} is {'before the first offset' if wanted < start else 'after the last one'}"
        resets.append(Reset(*place, now, max(start, min(wanted, end)), note))
    return resets


def _wanted(target: Target, now: int | None, found: int, end: int) -> tuple[int, str]:
    if target.offset is not None:
        return target.offset, ""
    if target.shift is not None:
        assert now is not None
        return now + target.shift, ""
    if target.is_current:
        return (end, "nothing committed: to the end") if now is None else (now, "")
    return (end, "no record is so late: to the end") if found < 0 else (found, "")


def _commit(admin: AdminClient, group: str, resets: Iterable[Reset], bootstrap: str) -> None:
    offsets = [TopicPartition(one.topic, one.partition, one.new_offset) for one in resets]
    request = [ConsumerGroupTopicPartitions(group, offsets)]
    answer = only_result(
        admin.alter_consumer_group_offsets(request, request_timeout=REQUEST_TIMEOUT_S), bootstrap, f"group {group}"
    )
    for one in answer.topic_partitions:
        if one.error is not None:
            fail_with(KafkaException(one.error), bootstrap, f"{one.topic}-{one.partition}")
