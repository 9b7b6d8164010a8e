"""Links under TLS by the cluster's secret: who gets in, what is seen on the wire, and releases that know no TLS."""

from __future__ import annotations

import itertools
import socket
from contextlib import asynccontextmanager, suppress
from random import Random
from types import SimpleNamespace

import pytest
import trio

from tests.support.waiting import PATIENCE_S
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.cluster.link_codec import Hello, Reason, encode_steady
from tpc_broker.cluster.secret import ClusterSecret
from tpc_broker.engine.tls import is_built
from tpc_broker.errors import MailboxError
from tpc_broker.model import CoreId, NodeId
from tpc_broker.node.links.links import FilePart, FrameReader, LinkCounts, Links, detach
from tpc_broker.node.links.sealed_links import (
    AUTO,
    HANDSHAKE_BYTE,
    NOT_ENCRYPTED,
    OFF,
    REQUIRED,
    LinkContexts,
    SealedStream,
    link_keys,
    sealed,
)
from tpc_broker.node.links.surroundings import SYSTEM

pytestmark = pytest.mark.skipif(not is_built(), reason="built without OpenSSL")
OLD, NEW = b"an old secret that many know", b"a new secret that few know!!"
SAID = b"what nobody else is to read " * 400


def links_of(node, keys, policy):
    secret = ClusterSecret(keys)
    hello = Hello("cluster", NodeId(node), 1, 1, CoreId(0), "127.0.0.1", 1, "0")
    return Links(lambda: hello, secret, lambda _hello: None, sealed(SYSTEM, secret, policy))


class Wire:
    """Stands between two nodes: keeps what passes, and changes it if it is told to."""

    def __init__(self, port):
        self.seen, self.port = {"there": b"", "back": b""}, port
        self.change = lambda _way, data: data
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = SeedAddress("127.0.0.1", self.server.getsockname()[1])

    async def run(self):
        with self.server:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(self.server))
            await trio.serve_listeners(self._carry, [listener])

    async def _carry(self, near):
        far = await trio.open_tcp_stream("127.0.0.1", self.port)
        async with near, far, trio.open_nursery() as nursery:
            nursery.start_soon(self._one_way, "there", near, far, nursery.cancel_scope)
            nursery.start_soon(self._one_way, "back", far, near, nursery.cancel_scope)

    async def _one_way(self, way, source, target, scope):
        try:
            while data := await source.receive_some(1 << 16):
                self.seen[way] += data
                await target.send_all(self.change(way, bytes(data)))
        except trio.BrokenResourceError:
            pass
        scope.cancel()


@asynccontextmanager
async def two_nodes(dialler, acceptor):
    """`dialler` and `acceptor`: (keys, policy). The peer of the first, and the wire between them."""

    async def give(_hello, payload, blobs):
        if payload.get("is_part"):
            return FilePart(SAID * payload["is_part"])
        return {"got": len(blobs[0])}, (blobs[0][::-1],)

    one, other = links_of(1, *dialler), links_of(2, *acceptor)
    other.serve("give", give)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        wire = Wire(listening.getsockname()[1])
        async with trio.open_nursery() as nursery:
            await nursery.start(one.run, None)
            await nursery.start(other.run, listening)
            nursery.start_soon(wire.run)
            yield one.peer(wire.address), wire, other
            nursery.cancel_scope.cancel()


async def until(condition):
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.01)


@pytest.mark.parametrize(
    ("dialler", "acceptor", "is_plain"),
    [
        pytest.param(((OLD,), AUTO), ((OLD,), AUTO), False, id="both"),
        pytest.param(((OLD,), REQUIRED), ((OLD,), REQUIRED), False, id="both required"),
        pytest.param(((OLD,), AUTO), ((OLD,), OFF), True, id="to an earlier release"),
        pytest.param(((OLD,), OFF), ((OLD,), AUTO), True, id="from an earlier release"),
        pytest.param(((OLD, NEW), AUTO), ((OLD,), AUTO), False, id="the acceptor does not know the new secret"),
        pytest.param(((NEW, OLD), AUTO), ((OLD, NEW), AUTO), False, id="the dialler shows the new secret"),
        pytest.param(((NEW,), AUTO), ((NEW, OLD), AUTO), False, id="the old secret goes"),
    ],
)
def test_nodes_with_a_secret_in_common_talk(dialler, acceptor, is_plain):
    async def talk():
        async with two_nodes(dialler, acceptor) as (peer, wire, _other):
            await until(lambda: peer.is_up)
            for size in (0, 1, 100_000):
                payload, blobs = await peer.call("give", {}, (SAID[:1] * size,), timeout_ms=60_000)
                assert (payload, [bytes(each) for each in blobs]) == ({"got": size}, [SAID[:1] * size])
            for times in (1, 300):  # below and above what is received at once
                _payload, (part,) = await peer.call("give", {"is_part": times}, timeout_ms=60_000)
                assert bytes(part) == SAID * times
            is_seen = [SAID[:40] in wire.seen["back"], b"give" in wire.seen["there"]]
            assert is_seen == [is_plain, is_plain]

    trio.run(talk)


