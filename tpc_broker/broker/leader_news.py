"""What the leaders of a node tell the other nodes: who leads, in which epoch.

Of each other node one message is under way, with what is newest of so many partitions; what comes meanwhile goes with
the next one. So thousands of leaders that are elected in one second need a few messages, and what a node was not told,
because its link was full or it did not answer, is told again. A node whose link ends is told everything when it is
there again.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker.errors import MailboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tpc_broker.broker.ports import ClusterNode
    from tpc_broker.broker.view import Leader
    from tpc_broker.model import NodeId, TopicPartition

log = logging.getLogger(__name__)

TOLD_AT_ONCE: Final = 2_000
"""Partitions in one message: some hundred kilobytes, and some ten milliseconds at each end."""
AGAIN_S: Final = 0.2


# Rule: Other nodes hear of each leader, whatever a full link refused, until they are sent everything at the next start
# of the link. Held by tests/broker/test_leader_news.py.
class LeaderNews:
    """On core 0. `leaders_here`: all that are on this node; `encode`: what a message says of some."""

    def __init__(
        self,
        cluster: ClusterNode,
        leaders_here: Callable[[], Iterable[tuple[TopicPartition, Leader]]],
        encode: Callable[[list[tuple[TopicPartition, Leader]]], list[list[Any]]],
    ) -> None:
        self._cluster = cluster
        self._leaders_here = leaders_here
        self._encode = encode
        self._news: dict[NodeId, dict[TopicPartition, Leader]] = {}
        self._telling: set[NodeId] = set()
        cluster.on_peer_up = self._peer_is_up

    def tell(self, leaders: Iterable[tuple[TopicPartition, Leader]]) -> None:
        """All nodes that are there."""
        told = dict(leaders)
        for node in self._cluster.linked() if told else ():
            self._put(node, told)

    def _peer_is_up(self, node: NodeId) -> None:
        self._put(node, dict(self._leaders_here()))

    def _put(self, node: NodeId, leaders: dict[TopicPartition, Leader]) -> None:
        self._news.setdefault(node, {}).update(leaders)
        if node not in self._telling:
            self._telling.add(node)
            self._cluster.start_soon(self._tell, node)

    async def _tell(self, node: NodeId) -> None:
        try:
            while self._news[node] and node in self._cluster.linked():
                await self._tell_some(node)
        finally:
            del self._news[node]
            self._telling.remove(node)

    async def _tell_some(self, node: NodeId) -> None:
        news = self._news[node]
        told = dict(islice(news.items(), TOLD_AT_ONCE))
        for partition in told:
            del news[partition]
        try:
            await self._cluster.ask(node, "leaders", {"leaders": self._encode(list(told.items()))})
        except MailboxError as error:
            log.debug("node %d was not told who leads: %s", node, error)
            self._news[node] = {**told, **news}
            await trio.sleep(AGAIN_S)
