"""The process of one core, from the time when everything is imported (`core_start` comes before).

Duties, in order: die with the supervisor; pin to the CPU; run trio on the ring; lock and recover this core's journal;
put the broker together; serve until the supervisor says "drain" or is gone. A drain that comes before "ready" ends the
start where it stands, as `kill -9` would: no client was answered yet, and other cores that it may wait for can be gone.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import trio

from tpc_broker import limits
from tpc_broker._ring import lib
from tpc_broker.broker.core import Core, GivenBeforeStart
from tpc_broker.broker.core_ground import CoreIdentity
from tpc_broker.broker.handlers.table import APIS
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.engine.backend import described, insists_on_io_uring, why_refused
from tpc_broker.engine.data_directory import read_properties
from tpc_broker.engine.links import Links
from tpc_broker.engine.listener_tls import TlsFiles
from tpc_broker.engine.mailbox import Mailboxes
from tpc_broker.engine.parent_death import die_with
from tpc_broker.engine.ring import Backend, RingUnavailable
from tpc_broker.engine.trio_ring import RingOptions, current_ring, current_task_queues
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.errors import MetadataUnreadableError
from tpc_broker.metadata.cleaner_settings import cleaning_bounds
from tpc_broker.metadata.listeners import ListenerMode, shown_listeners
from tpc_broker.metadata.settings import listener_settings, load_settings
from tpc_broker.metadata.ssl_settings import ssl_of_listeners
from tpc_broker.operations.backup_hold import hold_for_backup
from tpc_broker.operations.pending_users import PendingUsers, missing_users, read_before_start
from tpc_broker.options import ChosenBackend, CoreOptions, StartError
from tpc_broker.process.assembly import (
    CannotRunError,
    CoreAssembly,
    SystemChance,
    open_assembly,
    rebuild_hint,
    recover_all,
)
from tpc_broker.process.collector import Collector
from tpc_broker.process.control import TERMINAL_SIGNALS, ControlChannel
from tpc_broker.process.listening import map_load
from tpc_broker.process.logs import end_logging, log_facts, set_up_logging
from tpc_broker.process.sasl_secret import read_sasl_secret
from tpc_broker.process.token_support import make_token_keys
from tpc_broker.rounds import next_round
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tpc_broker.broker.log_limiter import LogLimiter
    from tpc_broker.broker.ports import Connections, DataPlane
    from tpc_broker.engine.client_connections import ClientConnections
    from tpc_broker.engine.datagrams import CoreDatagrams
    from tpc_broker.metadata.broker_config import Settings
    from tpc_broker.node.node import ClusterNodeMain
    from tpc_broker.node.replicas.replication import CoreReplication
    from tpc_broker.process.jwks import TokenKeys
    from tpc_broker.telemetry.counters import CoreCounters

log = logging.getLogger(__name__)

GIL_SWITCH_S = 0.0005
"""A helper thread may keep the core's thread from Python for so long: nobody is answered meanwhile."""
LINKS_WAIT_S = 2.0
"""For links to the cores that are up, before clients are answered."""
EXIT_OK, EXIT_FAILED = 0, 1


def main(arguments: list[str]) -> int:
    options = CoreOptions.from_arguments(arguments)
    if not die_with(options.supervisor_pid):
        return EXIT_FAILED
    for number in TERMINAL_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINAL_SIGNALS)  # blocked by the supervisor, for the time up to here
    settings = load_settings(options.settings, options.overrides).settings
    facts = log_facts(settings.node_id)
    set_up_logging(f"core {options.core}", facts, style=options.log_style, level=options.log_level)
    if options.cpu is not None:
        _pin(options.cpu)
    _take_short_slices()
    sys.setswitchinterval(GIL_SWITCH_S)
    if options.cluster is not None:
        import tpc_broker.node.node  # noqa: PLC0415 (before the loop, which they would hold up)
        import tpc_broker.node.replicas.replication  # noqa: F401, PLC0415
    return _run_on_backend(options, may_be_plain=not insists_on_io_uring(settings.ring_backend))


def _run_on_backend(options: CoreOptions, *, may_be_plain: bool) -> int:
    """On the supervisor's choice. Its own small ring may have been the last for which there was locked memory."""
    main_task = _recover_only if options.recover_only else _serve
    backend = Backend(options.backend) if options.backend else None
    try:
        return run_on_ring(main_task, options, options=RingOptions(backend=backend))
    except RingUnavailable as refused:
        if refused.errno != errno.ENOMEM or not may_be_plain:
            log.critical("%s", refused)
            return EXIT_FAILED
    reason, mend = why_refused(errno.ENOMEM, sysctl=None, filtered=False)
    log.warning("the backend is %s", described(ChosenBackend(Backend.PLAIN, reason, mend)))
    return run_on_ring(main_task, options, options=RingOptions(backend=Backend.PLAIN))


