"""How fast goes what nobody waits for and what holds up those who produce: elections for a change of voters, or for a
hand-over.

A client has one connection to a node, and what it produces to one partition waits there behind what it produced to
another. So a core that elects for its partitions one after the other, without a rest, holds up all of its clients for
all of the time. With rests it does so for a small share of it: fewer of their records are
late. Elections are quick where there are CPUs for them, and so are moves then.
"""

from __future__ import annotations

from typing import Final

HELD_SHARE: Final = 0.02
"""Of a core's time, at most, unless the rest would be longer than this: moves are to come to an end, too."""
REST_S_MAX: Final = 1.0


def rest_after(took_s: float) -> float:
    """Seconds without another one, after one that took so long."""
    return min(took_s * (1 / HELD_SHARE - 1), REST_S_MAX)
