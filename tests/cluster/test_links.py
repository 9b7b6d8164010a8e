"""Links between nodes, without nodes."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from tests.support.waiting import PATIENCE_S
from tpc_broker._bytes import ffi
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.cluster.link_codec import HEADER, VERSION, Hello, Kind, Reason, encode_answer, encode_refused, frame
from tpc_broker.cluster.secret import ClusterSecret
from tpc_broker.errors import CoreDownError
from tpc_broker.limits import LINK_FRAME_BYTES_MAX
from tpc_broker.model import CoreId, NodeId
from tpc_broker.node.links.links import MALFORMED, FilePart, FrameReader, Handler, LinkCounts, Links, Peer
from tpc_broker.node.links.part_buffers import is_of_buffer
from tpc_broker.node.links.surroundings import SYSTEM
from tpc_broker.node.replicas.replica_links import ReplicaLinks
from tpc_broker.raft.items import Address
from tpc_broker.swim.model import Address as SwimAddress

HERE = Address(NodeId(1), CoreId(0))


def never(*_arguments):
    raise AssertionError("nobody greets here")


def streams(there: str, here: str):
    """The two ends of a connection: of who dialled `there`, and of who was dialled from `here`."""
    near, far = memory_stream_pair()
    near.socket, far.socket = (SimpleNamespace(getpeername=lambda name=name: (name, 1)) for name in (there, here))
    return near, far


def links_of(node: int, surroundings=SYSTEM) -> Links:
    hello = Hello("cluster", NodeId(node), 1, 1, CoreId(0), "127.0.0.1", 1, "0")
    return Links(lambda: hello, ClusterSecret((b"secret" * 6,)), lambda _hello: None, surroundings)


@asynccontextmanager
async def linked(give: Handler) -> AsyncIterator[tuple[Links, Peer]]:
    """The links of a node, and its peer, which serves `give`."""
    one, other = links_of(1), links_of(2)
    other.serve("give", give)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with trio.open_nursery() as nursery:
            await nursery.start(one.run, None)
            await nursery.start(other.run, listening)
            peer = one.peer(SeedAddress("127.0.0.1", listening.getsockname()[1]))
            with trio.fail_after(PATIENCE_S):
                while not peer.is_up:
                    await trio.sleep(0.01)
                yield one, peer
            nursery.cancel_scope.cancel()


def test_parts_of_files_and_other_answers_come_on_one_connection():
    """Large and small ones, many under way at once: each comes to who has asked for it."""
    parts = [bytes([number]) * size for number, size in enumerate((0, 1, 70_000, 4 << 20, 3, 1 << 20))]

    async def give(_hello, payload, _blobs):
        part = parts[payload["number"]]
        return FilePart(part) if payload["is_part"] else ({"is": len(part)}, (part,))

    async def ask(peer, number, *, is_part):
        payload, blobs = await peer.call("give", {"number": number, "is_part": is_part}, timeout_ms=60_000)
        assert (payload, blobs) == ({} if is_part else {"is": len(parts[number])}, [parts[number]])

    async def talk():
        async with linked(give) as (_links, peer), trio.open_nursery() as asking:
            for number in range(len(parts)):
                for is_part in (True, False):
                    asking.start_soon(partial(ask, peer, number, is_part=is_part))

    trio.run(talk)


def test_memory_of_large_parts_is_used_again():
    """What was given back takes the next part; where a part begins, a block of memory does."""
    part, sent, seen = bytes(range(256)) * 8_192, [], []

    async def give(_hello, _payload, _blobs):
        return FilePart(part, lambda: sent.append(len(part)))

    async def talk():
        async with linked(give) as (links, peer):
            for _ in range(3):
                _payload, (blob,) = await peer.call("give", {}, timeout_ms=60_000)
                assert bytes(blob) == part
                assert is_of_buffer(blob)
                assert int(ffi.cast("uintptr_t", ffi.from_buffer(blob))) % 4096 == 0
                seen.append(blob.obj)
                links.parts.give(blob)
            while len(sent) < 3:
                await trio.sleep(0.01)
        assert len(links.parts) == 1
        links.parts.give(part)  # what was never taken
        links.parts.clear()
        assert len(links.parts) == 0

    trio.run(talk)
    assert all(memory is seen[0] for memory in seen)


def test_where_nobody_listens_is_told_from_where_nobody_answers():
    """One port refuses; at another one connections are taken by the kernel, and nobody says anything."""
    refusing, silent = Address(NodeId(2), CoreId(0)), Address(NodeId(3), CoreId(0))
    told: list[Address] = []

    async def look(ports):
        links = ReplicaLinks(HERE, never, ClusterSecret((b"secret" * 6,)))
        links.on_refused = told.append
        async with trio.open_nursery() as nursery:
            await nursery.start(links.run, None)
            links.follow({address: SeedAddress("127.0.0.1", port) for address, port in ports.items()})
            with trio.fail_after(PATIENCE_S):
                while len(told) < 2:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        trio.run(look, {refusing: bound.getsockname()[1], silent: listening.getsockname()[1]})
    assert set(told) == {refusing}


@pytest.mark.parametrize(
    ("bad", "counted"),
    [
        pytest.param(HEADER.pack(2, VERSION, 200), MALFORMED, id="kind"),
        pytest.param(HEADER.pack(2, VERSION + 1, Kind.ANSWER), MALFORMED, id="version"),
        pytest.param(HEADER.pack(LINK_FRAME_BYTES_MAX + 1, VERSION, Kind.ANSWER), MALFORMED, id="length"),
        pytest.param(frame(Kind.ANSWER, b"\xff"), MALFORMED, id="message"),
        pytest.param(encode_answer(1, ["no", "object"]), MALFORMED, id="payload"),
        pytest.param(frame(Kind.PART, b"short"), MALFORMED, id="part"),
        pytest.param(frame(Kind.RAFT, b""), MALFORMED, id="no answer"),
        pytest.param(encode_refused(Reason.REMOVED, "it was removed"), Reason.REMOVED, id="refusal"),
    ],
)
def test_an_answer_that_is_none_ends_its_connection_only(bad, counted, caplog):
    """It is dialled again, later each time."""
    times = 5
    dialled_s: list[float] = []

    async def serve(other, stream):
        is_bad = len(dialled_s) <= times
        reader = FrameReader(stream, LinkCounts())
        hello = await other._welcome(stream, reader)
        if is_bad:
            await reader.expect(Kind.REQUEST)
            await stream.send_all(bad)
        else:
            await other._serve_node(stream, reader, hello)

    async def give(_hello, _payload, _blobs):
        return {"is": "well"}, ()

    async def talk():
        async with trio.open_nursery() as nursery:

            async def dial(_host, _port):
                dialled_s.append(trio.current_time())
                near, far = streams("there", "here")
                nursery.start_soon(serve, other, far)
                return near

            one = links_of(1, replace(SYSTEM, network=SimpleNamespace(dial=dial)))
            other = links_of(2)
            other.serve("give", give)
            await nursery.start(one.run, None)
            up, one.on_up = trio.Event(), lambda _peer: up.set()
            peer = one.peer(SeedAddress("there", 1))
            for _time in range(times):
                await up.wait()
                up = trio.Event()
                with pytest.raises(CoreDownError, match="the link to there:1 ended"):
                    await peer.call("give", {})
                assert not peer.is_up
            await up.wait()
            assert await peer.call("give", {}) == ({"is": "well"}, [])
            assert peer.refused is None
            counts = one.counts
            assert (counts.opened, counts.lost, counts.refused_outgoing[counted]) == (times + 1, times, times)
            nursery.cancel_scope.cancel()

    trio.run(talk, clock=MockClock(autojump_threshold=0))
    waits_s = [after - before for before, after in pairwise(dialled_s)]
    assert waits_s == pytest.approx([0.05, 0.1, 0.2, 0.4, 0.8])
    assert len([each for each in caplog.records if each.message.startswith("link to there:1: ")]) == 1


@pytest.mark.parametrize("name", ["broker..svc", f"{'b' * 64}.svc", "\u00fc b.svc"])
def test_a_name_that_no_host_can_have_is_as_one_that_nobody_knows(name):
    """Other nodes may tell one."""

    async def talk():
        with pytest.raises(OSError, match="no host has such a name"):
            await SYSTEM.network.dial(name, 9)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
            bound.bind(("127.0.0.1", 0))
            datagrams = SYSTEM.network.datagrams(bound)
            async with trio.open_nursery() as nursery:
                datagrams.send(SwimAddress(name, 9), b"lost", nursery.start_soon)
            datagrams.send(SwimAddress(*bound.getsockname()), b"there", nursery.start_soon)
            assert (await datagrams.receive(10))[0] == b"there"

    trio.run(talk)
