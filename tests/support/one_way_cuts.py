"""Which of three nodes do not hear which: each combination, and who hears each other then.

Between three nodes there are six ways, so there are 63 combinations; as the two nodes that do not lead the metadata are
alike, 35 of them differ (`ALL`). A connection needs both directions: a link is there between two nodes of which each
hears the other one.

Links and datagrams that are cut in other ways would be 3,969 combinations. What is to be seen follows from the links
that are left and from whose datagrams are lost, so `UNLIKE` has these: two links or one, and datagrams of each node, to
each node, between each two, and all.
"""

from __future__ import annotations

from itertools import combinations, permutations
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

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


_LINKS: Final = ("a>b", "M>a", "a>M a>b", "M>a b>M")
_RESTARTS: Final = [("a>b", "a>M a>b", 2), ("a>b", "M>a a>M a>b b>a", 0), ("M>a", "a>M a>b", 1), ("M>a", "a>b b>M", 2)]


def _datagrams() -> Iterator[frozenset[Edge]]:
    for place in range(3):
        yield frozenset(way for way in WAYS if way[0] == place)
        yield frozenset(way for way in WAYS if way[1] == place)
        yield frozenset(way for way in WAYS if place not in way)
    yield frozenset(WAYS)


UNLIKE: Final[tuple[tuple[frozenset[Edge], frozenset[Edge], int | None], ...]] = (
    *((links, lost, None) for links in map(edges_of, _LINKS) for lost in _datagrams() if lost != links),
    *((edges_of(links), edges_of(lost), place) for links, lost, place in _RESTARTS),
)
"""Cuts of links, of datagrams, and the place of a node that restarts meanwhile."""
