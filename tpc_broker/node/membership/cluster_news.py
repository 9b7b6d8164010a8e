"""What a node says in its log of the others: who died, whose disk is full, and that the metadata have no majority.

What an operator has to know is a warning, and so is its end; what belongs to a cluster's daily life is information.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tpc_broker.swim.model import Change

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.raft.group import Group
    from tpc_broker.swim.model import MemberEvent

log = logging.getLogger(__name__)

LEADERLESS_TOLD_S: Final = 3.0
"""An election takes less."""
LEVELS: Final = {Change.DIED: logging.WARNING, Change.CONFLICT: logging.ERROR}
WORDS: Final = {
    Change.DIED: "dead: nothing is heard of it any more, and what it led goes to others where they are a majority",
    Change.JOINED: "there",
    Change.LEFT: "gone: it has said good-bye",
    Change.SUSPECTED: "suspected to be dead: it does not answer",
    Change.CLEARED: "alive: it was suspected for nothing",
    Change.RESTARTED: "started again",
}


# Rule: That a node died or is full, and that there is no majority, are warnings with the nodes' names; so are their
# ends. Held by tests/cluster/test_cluster_news.py.
class ClusterNews:
    """Of one node."""

    def __init__(self, own: int) -> None:
        self._own = own
        self._dead: set[int] = set()
        self._full: set[int] = set()
        self._leaderless_s: float | None = None
        self._is_told = False

    def member_changed(self, event: MemberEvent) -> None:
        level, word = LEVELS.get(event.change, logging.INFO), WORDS.get(event.change, "")
        if event.change is Change.DIED:
            self._dead.add(event.node)
        elif event.change is Change.JOINED and event.node in self._dead:
            self._dead.remove(event.node)
            level, word = logging.WARNING, "back"
        elif event.change in {Change.LEFT, Change.FORGOTTEN}:
            self._dead.discard(event.node)
            self._full.discard(event.node)
        log.log(level, "node %d%s", event.node, f" is {word}" if word else f": {event.change.value}")
        if event.info is not None and event.node != self._own:
            self._look_whether_full(event.node, is_full=event.info.lacks_space)

    def _look_whether_full(self, node: int, *, is_full: bool) -> None:
        if is_full and node not in self._full:
            self._full.add(node)
            log.warning("node %d is full: its disk has hardly any space, and new replicas go elsewhere", node)
        elif not is_full and node in self._full:
            self._full.remove(node)
            log.warning("node %d has space again for new replicas", node)

    def role_changed(self, metadata: Group) -> None:
        by = "nobody" if metadata.leader is None else f"node {metadata.leader.node}"
        log.info("metadata: %s in term %d, led by %s", metadata.role.value, metadata.term, by)

    def look_at_metadata(self, now_s: float, leader: int | None, image: ClusterImage, heard: Container[int]) -> None:
        """Now and then. `leader`: of the metadata, as far as is known; `heard`: nodes that a link is up to."""
        if leader is not None:
            if self._is_told and self._leaderless_s is not None:
                lasted_s = now_s - self._leaderless_s
                log.warning("the metadata have a leader again, node %d, after %.1f s", leader, lasted_s)
            self._leaderless_s, self._is_told = None, False
            return
        if self._leaderless_s is None:
            self._leaderless_s = now_s
        if self._is_told or now_s - self._leaderless_s < LEADERLESS_TOLD_S:
            return
        self._is_told = True
        there = [node for node in sorted(image.nodes) if node == self._own or node in heard]
        away = [node for node in sorted(image.nodes) if node not in there]
        log.warning("no node leads the cluster's metadata, and nothing can be changed: %s; "
                    "a majority of the metadata's voters is needed", _places(there, away))  # fmt: skip


def _places(there: Sequence[int], away: Sequence[int]) -> str:
    gone = f"no link to {_nodes(away)}" if away else "there are links to all nodes"
    return f"{gone}, {_nodes(there)} {'is' if len(there) == 1 else 'are'} there"


def _nodes(numbers: Sequence[int]) -> str:
    return f"node{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
