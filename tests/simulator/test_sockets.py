"""Sockets of simulated rings under what uses them in production: links for the steady state, which Python opens and C
has then, and clients. What the sockets themselves promise is held by tests/engine, on the kernel's as well.
"""

import random

import pytest
import trio
import trio.testing

from tests.simulator.nodes_dialogues import Dialogues
from tests.simulator.nodes_network import TCP, NodeNetwork, SimulatedNetwork, Wire
from tests.support.ring_turns import RingTurns, now_ns
from tests.support.simulated_ring import WRITE, WRITEV, Device, SimulatedRing, SimulatedSystem
from tests.support.simulated_sockets import UNACKNOWLEDGED_S, handed_over
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.cluster.link_codec import Hello
from tpc_broker.cluster.secret import ClusterSecret
from tpc_broker.engine.connections import CloseReason, ConnectionLimits, Connections
from tpc_broker.engine.data_plane import JournalStart, RingDataPlane
from tpc_broker.engine.steady_plane import Machine
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.protocol import encode_response
from tpc_broker.model import CoreId, NodeId
from tpc_broker.node.links.sealed_links import REQUIRED, sealed
from tpc_broker.node.links.surroundings import Surroundings
from tpc_broker.node.replicas.replica_links import STEADY_RETRY_S, ReplicaLinks
from tpc_broker.raft.items import Address
from tpc_broker.testing.surroundings import MemoryClock

PORT, CLIENT_PORT = 7000, 9092


class Nothing(Device):
    """A disk that takes all that is written."""

    def begin(self, operation):
        operation.complete(operation.length if operation.opcode in {WRITE, WRITEV} else 0)


