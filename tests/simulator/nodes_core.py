"""One core of a simulated node, from a start to its end, and what a node does when it has other cores than before."""

from __future__ import annotations

import errno
import os
from contextvars import copy_context

import trio

from tests.simulator.nodes_disk import LifeDisk, ReadFiles
from tests.simulator.nodes_network import NodeNetwork
from tests.support.simulated_ring import SimulatedRing
from tpc_broker._ring import lib
from tpc_broker.broker.core import Core
from tpc_broker.broker.core_ground import CoreIdentity
from tpc_broker.broker.handlers.table import APIS
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.engine.client_connections import ClientConnections
from tpc_broker.engine.connections import ConnectionLimits
from tpc_broker.engine.journal_probe import FLAGS
from tpc_broker.feature_levels import FIRST_WITH_MOVES
from tpc_broker.limits import MIB
from tpc_broker.log.journal import JournalMode
from tpc_broker.model import CoreId
from tpc_broker.node.links.surroundings import Surroundings
from tpc_broker.node.membership.identity import IdentityFile
from tpc_broker.node.node import ClusterNodeMain
from tpc_broker.node.replicas.core_replicas import group_of
from tpc_broker.node.replicas.replication import CoreReplication
from tpc_broker.process.assembly import hand_over_all, put_together, recover
from tpc_broker.storage.recovery.handover import journal_cores
from tpc_broker.testing.mailboxes import MemoryMailboxes
from tpc_broker.testing.surroundings import MemoryChance, in_turn

PORT = 7000
CLIENTS_PORT = 9092
RING_ENTRIES = 64
CALL_S_MAX = 0.001
"""A call between two cores, one way."""
LIMITS = ConnectionLimits(
    connections_max=256, request_bytes_max=MIB, receive_buffers_count=4, receive_buffer_bytes=4096,
    budget_bytes=64 * MIB,
)  # fmt: skip
END_TURNS_MAX = 100
"""Of a ring that is nobody's any more, until C uses nothing of it."""


class LifeRing(SimulatedRing):
    """`on_completed`: something has come for it. `is_dead`: nothing comes from it, and nothing comes for it."""

    def __init__(self, system, on_completed):
        super().__init__(system, RING_ENTRIES)
        self._on_completed, self.is_dead = on_completed, False

    def completed(self, operation, result):
        super().completed(operation, result)
        if not self.is_dead:
            self._on_completed()

    def _begin(self, operation):
        if self.is_dead:
            operation.complete(-errno.ECANCELED)
        else:
            super()._begin(operation)

    def die(self):
        """What is under way reaches whom it reaches, and nobody here hears of it."""
        self.is_dead = True
        for number in list(self._under_way):
            lib.tpc_simulated_complete(self.pointer, number, -errno.ECANCELED)
        self._under_way.clear()

    def drain(self):
        """Whether C has asked for something, which is not done."""
        self.wait(0)
        return self._begin_submitted() > 0


class SimulatedReplication(CoreReplication):
    """Its socket is a port's number, and the file of its replicas' lives is one of the host."""

    def _listener(self):
        core = self._options.core
        return PORT + core if core else None

    async def begin_lives(self, topic, keys):
        lives = {group_of(key): topic.life_of(key.partition, self.replicas.node) for key in keys}
        await self._lives.begin(ReadFiles(self._storage.files.disk.sync), lives)


class OpenJournal:
    """`process.assembly.OpenJournal`."""

    mode, fd = JournalMode.DIRECT_DSYNC, -1

    async def open(self, disk, journal_file):
        await journal_file.set_mode(self.mode)
        self.fd = await disk.open(journal_file.path, os.O_RDWR | FLAGS[self.mode])

    def reopen(self):
        return self.fd, int(self.mode)


