"""All offsets of a coordinator are looked through now and then, some at a time: others do not wait for 100,000 of them.

What comes in between is seen as it is when its piece comes. Only what was said of a moment has to be kept: of which
names topics were deleted, and what has been committed under these names since (`GoneTopics`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tpc_broker.coordinator.pending_offsets import TopicAndPartition
    from tpc_broker.coordinator.records import OffsetKey, StoredOffset

LOOKED_AT_ONCE: Final = 128
"""Offsets and groups, of which nothing goes."""
PIECE: Final = 64
"""Offsets: one that goes takes ten times as long as others, so there is no other piece in a step in which some go."""


class Piece(NamedTuple):
    """Some of what a group has committed."""

    group_id: str
    partitions: Sequence[TopicAndPartition]
    is_whole: bool
    """It is all that the group has at this moment."""


def pieces(
    group_ids: Iterable[str], committed: Mapping[str, Mapping[TopicAndPartition, StoredOffset]]
) -> Iterator[Piece]:
    """Of these groups, at least one of each. Both may change between the pieces."""
    for group_id in group_ids:
        partitions = list(committed.get(group_id, ()))
        is_whole = len(partitions) <= PIECE
        for begin in range(0, max(len(partitions), 1), PIECE):
            yield Piece(group_id, partitions[begin : begin + PIECE], is_whole)


class GoneTopics:
    """For one look at all offsets: which topics are gone by their names alone."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._since: set[OffsetKey] = set()
        """What was committed under these names since: it is of the next topic."""

    def add(self, names: Iterable[str]) -> None:
        """They were deleted just now, and the look has not begun."""
        names = frozenset(names)
        self._names |= names
        self._since = {key for key in self._since if key.topic not in names}

    def note_committed(self, key: OffsetKey) -> None:
        if key.topic in self._names:
            self._since.add(key)

    def __contains__(self, key: OffsetKey) -> bool:
        """Whether what is committed there is of a topic that went."""
        return key.topic in self._names and key not in self._since
