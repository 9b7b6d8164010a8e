"""One core of a simulated node, from a start to its end, and what a node does when it has other cores than before."""

from __future__ import annotations

from collections import deque

import trio

from tests.simulator.nodes_disk import Journal
from tests.simulator.nodes_network import NodeNetwork
from tests.simulator.nodes_plane import TwinPlane, TwinStorage
from tests.support.memory_node import MemoryConnections
from tpc_broker.broker.core import Core, CoreIdentity
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.feature_levels import FIRST_WITH_MOVES
from tpc_broker.model import CoreId
from tpc_broker.runtime.assembly import _owners_in_cluster
from tpc_broker.runtime.cluster.identity import IdentityFile, core_ended, is_in_cluster
from tpc_broker.runtime.cluster.node import ClusterNodeMain
from tpc_broker.runtime.cluster.replica_lives import hand_lives_over
from tpc_broker.runtime.cluster.replication import CoreReplication, group_of
from tpc_broker.runtime.cluster.surroundings import Surroundings
from tpc_broker.storage.handover import Given, _settled
from tpc_broker.testing.mailboxes import MemoryMailboxes
from tpc_broker.testing.surroundings import MemoryChance, in_turn

PORT = 7000
CHECKPOINT_S = 2.0
CALL_S_MAX = 0.001
"""A call between two cores, one way."""


class SimulatedReplication(CoreReplication):
    """Its socket is a port's number."""

    def _listener(self):
        core = self._options.core
        return PORT + core if core else None


class CoreLife:
    """As `runtime/core.py` puts it together, in the same order."""

    def __init__(self, node, number, nursery):
        cluster, self.nursery, self.number, self._node = node.cluster, nursery, number, node
        self.is_over, self.is_ready = False, False
        self.ended = trio.Event()
        self.connections = MemoryConnections()
        self.network = NodeNetwork(cluster.network, node.host, number)
        self.journal = Journal(node.disk)
        self.plane = TwinPlane(self.connections, node.clock, self.journal)
        self.storage = TwinStorage(self.plane, node.disk, node.disk.core(number))
        self.mailboxes = MemoryMailboxes(CoreId(number), node.posts, lambda: node.chance.uniform(0, CALL_S_MAX))
        surroundings = Surroundings(self.network, node.clock, node.chance)
        options = node.options(number)
        self.node_main = None
        if number == METADATA_CORE:
            self.node_main = ClusterNodeMain(options, node.disk, node.folder, surroundings)
        self.replication = SimulatedReplication(options, self.plane, self.storage, nursery, surroundings)
        self.storage.life_of = lambda key: self.replication._lives.of(group_of(key))
        if self.node_main is not None:
            self.node_main.links.on_replica = self.replication.take
            for method, handler in self.replication.handlers.items():
                self.node_main.links.serve(method, handler)
        self.core = Core(
            CoreIdentity(CoreId(number), node.cores, options.listeners, node.folder, "a-cluster-of-its-own"),
            node.configuration, connections=self.connections, plane=self.plane, storage=self.storage, disk=node.disk,
            mailboxes=self.mailboxes, clock=node.clock, chance=MemoryChance(node.chance), nursery=nursery,
            cluster=self.node_main, replication=self.replication, in_thread=in_turn,
        )  # fmt: skip
        self.connections.dispatcher = self.core.dispatcher
        self._arrived, self._came = deque(), trio.Event()
        self._up_changed = trio.Event()

    async def run(self):
        self.core.serve_metadata_calls()
        self.mailboxes.open(self.nursery)
        self.nursery.start_soon(self.journal.run)
        self.nursery.start_soon(self._checkpoint)
        if self.node_main is not None:
            await self.nursery.start(self.node_main.run, (PORT, PORT))
        await self.core.start()
        self._node.opened(self)
        await self.core.cores_changed(self._node.up)
        self.nursery.start_soon(self._follow_cores)
        self.nursery.start_soon(self._take_what_arrives)
        self.is_ready = True

    async def _checkpoint(self):
        while True:
            await trio.sleep(CHECKPOINT_S)
            self.storage.note_commits()

    # -- what the supervisor says --------------------------------------------------------------------------------------

    def cores_changed(self):
        self._up_changed.set()

    async def _follow_cores(self):
        while True:
            await self._up_changed.wait()
            self._up_changed = trio.Event()
            await self.core.cores_changed(self._node.up)

    # -- what clients send, which is attended to in a task of this process: it waits while that stands still ----------

    def send(self, request):
        self._arrives(self.connections.send, request)

    def close(self, connection):
        self._arrives(self.connections.close, connection, "peer closed")

    def _arrives(self, *what):
        self._arrived.append(what)
        self._came.set()

    async def _take_what_arrives(self):
        while True:
            await self._came.wait()
            self._came = trio.Event()
            while self._arrived:
                take, *arguments = self._arrived.popleft()
                take(*arguments)


def may_have_cores(node, cores):
    """As the node's own check at its start says: fewer than before only when it knows that its cluster allows that."""
    found = IdentityFile(node.folder).read()
    return found is None or cores >= found.cores or found.founding is None or found.level >= FIRST_WITH_MOVES


def hand_over(data, disk, cores):
    """While no core runs: what the disk has goes to the cores that there are now, as `runtime.assembly.recover_all`
    does it.
    """
    if set(disk.cores) == set(range(cores)) or not is_in_cluster(data):
        return
    owner_of = _owners_in_cluster(data, cores)
    before = _settled({CoreId(core): kept.entries() for core, kept in disk.cores.items()})
    given = [Given(key, core, owner_of(key, core)) for core, entries in before.items() for key in entries]
    hand_lives_over(data, [one for one in given if one.source != one.target], group_of)
    for core in set(disk.cores) - set(range(cores)):
        core_ended(data, core)
    disk.cores.clear()
    for core in range(cores):
        disk.core(core)
    for key, source, target in given:
        disk.core(target).partitions[key] = disk.folders[key]
        disk.folders[key].take(before[source][key])
