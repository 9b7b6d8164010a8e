"""``tpc partition``: where partitions are, and moves of them between the cores of a node; in a cluster, of replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from tpc_broker.cli.connection import CommandGroup, Exit, common_options, fail, print_json, print_table
from tpc_broker.cli.core_loads import NodeUse, loads_measured, node_uses
from tpc_broker.cli.info import CORES_PER_NODE
from tpc_broker.cli.move_waits import REQUEST_TIMEOUT_MS, listed_moves, wait_moved
from tpc_broker.cli.own_client import own_client
from tpc_broker.cli.partition_list import list_partitions
from tpc_broker.cli.placement import (
    elect_leaders,
    list_sizes,
    parse_partition,
    place_partitions,
    raise_refused,
)
from tpc_broker.client.requests import TopicPartition, in_any_version
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.routing import plan_balance

if TYPE_CHECKING:
    from tpc_broker.client.cluster import Cluster

MOVE_S: Final = 120.0
"""Until `move` goes without waiting for the end."""
IDS_ARE_CORES_TAG: Final = 10_000
"""Also at a listener where one broker id stands for all cores of a node."""
NODES_MAX: Final = (2**31 - 1) // CORES_PER_NODE - 1
"""Broker ids are 32-bit numbers."""


@click.group(cls=CommandGroup)
def partition() -> None:
    """List partitions with their replicas, and move them between nodes and between the cores of a node."""


for command in (list_partitions, place_partitions, elect_leaders, list_sizes):
    partition.add_command(command)


@partition.command()
@click.argument("partitions", metavar="TOPIC-N...", nargs=-1, required=True)
@click.option("--core", type=click.IntRange(0, CORES_PER_NODE - 1), required=True, help="The core to move to.")
@click.option("--node", type=click.IntRange(0, NODES_MAX), help="Its node. Default: the leader's.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the other core has it.")
@common_options
def move(  # noqa: PLR0913 (click hands each option over by name)
    partitions: tuple[str, ...],
    core: int,
    node: int | None,
    no_wait: bool,  # noqa: FBT001
    bootstrap: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Move partitions to another core of their node, while they are written and read. In a cluster it is the replica on
    one node that moves, leading or following; between nodes `tpc partition place` moves replicas.

    The files stay where they are, and nothing is copied: the other core has it within moments, which is waited for, for
    two minutes at most.
    """
    places = [parse_partition(text) for text in partitions]
    with own_client(bootstrap) as client:
        nodes = node_uses(client)
        wanted = {place: _target(client, nodes, place, core, node) for place in places}
        alter(client, wanted)
        if not no_wait:
            _wait(client, wanted)
    if as_json:
        print_json([{"topic": topic, "partition": index, "broker": wanted[topic, index]} for topic, index in places])
        return
    for topic, index in places:
        click.echo(f"{topic}-{index}: {'on its way to' if no_wait else 'is on'} core {core}.")


def _target(client: Cluster, nodes: list[NodeUse], place: tuple[str, int], core: int, node: int | None) -> int:
    topic, index = place
    leaders = client.topic(topic).leaders
    if index not in leaders:
        fail(f"{topic} has no partition {index}; it has {len(leaders)}", Exit.NOT_FOUND)
    here = leaders[index] // CORES_PER_NODE if leaders[index] >= 0 else None
    if len(nodes) == 1:
        here = nodes[0].node  # where one broker stands for all cores, its id does not say so
    having = sorted(one.node for one in nodes if TopicPartition(topic, index) in one.owners)
    if node is not None and node not in having:
        where = f"node{'s' * (len(having) > 1)} {', '.join(map(str, having))}" if having else "no node that is up"
        fail(f"{topic}-{index} is on {where}, not on node {node}; between nodes `tpc partition place` moves "
             "replicas", Exit.USAGE)  # fmt: skip
    found = here if node is None else node
    if found is None:
        fail(f"{topic}-{index} has no leader now; say which node it is on (--node)")
    return found * CORES_PER_NODE + core


