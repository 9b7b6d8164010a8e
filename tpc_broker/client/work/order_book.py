"""Which record may be handled next, and up to where everything is done: a machine without I/O.

Theory of operation
    Batches of a partition are added in the order of its log. Each record is an `Item`: it waits, is started, and is
    done, or comes again after a pause. Several are under way at once, and are done in any order.

    order       an item waits for                            kept in
    key         the earlier ones of its key and partition    `Ledger.lanes`: who waits behind whom
    partition   all earlier ones of its partition            `Ledger.ready`, and `Ledger.is_busy`
    none        nothing                                      `Ledger.ready`

    A record without a key has no order to keep, in order of key too: who produces it has spread it anywhere. An empty
    key is a key.

    The position of a partition is the offset of its lowest item that is not done: `Segment.done` has a byte for each
    record of a batch, and the first zero is found in C. What is done above it is remembered, and is handled a second
    time only if the partition is read again from the position, by us or by another.

    Back-pressure: `window` bounds how many records lie between the position and the end of what was added, so that one
    record that is stuck does not let memory grow, and `share_bytes` how much there may be in those of them that are not
    done: then its partition `is_full`, and others go on. `ahead` bounds how many
    records of all partitions could be started and wait for somebody to do so. Both may be exceeded by one batch.

    A revocation drops what has not been started (`withdraw`); what is under way may still be done. When the partition
    is `lost`, nothing counts any more. If it comes back while handlers of before still run, its new items wait for
    their end.

Invariants: an item is started by one at a time. Of one key (or partition, as the order says) one item is under way at
most, and none before all earlier ones are done. The position never passes an item that is not done.
"""

from __future__ import annotations

import heapq
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Batch, Record


RECORD_BYTES: Final = 200
"""Of a record beside its key and value, as Python has it."""
SHARE_BYTES: Final = 4 * 1024 * 1024


class Order(Enum):
    """What waits for what."""

    KEY = "key"
    PARTITION = "partition"
    NONE = "none"


class Segment:
    """The records of one batch: their offsets, and a byte for each that is 1 when it is done."""

    __slots__ = ("done", "next_offset", "offsets", "record_bytes")

    def __init__(self, records: Sequence[Record], next_offset: int) -> None:
        self.offsets = [record.offset for record in records]
        self.done = bytearray(len(records))
        sizes = sum([len(record.value or b"") + len(record.key or b"") for record in records])
        self.record_bytes = RECORD_BYTES + sizes // len(records)
        """On average."""
        self.next_offset = next_offset


class Item:
    """A record, and how often a handler was given it. ``since``: when it was the last time."""

    __slots__ = ("attempts", "index", "ledger", "record", "segment", "since")

    def __init__(self, record: Record, ledger: Ledger, segment: Segment, index: int) -> None:
        self.record = record
        self.ledger = ledger
        self.segment = segment
        self.index = index
        self.attempts = 0
        self.since = 0.0


class Standing(Enum):
    """Of a ledger's partition."""

    HELD = "held"
    WITHDRAWN = "withdrawn"
    """Nothing more is started; what is under way may be done."""
    LOST = "lost"


class Ledger:
    """A partition with items that are not done. It is made for the first of them and closed with the last."""

    __slots__ = (
        "held", "is_busy", "is_full", "is_offered", "kept_bytes", "lanes", "next_offset", "position", "predecessor",
        "ready", "running", "segments", "standing", "start", "where",
    )  # fmt: skip

    def __init__(self, where: TopicPartition, position: int) -> None:
        self.where = where
        self.position = position
        """Everything below is done."""
        self.next_offset = position
        """Of what comes next."""
        self.segments: deque[Segment] = deque()
        self.start = 0
        """In the first segment: how many are done without a gap."""
        self.held = 0
        """Records from the position on."""
        self.kept_bytes = 0
        """Of those of them that are not done."""
        self.ready: deque[Item] = deque()
        self.lanes: dict[bytes, deque[Item] | None] = {}
        """By key of what is ready, under way or paused: who waits behind it."""
        self.running: set[Item] = set()
        self.is_busy = False
        """In order of partition: one is under way or paused."""
        self.is_full = False
        self.is_offered = False
        self.standing = Standing.HELD
        self.predecessor: Ledger | None = None
        """The same partition as it was held before, with handlers that have not ended: until then nothing starts."""

    @property
    def can_start(self) -> bool:
        return bool(self.ready) and not self.is_busy and self.predecessor is None


