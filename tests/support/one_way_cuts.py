"""Which of three nodes do not hear which: each combination, and who hears each other then.

Between three nodes there are six ways, so there are 63 combinations; as the two nodes that do not lead the metadata are
alike, 35 of them differ (`ALL`). A connection needs both directions: a link is there between two nodes of which each
hears the other one.
"""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Final

Edge = tuple[int, int]
"""Who is not heard by whom: places in an order of the nodes, of which the first one leads the metadata."""
NAMES: Final = "Mab"
WAYS: Final = tuple(permutations(range(3), 2))


def renamed(edges: frozenset[Edge]) -> frozenset[Edge]:
    """The same with the two that do not lead the metadata in each other's place."""
    place = 0, 2, 1
    return frozenset((place[source], place[target]) for source, target in edges)


def _all() -> tuple[frozenset[Edge], ...]:
    found: list[frozenset[Edge]] = []
    for count in range(1, len(WAYS) + 1):
        for chosen in map(frozenset, combinations(WAYS, count)):
            if renamed(chosen) not in found:
                found.append(chosen)
    return tuple(found)


ALL: Final = _all()


def text_of(edges: frozenset[Edge]) -> str:
    """As "M>a a>b": M leads the metadata."""
    return " ".join(f"{NAMES[source]}>{NAMES[target]}" for source, target in sorted(edges))


def edges_of(text: str) -> frozenset[Edge]:
    return frozenset((NAMES.index(one[0]), NAMES.index(one[2])) for one in text.split())


def together(edges: frozenset[Edge]) -> list[int]:
    """Those that a chain of links connects with most of the nodes; none where there is no such chain."""
    links = [pair for pair in combinations(range(3), 2) if not edges & {pair, pair[::-1]}]
    return sorted({place for pair in links for place in pair})
