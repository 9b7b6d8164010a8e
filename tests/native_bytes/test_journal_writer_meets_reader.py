"""What the journal's writer in C puts on a disk, read back by the recovery's reader."""

import os
import random

import pytest

from tests.support.journal_harness import JOURNAL_ID, Core, Journal, JournalFile
from tests.support.native_journal import BLOCK_BYTES, JournalReader
from tpc_broker._ring import lib as ring_lib

REGION_BLOCK_FIRST = 2


@pytest.fixture
def file(tmp_path):
    file = JournalFile(tmp_path / "0000.journal", mode=ring_lib.TPC_JOURNAL_BUFFERED_DSYNC)
    yield file
    os.close(file.descriptor)


def read_back(region, journal_id, position, next_sequence, previous_crc):
    reader = JournalReader(
        region_bytes=len(region),
        journal_id=journal_id,
        position=position,
        next_sequence=next_sequence,
        previous_crc=previous_crc,
    )
    entries = []
    while reader.wanted is not None:
        at, size = reader.wanted
        entries += reader.feed(at, region[at : at + size])
    return reader, entries


def test_laps_of_random_appends(file):
    rng = random.Random(11)
    core = Core(0)
    journal = Journal(core, file, commits_in_flight_max=3)
    for _ in range(30):
        begin, appended = journal.place(), []
        for _ in range(rng.randrange(1, 12)):
            payload = rng.randbytes(rng.randrange(4000))
            place = {"offset": rng.randrange(2**40), "argument": rng.randrange(2**40), "partition": rng.randrange(9)}
            sequence = journal.append(payload, **place)
            assert sequence > 0
            appended.append((sequence, *place.values(), payload))
            if rng.random() < 0.3:
                core.turn()
        journal.wait_durable(sequence)
        end = journal.place()
        region = file.path.read_bytes()[REGION_BLOCK_FIRST * BLOCK_BYTES :]
        position = (begin.block - REGION_BLOCK_FIRST) * BLOCK_BYTES
        reader, found = read_back(region, JOURNAL_ID, position, begin.sequence, begin.previous_crc)
        assert [(e.sequence, e.offset, e.argument, e.partition, bytes(e.payload)) for e in found] == appended
        assert (reader.next_sequence, reader.previous_crc, reader.damage) == (end.sequence, end.previous_crc, None)
        assert reader.position % len(region) == (end.block - REGION_BLOCK_FIRST) * BLOCK_BYTES
        assert ring_lib.tpc_journal_recycle(journal.handle, end.position) == 0
    journal.close()
    core.close()
