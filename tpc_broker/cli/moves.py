"""``tpc cluster moves``: replicas on their way to other nodes, or to other cores of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from tpc_broker.cli.cluster_facts import MOVE_COLUMNS, cluster_facts, move_rows
from tpc_broker.cli.connection import CommandGroup, Exit, common_options, fail, print_json, print_table
from tpc_broker.cli.own_client import own_client
from tpc_broker.cli.placement import parse_partition
from tpc_broker.client import configs
from tpc_broker.client.configs import Resource
from tpc_broker.client.errors import RefusedError
from tpc_broker.client.requests import in_any_version
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    from tpc_broker.client.cluster import Cluster

PAUSED: Final = "replica.moves.paused"
ALL_BROKERS: Final = ""
TIMEOUT_MS: Final = 30_000
OWN_REASONS: Final = frozenset({"replaced", "raised", "drained"})
"""Of moves that the cluster begins again by itself."""


@click.group(cls=CommandGroup)
def moves() -> None:
    """Replicas that are on their way to other nodes, or to other cores of their node.

    \b
    Examples:
      tpc cluster moves list                what is under way, and how far it is
      tpc cluster moves pause               nothing more is begun; resume goes on
      tpc cluster moves cancel orders-0     its replicas go back to where they were
    """  # noqa: D301 (click's mark for text that keeps its lines)


@moves.command("list")
@common_options
def list_moves(bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """What is under way: why, whether it copies or waits, and how far the replica is that has most to catch up with."""
    _answer, facts = cluster_facts(bootstrap)
    if as_json:
        print_json(facts["moves"])
    elif facts["moves"]:
        print_table(MOVE_COLUMNS, move_rows(facts["moves"]))
    else:
        click.echo("No replica is on its way.")


@moves.command()
@common_options
def pause(bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Begin nothing more, and stop copying; what is in its last steps is finished. Holds until `resume`."""
    _set_paused(bootstrap, "true")
    _say({"paused": True}, "Moves are paused.", as_json=as_json)


@moves.command()
@common_options
def resume(bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Go on after `pause`."""
    _set_paused(bootstrap, None)
    _say({"paused": False}, "Moves go on.", as_json=as_json)


@moves.command()
@click.argument("partitions", metavar="TOPIC-N...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that is under way.")
@common_options
def cancel(partitions: tuple[str, ...], everything: bool, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Have replicas go back to where they were, and stay there. What moves away from a node that is gone or draining is
    begun again, unless moves are paused or the reason is gone (`tpc node drain ID --cancel`). A move between cores of a
    node cannot be cancelled when the other core has taken the replica over.
    """
    if bool(partitions) == everything:
        fail("name the partitions (TOPIC-N...), or give --all", Exit.USAGE)
    _answer, facts = cluster_facts(bootstrap)
    under_way = {(move["topic"], move["partition"]): move for move in facts["moves"] if move["reason"] != "cancelled"}
    chosen = list(under_way) if everything else [parse_partition(text) for text in partitions]
    for topic, index in chosen:
        if (topic, index) not in under_way:
            fail(f"{topic}-{index} is not on its way; `tpc cluster moves list` shows what is", Exit.NOT_FOUND)
    too_late = {}
    if chosen:
        with own_client(bootstrap) as client:
            too_late = cancel_at(client, chosen)
    chosen = [place for place in chosen if place not in too_late]
    if as_json:
        print_json([{"topic": topic, "partition": index} for topic, index in chosen])
    else:
        _say_what_goes_back(chosen, under_way)
    told = "; ".join(f"{topic}-{index}: {why}" for (topic, index), why in too_late.items())
    if told and not everything:
        fail(told, Exit.CONFLICT)


def _say_what_goes_back(chosen: list[tuple[str, int]], under_way: dict[tuple[str, int], dict[str, Any]]) -> None:
    click.echo(f"{len(chosen)} moves go back.")
    again = sum(under_way[place]["reason"] in OWN_REASONS for place in chosen)
    if again:
        click.echo(f"{again} of them the cluster begins again by itself, unless `tpc cluster moves pause`.")


def cancel_at(client: Cluster, places: list[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """Why some cannot be cancelled any more. RefusedError: the first one that was refused otherwise."""
    kind = messages.AlterPartitionReassignmentsRequest
    by_topic: dict[str, list[Any]] = {}
    for topic, index in places:
        by_topic.setdefault(topic, []).append(kind.ReassignablePartition(partition_index=index, replicas=None))
    topics = [kind.ReassignableTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
    request = kind(timeout_ms=TIMEOUT_MS, topics=topics)
    answer = client.any_connection().call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, in_any_version(request))
    if answer.error_code:
        raise RefusedError(answer.error_code, answer.error_message or "cancelling moves")
    too_late = {}
    for told in answer.responses:
        for one in told.partitions:
            if one.error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
                too_late[told.name, one.partition_index] = one.error_message or "it has just ended"
            elif one.error_code:
                label = f"{told.name}-{one.partition_index}"
                raise RefusedError(one.error_code, f"{label}: {one.error_message or 'it cannot be cancelled'}")
    return too_late


def _set_paused(bootstrap: str, value: str | None) -> None:
    cluster_facts(bootstrap)
    with own_client(bootstrap) as client:
        configs.alter(client, Resource.BROKER, ALL_BROKERS, {PAUSED: value})


def _say(facts: dict[str, Any], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        click.echo(text)
