"""Logs that were cleaned, as a coordinator and readers find them: gaps, batches without records, ends that are gone."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
import trio

from tests.log.log_batches import batch as stored_batch
from tests.support.compacted_records import emptied
from tests.support.driven_machine import CellsLog, coordinating, driving
from tpc_broker.broker import coordinator_driver
from tpc_broker.broker.partition import Partition
from tpc_broker.broker.producers_port import KnownAborted
from tpc_broker.coordinator import GroupCoordinator, Record
from tpc_broker.coordinator.records import CommittedOffset, OffsetKey, offset_record
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka.records import ControlType, build_batch, control_batch
from tpc_broker.kafka.records import Record as LogRecord
from tpc_broker.log.batch import decode_header
from tpc_broker.metadata.topic_config import TopicConfig
from tpc_broker.model import Offset

PRODUCER = {"producer_id": 7, "producer_epoch": 0}


def batch(*records, **more):
    return build_batch([LogRecord(record.value, record.key, 0) for record in records], **more)


def marker(*, commit=True):
    kind = ControlType.COMMIT if commit else ControlType.ABORT
    return control_batch(kind, coordinator_epoch=0, timestamp_ms=0, **PRODUCER)


def in_transaction(*records):
    return batch(*records, is_transactional=True, base_sequence=0, **PRODUCER)


def committed(offset, partition=0):
    return offset_record(OffsetKey("g", "t", partition), CommittedOffset(Offset(offset)))


def offsets_of(driver):
    found = driver.machine.offset_fetch("g", require_stable=True).offsets
    return {one.partition: one.error_code or one.offset for one in found}


async def loaded(log):
    async with driving(log, GroupCoordinator()) as driver:
        return offsets_of(driver)


@pytest.mark.parametrize("load_bytes", [1, 200, 1 << 20])
async def test_what_a_cleaner_leaves_of_transactions_is_loaded(load_bytes, autojump_clock, monkeypatch):
    """Data without records in front of their marker; markers of data that are gone, and without their record."""
    monkeypatch.setattr(coordinator_driver, "LOAD_BYTES", load_bytes)
    log = CellsLog()
    log.skip(5)
    log.add(emptied(in_transaction(committed(1))))
    log.add(marker())
    log.skip(1_000)
    log.add(marker(commit=False))  # of nothing
    log.add(in_transaction(committed(2), committed(3, 1)))
    log.add(emptied(in_transaction(committed(4))))
    log.add(marker())
    log.add(emptied(marker()))
    log.add(in_transaction(committed(5, 1)))
    log.add(emptied(batch(committed(6))))
    log.skip(7)
    assert await loaded(log) == {0: 2, 1: ErrorCode.UNSTABLE_OFFSET_COMMIT}
    log.add(marker(commit=False))
    assert await loaded(log) == {0: 2, 1: 3}


async def test_a_log_of_which_nothing_is_left_is_loaded(autojump_clock):
    log = CellsLog()
    log.add(batch(Record(b"a", b"1"), Record(b"a", None)))
    log.clean([])
    async with driving(log) as driver:
        assert driver.machine.cells == {}


async def test_a_hole_that_no_cleaner_has_made_is_damage(autojump_clock, caplog):
    log = CellsLog()
    log.add(batch(Record(b"a", b"1")))
    log.add(batch(Record(b"b", b"1")))
    log.log.batches.pop()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_coordinate, log)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert "nothing can be read at offset 1" in caplog.text


async def _coordinate(log):
    async with coordinating(log):
        await trio.sleep_forever()


class SlowLog(CellsLog):
    """It is cleaned behind the first batch that is read: a key that was read before is gone, with or without its
    tombstone.
    """

    def __init__(self, read_s, *, forgets):
        super().__init__()
        self.add(batch(Record(b"a", b"1")))
        self.add(batch(Record(b"a", None), Record(b"b", b"1")))
        self._read_s, self._forgets, self.reads = read_s, forgets, 0

    async def read_bytes(self, offset, upto, bytes_max):
        data = await super().read_bytes(offset, upto, bytes_max)
        self.reads += 1
        await trio.sleep(self._read_s)
        if self.reads == 1:
            self.clean([_of_b(self.log.batches[1]) if self._forgets else self.log.batches[1]])
        return data


def _of_b(data):
    return build_batch([LogRecord(b"1", b"b", 0, offset=2)], base_offset=int.from_bytes(data[:8]))


async def test_a_log_that_forgets_deletions_while_it_is_read_is_read_again(autojump_clock, monkeypatch):
    monkeypatch.setattr(coordinator_driver, "LOAD_BYTES", 1)
    log = SlowLog(read_s=2, forgets=True)
    log.config = TopicConfig(delete_retention_ms=1_000)
    async with coordinating(log) as service:
        await trio.sleep(20)
        assert service.coordinator_of("any").machine.cells == {b"b": b"1"}
        assert log.reads > 2


async def test_a_log_that_is_cleaned_while_it_is_read_is_read_once(autojump_clock, monkeypatch):
    monkeypatch.setattr(coordinator_driver, "LOAD_BYTES", 1)
    log = SlowLog(read_s=0.01, forgets=False)
    async with coordinating(log) as service:
        assert service.coordinator_of("any").machine.cells == {b"b": b"1"}
        assert log.reads == 2


class Ending:
    """Files whose last batches were cleaned away: there is nothing from `begin` on. What memory has is written while
    they are read, with `writes`.
    """

    failed, segments = None, ()

    def __init__(self, end, *, writes=False):
        self.written_end_offset, self._writes, self.reads = end, writes, []

    async def read_once(self, offset, _bytes_max, _upto):
        end = self.written_end_offset
        await trio.lowlevel.checkpoint()
        self.reads.append(offset)
        if self._writes:
            self.written_end_offset = 12
        return stored_batch(10, [b"a", b"b"]) if offset <= 10 < end else b""

    def aborted_now(self, _offset, _upto, _bytes_max=None):
        return []


def partition_of(files):
    def read(_handle, offset, _upto, _bytes_max, _at_least_one):
        data = stored_batch(10, [b"a", b"b"])
        return ([data], len(data)) if offset >= 10 and files.written_end_offset <= 10 else None

    plane = SimpleNamespace(
        read=read, aborted=lambda *_asked: KnownAborted([], 0, 0), wants_window=lambda *_asked: False,
        bounds=lambda _handle: SimpleNamespace(log_start_offset=0),
    )  # fmt: skip
    return Partition(
        uuid.UUID(int=1), "t", 0, TopicConfig(), plane=plane, storage=None, files=files, handle=1, is_internal=False
    )


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("how", ["read", "read_committed"])
async def test_whose_offset_is_in_a_gap_at_the_end_of_the_files_reads_what_is_behind(how, writes):
    files = Ending(10, writes=writes)
    buffers, size, *_aborted = await getattr(partition_of(files), how)(6, 12, 1 << 20, at_least_one=True)
    assert (buffers, size) == ([stored_batch(10, [b"a", b"b"])], len(buffers[0]))
    assert files.reads == ([6, 10] if writes else [6])


async def test_of_a_gap_up_to_the_end_nothing_is_read():
    assert await partition_of(Ending(10)).read(6, 10, 1 << 20, at_least_one=True) == ([], 0)


class Cleaned:
    """Files whose record with the largest timestamp is cleaned away between two looks."""

    failed, written_end_offset = None, 10

    def __init__(self):
        self.batches = [stored_batch(3, [b"a"], timestamp=2000), stored_batch(7, [b"b"], timestamp=1000)]
        self.segments = (1,)

    async def largest_timestamp(self, _start, _upto):
        await trio.lowlevel.checkpoint()
        header = max((decode_header(one) for one in self.batches), key=lambda one: one.max_timestamp)
        if len(self.batches) > 1:
            self.batches, self.segments = self.batches[1:], (2,)
        return SimpleNamespace(header=header)

    async def read_once(self, offset, _bytes_max, _upto):
        await trio.lowlevel.checkpoint()
        return next((one for one in self.batches if decode_header(one).last_offset >= offset), b"")


async def test_the_largest_timestamp_is_looked_for_again_when_its_record_was_cleaned_away():
    partition = partition_of(Cleaned())
    assert (await partition.find_max_timestamp(10, 1 << 20))[:2] == (1000, 7)
