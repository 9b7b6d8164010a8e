"""One port that several sockets share, one a core, and the program that chooses among them.

`Steering` makes the maps and has a loader bring the program into the kernel; the program goes with the port's sockets,
the maps with their descriptors: when the supervisor is gone, all of it is.

| map | key → value | who writes |
|---|---|---|
| SOCKETS | core → its socket | here |
| POLICY | 0 → number of cores, how to choose, whose turn it is | here, and the program the turn |
| ALIVE | core → itself, or who stands in while it is down | the supervisor, when a core comes up or goes down |
| LOADS | core → connections open, connections just placed | the core through memory, the program |
| CPUS | CPU → core | here |
| OWNERS | topic, partition → core | the supervisor, as the cores tell it, for datagrams |
| COUNTERS | what is counted → how often | the program |
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from tpc_broker.ebpf import kernel
from tpc_broker.ebpf.kernel import MAP_MMAPABLE, MapType
from tpc_broker.ebpf.loaders import GRANT, LoaderUnavailableError, loaders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpc_broker.ebpf.kernel import ProgramRuns

SO_ATTACH_REUSEPORT_EBPF: Final = 52
SO_DETACH_REUSEPORT_BPF: Final = 68
LEAVE_S: Final = 10.0
"""For the kernel to give back the maps of a program that was detached: some ms, unless somebody else has them open."""
CPUS_MAX: Final = 4096
OWNERS_MAX: Final = 65_536
LOAD: Final = struct.Struct("=IIIIQQ")
"""struct load: connections open, those when a burst began, placed since; and when it began and went on."""
_NOBODY: Final = 0xFFFFFFFF
_U32: Final = struct.Struct("=I")
_U64: Final = struct.Struct("=Q")
_POLICY: Final = struct.Struct("=IIII")
_OWNER: Final = struct.Struct("!II")


class Select(IntEnum):
    """How the program chooses (enum select)."""

    LOAD = 0
    """The core with fewer connections, of two."""
    CPU = 1
    """The core whose CPU took the packet."""
    SOURCE_PORT = 2
    """The client's port modulo the number of cores."""
    OWNER = 3
    """Whose partition a datagram names."""


@dataclass(frozen=True, slots=True)
class SteeringCounts:
    """Since the port was opened. `selected` by core; every packet is in it or in `fallback_kernel`."""

    selected: tuple[int, ...]
    fallback_down: int
    """The core that was meant is down: the next one."""
    fallback_kernel: int
    """None was alive, or had no socket: the kernel's own choice."""
    miss_malformed: int
    """A datagram without a header."""
    miss_unowned: int
    """A datagram for what no core owns."""


_FIXED_COUNTS: Final = 4  # enum count


class Steering:
    def __init__(
        self, asked: str, cores: int, select: Select, *, cpus: Sequence[int] | None = None, loads_fd: int | None = None
    ) -> None:
        """`asked`: a value of `ebpf.loader`. `cpus`: those the cores are pinned to. `loads_fd`: a map of `make_loads`
        that several ports share. Raises LoaderUnavailableError.
        """
        self.cores = cores
        self._alive: set[int] = set()
        with ExitStack() as undo:
            self._maps = _make_maps(cores, loads_fd, undo)
            self.loader, self.program_fd = _load(asked, self._maps)
            undo.callback(os.close, self.program_fd)
            self.set_select(select)
            for core, cpu in enumerate(cpus or ()):
                kernel.update(self._maps["CPUS"], _U32.pack(cpu), _U32.pack(core))
            self._undo = undo.pop_all()

    @property
    def loads_fd(self) -> int:
        """See `make_loads`."""
        return self._maps["LOADS"]

    @property
    def owners_fd(self) -> int:
        """For `own` and `disown`, in any process."""
        return self._maps["OWNERS"]

    def attach(self, sockets: Sequence[socket.socket]) -> None:
        """To sockets that were bound to one port with SO_REUSEPORT, those of TCP listening; one a core, in order.

        Raises LoaderUnavailableError for one that another program's map has and keeps: a socket is in one map only.
        """
        assert len(sockets) == self.cores
        give_up_s = time.monotonic() + LEAVE_S
        for core, each in enumerate(sockets):
            self._place(core, each, give_up_s)
        sockets[0].setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_EBPF, self.program_fd)

    def _place(self, core: int, each: socket.socket, give_up_s: float) -> None:
        while True:
            try:
                kernel.update(self._maps["SOCKETS"], _U32.pack(core), _U64.pack(each.fileno()))
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                if time.monotonic() >= give_up_s:
                    reason = f"the socket of core {core} is in another program's map, which somebody has open"
                    raise LoaderUnavailableError(reason, "end the earlier life of this broker") from error
                time.sleep(0.001)
            else:
                return

    def set_select(self, select: Select) -> None:
        kernel.update(self._maps["POLICY"], _U32.pack(0), _POLICY.pack(self.cores, select, 0, 0))

    def set_alive(self, core: int, *, alive: bool) -> None:
        """A core that is not gets nothing: the next one that is stands in for it. All are down at first."""
        (self._alive.add if alive else self._alive.discard)(core)
        if not alive:
            kernel.update(self._maps["LOADS"], _U32.pack(core), bytes(LOAD.size))
        for each in range(self.cores):
            stands_in = next((one for one in self._from(each) if one in self._alive), _NOBODY)
            kernel.update(self._maps["ALIVE"], _U32.pack(each), _U32.pack(stands_in))

    def _from(self, core: int) -> Iterator[int]:
        """All cores, beginning with one."""
        yield from range(core, self.cores)
        yield from range(core)

    def is_alive(self, core: int) -> bool:
        return core in self._alive

    def counts(self) -> SteeringCounts:
        found = [
            _U64.unpack(kernel.lookup(self._maps["COUNTERS"], _U32.pack(which), _U64.size) or bytes(8))[0]
            for which in range(_FIXED_COUNTS + self.cores)
        ]
        down, by_kernel, malformed, unowned = found[:_FIXED_COUNTS]
        return SteeringCounts(tuple(found[_FIXED_COUNTS:]), down, by_kernel, malformed, unowned)

    def runs(self) -> ProgramRuns:
        """Counted only while somebody has `kernel.count_runs` open."""
        return kernel.program_runs(self.program_fd)

    def close(self) -> None:
        """The port's sockets keep the program, and the program the maps, until they are closed."""
        self._undo.close()


