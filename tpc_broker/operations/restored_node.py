"""A copy of a cluster's node becomes the directory of a broker alone. Only in a restore that is not finished.

Nothing is left of who the node was. Raft's rule is that what was promised is never taken back: a node that came back
with an older copy of its disk could vote twice in a term, and count as having records that it has forgotten. So the
copy is another cluster, with an id of its own, in which each partition has one replica; as any broker's directory it
can be started alone, or found a new cluster that other nodes join (`--cluster`). The nodes of the old one refuse it.

1. *Recovery* of every core, as after a crash.
2. *Groups end* (`storage/recovery/ended_groups`): each log is cut where its records were committed at the backup's
   moment, and forgets terms, votes and voters. Partitions that are not in the copy are removed; they begin empty.
3. *Metadata*: a new log with one snapshot (`metadata/copied_node`).
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from tpc_broker.broker.metadata_rebuild import write_image
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.engine.backend import ring_options
from tpc_broker.engine.data_directory import PROPERTIES_FILE, new_cluster_id, read_properties, write_properties
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.ring import RingUnavailable
from tpc_broker.engine.trio_ring import current_ring
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.checkpoint import CheckpointError
from tpc_broker.log.journal import JournalUnreadableError
from tpc_broker.model import LeaderEpoch, Offset
from tpc_broker.options import StartError
from tpc_broker.storage.recovery.ended_groups import end_groups, remove, write_recovered
from tpc_broker.storage.recovery.handover import recover_all
from tpc_broker.storage.recovery.journal_opening import JournalDamagedError

if TYPE_CHECKING:
    from pathlib import Path

    from tpc_broker.operations.backup_node import NodeCopy


def make_alone(data: Path, node: NodeCopy) -> dict[str, Any]:
    """What is to be told of it. StartError: one line. OSError: the disk."""
    cluster_id = new_cluster_id()
    try:
        shorter = run_on_ring(_make_alone, data, node, cluster_id, options=ring_options())
    except (JournalDamagedError, JournalUnreadableError, CheckpointError, StorageFailedError) as error:
        raise StartError(f"{data} cannot be recovered: {error}; it is not whole, remove it") from error
    except RingUnavailable as error:
        raise StartError(f"{error}; {data} is not whole, remove it") from error
    properties = read_properties(data / PROPERTIES_FILE)
    write_properties(data / PROPERTIES_FILE, {**properties, "cluster.id": cluster_id})
    return {
        "cluster_id": cluster_id,
        "of_cluster": node.cluster_id,
        "of_node": int(node.node),
        "partitions": len(node.copied()),
        "left_out": node.left_out(),
        "shorter": shorter,
    }


async def _make_alone(data: Path, node: NodeCopy, cluster_id: str) -> list[str]:
    """Names of partitions that have less than the backup said."""
    recovered = await recover_all(RingDisk(current_ring()), data, lambda: uuid.uuid4().bytes)
    copied, shorter = node.copied(), []
    try:
        for one in recovered.values():
            known = set(one.storages) | set(one.offline)
            await remove(one, data, known - copied)
            shorter += list(await end_groups(one, node.bounds))
        await write_image(recovered[METADATA_CORE], data, node.image_alone(cluster_id), Offset(0), LeaderEpoch(0))
        for one in recovered.values():
            await write_recovered(one)
    finally:
        for one in recovered.values():
            await one.close()
    return sorted(f"{node.image.topics[key.topic_id].name}-{key.partition}" for key in shorter)
