"""Drives SWIM: sealed datagrams over UDP on the cluster port, exchanges of the whole state as requests on links."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker import __version__
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.cluster.secret import Opener, Sealer
from tpc_broker.errors import MailboxError
from tpc_broker.limits import CLUSTER_SEAL_BYTES, SWIM_DATAGRAM_BYTES_MAX
from tpc_broker.model import NodeId
from tpc_broker.node.links.surroundings import SYSTEM, Datagrams, Surroundings
from tpc_broker.swim.codec import SwimCodec, SwimDecodeError
from tpc_broker.swim.machine import Swim
from tpc_broker.swim.model import Address, MemberEvent, NodeInfo, Sender, State

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.cluster.secret import ClusterSecret
    from tpc_broker.node.links.links import Links
    from tpc_broker.options import ClusterOptions
    from tpc_broker.swim.model import SwimStatistics

EXCHANGE = "swim.exchange"
EXCHANGE_TIMEOUT_MS = 5_000
DATAGRAM_BYTES_MAX = SWIM_DATAGRAM_BYTES_MAX + CLUSTER_SEAL_BYTES + 1
"""One byte more than any that is right."""
DATAGRAMS_AT_ONCE_MAX = 256
"""Read before the machine is asked what is due, and before anybody else has a turn."""


class Members:
    """Who is there, as far as this node knows."""

    def __init__(  # noqa: PLR0913 (who the node is, and what it is given)
        self,
        options: ClusterOptions,
        who: tuple[int, int, int],
        cluster: str,
        secret: ClusterSecret,
        links: Links,
        cores: int,
        is_removed: Callable[[int], bool] = lambda _incarnation: False,
        surroundings: Surroundings = SYSTEM,
    ) -> None:
        """`who`: node, incarnation of the data, boot. `is_removed`: whether an incarnation is not to be heard."""
        node, incarnation, boot = who
        self._surroundings = surroundings
        self._now_ms = surroundings.clock.monotonic_ms
        self._codec = SwimCodec(cluster)
        self._sealer = Sealer(secret, node, incarnation, boot)
        self.strangers = 0
        """Datagrams that were not sealed with the secret, or are no message of this cluster."""
        self._opener = Opener(secret, self._foreign, lambda stamp: is_removed(stamp.incarnation))
        self._links = links
        self._datagrams: Datagrams
        self._again = trio.Event()
        self.on_event: Callable[[MemberEvent], None] = lambda _event: None
        self._swim = Swim(
            NodeId(node),
            NodeInfo(
                address=Address(*options.address), boot_id=surroundings.uuid(), cores=cores, rack=options.rack,
                version=__version__,
            ),
            below=surroundings.chance.randrange,
            update_bytes=self._codec.update_bytes,
            header_bytes=self._codec.header_bytes,
            now_ms=self._now_ms(),
            seeds=[Address(*seed) for seed in options.seeds],
        )  # fmt: skip
        links.serve(EXCHANGE, self._serve_exchange)

    def states(self) -> dict[int, tuple[State, NodeInfo]]:
        """By node, this one too."""
        found = {int(member.node): (member.state, member.info) for member in self._swim.members}
        found[int(self._swim.node)] = (State.ALIVE, self._swim.info)
        return found

    def state_of(self, node: int) -> State | None:
        member = self._swim.members.get(NodeId(node))
        return None if member is None else member.state

    def tell_space(self, *, lacks: bool) -> None:
        """Whether this node's disk is full, from now on."""
        if self._swim.info.lacks_space != lacks:
            self._swim.update_info(replace(self._swim.info, lacks_space=lacks), self._now_ms())
            self._serve()

    def statistics(self) -> SwimStatistics:
        return self._swim.statistics()

    def leave(self) -> None:
        """Say good-bye: others need not suspect a node that is being stopped."""
        self._swim.leave(self._now_ms())
        self._serve()

    @property
    def has_left(self) -> bool:
        return self._swim.has_left

    async def run(self, bound: socket.socket) -> None:
        self._datagrams = self._surroundings.network.datagrams(bound)
        self._serve()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_time)
            while True:
                data, source = await self._datagrams.receive(DATAGRAM_BYTES_MAX)
                self._take(data, source)
                for _more in range(DATAGRAMS_AT_ONCE_MAX):
                    found = self._datagrams.receive_now(DATAGRAM_BYTES_MAX)
                    if found is None:
                        break
                    self._take(*found)
                self._serve()

    def _take(self, data: bytes, source: Any) -> None:
        content = self._opener.open(data)
        if content is None:
            return
        try:
            message = self._codec.decode(content)
        except SwimDecodeError:
            self._foreign()
            return
        self._swim.receive(Address(source[0], source[1]), message, self._now_ms())

    def _foreign(self) -> None:
        self.strangers += 1

    async def _keep_time(self) -> None:
        while True:
            self._again = trio.Event()
            deadline_ms = self._swim.next_deadline_ms()
            if deadline_ms is None:
                await trio.sleep_forever()
            assert deadline_ms is not None
            with trio.move_on_after(max(0, deadline_ms - self._now_ms()) / 1000):
                await self._again.wait()
                continue
            self._swim.on_deadline(self._now_ms())
            self._serve()

    def _serve(self) -> None:
        """Duty 3 of the machine's driver."""
        ready = self._swim.ready()
        for target, message in ready.datagrams:
            sealed = self._sealer.seal(self._codec.encode(message))
            self._datagrams.send(target, sealed, self._links.nursery.start_soon)
        for target in ready.exchanges:
            self._links.nursery.start_soon(self._exchange, target)
        for event in ready.events:
            self.on_event(event)
        self._again.set()

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def _frames(self) -> list[bytes]:
        swim = self._swim
        sender = Sender(swim.node, swim.incarnation, swim.info.boot_id)
        return [frame[4:] for frame in self._codec.encode_state(sender, swim.snapshot(self._now_ms()))]

    async def _exchange(self, target: Address) -> None:
        succeeded = False
        try:
            peer = self._links.peer(SeedAddress(*target))
            _payload, blobs = await peer.call(EXCHANGE, {}, self._frames(), timeout_ms=EXCHANGE_TIMEOUT_MS)
            self._merge(blobs, is_answer=True)
            succeeded = True
        except (MailboxError, SwimDecodeError):
            pass
        self._swim.exchange_ended(self._now_ms(), succeeded=succeeded)
        self._serve()

    async def _serve_exchange(
        self, _hello: Hello, _payload: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], Sequence[bytes]]:
        try:
            self._merge(blobs, is_answer=False)
        except SwimDecodeError as error:
            raise MailboxError(str(error)) from error
        return {}, self._frames()

    def _merge(self, frames: Sequence[bytes], *, is_answer: bool) -> None:
        for data in frames:
            _sender, updates, _is_last = self._codec.decode_state(data)
            self._swim.merge(updates, self._now_ms(), is_answer=is_answer)
        self._serve()