@pytest.mark.parametrize(
    ("dialler", "acceptor", "reason", "text"),
    [
        pytest.param(((OLD,), AUTO), ((NEW,), AUTO), Reason.SECRET, "another cluster secret", id="another secret"),
        pytest.param(((NEW, OLD), AUTO), ((OLD,), AUTO), Reason.SECRET, "another cluster secret", id="shown too early"),
        pytest.param(((OLD,), REQUIRED), ((NEW,), REQUIRED), Reason.SECRET, "another cluster secret", id="required"),
    ],
)
def test_who_cannot_prove_it_is_refused(dialler, acceptor, reason, text):
    async def talk():
        async with two_nodes(dialler, acceptor) as (peer, _wire, other):
            await until(lambda: peer.refused is not None)
            assert peer.refused.reason is reason
            assert text in str(peer.refused)
            assert (peer.is_up, other.incoming) == (False, {})

    trio.run(talk)


def test_a_plain_acceptor_is_never_spoken_to_where_encryption_is_required(caplog):
    """It may be a core that has just ended, so it is no refusal: it is asked again, and the log says what it may be."""

    async def talk():
        async with two_nodes(((OLD,), REQUIRED), ((OLD,), OFF)) as (peer, wire, other):
            await until(lambda: other.counts.refused_incoming["malformed"] > 3)
            assert (peer.is_up, peer.refused, other.incoming) == (False, None, {})
            assert b"give" not in wire.seen["there"]
            assert wire.seen["back"] == b""

    trio.run(talk)
    assert [NOT_ENCRYPTED in each for each in caplog.messages if "was to be encrypted" in each] == [True]


def test_who_ends_once_without_a_word_is_asked_for_tls_again():
    async def talk():
        contexts = LinkContexts(ClusterSecret((OLD,)), is_required=False)
        listening = socket.create_server(("127.0.0.1", 0))
        address = listening.getsockname()
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        first_bytes = []

        async def end_at_once(stream):
            first_bytes.append(bytes(await stream.receive_some(1)))

        async def dial():
            return await trio.open_tcp_stream(*address)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, end_at_once, [listener])
            for _ in range(3):
                async with SealedStream(await dial(), contexts, dial, address) as stream:
                    with suppress(trio.BrokenResourceError):
                        await stream.send_all(b"a frame")
            await until(lambda: len(first_bytes) == 4)
            nursery.cancel_scope.cancel()
        assert first_bytes == [bytes([HANDSHAKE_BYTE])] * 3 + [b"a"]

    trio.run(talk)


def test_who_has_encrypted_is_long_asked_for_tls_and_who_ends_in_the_middle_is_not_silent():
    async def talk():
        contexts = LinkContexts(ClusterSecret((OLD,)), is_required=False)
        here, there = ("127.0.0.1", 1), ("127.0.0.1", 2)
        contexts.note_answer(here, is_silent=False)
        silent = [contexts.note_answer(here, is_silent=True) for _ in range(60)]
        assert silent == [False] * 59 + [True]
        near, far = trio.testing.memory_stream_pair()

        async def end_in_the_middle():
            await far.receive_some(1 << 16)
            await far.send_all(bytes([HANDSHAKE_BYTE, 3, 3]))
            await far.aclose()

        async def never():
            raise AssertionError("it is not dialled again")

        for _ in range(9):
            near, far = trio.testing.memory_stream_pair()
            stream = SealedStream(near, contexts, never, there)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(end_in_the_middle)
                with pytest.raises(trio.BrokenResourceError, match="in the middle of a handshake"):
                    await stream.send_all(b"a frame")

    trio.run(talk)