def _pin(cpu: int) -> None:
    """A CPU that was there at the supervisor's start may have been taken away since."""
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        log.warning("CPU %d is refused (%s): the kernel moves this core between the others", cpu, error.strerror)


# Rule: A core that wakes up waits for no longer slice than its own, and its share of the CPU stays what it was. Why:
# docs/decisions/2026-11-30-tail-of-one-in-flight.md. See also native/io/cpu_slice.c. Held by
# tests/engine/test_cpu_slice.py.
def _take_short_slices() -> None:
    """Where a filter refuses that, or the kernel is older, there are the scheduler's own."""
    error = lib.tpc_cpu_slice_take(limits.CORE_CPU_SLICE_NS)
    if error < 0:
        log.debug("the kernel keeps this core's slices of the CPU as they are: %s", os.strerror(-error))


def _open_links(options: CoreOptions, assembly: CoreAssembly, mailboxes: Mailboxes) -> Links | None:
    """Only where a core may be sent what another one owns, and does not send it away: on listeners that all share, and
    by datagrams.
    """
    shared = _shared_listeners(options)
    if not shared and (options.datagram_fd < 0 or options.cores == 1):
        return None
    links = Links(assembly.ring_connections, options.core, mailboxes)
    if shared:
        assembly.plane.open_forwarding(options.core, shared)
    return links


def _authenticated(options: CoreOptions) -> frozenset[int]:
    """Listeners whose clients log in."""
    return frozenset(number for number, each in enumerate(options.listeners) if each.security.authenticates)


def _tls_files(options: CoreOptions, connections: ClientConnections) -> TlsFiles:
    """Of the listeners with TLS, which are given to the connections."""
    settings = load_settings(options.settings, options.overrides).settings
    given = listener_settings(options.settings, options.overrides)
    return TlsFiles(ssl_of_listeners(options.listeners, settings, given), connections.secure)


def _sasl_secret(options: CoreOptions) -> bytes:
    """Where clients log in. StartError when it cannot be used."""
    return read_sasl_secret(Path(options.data), options.cluster) if _authenticated(options) else b""


def _shared_listeners(options: CoreOptions) -> list[int]:
    return [number for number, listener in enumerate(options.listeners) if listener.mode is ListenerMode.SHARED]


def _map_shared_memory(options: CoreOptions, assembly: CoreAssembly) -> None:
    """What cores that share a listener know of each other's clients."""
    if options.loads_fd >= 0:
        assembly.connections.show_open(map_load(options.loads_fd, options.core))
    if options.quotas_fd >= 0:
        assembly.connections.share_quotas(options.quotas_fd, _shared_listeners(options))


def _apply_settings(assembly: CoreAssembly, settings: Settings) -> None:
    """Of the broker's settings, now and whenever they change, those of the loop, of C and of the cleaner."""
    shares = {queue: getattr(settings, f"cpu_shares_{queue.name.lower()}") for queue in TaskQueue}
    current_task_queues().set_shares(shares)
    assembly.bounds.follow(settings)
    assembly.storage.cleaning_bounds = cleaning_bounds(settings)
    if assembly.plane.datagrams is not None:
        assembly.plane.datagrams.set_answers(on=settings.datagram_acknowledge)


@asynccontextmanager
async def _datagrams_open(options: CoreOptions, assembly: CoreAssembly) -> AsyncIterator[CoreDatagrams | None]:
    """Where the broker has a port for them. The links are open."""
    if options.datagram_fd < 0:
        yield None
        return
    assembly.plane.datagrams = assembly.plane.open_datagrams(options.datagram_fd, options.core)
    try:
        yield assembly.plane.datagrams
    finally:
        ended, assembly.plane.datagrams = assembly.plane.datagrams, None
        await ended.end()


async def _recover_only(options: CoreOptions) -> int:
    try:
        await recover_all(options)
    except CannotRunError as error:
        log.critical("%s", error)
        return EXIT_FAILED
    return EXIT_OK


async def _serve(options: CoreOptions) -> int:
    control = ControlChannel(trio.socket.from_stdlib_socket(socket.socket(fileno=options.control_fd)))
    process = CoreProcessMain(options, control)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.listen_to_supervisor)
        nursery.start_soon(process.heartbeat)
        code = await process.run()
        nursery.cancel_scope.cancel()
    return code


