"""What `tpc topic describe` shows of a compacted topic: how dirty its partitions are, and what cleanings have saved.

Kafka's protocol does not carry it; our brokers tell it in a tagged field of DescribeCluster, each node of its own
replicas, which clean by themselves. Shown is what the leader's node says.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.cli.info import CORES_PER_NODE
from tpc_broker.cli.own_client import patient_client
from tpc_broker.cli.told_facts import facts_told
from tpc_broker.client.errors import ClientError
from tpc_broker.kafka import ApiKey, messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.client.cluster import Cluster

CLEANING_TAG: Final = 10_003
COLUMNS: Final = ("Partition", "Dirty", "Dirty bytes", "First dirty", "Cleanings", "Last cleaning", "Bytes saved", "")
COMPACT: Final = "compact"
_NEVER_MS: Final = -1


def cleanings_of(bootstrap: str, topic: str, leaders: Mapping[int, int]) -> dict[int, dict[str, Any]]:
    """By partition, of those whose leaders' nodes tell. `leaders`: brokers. Who may not ask, or asks Apache Kafka, is
    told nothing.
    """
    try:
        with patient_client(bootstrap) as client:
            nodes = {broker // CORES_PER_NODE: broker for broker in leaders.values() if broker >= 0}
            told = {node: _of_node(client, broker, topic) for node, broker in nodes.items()}
    except ClientError:
        return {}
    found = {index: told.get(leader // CORES_PER_NODE, {}).get(str(index)) for index, leader in leaders.items()}
    return {index: facts for index, facts in found.items() if facts is not None}


def _of_node(client: Cluster, broker: int, topic: str) -> dict[str, dict[str, Any]]:
    connection = client.connection_to_broker(broker) or client.any_connection()
    _answer, frame = connection.call_tagged(
        ApiKey.DESCRIBE_CLUSTER, lambda _version: messages.DescribeClusterRequest(), CLEANING_TAG, topic.encode()
    )
    facts = facts_told(frame, CLEANING_TAG)
    if facts is None or facts["node"] != broker // CORES_PER_NODE:
        return {}
    found: dict[str, dict[str, Any]] = facts["partitions"]
    return found


def cleaning_row(partition: int, facts: Mapping[str, Any]) -> tuple[object, ...]:
    """Of the table with `COLUMNS`."""
    notes = ["being cleaned"] if facts["is_cleaning"] else []
    if facts.get("no_cleaner") is not None:  # an earlier release's broker does not tell
        notes.append(f"there is no cleaner: {facts['no_cleaner']}")
    if facts["uncleanable"] is not None:
        notes.append(f"cannot be cleaned: {facts['uncleanable']}")
    if facts["batches_unreadable"]:
        notes.append(f"batches that cannot be read: {facts['batches_unreadable']}")
    last_ms = facts["last_cleaned_ms"]
    last = "" if last_ms == _NEVER_MS else _moment(last_ms)
    return (
        partition, f"{facts['dirty_ratio']:.0%}", facts["dirty_bytes"], facts["first_dirty_offset"],
        facts["cleanings_count"], last, facts["bytes_saved"], "; ".join(notes),
    )  # fmt: skip


def _moment(instant_ms: int) -> str:
    """To the second, in local time."""
    return datetime.datetime.fromtimestamp(instant_ms // 1000, datetime.UTC).astimezone().isoformat(sep=" ")