class CoreLife:
    """As `process/core.py` and `process/assembly.py` put it together, in the same order."""

    def __init__(self, node, number, nursery):
        self.cluster, self.nursery, self.number, self.node = node.cluster, nursery, number, node
        self.is_over = self.is_ready = self.is_assembled = False
        self.ended = trio.Event()
        self.network = NodeNetwork(node.cluster.network, node.host, number)
        self.disk = LifeDisk(node.disk, self)
        self.ring = LifeRing(node.cluster.system, self.touch)
        self.until_s = float("inf")
        """When the ring wants its next turn."""
        self.disk.begin()
        self.context = copy_context()
        """Of all its tasks, also of those that begin in a turn of its ring."""
        self._connections = self.plane = None
        self.mailboxes = MemoryMailboxes(CoreId(number), node.posts, lambda: node.chance.uniform(0, CALL_S_MAX))
        self._up_changed = trio.Event()

    def touch(self):
        """Its ring may have something to do."""
        self.cluster.touched.add(self)

    @property
    def place(self):
        return self.node.number, self.number

    async def _assemble(self):
        node, options = self.node, self.node.options(self.number)
        await self.disk.wait_landed()
        recovered = await recover(options, self.disk, node.configuration.settings)
        journal = OpenJournal()
        await journal.open(self.disk, recovered.journal_file)
        parts = put_together(self.ring, self.disk, node.clock, options, recovered, journal, LIMITS)
        self._connections, self.plane, self.storage = parts.connections, parts.plane, parts.storage
        self.clients = ClientConnections(self._connections)
        surroundings = Surroundings(self.network, node.clock, node.chance)
        self.node_main = None
        if self.number == METADATA_CORE:
            self.node_main = ClusterNodeMain(options, self.disk, node.folder, surroundings)
        self.replication = SimulatedReplication(options, self.plane, self.storage, self.nursery, surroundings)
        if self.node_main is not None:
            self.node_main.links.on_replica = self.replication.take
            for method, handler in self.replication.handlers.items():
                self.node_main.links.serve(method, handler)
            self.replication.offer_steady(self.node_main.links)
            self.replication.on_carrier = self.node_main.carry_beats
        self.core = Core(
            CoreIdentity(CoreId(self.number), node.cores, options.listeners, node.folder, "a-cluster-of-its-own"),
            node.configuration, apis=APIS, connections=self.clients, plane=self.plane, storage=self.storage,
            disk=self.disk, mailboxes=self.mailboxes, clock=node.clock, chance=MemoryChance(node.chance),
            nursery=self.nursery, cluster=self.node_main, replication=self.replication, in_thread=in_turn,
        )  # fmt: skip
        self.is_assembled = True
        node.acknowledgements.attend(self)

    async def run(self):
        await self._assemble()
        self.core.serve_metadata_calls()
        self.mailboxes.open(self.nursery)
        if self.node_main is not None:
            await self.nursery.start(self.node_main.run, (PORT, PORT))
        await self.core.start()
        self.nursery.start_soon(self.storage.run_maintenance)
        self.clients.attend(self.core.dispatcher, self.core.access)
        self.node.opened(self)
        await self.core.cores_changed(self.node.up)
        node = self.node
        listener = node.cluster.network.host(node.host).listen(CLIENTS_PORT + self.number, self.number)
        self.clients.serve([node.cluster.system.open(listener)])
        self.nursery.start_soon(self._follow_cores)
        self.is_ready = True

    # -- its end -------------------------------------------------------------------------------------------------------

    def end(self):
        """As of `kill -9`: whatever it would do from now on is not done."""
        self.is_over = True
        self.ring.die()
        self.disk.end()
        self.network.end()
        if self.node.posts.get(CoreId(self.number)) is self.mailboxes:
            self.mailboxes.close()
        self.nursery.cancel_scope.cancel()

    def free(self):
        """What C has of it, when its tasks have ended."""
        if self.plane is not None:
            connections = self._connections
            connections.stop_accepting()
            connections.close_all()
            for _turn in range(END_TURNS_MAX):
                if not self.ring.drain() and connections.quiet and self.plane.is_quiet():
                    break
            self.plane.close()
            connections.free()
        self.ring.close()
        self.ended.set()

    # -- what the supervisor says --------------------------------------------------------------------------------------

    def cores_changed(self):
        self._up_changed.set()

    async def _follow_cores(self):
        while True:
            await self._up_changed.wait()
            self._up_changed = trio.Event()
            await self.core.cores_changed(self.node.up)


def may_have_cores(node, cores):
    """As the node's own check at its start says: fewer than before only when it knows that its cluster allows that."""
    found = IdentityFile(node.folder).read()
    return found is None or cores >= found.cores or found.founding is None or found.level >= FIRST_WITH_MOVES


async def hand_over(node, disk):
    """While no core runs: what the disk has goes to the cores that there are now, as the supervisor has it done."""
    if await journal_cores(disk, node.folder):
        await hand_over_all(node.options(METADATA_CORE), disk)
