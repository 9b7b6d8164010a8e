"""Links of one core to cores of other nodes that have replicas of the same partitions.

Core *i* of a node is at the port of its cluster address + *i*. Of each pair of cores both dial, as nodes do, and each
sends its frames on the connection that it has dialled (`links`). Core 0's port is the node's: what comes there for its
partitions is handed over by the node's links, but it dials connections of its own, so that records do not hold up what
the metadata's voters say to each other.

Who proves the secret and is of this cluster is let in. Whether a message is for this replica, of which incarnation, is
decided by the machines: each one names both.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker.cluster import link_codec as codec
from tpc_broker.cluster.link_codec import Hello, LinkDecodeError, Reason
from tpc_broker.cluster.raft_codec import decode_frame, encode_frame
from tpc_broker.errors import CallFailedError, MailboxError, NotDeliveredError
from tpc_broker.limits import MIB
from tpc_broker.node.links.link_errors import LinkRefusedError
from tpc_broker.node.links.links import FrameReader, Handler, Links, Peer, detach
from tpc_broker.node.links.surroundings import SYSTEM, Surroundings
from tpc_broker.node.replicas.steady_carrier import SteadyLink
from tpc_broker.raft.items import Address
from tpc_broker.raft.messages import AppendEntries, Frame
from tpc_broker.rounds import next_round

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator, Mapping

    from tpc_broker.broker.log_limiter import LogLimiter
    from tpc_broker.cluster.founding import SeedAddress
    from tpc_broker.cluster.secret import ClusterSecret
    from tpc_broker.node.links.sealed_links import Handed
    from tpc_broker.raft.items import Item
    from tpc_broker.raft.messages import Message

log = logging.getLogger(__name__)

FRAME_BYTES: Final = 4 * MIB
"""What a turn has for one core leaves in frames of about this size."""
STEADY: Final = "replicas.steady"
BEATS: Final = "beats"
"""Said by who knows heartbeats of machines in frames of the steady state."""
STEADY_RETRY_S: Final = 1.0
STEADY_DIAL_S: Final = 3.0
MESSAGE_BYTES: Final = 128
"""Of one without records, about."""


class ReplicaLinks:
    """Of one core, touched by its thread only."""

    def __init__(
        self,
        address: Address,
        own_hello: Callable[[], Hello],
        secret: ClusterSecret,
        surroundings: Surroundings = SYSTEM,
    ) -> None:
        self._surroundings = surroundings
        self.address = address
        self.on_frame: Callable[[Frame], None] = lambda _frame: None
        self.on_up: Callable[[Address], None] = lambda _address: None
        """Called with a core whose connection is new."""
        self.on_down: Callable[[Address], None] = lambda _address: None
        """Called with a core whose connection has ended."""
        self.on_refused: Callable[[Address], None] = lambda _address: None
        """Called with a core where nobody listens, whenever it is dialled."""
        self.boot_id = 0
        """Of the own core's machine."""
        self.on_steady: Callable[[Handed, SteadyLink], None] = lambda handed, _link: handed.close()
        """Called with a connected socket for the steady state, and who is at its other end. OSError: it stays here."""
        self.has_steady: Callable[[Address], bool] = lambda _address: True
        """Whether there is one to a core already."""
        self.end_steady: Callable[[Address], None] = lambda _address: None
        """Called with a core with which no link is wanted any more."""
        self.check_node: Callable[[Hello], LinkRefusedError | None] = lambda _hello: None
        """Called with a node of the same cluster: whether it has no place in it any more."""
        self._own_hello = own_hello
        self._secret = secret
        self._links = self.another()
        self._links.on_up = self._is_up
        self._links.on_down = self._is_down
        self._links.on_refused = self._is_refused
        self._links.on_replica = self.take
        self.offer_steady(self._links)
        self._peers: dict[Address, Peer] = {}
        self._received_bytes = 0

    @property
    def log_limiter(self) -> LogLimiter:
        return self._links.log_limiter

    def numbers(self) -> dict[str, int]:
        """Links to other cores, and what they carried."""
        counts = self._links.counts
        return {
            "links_wanted": len(self._peers),
            "links_up": sum(peer.is_up for peer in self._peers.values()),
            "links_lost": counts.lost,
            "sent_bytes": counts.raft_sent_bytes,
            "received_bytes": self._received_bytes,
            "frames_dropped": counts.raft_dropped,
        }

    async def run(self, listener: socket.socket | None, task_status: trio.TaskStatus[None]) -> None:
        await self._links.run(listener, task_status)

    def follow(self, wanted: Mapping[Address, SeedAddress]) -> None:
        """Keep links to these cores, where they are by now, and to no others."""
        for address in list(self._peers):
            peer = self._peers[address]
            if wanted.get(address) != peer.address:
                del self._peers[address]
                self._links.peers.pop(peer.address, None)
                peer.close()
                self.end_steady(address)
        for address, place in wanted.items():
            if address not in self._peers:
                self._peers[address] = self._links.peer(place)

    def another(self) -> Links:
        """Links of the same core that only dial: for what must not hold these up."""
        return Links(self._own_hello, self._secret, self._check, self._surroundings)

    def is_up(self, address: Address) -> bool:
        peer = self._peers.get(address)
        return peer is not None and peer.is_up

    def send(self, frame: Frame) -> None:
        """Lost where there is no connection, or no room: frames are sent again by whoever misses their answers."""
        peer = self._peers.get(frame.target)
        if peer is not None and peer.is_up:
            for part in _parts(frame):
                peer.send_replica(encode_frame(part))

    def serve(self, method: str, handler: Handler) -> None:
        """What other cores ask this one, at a port of its own."""
        self._links.serve(method, handler)

    async def ask(self, address: Address, method: str, payload: dict[str, Any]) -> dict[str, Any]:
        """What a core answers. MailboxError."""
        peer = self._peers.get(address)
        if peer is None:
            raise NotDeliveredError(f"core {address.core} of node {address.node} has no replica with this one")
        answer, _blobs = await peer.call(method, payload)
        return answer

    def place_of(self, address: Address) -> SeedAddress | None:
        """Where a core listens; None: there is no link to it."""
        peer = self._peers.get(address)
        return None if peer is None else peer.address

    async def tell(self, address: Address, method: str, payload: dict[str, Any]) -> None:
        """Ask a core for something, once. MailboxError: it may not have heard."""
        peer = self._peers.get(address)
        if peer is not None:
            await peer.call(method, payload)

    def take(self, hello: Hello, body: bytes) -> None:
        """A frame of another core. LinkDecodeError: it is none."""
        own = self._own_hello()
        if not own.cluster or hello.cluster != own.cluster:
            raise LinkDecodeError(f"node {hello.node} is not of this cluster")
        self._received_bytes += len(body)
        frame = decode_frame(body)
        if frame.source != (hello.node, hello.core) or frame.target != self.address:
            raise LinkDecodeError(f"core {hello.core} of node {hello.node} sent a frame of {frame.source} for "
                                  f"{frame.target}")  # fmt: skip
        self.on_frame(frame)

    # -- the steady state --------------------------------------------------------------------------------------------

    def offer_steady(self, links: Links) -> None:
        """Take connections for the steady state that come by these links."""
        links.serve(STEADY, _has_steady)
        links.on_steady = self._answer_steady
        links.on_steady_socket = self._adopt_dialled

    def _answer_steady(self, hello: Hello, body: bytes) -> bytes:
        own = self._own_hello()
        if not hello.replication or not own.cluster or hello.cluster != own.cluster:
            raise LinkDecodeError(f"node {hello.node} has no business with the replicas of this core")
        codec.decode_steady(body)
        return codec.encode_steady(self.boot_id)

    def _adopt_dialled(self, hello: Hello, body: bytes, handed: Handed) -> None:
        address = Address(hello.node, hello.core)
        self._adopt(handed, SteadyLink(address, codec.decode_steady(body), dialled=False, node_boot=hello.boot))

    def _adopt(self, handed: Handed, link: SteadyLink) -> None:
        try:
            self.on_steady(handed, link)
        except OSError as error:
            handed.close()
            text = f"no link for the steady state with core {link.address.core} of node {link.address.node}: {error}"
            self._links.log_limiter.say(log, "no link for the steady state", str(link.address), text)

    async def _keep_steady(self, address: Address, peer: Peer) -> None:
        """As long as a link is up: beside it one for the steady state."""
        hello = peer.hello
        answer: dict[str, Any] = {}
        try:
            answer, _blobs = await peer.call(STEADY, {})
        except CallFailedError:
            return  # an earlier release: its replicas are told everything by the link itself
        except MailboxError as error:
            log.debug("%s was not asked for a link for the steady state: %s", address, error)
        while peer.hello is hello and self._peers.get(address) is peer:
            if not self.has_steady(address):
                try:
                    await self._dial_steady(address, peer, takes_beats=bool(answer.get(BEATS)))
                except (OSError, trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError,
                        trio.EndOfChannel, LinkRefusedError, LinkDecodeError) as error:  # fmt: skip
                    log.debug("no link for the steady state to %s: %s", address, error)
            await next_round(STEADY_RETRY_S)

    async def _dial_steady(self, address: Address, peer: Peer, *, takes_beats: bool) -> None:
        with trio.fail_after(STEADY_DIAL_S):
            stream = await self._links.dial(peer.address)
            try:
                reader = FrameReader(stream, self._links.counts)
                hello = await self._links.greet(stream, reader)
                if (hello.node, hello.core) != address:
                    raise LinkDecodeError(f"core {hello.core} of node {hello.node} is not {address}")
                reader.reads_ahead = False  # the other end's C may speak at once, to this one's
                await stream.send_all(codec.encode_steady(self.boot_id))
                boot_id = codec.decode_steady(await reader.expect(codec.Kind.STEADY))
                link = SteadyLink(address, boot_id, dialled=True, node_boot=hello.boot, takes_beats=takes_beats)
                self._adopt(detach(stream, reader), link)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)

    def _check(self, hello: Hello) -> LinkRefusedError | None:
        own = self._own_hello()
        if hello.cluster != own.cluster:
            other = hello.cluster or "none yet"
            text = f"node {own.node} is of cluster {own.cluster}, and node {hello.node} of {other}"
            return LinkRefusedError(Reason.CLUSTER, text, by_peer=False)
        if hello.node == own.node:
            text = f"core {own.core} of node {own.node} was dialled by a node with its own id"
            return LinkRefusedError(Reason.NODE_ID, text, by_peer=False)
        return self.check_node(hello)

    def _address_of(self, peer: Peer) -> Address | None:
        return next((address for address, each in self._peers.items() if each is peer), None)

    def _is_refused(self, peer: Peer) -> None:
        address = self._address_of(peer)
        if address is not None:
            self.on_refused(address)

    def _is_down(self, peer: Peer, _hello: Hello) -> None:
        address = self._address_of(peer)
        if address is not None:
            self.on_down(address)

    def _is_up(self, peer: Peer) -> None:
        hello = peer.hello
        assert hello is not None
        address = self._address_of(peer)
        if address is None:
            return
        if (hello.node, hello.core) != address:
            text = (
                f"{peer.address} is core {hello.core} of node {hello.node}, "
                f"not core {address.core} of node {address.node}"
            )
            self._links.log_limiter.say(log, "another core or node", str(peer.address), text)
            peer.reconnect()
            return
        self.on_up(address)
        self._links.nursery.start_soon(self._keep_steady, address, peer)


async def _has_steady(
    _hello: Hello, _payload: dict[str, Any], _blobs: list[bytes]
) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Whoever can be asked takes connections for the steady state; what else it knows of them."""
    return {BEATS: True}, ()


def _parts(frame: Frame) -> Iterator[Frame]:
    """A frame, in parts that fit: its messages may be separated (`raft`)."""
    messages: list[Message] = []
    size = 0
    for message in frame.messages:
        length = MESSAGE_BYTES
        if isinstance(message, AppendEntries):
            length += sum(map(_item_bytes, message.items))
        if messages and size + length > FRAME_BYTES:
            yield frame._replace(messages=tuple(messages))
            messages, size = [], 0
        messages.append(message)
        size += length
    yield frame._replace(messages=tuple(messages))


def _item_bytes(item: Item) -> int:
    return getattr(item, "length", MESSAGE_BYTES)
