"""The supervisor: listening sockets, core processes, restarts, draining. It never touches the data itself.

Duties, in order:

1. lock the data directory, bind every port of the range and every mailbox, before anything is started;
2. recover all journals when the number of cores is not yesterday's, in a process of its own;
3. start one process a core with exec, hand it its listener, its mailbox and a control channel;
4. say "ready" once, when all cores are;
5. restart a core that dies, with back-off and never before the old one is reaped; kill one that hangs (`core_watch`);
6. while a core is down for over a second, accept and close on its port, so that clients ask for metadata instead of
   hanging in the backlog; tell the other cores which cores are up;
7. start cleaners for compacted topics when there is something for them (`cleaner.cleaner_lives`);
8. tell who asks what the cores count (`status.py`, `admin.py`);
9. on SIGUSR2 do the same as on SIGTERM, and then begin a new life in this process's place, with the same sockets;
10. on SIGTERM or SIGINT pass "drain" to the cores and wait until the deadline; a second signal hurries. A core that is
    not up yet is killed, and so are cleaners.

SIGHUP of a terminal is as SIGTERM; where there is none, it has the cores read certificates and keys of tokens again.

Cores ignore SIGINT, SIGTERM and SIGHUP (a terminal sends them to the whole group), from their first instruction on:
they are started with them blocked. They die with the supervisor: parent-death signal, and end of file on the control
channel.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tpc_broker import __version__, limits
from tpc_broker.engine.backend import described
from tpc_broker.engine.data_directory import DataDirectory
from tpc_broker.engine.handed_sockets import HandedSockets, environment_with, store_at_service_manager
from tpc_broker.engine.mailbox import make_mailbox_listeners
from tpc_broker.engine.notify import notify_service_manager
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId
from tpc_broker.node.membership.identity import check_directory
from tpc_broker.node.membership.options import bind_cluster
from tpc_broker.operations.backup_staging import keep_removing_left
from tpc_broker.options import ON_IO_URING, CoreOptions, ServeOptions, StartError
from tpc_broker.process.cleaner_lives import Cleaners
from tpc_broker.process.control import TERMINAL_SIGNALS, ControlChannel
from tpc_broker.process.core_watch import CoreWatch, Judgement, activity_of
from tpc_broker.process.datagram_port import DatagramPort
from tpc_broker.process.fallbacks import find_fallbacks
from tpc_broker.process.listening import ListeningSockets, drop_capabilities, lend_capabilities
from tpc_broker.process.logs import end_logging
from tpc_broker.process.sasl_secret import make_secret
from tpc_broker.process.started_process import describe_exit, start_process, wait_for
from tpc_broker.telemetry.status import serve_control, serve_status

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from tpc_broker.metadata.broker_config import Settings
    from tpc_broker.node.counters import ClusterCounters
    from tpc_broker.process.control import Message
    from tpc_broker.telemetry.counters import CoreCounters, CoreStatus

log = logging.getLogger(__name__)

EXIT_OK, EXIT_FAILED, EXIT_CANNOT_RUN = 0, 1, 2
RELOAD_SIGNAL = signal.SIGUSR2
"""Not SIGHUP, which a terminal that goes away sends to every process of its group."""
RENEW_SIGNAL = signal.SIGHUP
"""Where no terminal can send it: `ignore_hangups`."""
CHECK_ONLY_VARIABLE = "TPC_CHECK_ONLY"
"""In the environment of `serve`: say whether it could begin, and end."""
CHECK_S = 60.0
READY_ATTEMPTS, READY_RETRY_S = 600, 0.1
"""A service manager that does not read has to be told all the same, when it does."""
CORE_COMMAND = (sys.executable, "-m", "tpc_broker.process.core_start")


@dataclass(slots=True)
class CoreProcess:
    """One life of one core."""

    process: subprocess.Popen[bytes]
    life_fd: int
    """Its pidfd."""
    control: ControlChannel
    ready: trio.Event
    watch: CoreWatch
    beats_fd: int
    """The counter that the core adds to while its loop turns."""
    ready_at_s: float = 0.0
    cannot_run: str | None = None
    is_joining: bool = False
    """It has the cluster's links, and tells of them before it is ready."""
    counters: CoreCounters | None = None
    cluster: ClusterCounters | None = None
    """What it told last, and that it has told since it was asked."""
    counters_told: trio.Event = field(default_factory=trio.Event)


