"""Links: connections to the other nodes, and from them.

Each node dials every other one that it knows of and sends its frames and requests there; answers come back on the same
connection. So a pair has two connections, one each way, and an end that is slow to read holds up one direction only.

Greeting (`cluster.secret`): challenge and challenge, proof of the dialler, proof of the acceptor, then a hello from
each, which may be refused with a reason. Until the proof of the other side a connection gets 4 KiB frames, two
seconds, and a place that it may lose to others (`greeting_places`).

Nothing waits for room: a request above the bound is refused at once, a frame of replication that finds the queue full
is lost, which `raft` expects of links. What is above `LINK_REQUESTS_MAX` from one node is refused, and not left unread:
frames of replication behind it may be what those requests wait for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from tpc_broker import limits
from tpc_broker.broker.log_limiter import LogLimiter
from tpc_broker.cluster import link_codec as codec
from tpc_broker.cluster.link_codec import Hello, Kind, LinkDecodeError, Reason
from tpc_broker.cluster.secret import NONCE_BYTES
from tpc_broker.errors import CallFailedError, CoreDownError, MailboxError, MailboxFullError, NotDeliveredError
from tpc_broker.node.links.greeting_places import GreetingPlaces
from tpc_broker.node.links.link_errors import LinkRefusedError
from tpc_broker.node.links.part_buffers import PREFIX_BYTES, PartBuffers
from tpc_broker.node.links.sealed_links import Handed, SealedStream, socket_of
from tpc_broker.node.links.surroundings import SYSTEM, Surroundings

if TYPE_CHECKING:
    import socket

    from tpc_broker.cluster.founding import SeedAddress
    from tpc_broker.cluster.secret import ClusterSecret
    from tpc_broker.native_bytes import Buffer

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 1.0
GREETING_TIMEOUT_S: Final = 2.0
BACK_OFF_S_MIN: Final = 0.05
BACK_OFF_S_MAX: Final = 1.0
CALL_TIMEOUT_MS: Final = 5_000
SILENCE_S_MAX: Final = 5.0
"""Heartbeats of replication come every two seconds or more often, as soon as a node is in a cluster, and questions
before that.
"""
READ_BYTES: Final = 1 << 16
LARGE_READ_BYTES: Final = 1 << 20
SEND_BYTES: Final = 1 << 18
"""Of small frames in one call."""
PART_BYTES_MAX: Final = codec.PART_PREFIX_BYTES + limits.SHIPPED_CHUNK_BYTES
MALFORMED: Final = "malformed"
REFUSAL_REASONS: Final = (*(reason.value for reason in Reason), MALFORMED)


class FilePart(NamedTuple):
    """An answer that is bytes of a file, and nothing else: they are not copied into a message."""

    data: Buffer
    sent: Callable[[], None] = lambda: None
    """Called when they are not needed any more; perhaps never, when the connection ends."""


Handler = Callable[
    [Hello, dict[str, Any], list[bytes]], Awaitable[tuple[dict[str, Any], Sequence[bytes]] | FilePart | None]
]


@dataclass(slots=True)
class LinkCounts:
    """Of all links of a node since its core began, both directions. Bytes are those of whole frames."""

    opened: int = 0
    """Dialled, and greeted at both ends."""
    lost: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    raft_sent_bytes: int = 0
    raft_received_bytes: int = 0
    raft_dropped: int = 0
    """Frames of replication that found no room, or a connection that has just ended."""
    requests: int = 0
    requests_failed: int = 0
    """Refused here or there, not answered in time, or answered with an error."""
    requests_served: int = 0
    requests_refused: int = 0
    """Of other nodes: too many under way."""
    refused_incoming: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSAL_REASONS, 0))
    refused_outgoing: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REFUSAL_REASONS, 0))

    def refuse(self, reason: Reason | None, *, is_incoming: bool) -> None:
        """None: what came was no frame of a link, or told a reason that this release does not know."""
        counted = self.refused_incoming if is_incoming else self.refused_outgoing
        counted[MALFORMED if reason is None else reason.value] += 1


@dataclass(slots=True)
class _PendingCall:
    done: trio.Event = field(default_factory=trio.Event)
    answer: codec.Answer | None = None
    error: MailboxError | None = None


class _Outbox:
    """What waits to be sent on one connection."""

    def __init__(self, counts: LinkCounts) -> None:
        self._parts: deque[tuple[Buffer, Callable[[], None] | None]] = deque()
        self._bytes = 0
        self._counts = counts
        self._filled = trio.Event()

    @property
    def queued_bytes(self) -> int:
        return self._bytes

    def put(self, data: bytes, behind: FilePart | None = None) -> bool:
        """A frame, whose last bytes may be apart."""
        size = len(data) + (len(behind.data) if behind is not None else 0)
        if self._bytes + size > limits.LINK_QUEUE_BYTES_MAX:
            return False
        self._parts.append((data, None))
        if behind is not None:
            self._parts.append(behind)
        self._bytes += size
        self._filled.set()
        return True

    async def send_to(self, stream: trio.abc.SendStream) -> None:
        while True:
            await self._filled.wait()
            self._filled = trio.Event()
            while self._parts:
                parts = [self._parts.popleft()]
                size = len(parts[0][0])
                while self._parts and size + len(self._parts[0][0]) <= SEND_BYTES:
                    parts.append(self._parts.popleft())
                    size += len(parts[-1][0])
                await stream.send_all(b"".join(data for data, _sent in parts) if len(parts) > 1 else parts[0][0])
                for _data, sent in parts:
                    if sent is not None:
                        sent()
                self._bytes -= size
                self._counts.sent_bytes += size


class FrameReader:
    """Frames of a stream, whose length is checked before memory is taken."""

    def __init__(
        self, stream: trio.abc.ReceiveStream, counts: LinkCounts, parts: PartBuffers | None = None
    ) -> None:
        """`parts`: where parts of files are put; whoever gets one gives it back."""
        self._stream = stream
        self._counts = counts
        self._parts = parts
        self._buffer = bytearray()
        self.reads_ahead = True
        """False: what is behind the next frame stays in the stream."""
        self.is_known = False

    @property
    def is_empty(self) -> bool:
        """All that has arrived was read."""
        return not self._buffer

    async def read(self) -> tuple[Kind, bytes]:
        """trio.EndOfChannel at the end of the stream."""
        kind, length = await self._header()
        return kind, await self._take(length)

    async def read_answer(self) -> codec.Answer:
        """The next frame, which is an answer. The same errors; LinkDecodeError, LinkRefusedError."""
        kind, length = await self._header()
        if kind is Kind.PART and self._parts is not None and READ_BYTES < length <= PART_BYTES_MAX:
            body = self._parts.take()[PREFIX_BYTES - codec.PART_PREFIX_BYTES :][:length]
            await self._take_into(body)
            return codec.decode_part(body)
        data = self._expected(kind, await self._take(length), (Kind.ANSWER, Kind.PART))
        return codec.decode_part(data) if kind is Kind.PART else codec.decode_answer(data)

    async def _header(self) -> tuple[Kind, int]:
        return codec.check_header(await self._take(codec.HEADER.size), is_known=self.is_known)

    async def expect(self, wanted: Kind) -> bytes:
        return (await self.expect_any(wanted))[1]

    async def expect_any(self, *wanted: Kind) -> tuple[Kind, bytes]:
        kind, body = await self.read()
        return kind, self._expected(kind, body, wanted)

    def _expected(self, kind: Kind, body: bytes, wanted: tuple[Kind, ...]) -> bytes:
        if kind is Kind.REFUSED:
            reason, text = codec.decode_refused(body)
            raise LinkRefusedError(reason, text, by_peer=True, is_proven=self.is_known)
        if kind not in wanted:
            raise LinkDecodeError(f"a frame of kind {kind.name} in place of {wanted[0].name}")
        return body

    async def _take(self, count: int) -> bytes:
        if count > READ_BYTES:
            return await self._take_large(count)
        while len(self._buffer) < count:
            data = await self._stream.receive_some(READ_BYTES if self.reads_ahead else count - len(self._buffer))
            if not data:
                raise trio.EndOfChannel
            self._buffer += data
            self._counts.received_bytes += len(data)
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    async def _take_large(self, count: int) -> bytes:
        """Each byte is copied once; nothing behind it is read."""
        parts = [bytes(self._buffer[:count])]
        del self._buffer[:count]
        missing = count - len(parts[0])
        while missing:
            data = await self._stream.receive_some(min(missing, LARGE_READ_BYTES))
            if not data:
                raise trio.EndOfChannel
            parts.append(bytes(data))
            missing -= len(data)
            self._counts.received_bytes += len(data)
        return b"".join(parts)

    async def _take_into(self, view: memoryview) -> None:
        """The same, into memory that is there."""
        done = min(len(self._buffer), len(view))
        view[:done] = self._buffer[:done]
        del self._buffer[:done]
        while done < len(view):
            count = await self._receive_into(view[done : done + LARGE_READ_BYTES])
            if not count:
                raise trio.EndOfChannel
            done += count
            self._counts.received_bytes += count

    async def _receive_into(self, view: memoryview) -> int:
        if isinstance(self._stream, trio.SocketStream):
            return await self._stream.socket.recv_into(view)
        data = await self._stream.receive_some(len(view))
        view[: len(data)] = data
        return len(data)


class Peer:
    """The dialled connection to one other node, kept up, and the calls under way on it."""

    def __init__(self, owner: Links, address: SeedAddress) -> None:
        self.owner = owner
        self.address = address
        self.hello: Hello | None = None
        """Of the other end, while the connection is up."""
        self.refused: LinkRefusedError | None = None
        """Why the last connection ended, where it was refused."""
        self._outbox: _Outbox | None = None
        self._pending: dict[int, _PendingCall] = {}
        self._next_id = 1
        self._connection: trio.CancelScope | None = None
        self._life = trio.CancelScope()

    @property
    def is_up(self) -> bool:
        return self._outbox is not None

    @property
    def queued_bytes(self) -> int:
        return 0 if self._outbox is None else self._outbox.queued_bytes

    def send_raft(self, body: bytes) -> None:
        """Lost where there is no connection or no room."""
        self._put(Kind.RAFT, body)

    def send_replica(self, body: bytes) -> None:
        """The same, of partitions."""
        self._put(Kind.REPLICA, body)

    def _put(self, kind: Kind, body: bytes) -> None:
        data, counts = codec.frame(kind, body), self.owner.counts
        if self._outbox is not None and self._outbox.put(data):
            counts.raft_sent_bytes += len(data)
        else:
            counts.raft_dropped += 1

    async def call(
        self, method: str, payload: dict[str, Any], blobs: Sequence[bytes] = (), *, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> tuple[dict[str, Any], list[Any]]:
        """What is answered: a payload, and bytes, or a part of a file, which may lie in `Links.parts`.

        NotDeliveredError: it never got there; CoreDownError: not known; CallFailedError: its handler raised.
        """
        self.owner.counts.requests += 1
        try:
            return await self._call(method, payload, blobs, timeout_ms)
        except MailboxError:
            self.owner.counts.requests_failed += 1
            raise

    async def _call(
        self, method: str, payload: dict[str, Any], blobs: Sequence[bytes], timeout_ms: int
    ) -> tuple[dict[str, Any], list[Any]]:
        if self._outbox is None:
            raise NotDeliveredError(f"there is no link to {self.address}")
        if len(self._pending) >= limits.LINK_REQUESTS_MAX:
            raise MailboxFullError(f"{limits.LINK_REQUESTS_MAX} requests to {self.address} are under way already")
        pending, call_id = _PendingCall(), self._next_id
        self._next_id += 1
        if not self._outbox.put(codec.encode_request(call_id, method, payload, blobs)):
            raise MailboxFullError(f"the link to {self.address} is full")
        self._pending[call_id] = pending
        try:
            with trio.move_on_after(timeout_ms / 1000):
                await pending.done.wait()
        finally:
            self._pending.pop(call_id, None)
        if pending.error is not None:
            raise pending.error
        if pending.answer is None:
            raise CoreDownError(f"{self.address} did not answer {method} in {timeout_ms} ms")
        return pending.answer.payload, pending.answer.blobs

    def reconnect(self) -> None:
        """End the connection; another one begins, with another hello."""
        if self._connection is not None:
            self._connection.cancel()

    def close(self) -> None:
        self._life.cancel()

    async def run(self) -> None:
        delay_s = BACK_OFF_S_MIN
        with self._life:
            while True:
                if await self._live_once():
                    delay_s = BACK_OFF_S_MIN
                await trio.sleep(delay_s)
                delay_s = min(2 * delay_s, BACK_OFF_S_MAX)

    async def _live_once(self) -> bool:
        """One connection, from dialling to its end; whether it was up, and ended without a refusal."""
        was_up, was_refused = False, False
        self._connection = trio.CancelScope()
        with self._connection:
            try:
                with trio.fail_after(CONNECT_TIMEOUT_S):
                    stream = await self.owner.dial(self.address)
            except (OSError, trio.TooSlowError) as error:
                if _is_refused(error):
                    self.owner.on_refused(self)
                return False
            try:
                reader = FrameReader(stream, self.owner.counts, self.owner.parts)
                with trio.fail_after(GREETING_TIMEOUT_S):
                    hello = await self.owner.greet(stream, reader)
                self.owner.places.note_known(_address_of(stream))
                self.refused = None
                was_up = True
                if isinstance(stream, SealedStream) and not stream.is_sealed:
                    text = f"link to {self.address}: it is not encrypted, since the other end does not encrypt"
                    self.owner.log_limiter.say(log, "not encrypted", str(self.address), text)
                await self._serve(stream, reader, hello)
            except* (LinkRefusedError, LinkDecodeError) as group:
                was_refused = True
                self._ended_by(group.exceptions[0])
            except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel, trio.TooSlowError):
                pass
            finally:
                self._lost(was_up=was_up)
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)
        return was_up and not was_refused

    def _ended_by(self, error: Exception) -> None:
        """A refusal, or what is no frame of a link."""
        if isinstance(error, LinkRefusedError):
            self.refused = error
        self.owner.counts.refuse(error.reason if isinstance(error, LinkRefusedError) else None, is_incoming=False)
        self._complain(error)

    def _complain(self, error: Exception) -> None:
        self.owner.log_limiter.say(log, "link to", str(self.address), f"link to {self.address}: {error}")

    async def _serve(self, stream: trio.SocketStream, reader: FrameReader, hello: Hello) -> None:
        self.hello, self._outbox = hello, _Outbox(self.owner.counts)
        self.owner.counts.opened += 1
        self.owner.on_up(self)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._outbox.send_to, stream)
            while True:
                self._answered(await reader.read_answer())

    def _answered(self, answer: codec.Answer) -> None:
        pending = self._pending.get(answer.id)
        if pending is not None:
            pending.answer = answer
            if answer.error:
                pending.error = CallFailedError(f"{self.address}: {answer.error}")
            pending.done.set()

    def _lost(self, *, was_up: bool) -> None:
        hello, self.hello, self._outbox = self.hello, None, None
        for pending in self._pending.values():
            pending.error = CoreDownError(f"the link to {self.address} ended")
            pending.done.set()
        self._pending.clear()
        if was_up and hello is not None:
            self.owner.counts.lost += 1
            self.owner.on_down(self, hello)


def _is_refused(error: BaseException) -> bool:
    """Whether every address of a name has refused the connection."""
    causes = error.__cause__.exceptions if isinstance(error.__cause__, ExceptionGroup) else ()
    return bool(causes) and all(isinstance(cause, ConnectionRefusedError) for cause in causes)


class Links:
    """All links of a node."""

    def __init__(
        self,
        own_hello: Callable[[], Hello],
        secret: ClusterSecret,
        check: Callable[[Hello], LinkRefusedError | None],
        surroundings: Surroundings = SYSTEM,
    ) -> None:
        self._surroundings = surroundings
        self._own_hello = own_hello
        self._secret = secret
        self._check = check
        self.peers: dict[SeedAddress, Peer] = {}
        self._handlers: dict[str, Handler] = {}
        self.places = GreetingPlaces(lambda host: any(address.host == host for address in self.peers))
        self.log_limiter = LogLimiter(trio.current_time)
        self.incoming: dict[int, Hello] = {}
        """Nodes that have a connection to this one, by the number of the connection."""
        self._next_incoming = 0
        self.on_up: Callable[[Peer], None] = lambda _peer: None
        self.on_refused: Callable[[Peer], None] = lambda _peer: None
        """Called whenever nobody listens where a peer was dialled."""
        self.on_down: Callable[[Peer, Hello], None] = lambda _peer, _hello: None
        """Called when a link that was up has ended, with what its other end was."""
        self.on_raft: Callable[[Hello, bytes], None] = lambda _hello, _body: None
        self.on_replica: Callable[[Hello, bytes], None] = lambda _hello, _body: None
        self.on_steady: Callable[[Hello, bytes], bytes] | None = None
        """What is answered to who wants to make the connection one for the steady state. LinkDecodeError: nothing."""
        self.on_steady_socket: Callable[[Hello, bytes, Handed], None] = lambda _hello, _body, _handed: None
        """Called with the connected socket then, which is the callee's."""
        self.counts = LinkCounts()
        self.parts = PartBuffers()
        """Memory for parts of files that are answers."""
        self.nursery: trio.Nursery

    def serve(self, method: str, handler: Handler) -> None:
        assert method not in self._handlers, method
        self._handlers[method] = handler

    def peer(self, address: SeedAddress) -> Peer:
        """The link to that address, which from now on is kept up."""
        found = self.peers.get(address)
        if found is None:
            found = self.peers[address] = Peer(self, address)
            self.nursery.start_soon(found.run)
        return found

    def heard(self) -> set[int]:
        """Nodes that a link is up to."""
        return {peer.hello.node for peer in self.peers.values() if peer.hello is not None}

    def peer_of(self, node: int) -> Peer | None:
        """The link to a node that is up."""
        return next((peer for peer in self.peers.values() if peer.hello is not None and peer.hello.node == node), None)

    async def call(self, node: int, method: str, payload: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """Whatever a node answers. MailboxError."""
        peer = self.peer_of(node)
        if peer is None:
            raise NotDeliveredError(f"there is no link to node {node}")
        return await peer.call(method, payload)

    async def tell(self, node: int, method: str, payload: dict[str, Any]) -> None:
        """The same, whether it arrives or not."""
        try:
            await self.call(node, method, payload)
        except MailboxError as error:
            log.debug("%s was not told to node %d: %s", method, node, error)

    async def run(
        self, listener: socket.socket | None, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """`listener`: None where others listen for what it dials."""
        async with trio.open_nursery() as self.nursery:
            task_status.started()
            if listener is None:
                await trio.sleep_forever()
            assert listener is not None
            accepting = self._surroundings.network.accepting(listener)
            while True:
                try:
                    stream = await accepting.accept()
                except OSError:
                    await trio.sleep(BACK_OFF_S_MIN)
                    continue
                self.nursery.start_soon(self._serve_connection, stream)

    async def dial(self, address: SeedAddress) -> trio.SocketStream:
        """A new connection. OSError."""
        return await self._surroundings.network.dial(address.host, address.port)

    def _nonce(self) -> bytes:
        return self._surroundings.chance.randbytes(NONCE_BYTES)

    # -- greeting ----------------------------------------------------------------------------------------------------

    async def greet(self, stream: trio.abc.Stream, reader: FrameReader) -> Hello:
        """As the one who dialled. LinkRefusedError, LinkDecodeError."""
        nonce = self._nonce()
        await stream.send_all(codec.encode_challenge(nonce))
        theirs = codec.decode_challenge(await reader.expect(Kind.CHALLENGE))
        await stream.send_all(codec.encode_proof(self._secret.proof(nonce, theirs, of_dialler=True)))
        mac = codec.decode_proof(await reader.expect(Kind.PROOF))
        if self._secret.proven_by(mac, nonce, theirs, of_dialler=False) is None:
            raise LinkRefusedError(Reason.SECRET, "the other end has another cluster secret", by_peer=False)
        reader.is_known = True
        await stream.send_all(codec.encode_hello(self._own_hello()))
        return await self._checked(stream, codec.decode_hello(await reader.expect(Kind.HELLO)))

    async def _welcome(self, stream: trio.abc.Stream, reader: FrameReader) -> Hello:
        """As the one who was dialled."""
        theirs = codec.decode_challenge(await reader.expect(Kind.CHALLENGE))
        nonce = self._nonce()
        await stream.send_all(codec.encode_challenge(nonce))
        mac = codec.decode_proof(await reader.expect(Kind.PROOF))
        secret = self._secret.proven_by(mac, theirs, nonce, of_dialler=True)
        if secret is None:
            text = "the cluster secret is another one here"
            await stream.send_all(codec.encode_refused(Reason.SECRET, text))
            raise LinkRefusedError(Reason.SECRET, "another cluster secret", by_peer=False)
        await stream.send_all(codec.encode_proof(secret.proof(theirs, nonce, of_dialler=False)))
        reader.is_known = True
        hello = codec.decode_hello(await reader.expect(Kind.HELLO))
        await self._checked(stream, hello)
        await stream.send_all(codec.encode_hello(self._own_hello()))
        return hello

    async def _checked(self, stream: trio.abc.Stream, hello: Hello) -> Hello:
        refused = self._check(hello)
        if refused is not None:
            with suppress(trio.BrokenResourceError):
                await stream.send_all(codec.encode_refused(refused.reason or Reason.CLUSTER, str(refused)))
            raise refused
        return hello

    # -- connections of others ---------------------------------------------------------------------------------------

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        number = self._next_incoming
        self._next_incoming += 1
        peer = "?"
        try:
            peer = _address_of(stream)
            reader = FrameReader(stream, self.counts)
            hello = await self._greeted(stream, reader, peer)
            if hello is None:
                return
            if not hello.replication:
                self.incoming[number] = hello
            wanted = await self._serve_node(stream, reader, hello)
            await self._give_away(stream, reader, hello, wanted)
        except* (LinkRefusedError, LinkDecodeError) as group:
            error = group.exceptions[0]
            self.counts.refuse(error.reason if isinstance(error, LinkRefusedError) else None, is_incoming=True)
            self._complain(peer, error)
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel, trio.TooSlowError):
            pass
        finally:
            self.incoming.pop(number, None)
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _greeted(self, stream: trio.SocketStream, reader: FrameReader, peer: str) -> Hello | None:
        """None: it has no place, or has lost it to another one."""
        greeting = self.places.take(peer)
        if greeting is None:
            return None
        hello = None
        try:
            with greeting.scope, trio.fail_after(GREETING_TIMEOUT_S):
                hello = await self._welcome(stream, reader)
                self.places.note_known(peer)
        finally:
            self.places.give_back(greeting)
        return hello

    def _complain(self, peer: str, error: Exception) -> None:
        """One line a host and reason in a minute, whoever knocks."""
        reason = error.reason if isinstance(error, LinkRefusedError) else ""
        self.log_limiter.say(log, f"link from: {reason}", peer, f"link from {peer}: {error}")

    async def _serve_node(self, stream: trio.SocketStream, reader: FrameReader, hello: Hello) -> bytes:
        """Until it ends, or is to be one for the steady state: what was said then."""
        outbox, under_way = _Outbox(self.counts), [0]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.send_to, stream)
            while True:
                with trio.fail_after(SILENCE_S_MAX):
                    kind, body = await reader.read()
                if kind is Kind.RAFT:
                    self.counts.raft_received_bytes += codec.HEADER.size + len(body)
                    self.on_raft(hello, body)
                elif kind is Kind.REPLICA:
                    self.counts.raft_received_bytes += codec.HEADER.size + len(body)
                    self.on_replica(hello, body)
                elif kind is Kind.STEADY:
                    nursery.cancel_scope.cancel()
                    return body
                elif kind is Kind.REQUEST:
                    nursery.start_soon(self._serve_request, outbox, hello, codec.decode_request(body), under_way)
                else:
                    raise LinkDecodeError(f"a frame of kind {kind.name} from node {hello.node}")

    async def _give_away(self, stream: trio.SocketStream, reader: FrameReader, hello: Hello, body: bytes) -> None:
        if self.on_steady is None:
            raise LinkDecodeError(f"node {hello.node} has no business with the replicas of this core")
        answer = self.on_steady(hello, body)
        await stream.send_all(answer)
        self.on_steady_socket(hello, body, detach(stream, reader))

    async def _serve_request(self, outbox: _Outbox, hello: Hello, request: codec.Request, under_way: list[int]) -> None:
        if under_way[0] >= limits.LINK_REQUESTS_MAX:
            self.counts.requests_refused += 1
            outbox.put(codec.encode_answer(request.id, {}, error=f"{under_way[0]} requests are under way already"))
            return
        under_way[0] += 1
        self.counts.requests_served += 1
        try:
            handler = self._handlers.get(request.method, _serve_unknown)
            found = await handler(hello, request.payload, request.blobs)
            if isinstance(found, FilePart):
                outbox.put(codec.part_header(request.id, len(found.data)), found)
                return
            payload, blobs = found or ({}, ())
            answer = codec.encode_answer(request.id, payload, blobs)
        except MailboxError as error:
            answer = codec.encode_answer(request.id, {}, error=str(error))
        except Exception as error:  # the one who asked is told; the log has the traceback
            log.exception("link: %s from node %d failed", request.method, hello.node)
            answer = codec.encode_answer(request.id, {}, error=f"{type(error).__name__}: {error}")
        finally:
            under_way[0] -= 1
        outbox.put(answer)


def _address_of(stream: trio.SocketStream) -> str:
    """Of the other end."""
    return str(stream.socket.getpeername()[0])


def detach(stream: trio.SocketStream | SealedStream, reader: FrameReader) -> Handed:
    """The socket of a stream, as the ring wants it. Nothing more is read or written here."""
    handed = stream.hand_over() if isinstance(stream, SealedStream) else Handed(socket_of(stream))
    if not reader.is_empty or (handed.unread and handed.session is None):
        handed.close()
        raise LinkDecodeError("bytes behind the last frame")
    return handed


async def _serve_unknown(_hello: Hello, _payload: dict[str, Any], _blobs: list[bytes]) -> None:
    raise MailboxError("this node does not know what was asked")
