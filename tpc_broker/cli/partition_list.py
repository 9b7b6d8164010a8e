"""``tpc partition list``: who leads each partition, where its replicas are, and which of them are in sync."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tpc_broker.cli.connection import common_options, fail, no_topic, print_json, print_table
from tpc_broker.cli.own_client import own_client
from tpc_broker.client.requests import in_any_version, metadata_request
from tpc_broker.kafka import ApiKey, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = ("Partition", "Leader", "Epoch", "Replicas", "In sync", "Offline")


@click.command("list")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--under-replicated", is_flag=True, help="Only those of which a replica is not in sync.")
@click.option("--leaderless", is_flag=True, help="Only those without a leader.")
@click.option("--broker", "on_broker", type=click.IntRange(0), metavar="ID", help="Only those with a replica there.")
@click.option("--internal", is_flag=True, help="Of internal topics too; the first two show them anyway.")
@common_options
def list_partitions(  # noqa: PLR0913 (click hands each option over by name)
    topics: tuple[str, ...],
    under_replicated: bool,  # noqa: FBT001
    leaderless: bool,  # noqa: FBT001
    on_broker: int | None,
    internal: bool,  # noqa: FBT001
    bootstrap: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Partitions with their leaders and replicas, as brokers' ids (`tpc info` has them).

    \b
    Examples:
      tpc partition list --under-replicated         what is not on as many nodes as it should be, or has no leader
      tpc partition list orders --json
      tpc partition list --broker 3072              what is on core 0 of node 3
    """  # noqa: D301 (click's mark for text that keeps its lines)
    with own_client(bootstrap) as client:
        answer = client.any_connection().call(ApiKey.METADATA, in_any_version(metadata_request(list(topics) or None)))
    for topic in answer.topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            no_topic(topic.name)
        elif topic.error_code:
            fail(f"{topic.name}: {ErrorCode(topic.error_code).name}")
    found = partition_rows(answer.topics, internal=internal or bool(topics) or under_replicated or leaderless)
    rows = sorted(found, key=lambda row: (row["topic"], row["partition"]))
    if under_replicated:
        rows = [row for row in rows if lacks_replicas(row)]
    elif leaderless:
        rows = [row for row in rows if row["leader"] is None]
    if on_broker is not None:
        rows = [row for row in rows if on_broker in row["replicas"]]
    if as_json:
        print_json(rows)
        return
    print_table(COLUMNS, [
        (f"{row['topic']}-{row['partition']}", "none" if row["leader"] is None else row["leader"], row["leader_epoch"],
         *(_ids(row[name]) for name in ("replicas", "in_sync", "offline")))
        for row in rows
    ])  # fmt: skip


def lacks_replicas(row: dict[str, Any]) -> bool:
    return row["leader"] is None or len(row["in_sync"]) < len(row["replicas"])


def partition_rows(topics: Any, *, internal: bool) -> Iterator[dict[str, Any]]:
    for topic in topics:
        if topic.is_internal and not internal:
            continue
        for one in topic.partitions:
            yield {
                "topic": topic.name,
                "partition": one.partition_index,
                "leader": one.leader_id if one.leader_id >= 0 else None,
                "leader_epoch": one.leader_epoch if one.leader_epoch >= 0 else None,
                "replicas": list(one.replica_nodes),
                "in_sync": list(one.isr_nodes),
                "offline": list(one.offline_replicas),
            }


def _ids(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))
