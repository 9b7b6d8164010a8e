"""Replicas that their group goes on without, and that cannot know it: they have heard of a later term than the one in
which the metadata say so.

A replica that was left out while it was away hears of it by the metadata, and removes its files. One that has heard of
a later term keeps them: the leader of that term may count on it. No leader writes to it, so it would ask to be elected
for ever. Instead it asks those that have the partition now. A leader of that term, or of a later one, whose group has
committed voters without it, as the metadata want them, and whom a quorum then confirms, has the metadata say the same
again with its own term. A leader of an earlier term begins its next one first.

Nothing is removed by what anybody answers: only the metadata, of which the leader's word is a record, end a replica.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker.errors import MailboxError
from tpc_broker.model import NodeId
from tpc_broker.raft.items import Address
from tpc_broker.rounds import next_round

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.model import TopicPartition
    from tpc_broker.node.replicas.core_replicas import CoreReplicas
    from tpc_broker.node.replicas.leaderships import ReplicaLeaderships
    from tpc_broker.node.replicas.voters import ReplicaVoters

log = logging.getLogger(__name__)

LEFT_OUT: Final = "replicas.left_out"
LOOK_S: Final = 2.0
CONFIRM_S: Final = 2.0


class LeftOutReplicas:
    """Of one core; touched by its thread only."""

    def __init__(self, replicas: CoreReplicas, leaderships: ReplicaLeaderships, voters: ReplicaVoters) -> None:
        self._replicas = replicas
        self._leaderships = leaderships
        self._voters = voters
        self.leave_out: Callable[[TopicPartition, NodeId, int, int], Awaitable[None]]
        """Have the metadata say that a partition's group goes on without a node, whose next life of it is this one, in
        the term of a leader that was confirmed.
        """
        self.staying: Callable[[], Iterable[tuple[TopicPartition, int]]] = tuple
        """Replicas of this core that the metadata have left out in an earlier term than the one of which they have
        heard, and that term.
        """

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await next_round(LOOK_S)
            for key, term in list(self.staying()):
                await self._ask(key, term)

    async def _ask(self, key: TopicPartition, term: int) -> None:
        topic, node = self._replicas.image.topic_by_id(key.topic_id), self._replicas.node
        if topic is None:
            return
        life = topic.life_of(key.partition, node)
        payload = {"group": self._replicas.group_name(key), "life": life, "term": term}
        others = [Address(*place) for place in topic.replicas[key.partition] if place.node != node]
        self._replicas.want_links(others)
        for address in others:
            try:
                answer = await self._replicas.links.ask(address, LEFT_OUT, payload)
            except MailboxError as error:
                log.debug("%s-%d: node %d does not say who votes: %s", topic.name, key.partition, address.node, error)
                continue
            if answer.get("left_out"):
                log.info("%s-%d goes on without this node, says node %d", topic.name, key.partition, address.node)
                return

    async def serve(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        """A node has a replica that has heard of a term: "left_out" by a leader that was confirmed in that one, or in a
        later one; nothing by others. MailboxError.
        """
        key, life = self._replicas.key_of(str(payload["group"])), int(payload["life"])
        if key is None:
            return {}, ()
        term = self._term_without(key, NodeId(hello.node), life)
        if term is None:
            return {}, ()
        if term < int(payload["term"]):
            self._voters.begin_next_term(key)
            return {}, ()
        with trio.move_on_after(CONFIRM_S):
            if await self._leaderships.confirm(key) and self._term_without(key, NodeId(hello.node), life) == term:
                await self.leave_out(key, NodeId(hello.node), life, term)
                return {"left_out": True}, ()
        return {}, ()

    def _term_without(self, key: TopicPartition, node: NodeId, life: int) -> int | None:
        """In which a group is led here that has committed the voters that the metadata want, and does so without that
        node; None: it is not so.
        """
        topic = self._replicas.image.topic_by_id(key.topic_id)
        if topic is None or key.partition in topic.moves or topic.life_of(key.partition, node) != life:
            return None
        if any(place.node == node for place in topic.replicas[key.partition]):
            return None
        return self._voters.settled_term(key)
