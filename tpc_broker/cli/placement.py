"""``tpc partition place``, ``elect`` and ``sizes``: which nodes have a partition, which of them leads it, and how much
of each is on their disks.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from tpc_broker.cli.connection import Exit, common_options, fail, no_topic, print_json, print_table
from tpc_broker.cli.info import CORES_PER_NODE
from tpc_broker.cli.move_waits import REQUEST_TIMEOUT_MS, until_led, wait_moved
from tpc_broker.cli.own_client import own_client
from tpc_broker.client.errors import RefusedError
from tpc_broker.client.requests import in_any_version, metadata_request
from tpc_broker.kafka import ApiKey, ErrorCode, messages

if TYPE_CHECKING:
    from tpc_broker.cli.move_waits import Place
    from tpc_broker.client.cluster import Cluster

PREFERRED: Final = 0


def parse_partition(text: str) -> Place:
    """TOPIC-N."""
    topic, dash, number = text.rpartition("-")
    if not dash or not topic or not number.isascii() or not number.isdecimal():
        fail(f"{text!r} is no partition: expected TOPIC-N, as in events-0", Exit.USAGE)
    return topic, int(number)


@click.command("place")
@click.argument("partitions", metavar="TOPIC-N...", nargs=-1, required=True)
@click.option("--nodes", "node_list", metavar="ID,ID...", required=True, help="The first is preferred to lead.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the records are copied.")
@common_options
def place_partitions(
    partitions: tuple[str, ...],
    node_list: str,
    no_wait: bool,  # noqa: FBT001
    bootstrap: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Give partitions their replicas on these nodes and no others, while they are written and read. A node that has a
    replica keeps it on the core where it is; a new one goes to the core with the fewest. Between the cores of a node
    `tpc partition move` moves one.

    Records are copied, and waited for as long as that takes, until all replicas are in sync and no others are left.
    Ctrl-C ends the waiting, not the move; `tpc cluster moves` shows it, and takes it back.
    """
    places = [parse_partition(text) for text in partitions]
    nodes = _parse_nodes(node_list)
    with own_client(bootstrap) as client:
        wanted = _chosen(client, places, nodes)
        _reassign(client, wanted)
        if not no_wait:
            wait_moved(client, wanted, lambda: _misplaced(client, wanted))
    if as_json:
        print_json([{"topic": topic, "partition": index, "replicas": wanted[topic, index]} for topic, index in places])
        return
    told = ", ".join(map(str, nodes))
    for topic, index in places:
        click.echo(f"{topic}-{index}: {'on its way to' if no_wait else 'is on'} node{'s' * (len(nodes) > 1)} {told}.")


def _parse_nodes(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() for word in words):
        fail(f"--nodes {text}: expected nodes' ids, as in 1,2,3 (tpc cluster shows them)", Exit.USAGE)
    nodes = [int(word) for word in words]
    if len(set(nodes)) < len(nodes):
        fail(f"--nodes {text}: a node has one replica of a partition at most", Exit.USAGE)
    return nodes


def _metadata(client: Cluster) -> Any:
    return client.any_connection().call(ApiKey.METADATA, in_any_version(metadata_request(None)))


def _replicas(told: Any) -> dict[Place, list[int]]:
    """By partition, the brokers that have it; the first is preferred to lead."""
    return {
        (topic.name, one.partition_index): list(one.replica_nodes)
        for topic in told.topics
        for one in topic.partitions
    }  # fmt: skip


def _require(found: dict[Place, Any], places: list[Place]) -> None:
    """Ends the command where one of those is no partition."""
    for topic, index in places:
        if (topic, index) in found:
            continue
        count = sum(name == topic for name, _number in found)
        if count:
            fail(f"{topic} has no partition {index}; it has {count}", Exit.NOT_FOUND)
        no_topic(topic)


