"""A node without a vote: it pulls what the voters of the metadata have committed, and knows by hearsay who leads.

A voter whose vote was taken hears nothing of that any more: the term that leaves it out is not sent to it. So one that
knows no leader pulls too, and any voter asks now and then.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker.errors import MailboxError
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import MetadataRecord, decode_record, encode_record
from tpc_broker.model import MetadataVersion
from tpc_broker.node.metadata.voters import records_after
from tpc_broker.rounds import next_round

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.node.links.links import Links, Peer
    from tpc_broker.node.metadata.metadata_group import MetadataGroup

log = logging.getLogger(__name__)

LOOK_S: Final = 0.2
FOLLOWING_LOOK_S: Final = 0.5
VOTER_ASKS_S: Final = 5.0
TOLD_LATELY_S: Final = 3.0
PULL_WAIT_S: Final = 1.0
PULL_TIMEOUT_MS: Final = 5_000
PULL: Final = "metadata.pull"


class Observer:
    """`image` is the newest that was pulled; `controller` and `voters` are what the last voter that was asked said,
    of `term`. `follows`: whether the node's own replica has a vote and a leader; `newest`: the newest image that the
    node has.
    """

    def __init__(
        self,
        links: Links,
        *,
        follows: Callable[[], bool],
        newest: Callable[[], ClusterImage],
        committed: Callable[[list[MetadataRecord] | None, ClusterImage], None],
    ) -> None:
        self.image = ClusterImage()
        self.controller: int | None = None
        self.voters: set[int] = set()
        self._links = links
        self._follows = follows
        self._newest = newest
        self._committed = committed
        self._told_s = -TOLD_LATELY_S
        self.term = 0

    @property
    def is_told(self) -> bool:
        """Whether a voter that knows the leader has answered lately."""
        return trio.current_time() - self._told_s < TOLD_LATELY_S

    async def run(self) -> None:
        while True:
            if self._follows():
                await self._wait_while_following()
            peers = [peer for peer in self._links.peers.values() if peer.is_up]
            if not any([await self._pull(peer) for peer in peers[:1]]):
                await trio.sleep(LOOK_S)
                links = self._links.peers
                if peers and links.get(peers[0].address) is peers[0]:  # it may be wanted no more by now
                    links[peers[0].address] = links.pop(peers[0].address)  # another one the next time

    async def _wait_while_following(self) -> None:
        with trio.move_on_after(VOTER_ASKS_S):
            while self._follows():
                await next_round(FOLLOWING_LOOK_S)

    async def _pull(self, peer: Peer) -> bool:
        """Whether that node knows something."""
        before = self._newest()
        try:
            answer, blobs = await peer.call(PULL, {"after": before.version}, timeout_ms=PULL_TIMEOUT_MS)
        except MailboxError:
            return False
        if not answer["known"] or answer["term"] < self.term:  # a voter that has lost its vote may not know it yet
            return False
        self.term = answer["term"]
        self._told_s = trio.current_time()
        self.controller = answer["leader"]
        self.voters = set(answer.get("voters", ()))
        if answer["whole"]:
            image = ClusterImage.from_bytes(blobs[0])
            if image.version > self.image.version:
                self.image = image
                self._committed(None, image)
        elif blobs:
            records = [decode_record(blob) for blob in blobs]
            image = before.apply(records, MetadataVersion(before.version + len(records)))
            if image.version > self.image.version:
                self.image = image
                self._committed(records, image)
        return True


async def answer_pull(group: MetadataGroup, after: int) -> tuple[dict[str, Any], list[bytes]]:
    """What a voter tells an observer: what is committed behind a version, as soon as there is something."""
    with trio.move_on_after(PULL_WAIT_S):
        while group.image.version <= after:
            await group.moved()
    leader = group.leader
    if leader is None:
        return {"known": False}, []
    told = {"term": group.group.term, "leader": leader.node, "voters": sorted(group.voters)}
    answer = {"known": True, "whole": False, **told}
    if group.image.version <= after:
        return answer, []
    records = records_after(group, after)
    if records is None:
        return {**answer, "whole": True}, [group.image.to_bytes()]
    return answer, list(map(encode_record, records))
