"""A node without a vote: it pulls what the voters of the metadata have committed, and knows by hearsay who leads."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker.errors import MailboxError
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import MetadataRecord, decode_record, encode_record
from tpc_broker.model import MetadataVersion
from tpc_broker.runtime.cluster.voters import records_after

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.runtime.cluster.links import Links, Peer
    from tpc_broker.runtime.cluster.metadata_group import MetadataGroup

log = logging.getLogger(__name__)

LOOK_S: Final = 0.2
PULL_WAIT_S: Final = 1.0
PULL_TIMEOUT_MS: Final = 5_000
PULL: Final = "metadata.pull"


class Observer:
    """`image` is the newest that was pulled; `controller` and `voters` are what the last voter that was asked said."""

    def __init__(
        self,
        links: Links,
        *,
        is_voter: Callable[[], bool],
        committed: Callable[[list[MetadataRecord] | None, ClusterImage], None],
    ) -> None:
        self.image = ClusterImage()
        self.controller: int | None = None
        self.voters: set[int] = set()
        self._links = links
        self._is_voter = is_voter
        self._committed = committed

    async def run(self) -> None:
        while True:
            if self._is_voter():
                await trio.sleep(LOOK_S)
                continue
            peers = [peer for peer in self._links.peers.values() if peer.is_up]
            if not any([await self._pull(peer) for peer in peers[:1]]):
                await trio.sleep(LOOK_S)
                if peers:  # another one the next time
                    address = peers[0].address
                    self._links.peers[address] = self._links.peers.pop(address)

    async def _pull(self, peer: Peer) -> bool:
        """Whether that node knows something."""
        try:
            answer, blobs = await peer.call(PULL, {"after": self.image.version}, timeout_ms=PULL_TIMEOUT_MS)
        except MailboxError:
            return False
        if not answer["known"]:
            return False
        self.controller = answer["leader"]
        self.voters = set(answer.get("voters", ()))
        if answer["whole"]:
            image = ClusterImage.from_bytes(blobs[0])
            if image.version > self.image.version:
                self.image = image
                self._committed(None, image)
        elif blobs:
            records = [decode_record(blob) for blob in blobs]
            version = MetadataVersion(self.image.version + len(records))
            self.image = self.image.apply(records, version)
            self._committed(records, self.image)
        return True


async def answer_pull(group: MetadataGroup, after: int) -> tuple[dict[str, Any], list[bytes]]:
    """What a voter tells an observer: what is committed behind a version, as soon as there is something."""
    with trio.move_on_after(PULL_WAIT_S):
        while group.image.version <= after:
            await group.moved()
    leader = group.leader
    answer = {"known": True, "whole": False, "leader": leader and leader.node, "voters": sorted(group.voters)}
    if group.image.version <= after:
        return answer, []
    records = records_after(group, after)
    if records is None:
        return {**answer, "whole": True}, [group.image.to_bytes()]
    return answer, list(map(encode_record, records))
