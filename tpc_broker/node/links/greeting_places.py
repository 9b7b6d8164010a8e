"""Places of connections that have not proved the cluster's secret yet.

Whoever comes gets one, so that nobody is kept out by connections that say nothing: where there is none left the oldest
goes of the address that has most of them. A greeting takes some milliseconds, and those who keep their places for long
have nothing to say. Addresses of nodes, which have proved the secret before or are dialled from here, have places of
their own: whatever knocks from elsewhere, a node that comes back finds one. And of those that are not known none has
more than a share.

What has just come is not sent away: else many nodes that come in one moment would displace each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker import limits

if TYPE_CHECKING:
    from collections.abc import Callable

GREETING_S_MIN: Final = 0.25
"""For so long a place is kept in any case."""


@dataclass(eq=False, slots=True)
class Greeting:
    """`scope`: cancelled when its place is given to another one."""

    address: str
    is_known: bool
    since_s: float
    scope: trio.CancelScope


class GreetingPlaces:
    """`is_dialled`: whether an address is one of those that are dialled from here."""

    def __init__(self, is_dialled: Callable[[str], bool]) -> None:
        self._is_dialled = is_dialled
        self._taken: dict[Greeting, None] = {}
        """In the order in which they came."""
        self._known: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def note_known(self, address: str) -> None:
        """The secret was proved from there."""
        self._known.pop(address, None)
        self._known[address] = None
        while len(self._known) > limits.LINK_KNOWN_ADDRESSES_MAX:
            del self._known[next(iter(self._known))]

    def take(self, address: str) -> Greeting | None:
        """None: there is no place, and nobody whose place it could be."""
        is_known = address in self._known or self._is_dialled(address)
        now_s = trio.current_time()
        there = [each for each in self._taken if each.is_known == is_known]
        own = [each for each in there if each.address == address]
        crowd: list[Greeting] = []
        if not is_known and len(own) >= limits.LINK_GREETINGS_OF_ADDRESS_MAX:
            crowd = own
        elif len(there) >= limits.LINK_GREETINGS_MAX:
            crowd = _most_of_one_address(there)
        if crowd:
            oldest = crowd[0]
            if now_s - oldest.since_s < GREETING_S_MIN:
                return None
            self.give_back(oldest)
            oldest.scope.cancel()
        greeting = Greeting(address, is_known, now_s, trio.CancelScope())
        self._taken[greeting] = None
        return greeting

    def give_back(self, greeting: Greeting) -> None:
        """It is over; or it has been already, when another one got its place."""
        self._taken.pop(greeting, None)


def _most_of_one_address(greetings: list[Greeting]) -> list[Greeting]:
    """Of several that have as many, the one that came first."""
    by_address: dict[str, list[Greeting]] = {}
    for greeting in greetings:
        by_address.setdefault(greeting.address, []).append(greeting)
    return max(by_address.values(), key=len)
