"""Heartbeats of a core's machines, by C over its links for the steady state (`native/replication/steady_beats.c`,
`raft.links`).

Ten a second to each other core, of the partitions' machine and, on core 0, of the metadata's: in Python that was nearly
all that a cluster at rest did. They are C's while the machine's own connection to that core is up, and the other end
knows them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.engine.steady_plane import GAP_MS, Machine
from tpc_broker.raft.links import Vouching

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.engine.steady_plane import SteadyPlane
    from tpc_broker.node.replicas.steady_carrier import SteadyLink
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.items import Address


class CarriedBeats(Vouching):
    """Of one machine. `outgoing`, `incoming`: numbers of the newest links with a core; `links`: all, by number.
    `is_up`: whether the machine's own frames can leave for a core.
    """

    def __init__(
        self,
        machine: Machine,
        core: RaftCore,
        plane: SteadyPlane,
        ways: tuple[Mapping[Address, int], Mapping[Address, int], Mapping[int, SteadyLink]],
        is_up: Callable[[Address], bool],
    ) -> None:
        self._machine = machine
        self._core = core
        self._plane = plane
        self._outgoing, self._incoming, self._links = ways
        self._is_up = is_up

    def begin(self, address: Address) -> bool:
        number = self._outgoing.get(address)
        if number is None or not self._links[number].takes_beats or not self._is_up(address):
            return False
        return self._plane.steady_beat(number, self._machine, is_said=True)

    def end(self, address: Address) -> None:
        number = self._outgoing.get(address)
        if number is not None:
            self._plane.steady_beat(number, self._machine, is_said=False)

    def late_ms(self) -> int:
        return self._plane.steady_late_ms(self._machine)

    def busy_ms(self) -> int | None:
        return self._plane.steady_busy_ms()

    def heard(self, address: Address, boot_id: int) -> tuple[int, int] | None:
        number = self._incoming.get(address)
        if number is None or self._core.settings.link_silent_ms < GAP_MS:
            return None
        link = self._links[number]
        is_same = boot_id == (link.node_boot if self._machine is Machine.OF_METADATA else link.boot_id)
        return self._plane.steady_heard(number, self._machine) if is_same else None

    def ends(self, link: SteadyLink, now_ms: int) -> None:
        """A link that is one of the newest goes; what was heard on it still counts."""
        if link.dialled:
            self._core.vouching_lost(link.address, now_ms)
        elif link.address in self._core.links:
            self._core.links[link.address].look()