def detach(one: socket.socket) -> None:
    """The program of an earlier life from all sockets of a port: until there is another one the kernel chooses."""
    with suppress(OSError):  # there was none
        one.setsockopt(socket.SOL_SOCKET, SO_DETACH_REUSEPORT_BPF, 0)


def make_loads(cores: int) -> int:
    """A LOADS map; the cores map it into their memory and write how many connections they have."""
    try:
        return kernel.create_map(MapType.ARRAY, "tpc_loads", 4, LOAD.size, cores, MAP_MMAPABLE)
    except OSError as error:
        raise _refused(error) from error


def own(owners_fd: int, topic: int, partition: int, core: int) -> None:
    """Datagrams for a partition go to a core from now on. `topic` as in the datagram's header."""
    kernel.update(owners_fd, _OWNER.pack(topic, partition), _U32.pack(core))


def disown(owners_fd: int, topic: int, partition: int, core: int) -> None:
    """Unless another core has taken it over meanwhile."""
    key = _OWNER.pack(topic, partition)
    if kernel.lookup(owners_fd, key, _U32.size) == _U32.pack(core):
        kernel.delete(owners_fd, key)


def _make_maps(cores: int, loads_fd: int | None, undo: ExitStack) -> dict[str, int]:
    wanted = {
        "SOCKETS": (MapType.SOCKET_ARRAY, 4, 8, cores, 0),
        "POLICY": (MapType.ARRAY, 4, _POLICY.size, 1, 0),
        "ALIVE": (MapType.ARRAY, 4, 4, cores, 0),
        "CPUS": (MapType.ARRAY, 4, 4, CPUS_MAX, 0),
        "OWNERS": (MapType.HASH, _OWNER.size, 4, OWNERS_MAX, 0),
        "COUNTERS": (MapType.ARRAY, 4, 8, _FIXED_COUNTS + cores, 0),
    }
    maps: dict[str, int] = {}
    try:
        for name, (kind, key, value, entries, flags) in wanted.items():
            maps[name] = kernel.create_map(kind, f"tpc_{name.lower()}", key, value, entries, flags)
            undo.callback(os.close, maps[name])
    except OSError as error:
        raise _refused(error) from error
    maps["LOADS"] = make_loads(cores) if loads_fd is None else os.dup(loads_fd)
    undo.callback(os.close, maps["LOADS"])
    for cpu in range(min(os.cpu_count() or 1, CPUS_MAX)):
        kernel.update(maps["CPUS"], _U32.pack(cpu), _U32.pack(cpu % cores))
    for core in range(cores):
        kernel.update(maps["ALIVE"], _U32.pack(core), _U32.pack(_NOBODY))
    return maps


def _load(asked: str, maps: dict[str, int]) -> tuple[str, int]:
    refusals: list[LoaderUnavailableError] = []
    for loader in loaders(asked):
        try:
            return loader.name, loader.load(maps)
        except LoaderUnavailableError as error:
            refusals.append(error)
    if not refusals:
        raise LoaderUnavailableError("eBPF is switched off", "ebpf.loader=auto")
    raise LoaderUnavailableError(
        "; ".join(each.reason for each in refusals), " or ".join(dict.fromkeys(each.mend for each in refusals))
    )


def _refused(error: OSError) -> LoaderUnavailableError:
    mend = GRANT if error.errno in (errno.EPERM, errno.EACCES) else "a kernel of 5.5 or newer with CONFIG_BPF_SYSCALL=y"
    return LoaderUnavailableError(f"eBPF maps cannot be made: {os.strerror(error.errno or 0)}", mend)
