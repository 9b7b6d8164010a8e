"""Committed records as Python reads them: data and what was aborted are of one version of the files, whatever changes
them while the disk is waited for; and what ListOffsets tells their readers.
"""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tests.broker.test_offsets import EARLIEST, LARGEST, LATEST, list_offset
from tests.log.log_batches import batch
from tests.support.memory_clients import create_topic, produce
from tests.support.memory_node import running_node
from tpc_broker.broker.partition import Partition
from tpc_broker.broker.producers_port import EndMarker, KnownAborted
from tpc_broker.error_codes import ErrorCode
from tpc_broker.log.indexes import AbortedTransaction
from tpc_broker.metadata.topic_config import TopicConfig
from tpc_broker.storage.segments.segment_log import OffsetOutOfRangeError

NONE = ErrorCode.NONE
END = 10


class Swapped:
    """Files of which another version takes the place at every turn. Version n has one batch, of producer n, which was
    aborted.
    """

    failed, written_end_offset = None, END

    def __init__(self):
        self.version, self.loaded, self.loads = 0, False, 0

    async def swap(self):
        while True:
            self.version += 1
            await trio.lowlevel.checkpoint()

    def aborted_now(self, _offset, _upto, _bytes_max=None):
        return [AbortedTransaction(self.version, 0, 3, END)] if self.loaded else None

    async def load_aborted(self, *_asked):
        self.loads += 1
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        self.loaded = True

    def aborted_below(self, _offset, upto, _count_max):
        return upto, []

    async def read_once(self, _offset, _bytes_max, _upto):
        producer_id = self.version
        await trio.lowlevel.checkpoint()
        return batch(0, producer=(producer_id, 0, 0), transactional=True)


def partition_of(files, known, in_memory=None):
    plane = SimpleNamespace(
        read=lambda *_asked: in_memory, aborted=lambda *_asked: known, wants_window=lambda *_asked: False,
        bounds=lambda _handle: SimpleNamespace(log_start_offset=0),
    )  # fmt: skip
    return Partition(
        uuid.UUID(int=1), "t", 0, TopicConfig(), plane=plane, storage=None, files=files, handle=1, is_internal=False
    )


@pytest.mark.parametrize("loaded", [True, False])
async def test_the_list_is_of_the_version_that_the_data_are_of(autojump_clock, loaded):
    files = Swapped()
    files.loaded = loaded
    partition = partition_of(files, KnownAborted([], END, 0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(files.swap)
        await trio.lowlevel.checkpoint()
        for _ in range(20):
            files.loaded = loaded
            (data,), _size, aborted = await partition.read_committed(0, END, 1 << 20, at_least_one=True)
            assert aborted == [(int.from_bytes(data[43:51]), 0)]
        nursery.cancel_scope.cancel()
    assert files.loads == (0 if loaded else 20)


async def test_what_was_aborted_below_is_asked_of_the_files_and_what_reaches_into_the_data_is_told():
    files = Swapped()
    files.loaded, files.version = True, 7
    of_memory = [AbortedTransaction(9, 0, 5, 6), AbortedTransaction(9, 1, 8, 9)]  # the latter begins behind the data
    partition = partition_of(files, KnownAborted(of_memory, 4, 0))
    assert (await partition.read_committed(2, END, 1 << 20, at_least_one=True))[2] == [(7, 0), (9, 0)]
    assert (await partition.read_committed(4, END, 1 << 20, at_least_one=True))[2] == [(9, 0)]
    partition = partition_of(files, KnownAborted(of_memory, 3, 0))
    assert (await partition.read_committed(2, END, 1 << 20, at_least_one=True))[2] == [(9, 0)], "it is known to both"
    partition = partition_of(files, KnownAborted(of_memory, 4, 0), in_memory=([], 0))
    assert await partition.read_committed(2, END, 1, at_least_one=False) == ([], 0, [])


async def test_who_asks_below_the_first_segment_is_told_so():
    def miss(*_asked):
        raise OffsetOutOfRangeError("offset 2 lies in front of 5")

    files = Swapped()
    files.aborted_now = miss
    partition = partition_of(files, KnownAborted([], END, 0))
    with pytest.raises(Exception, match="lies in front of 5"):
        await partition.read_committed(2, END, 1 << 20, at_least_one=True)


async def test_offsets_for_readers_of_committed_records_end_at_the_last_stable_one(autojump_clock):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        for stamp in (100, 300):
            assert (await produce(node, 0, "t", 0, [b"a"], timestamp=stamp))[0] is NONE
        partition = node[0].partitions.find("t", 0)
        opened = batch(0, [b"b"], producer=(7, 0, 0), transactional=True, timestamp=500)
        await partition.append_durably(opened)
        assert (await produce(node, 0, "t", 0, [b"a"], timestamp=900))[0] is NONE

        async def told(isolation):
            asked = (LATEST, EARLIEST, LARGEST, 300, 400, 800)
            return [(await list_offset(node, 0, "t", 0, one, isolation_level=isolation))[:3] for one in asked]

        of_all = [(NONE, 4, -1), (NONE, 0, -1), (NONE, 3, 900), (NONE, 1, 300), (NONE, 2, 500), (NONE, 3, 900)]
        assert await told(0) == of_all
        assert await told(1) == [
            (NONE, 2, -1), (NONE, 0, -1), (NONE, 1, 300), (NONE, 1, 300), (NONE, -1, -1), (NONE, -1, -1),
        ]  # fmt: skip
        assert await partition.append_marker(EndMarker(7, 1, 0, True, 2)) is NONE
        of_all = await told(0)
        assert of_all[0] == (NONE, 5, -1)
        assert await told(1) == of_all
