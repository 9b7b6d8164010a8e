"""Whole nodes in one process, on virtual time: each has the services of a real one, over simulated surroundings.

A node is what `runtime/core.py` puts together: `ClusterNodeMain` (founding, joining, membership, the metadata group),
`CoreReplication` (the driver of its replicas, and their links) and `broker.Core` with every handler. Simulated are the
network, the disk, clocks, chance, and the data plane, of which there is a twin in Python (`nodes_plane`).

Time is trio's, jumping to the next deadline whenever nobody has anything to do. A pause is one of the process: its
tasks do not run, what comes for them waits.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import traceback
from collections import deque
from contextvars import ContextVar
from pathlib import Path
from unittest import mock

import trio
import trio.testing

from tests.simulator.nodes_clients import Promises
from tests.simulator.nodes_disk import Journal, NodeDisk
from tests.simulator.nodes_network import NodeNetwork, SimulatedNetwork, Wire
from tests.simulator.nodes_plane import TwinPlane, TwinStorage
from tests.support.memory_node import MemoryChance, MemoryClock, MemoryConnections, MemoryMailboxes
from tpc_broker.broker.core import Core, CoreIdentity
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId
from tpc_broker.runtime.cluster.node import ClusterNodeMain
from tpc_broker.runtime.cluster.replica_links import ReplicaLinks
from tpc_broker.runtime.cluster.replication import CoreReplication
from tpc_broker.runtime.cluster.surroundings import Surroundings
from tpc_broker.runtime.options import ClusterOptions, CoreOptions

PORT = 7000
SETTINGS = (
    "group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=2", "replica.replace.delay.ms=20000",
)  # fmt: skip
CHECKPOINT_S = 2.0
TELLS = False
"""Whether what the nodes log is told: for one who looks at a run."""

_node: ContextVar[int] = ContextVar("node")
"""In whose task this is; unset: in nobody's."""


class HoldingQueue(deque):
    """trio's tasks that can run, but for those of paused nodes."""

    def __init__(self):
        super().__init__()
        self._held: dict[int, list[trio.lowlevel.Task]] = {}

    def append(self, task):
        held = self._held.get(task.context.get(_node, 0))
        if held is None:
            super().append(task)
        else:
            held.append(task)

    def hold(self, node):
        self._held.setdefault(node, [])

    def let_go(self, node):
        self.extend(self._held.pop(node, ()))


class Life:
    """A node from a start to its end."""

    def __init__(self, node, nursery):
        cluster, self.nursery = node.cluster, nursery
        self.is_over, self.is_ready = False, False
        self.ended = trio.Event()
        self.connections = MemoryConnections()
        self.network = NodeNetwork(cluster.network, node.host)
        self.journal = Journal(node.disk)
        self.plane = TwinPlane(self.connections, node.clock, self.journal)
        self.storage = TwinStorage(self.plane, node.disk)
        posts = {}
        self.mailboxes = MemoryMailboxes(CoreId(0), posts)
        surroundings = Surroundings(self.network, node.clock, node.chance)
        options = node.options()
        self.node_main = ClusterNodeMain(options, node.disk, node.folder, surroundings)
        self.replication = CoreReplication(options, self.plane, self.storage, nursery, surroundings)
        self.node_main.links.on_replica = self.replication.take
        for method, handler in self.replication.handlers.items():
            self.node_main.links.serve(method, handler)
        self.core = Core(
            CoreIdentity(CoreId(0), 1, options.listeners, node.folder, "a-cluster-of-its-own"), node.configuration,
            connections=self.connections, plane=self.plane, storage=self.storage, disk=node.disk,
            mailboxes=self.mailboxes, clock=node.clock, chance=MemoryChance(node.chance), nursery=nursery,
            cluster=self.node_main, replication=self.replication,
        )  # fmt: skip
        self.connections.dispatcher = self.core.dispatcher

    async def run(self, node):
        self.core.serve_metadata_calls()
        self.mailboxes.open(self.nursery)
        self.nursery.start_soon(self.journal.run)
        self.nursery.start_soon(self._checkpoint)
        await self.nursery.start(self.node_main.run, (PORT, PORT))
        await self.core.start()
        await self.core.cores_changed([CoreId(0)])
        self.is_ready = True

    async def _checkpoint(self):
        while True:
            await trio.sleep(CHECKPOINT_S)
            self.storage.note_commits()


