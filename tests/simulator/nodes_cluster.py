"""Whole nodes in one process, on virtual time: each has the services of a real one, over simulated surroundings.

Each core of a node is what `runtime/core.py` puts together (`nodes_core`): on core 0 `ClusterNodeMain` (founding,
joining, membership, the metadata group), on each `CoreReplication` (the driver of its replicas, and their links) and
`broker.Core` with every handler. Simulated are the network, the disk, the mailboxes between cores, the supervisor,
clocks, chance, and the data plane, of which there is a twin in Python (`nodes_plane`).

Time is trio's, jumping to the next deadline whenever nobody has anything to do. A pause is one of a node's processes:
their tasks do not run, what comes for them waits.
"""

from __future__ import annotations

import logging
import random
import shutil
import tempfile
import traceback
from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import trio
import trio.testing

from tests.simulator.nodes_clients import Promises
from tests.simulator.nodes_core import PORT, CoreLife, hand_over
from tests.simulator.nodes_disk import NodeDisk
from tests.simulator.nodes_network import SimulatedNetwork, Wire
from tests.support.memory_node import MemoryClock
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, core_of, node_of
from tpc_broker.runtime.cluster.replica_links import ReplicaLinks
from tpc_broker.runtime.options import ClusterOptions, CoreOptions
from tpc_broker.testing.mailboxes import MemoryMailboxes

SETTINGS = (
    "group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=2", "replica.replace.delay.ms=20000",
    "group.consumer.min.session.timeout.ms=1000", "group.consumer.session.timeout.ms=6000",
    "group.consumer.min.heartbeat.interval.ms=100", "group.consumer.heartbeat.interval.ms=1000",
    "transaction.state.log.num.partitions=2",
)  # fmt: skip
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


class SimulatedNode:
    """A machine with a disk, the broker's cores that run on it, and their supervisor."""

    def __init__(self, cluster, number, folder, cores):
        self.cluster, self.number, self.host, self.cores = cluster, number, f"node{number}", cores
        self.folder = folder
        self.chance = cluster.stream(f"node {number}")
        self.clock, self.disk = MemoryClock(), NodeDisk(cluster.stream(f"disk {number}"))
        self.lives: dict[int, CoreLife] = {}
        self.posts: dict[CoreId, MemoryMailboxes] = {}
        self.up: list[CoreId] = []
        self.is_on = self.is_paused = self.is_away = False
        """`is_away`: for good, or until another machine comes in its place."""
        self.machines_count = 1
        self.configuration = load_settings("", (f"node.id={number}", *SETTINGS))
        cluster.network.host(self.host)

    def options(self, core):
        own = SeedAddress(self.host, PORT)
        addresses = tuple(Address(self.host, 9092 + each) for each in range(self.cores))
        return CoreOptions(
            core=CoreId(core), cores=self.cores, data=str(self.folder), mailbox_fd=-1, control_fd=-1, mailbox_names=(),
            listeners=(Listener("PLAINTEXT", ListenerMode.PER_CORE_PORT, addresses, addresses),), listen_fds=(),
            cpu=None, settings="", overrides=(), log_style="json", log_level="warning", supervisor_pid=0,
            cluster=ClusterOptions(self.number, own, self.cluster.seeds, "", ""), cluster_fds=(-1, -1),
        )  # fmt: skip

    @property
    def is_ready(self):
        return len(self.lives) == self.cores and all(life.is_ready for life in self.lives.values())

    @property
    def first(self):
        """Core 0, which has the metadata; None: it is down."""
        return self.lives.get(METADATA_CORE)

    # -- a node --------------------------------------------------------------------------------------------------------

    async def start(self, cores=None):
        assert not self.is_on
        self.is_on, self.cores = True, cores or self.cores
        hand_over(self.folder, self.disk, self.cores)
        self.cluster.network.host(self.host).come_back()
        for core in range(self.cores):
            await self.start_core(core)

    async def crash(self, *, is_silent=False):
        """What was not durable is gone. With `is_silent` it is the machine, and nobody is told."""
        if not self.is_on:
            return
        self.is_on = False
        lives, self.lives, self.up = list(self.lives.values()), {}, []
        for life in lives:
            self._end(life, is_silent=is_silent)
        self.cluster.network.host(self.host).is_silent = is_silent
        self.disk.crash()
        self.resume()
        for life in lives:
            await life.ended.wait()

    async def leave(self):
        """For good, with all that its disk has."""
        self.is_away = True
        await self.crash(is_silent=True)
        self.machines_count += 1
        self.disk = NodeDisk(self.cluster.stream(f"disk {self.machines_count} of {self.number}"))
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

    # -- a core --------------------------------------------------------------------------------------------------------

    async def start_core(self, core):
        if self.is_on and core < self.cores and core not in self.lives:
            await self.cluster.nursery.start(self._live, core)

    async def _live(self, core, *, task_status):
        _node.set(self.number)
        life = None
        try:
            async with trio.open_nursery() as nursery:
                life = self.lives[core] = CoreLife(self, core, nursery)
                task_status.started()
                await life.run()
        except Exception as error:
            if life is None or not life.is_over:
                what = "".join(traceback.format_exception(error))
                self.cluster.fails(f"core {core} of node {self.number} ended by itself: {what}")
        finally:
            if life is not None:
                life.ended.set()

    async def kill_core(self, core):
        """As `kill -9` of its process: the others go on, and so does what the kernel has."""
        life = self.lives.pop(core, None)
        if life is None:
            return
        self.up = [each for each in self.up if each != core]
        self._end(life)
        self._tell_cores()
        await life.ended.wait()

    def _end(self, life, *, is_silent=False):
        life.is_over = True
        life.network.end()
        self.cluster.network.host(self.host).end_process(life.number, is_silent=is_silent)
        life.journal.crash(self.chance)
        life.mailboxes.close()
        life.nursery.cancel_scope.cancel()

    def opened(self, life):
        self.up = sorted([*self.up, CoreId(life.number)])
        self._tell_cores()

    def _tell_cores(self):
        for life in self.lives.values():
            life.cores_changed()


