"""Whole nodes in one process, on virtual time: each has the services of a real one, over simulated surroundings.

Each core of a node is what `process/core.py` puts together (`nodes_core`): on core 0 `ClusterNodeMain` (founding,
joining, membership, the metadata group), on each `CoreReplication` (the driver of its replicas, and their links) and
`broker.Core` with every handler, over the C that ships. Simulated are the network, the disk, the mailboxes between
cores, the supervisor, clocks and chance.

Time is trio's, jumping to the next deadline whenever nobody has anything to do. A pause is one of a node's processes:
their tasks do not run, what comes for them waits.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import tempfile
import traceback
from collections import deque
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import trio
import trio.testing

from tests.simulator.nodes_acks import Acknowledgements
from tests.simulator.nodes_clients import Promises
from tests.simulator.nodes_core import CLIENTS_PORT, PORT, CoreLife, hand_over
from tests.simulator.nodes_disk import LifeDisk, NodeDisk
from tests.simulator.nodes_logs import logs_of
from tests.simulator.nodes_network import SimulatedNetwork, Wire
from tests.support.fake_disk import PowerLoss
from tests.support.memory_node import MemoryClock
from tests.support.simulated_ring import SimulatedSystem
from tests.support.simulated_sockets import handed_over
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.engine.journal_lock import JournalLockedError
from tpc_broker.limits import MIB
from tpc_broker.log.files import partition_folder_name
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId, TopicPartition, core_of, node_of
from tpc_broker.node.replicas.core_replicas import group_of
from tpc_broker.options import ClusterOptions, CoreOptions
from tpc_broker.process.assembly import CannotRunError
from tpc_broker.testing.mailboxes import MemoryMailboxes

SETTINGS = (
    "group.initial.rebalance.delay.ms=0", "offsets.topic.num.partitions=2", "replica.replace.delay.ms=20000",
    "group.consumer.min.session.timeout.ms=1000", "group.consumer.session.timeout.ms=6000",
    "group.consumer.min.heartbeat.interval.ms=100", "group.consumer.heartbeat.interval.ms=1000",
    "transaction.state.log.num.partitions=2",
)  # fmt: skip
RECOVERY_SETTINGS = (f"journal.bytes.max={4 * MIB}",)
AFTER_S = 1e-6
"""A float that is a little too small would not be the instant that C waits for."""
RESTART_S = 1.0
STARTED_S = 1.0
"""By trio's clock: an instant of 0 is none, for C."""
TELLS = False
"""Whether what the nodes log is told: for one who looks at a run."""

_node: ContextVar[int] = ContextVar("node")
"""In whose task this is; unset: in nobody's."""


class HoldingQueue(deque):
    """trio's tasks that can run, but for those of paused nodes."""

    def __init__(self):
        super().__init__()
        self._held: dict[int, list[trio.lowlevel.Task]] = {}
        self.ran: set[int] = set()
        """Nodes whose tasks were to run, since somebody has looked."""

    def append(self, task):
        node = task.context.get(_node, 0)
        held = self._held.get(node)
        self.ran.add(node)
        if held is None:
            super().append(task)
        else:
            held.append(task)

    def take_ran(self):
        ran, self.ran = sorted(self.ran), set()
        return ran

    def hold(self, node):
        self._held.setdefault(node, [])

    def let_go(self, node):
        self.extend(self._held.pop(node, ()))


