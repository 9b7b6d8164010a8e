"""What the leader of the metadata sees to: who votes, and who leads when it should not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.errors import MailboxError
from tpc_broker.node.metadata.voter_file import GROUP
from tpc_broker.node.metadata.voters import successor, wanted_voters
from tpc_broker.swim.model import GONE, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.model import NodeId
    from tpc_broker.node.links.links import Links
    from tpc_broker.node.metadata.metadata_group import MetadataGroup
    from tpc_broker.raft.items import Position, Voter
    from tpc_broker.storage.ports import Clock

log = logging.getLogger(__name__)

SHIP: Final = "metadata.ship"
SHIP_TIMEOUT_MS: Final = 10_000
SHIP_AGAIN_S: Final = 0.2
JUST_STARTED_MS: Final = 30_000
"""So long a node that has never been heard of may merely not have been met yet."""


async def tend_voters(
    group: MetadataGroup, image: ClusterImage, links: Links, is_within_reach: Callable[[NodeId], bool], clock: Clock
) -> None:
    """Begin the change of voters that is due, if one is; who is to vote has a file for it first."""
    config = group.group.config
    assert config is not None
    if config.is_joint:
        return
    target = wanted_voters(config.new, image, is_within_reach)
    for voter in sorted(target - config.new):
        peer = links.peer_of(voter.node)
        if peer is None:
            return
        try:
            await peer.call("metadata.become_replica", {"incarnation": voter.incarnation})
        except MailboxError as error:
            log.info("node %d does not become a voter: %s", voter.node, error)
            return
    if target != config.new and group.is_leader:
        refusal = group.core.change_voters(GROUP, target, clock.monotonic_ms())
        group.turn()
        if refusal is None:
            log.info("metadata: the voters are to be nodes %s", sorted(voter.node for voter in target))


async def ship_image(group: MetadataGroup, links: Links, target: Voter, position: Position, image: bytes) -> None:
    """Until it is there, or is not wanted any more."""
    asked = {"incarnation": target.incarnation, "position": list(position)}
    while group.is_leader:
        peer = links.peer_of(target.node)
        if peer is None:
            return  # its link is reset, and it is asked for again
        try:
            await peer.call(SHIP, asked, [image], timeout_ms=SHIP_TIMEOUT_MS)
        except MailboxError as error:
            log.info("the metadata were not shipped to node %d: %s", target.node, error)
            await trio.sleep(SHIP_AGAIN_S)
            continue
        group.shipped(target, position)
        return


def hand_over(
    group: MetadataGroup, image: ClusterImage, is_within_reach: Callable[[NodeId], bool], clock: Clock, *, why: str
) -> bool:
    """Have another voter lead; False: nobody is there, or it cannot be now."""
    target = successor(group, image, is_within_reach)
    if target is None:
        return False
    refusal = group.core.transfer_leadership(GROUP, target, clock.monotonic_ms())
    group.turn()
    if refusal is None:
        log.info("metadata: handed over to node %d: %s", target.node, why)
    return refusal is None


def why_not_gone(node: NodeId, state: State | None, *, has_link: bool, uptime_ms: int) -> str:
    """Why a node is not to be taken for gone, for people; empty: it is gone."""
    if state is State.SUSPECT and not has_link:
        return f"Node {node} is suspected to be gone, and not buried yet: try again in some seconds."
    if has_link or state in {State.ALIVE, State.SUSPECT}:
        return f"Node {node} is alive: stop it first (tpc node drain {node} moves away what can be moved)."
    if state not in GONE and uptime_ms < JUST_STARTED_MS:
        return f"Whether node {node} is alive is not known yet: try again in half a minute."
    return ""