@dataclass(frozen=True)
class Broker:
    """A core of a node, as clients know it."""

    node: SimulatedNode
    core: int

    @property
    def life(self):
        """None: it does not run."""
        return self.node.lives.get(self.core)

    @property
    def is_ready(self):
        return self.life is not None and self.life.is_ready


class SimulatedCluster:
    """Use `simulate`."""

    def __init__(self, seed, nursery, folder, queue, *, nodes_count, founders_count, cores_max):
        self.seed, self.nursery, self.queue = seed, nursery, queue
        self.wire = Wire()
        self.network = SimulatedNetwork(self.wire, self.stream("network"))
        self.seeds = tuple(SeedAddress(f"node{number}", PORT) for number in range(1, founders_count + 1))
        self.promises = Promises()
        self.problems: list[str] = []
        self.failed = trio.Event()
        self.nodes, chance = {}, self.stream("cores")
        for number in range(1, nodes_count + 1):
            path = folder / str(number)
            path.mkdir()
            self.nodes[number] = SimulatedNode(self, number, path, chance.randint(1, cores_max))

    def stream(self, name):
        return random.Random(f"{self.seed}/{name}")

    def fails(self, what):
        """The run has shown a fault."""
        self.problems.append(what)
        self.failed.set()

    def ready(self):
        """Nodes that answer clients with all their cores, by number."""
        return [node for node in self.nodes.values() if node.is_ready]

    def lives(self):
        """Of all cores that run, with their nodes."""
        return [(node, life) for node in self.nodes.values() for life in node.lives.values()]

    def moves_count(self):
        """How often replicas that are there went from core to core."""
        return sum(kept.moves for node in self.nodes.values() for kept in node.disk.folders.values())

    def broker(self, broker_id):
        return Broker(self.nodes[node_of(broker_id)], core_of(broker_id))


def simulate(seed, story, *, nodes_count=3, founders_count=3, cores_max=1):
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
                    seed, nursery, folder, queue,
                    nodes_count=nodes_count, founders_count=founders_count, cores_max=cores_max,
                )  # fmt: skip
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
    for node, life in cluster.lives():
        life.is_over = True
        node.resume()
    scope.cancel()


def _memory_folder():
    folder = Path("/dev/shm")
    return folder if folder.is_dir() else None
