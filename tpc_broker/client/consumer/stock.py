"""All partitions of one reader, what lies ready of them, and what is to be fetched next. No I/O; ``now`` is monotonic.

Memory is bounded by shares: a partition is left out of the next fetch while as much lies ready as its share, and
asked for no more than that at once, so each has at most two, and all together `memory_bytes`. What comes first in an
answer is a whole batch, however large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.client.consumer.frames import Held
from tpc_broker.client.consumer.partitions import Partition
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.consumer.rows import RowReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from tpc_broker.client.consumer.decoding import Part, Piece
    from tpc_broker.client.consumer.starts import Start
    from tpc_broker.client.errors import ClientError
    from tpc_broker.client.requests import TopicPartition

SHARE_BYTES_MIN: Final = 16 * 1024
PIECE_RECORDS: Final = 1000
PIECE_RECORDS_MAX: Final = 65_536
"""However many are asked for at once."""


class Limits(NamedTuple):
    """Bytes: of all that is fetched and not read, of one answer, of one partition in it."""

    memory_bytes: int = 64 * 1024 * 1024
    fetch_bytes: int = 16 * 1024 * 1024
    partition_bytes: int = 1024 * 1024


class Wanted(NamedTuple):
    """One partition of the next fetch."""

    where: TopicPartition
    topic_id: bytes
    offset: int
    leader_epoch: int
    bytes_max: int
    version: int


class Fetched(NamedTuple):
    """What came of one partition, without an error."""

    wanted: Wanted
    part: Part
    behind: int
    """Where the whole batches in it end."""


class Stock:
    """``on_room`` is told when more could be fetched than before, ``on_ready`` when something is there to be taken."""

    def __init__(self, limits: Limits, on_room: Callable[[], None], on_ready: Callable[[], None]) -> None:
        self.limits = limits
        self.partitions: dict[TopicPartition, Partition] = {}
        self._on_room = on_room
        self._on_ready = on_ready
        self._ready: dict[TopicPartition, Partition] = {}
        """In the order in which they are to be taken from."""
        self._held = Held()
        self._under_way: dict[object, int] = {}
        """Bytes that may come with the next answer on each line."""
        self._is_tight = False
        """Something is not asked for because there is no room for it."""
        self._rows = RowReader(PIECE_RECORDS)

    @property
    def held_bytes(self) -> int:
        """What was fetched and is not read."""
        return self._held.bytes

    # ---- which partitions

    def add(self, positions: Mapping[TopicPartition, Position | None], start: Start) -> None:
        """``start``: of those without a position."""
        for where, position in positions.items():
            self.remove(where)
            self.partitions[where] = Partition(where, position, start)

    def remove(self, where: TopicPartition) -> None:
        found = self.partitions.pop(where, None)
        if found is not None:
            self._empty(found)

    def seek(self, found: Partition, position: Position) -> None:
        """Drop what lies ready and is handed out, and go on there."""
        self._empty(found)
        found.handed.clear()
        found.begin_at(position)

    def restart(self, found: Partition, start: Start) -> None:
        """The same for a place that has to be asked for."""
        self._empty(found)
        found.handed.clear()
        found.begin_from(start)

    def go_back(self, found: Partition, offset: int) -> None:
        self._empty(found)
        found.give_back(offset)

    def let_go(self, found: Partition) -> None:
        """Nothing more of it is handed out."""
        self._empty(found)
        if found.is_known:
            found.begin_at(Position(found.position, found.epoch))
        else:
            found.begin_from(found.start)

    def _empty(self, found: Partition) -> None:
        self._ready.pop(found.where, None)
        for part in found.parts:
            self._held.drop(part)
        found.parts.clear()
        found.ready_bytes = 0
        self._on_room()

    # ---- fetching

    @property
    def share_bytes(self) -> int:
        share = self.limits.memory_bytes // (2 * max(1, len(self.partitions)))
        return min(self.limits.partition_bytes, max(SHARE_BYTES_MIN, share))

    def wanted(self, broker_id: int, now: float) -> tuple[list[Wanted], int]:
        """What to ask a broker for, beside what it is asked for already, and how many bytes at most."""
        share = self.share_bytes
        rows = [
            Wanted(found.where, found.topic_id, found.fetch_offset, found.leader_epoch, share, found.version)
            for found in self.partitions.values()
            if found.asked_version != found.version  # what costs least comes first: there may be thousands
            and found.ready_bytes < share
            and found.retry_at <= now
            and (found.replica if found.replica >= 0 else found.leader) == broker_id
            and found.is_fetchable
        ]
        if not rows:
            return rows, 0
        busy_bytes = self._held.bytes + sum(self._under_way.values())
        room = self.limits.memory_bytes - busy_bytes
        if busy_bytes and room < min(share, self.limits.memory_bytes // 2):
            self._is_tight = True
            return [], 0
        return rows, max(min(self.limits.fetch_bytes, len(rows) * share, room), 1)

    def uses(self, broker_id: int) -> bool:
        """Whether anything is read from a broker."""
        return any(found.source == broker_id for found in self.partitions.values())

    def sent(self, line: object, wanted: Iterable[Wanted], bytes_max: int) -> None:
        """A fetch is under way on a line."""
        self._under_way[line] = bytes_max
        for row in wanted:
            self.partitions[row.where].asked_version = row.version

    def answered(self, line: object, wanted: Iterable[Wanted]) -> None:
        """It is no more."""
        self._under_way.pop(line, None)
        for row in wanted:
            found = self.partitions.get(row.where)
            if found is not None and found.asked_version == row.version:
                found.asked_version = -1

    def is_current(self, wanted: Wanted) -> Partition | None:
        """The partition, if an answer to what was wanted is still wanted."""
        found = self.partitions.get(wanted.where)
        if found is None or found.version != wanted.version or found.fetch_offset != wanted.offset:
            return None
        return found

    def take_in(self, fetched: Iterable[Fetched]) -> None:
        """The parts of one answer; those that are not wanted any more are dropped."""
        kept = []
        for one in fetched:
            found = self.is_current(one.wanted)
            if found is None or found.is_paused or not found.is_held:
                continue
            kept.append(one.part)
            found.parts.append(one.part)
            found.ready_bytes += one.part.records.nbytes
            found.fetch_offset = one.behind
            self._ready[one.wanted.where] = found
        if kept:
            self._held.add(kept)
            self._on_ready()

    def fail(self, found: Partition, error: ClientError) -> None:
        """Raised behind what lies ready."""
        found.error = error
        self._ready[found.where] = found
        self._on_ready()

    # ---- reading

    def take(self, records_max: int | None, among: Collection[TopicPartition] | None, now: float) -> Piece | None:
        """The next records, of the partition whose turn it is. Raises what became of one."""
        rows_max = min(records_max or PIECE_RECORDS, PIECE_RECORDS_MAX)
        for where in list(self._ready) if among is None else [where for where in self._ready if where in among]:
            found = self._ready.pop(where)
            piece = self._piece(found, rows_max)
            if found.parts or found.error is not None:
                self._ready[where] = found
            if piece is not None:
                found.hand_out(piece, now)
                return piece
            if found.error is not None and not found.parts:
                raise found.error.again()
        return None

    def _piece(self, found: Partition, rows_max: int) -> Piece | None:
        while found.parts:
            part = found.parts[0]
            try:
                piece = part.read(self._rows, rows_max)
            except BaseException:
                self._ready[found.where] = found
                raise
            self._held.look(part)
            if piece is None:
                found.pass_over(part.next_offset)
            if piece is None or part.is_over:
                self._is_read(found)
            if piece is not None:
                return piece
        return None

    def _is_read(self, found: Partition) -> None:
        """All that was in the first part."""
        was_full = found.ready_bytes >= self.share_bytes
        part = found.parts.popleft()
        found.ready_bytes -= part.records.nbytes
        self._held.drop(part)
        if was_full or self._is_tight:
            self._is_tight = False
            self._on_room()