class SimulatedNode:
    """A machine with a disk, and the life of the broker on it, if there is one."""

    def __init__(self, cluster, number, folder):
        self.cluster, self.number, self.host = cluster, number, f"node{number}"
        self.folder = folder
        self.chance = cluster.stream(f"node {number}")
        self.clock, self.disk = MemoryClock(), NodeDisk(cluster.stream(f"disk {number}"))
        self.life: Life | None = None
        self.is_paused, self.is_away = False, False
        """`is_away`: for good, or until another machine comes in its place."""
        self._machines_count = 1
        self.configuration = load_settings("", (f"node.id={number}", *SETTINGS))
        cluster.network.host(self.host)

    def options(self):
        own = SeedAddress(self.host, PORT)
        address = (Address(self.host, 9092),)
        return CoreOptions(
            core=CoreId(0), cores=1, data=str(self.folder), mailbox_fd=-1, control_fd=-1, mailbox_names=(),
            listeners=(Listener("PLAINTEXT", ListenerMode.PER_CORE_PORT, address, address),), listen_fds=(), cpu=None,
            settings="", overrides=(), log_style="json", log_level="warning", supervisor_pid=0,
            cluster=ClusterOptions(self.number, own, self.cluster.seeds, "", ""), cluster_fds=(-1, -1),
        )  # fmt: skip

    @property
    def is_ready(self):
        return self.life is not None and self.life.is_ready

    async def start(self):
        assert self.life is None
        self.cluster.network.host(self.host).come_back()
        await self.cluster.nursery.start(self._live)

    async def _live(self, *, task_status):
        _node.set(self.number)
        life = None
        try:
            async with trio.open_nursery() as nursery:
                life = self.life = Life(self, nursery)
                task_status.started()
                await life.run(self)
        except Exception as error:
            if life is None or not life.is_over:
                what = "".join(traceback.format_exception(error))
                self.cluster.fails(f"node {self.number} ended by itself: {what}")
        finally:
            if life is not None:
                life.ended.set()

    async def crash(self, *, is_silent=False):
        """What was not durable is gone. With `is_silent` it is the machine, and nobody is told."""
        life, self.life = self.life, None
        if life is None:
            return
        life.is_over = True
        life.network.end()
        self.cluster.network.host(self.host).end_process(is_silent=is_silent)
        life.journal.crash(self.chance)
        self.disk.crash()
        life.mailboxes.close()
        life.nursery.cancel_scope.cancel()
        self.resume()
        await life.ended.wait()

    async def leave(self):
        """For good, with all that its disk has."""
        self.is_away = True
        await self.crash(is_silent=True)
        self._machines_count += 1
        self.disk = NodeDisk(self.cluster.stream(f"disk {self._machines_count} of {self.number}"))
        shutil.rmtree(self.folder)
        self.folder.mkdir()

    async def come_new(self):
        """Another machine of that number."""
        self.is_away = False
        await self.start()

    def pause(self):
        self.is_paused = True
        self.cluster.queue.hold(self.number)

    def resume(self):
        self.is_paused = False
        self.cluster.queue.let_go(self.number)


class SimulatedCluster:
    """Use `simulate`."""

    def __init__(self, seed, nursery, folder, queue, *, nodes_count, founders_count):
        self.seed, self.nursery, self.queue = seed, nursery, queue
        self.wire = Wire()
        self.network = SimulatedNetwork(self.wire, self.stream("network"))
        self.seeds = tuple(SeedAddress(f"node{number}", PORT) for number in range(1, founders_count + 1))
        self.promises = Promises()
        self.problems: list[str] = []
        self.failed = trio.Event()
        self.nodes = {}
        for number in range(1, nodes_count + 1):
            path = folder / str(number)
            path.mkdir()
            self.nodes[number] = SimulatedNode(self, number, path)

    def stream(self, name):
        return random.Random(f"{self.seed}/{name}")

    def fails(self, what):
        """The run has shown a fault."""
        self.problems.append(what)
        self.failed.set()

    def ready(self):
        """Nodes that answer clients, by number."""
        return [node for node in self.nodes.values() if node.is_ready]


def simulate(seed, story, *, nodes_count=3, founders_count=3):
    """Runs `story(cluster)` to its end. AssertionError: what was found first."""

    async def main():
        queue = HoldingQueue()
        runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
        queue.extend(runner.runq)
        runner.runq = queue
        with tempfile.TemporaryDirectory(dir=_memory_folder()) as name:
            async with trio.open_nursery() as nursery:
                folder = Path(name)
                cluster = SimulatedCluster(
                    seed, nursery, folder, queue, nodes_count=nodes_count, founders_count=founders_count
                )
                nursery.start_soon(cluster.wire.run)
                nursery.start_soon(_stop_when_failed, cluster, nursery.cancel_scope)
                await story(cluster)
                for node in cluster.nodes.values():
                    await node.crash()
                nursery.cancel_scope.cancel()
            if cluster.problems:
                raise AssertionError(cluster.problems[0])
            return cluster

    scheduling = mock.patch.object(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
    order = mock.patch.object(trio._core._run, "_r", random.Random(seed))
    carried = mock.patch.object(ReplicaLinks, "offer_steady", return_value=None)
    before = logging.root.manager.disable
    logging.disable(logging.NOTSET if TELLS else logging.CRITICAL)
    try:
        with scheduling, order, carried:
            return trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        logging.disable(before)


async def _stop_when_failed(cluster, scope):
    await cluster.failed.wait()
    for node in cluster.nodes.values():
        if node.life is not None:
            node.life.is_over = True
        node.resume()
    scope.cancel()


def _memory_folder():
    folder = Path("/dev/shm")
    return folder if folder.is_dir() else None