class SimulatedNode:
    """A machine with a disk, the broker's cores that run on it, and their supervisor."""

    def __init__(self, cluster, number, folder, cores):
        self.cluster, self.number, self.host, self.cores = cluster, number, f"node{number}", cores
        self.folder, self.machines_count = folder, 1
        self.cores_before: int | None = None
        """With so many it was started before."""
        self._starting: tuple[trio.CancelScope, trio.Event] | None = None
        self.chance = cluster.stream(f"node {number}")
        self.clock, self.disk = MemoryClock(), self._new_disk()
        self.acknowledgements = Acknowledgements(cluster.fails)
        self.lives: dict[int, CoreLife] = {}
        self._terms: dict[TopicPartition, int] = {}
        self.posts: dict[CoreId, MemoryMailboxes] = {}
        self.up: list[CoreId] = []
        self.is_on = self.is_paused = self.is_away = False
        """`is_away`: for good, or until another machine comes in its place."""
        self.configuration = load_settings("", (f"node.id={number}", *SETTINGS))
        cluster.network.host(self.host)

    def _new_disk(self):
        return NodeDisk(self.cluster, self.folder, self.cluster.stream(f"disk {self.machines_count} of {self.number}"))

    def options(self, core):
        own = SeedAddress(self.host, PORT)
        addresses = tuple(Address(self.host, 9092 + each) for each in range(self.cores))
        return CoreOptions(
            core=CoreId(core), cores=self.cores, data=str(self.folder), mailbox_fd=-1, control_fd=-1, mailbox_names=(),
            listeners=(Listener("PLAINTEXT", ListenerMode.PER_CORE_PORT, addresses, addresses),), listen_fds=(),
            cpu=None, settings="", overrides=RECOVERY_SETTINGS, log_style="json", log_level="warning", supervisor_pid=0,
            cluster=ClusterOptions(self.number, own, self.cluster.seeds, "", ""), cluster_fds=(-1, -1),
        )  # fmt: skip

    @property
    def is_ready(self):
        return len(self.lives) == self.cores and all(life.is_ready for life in self.lives.values())

    @property
    def first(self):
        """Core 0, which has the metadata; None: it is down."""
        life = self.lives.get(METADATA_CORE)
        return life if life is not None and life.is_assembled else None

    def has_files(self, topic, index):
        """Whether there are files of that partition on its disk."""
        return self.folder / "topics" / partition_folder_name(topic, index) in self.disk.names

    def ends(self):
        """Where the logs of its replicas end, by partition."""
        logs = [log for life in self.lives.values() if life.is_assembled for log in logs_of(life)]
        return {log.key: bounds.log_end_offset for log in logs if (bounds := log.bounds()) is not None}

    def life_of(self, key):
        """Which one of its replicas of a partition, one after the other, there is; 0: the first one."""
        return max(life.replication._lives.of(group_of(key)) for life in self.lives.values() if life.is_assembled)

    def note_terms(self, life):
        for log in logs_of(life) if life.is_assembled else ():
            self._terms[log.key] = max(self._terms.get(log.key, -1), log.files.leader_epoch)

    def term_of(self, key):
        """The newest one that a replica here has begun or promised; -1: none."""
        for life in self.lives.values():
            self.note_terms(life)
        return self._terms.get(key, -1)

    # -- a node --------------------------------------------------------------------------------------------------------

    async def start(self, cores=None):
        assert not self.is_on
        self.is_on, self.cores = True, cores or self.cores
        self.cluster.network.host(self.host).come_back()
        if await self._hand_over():
            for core in range(self.cores):
                await self.start_core(core)

    async def _hand_over(self):
        """Of who has other cores than before; whether that was done."""
        if self.cores_before is None:
            self.cores_before = self.cores
        if self.cores_before == self.cores:
            return True
        scope, over = self._starting = trio.CancelScope(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hand_over_within, scope)
        self._starting = None
        over.set()
        return self.cores_before == self.cores

    async def _hand_over_within(self, scope):
        _node.set(self.number)
        disk = LifeDisk(self.disk, scope)
        disk.begin()
        try:
            with scope:
                while self.cores_before != self.cores:
                    try:
                        await disk.wait_landed()
                        await hand_over(self, disk)
                    except (CannotRunError, JournalLockedError, OSError) as error:
                        if not self._is_disks_fault(error):
                            raise
                        await trio.sleep(RESTART_S)
                    else:
                        self.cores_before = self.cores
        finally:
            disk.end()

    async def crash(self, *, is_silent=False):
        """What was not durable is gone. With `is_silent` it is the machine, and nobody is told."""
        if not self.is_on:
            return
        self.is_on = False
        if self._starting is not None:
            scope, over = self._starting
            scope.cancel()
            await over.wait()
        lives, self.lives, self.up = list(self.lives.values()), {}, []
        for life in lives:
            self._end(life, is_silent=is_silent)
        self.cluster.network.host(self.host).is_silent = is_silent
        self.disk.crash(self.chance)
        self.resume()
        for life in lives:
            await life.ended.wait()

    async def leave(self):
        """For good, with all that its disk has."""
        self.is_away = True
        await self.crash(is_silent=True)
        self.machines_count += 1
        self.disk, self.cores_before, self._terms = self._new_disk(), None, {}
        self.acknowledgements = Acknowledgements(self.cluster.fails)
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
        self.touch()

    def touch(self):
        """Its rings may have something to do."""
        self.cluster.touched.update(self.lives.values())

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
        except (Exception, PowerLoss, BaseExceptionGroup) as error:
            if life is not None and not life.is_over and self._is_disks_fault(error):
                self._end(self.lives.pop(core))
                self.cluster.wire.after(RESTART_S, partial(self.cluster.nursery.start_soon, self.start_core, core))
            elif life is None or not life.is_over:
                what = "".join(traceback.format_exception(error))
                self.cluster.fails(f"core {core} of node {self.number} ended by itself: {what}")
        finally:
            if life is not None:
                life.free()

    def _is_disks_fault(self, error):
        """What ends a core, whose node then is started again by people until its disk is well."""
        while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
            (error,) = error.exceptions
        is_refusal = isinstance(error, CannotRunError | JournalLockedError | OSError)
        return is_refusal and self.disk.is_unwell

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
        self.note_terms(life)
        if life.is_assembled:
            self.cluster.count(life)
        self.cluster.network.host(self.host).end_process(life.number, is_silent=is_silent)
        life.end()

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
    def place(self):
        return self.node.host, CLIENTS_PORT + self.core

    @property
    def is_ready(self):
        return self.life is not None and self.life.is_ready


