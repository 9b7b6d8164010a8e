"""How far each node's copy of the metadata is, as the leader of their group knows, and as the observers say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.broker.ports import Quorum, QuorumReplica
from tpc_broker.errors import MailboxError

if TYPE_CHECKING:
    from tpc_broker.metadata.records import NodeRegistered
    from tpc_broker.node.links.links import Links
    from tpc_broker.node.metadata.metadata_group import MetadataGroup
    from tpc_broker.storage.ports import Clock

APPLIED: Final = "metadata.applied"
ASK_TIMEOUT_MS: Final = 1_000
UNKNOWN: Final = -1


async def describe_quorum(group: MetadataGroup, links: Links, clock: Clock) -> Quorum:
    """Of a group that is led here. Observers are asked for their version, and who does not answer in a second is not
    known.
    """
    machine, image = group.group, group.image
    assert machine.config is not None
    wall_ms = clock.wall_ms() - clock.monotonic_ms()

    def wall(monotonic_ms: int | None) -> int:
        return UNKNOWN if monotonic_ms is None else monotonic_ms + wall_ms

    voters: list[QuorumReplica] = []
    observers: dict[int, QuorumReplica] = {}
    for voter, end_offset, heard_ms, caught_up_ms in group.progress():
        replica = QuorumReplica(voter.node, voter.incarnation, end_offset, wall(heard_ms), wall(caught_up_ms))
        if voter in machine.config.voters:
            voters.append(replica)
        else:
            observers[voter.node] = replica
    leader, term, high_watermark = group.me.node, machine.term, machine.high_watermark

    async def ask(known: NodeRegistered) -> None:
        version, now_ms = await _version_of(known.node, links), clock.wall_ms()
        if version == UNKNOWN:
            now_ms = UNKNOWN
        caught_up_ms = now_ms if version >= high_watermark else UNKNOWN
        observers[known.node] = QuorumReplica(known.node, known.incarnation, version, now_ms, caught_up_ms)

    async with trio.open_nursery() as nursery:
        named = {voter.node for voter in voters} | set(observers)
        for known in image.nodes.values():
            if known.node not in named:
                nursery.start_soon(ask, known)
    in_order = tuple(observers[node] for node in sorted(observers))
    return Quorum(leader, term, high_watermark, tuple(sorted(voters)), in_order)


async def _version_of(node: int, links: Links) -> int:
    """Of an observer's image."""
    peer = links.peer_of(node)
    if peer is None:
        return UNKNOWN
    try:
        answer, _blobs = await peer.call(APPLIED, {}, timeout_ms=ASK_TIMEOUT_MS)
    except MailboxError:
        return UNKNOWN
    return int(answer["version"])
