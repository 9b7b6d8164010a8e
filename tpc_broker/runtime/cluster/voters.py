"""Who should vote on the cluster's metadata, and what an observer may be given of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.limits import CLUSTER_VOTERS_MAX
from tpc_broker.raft.items import Batch, Voter
from tpc_broker.runtime.cluster.metadata_group import decode_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.model import NodeId
    from tpc_broker.runtime.cluster.metadata_group import MetadataGroup


def wanted_voters(
    present: frozenset[Voter], image: ClusterImage, is_within_reach: Callable[[NodeId], bool]
) -> frozenset[Voter]:
    """Who should vote on the metadata, from who does: a data directory that is another by now takes the place of the
    one before, and with enough nodes there are three, then five. Nobody loses its vote for being away.
    """
    target = set(present)
    for voter in sorted(present):
        known = image.nodes.get(voter.node)
        if known is not None and known.incarnation != voter.incarnation and is_within_reach(voter.node):
            target.remove(voter)
            target.add(Voter(voter.node, known.incarnation))
    nodes = {voter.node for voter in target}
    free = [node for node in sorted(image.nodes) if node not in nodes and is_within_reach(node)]
    possible = min(CLUSTER_VOTERS_MAX, len(target) + len(free))
    wanted = possible if possible % 2 else possible - 1
    for node in free[: max(0, wanted - len(target))]:
        target.add(Voter(node, image.nodes[node].incarnation))
    return frozenset(target)


def records_after(group: MetadataGroup, after: int) -> list[MetadataRecord] | None:
    """The committed records from a version on; None where they are not all in memory."""
    log_items = group.group.log.items
    batches = [item for item in log_items if isinstance(item, Batch) and item.base_offset >= after]
    batches = [batch for batch in batches if batch.end_offset <= group.image.version]
    if not batches or batches[0].base_offset != after:
        return None
    return [record for batch in batches for record in decode_records(batch.payload)]  # type: ignore[arg-type]