class SimulatedCluster:
    """Use `simulate`."""

    def __init__(self, seed, system, queue, folder, *, nodes_count, founders_count, cores_max):
        self.seed, self.system, self.queue = seed, system, queue
        self.nursery: trio.Nursery
        self.touched: set[CoreLife] = set()
        """Whose rings may have something to do."""
        self.adopted = self.in_place_bytes = self.rolls = 0
        """How often replicas went from core to core, what was written in place, and segments behind the first one, in
        lives that are over.
        """
        self.wire = Wire()
        self.network = SimulatedNetwork(self.wire, self.stream("network"))
        self.network.system = system
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
        """Of all cores that run and have read what their disks have, with their nodes."""
        return [(node, life) for node in self.nodes.values() for life in node.lives.values() if life.is_assembled]

    def count(self, life):
        """What it has come to."""
        self.adopted += life.storage.counters()["partitions_adopted"]
        self.in_place_bytes += life.plane.journal_statistics()["in_place_bytes_written"]
        self.rolls += sum(len(led.files.segments) - 1 for led in life.storage._partitions.led.values())

    def moves_count(self):
        """How often replicas went from core to core."""
        return self.adopted + sum(life.storage.counters()["partitions_adopted"] for _node, life in self.lives())

    # -- rings ---------------------------------------------------------------------------------------------------------

    def wall_ms(self):
        """Of the node that asks."""
        number = _node.get(0)
        return self.nodes[number].clock.wall_ms() if number else 0

    def turn_rings(self):
        """Of all cores that may have something to do, as their processes would before they wait."""
        for number in self.queue.take_ran():
            if number:
                self.nodes[number].touch()
        touched, self.touched = self.touched, set()
        for life in sorted(touched, key=lambda life: life.place):
            node = self.nodes[life.place[0]]
            if life.is_over:
                continue
            if node.is_paused:
                self.touched.add(life)
                continue
            until_ns = life.context.run(life.ring.turn)
            if until_ns is not None and until_ns / 1e9 != life.until_s:
                life.until_s = until_ns / 1e9
                self.wire.at(max(life.until_s, trio.current_time()) + AFTER_S, life.touch)

    def broker(self, broker_id):
        return Broker(self.nodes[node_of(broker_id)], core_of(broker_id))