class CoreProcessMain:
    """One life of a core process, between its control channel and its broker."""

    def __init__(self, options: CoreOptions, control: ControlChannel) -> None:
        self._options = options
        self._control = control
        self._up: list[Any] = []
        self._up_changed = trio.Event()
        self._drain_asked = trio.Event()
        self._drain = trio.CancelScope()
        self._start = trio.CancelScope()
        self._backup: trio.CancelScope | None = None
        self._nursery: trio.Nursery
        self._is_ready = False
        self._refused: str | None = None
        self._counters: Callable[[], CoreCounters] | None = None
        self._assembly: CoreAssembly | None = None
        self._log_limiters: list[LogLimiter] = []
        self._tls_files: TlsFiles | None = None
        self._token_keys: TokenKeys | None = None
        self._links: Links | None = None
        self._cluster: ClusterNodeMain | None = None
        self._given = GivenBeforeStart()
        self._replication: CoreReplication | None = None
        self._cleaner_rate = 0.0

    async def run(self) -> int:
        try:
            with self._start:
                async with open_assembly(self._options) as assembly:
                    await self._run_broker(assembly)
        except (CannotRunError, RingUnavailable) as error:
            await self._control.send("cannot_run", reason=str(error))
            return EXIT_FAILED
        if self._refused is not None:
            return EXIT_FAILED
        await self._control.send("drained")
        return EXIT_OK

    async def _run_broker(self, assembly: CoreAssembly) -> None:
        options = self._options
        mailboxes = Mailboxes(options.core, options.mailbox_names, socket.socket(fileno=options.mailbox_fd))
        async with AsyncExitStack() as opened, trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                self._cluster, secret = self._node_of(assembly), _sasl_secret(options)
            except StartError as error:
                await self._refuse(str(error))
                return
            if self._cluster is not None:
                await self._control.send("joining")
            core = self._core_of(assembly, mailboxes, nursery, secret)
            core.serve_metadata_calls()
            self._links = _open_links(options, assembly, mailboxes)
            datagrams = await opened.enter_async_context(_datagrams_open(options, assembly))
            self._apply_settings(assembly, nursery, core.settings)
            if datagrams is not None:
                nursery.start_soon(datagrams.tell_owned, self._control.send)
            await nursery.start(mailboxes.run)
            if self._links is not None:
                nursery.start_soon(self._links.run)
            if not await self._begin(core, nursery):
                nursery.cancel_scope.cancel()
                return
            with in_queue(TaskQueue.MAINTENANCE):
                nursery.start_soon(assembly.storage.run_maintenance)
            await self._join_the_others(assembly.connections, core)
            _map_shared_memory(options, assembly)
            if not await self._begin_accepting(assembly, nursery):
                return
            if datagrams is not None:
                datagrams.start()
            nursery.start_soon(self._follow_cores, core)
            self._is_ready = True
            # No collection before it, which would hold up the loop for 50 ms: the few cycles that recovery left behind
            # stay too.
            collector = Collector(lambda: len(core.partitions))
            collector.begin()
            opened.callback(collector.end)
            assembly.plane.trim_memory()  # of what reading the metadata took: the allocator might keep it for ever
            self._counters = partial(self._count, assembly, core)
            self._assembly = assembly
            self._log_limiters = self._all_log_limiters(core, mailboxes)
            try:
                await self._control.send("ready")
                await self._drain_asked.wait()
                log.info("draining")
                if datagrams is not None:
                    datagrams.stop()
                await self._drain_or_end(core)
            finally:
                self._counters = self._assembly = None  # what they look at is about to be freed
            nursery.cancel_scope.cancel()

    def _node_of(self, assembly: CoreAssembly) -> ClusterNodeMain | None:
        """The node among others: core 0's. StartError where the directory, the secret, or what was left for this start
        cannot be used.
        """
        options = self._options
        self._given = self._given_before_start()
        if options.cluster is None or options.core != METADATA_CORE:
            return None
        from tpc_broker.node.node import ClusterNodeMain  # noqa: PLC0415 (a node alone needs none of it)

        node = ClusterNodeMain(options, assembly.disk, Path(options.data))
        node.on_removed = self._removed
        return node

    def _given_before_start(self) -> GivenBeforeStart:
        """Core 0's."""
        if self._options.core != METADATA_CORE:
            return GivenBeforeStart()
        data = Path(self._options.data)
        records = read_before_start(data, in_cluster=self._options.cluster is not None)
        if records:
            log.info("taking %d credentials of users that were made while no broker ran", len(records))
        return GivenBeforeStart(records, PendingUsers(data).forget)

    def _core_of(self, assembly: CoreAssembly, mailboxes: Mailboxes, nursery: trio.Nursery, secret: bytes) -> Core:
        options, data = self._options, Path(self._options.data)
        cluster_id = read_properties(data / "meta.properties")["cluster.id"]
        configuration = load_settings(
            options.settings, options.overrides, shown=shown_listeners(options.listeners, options.core)
        )
        core = Core(
            CoreIdentity(options.core, options.cores, options.listeners, data, cluster_id, secret),
            configuration,
            apis=APIS,
            # These get back only the requests that they gave out, so the port's wider type does no harm.
            connections=cast("Connections", assembly.connections),
            plane=cast("DataPlane", assembly.plane),
            storage=assembly.storage,
            disk=assembly.disk,
            mailboxes=mailboxes,
            clock=assembly.clock,
            chance=SystemChance(),
            nursery=nursery,
            on_settings=partial(self._apply_settings, assembly, nursery),
            cluster=self._cluster,
            replication=self._replication_of(assembly, nursery),
        )
        core.given = self._given
        keys = make_token_keys(options.listeners, configuration.settings, assembly.clock.wall_ms)
        core.tokens = self._token_keys = keys
        if keys is not None:
            nursery.start_soon(keys.run)
        return core

    def _apply_settings(self, assembly: CoreAssembly, nursery: trio.Nursery, settings: Settings) -> None:
        """Here, and core 0 for the supervisor, too."""
        _apply_settings(assembly, settings)
        if self._options.core == METADATA_CORE:
            self._cleaner_rate = settings.log_cleaner_io_max_bytes_per_second
            nursery.start_soon(self._tell_cleaners, assembly)

    async def _tell_cleaners(self, assembly: CoreAssembly) -> None:
        """What is in force when it is told: tasks that were started together run in any order."""
        threads = assembly.storage.cleaning_bounds.threads
        await self._control.send("cleaners", threads=threads, bytes_per_second=self._cleaner_rate)

    def _all_log_limiters(self, core: Core, mailboxes: Mailboxes) -> list[LogLimiter]:
        found = [core.log_limiter, mailboxes.log_limiter]
        found += [] if self._cluster is None else [self._cluster.links.log_limiter]
        return found + ([] if self._replication is None else [self._replication.replicas.links.log_limiter])

    def _replication_of(self, assembly: CoreAssembly, nursery: trio.Nursery) -> CoreReplication | None:
        """Every core's of a node among others."""
        options = self._options
        if options.cluster is None:
            return None
        from tpc_broker.node.replicas.replication import CoreReplication  # noqa: PLC0415

        self._replication = replication = CoreReplication(options, assembly.plane, assembly.storage, nursery)
        if self._cluster is not None:
            self._cluster.links.on_replica = replication.take  # core 0's port is the node's
            for method, handler in replication.handlers.items():
                self._cluster.links.serve(method, handler)
            replication.offer_steady(self._cluster.links)
            replication.on_carrier = self._cluster.carry_beats
        return replication

    def _count(self, assembly: CoreAssembly, core: Core) -> CoreCounters:
        counters = assembly.counters(core)
        counters["cleanings_under_way"] = dict(assembly.cleaner.under_way)
        if self._replication is not None:
            counters["replicas"] = self._replication.counters()
        if core.replica_watch is not None:
            counters["readiness"] = core.replica_watch.findings()._asdict()
        return counters

    async def _begin(self, core: Core, nursery: trio.Nursery) -> bool:
        """From the newest metadata to open partitions; False: it was refused."""
        if self._cluster is not None:
            links, datagrams = (socket.socket(fileno=each) for each in self._options.cluster_fds)
            await nursery.start(self._cluster.run, (links, datagrams))
        try:
            await core.start()
        except StartError as error:
            await self._refuse(str(error))
        except MetadataUnreadableError as error:
            hint = rebuild_hint(self._options.data)
            await self._refuse(f"the cluster's metadata cannot be read: {error}; {hint}")
        if missing := missing_users(core.given.records, core.view.image):
            log.error("%s", missing)
        return self._refused is None

    async def _begin_accepting(self, assembly: CoreAssembly, nursery: trio.Nursery) -> bool:
        """From the listeners; False: it was refused. Who has TLS has it before anybody is accepted."""
        options, connections = self._options, assembly.connections
        tls_files = _tls_files(options, connections)
        try:
            tls_files.begin()
        except StartError as error:
            await self._refuse(str(error))
            nursery.cancel_scope.cancel()
            return False
        nursery.start_soon(tls_files.watch)
        self._tls_files = tls_files
        connections.serve(options.listen_fds)
        return True

    async def _refuse(self, reason: str) -> None:
        """What starting again does not mend."""
        self._refused = reason
        await self._control.send("cannot_run", reason=reason)

    async def _removed(self, reason: str) -> None:
        """From its cluster: nobody is answered by it any more."""
        log.error("%s", reason)
        await self._refuse(reason)
        if self._is_ready:
            self._drain_asked.set()
        else:
            self._start.cancel()

    async def _drain_or_end(self, core: Core) -> None:
        """Drain; where that cannot be done in time, end where the process stands."""
        with self._drain:
            await core.hand_over()
            if self._cluster is not None:
                await self._cluster.leave()
            if await core.drain():
                return
        log.warning("the drain could not be finished; ending as it stands: the next start replays the journal")
        end_logging()
        os._exit(EXIT_FAILED)

    async def _join_the_others(self, connections: ClientConnections, core: Core) -> None:
        """Be named up by the supervisor and exchange leaders with the others, before the first client is answered: so
        no core that answers tells clients that this one's partitions have no leader. The others' streams are attended
        to before any link is let in: whoever is not named at once is never served.
        """
        connections.attend(core.dispatcher, core.access, _authenticated(self._options))
        if self._links is not None:
            self._links.let_in()
        await self._control.send("opened")
        while self._options.core not in self._up:
            await self._up_changed.wait()
            self._up_changed = trio.Event()
        await core.cores_changed(self._up)
        if self._links is not None:
            await self._links.wait_linked(LINKS_WAIT_S)

    async def listen_to_supervisor(self) -> None:
        async for message in self._control.receive():
            match message["kind"]:
                case "cores":
                    self._up = message["up"]
                    if self._links is not None:
                        self._links.set_up(self._up)
                    self._up_changed.set()
                case "status" if self._counters is not None or self._cluster is not None:
                    counters = self._counters() if self._counters is not None else None
                    cluster = self._cluster.counters() if self._cluster is not None else None
                    await self._control.send("status", counters=counters, cluster=cluster)
                case "backup" if self._assembly is not None and self._backup is None and not self._drain_asked.is_set():
                    self._backup = trio.CancelScope()
                    self._nursery.start_soon(self._hold_for_backup, message["token"], self._assembly, self._backup)
                case "renew":
                    self._renew()
                case "drain":
                    deadline_s = trio.current_time() + message["deadline_ms"] / 1000
                    self._drain.deadline = min(self._drain.deadline, deadline_s)
                    if self._backup is not None:
                        self._backup.cancel()
                    self._drain_asked.set()
                    if not self._is_ready:
                        log.info("told to drain before it was ready: ending the start")
                        self._start.cancel()
        log.error("the supervisor is gone; ending")
        end_logging()
        os._exit(EXIT_FAILED)  # no draining without a supervisor: the journal has everything acknowledged

    def _renew(self) -> None:
        """Certificates and keys of tokens; before there are any, the start reads what is there then."""
        if self._tls_files is not None:
            self._tls_files.look(at_all=True)
        if self._token_keys is not None:
            self._nursery.start_soon(self._token_keys.ask)

    async def _hold_for_backup(self, token: str, assembly: CoreAssembly, scope: trio.CancelScope) -> None:
        """Until a drain begins, which waits for no backup."""
        with scope:
            replicas = None if self._replication is None else self._replication.catching_up
            await hold_for_backup(self._options.core, token, assembly.storage, assembly.plane, replicas)
        self._backup = None

    async def _follow_cores(self, core: Core) -> None:
        """Tell the broker which cores are up. Its calls to a core that hangs take long; the supervisor's word to drain
        must not wait for them, so this is a task of its own, and only the latest list counts.
        """
        while True:
            await self._up_changed.wait()
            self._up_changed = trio.Event()
            await core.cores_changed(self._up)

    async def heartbeat(self) -> None:
        """Turn the loop now and then, however quiet it is: its turns are what the supervisor counts."""
        current_ring().beat_on(self._options.beats_fd, limits.CORE_BEAT_MS * 1_000_000 // 2)
        while True:
            await next_round(limits.CORE_BEAT_MS / 1000)
            if self._assembly is not None:
                self._assembly.refusals.look()
                for limiter in self._log_limiters:
                    limiter.tell()
                await self._assembly.cache.look()
                await self._assembly.spare.look()
