"""Who should vote on the cluster's metadata, what an observer is given, what a node tells, and what people see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpc_broker import __version__
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.feature_levels import SPOKEN
from tpc_broker.limits import CLUSTER_VOTERS_MAX
from tpc_broker.metadata.records import NodeAddress, NodeRegistered
from tpc_broker.model import NodeId
from tpc_broker.node.metadata.metadata_group import decode_records
from tpc_broker.raft.items import Batch, Voter
from tpc_broker.swim.model import GONE, State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.node.membership.identity import NodeIdentity
    from tpc_broker.node.metadata.metadata_group import MetadataGroup
    from tpc_broker.options import CoreOptions
    from tpc_broker.swim.model import NodeInfo


def wanted_voters(
    present: frozenset[Voter], image: ClusterImage, is_within_reach: Callable[[NodeId], bool]
) -> frozenset[Voter]:
    """Who should vote on the metadata, from who does: a data directory that is another by now takes the place of the
    one before, and with enough nodes there are three, then five. Nobody loses its vote for being away; who was removed
    does, and who is draining, unless their number would be even without it.
    """
    draining = image.draining
    target = {voter for voter in present if voter.incarnation not in image.removed}
    for voter in sorted(target):
        known = image.nodes.get(voter.node)
        if known is not None and known.incarnation != voter.incarnation and is_within_reach(voter.node):
            target.remove(voter)
            target.add(Voter(voter.node, known.incarnation))
    nodes = {voter.node for voter in target}
    free = [
        node for node in sorted(image.nodes)
        if node not in nodes and node not in draining and is_within_reach(node)
    ]  # fmt: skip
    leaving = sorted(voter for voter in target if voter.node in draining)
    staying = target.difference(leaving)
    possible = min(CLUSTER_VOTERS_MAX, len(staying) + len(free))
    wanted = possible if possible % 2 else possible - 1
    staying.update(Voter(node, image.nodes[node].incarnation) for node in free[: max(0, wanted - len(staying))])
    if leaving and len(staying) % 2 == 0:
        staying.add(leaving[0])
    return frozenset(staying)


def successor(group: MetadataGroup, image: ClusterImage, is_within_reach: Callable[[NodeId], bool]) -> Voter | None:
    """Who is to lead the metadata in this leader's place: the one that has most of them, and is not draining if there
    is a choice. None: nobody is there.
    """
    machine = group.group
    assert machine.config is not None
    there = [
        (voter.node not in image.draining, peer.match, voter)
        for voter, peer in machine.peers.items()
        if voter in machine.config.new and peer.match >= 0 and is_within_reach(voter.node)
    ]
    return max(there)[2] if there else None


def records_after(group: MetadataGroup, after: int) -> list[MetadataRecord] | None:
    """The committed records from a version on; None where they are not all in memory."""
    log_items = group.group.log.items
    batches = [item for item in log_items if isinstance(item, Batch) and item.base_offset >= after]
    batches = [batch for batch in batches if batch.end_offset <= group.image.version]
    if not batches or batches[0].base_offset != after:
        return None
    return [record for batch in batches for record in decode_records(batch.payload)]  # type: ignore[arg-type]


def node_rows(
    image: ClusterImage,
    states: Mapping[int, tuple[State, NodeInfo]],
    voters: Collection[int],
    controller: int | None,
) -> list[dict[str, Any]]:
    """Every registered node, as one of them knows it, for people."""
    rows, draining = [], image.draining
    for node, known in sorted(image.nodes.items()):
        state, info = states.get(node, (None, None))
        name = "unknown" if state is None else "suspected" if state is State.SUSPECT else state.name.lower()
        if state is State.ALIVE and node in draining:
            name = "draining"
        rows.append({
            "node": node,
            "state": name,
            "cores": known.cores,
            "rack": known.rack,
            "version": info.version if info is not None else known.version,
            "levels": list(known.levels),
            "address": str(SeedAddress(*known.address)),
            "full": info is not None and info.lacks_space and state not in GONE,
            "metadata": "leader" if node == controller else "voter" if node in voters else "observer",
        })  # fmt: skip
    return rows


def registration_of(identity: NodeIdentity, options: CoreOptions, cores: int) -> NodeRegistered:
    """What a node tells of itself, and of its first `cores` cores, to the cluster's metadata."""
    assert options.cluster is not None
    listeners = tuple(
        (listener.name, tuple(NodeAddress(*each) for each in listener.advertised[:cores]))
        for listener in options.listeners
    )
    return NodeRegistered(
        NodeId(identity.node), identity.incarnation, cores, options.cluster.rack, __version__,
        NodeAddress(*options.cluster.address), listeners, SPOKEN,
    )  # fmt: skip
