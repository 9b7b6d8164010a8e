"""The port for datagrams: a UDP socket a core, and the kernel's program that gives each datagram to its partition's
core.

The supervisor holds the sockets and writes the program's map of owners, as the cores tell it. Where the program cannot
be loaded, the kernel deals datagrams out by a hash of their senders' addresses, and a core that gets another's sends it
on over the link (`native/requests/datagram.h`): that works everywhere, and costs a forward.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tpc_broker import limits
from tpc_broker.ebpf.loaders import LoaderUnavailableError
from tpc_broker.ebpf.steering import Select, Steering, disown, own
from tpc_broker.engine.handed_sockets import HandedSockets
from tpc_broker.options import StartError
from tpc_broker.process.listening import FORGET_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.metadata.listeners import Address

log = logging.getLogger(__name__)



class DatagramPort:
    def __init__(
        self,
        address: Address,
        cores: int,
        *,
        loader: str,
        cpus: Sequence[int] | None = None,
        handed: HandedSockets | None = None,
    ) -> None:
        """Bind, but what an earlier life has `handed` over. `loader`: see `ebpf.loader`. StartError names the port."""
        self._address = address
        self._steering: Steering | None = None
        self._owned: list[dict[int, set[int]]] = [{} for _ in range(cores)]
        with ExitStack() as undo:
            self._sockets = _bind_all(address, cores, HandedSockets() if handed is None else handed, undo)
            if cores > 1:
                self._steer(loader, cpus, undo)
            undo.pop_all()

    def _steer(self, loader: str, cpus: Sequence[int] | None, undo: ExitStack) -> None:
        try:
            steering = Steering(loader, len(self._sockets), Select.OWNER, cpus=cpus)
            undo.callback(steering.close)
            steering.attach(self._sockets)
        except LoaderUnavailableError as error:
            log.warning("datagrams are dealt out by their senders' addresses, and sent on between cores: %s", error)
            return
        self._steering = steering

    def lasting(self) -> list[socket.socket]:
        """Those that the next life can take over."""
        return list(self._sockets)

    def of_core(self, core: int) -> int:
        """The descriptor of a core's socket."""
        return self._sockets[core].fileno()

    def set_alive(self, core: int, *, alive: bool) -> None:
        """Whether a core takes datagrams. One that takes none any more owns nothing either, until it says so."""
        if not alive:
            for topic in list(self._owned[core]):
                self.own(core, topic, ())
        if self._steering is not None and self._steering.is_alive(core) != alive:
            self._steering.set_alive(core, alive=alive)

    def own(self, core: int, topic: int, partitions: Sequence[int]) -> None:
        """A core owns these partitions of a topic, and no others."""
        before, now = self._owned[core].pop(topic, set()), set(partitions)
        if now:
            self._owned[core][topic] = now
        if self._steering is None:
            return
        for partition in before - now:
            disown(self._steering.owners_fd, topic, partition, core)
        try:
            for partition in now - before:
                own(self._steering.owners_fd, topic, partition, core)
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise
            log.warning("the kernel's map of owners is full: more datagrams are sent on between cores")

    def report(self) -> dict[str, Any]:
        """As a listener's in `ListeningSockets.report`."""
        steering = self._steering
        found: dict[str, Any] = {
            "name": "datagrams",
            "mode": "shared",
            "addresses": [str(self._address)],
            "steering": None,
        }
        if steering is not None:
            counts, runs = steering.counts(), steering.runs()
            found["steering"] = {
                "loader": steering.loader,
                "placement": "owner",
                "alive": [steering.is_alive(core) for core in range(steering.cores)],
                "selected": list(counts.selected),
                "fallback_down": counts.fallback_down,
                "fallback_kernel": counts.fallback_kernel,
                "miss_malformed": counts.miss_malformed,
                "miss_unowned": counts.miss_unowned,
                "owned": [sum(map(len, owned.values())) for owned in self._owned],
                "runs_measured": runs.runs,
                "runs_measured_ns": runs.time_ns,
            }
        return found


def _bind_all(address: Address, cores: int, handed: HandedSockets, undo: ExitStack) -> list[socket.socket]:
    found: list[socket.socket] = []
    while len(found) < cores:
        taken = handed.take(*address, kind=socket.SOCK_DGRAM, is_shared=cores > 1)
        if taken is None:
            break
        taken.setblocking(False)  # noqa: FBT003
        found.append(undo.enter_context(taken))
    if cores > 1 and not found:  # they share the port with any process of this user: nobody else may have it yet
        _bind(address, is_shared=False, patiently=handed.has_closed).close()
    while len(found) < cores:
        found.append(undo.enter_context(_bind(address, is_shared=cores > 1, patiently=handed.has_closed)))
    return found


def _bind(address: Address, *, is_shared: bool, patiently: bool) -> socket.socket:
    until_s = time.monotonic() + (FORGET_S if patiently else 0)
    while True:
        try:
            return _bind_once(address, is_shared=is_shared)
        except OSError as error:
            where = f"--datagram {address}"
            if error.errno != errno.EADDRINUSE:
                raise StartError(f"{where}: {error.strerror or error}") from error
            if time.monotonic() >= until_s:
                raise StartError(f"{where}: the UDP port is in use; free it or choose another") from error
            time.sleep(0.01)


def _bind_once(address: Address, *, is_shared: bool) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        bound.setblocking(False)  # noqa: FBT003
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.DATAGRAM_RECEIVE_BUFFER_BYTES)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
