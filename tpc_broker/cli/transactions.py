"""``tpc txn``: list, describe and abort transactions, and find those that hang."""

from __future__ import annotations

import datetime
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from tpc_broker.cli.connection import Exit, common_options, fail, print_json, print_table
from tpc_broker.cli.moments import Span, now_ms
from tpc_broker.cli.own_client import own_client
from tpc_broker.cli.placement import parse_partition
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.transactions import (
    ENDING,
    ONGOING,
    Hanging,
    PartitionProducer,
    Transaction,
    abort_by_coordinator,
    abort_in_partition,
    describe_transactions,
    find_hanging,
    list_transactions,
    partition_producers,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.client.cluster import Cluster

STATES = (ONGOING, *ENDING, "Empty", "CompleteCommit", "CompleteAbort", "Dead")
COLUMNS = ("Transactional id", "State", "Producer id", "Coordinator")
DESCRIBED_COLUMNS = (
    "Transactional id", "State", "Coordinator", "Producer id", "Epoch", "Time-out s", "Open for s", "Partitions",
)  # fmt: skip
PRODUCER_COLUMNS = (
    "Partition", "Producer id", "Epoch", "Coordinator epoch", "Last sequence", "Last record", "Open from offset",
)  # fmt: skip
HANGING_COLUMNS = ("Partition", "Open from offset", "Producer id", "Epoch", "Last record", "Transactional id", "State")


@click.group()
def txn() -> None:
    """Transactions of clients: what is open, since when and where, and how it is ended."""


@txn.command("list")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False),
    help="Only transactional ids in this state. Repeatable.",
)  # fmt: skip
@click.option("--longer-than", type=Span(), default=None, help="Only what is open for longer than this, as in 10m.")
@click.option("--hanging", is_flag=True, help="What hangs in partitions, of all topics or of each TOPIC.")
@common_options
def list_ids(  # noqa: PLR0913 - one parameter per option
    topics: tuple[str, ...], states: tuple[str, ...], longer_than: datetime.timedelta | None, hanging: bool,  # noqa: FBT001
    bootstrap: str, as_json: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """List transactional ids with their states.

    A transaction hangs when a partition has it open and its coordinator has not: nothing will end it, and readers of
    committed records wait behind it. With --hanging all partitions are asked for that.

    \b
    Examples:
      tpc txn list --state Ongoing --longer-than 10m
      tpc txn list --hanging orders
    """  # noqa: D301 (click's mark for text that keeps its lines)
    if hanging and (states or longer_than):
        fail("--hanging goes with neither --state nor --longer-than", Exit.USAGE)
    if topics and not hanging:
        fail("a TOPIC goes with --hanging", Exit.USAGE)
    with own_client(bootstrap) as client:
        if hanging:
            _print_hanging(find_hanging(client, _places(client, topics)), as_json=as_json)
            return
        longer_ms = -1 if longer_than is None else int(longer_than.total_seconds() * 1000)
        found = list_transactions(client, states, (), longer_ms)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    print_table(COLUMNS, [(one.transactional_id, one.state, one.producer_id, one.coordinator) for one in found])


def _places(client: Cluster, topics: Iterable[str]) -> list[TopicPartition]:
    names = sorted(set(topics)) or client.topic_names(with_internal=True)
    return [where for name in names for where in client.partitions(name)]


def _print_hanging(found: list[Hanging], *, as_json: bool) -> None:
    if as_json:
        print_json([_hanging_row(one) for one in found])
        return
    print_table(
        HANGING_COLUMNS,
        [
            (one.where, one.producer.first_offset, one.producer.producer_id, one.producer.producer_epoch,
             _time(one.producer.last_time_ms), one.transaction and one.transaction.transactional_id,
             one.transaction and one.transaction.state)
            for one in found
        ],
    )  # fmt: skip


def _hanging_row(one: Hanging) -> dict[str, Any]:
    known = {} if one.transaction is None else asdict(one.transaction)
    return {**_producer_row(one.where, one.producer), **{key: known.get(key) for key in ("transactional_id", "state")}}


def _producer_row(where: TopicPartition, one: PartitionProducer) -> dict[str, Any]:
    return {"topic": where.topic, "partition": where.partition, **asdict(one)}


def _time(time_ms: int | None) -> str | None:
    """As ISO 8601."""
    if time_ms is None:
        return None
    try:
        found = datetime.datetime.fromtimestamp(time_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError):  # a client may give its records any
        return str(time_ms)
    return found.isoformat(timespec="milliseconds")


@txn.command()
@click.argument("names", metavar="[ID]...", nargs=-1)
@click.option(
    "--partition", "partitions", multiple=True, metavar="TOPIC-N",
    help="The producers that a partition knows, and what they have open there. Repeatable.",
)  # fmt: skip
@common_options
def describe(names: tuple[str, ...], partitions: tuple[str, ...], bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Tell of transactional ids what their coordinators have: the producer, the time-out, since when a transaction is
    open, and in which partitions. Or of partitions, which producers have something open there.

    With --json each id or producer is one object a line.

    \b
    Examples:
      tpc txn describe mover-1
      tpc txn describe --partition orders-0
    """  # noqa: D301 (click's mark for text that keeps its lines)
    if bool(names) == bool(partitions):
        fail("give one ID or more, or --partition TOPIC-N", Exit.USAGE)
    places = [TopicPartition(*parse_partition(each)) for each in partitions]
    with own_client(bootstrap) as client:
        if places:
            _print_producers(partition_producers(client, places), as_json=as_json)
            return
        found = [_required(client, name) for name in dict.fromkeys(names)]
    if as_json:
        for one in found:
            places_told = [{"topic": topic, "partition": index} for topic, index in one.partitions]
            print_json({**asdict(one), "partitions": places_told})
        return
    now = now_ms()
    print_table(
        DESCRIBED_COLUMNS,
        [
            (one.transactional_id, one.state, one.coordinator, one.producer_id, one.producer_epoch,
             one.timeout_ms / 1000, None if one.started_ms is None else max(0, now - one.started_ms) / 1000,
             " ".join(map(str, one.partitions)))
            for one in found
        ],
    )  # fmt: skip


def _print_producers(found: dict[TopicPartition, list[PartitionProducer]], *, as_json: bool) -> None:
    rows = [(where, one) for where, each in sorted(found.items()) for one in each]
    if as_json:
        for row in rows:
            print_json(_producer_row(*row))
        return
    print_table(
        PRODUCER_COLUMNS,
        [
            (where, one.producer_id, one.producer_epoch, one.coordinator_epoch, one.last_sequence,
             _time(one.last_time_ms), one.first_offset)
            for where, one in rows
        ],
    )  # fmt: skip


def _required(client: Cluster, name: str) -> Transaction:
    """The command ends where there is no such id."""
    found = describe_transactions(client, [name]).get(name)
    if found is None:
        fail(f"there is no transactional id {name!r}; `tpc txn list` shows those that are", Exit.NOT_FOUND)
    return found


@txn.command()
@click.argument("name", metavar="[ID]", required=False)
@click.option("--partition", metavar="TOPIC-N", help="Where one hangs, as `tpc txn list --hanging` shows it.")
@click.option("--from-offset", type=click.IntRange(0), help="Its first offset there.")
@common_options
def abort(
    name: str | None, partition: str | None, from_offset: int | None, bootstrap: str, as_json: bool,  # noqa: FBT001
) -> None:  # fmt: skip
    """Abort the open transaction of a transactional id. Its producer is fenced: it ends with an error, or makes itself
    anew.

    With --partition and --from-offset what hangs there is aborted, in that partition. What a coordinator has open is
    not touched that way: it would be torn.

    \b
    Examples:
      tpc txn abort mover-1
      tpc txn abort --partition orders-0 --from-offset 4711
    """  # noqa: D301 (click's mark for text that keeps its lines)
    if (name is None) == (partition is None) or (partition is None) != (from_offset is None):
        fail("give an ID, or --partition TOPIC-N and --from-offset OFFSET", Exit.USAGE)
    with own_client(bootstrap) as client:
        if name is not None:
            told = _abort_id(client, name)
        else:
            assert partition is not None
            assert from_offset is not None
            told = _abort_hanging(client, TopicPartition(*parse_partition(partition)), from_offset)
    if as_json:
        print_json({**told, "aborted": True})
        return
    what = f"the transaction of {name}" if name else f"what was open in {partition} from offset {from_offset} on"
    click.echo(f"Aborted {what}.")


def _abort_id(client: Cluster, name: str) -> dict[str, Any]:
    found = _required(client, name)
    if not found.is_open:
        fail(f"transactional id {name}: it is {found.state}, so nothing is open that could be aborted", Exit.CONFLICT)
    abort_by_coordinator(client, found)
    return {"transactional_id": name, "producer_id": found.producer_id}


def _abort_hanging(client: Cluster, where: TopicPartition, offset: int) -> dict[str, Any]:
    producers = partition_producers(client, [where])[where]
    found = next((one for one in producers if one.first_offset == offset), None)
    if found is None:
        fail(f"no transaction is open in {where} from offset {offset} on", Exit.NOT_FOUND)
    if not any(one.producer == found for one in find_hanging(client, [where])):
        names = " ".join(one.transactional_id for one in list_transactions(client, (), [found.producer_id]))
        fail(f"{where}: its coordinator has it open too, so it does not hang: `tpc txn abort {names}`", Exit.CONFLICT)
    abort_in_partition(client, where, found)
    return _producer_row(where, found)
