"""What the leaders of a node tell the other nodes: who leads, in which epoch.

Of each other node one message is under way, with what is newest of so many partitions; what comes meanwhile goes with
the next one. So thousands of leaders that are elected in one second need a few messages, and what a node was not told,
because its link was full or it did not answer, is told again. A node whose link ends is told everything when it is
there again. Until then others pass the news on: two nodes may not hear each other while everybody else hears both, and
clients of the one are to find what the other one leads. A node that has started meanwhile, or was taken for gone, was
told nothing: it asks those that it hears for what they know of leaders on nodes that it does not hear.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker.errors import MailboxError
from tpc_broker.model import NodeId

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tpc_broker.broker.ports import ClusterNode
    from tpc_broker.broker.view import Leader
    from tpc_broker.model import TopicPartition

log = logging.getLogger(__name__)

TOLD_AT_ONCE: Final = 2_000
"""Partitions in one message: some hundred kilobytes, and some ten milliseconds at each end."""
AGAIN_S: Final = 0.2
LINKED_S: Final = 1.0
"""After so long behind the first one, there are links to all that a node which has started can hear."""
ASK_S_MAX: Final = 60.0
"""Between two questions, each of which is answered with all that is known: the first come after one, two, four s."""
FOR_NODE: Final = "for_node"
LED_ON, ASKED_BY = "led_on", "asked_by"
"""What is known of leaders on some nodes is to be told to one."""


# Rule: Other nodes hear of each leader, whatever a full link refused, by another node while there is no link, until
# they are sent everything at the next start of the link; so does a node that starts where it does not hear all. Held
# by tests/broker/test_leader_news.py, tests/simulator/test_cuts.py.
class LeaderNews:
    """On core 0 of the node `own`. `leaders_on`: those that are known to be on some nodes; `encode`: what a message
    says of some; `others`: nodes that seem to be there, whether there is a link to them or not.
    """

    def __init__(
        self,
        cluster: ClusterNode,
        own: NodeId,
        leaders_on: Callable[[Collection[NodeId]], Iterable[tuple[TopicPartition, Leader]]],
        encode: Callable[[list[tuple[TopicPartition, Leader]]], list[list[Any]]],
        others: Callable[[], Iterable[NodeId]],
    ) -> None:
        self._cluster = cluster
        self._own = own
        self._leaders_on = leaders_on
        self._encode = encode
        self._others = others
        self._news: dict[NodeId, dict[TopicPartition, Leader]] = {}
        self._telling: set[NodeId] = set()
        self._asking: set[NodeId] = set()
        """Whom."""
        cluster.on_peer_up = self._peer_is_up

    def tell(self, leaders: Iterable[tuple[TopicPartition, Leader]]) -> None:
        """All nodes that can be told."""
        told, linked = dict(leaders), self._cluster.linked()
        for node in sorted({*linked, *self._others()}) if told and linked else ():
            self._put(node, told)

    def _peer_is_up(self, node: NodeId) -> None:
        self._put(node, dict(self._leaders_on({self._own})))
        self._begin_to_ask(node)

    def are_back(self, nodes: Collection[NodeId]) -> None:
        """They were taken for gone, so they and this node told each other nothing by others."""
        if nodes:
            self._cluster.start_soon(self._make_up_for, nodes)
            for helper in self._cluster.linked():
                self._begin_to_ask(helper)

    async def _make_up_for(self, nodes: Collection[NodeId]) -> None:
        await trio.sleep(LINKED_S)  # over a link they are told everything
        for node in sorted(set(nodes) & set(self._others()) - set(self._cluster.linked())):
            self._put(node, dict(self._leaders_on({self._own})))

    def _begin_to_ask(self, helper: NodeId) -> None:
        if helper not in self._asking:
            self._asking.add(helper)
            self._cluster.start_soon(self._ask, helper)

    async def _ask(self, helper: NodeId) -> None:
        """Until this node hears all, or not the helper any more: that one may have started itself, and know more later;
        and before the metadata are here it is not known who is not heard.
        """
        wait_s = LINKED_S
        try:
            while True:
                await trio.sleep(wait_s)
                linked, others = set(self._cluster.linked()), set(self._others())
                if helper not in linked or (others and others <= linked):
                    return
                if others and await self._is_asked_of(others - linked, helper):
                    wait_s = min(2 * wait_s, ASK_S_MAX)
        finally:
            self._asking.remove(helper)

    async def _is_asked_of(self, nodes: Collection[NodeId], helper: NodeId) -> bool:
        asked = {"leaders": [], LED_ON: sorted(map(int, nodes)), ASKED_BY: int(self._own)}
        try:
            await self._cluster.ask(helper, "leaders", asked)
        except MailboxError as error:
            log.debug("node %d was not asked who leads on %s: %s", helper, asked[LED_ON], error)
            return False
        return True

    def _put(self, node: NodeId, leaders: dict[TopicPartition, Leader]) -> None:
        self._news.setdefault(node, {}).update(leaders)
        if node not in self._telling:
            self._telling.add(node)
            self._cluster.start_soon(self._tell, node)

    async def _tell(self, node: NodeId) -> None:
        try:
            while self._news[node] and self._cluster.linked():
                await self._tell_some(node)
        finally:
            del self._news[node]
            self._telling.remove(node)

    async def _tell_some(self, node: NodeId) -> None:
        news = self._news[node]
        told = dict(islice(news.items(), TOLD_AT_ONCE))
        for partition in told:
            del news[partition]
        payload = {"leaders": self._encode(list(told.items()))}
        try:
            if node in self._cluster.linked():
                await self._cluster.ask(node, "leaders", payload)
            else:
                await self._have_passed_on(node, payload)
        except MailboxError as error:
            log.debug("node %d was not told who leads: %s", node, error)
            self._news[node] = {**told, **news}
            await trio.sleep(AGAIN_S)

    async def _have_passed_on(self, node: NodeId, payload: dict[str, Any]) -> None:
        """By the first who can; where nobody can, the node is told everything when it is there again."""
        for helper in self._cluster.linked():
            if node in self._cluster.linked():
                return  # it is sent everything
            try:
                await self._cluster.ask(helper, "leaders", {**payload, FOR_NODE: int(node)})
            except MailboxError as error:
                log.debug("node %d passes nothing on to node %d: %s", helper, node, error)
            else:
                return

    async def pass_on(self, payload: dict[str, Any]) -> bool:
        """What another node tells one to which it has no link, or asks of one; False: it is for this node.
        MailboxError.
        """
        node = payload.get(FOR_NODE)
        if ASKED_BY in payload:
            self._put(NodeId(int(payload[ASKED_BY])), dict(self._leaders_on(set(map(NodeId, payload[LED_ON])))))
        if node is not None:
            await self._cluster.ask(NodeId(int(node)), "leaders", {"leaders": payload["leaders"]})
        return node is not None
