"""Links between nodes, without nodes."""

from __future__ import annotations

import socket

import trio

from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.cluster.secret import ClusterSecret
from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.items import Address
from tpc_broker.runtime.cluster.replica_links import ReplicaLinks

HERE = Address(NodeId(1), CoreId(0))


def never(*_arguments):
    raise AssertionError("nobody greets here")


def test_where_nobody_listens_is_told_from_where_nobody_answers():
    """One port refuses; at another one connections are taken by the kernel, and nobody says anything."""
    refusing, silent = Address(NodeId(2), CoreId(0)), Address(NodeId(3), CoreId(0))
    told: list[Address] = []

    async def look(ports):
        links = ReplicaLinks(HERE, never, ClusterSecret(b"secret" * 6))
        links.on_refused = told.append
        async with trio.open_nursery() as nursery:
            await nursery.start(links.run, None)
            links.follow({address: SeedAddress("127.0.0.1", port) for address, port in ports.items()})
            with trio.fail_after(30):
                while len(told) < 2:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        trio.run(look, {refusing: bound.getsockname()[1], silent: listening.getsockname()[1]})
    assert set(told) == {refusing}