class World:
    def __init__(self, seed, nursery):
        self.nursery, self.chance = nursery, random.Random(seed)
        self.wire = Wire()
        self.turns = RingTurns(self.wire.at)
        self.network = SimulatedNetwork(self.wire, self.chance)
        self.system = self.network.system = SimulatedSystem(now_ns, lambda: now_ns() // 10**6, random.Random(seed))

    def ring(self):
        made = SimulatedRing(self.system)
        self.turns.add(made)
        return made


class Core:
    """Of a node: a plane, and links for the steady state with other nodes."""

    def __init__(self, world, number, secret):
        self.world, self.number, self.name = world, number, f"node{number}"
        self.ring = world.ring()
        self.connections = Connections(self.ring, ConnectionLimits())
        start = JournalStart(world.system.open(Nothing()), 0, bytes(range(16)), 1, 256, 256, 1, 2, 0)
        self.plane = RingDataPlane(self.ring, self.connections, start)
        surroundings = Surroundings(NodeNetwork(world.network, self.name, 0), MemoryClock(), world.chance)
        surroundings = sealed(surroundings, secret, REQUIRED)
        self.links = ReplicaLinks(Address(NodeId(number), CoreId(0)), self._hello, secret, surroundings)
        self.links.on_steady = self._adopt
        self.links.has_steady = lambda address: (address, True) in self.adopted.values()
        self.plane.on_steady(lambda: None, self._lost)
        self.adopted, self.lost, self.sessions = {}, 0, []

    def _hello(self):
        return Hello("cluster", NodeId(self.number), 1, 1, CoreId(0), self.name, PORT, "1", replication=True)

    def _adopt(self, handed, link):
        number = self.plane.steady_adopt(handed.descriptor, link.address.node, handed.session, handed.unread)
        self.sessions.append(handed.session is not None)
        self.adopted[number] = link.address, link.dialled
        self.plane.steady_beat(number, Machine.OF_PARTITIONS, is_said=True)

    def _lost(self, number):
        del self.adopted[number]
        self.lost += 1

    def heard_ms(self, other):
        """When it was heard last by C, over the link that it has dialled."""
        links = [number for number, (address, dialled) in self.adopted.items() if address.node == other and not dialled]
        found = [self.plane.steady_heard(number, Machine.OF_PARTITIONS) for number in links]
        return max((last_ms for _since, last_ms in filter(None, found)), default=0)

    def is_linked(self):
        return sorted(self.adopted.values()) == sorted(
            (Address(NodeId(3 - self.number), CoreId(0)), dialled) for dialled in (True, False)
        )

    async def end(self):
        self.connections.stop_accepting()
        self.connections.close_all()
        while not self.connections.quiet or self.adopted:
            await trio.sleep(0.001)
        while not self.plane.is_quiet():
            await trio.sleep(0.001)
        self.world.turns.remove(self.ring)
        self.plane.close()
        self.connections.free()
        self.ring.close()


def run(seed, story):
    async def main():
        async with trio.open_nursery() as nursery:
            world = World(seed, nursery)
            with world.system, handed_over(world.system):
                trio.lowlevel.add_instrument(world.turns)
                nursery.start_soon(world.wire.run)
                await story(world)
                nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("secret", [(), (b"a secret of sufficient length 123",)], ids=["plain", "sealed"])
def test_links_for_the_steady_state_are_dialled_by_python_and_are_c_s_then(secret):
    """And again when a cut has ended them: at both ends, that of who says nothing included."""

    async def story(world):
        cores = [Core(world, number, ClusterSecret(secret)) for number in (1, 2)]
        async with trio.open_nursery() as nursery:
            for core in cores:
                await nursery.start(core.links.run, PORT)
                other = NodeId(3 - core.number)
                core.links.follow({Address(other, CoreId(0)): SeedAddress(f"node{other}", PORT)})
            await trio.sleep(2 * STEADY_RETRY_S)
            assert all(core.is_linked() for core in cores)
            assert {sealed for core in cores for sealed in core.sessions} == {bool(secret)}
            for count in (1, 2):
                began_ms = now_ns() // 10**6
                await trio.sleep(1)
                assert all(core.heard_ms(3 - core.number) > began_ms + 500 for core in cores)
                world.network.block("node1", "node2", (TCP,))
                await trio.sleep(2 * UNACKNOWLEDGED_S)
                assert [core.adopted for core in cores] == [{}, {}]
                world.network.heal()
                await trio.sleep(5 * STEADY_RETRY_S)
                assert all(core.is_linked() for core in cores)
                assert [core.lost for core in cores] == [2 * count, 2 * count]
            nursery.cancel_scope.cancel()
        for core in cores:
            core.ring.turn()
            for number in list(core.adopted):
                core.plane.steady_close(number)
        for core in cores:
            await core.end()

    run(1, story)


class Server:
    """A core that answers what it is asked, unless it `holds` it."""

    def __init__(self, world):
        self.world, self.holds, self.held = world, False, []
        self.ring = world.ring()
        self.connections = Connections(self.ring, ConnectionLimits())
        self.connections.on_request = self._answer
        self.connections.listen(world.system.open(world.network.host("node1").listen(CLIENT_PORT, 0)))
        self.closed = []
        self.connections.on_closed = lambda *what: self.closed.append(what[1])

    def _answer(self, request):
        if self.holds:
            self.held.append(request)
            return
        answer = messages.MetadataResponse(cluster_id="x" * 30_000)
        body = encode_response(ApiKey.METADATA, request.api_version, answer)
        self.connections.answer(request, request.correlation_id.to_bytes(4), b"\0", body)

    def kill(self):
        """As `kill -9`."""
        self.world.turns.remove(self.ring)
        self.world.network.host("node1").end_process(0)
        for request in self.held:
            self.connections.answer_none(request)
        self.connections.stop_accepting()
        self.connections.close_all()
        self.ring.abandon()
        self.connections.free()
        self.ring.close()


def test_a_client_asks_again_whoever_is_there():
    async def ask(dialogues):
        asked = messages.MetadataRequest(topics=None)
        answer = await dialogues.ask(("node1", CLIENT_PORT), ApiKey.METADATA, 12, asked, 1.0)
        return None if answer is None else len(answer.cluster_id)

    async def story(world):
        dialogues = Dialogues(world.network, "one")
        world.network.host("node1")
        assert await ask(dialogues) is None, "nobody listens"
        server = Server(world)
        assert [await ask(dialogues) for _ in range(3)] == [30_000] * 3
        server.holds = True
        assert await ask(dialogues) is None
        await trio.sleep(0.1)
        assert server.closed == [CloseReason.PEER]
        server.holds = False
        assert await ask(dialogues) == 30_000
        server.kill()
        await trio.sleep(0.1)
        assert await ask(dialogues) is None, "its end is found when it is asked"
        assert await ask(dialogues) is None, "nobody listens"
        server = Server(world)
        assert await ask(dialogues) == 30_000
        server.kill()

    run(1, story)
