"""Files on their way to another replica: read, and written there, past the page cache where that can be."""

import mmap
import os
import random
from pathlib import Path

import pytest

from tests.support.fake_disk import FakeDisk
from tpc_broker.model import CoreId
from tpc_broker.storage.replicas.filled_files import FilledFile
from tpc_broker.storage.replicas.shipments import Shipment, Shipments, ShippedFile
from tpc_broker.storage.segments.files import FileCache
from tpc_broker.storage.segments.segments import DIRECT_READ_BYTES, SegmentFolder

PATH = Path("/filled.log")
PART_BYTES = 1 << 20
CONTENT = random.Random(5).randbytes(3 * PART_BYTES + 4096 + 77)


def buffer() -> memoryview:
    return memoryview(mmap.mmap(-1, len(CONTENT) + 8192))


async def write_whole(disk: FakeDisk, *, is_aligned: bool) -> None:
    file = await FilledFile.make(FileCache(disk), PATH)
    for position in range(0, len(CONTENT), PART_BYTES):
        part = CONTENT[position : position + PART_BYTES]
        data = buffer()[: len(part)]
        data[:] = part
        await file.write(data, position, is_aligned=is_aligned)
    await file.sync()
    await file.close()
    assert not disk.descriptors
    assert disk.names[PATH].content == disk.names[PATH].durable == CONTENT


async def test_whole_blocks_are_written_past_the_page_cache_and_the_rest_through_it():
    disk = FakeDisk()
    await write_whole(disk, is_aligned=True)
    assert disk.ways() == {("direct",): len(CONTENT) // 4096, ("cached",): 1}


@pytest.mark.parametrize(("refuses", "is_aligned"), [("open", True), ("write", True), (None, False)])
async def test_where_that_cannot_be_everything_is_written_all_the_same(refuses, is_aligned):
    disk = FakeDisk(refuses=refuses)
    await write_whole(disk, is_aligned=is_aligned)
    assert disk.ways() == {("cached",): len(CONTENT) // 4096 + 1}


async def read_parts(disk: FakeDisk, places: list[tuple[int, int]]) -> None:
    files = FileCache(disk)
    fd = await disk.open(PATH, os.O_RDWR | os.O_CREAT)
    await disk.write_at(fd, CONTENT, 0)
    folder = SegmentFolder(files, PATH.parent)
    shipment = Shipment("0000-ab", folder, (ShippedFile(PATH.name, len(CONTENT)),), 0)
    shipments = Shipments(files, Path("/"), CoreId(0))
    for position, length in places:
        found = await shipments.read(shipment, PATH.name, position, length, buffer())
        assert found == CONTENT[position : position + length], (position, length)


async def test_parts_are_read_past_the_page_cache_wherever_they_begin_and_end():
    disk, chooser = FakeDisk(), random.Random(7)
    places = [(5, len(CONTENT) - 5), (4096, PART_BYTES), (len(CONTENT), 5)]
    for _ in range(30):
        position = chooser.randrange(len(CONTENT))
        places.append((position, chooser.randrange(len(CONTENT) - position)))
    await read_parts(disk, places)
    assert disk.direct_reads[:4] == [DIRECT_READ_BYTES] * 3 + [4096]


@pytest.mark.parametrize("refuses", ["open", "read"])
async def test_where_direct_reads_are_refused_parts_are_read_all_the_same(refuses):
    disk = FakeDisk(refuses=refuses)
    await read_parts(disk, [(0, len(CONTENT)), (PART_BYTES, PART_BYTES + 9)])
    assert not disk.direct_reads