def test_a_plain_link_is_not_let_in_where_encryption_is_required():
    async def talk():
        async with two_nodes(((OLD,), OFF), ((OLD,), REQUIRED)) as (peer, _wire, other):
            await until(lambda: other.counts.refused_incoming[Reason.SECRET.value] > 1)
            assert (peer.is_up, other.incoming) == (False, {})

    trio.run(talk)


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_byte_that_was_changed_on_the_wire_ends_the_link(way):
    """Behind the greeting: nothing of the frame is taken."""

    async def talk():
        async with two_nodes(((OLD,), REQUIRED), ((OLD,), REQUIRED)) as (peer, wire, other):
            await until(lambda: peer.is_up)
            served = other.counts.requests_served

            def change(of_way, data):
                return data[:-1] + bytes([data[-1] ^ 1]) if of_way == way else data

            wire.change = change
            with pytest.raises(MailboxError, match=r"ended|did not answer|there is no link"):
                await peer.call("give", {}, (b"x",), timeout_ms=5_000)
            assert other.counts.requests_served == served + (way == "back")

    trio.run(talk)


def test_what_was_said_on_one_link_says_nothing_on_another():
    """Who has recorded both ways of a greeting, and all that followed, gets no further than the handshake with it."""

    async def talk():
        async with two_nodes(((OLD,), REQUIRED), ((OLD,), REQUIRED)) as (peer, wire, other):
            await until(lambda: peer.is_up)
            await peer.call("give", {}, (b"x",), timeout_ms=60_000)
            served, recorded = other.counts.requests_served, wire.seen["there"]
            stream = await trio.open_tcp_stream("127.0.0.1", wire.port)
            async with stream:
                await stream.send_all(recorded)
                with trio.fail_after(PATIENCE_S):
                    try:
                        while await stream.receive_some():
                            pass
                    except trio.BrokenResourceError:
                        pass
            assert other.counts.requests_served == served
            assert peer.is_up

    trio.run(talk)


def test_keys_tell_nothing_of_the_secret_and_differ():
    """Nor do two secrets have a name or a key in common."""
    one, other = (link_keys(ClusterSecret((key,))) for key in (OLD, NEW))
    assert len(one) == len(other) == 48
    assert len({one[:16], one[16:], other[:16], other[16:]}) == 4
    assert not any(OLD[i : i + 4] in one for i in range(len(OLD) - 3))


def test_without_a_secret_or_by_choice_nothing_is_sealed():
    assert sealed(SYSTEM, ClusterSecret(()), AUTO) is SYSTEM
    assert sealed(SYSTEM, ClusterSecret((OLD,)), OFF) is SYSTEM


def test_a_socket_is_handed_over_with_its_session_and_what_it_has_not_read():
    """What the other end has sent behind the last frame is decrypted by whoever goes on."""

    async def talk():
        secret = ClusterSecret((OLD,))
        contexts = LinkContexts(secret, is_required=True)
        near, far = (trio.SocketStream(trio.socket.from_stdlib_socket(each)) for each in socket.socketpair())

        async def never():
            raise AssertionError("it is not dialled again")

        dialler, acceptor = SealedStream(near, contexts, never), SealedStream(far, contexts)
        reader = FrameReader(acceptor, LinkCounts())
        reader.is_known = True
        async with near:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(dialler.send_all, encode_steady(7))
                assert await reader.read()
            await dialler.send_all(b"behind it")
            handed = detach(acceptor, reader)
            assert handed.session is not None
            assert handed.unread == b""
            with socket.socket(fileno=handed.descriptor) as read:
                assert b"behind it" not in read.recv(1 << 16)

    trio.run(talk)


def test_bytes_in_any_split_are_what_was_sent():
    secret = ClusterSecret((OLD,))

    class Slowly:
        """A stream that gives and takes few bytes at a time."""

        def __init__(self, inner, sizes):
            self._inner, self._sizes, self._have = inner, itertools.cycle(sizes), b""
            self.socket = SimpleNamespace()

        async def send_all(self, data):
            await self._inner.send_all(data)

        async def receive_some(self, _bytes_max):
            if not self._have:
                self._have = bytes(await self._inner.receive_some(1 << 16))
            size = next(self._sizes)
            given, self._have = self._have[:size], self._have[size:]
            return given

    async def talk(sizes):
        near, far = trio.testing.memory_stream_pair()
        contexts = LinkContexts(secret, is_required=True)

        async def never():
            raise AssertionError("it is not dialled again")

        dialler = SealedStream(Slowly(near, sizes), contexts, never)
        acceptor = SealedStream(Slowly(far, sizes), contexts)
        said = Random(7).randbytes(50_000)

        async def say():
            await dialler.send_all(said)

        heard = b""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(say)
            with trio.fail_after(PATIENCE_S):
                while len(heard) < len(said):
                    heard += await acceptor.receive_some(9_000)
        assert heard == said

    for sizes in ((1,), (5, 1), (16_384 + 21,), (3, 70_000)):
        trio.run(talk, sizes)
