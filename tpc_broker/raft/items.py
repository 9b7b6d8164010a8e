"""What a replica's log is made of: positions, markers of term starts, batches; and who may vote.

An item is a *marker* of no length, with which a term begins and which carries the configuration, or a *batch* of
records, opaque here but for its epoch, its offsets and its length. A *position* is what stands after an item: the epoch
of that item and the offset where it ends. Positions rise strictly along a log, and two logs that contain the same
position are equal up to it (log matching, thesis 3.5, for positions in place of indexes). An offset alone never
identifies a prefix: (4, X) and (7, X) are different when 7 has begun at X and nothing has followed yet.

Items are tuples that begin with their position, so that a list of items can be searched with a position as it stands.
Terms begin at 1; the position before the first item is (0, 0). Offsets of ranges are half-open.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.model import CoreId, NodeId

GroupId = Hashable
"""Names a group the same on all nodes (a `TopicPartition`; a number in tests). Its `repr` must not change."""


class Address(NamedTuple):
    """A core of a node: the end of a link."""

    node: NodeId
    core: CoreId


class Voter(NamedTuple):
    """A replica: the node and the incarnation of the replica on it, never the node alone.

    A replica that lost what it promised (its disk, its journal's tail) comes back under a new incarnation, as a
    learner: the old one's votes and acknowledgements are not its own.
    """

    node: NodeId
    incarnation: int


class Position(NamedTuple):
    """Epoch of an item and the offset where it ends."""

    epoch: int
    offset: int


START: Final = Position(0, 0)


class Config(NamedTuple):
    """Who votes. `old == new`: a simple configuration; else joint, and both need a majority (thesis 4.3)."""

    old: frozenset[Voter]
    new: frozenset[Voter]

    @property
    def is_joint(self) -> bool:
        return self.old is not self.new and self.old != self.new

    @property
    def voters(self) -> frozenset[Voter]:
        return self.old if self.old is self.new else self.old | self.new

    def has_quorum(self, voters: Iterable[Voter]) -> bool:
        """Whether `voters` hold a majority of the old set and a majority of the new one."""
        return is_majority(self.old, voters) and (self.old is self.new or is_majority(self.new, voters))


def is_majority(of: frozenset[Voter], voters: Iterable[Voter]) -> bool:
    return 2 * len(of.intersection(voters)) > len(of)


def simple(voters: Iterable[Voter]) -> Config:
    """The configuration in which just these vote."""
    members = frozenset(voters)
    return Config(members, members)


class Marker(NamedTuple):
    """A term begins: no records, but a place in the log, and the configuration that holds from here on."""

    epoch: int
    end_offset: int
    config: Config

    @property
    def start_offset(self) -> int:
        return self.end_offset

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.end_offset)


class Batch(NamedTuple):
    """Records [base_offset, end_offset) of one epoch; `length` is the bytes they take, `payload` nobody's
    business here.
    """

    epoch: int
    end_offset: int
    base_offset: int
    length: int
    payload: object = None

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.end_offset)


Item = Marker | Batch


class Proposal(NamedTuple):
    """A batch before it has a place: how many records, how many bytes, and the bytes or what stands for them."""

    records_count: int
    length: int
    payload: object = None


MARKER_BYTES: Final = 64
"""What a marker counts for in flow control."""


def item_bytes(item: Item) -> int:
    return item.length if isinstance(item, Batch) else MARKER_BYTES