def alter(client: Cluster, wanted: dict[tuple[str, int], int]) -> None:
    """AlterPartitionReassignments: the replica of each partition on a broker's node to that broker, never away from
    other replicas. RefusedError: the first one that was refused.
    """
    kind = messages.AlterPartitionReassignmentsRequest
    by_topic: dict[str, list[Any]] = {}
    for (topic, index), broker in wanted.items():
        part = kind.ReassignablePartition(partition_index=index, replicas=[broker])
        by_topic.setdefault(topic, []).append(part)
    request = kind(
        timeout_ms=REQUEST_TIMEOUT_MS,
        allow_replication_factor_change=False,
        topics=[kind.ReassignableTopic(name=name, partitions=parts) for name, parts in by_topic.items()],
    )
    make = in_any_version(request)
    answer, _frame = client.any_connection().call_tagged(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS, make, IDS_ARE_CORES_TAG
    )
    raise_refused(answer)


def ongoing(client: Cluster) -> list[tuple[str, int, int, int]]:
    """Topic, partition, and the brokers from and to which it is on its way."""
    return sorted(
        (topic, one.partition_index, (one.removing_replicas or [-1])[0], (one.adding_replicas or [-1])[0])
        for topic, one in listed_moves(client)
    )


def _wait(client: Cluster, wanted: dict[tuple[str, int], int]) -> None:
    wait_moved(client, wanted, lambda: _elsewhere(client, wanted), gives_up_s=MOVE_S)


def _elsewhere(client: Cluster, wanted: dict[tuple[str, int], int]) -> dict[tuple[str, int], str]:
    """Of what should be on brokers, what their nodes have on other cores, as `wait_moved` asks for it."""
    nodes = {one.node: one for one in node_uses(client)}
    found = {}
    for (topic, index), broker in wanted.items():
        node = nodes.get(broker // CORES_PER_NODE)
        core = None if node is None else node.owners.get(TopicPartition(topic, index))
        if core is not None and core != broker % CORES_PER_NODE:
            found[topic, index] = f"stays on core {core}; the broker's log says why"
    return found


@partition.command()
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=5.0, show_default=True, help="To measure for.")
@click.option("--dry-run", is_flag=True, help="Show what would be moved, and move nothing.")
@common_options
def balance(seconds: float, dry_run: bool, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Move partitions so that the cores of each node have about the same to do.

    Measured now, for some seconds: what is appended and read, held against the CPU time that each core had. Cores that
    differ by less than a fifth of the mean are left as they are.
    """
    with own_client(bootstrap) as client:
        measured = loads_measured(client, seconds)
        shifts = [shift for node, loads in measured for shift in _shifts(node, loads)]
        for wanted in () if dry_run else _rounds(shifts):
            alter(client, wanted)
            _wait(client, wanted)
    rows = [(str(place), source, target, f"{load:.1%}") for place, source, target, load in shifts]
    if as_json:
        names = ("partition", "from", "to", "cpu")
        found = [(str(place), source, target, round(load, 4)) for place, source, target, load in shifts]
        print_json({"moved": not dry_run, "moves": [dict(zip(names, row, strict=True)) for row in found]})
    elif not rows:
        click.echo("The cores are about even; nothing to move.")
    else:
        print_table(("Partition", "From broker", "To broker", "Of a CPU"), rows)
        click.echo("Nothing was moved (--dry-run)." if dry_run else f"Moved {len(rows)} partitions.")


def _rounds(shifts: list[tuple[TopicPartition, int, int, float]]) -> list[dict[tuple[str, int], int]]:
    """One replica of each partition in each."""
    rounds: list[dict[tuple[str, int], int]] = []
    for place, _source, target, _load in shifts:
        key = (place.topic, place.partition)
        free = next((one for one in rounds if key not in one), None)
        if free is None:
            rounds.append(free := {})
        free[key] = target
    return rounds


def _shifts(node: NodeUse, loads: dict[TopicPartition, float]) -> list[tuple[TopicPartition, int, int, float]]:
    """Partition, the brokers from and to which it should go, and what of a CPU it takes."""
    first = node.node * CORES_PER_NODE
    plan = plan_balance(loads, node.owners, len(node.uses))
    return [(shift.key, first + shift.source, first + shift.target, loads[shift.key]) for shift in plan]


@partition.command()
@common_options
def moves(bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Partitions that are on their way now."""
    with own_client(bootstrap) as client:
        found = ongoing(client)
    if as_json:
        print_json([{"topic": t, "partition": p, "from": source, "to": target} for t, p, source, target in found])
        return
    print_table(("Partition", "From broker", "To broker"), [(f"{t}-{p}", a, b) for t, p, a, b in found])
