"""Versions of a partition's segments: each names one moment for good; and what a closed partition leaves in memory."""

import gc
import weakref

from tests.log.log_batches import batch
from tests.storage.test_partition_storage import fill, make


def described(version):
    return [one.base_offset for one in version.segments], version.end_offset, version.size_of(version.active)


async def test_a_version_is_what_it_was_whatever_becomes_of_the_log():
    storage = await make()
    versions = []

    async def change(done):
        before = storage.version
        await done
        assert storage.version is not before
        versions.append((storage.version, described(storage.version)))

    for offset in range(0, 60, 3):
        await change(storage.append([batch(offset, [b"a" * 400, b"b", b"c"], timestamp=1000 + offset)]))
    assert len(storage.segments) > 4
    await change(storage.roll())
    await change(storage.advance_log_start(30, 0))
    await change(storage.truncate(45))
    await change(storage.append([batch(45, [b"another"], timestamp=1)]))
    await change(storage.truncate(45))
    assert [described(version) for version, _before in versions] == [before for _version, before in versions]
    ends = [version.end_offset for version, _before in versions]
    assert ends == [*range(3, 61, 3), 60, 60, 45, 46, 45]


async def test_what_is_written_is_published_at_once_and_not_before():
    storage = await make()
    write_parts, seen = storage.folder.write_parts, []

    async def look(name, parts):
        seen.append((storage.written_end_offset, storage.version.active_bytes))
        await write_parts(name, parts)
        seen.append((storage.written_end_offset, storage.version.active_bytes))

    storage.folder.write_parts = look
    data = batch(0, [b"x"], timestamp=1)
    await storage.append([data])
    assert seen == [(0, 0), (0, 0)]
    assert (storage.written_end_offset, storage.version.active_bytes) == (1, len(data))


async def test_a_partition_is_freed_without_a_collection():
    """What is there at the end of a start is frozen: no collection would ever free the partitions deleted later."""
    storage = await make()
    await fill(storage, 10)
    await storage.read(3, 100)
    await storage.advance_log_start(9, 0)
    await storage.close()
    gone = weakref.ref(storage)
    gc.disable()
    try:
        del storage
        assert gone() is None
    finally:
        gc.enable()
