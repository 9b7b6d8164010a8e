"""A node that pulls the metadata, without nodes."""

from __future__ import annotations

from types import SimpleNamespace

import trio
import trio.testing

from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.errors import CoreDownError
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.node.metadata.observer import Observer

PULLS = 4


def test_a_peer_that_is_dropped_while_it_is_asked_is_asked_no_more_and_the_others_are():
    peers, asked = {}, []

    class Peer:
        is_up = True

        def __init__(self, number, *, is_dropped):
            self.address, self._is_dropped = SeedAddress(f"node{number}", 1), is_dropped
            peers[self.address] = self

        async def call(self, _method, _payload, timeout_ms):
            await trio.sleep(timeout_ms / 2000)
            asked.append(self.address.host)
            if self._is_dropped:
                del peers[self.address]
            if len(asked) == PULLS:
                scope.cancel()
            raise CoreDownError("the link ended")

    Peer(1, is_dropped=True)
    Peer(2, is_dropped=False)
    Peer(3, is_dropped=False)
    observer = Observer(
        SimpleNamespace(peers=peers), follows=lambda: False, newest=ClusterImage, committed=lambda *_: None
    )
    scope = trio.CancelScope()

    async def run():
        with scope:
            await observer.run()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
    assert asked == ["node1", "node2", "node3", "node2"]
