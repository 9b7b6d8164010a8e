"""The order book against a model of what it promises, in histories of any interleaving."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.memory_source import record_of
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.values import Batch, Record
from tpc_broker.client.work.order_book import Item, Ledger, Order, OrderBook, Standing

A, B = TopicPartition("a", 0), TopicPartition("b", 3)
KEYS = (b"", b"x", b"y", None)


def batch_of(where: TopicPartition, *records: tuple[int, bytes | None], next_offset: int | None = None) -> Batch:
    made = [record_of(where, offset, key) for offset, key in records]
    return Batch(where, made, made[-1].offset + 1 if next_offset is None else next_offset)


def start_all(book: OrderBook) -> list[Item]:
    started = []
    while (ledger := book.turn()) is not None:
        item = book.start(ledger, 0.0)
        assert item is not None
        started.append(item)
    return started


def offsets(items: list[Item]) -> list[int]:
    return [item.record.offset for item in items]


def test_records_of_a_key_wait_for_each_other_and_others_do_not():
    book = OrderBook(Order.KEY, window=100, ahead=100)
    book.add(batch_of(A, (0, b"x"), (1, b"y"), (2, b"x"), (3, None), (4, None), (5, b"")))
    first = start_all(book)
    assert offsets(first) == [0, 1, 3, 4, 5]
    assert not book.done(first[1])  # y: 0 is not done, the position stays
    assert start_all(book) == []
    assert book.done(first[0])
    assert first[0].ledger.position == 2
    assert offsets(start_all(book)) == [2]


def test_the_same_key_of_two_partitions_is_not_one():
    book = OrderBook(Order.KEY, window=100, ahead=100)
    book.add(batch_of(A, (0, b"x")))
    book.add(batch_of(B, (0, b"x")))
    assert len(start_all(book)) == 2


def test_in_order_of_partition_one_of_each_is_under_way():
    book = OrderBook(Order.PARTITION, window=100, ahead=100)
    book.add(batch_of(A, (0, None), (1, b"y")))
    book.add(batch_of(B, (7, None), (8, b"y")))
    first = start_all(book)
    assert offsets(first) == [0, 7]
    book.done(first[1])
    assert offsets(start_all(book)) == [8]


def test_without_order_all_are_under_way():
    book = OrderBook(Order.NONE, window=100, ahead=100)
    book.add(batch_of(A, (0, b"x"), (1, b"x"), (2, b"x")))
    assert offsets(start_all(book)) == [0, 1, 2]


def test_the_position_passes_gaps_and_the_end_of_a_batch():
    """Offsets are missing in compacted logs, and a batch may end behind its last record: markers, aborted records."""
    book = OrderBook(Order.NONE, window=100, ahead=100)
    ledger = book.add(batch_of(A, (3, None), (10, None), (11, None), next_offset=20))
    assert ledger.position == 3
    three, ten, eleven = start_all(book)
    assert book.done(three)
    assert ledger.position == 10
    assert not book.done(eleven)
    assert book.done(ten)
    assert (ledger.position, ledger.held) == (20, 0)


def test_a_batch_without_records_moves_the_position_behind_what_is_done():
    book = OrderBook(Order.NONE, window=100, ahead=100)
    assert book.add(Batch(A, [], 5)).position == 5
    ledger = book.add(batch_of(A, (5, None)))
    book.add(Batch(A, [], 9))
    assert ledger.position == 5
    book.done(start_all(book)[0])
    assert ledger.position == 9


@pytest.mark.parametrize("order", list(Order))
def test_one_that_is_stuck_fills_its_partition_and_no_other(order: Order):
    book = OrderBook(order, window=10, ahead=1000)
    book.add(batch_of(A, (0, b"stuck")))
    stuck = start_all(book)[0]
    book.add(batch_of(B, (0, b"x")))
    added = 1
    while A not in book.full:
        book.add(batch_of(A, (added, b"%d" % added)))
        added += 1
        for item in start_all(book):
            book.done(item)
    assert added == 10
    assert book.full == {A}
    assert book.wants_more
    book.done(stuck)
    for item in start_all(book):
        book.done(item)
        for behind in start_all(book):
            book.done(behind)
    while order is Order.PARTITION and (items := start_all(book)):
        book.done(items[0])
    assert book.full == set()
    assert book.has_opened


def test_what_can_be_started_and_is_not_holds_the_intake_back():
    book = OrderBook(Order.KEY, window=100, ahead=3)
    book.add(batch_of(A, (0, b"x"), (1, b"x"), (2, b"x"), (3, b"x"), (4, b"y")))
    assert book.wants_more  # those behind x's first cannot be started
    book.add(batch_of(A, (5, b"z")))
    assert not book.wants_more
    ledger = book.turn()
    assert ledger is not None
    book.start(ledger, 0.0)
    assert book.wants_more


def test_large_records_fill_a_partition_sooner():
    book = OrderBook(Order.NONE, window=1000, ahead=1000, share_bytes=10_000)
    for offset in range(3):
        assert A not in book.full
        book.add(Batch(A, [record_of(A, offset, None, bytes(3_500))], offset + 1))
    assert book.full == {A}
    first, second, _third = start_all(book)
    book.done(second)
    assert A in book.full
    book.done(first)
    assert A not in book.full
    assert book.has_opened


@pytest.mark.parametrize("order", [Order.KEY, Order.PARTITION])
def test_a_pause_keeps_the_order_of_its_key_and_holds_nobody_else_up(order: Order):
    book = OrderBook(order, window=100, ahead=2)
    book.add(batch_of(A, (0, b"x"), (1, b"x"), (2, b"x")))
    first = start_all(book)[0]
    assert book.again(first, at=10.0)
    assert (book.next_due, book.paused_count, book.running_count) == (10.0, 1, 0)
    assert book.wants_more, "what waits for a pause does not count as ready"
    assert start_all(book) == []
    book.add(batch_of(B, (0, b"x")))
    assert [item.ledger.where for item in start_all(book)] == [B]
    book.due(9.9)
    assert start_all(book) == []
    book.due(10.0)
    again = start_all(book)
    assert again == [first]
    assert first.attempts == 2
    book.done(first)
    assert offsets(start_all(book)) == [1]


def test_a_revocation_drops_what_was_not_started():
    book = OrderBook(Order.NONE, window=100, ahead=100)
    book.add(batch_of(A, (0, None), (1, None), (2, None)))
    ledger = book.turn()
    assert ledger is not None
    zero, one = book.start(ledger, 0.0), book.start(ledger, 0.0)
    assert zero is not None
    assert one is not None
    assert book.withdraw(A) is ledger
    assert start_all(book) == []
    assert not book.done(one)
    assert not book.release(ledger)
    assert book.done(zero)
    assert ledger.position == 2
    assert book.release(ledger)
    assert not book.release(ledger)
    assert book.ledgers() == []


def test_a_pause_of_a_revoked_partition_is_over():
    book = OrderBook(Order.KEY, window=100, ahead=100)
    book.add(batch_of(A, (0, b"x")))
    item = start_all(book)[0]
    book.withdraw(A)
    assert not book.again(item, at=1.0)
    assert book.release(item.ledger)
    book.due(2.0)
    assert start_all(book) == []


def test_what_comes_back_waits_for_the_handlers_of_before():
    book = OrderBook(Order.KEY, window=100, ahead=100)
    book.add(batch_of(A, (0, b"x")))
    old = start_all(book)[0]
    book.lose(A)
    book.add(batch_of(A, (0, b"x")))
    assert start_all(book) == []
    assert not book.done(old), "what it did counts no more"
    new = start_all(book)[0]
    assert new.ledger is not old.ledger
    assert new.ledger.position == 0
    assert book.done(new)


def test_reading_that_goes_back_begins_anew():
    """After a seek, or where a log was cut off."""
    book = OrderBook(Order.KEY, window=100, ahead=100)
    book.add(batch_of(A, (5, b"x"), (6, b"x"), (7, b"y")))
    five, seven = start_all(book)
    book.add(batch_of(A, (2, b"z"), (5, b"x")))
    assert start_all(book) == []
    assert not book.done(five)
    assert start_all(book) == []
    assert not book.done(seven)
    two, again = start_all(book)
    assert offsets([two, again]) == [2, 5]
    assert book.done(two)
    assert two.ledger.position == 5


class History:
    """One interleaving of adding, starting, ending, pausing, revoking and coming back; what is promised is asserted."""

    def __init__(self, order: Order, chance: Random) -> None:
        self.order = order
        self.chance = chance
        self.book = OrderBook(order, window=chance.choice((1, 5, 20)), ahead=chance.choice((1, 8, 100)))
        self.logs = {where: self._log(where) for where in (A, B)}
        self.cursors = {A: 0, B: 0}
        """Index in the log of what is added next."""
        self.done: dict[TopicPartition, set[int]] = {A: set(), B: set()}
        self.revoking: set[TopicPartition] = set()
        self.under_way: list[Item] = []
        self.now = 0.0

    def _log(self, where: TopicPartition) -> list[Record]:
        found = []
        offset = 0
        for _ in range(self.chance.randrange(1, 60)):
            offset += self.chance.choice((1, 1, 1, 4))
            found.append(record_of(where, offset, self.chance.choice(KEYS)))
        return found

    def add(self) -> None:
        where = self.chance.choice((A, B))
        if where in self.revoking or where in self.book.full or not self.book.wants_more:
            return
        log, first = self.logs[where], self.cursors[where]
        records = log[first : first + self.chance.randrange(0, 9)]
        if not records:
            return
        self.cursors[where] += len(records)
        after = self.cursors[where]
        top = log[after].offset if after < len(log) else records[-1].offset + 1
        self.book.add(Batch(where, records, self.chance.randrange(records[-1].offset + 1, top + 1)))

    def start(self) -> None:
        ledger = self.book.turn()
        item = None if ledger is None else self.book.start(ledger, self.now)
        if item is None:
            return
        assert item.ledger.standing is Standing.HELD
        assert item not in self.under_way
        for other in self.under_way:
            assert not self._are_ordered(item, other), "two of a key at once"
        for earlier in self.logs[item.ledger.where]:
            if earlier.offset < item.record.offset and self._is_of_one_lane(earlier.key, item.record.key):
                assert earlier.offset in self.done[item.ledger.where], "one before it is not done"
        self.under_way.append(item)

    def _are_ordered(self, one: Item, other: Item) -> bool:
        return one.ledger.where == other.ledger.where and self._is_of_one_lane(one.record.key, other.record.key)

    def _is_of_one_lane(self, one: bytes | None, other: bytes | None) -> bool:
        return self.order is Order.PARTITION or (self.order is Order.KEY and one is not None and one == other)

    def _ended(self) -> Item | None:
        return self.under_way.pop(self.chance.randrange(len(self.under_way))) if self.under_way else None

    def end(self) -> None:
        item = self._ended()
        if item is None:
            return
        where = item.ledger.where
        counts = item.ledger.standing is not Standing.LOST
        if counts:
            self.done[where].add(item.record.offset)
        before = item.ledger.position
        assert self.book.done(item) == (item.ledger.position != before)
        if counts:
            self._check_position(where, item.ledger.position)
        self._release(item.ledger)

    def _check_position(self, where: TopicPartition, position: int) -> None:
        below = {record.offset for record in self.logs[where] if record.offset < position}
        assert below <= self.done[where], "the position passed one that is not done"

    def pause(self) -> None:
        item = self._ended()
        if item is not None:
            is_held = item.ledger.standing is Standing.HELD
            assert self.book.again(item, self.now + self.chance.random()) == is_held
            self._release(item.ledger)

    def cancel(self) -> None:
        """A handler of a partition that was lost ends, as its scope does."""
        item = next((item for item in self.under_way if item.ledger.standing is Standing.LOST), None)
        if item is not None:
            self.under_way.remove(item)
            self.book.abandon(item)

    def tick(self) -> None:
        self.now += self.chance.random()
        self.book.due(self.now)

    def revoke(self) -> None:
        where = self.chance.choice((A, B))
        ledger = self.book.withdraw(where)
        if ledger is not None:
            self.revoking.add(where)
            self._release(ledger)

    def lose(self) -> None:
        where = self.chance.choice((A, B))
        ledger = self.book.lose(where)
        if ledger is not None:
            self._come_back(ledger)

    def _release(self, ledger: Ledger) -> None:
        if self.book.release(ledger):
            self._come_back(ledger)

    def _come_back(self, ledger: Ledger) -> None:
        """It is assigned again, and read from its position."""
        where, position = ledger.where, ledger.position
        self.revoking.discard(where)
        self.cursors[where] = sum(record.offset < position for record in self.logs[where])
        self.done[where] = {offset for offset in self.done[where] if offset < position}

    def run(self, steps: int) -> None:
        moves = [self.add] * 3 + [self.start] * 8 + [self.end] * 7 + [self.pause, self.tick]
        moves += [self.cancel] + ([self.revoke, self.lose] if self.chance.random() < 0.5 else [])
        for _ in range(steps):
            self.chance.choice(moves)()
            self._check_counts()
        self.finish()

    def _check_counts(self) -> None:
        assert sorted(map(id, self.book.under_way())) == sorted(map(id, self.under_way))
        assert self.book.running_count == len(self.under_way)
        ledgers = self.book.ledgers()
        resting = [ledger for ledger in ledgers if ledger.is_busy and not ledger.running]
        assert self.book.ready_count == sum(len(ledger.ready) for ledger in ledgers if ledger not in resting)
        for ledger in ledgers:
            undone = sum(segment.done.count(0) * segment.record_bytes for segment in ledger.segments)
            assert ledger.standing is not Standing.HELD or ledger.kept_bytes == undone
            assert ledger.held == sum(len(segment.done) for segment in ledger.segments) - ledger.start

    def finish(self) -> None:
        """Nothing more goes wrong: everything is handled."""
        for _ in range(5_000):
            self.add()
            self.start()
            self.end()
            self.cancel()
            self.tick()
        for where, log in self.logs.items():
            assert self.done[where] == {record.offset for record in log}
        assert self.book.ledgers() == []
        assert self.book.full == set()
        assert self.book.ready_count == 0
        assert (self.book.paused_count, self.book.held_count) == (0, 0)


@pytest.mark.parametrize("order", list(Order))
def test_every_record_is_handled_in_order_whatever_happens(order: Order, seed: int):
    for number in range(40):
        History(order, Random(f"{seed} {order} {number}")).run(300)
