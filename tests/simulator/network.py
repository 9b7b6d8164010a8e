"""A network that loses, doubles, delays and reorders messages, and whose links fail in one direction or both."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.simulator.world import MS, World

Address = Hashable
Receive = Callable[[Address, Any], None]
"""Gets the sender's address and the message."""


@dataclass(frozen=True, slots=True)
class Faults:
    """How a link behaves. Probabilities are in [0, 1]; delays are drawn evenly from [min, max] microseconds."""

    loss: float = 0.0
    duplicate: float = 0.0
    delay_us_min: int = 200
    delay_us_max: int = 2 * MS
    late: float = 0.0
    """Probability that a message takes `late_us_max` longer at most: later ones overtake it."""
    late_us_max: int = 500 * MS

    def __post_init__(self) -> None:
        assert 0 <= self.delay_us_min <= self.delay_us_max, self


@dataclass(slots=True)
class Traffic:
    """What the network did."""

    sent: int = 0
    delivered: int = 0
    lost: int = 0
    doubled: int = 0
    blocked: int = 0
    nobody: int = 0
    """Came to an address where nobody listens."""


class Network:
    """Carries messages between addresses. `faults` hold for every link that `links` does not name."""

    def __init__(self, world: World, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.links: dict[tuple[Address, Address], Faults] = {}
        self.traffic = Traffic()
        self._world = world
        self._random = world.stream("network")
        self._receivers: dict[Address, Receive] = {}
        self._blocked: set[tuple[Address, Address]] = set()
        self._last_us: dict[tuple[Address, Address], int] = {}

    def attach(self, address: Address, receive: Receive) -> None:
        """`receive` gets what comes to `address` from now on."""
        self._receivers[address] = receive

    def detach(self, address: Address) -> None:
        """Nobody listens there any more."""
        self._receivers.pop(address, None)

    def block(self, source: Address, target: Address) -> None:
        """One direction of one link carries nothing, not even what is on its way."""
        self._blocked.add((source, target))

    def unblock(self, source: Address, target: Address) -> None:
        """That direction works again."""
        self._blocked.discard((source, target))

    def partition(self, sources: Iterable[Address], targets: Iterable[Address], *, one_way: bool = False) -> None:
        """Nothing goes from any of `sources` to any of `targets`, nor, unless it is `one_way`, back."""
        there = list(targets)
        for source in sources:
            for target in there:
                self.block(source, target)
                if not one_way:
                    self.block(target, source)

    def heal(self) -> None:
        """No link is blocked, and all behave as `faults` says."""
        self._blocked.clear()
        self.links.clear()

    def is_blocked(self, source: Address, target: Address) -> bool:
        """Whether that direction carries nothing."""
        return (source, target) in self._blocked

    def send(self, source: Address, target: Address, message: Any, *, ordered: bool = False) -> None:
        """Puts a message on its way. `ordered` messages of a link do not overtake each other (those lost stay lost)."""
        traffic, chance = self.traffic, self._random.random
        faults = self.links.get((source, target), self.faults)
        traffic.sent += 1
        copies = 1
        if faults.loss and chance() < faults.loss:
            copies = 0
            traffic.lost += 1
        if faults.duplicate and chance() < faults.duplicate:
            copies += 1
            traffic.doubled += 1
        for _copy in range(copies):
            when_us = self._world.now_us + self._delay_us(faults)
            if ordered:
                when_us = max(when_us, self._last_us.get((source, target), 0))
                self._last_us[source, target] = when_us
            self._world.call_at(when_us, lambda: self._deliver(source, target, message))

    def _delay_us(self, faults: Faults) -> int:
        span_us = faults.delay_us_max - faults.delay_us_min
        delay_us = faults.delay_us_min + int(self._random.random() * (span_us + 1))
        if faults.late and self._random.random() < faults.late:
            delay_us += int(self._random.random() * faults.late_us_max)
        return delay_us

    def _deliver(self, source: Address, target: Address, message: Any) -> None:
        if (source, target) in self._blocked:
            self.traffic.blocked += 1
            return
        receive = self._receivers.get(target)
        if receive is None:
            self.traffic.nobody += 1
            return
        self.traffic.delivered += 1
        receive(source, message)
