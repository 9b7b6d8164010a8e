"""Which registered nodes are gone, and whose disks are full: what membership says of them to who places replicas.

Membership hears datagrams, replication hears links. Whoever is heard over its link is there, whatever becomes of
datagrams: it may lead partitions, and clients have to find it. So is whoever is heard by a node that this one hears
(`hearsay`): it may lead by that one's vote.

A node that has heard the others, and hears no majority of the metadata's voters nor of the nodes any more, is *cut
off*: others may lead by now, unknown to it. So it tells clients of nobody else that it is gone, and leaves itself out
where it leads nothing of what they ask for. A client goes on asking who answers, and would else ask a node without
leaders, which has the least to do, for as long as it is cut off. Of two voters, one that is left cannot say whether the
other one is gone.

A node whose file system has hardly anything left for clients' records says so of itself, with its other information
(`swim.model.NodeInfo`). It says so until there is twice as much, so that little deletions do not bring replicas which
fill it again. Like all that membership says it is a hint: a replica that was placed on a full node waits there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tpc_broker import limits
from tpc_broker.rounds import next_round
from tpc_broker.storage.upkeep.segment_space import left_for_records
from tpc_broker.swim.model import GONE, State

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.model import NodeId
    from tpc_broker.node.membership.members import Members
    from tpc_broker.storage.ports import Disk, FileSystemStatus

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
PAIR: Final = 2


def is_majority(count: int, of: int) -> bool:
    return 2 * count > of


class Whereabouts:
    """As one node knows them, which has its data in a folder of that disk."""

    def __init__(self, disk: Disk, data: str) -> None:
        self._disk = disk
        self._data = Path(data)
        self.absent: frozenset[NodeId] = frozenset()
        self.is_cut_off = False
        """This node."""
        self._has_heard = False
        """A majority of the voters, since its start."""
        self.is_full = False
        """This node."""

    # Rule: A node that is heard over its link, by this one or by one that this one hears, is not taken for gone, and
    # one that hears the majorities no more sends clients to the others. See also
    # tpc_broker/broker/handlers/metadata.py, tpc_broker/node/membership/hearsay.py. Held by
    # tests/cluster/test_whereabouts.py, tests/simulator/test_cuts.py.
    def look(  # noqa: PLR0913  (whoever says something of the others)
        self,
        members: Members,
        image: ClusterImage,
        own: int,
        voters: Collection[int],
        heard: Collection[int],
        by_others: Collection[int] = (),
    ) -> bool:
        """Whether something is otherwise than before. `voters`: of the metadata, as far as they are known; `heard`:
        nodes, over their links; `by_others`: those that are heard by these.
        """
        before = self.absent, self.is_cut_off

        def is_gone(node: int) -> bool:
            state = members.state_of(node)
            return state in GONE and not (state is State.DEAD and (node in heard or node in by_others))

        self.absent = frozenset(node for node in image.nodes if node != own and is_gone(node))
        hears_voters = is_majority(sum(voter == own or voter in heard for voter in voters), len(voters))
        hears_nodes = is_majority(sum(node == own or node in heard for node in image.nodes), len(image.nodes))
        self._has_heard |= hears_voters
        self.is_cut_off = self._has_heard and len(voters) > PAIR and not hears_voters and not hears_nodes
        if self.is_cut_off != before[1]:
            told = "no majority of the metadata's voters is heard: clients are sent to the other nodes"
            log.warning("%s", told if self.is_cut_off else "a majority of the metadata's voters is heard again")
        return (self.absent, self.is_cut_off) != before

    async def watch_space(self, members: Members) -> None:
        """Of this node, until cancelled."""
        while True:
            try:
                self._take(await self._disk.statvfs(self._data))
            except OSError as error:
                log.debug("what is left of the disk is not known: %s", error)
            members.tell_space(lacks=self.is_full)
            await next_round(LOOK_S)

    def _take(self, status: FileSystemStatus) -> None:
        least = min(limits.DISK_FULL_BYTES, status.total_bytes // 16)
        was_full, self.is_full = self.is_full, left_for_records(status) < (2 * least if self.is_full else least)
        if self.is_full != was_full:
            told = "hardly any space: new replicas go elsewhere" if self.is_full else "space again for new replicas"
            log.warning("the disk has %s", told)


# Rule: A full node gets a new replica only where there are too few others, and none that moves by itself. See also
# tpc_broker/metadata/placement. Held by tests/metadata/test_rebalance.py, tests/cluster/test_whereabouts.py,
# tests/simulator/test_full_disks.py.
def full_nodes(members: Members | None, image: ClusterImage) -> frozenset[NodeId]:
    """Those that are there, and said so last."""
    states = {} if members is None else members.states()
    full = {node for node, (state, info) in states.items() if state not in GONE and info.lacks_space}
    return frozenset(node for node in image.nodes if node in full)