class _Turns(trio.abc.Instrument):
    """Turns the rings of all cores whenever no task can run, before trio lets time pass."""

    cluster: SimulatedCluster | None = None

    def before_io_wait(self, _timeout):
        if self.cluster is None or self.cluster.problems:
            return
        try:
            self.cluster.turn_rings()
        except BaseException as error:
            self.cluster.fails("".join(traceback.format_exception(error)))


def simulate(seed, story, *, nodes_count=3, founders_count=3, cores_max=1):
    """Runs `story(cluster)` to its end. AssertionError: what was found first."""
    turns = _Turns()

    async def main(clock):
        clock.jump(STARTED_S)
        queue = HoldingQueue()
        runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
        queue.extend(runner.runq)
        runner.runq = queue
        chance = random.Random(f"{seed}/system")
        wall_ms = lambda: turns.cluster.wall_ms()  # noqa: E731, PLW0108 (it is there later)
        system = SimulatedSystem(lambda: round(clock.current_time() * 1e9), wall_ms, chance)
        with tempfile.TemporaryDirectory(dir=_memory_folder()) as name, system, handed_over(system):
            cluster = turns.cluster = SimulatedCluster(
                seed, system, queue, Path(name), nodes_count=nodes_count, founders_count=founders_count,
                cores_max=cores_max,
            )  # fmt: skip
            try:
                async with trio.open_nursery() as nursery:
                    cluster.nursery = nursery
                    nursery.start_soon(cluster.wire.run)
                    nursery.start_soon(_stop_when_failed, cluster, nursery.cancel_scope)
                    await story(cluster)
                    for node in cluster.nodes.values():
                        await node.crash()
                    nursery.cancel_scope.cancel()
            finally:
                turns.cluster = None
            if cluster.problems:
                raise AssertionError(cluster.problems[0])
            return cluster

    clock = trio.testing.MockClock(autojump_threshold=0)
    clock.current_time = lambda: clock._virtual_base  # it stands still between two jumps: this costs less
    before = logging.root.manager.disable
    logging.disable(logging.NOTSET if TELLS else logging.CRITICAL)
    try:
        with _repeatable(seed):
            return trio.run(main, clock, clock=clock, instruments=[turns])
    finally:
        logging.disable(before)


@contextmanager
def _repeatable(seed):
    """What has no port: trio's order of tasks, names of files that are drawn, and helper threads."""
    chance = random.Random(f"{seed}/names")
    with (
        mock.patch.object(trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),
        mock.patch.object(trio._core._run, "_r", random.Random(seed)),
        mock.patch.object(os, "urandom", chance.randbytes),
        mock.patch.object(random, "_urandom", chance.randbytes),  # of `secrets` and SystemRandom
        mock.patch.object(trio.to_thread, "run_sync", _in_turn),
    ):
        yield


async def _in_turn(function, *arguments, limiter=None, **_how):
    await trio.lowlevel.checkpoint()
    return function(*arguments)


async def _stop_when_failed(cluster, scope):
    await cluster.failed.wait()
    for node in cluster.nodes.values():
        lives, node.lives = list(node.lives.values()), {}
        for life in lives:
            life.end()
        node.resume()
    scope.cancel()


def _memory_folder():
    folder = Path("/dev/shm")
    return folder if folder.is_dir() else None
