"""The supervisor's listening sockets, one a core and listener, and who steers connections among those of a shared one.

Where each core has an address of its own nothing is steered. Where all share one (SO_REUSEPORT), a program in the
kernel chooses (`tpc_broker.ebpf`); it needs to be told which cores are up.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.ebpf.loaders import LoaderUnavailableError
from tpc_broker.ebpf.steering import LOAD, Select, Steering, make_loads
from tpc_broker.engine.handed_sockets import HandedSockets
from tpc_broker.metadata.listeners import ListenerMode, Placement
from tpc_broker.options import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tpc_broker.metadata.listeners import Address, Listener

BACKLOG: Final = 4096
FORGET_S: Final = 5.0
"""For the service manager to close what it is told to."""
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_IS_SET, _PR_CAP_AMBIENT_RAISE, _PR_CAP_AMBIENT_CLEAR_ALL = 1, 2, 4
_CAPABILITIES: Final = 64
_SELECT: Final = {
    Placement.LOAD: Select.LOAD,
    Placement.CPU: Select.CPU,
    Placement.SOURCE_PORT: Select.SOURCE_PORT,
}


class ListeningSockets:
    def __init__(
        self,
        listeners: Sequence[Listener],
        *,
        loader: str,
        cpus: Sequence[int] | None = None,
        handed: HandedSockets | None = None,
    ) -> None:
        """Bind all, but those that an earlier life has `handed` over; who gave them closes the rest. `loader`: see
        `ebpf.loader`. `cpus`: those the cores are pinned to. StartError names the port, or what is missing and the
        command that mends it.
        """
        handed = HandedSockets() if handed is None else handed
        self.loads_fd = self.quotas_fd = -1
        """For cores that show their load; -1: nobody looks at it."""
        self._listeners = listeners
        self._steered: dict[int, Steering] = {}
        with ExitStack() as undo:
            self._sockets = [_bind_all(listener, handed, undo) for listener in listeners]
            for number, listener in enumerate(listeners):
                if listener.mode is ListenerMode.SHARED:
                    if self.quotas_fd < 0:
                        self.quotas_fd = _node_table()
                        undo.callback(os.close, self.quotas_fd)
                    self._steered[number] = self._steer(number, loader, cpus, undo)
            undo.pop_all()

    def lasting(self) -> list[socket.socket]:
        """Those that the next life can take over."""
        return [each for sockets in self._sockets for each in sockets]

    def _steer(self, number: int, loader: str, cpus: Sequence[int] | None, undo: ExitStack) -> Steering:
        listener = self._listeners[number]
        try:
            if self.loads_fd < 0:
                self.loads_fd = make_loads(len(listener.addresses))
                undo.callback(os.close, self.loads_fd)
            select = _SELECT[listener.placement]
            steering = Steering(loader, len(listener.addresses), select, cpus=cpus, loads_fd=self.loads_fd)
            undo.callback(steering.close)
            steering.attach(self._sockets[number])
        except LoaderUnavailableError as error:
            raise _needs_steering(listener, error) from error
        return steering

    def of_core(self, core: int) -> list[socket.socket]:
        """In the order of the listeners."""
        return [sockets[core] for sockets in self._sockets]

    # Rule: A core that is down gets no connection of a shared listener. Its number of open connections is in the
    # program's map at once. See also ebpf, native/net/connection.c. Held by tests/ebpf,
    # tests/integration/test_shared_listener.py.
    def set_alive(self, core: int, *, alive: bool) -> None:
        """Whether new connections to shared listeners may be placed on a core."""
        for steering in self._steered.values():
            if steering.is_alive(core) != alive:
                steering.set_alive(core, alive=alive)

    def report(self) -> list[dict[str, Any]]:
        """What `tpc-broker steering` tells, by listener."""
        return [
            {
                "name": listener.name,
                "mode": str(listener.mode),
                "addresses": [str(address) for address in listener.addresses],
                "steering": _steering_report(listener, self._steered.get(number)),
            }
            for number, listener in enumerate(self._listeners)
        ]


def _steering_report(listener: Listener, steering: Steering | None) -> dict[str, Any] | None:
    if steering is None:
        return None
    counts, runs = steering.counts(), steering.runs()
    return {
        "loader": steering.loader,
        "placement": str(listener.placement),
        "alive": [steering.is_alive(core) for core in range(steering.cores)],
        "selected": list(counts.selected),
        "fallback_down": counts.fallback_down,
        "fallback_kernel": counts.fallback_kernel,
        "runs_measured": runs.runs,
        "runs_measured_ns": runs.time_ns,
    }


def drop_capabilities() -> tuple[int, ...]:
    """Those that an unprivileged user was lent for the program: whatever is started from here on has none of them.
    Returns what was lent, for `lend_capabilities`.
    """
    call = ctypes.CDLL(None, use_errno=True).prctl
    every = range(_CAPABILITIES)
    lent = tuple(each for each in every if call(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_IS_SET, each, 0, 0) == 1)
    call(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    return lent


def lend_capabilities(lent: Iterable[int]) -> None:
    """To what this thread executes next: it needs them for its own program."""
    call = ctypes.CDLL(None, use_errno=True).prctl
    for each in lent:
        call(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, each, 0, 0)


def _node_table() -> int:
    from tpc_broker.engine.quotas import make_node_table  # noqa: PLC0415 (only shared listeners need it here)

    return make_node_table()


def map_load(loads_fd: int, core: int) -> memoryview:
    """A core's own place in the map of loads, in memory."""
    mapped = mmap.mmap(loads_fd, -(-(core + 1) * LOAD.size // mmap.PAGESIZE) * mmap.PAGESIZE)
    return memoryview(mapped)[core * LOAD.size : (core + 1) * LOAD.size]


def check_steering(listeners: Sequence[Listener], loader: str) -> None:
    """StartError where the program that listeners of mode shared need could not be loaded here."""
    for listener in listeners:
        if listener.mode is ListenerMode.SHARED:
            try:
                Steering(loader, len(listener.addresses), _SELECT[listener.placement]).close()
            except LoaderUnavailableError as error:
                raise _needs_steering(listener, error) from error
            return


def _needs_steering(listener: Listener, error: LoaderUnavailableError) -> StartError:
    return StartError(f"listener {listener.name} has mode shared, which needs eBPF: {error}")


def _bind_all(listener: Listener, handed: HandedSockets, undo: ExitStack) -> list[socket.socket]:
    is_shared = listener.mode is ListenerMode.SHARED
    taken: list[socket.socket | None] = []
    for address in listener.addresses:
        one = handed.take(*address, is_shared=is_shared)
        taken.append(None if one is None else undo.enter_context(one))
    until_s = time.monotonic() + (FORGET_S if handed.has_closed else 0)
    if is_shared and not any(taken):  # they share the port with any process of this user: nobody else may have it yet
        _bind(listener, 0, is_shared=False, until_s=until_s).close()
    return [
        undo.enter_context(_bind(listener, core, is_shared=is_shared, until_s=until_s)) if one is None else one
        for core, one in enumerate(taken)
    ]


def _bind(listener: Listener, core: int, *, is_shared: bool, until_s: float) -> socket.socket:
    """`until_s`: a port that is in use is tried again until then."""
    while True:
        try:
            return _bind_once(listener.addresses[core], is_shared=is_shared)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= until_s:
                raise StartError(_bind_message(error, listener, core)) from error
            time.sleep(0.01)


# Rule: A port that is shared by the cores is shared with nobody else. See also tpc_broker/process/datagram_port.py.
# Held by tests/integration/test_shared_listener.py, tests/integration/test_datagrams.py.
def _bind_once(address: Address, *, is_shared: bool) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_shared:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def _bind_message(error: OSError, listener: Listener, core: int) -> str:
    host, port = listener.addresses[core]
    range_text = f"core {core} of {len(listener.addresses)} answers on port {port}"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use ({range_text}); free it or choose another --listen"
    return f"cannot listen on {host}:{port}: {error} ({range_text})"