def _chosen(client: Cluster, places: list[Place], nodes: list[int]) -> dict[Place, list[int]]:
    """The broker on each node that is to have each partition."""
    told = _metadata(client)
    had = _replicas(told)
    _require(had, places)
    cores: dict[int, list[int]] = {}
    for row in told.brokers:
        cores.setdefault(row.node_id // CORES_PER_NODE, []).append(row.node_id)
    if absent := [node for node in nodes if node not in cores]:
        there = ", ".join(map(str, sorted(cores)))
        fail(f"there is no node {absent[0]} that is up; there are {there} (tpc cluster shows them)", Exit.NOT_FOUND)
    counts = Counter(broker for brokers in had.values() for broker in brokers)
    wanted = {}
    for where in places:
        present = {broker // CORES_PER_NODE: broker for broker in had[where]}
        chosen = []
        for node in nodes:
            broker = present.get(node)
            if broker is None:
                broker = min(cores[node], key=lambda one: (counts[one], one))
                counts[broker] += 1
            chosen.append(broker)
        wanted[where] = chosen
    return wanted


def _reassign(client: Cluster, wanted: dict[Place, list[int]]) -> None:
    """RefusedError: the first one that was refused."""
    kind = messages.AlterPartitionReassignmentsRequest
    by_topic: dict[str, list[Any]] = {}
    for (topic, index), brokers in wanted.items():
        by_topic.setdefault(topic, []).append(kind.ReassignablePartition(partition_index=index, replicas=brokers))
    topics = [kind.ReassignableTopic(name=name, partitions=parts) for name, parts in by_topic.items()]
    request = kind(timeout_ms=REQUEST_TIMEOUT_MS, topics=topics)

    def ask() -> None:
        raise_refused(client.any_connection().call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, in_any_version(request)))

    until_led(client, ask)


def raise_refused(answer: Any) -> None:
    """RefusedError: of the whole request, or the first partition that cannot be moved."""
    if answer.error_code:
        raise RefusedError(answer.error_code, answer.error_message or "moving partitions")
    for topic in answer.responses:
        for one in topic.partitions:
            if one.error_code:
                label = f"{topic.name}-{one.partition_index}"
                raise RefusedError(one.error_code, f"{label}: {one.error_message or 'it cannot be moved'}")


def _misplaced(client: Cluster, wanted: dict[Place, list[int]]) -> dict[Place, str]:
    """As `wait_moved` asks for it."""
    had = _replicas(_metadata(client))
    _require(had, list(wanted))
    said = "is not on its way any more; `tpc partition list` shows where it is"
    return {where: said for where, brokers in wanted.items() if had[where] != brokers}


@click.command("elect")
@click.argument("partitions", metavar="[TOPIC-N]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All partitions that another than the preferred replica leads.")
@common_options
def elect_leaders(partitions: tuple[str, ...], everything: bool, bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Have the preferred replica of each partition lead it, the first that `tpc partition list` shows. Only one that is
    in sync can: a replica that lacks acknowledged records never leads.
    """
    if bool(partitions) == everything:
        fail("name the partitions (TOPIC-N...), or give --all", Exit.USAGE)
    places = [parse_partition(text) for text in partitions]
    kind = messages.ElectLeadersRequest
    by_topic: dict[str, list[int]] = {}
    for topic, index in places:
        by_topic.setdefault(topic, []).append(index)
    asked = [kind.TopicPartitions(topic=name, partitions=indexes) for name, indexes in by_topic.items()]
    request = kind(
        election_type=PREFERRED, topic_partitions=None if everything else asked, timeout_ms=REQUEST_TIMEOUT_MS
    )
    with own_client(bootstrap) as client:
        _require(_replicas(_metadata(client)), places)
        answer = client.any_connection().call(ApiKey.ELECT_LEADERS, in_any_version(request))
    if answer.error_code:
        fail(f"electing leaders: {ErrorCode(answer.error_code).name}")
    results = [
        (f"{topic.topic}-{one.partition_id}", ErrorCode(one.error_code), one.error_message)
        for topic in answer.replica_election_results
        for one in topic.partition_result
    ]
    led = sorted(name for name, code, _text in results if code == ErrorCode.NONE)
    as_before = sorted(name for name, code, _text in results if code == ErrorCode.ELECTION_NOT_NEEDED)
    refused = [(name, code, text) for name, code, text in results if name not in {*led, *as_before}]
    if as_json:
        told = [{"partition": name, "error": code.name, "message": text} for name, code, text in refused]
        print_json({"elected": led, "as_before": as_before, "refused": told})
    else:
        for name in led:
            click.echo(f"{name}: the preferred replica leads it.")
        for name in as_before:
            click.echo(f"{name}: the preferred replica leads it already.")
        if not results:
            click.echo("The preferred replicas lead all partitions.")
    if refused:
        name, code, text = refused[0]
        fail(f"{name}: {text or code.name}" + (f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""))


@click.command("sizes")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@common_options
def list_sizes(topics: tuple[str, ...], bootstrap: str, as_json: bool) -> None:  # noqa: FBT001
    """Bytes of each replica on the disk of each broker, and how much is free there."""
    request = messages.DescribeLogDirsRequest(topics=None)
    found: list[dict[str, Any]] = []
    with own_client(bootstrap) as client:
        told = _metadata(client)
        if missing := set(topics) - {topic.name for topic in told.topics}:
            no_topic(min(missing))
        for broker in sorted(row.node_id for row in told.brokers):
            connection = client.connection_to_broker(broker)
            if connection is None:
                continue
            answer = connection.call(ApiKey.DESCRIBE_LOG_DIRS, in_any_version(request))
            for folder in answer.results:
                if folder.error_code:
                    fail(f"broker {broker}, {folder.log_dir}: {ErrorCode(folder.error_code).name}")
                found += [
                    {"topic": topic.name, "partition": one.partition_index, "broker": broker,
                     "bytes": one.partition_size, "folder": folder.log_dir, "free_bytes": folder.usable_bytes}
                    for topic in folder.topics if not topics or topic.name in topics
                    for one in topic.partitions
                ]  # fmt: skip
    found.sort(key=lambda row: (row["topic"], row["partition"], row["broker"]))
    if as_json:
        print_json(found)
        return
    names = ("broker", "bytes", "folder", "free_bytes")
    rows = [(f"{row['topic']}-{row['partition']}", *(row[name] for name in names)) for row in found]
    print_table(("Partition", "Broker", "Bytes", "Folder", "Free bytes"), rows)