def restart_delay_ms(previous_ms: int, served_ms: float) -> int:
    """How long to wait before a core that ended is started again.

    `previous_ms`: the delay before the life that ended (0: it was the first); `served_ms`: how long that life was
    ready. One crash costs a tenth of a second; only a core that crashes again soon, or never gets ready, waits twice
    as long each time.
    """
    if previous_ms == 0 or served_ms >= limits.CORE_HEALTHY_MS:
        return limits.CORE_RESTART_DELAY_MS_MIN
    return min(previous_ms * 2, limits.CORE_RESTART_DELAY_MS_MAX)


class Supervisor:
    def __init__(self, options: ServeOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._listening: ListeningSockets
        self._datagrams: DatagramPort | None = None
        self._cluster_sockets: list[tuple[socket.socket, ...]] = []
        self._lent: tuple[int, ...] = ()
        self._mailbox_names: list[str] = []
        self._mailbox_listeners: list[socket.socket] = []
        self._cores: dict[CoreId, CoreProcess] = {}
        self._up: set[CoreId] = set()
        self._draining = self._is_reloading = False
        self._hurried = trio.Event()
        self._exit_code = EXIT_OK
        self._given_up = ""
        self._all_ready = trio.Event()
        self._ever_ready: set[CoreId] = set()
        self._restarts: Counter[CoreId] = Counter()
        self._looking = trio.Lock()
        self._stop: trio.CancelScope
        self._admin_sockets: list[socket.socket] = []
        self._cleaners: Cleaners | None = None

    # Rule: All ports are bound before "ready", and a failure names the port. Held by
    # tests/process/test_supervisor_refusals.py.
    async def run(self) -> int:
        """Until drained. Returns the exit code; raises StartError where it cannot start."""
        options = self._options
        with DataDirectory.open(options.data) as data:
            self._cluster_sockets = self._bind_cluster()
            handed = HandedSockets.of_environment()
            self._listening = ListeningSockets(
                options.listeners, loader=self._settings().ebpf_loader, cpus=options.cpus, handed=handed
            )
            self._datagrams = self._bind_datagrams(handed)
            admin = self._bind_admin(handed)
            handed.close()
            self._tell_start()
            store_at_service_manager(self._lasting())
            self._lent = drop_capabilities()
            level = logging.INFO if options.backend == ON_IO_URING else logging.WARNING
            log.log(level, "the backend is %s", described(options.backend))
            for fallback in (*options.fallbacks, *find_fallbacks(options.data)):
                log.warning("%s", fallback)
            for open_door in options.open_doors:
                log.warning("%s", open_door)
            self._mailbox_names, self._mailbox_listeners = make_mailbox_listeners(options.cores)
            await self._recover_if_cores_changed(data)
            data.write_cores(options.cores)
            self._make_sasl_secret()
            async with trio.open_nursery() as nursery:
                self._stop = nursery.cancel_scope
                self._cleaners = cleaners = Cleaners()
                cleaners.follow(self._settings())
                await nursery.start(self._watch_signals, nursery)
                nursery.start_soon(cleaners.run)
                for core in range(options.cores):
                    nursery.start_soon(self._keep_core_running, CoreId(core))
                nursery.start_soon(self._announce_ready)
                nursery.start_soon(self._watch_heartbeats)
                nursery.start_soon(self._feed_service_watchdog)
                nursery.start_soon(keep_removing_left, options.data)
                nursery.start_soon(
                    serve_status, options.data, self._look, self._report_listeners, options.backend, options.open_doors
                )
                nursery.start_soon(serve_control, options.data, self._control)
                nursery.start_soon(admin)
        if self._given_up:  # behind the last words of all cores: what there is to do is the last line
            log.critical("%s", self._given_up)
        return self._exit_code

    def _tell_start(self) -> None:
        """When nothing is refused any more: that is one line, and no other."""
        options = self._options
        log.info("tpc-broker %s starts as node %d%s: %d cores, data in %s", __version__, self._settings().node_id,
                 "" if options.cluster is None else " of a cluster", options.cores, options.data)  # fmt: skip
        if options.settings_ignored:
            log.info("settings without effect here: %s", ", ".join(options.settings_ignored))

    def _make_sasl_secret(self) -> None:
        """Where clients log in."""
        if any(listener.security.authenticates for listener in self._options.listeners):
            try:
                make_secret(self._options.data)
            except OSError as error:
                raise StartError(f"{self._options.data}: {error.strerror}") from error

    def _settings(self) -> Settings:
        return load_settings(self._options.settings_text, self._options.overrides).settings

    def _bind_datagrams(self, handed: HandedSockets) -> DatagramPort | None:
        options, loader = self._options, self._settings().ebpf_loader
        if options.datagram is None:
            return None
        return DatagramPort(options.datagram, options.cores, loader=loader, cpus=options.cpus, handed=handed)

    def _lasting(self) -> list[socket.socket]:
        """Sockets that the next life can take over."""
        datagrams = self._datagrams.lasting() if self._datagrams is not None else ()
        return [*self._listening.lasting(), *datagrams, *self._admin_sockets]

    def _report_listeners(self) -> list[dict[str, Any]]:
        return [*self._listening.report(), *([self._datagrams.report()] if self._datagrams is not None else [])]

    def _set_alive(self, core: CoreId, *, alive: bool) -> None:
        """Whether a core takes what the kernel places."""
        self._listening.set_alive(core, alive=alive)
        if self._datagrams is not None:
            self._datagrams.set_alive(core, alive=alive)

    def _bind_cluster(self) -> list[tuple[socket.socket, ...]]:
        """Those of each core; none without a cluster."""
        options = self._options
        check_directory(options.data, options.cluster, options.cores)
        return [] if options.cluster is None else bind_cluster(options.cluster.address, options.cores)

    def _bind_admin(self, handed: HandedSockets) -> Callable[[], Awaitable[None]]:
        """What serves the admin endpoint. A broker without one is spared HTTP and metrics."""
        if self._options.admin is None:
            return trio.lowlevel.checkpoint
        from tpc_broker.telemetry.admin import AdminServer, bind_admin  # noqa: PLC0415

        listening = bind_admin(self._options.admin, handed)
        self._admin_sockets = [listening]
        data, backend = self._options.data, self._options.backend
        server = AdminServer(data, self._look, lambda: self._draining, self._report_listeners, backend)
        return partial(server.serve, listening.dup())  # closed at its end; the next life takes the other one

    # -- start ----------------------------------------------------------------------------------------------------

    async def _recover_if_cores_changed(self, data: DataDirectory) -> None:
        journals = data.journal_cores()
        if not journals or (data.cores == self._options.cores and not data.is_handover_unfinished):
            return
        log.info("cores: %s yesterday, %d now; recovering every journal first", data.cores, self._options.cores)
        try:
            process, life_fd = _start_core_process(self._core_options(CoreId(0), control_fd=-1, recover_only=True))
        except OSError as error:
            raise StartError(f"recovery of yesterday's journals could not be started: {error}") from error
        try:
            code = await wait_for(process, life_fd)
        finally:
            os.close(life_fd)
        if code != 0:
            raise StartError(f"recovery of yesterday's journals failed (exit code {code}); the log says why")

    def _core_options(
        self, core: CoreId, *, control_fd: int, beats_fd: int = -1, recover_only: bool = False
    ) -> CoreOptions:
        return CoreOptions(
            core=core,
            cores=self._options.cores,
            data=str(self._options.data),
            listeners=self._options.listeners,
            listen_fds=tuple(each.fileno() for each in self._listening.of_core(core)),
            mailbox_fd=self._mailbox_listeners[core].fileno() if core < len(self._mailbox_listeners) else -1,
            control_fd=control_fd,
            mailbox_names=tuple(self._mailbox_names),
            cpu=self._options.cpus[core] if self._options.cpus and core < self._options.cores else None,
            settings=self._options.settings_text,
            overrides=self._options.overrides,
            log_style=self._options.log_style,
            log_level=self._options.log_level,
            supervisor_pid=os.getpid(),
            recover_only=recover_only,
            beats_fd=beats_fd,
            loads_fd=self._listening.loads_fd,
            quotas_fd=self._listening.quotas_fd,
            datagram_fd=self._datagrams.of_core(core) if self._datagrams is not None else -1,
            backend=self._options.backend.name,
            cleaner_fd=self._cleaners.door_fd if self._cleaners is not None else -1,
            cluster=self._options.cluster,
            cluster_fds=()
            if recover_only or not self._cluster_sockets
            else tuple(each.fileno() for each in self._cluster_sockets[core]),
        )

    def _spawn(self, core: CoreId) -> CoreProcess:
        """OSError: there is too little of something for it; then nothing of it is left."""
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            undo.callback(ours.close)
            undo.callback(theirs.close)
            beats_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, beats_fd)
            options = self._core_options(core, control_fd=theirs.fileno(), beats_fd=beats_fd)
            descriptors = [*options.listen_fds, options.mailbox_fd, options.control_fd, beats_fd]
            shared = (options.loads_fd, options.quotas_fd, options.datagram_fd, options.cleaner_fd)
            descriptors += [each for each in shared if each >= 0]
            descriptors += options.cluster_fds
            process, life_fd = _start_core_process(options, descriptors)
            undo.pop_all()
        theirs.close()
        control = ControlChannel(trio.socket.from_stdlib_socket(ours))
        return CoreProcess(process, life_fd, control, trio.Event(), CoreWatch(_now_ms()), beats_fd)

    # -- the life of one core -------------------------------------------------------------------------------------

    async def _keep_core_running(self, core: CoreId) -> None:
        delay_ms = attempts = 0
        while not self._draining:
            try:
                life = self._spawn(core)
            except OSError as error:  # descriptors, processes or memory are short
                what, cannot_run, served_ms = f"could not be started ({error})", None, 0.0
            else:
                code, cannot_run, served_ms = await self._live(core, life)
                what = f"ended ({describe_exit(code)})"
            if self._draining:
                return
            attempts += 1
            if cannot_run is not None:
                self._give_up(EXIT_CANNOT_RUN, f"core {core} cannot run here: {cannot_run}")
                return
            if core not in self._ever_ready and attempts >= limits.CORE_START_ATTEMPTS_MAX:
                self._give_up(EXIT_FAILED, f"core {core} failed {attempts} times before it was ready; giving up")
                return
            delay_ms = restart_delay_ms(delay_ms, served_ms)
            self._restarts[core] += 1
            log.error("core %d %s; starting it again in %d ms", core, what, delay_ms)
            await self._down_for(core, delay_ms)

    async def _live(self, core: CoreId, life: CoreProcess) -> tuple[int, str | None, float]:
        """Listen to a core that was started, and reap it. Returns its exit code, why it cannot run, if it said so, and
        for how many milliseconds it was ready.
        """
        self._cores[core] = life
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen_to, core, life)
                nursery.start_soon(self._close_port_while_starting, core, life)
                await life.control.send("cores", up=sorted(self._up))
                code = await wait_for(life.process, life.life_fd)
                nursery.cancel_scope.cancel()
        finally:
            self._set_alive(core, alive=False)
            if life.process.poll() is None:
                life.process.kill()
                with trio.CancelScope(shield=True):
                    await wait_for(life.process, life.life_fd)
            self._cores.pop(core, None)
            if self._draining:  # nobody takes this socket over; who calls the core is to be refused, not to wait
                self._mailbox_listeners[core].close()
            await self._set_up(core, up=False)
            os.close(life.beats_fd)
            os.close(life.life_fd)
            with trio.CancelScope(shield=True):
                await life.control.close()
        ready_ms = (trio.current_time() - life.ready_at_s) * 1000 if life.ready.is_set() else 0.0
        return code, life.cannot_run, ready_ms

    async def _listen_to(self, core: CoreId, life: CoreProcess) -> None:
        async for message in life.control.receive():
            match message["kind"]:
                case "opened":
                    await self._set_up(core, up=True)
                case "ready":
                    life.ready_at_s = trio.current_time()
                    life.watch = CoreWatch(_now_ms())
                    life.ready.set()
                    self._set_alive(core, alive=True)
                    self._ever_ready.add(core)
                    if len(self._ever_ready) == self._options.cores:
                        self._all_ready.set()
                case "owned" | "cleaners":
                    self._pass_on(core, message)
                case "joining":
                    life.is_joining = True
                case "status":
                    life.counters, life.cluster = message["counters"], message["cluster"]
                    life.counters_told.set()
                case "cannot_run":
                    life.cannot_run = message["reason"]
                case "drained":
                    log.info("core %d drained", core)

    def _pass_on(self, core: CoreId, message: Message) -> None:
        """What a core says to the kernel's program, or to cleaners."""
        if message["kind"] == "owned" and self._datagrams is not None:
            self._datagrams.own(core, message["topic"], message["partitions"])
        elif message["kind"] == "cleaners" and self._cleaners is not None and not self._draining:
            self._cleaners.set_bounds(message["threads"], message["bytes_per_second"])

    async def _set_up(self, core: CoreId, *, up: bool) -> None:
        """Tell all cores which cores are up."""
        (self._up.add if up else self._up.discard)(core)
        with trio.CancelScope(shield=True), trio.move_on_after(1):
            for other in list(self._cores.values()):
                await other.control.send("cores", up=sorted(self._up))

    async def _down_for(self, core: CoreId, delay_ms: int) -> None:
        with trio.move_on_after(delay_ms / 1000):
            await trio.sleep(limits.CORE_DOWN_GRACE_MS / 1000)
            await self._accept_and_close(core)

    async def _close_port_while_starting(self, core: CoreId, life: CoreProcess) -> None:
        """A core that takes long to come back (replay) must not hold its clients in the backlog meanwhile."""
        if core not in self._ever_ready:
            return
        with trio.move_on_after(limits.CORE_DOWN_GRACE_MS / 1000):
            await life.ready.wait()
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._accept_and_close, core)
            await life.ready.wait()
            nursery.cancel_scope.cancel()

    async def _accept_and_close(self, core: CoreId) -> None:
        """On the core's sockets of all listeners, until cancelled."""
        async with trio.open_nursery() as nursery:
            for each in self._listening.of_core(core):
                nursery.start_soon(_accept_and_close, each)

    # -- ready, heartbeats, signals -------------------------------------------------------------------------------

    async def _announce_ready(self) -> None:
        await self._all_ready.wait()
        options = self._options
        places = " and ".join(listener.summary() for listener in options.listeners)
        self._say(
            f"tpc-broker is ready: {options.cores} core{'s' if options.cores > 1 else ''} on {places}, "
            f"data in {options.data}"
        )
        for _attempt in range(READY_ATTEMPTS):
            if notify_service_manager("READY=1") or "NOTIFY_SOCKET" not in os.environ:
                return
            await trio.sleep(READY_RETRY_S)

    async def _watch_heartbeats(self) -> None:
        while True:
            await trio.sleep(limits.CORE_HEARTBEAT_MS / 1000)
            for core, life in self._cores.items():
                if life.ready.is_set():
                    self._look_after(core, life)

    def _look_after(self, core: CoreId, life: CoreProcess) -> None:
        watch = life.watch
        match _judge(life):
            case Judgement.STARVED:
                log.warning(
                    "core %d is starved: no sign of life for %d ms, in which it got %d ms of CPU time; the machine has "
                    "more work than CPUs, or waits for its disk or for memory; the core is left alone",
                    core, watch.silent_ms, watch.cpu_ms,
                )  # fmt: skip
            case Judgement.RECOVERED:
                log.warning("core %d is starved no longer: it was silent for %d ms", core, watch.silent_ms)
            case Judgement.HANGS:
                log.error(
                    "core %d gave no sign of life for %d ms and hangs (it used %d ms of CPU time); killing it",
                    core, watch.silent_ms, watch.cpu_ms,
                )  # fmt: skip
                life.process.kill()
            case Judgement.FINE:
                pass

    async def _control(self, request: dict[str, Any]) -> dict[str, Any]:
        """What `control.sock` is asked for. ValueError: refused."""
        if request.get("command") != "backup" or not isinstance(request.get("token"), str):
            raise ValueError("this broker knows the command backup, with a token")
        lives = dict(self._cores)
        away = sorted(set(range(self._options.cores)) - {core for core, life in lives.items() if life.ready.is_set()})
        if away or self._draining:
            raise ValueError("the broker is draining" if self._draining else f"core {away[0]} is not ready")
        for life in lives.values():
            await life.control.send("backup", token=request["token"])
        return {"cores": {str(core): life.process.pid for core, life in lives.items()}}

    async def _look(self) -> list[CoreStatus]:
        """All cores with what they count now; whoever asks meanwhile waits."""
        async with self._looking, trio.open_nursery() as nursery:
            for life in self._cores.values():
                nursery.start_soon(_ask_for_counters, life)
        return [self._status_of(CoreId(core)) for core in range(self._options.cores)]

    def _status_of(self, core: CoreId) -> CoreStatus:
        restarts = self._restarts[core]
        status: CoreStatus = {"core": core, "pid": None, "ready": False, "restarts": restarts, "up_ms": 0}
        life = self._cores.get(core)
        if life is not None:
            status["pid"] = life.process.pid
            status["ready"] = life.ready.is_set()
            if life.ready.is_set():
                status["up_ms"] = int((trio.current_time() - life.ready_at_s) * 1000)
            if life.counters_told.is_set():
                if life.counters is not None:
                    status["counters"] = life.counters
                if life.cluster is not None:
                    status["cluster"] = life.cluster
        return status

    async def _feed_service_watchdog(self) -> None:
        interval_us = int(os.environ.get("WATCHDOG_USEC", "0"))
        while interval_us:
            notify_service_manager("WATCHDOG=1")
            await trio.sleep(interval_us / 3e6)

    async def _watch_signals(
        self, nursery: trio.Nursery, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        renews = signal.getsignal(RENEW_SIGNAL) == signal.SIG_IGN
        with trio.open_signal_receiver(*TERMINAL_SIGNALS, RELOAD_SIGNAL) as signals, _blocked_at_the_end():
            task_status.started()
            async for number in signals:
                if number == RELOAD_SIGNAL:
                    nursery.start_soon(self._reload)
                    continue
                if number == RENEW_SIGNAL and renews:
                    nursery.start_soon(self._renew)
                    continue
                if self._draining and not self._is_reloading:
                    log.warning("%s again: hurrying", signal.Signals(number).name)
                    self._hurried.set()
                    continue
                log.info("%s: draining", signal.Signals(number).name)
                notify_service_manager("STOPPING=1")
                self._is_reloading = False  # whatever has been begun of it: nothing is started anew
                if not self._draining:
                    self._draining = True
                    nursery.start_soon(self._drain)

    async def _renew(self) -> None:
        log.info("%s: certificates, lists of the revoked and keys of tokens are read again", RENEW_SIGNAL.name)
        for life in list(self._cores.values()):
            await life.control.send("renew")

    async def _reload(self) -> None:
        """Drain, and have the binary and the configuration that are there now take over in this process's place, with
        the listening sockets: who connects meanwhile waits. Not when that would refuse the configuration.
        """
        if self._draining or self._is_reloading:
            return
        self._is_reloading = True
        reason = await self._why_not_to_reload()
        if reason is not None or self._draining:
            log.error("not reloaded, and nothing was changed: %s", reason or "the broker is being stopped")
            self._is_reloading = False
            return
        log.info("%s: draining, then starting anew", RELOAD_SIGNAL.name)
        self._draining = True
        notify_service_manager(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        await self._drain()

    async def _why_not_to_reload(self) -> str | None:
        environment = {**os.environ, CHECK_ONLY_VARIABLE: "1"}
        try:
            with trio.fail_after(CHECK_S):
                done = await trio.run_process(
                    _serve_command(), env=environment, capture_stdout=True, capture_stderr=True, check=False,
                    preexec_fn=partial(lend_capabilities, self._lent) if self._lent else None,
                )  # fmt: skip
        except (OSError, trio.TooSlowError) as error:
            return f"the configuration could not be checked: {error}"
        said = done.stderr.decode(errors="replace").strip().splitlines()
        return None if done.returncode == EXIT_OK else (said[-1] if said else f"exit code {done.returncode}")

    def start_anew(self) -> None:
        """After `run`, when this process is to be followed by another one in its place; else nothing."""
        if not self._is_reloading or self._exit_code != EXIT_OK:
            return
        environment = environment_with(self._lasting())
        lend_capabilities(self._lent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*TERMINAL_SIGNALS, RELOAD_SIGNAL})
        signal.signal(RELOAD_SIGNAL, signal.SIG_IGN)  # until the next life listens to it
        end_logging()
        os.execve(sys.executable, _serve_command(), environment)  # noqa: S606 (no shell is wanted)

    async def _drain(self) -> None:
        deadline_ms = self._settings().drain_deadline_ms
        if self._cleaners is not None:
            self._cleaners.end()
        for core, life in list(self._cores.items()):
            if core in self._up:
                await life.control.send("drain", deadline_ms=deadline_ms)
            else:  # it answers nobody before it is told that it is up, and may be deaf for seconds while it loads
                log.info("core %d was not up yet; ending its start", core)
                life.process.kill()
        await self._wait_until_gone(deadline_ms / 1000, self._hurried.wait)
        if self._cores:
            for life in list(self._cores.values()):
                await life.control.send("drain", deadline_ms=limits.DRAIN_HURRIED_MS)
            await self._wait_until_gone(limits.DRAIN_HURRIED_MS / 1000, trio.sleep_forever)
        for core, life in list(self._cores.items()):
            log.warning("core %d did not drain in time; killing it (its journal is replayed at the next start)", core)
            life.process.kill()
        await self._wait_until_gone(10, trio.sleep_forever)
        self._stop.cancel()

    async def _wait_until_gone(self, seconds: float, unless: Callable[[], Awaitable[object]]) -> None:
        async def give_up() -> None:
            await unless()
            nursery.cancel_scope.cancel()

        with trio.move_on_after(seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(give_up)
                while self._cores:
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    def _give_up(self, code: int, reason: str) -> None:
        self._given_up = self._given_up or reason
        self._exit_code = self._exit_code or code
        self._draining = True
        self._stop.cancel()


def ignore_hangups() -> None:
    """Where there is no terminal that could hang up: then the signal means what it means to other servers. `nohup` has
    done the same.
    """
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        signal.signal(RENEW_SIGNAL, signal.SIG_IGN)


def _serve_command() -> list[str]:
    """The command that this process was started with."""
    return [sys.executable, "-m", "tpc_broker.process.main", *sys.argv[1:]]


def _now_ms() -> float:
    return trio.current_time() * 1000


def _judge(life: CoreProcess) -> Judgement:
    try:
        os.eventfd_read(life.beats_fd)
    except BlockingIOError:
        try:
            activity = activity_of(life.process.pid)
        except OSError:
            return Judgement.FINE
        return life.watch.silent(_now_ms(), activity)
    return life.watch.heard(_now_ms())


async def _ask_for_counters(life: CoreProcess) -> None:
    life.counters_told = trio.Event()
    if not (life.ready.is_set() or life.is_joining):
        return
    with trio.move_on_after(limits.STATUS_ANSWER_MS / 1000):
        await life.control.send("status")
        await life.counters_told.wait()


@contextlib.contextmanager
def _blocked_at_the_end() -> Iterator[None]:
    """From the end of the block to that of the process: a second signal that comes late changes no exit code."""
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {*TERMINAL_SIGNALS, RELOAD_SIGNAL})


# Rule: Cores are started with exec, die with their supervisor, and ignore the terminal's signals. One that hangs is
# killed; one that gets no CPU is not. See also tpc_broker/process/core_watch.py, tpc_broker/process/core.py. Held by
# tests/process/test_supervisor_lives.py, tests/process/test_core_watch.py.
def _start_core_process(options: CoreOptions, descriptors: Sequence[int] = ()) -> tuple[subprocess.Popen[bytes], int]:
    """`start_process`, of a core."""
    options_fd = options.to_file()
    try:
        return start_process([*CORE_COMMAND, *options.to_arguments(options_fd)], [*descriptors, options_fd])
    finally:
        os.close(options_fd)


async def _accept_and_close(listening: socket.socket) -> None:
    listening.setblocking(False)  # noqa: FBT003  (the name of the method says it)
    while True:
        await trio.lowlevel.wait_readable(listening.fileno())
        try:
            connection, _address = listening.accept()
        except OSError:
            await trio.sleep(0.05)
            continue
        connection.close()