class OrderBook:
    """Of all partitions that one ``for_each`` works on."""

    def __init__(self, order: Order, *, window: int, ahead: int, share_bytes: int = SHARE_BYTES) -> None:
        self.share_bytes = share_bytes
        """Of each partition; it may be changed at any time."""
        self._order = order
        self._window = window
        self._ahead = ahead
        self._ledgers: dict[TopicPartition, Ledger] = {}
        self._ending: dict[TopicPartition, Ledger] = {}
        """Lost, with handlers that have not ended."""
        self._turns: deque[Ledger] = deque()
        """Who can start, and some who could."""
        self._paused: list[tuple[float, int, Item]] = []
        self._pauses_count = 0
        self._ready_count = 0
        self.full: set[TopicPartition] = set()
        self.has_opened = False
        """A partition is no longer full; who heard of it resets it."""

    # -- what comes in ----------------------------------------------------------------------------------------------

    def add(self, batch: Batch) -> Ledger:
        """Of a partition that is held. A batch without records moves the position on, when everything below is done.

        One that begins below what was added before says that reading has gone back, after a seek or in a log that was
        cut off: what is here of the partition counts no more, and its handlers may end first.
        """
        where, records, next_offset = batch.where, batch.records, batch.next_offset
        begin = records[0].offset if records else next_offset
        ledger = self._ledgers.get(where)
        if ledger is not None and begin < ledger.next_offset:
            self.lose(where)
            ledger = None
        if ledger is None:
            ledger = self._ledgers[where] = Ledger(where, begin)
            ledger.predecessor = self._ending.get(where)
        assert ledger.standing is Standing.HELD
        ledger.next_offset = next_offset
        if not records:
            self._add_none(ledger)
            return ledger
        segment = Segment(records, next_offset)
        ledger.segments.append(segment)
        ledger.held += len(records)
        ledger.kept_bytes += segment.record_bytes * len(records)
        items = [Item(record, ledger, segment, index) for index, record in enumerate(records)]
        before = len(ledger.ready)
        if self._order is Order.KEY:
            _queue_by_key(ledger, items)
        else:
            ledger.ready.extend(items)
        if not self._is_resting(ledger):
            self._ready_count += len(ledger.ready) - before
        self._offer(ledger)
        if ledger.held >= self._window or ledger.kept_bytes >= self.share_bytes:
            ledger.is_full = True
            self.full.add(where)
        return ledger

    def _add_none(self, ledger: Ledger) -> None:
        if ledger.segments:
            ledger.segments[-1].next_offset = ledger.next_offset
        else:
            ledger.position = ledger.next_offset
            self._close_if_empty(ledger)

    def done(self, item: Item) -> bool:
        """The handler is through with it. True: the position of its ledger has moved."""
        ledger = item.ledger
        ledger.running.discard(item)
        if ledger.standing is not Standing.HELD:
            return self._done_late(item)
        segment = item.segment
        segment.done[item.index] = 1
        ledger.kept_bytes -= segment.record_bytes
        self._free(item)
        has_moved = item.index == ledger.start and segment is ledger.segments[0]
        if has_moved:
            _advance(ledger)
        if ledger.is_full and ledger.held <= self._window // 2 and ledger.kept_bytes <= self.share_bytes // 2:
            self._open(ledger)
        if has_moved:
            self._close_if_empty(ledger)
        return has_moved

    def again(self, item: Item, at: float) -> bool:
        """The handler is to be called again, not before ``at`` (in the time of `due`). False: the partition is not ours
        any more, and neither is the item.
        """
        ledger = item.ledger
        ledger.running.discard(item)
        if ledger.standing is not Standing.HELD:
            self._ended(ledger)
            return False
        if self._order is Order.PARTITION:
            self._ready_count -= len(ledger.ready)
        self._pauses_count += 1
        heapq.heappush(self._paused, (at, self._pauses_count, item))
        return True

    def abandon(self, item: Item) -> None:
        """The handler was cancelled: the item is not done, and nothing behind it starts."""
        item.ledger.running.discard(item)
        self._ended(item.ledger)

    # -- what may be done -------------------------------------------------------------------------------------------

    @property
    def wants_more(self) -> bool:
        return self._ready_count < self._ahead

    @property
    def can_start(self) -> bool:
        turns = self._turns
        while turns:
            ledger = turns[0]
            if ledger.can_start:
                return True
            turns.popleft()
            ledger.is_offered = False
        return False

    def turn(self) -> Ledger | None:
        """A partition that has something to start; each in its turn."""
        if not self.can_start:
            return None
        ledger = self._turns[0]
        self._turns.rotate(-1)
        return ledger

    def start(self, ledger: Ledger, now: float) -> Item | None:
        """The next item of a partition: it is under way until `done`, `again` or `abandon`."""
        if not ledger.ready or ledger.is_busy or ledger.predecessor is not None:
            return None
        item = ledger.ready.popleft()
        self._ready_count -= 1
        item.attempts += 1
        item.since = now
        ledger.running.add(item)
        if self._order is Order.PARTITION:
            ledger.is_busy = True
        return item

    @property
    def next_due(self) -> float | None:
        """When a pause ends."""
        return self._paused[0][0] if self._paused else None

    def due(self, now: float) -> None:
        """What has paused long enough is ready: in front, as others may wait for it."""
        while self._paused and self._paused[0][0] <= now:
            item = heapq.heappop(self._paused)[2]
            ledger = item.ledger
            if ledger.standing is not Standing.HELD:
                continue
            if self._order is Order.PARTITION:
                ledger.is_busy = False
                self._ready_count += len(ledger.ready)
            ledger.ready.appendleft(item)
            self._ready_count += 1
            self._offer(ledger)

    # -- partitions come and go -------------------------------------------------------------------------------------

    def withdraw(self, where: TopicPartition) -> Ledger | None:
        """Start nothing more of it: what is under way may be done. None: nothing of it is here."""
        ledger = self._ledgers.get(where)
        if ledger is not None and ledger.standing is Standing.HELD:
            if not self._is_resting(ledger):
                self._ready_count -= len(ledger.ready)
            ledger.ready.clear()
            ledger.lanes.clear()
            ledger.standing = Standing.WITHDRAWN
            if ledger.is_full:
                self._open(ledger)
        return ledger

    def lose(self, where: TopicPartition) -> Ledger | None:
        """It is another's: nothing of it counts any more."""
        ledger = self.withdraw(where)
        if ledger is not None:
            del self._ledgers[where]
            ledger.standing = Standing.LOST
            if ledger.running:
                self._ending[where] = ledger
        return ledger

    def release(self, ledger: Ledger) -> bool:
        """Forget a partition that was withdrawn when nothing of it is under way any more. True: that is so now."""
        if ledger.standing is not Standing.WITHDRAWN or ledger.running or self._ledgers.get(ledger.where) is not ledger:
            return False
        del self._ledgers[ledger.where]
        return True

    def ledgers(self) -> list[Ledger]:
        return list(self._ledgers.values())

    def under_way(self) -> Iterator[Item]:
        """What handlers have now, also of partitions that are lost."""
        for ledger in (*self._ledgers.values(), *self._ending.values()):
            yield from ledger.running

    @property
    def ready_count(self) -> int:
        """Nobody has started it though somebody could; of partitions that wait for a pause nothing."""
        return self._ready_count

    @property
    def running_count(self) -> int:
        return sum(len(ledger.running) for ledger in (*self._ledgers.values(), *self._ending.values()))

    @property
    def paused_count(self) -> int:
        return sum(item.ledger.standing is Standing.HELD for _at, _number, item in self._paused)

    @property
    def held_count(self) -> int:
        return sum(ledger.held for ledger in self._ledgers.values())

    # -- within -----------------------------------------------------------------------------------------------------

    def _offer(self, ledger: Ledger) -> None:
        if not ledger.is_offered and ledger.can_start:
            ledger.is_offered = True
            self._turns.append(ledger)

    def _free(self, item: Item) -> None:
        """What waited for it is ready: in front, as a key with many records is what everything waits for in the end."""
        ledger = item.ledger
        if self._order is Order.PARTITION:
            ledger.is_busy = False
            self._offer(ledger)
        elif self._order is Order.KEY and (key := item.record.key) is not None:
            behind = ledger.lanes[key]
            if not behind:
                del ledger.lanes[key]
                return
            ledger.ready.appendleft(behind.popleft())
            self._ready_count += 1
            self._offer(ledger)

    def _done_late(self, item: Item) -> bool:
        ledger = item.ledger
        has_moved = False
        if ledger.standing is Standing.WITHDRAWN:
            item.segment.done[item.index] = 1
            if item.index == ledger.start and item.segment is ledger.segments[0]:
                _advance(ledger)
                has_moved = True
        self._ended(ledger)
        return has_moved

    def _ended(self, ledger: Ledger) -> None:
        """With the last handler of a lost partition, the same partition may go on if it has come back."""
        if ledger.standing is not Standing.LOST or ledger.running:
            return
        del self._ending[ledger.where]
        successor = self._ledgers.get(ledger.where)
        if successor is not None:
            successor.predecessor = None
            self._offer(successor)

    def _open(self, ledger: Ledger) -> None:
        ledger.is_full = False
        self.full.discard(ledger.where)
        self.has_opened = True

    def _close_if_empty(self, ledger: Ledger) -> None:
        if not ledger.held and self._ledgers.get(ledger.where) is ledger:
            del self._ledgers[ledger.where]

    def _is_resting(self, ledger: Ledger) -> bool:
        """In order of partition, with an item that pauses: the others cannot be started."""
        return ledger.is_busy and not ledger.running


def _queue_by_key(ledger: Ledger, items: list[Item]) -> None:
    lanes, ready = ledger.lanes, ledger.ready
    for item in items:
        key = item.record.key
        if key is None:
            ready.append(item)
        elif key not in lanes:
            lanes[key] = None
            ready.append(item)
        elif (behind := lanes[key]) is None:
            lanes[key] = deque((item,))
        else:
            behind.append(item)


def _advance(ledger: Ledger) -> None:
    segments = ledger.segments
    while segments:
        first = segments[0]
        start = first.done.find(0, ledger.start)
        if start >= 0:
            ledger.held -= start - ledger.start
            if start:
                ledger.position = first.offsets[start]
            ledger.start = start
            return
        ledger.held -= len(first.done) - ledger.start
        ledger.start = 0
        ledger.position = first.next_offset
        segments.popleft()
