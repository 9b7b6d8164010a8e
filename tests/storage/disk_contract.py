"""What every disk promises that storage runs on: one body for each promise, of the port's operations alone.

A body gets a disk and an empty folder on it. What only loss of power shows of a sync is told by `FakeDisk.crash`, and
of the real one by tests/durability.
"""

import errno
import mmap
import os
import time
from contextlib import asynccontextmanager

import pytest
import trio

from tpc_broker.engine.disk import PART_BYTES, PARTS_MAX
from tpc_broker.storage.ports import FileSpace, FileWrite

BLOCK_BYTES = 4096
"""What a direct read or write has to be aligned to, on any file system."""
NO_DESCRIPTOR = 1 << 20
NEW = os.O_RDWR | os.O_CREAT
PROMISES = []


def promise(body):
    PROMISES.append(body)
    return body


@asynccontextmanager
async def opened(disk, path, flags=NEW):
    fd = await disk.open(path, flags)
    try:
        yield fd
    finally:
        await disk.close(fd)


async def put(disk, path, content=b""):
    async with opened(disk, path) as fd:
        await disk.write_at(fd, content, 0)
    return path


async def content_of(disk, path):
    async with opened(disk, path, os.O_RDONLY) as fd:
        return await disk.read(fd, 1 << 20, 0)


@asynccontextmanager
async def refused(*numbers):
    """The block raises one of these, as the class that Python has for it."""
    with pytest.raises(OSError) as raised:
        yield
    assert raised.value.errno in numbers, raised.value
    assert type(raised.value) is type(OSError(raised.value.errno, ""))


def numbers_of(outcomes):
    return [one.errno if isinstance(one, OSError) else None for one in outcomes]


# -- opening and closing -----------------------------------------------------------------------------------------------


@promise
async def a_file_is_made_where_it_is_asked_for_and_its_folder_is_there(disk, folder):
    path = folder / "a"
    async with refused(errno.ENOENT):
        await disk.open(path, os.O_RDWR)
    async with refused(errno.ENOENT):
        await disk.open(folder / "nowhere" / "a", NEW)
    async with opened(disk, path) as fd:
        assert await disk.read(fd, 10, 0) == b""
        async with refused(errno.ENOTDIR):
            await disk.open(path / "b", NEW)
        async with refused(errno.EEXIST):
            await disk.open(path, NEW | os.O_EXCL)
        async with opened(disk, path) as other:
            assert other != fd
    assert await disk.listdir(folder) == ["a"]


@promise
async def opening_cuts_only_where_that_is_asked_for(disk, folder):
    path = await put(disk, folder / "a", b"content")
    async with opened(disk, path, NEW):
        pass
    assert await content_of(disk, path) == b"content"
    async with opened(disk, path, NEW | os.O_TRUNC):
        pass
    assert await content_of(disk, path) == b""


@promise
async def a_folder_is_opened_for_nothing_but_reading(disk, folder):
    for flags in (os.O_RDWR, os.O_WRONLY, NEW):
        async with refused(errno.EISDIR):
            await disk.open(folder, flags)
    async with opened(disk, folder, os.O_RDONLY | os.O_DIRECTORY) as fd, refused(errno.EISDIR):
        await disk.read(fd, 10, 0)
    await put(disk, folder / "a")
    async with refused(errno.ENOTDIR):
        await disk.open(folder / "a", os.O_RDONLY | os.O_DIRECTORY)


@promise
async def a_descriptor_reads_or_writes_as_it_was_opened(disk, folder):
    path = await put(disk, folder / "a", b"content")
    async with opened(disk, path, os.O_RDONLY) as fd:
        for write in (disk.write_at(fd, b"x", 0), disk.writev(fd, [b"x"], 0), disk.durable_write(fd, b"x", 0)):
            async with refused(errno.EBADF):
                await write
        async with refused(errno.EBADF):
            await disk.fallocate(fd, 0, 100, keep_size=True)
        async with refused(errno.EINVAL):
            await disk.truncate(fd, 0)
        await disk.fdatasync(fd)
        await disk.syncfs(fd)
    async with opened(disk, path, os.O_WRONLY) as fd:
        await disk.write_at(fd, b"C", 0)
        async with refused(errno.EBADF):
            await disk.read(fd, 1, 0)
    assert await content_of(disk, path) == b"Content"


@promise
async def what_is_closed_is_no_descriptor_any_more(disk, folder):
    path = await put(disk, folder / "a", b"content")
    fd = await disk.open(path, NEW)
    await disk.close(fd)
    for number in (fd, NO_DESCRIPTOR):
        for operation in (
            disk.close(number), disk.read(number, 1, 0), disk.read_view(number, 1, 0),
            disk.read_into(number, bytearray(1), 0), disk.read_ahead(number, 1, 0), disk.write_at(number, b"x", 0),
            disk.writev(number, [b"x"], 0), disk.durable_write(number, b"x", 0), disk.fdatasync(number),
            disk.fallocate(number, 0, 1, keep_size=True), disk.truncate(number, 0), disk.syncfs(number),
            disk.close_many([number]),
        ):  # fmt: skip
            async with refused(errno.EBADF):
                await operation
    assert await content_of(disk, path) == b"content"


@promise
async def a_cancelled_task_still_closes(disk, folder):
    one, others = await put(disk, folder / "a"), [await put(disk, folder / name) for name in "bc"]
    fd, more = await disk.open(one, NEW), await disk.open_many(others, NEW)
    with trio.CancelScope() as scope:
        scope.cancel()
        await disk.close(fd)
    with trio.CancelScope() as scope:
        scope.cancel()
        await disk.close_many(more)
    for closed in (fd, *more):
        async with refused(errno.EBADF):
            await disk.read(closed, 1, 0)


@promise
async def many_are_opened_and_closed_in_one_go_and_one_that_fails_keeps_no_other(disk, folder):
    path = await put(disk, folder / "a", b"content")
    found = await disk.open_many([folder / "none", path, folder, path], os.O_RDWR)
    assert numbers_of(found) == [errno.ENOENT, None, errno.EISDIR, None]
    assert [await disk.read(fd, 100, 0) for fd in found[1::2]] == [b"content"] * 2
    await disk.close_many(found[1::2])
    made = await disk.open_many([folder / "b", folder / "c"], NEW)
    await disk.close_many(made)
    assert sorted(await disk.listdir(folder)) == ["a", "b", "c"]
    assert await disk.open_many([], NEW) == []
    await disk.close_many([])


# -- content -----------------------------------------------------------------------------------------------------------


@promise
async def what_is_written_is_read_by_each_way(disk, folder):
    async with opened(disk, folder / "a") as fd:
        await disk.write_at(fd, b"01234", 0)
        await disk.durable_write(fd, memoryview(b"56789"), 5)
        await disk.writev(fd, [b"ab", bytearray(b""), memoryview(b"cde")], 10)
        await disk.write_at(fd, bytearray(b"XY"), 3)
        expected = b"012XY56789abcde"
        for length, position in ((100, 0), (15, 0), (4, 8), (100, 13), (0, 3), (10, 15), (10, 1000)):
            part = expected[position : position + length]
            found = await disk.read(fd, length, position)
            assert (type(found), found) == (bytes, part)
            assert bytes(await disk.read_view(fd, length, position)) == part
            buffer = bytearray(b"." * length)
            assert await disk.read_into(fd, memoryview(buffer), position) == len(part)
            assert buffer == part + b"." * (length - len(part)), "nothing behind the end is touched"
        await disk.read_ahead(fd, 1 << 20, 0)
        assert await disk.read(fd, 100, 0) == expected


@promise
async def a_write_behind_the_end_leaves_zeros_in_between(disk, folder):
    async with opened(disk, folder / "a") as fd:
        await disk.write_at(fd, b"x", 5)
        await disk.writev(fd, [b"y"], 8)
        await disk.durable_write(fd, b"z", 10)
        await disk.write_at(fd, b"", 100)
        await disk.writev(fd, [], 100)
        assert await disk.read(fd, 100, 0) == bytes(5) + b"x" + bytes(2) + b"y" + bytes(1) + b"z"


@promise
async def zeros_are_written_over_what_was_there_and_nowhere_else(disk, folder):
    path = await put(disk, folder / "a", b"a" * 3 * PART_BYTES)
    async with opened(disk, path) as fd:
        await disk.write_zeros(fd, 1, 2 * PART_BYTES)
    assert await content_of(disk, path) == b"a" + bytes(2 * PART_BYTES) + b"a" * (PART_BYTES - 1)


@promise
async def more_parts_than_the_kernel_takes_at_once_are_written_all(disk, folder):
    parts = [b"%05d" % number for number in range(2 * PARTS_MAX + 7)]
    async with opened(disk, folder / "a") as fd:
        await disk.writev(fd, parts, 3)
        assert await disk.read(fd, 1 << 20, 3) == b"".join(parts)


@promise
async def what_is_written_is_taken_from_the_buffer_then(disk, folder):
    """The caller has it back: nothing refers to it later."""
    data = bytearray(b"first")
    async with opened(disk, folder / "a") as fd:
        await disk.write_at(fd, data, 0)
        await disk.durable_write(fd, data, 5)
        await disk.writev(fd, [data], 10)
        assert await disk.write_many([FileWrite(fd, data, 15)]) == [None]
        data[:] = b"other"
        data.clear()
        assert await disk.read(fd, 100, 0) == b"first" * 4


@promise
async def many_writes_in_one_go_and_one_that_fails_keeps_no_other(disk, folder):
    async with opened(disk, folder / "a") as one, opened(disk, folder / "b") as other:
        writes = [FileWrite(one, b"A", 0), FileWrite(NO_DESCRIPTOR, b"?", 0), FileWrite(other, memoryview(b"B"), 2),
                  FileWrite(one, bytearray(b"C"), 1), FileWrite(other, b"", 9)]  # fmt: skip
        assert numbers_of(await disk.write_many(writes)) == [None, errno.EBADF, None, None, None]
        assert await disk.write_many([]) == []
    assert await content_of(disk, folder / "a") == b"AC"
    assert await content_of(disk, folder / "b") == b"\0\0B"


@promise
async def a_file_is_cut_and_made_longer(disk, folder):
    path = await put(disk, folder / "a", b"0123456789")
    async with opened(disk, path) as fd:
        for length, expected in ((10, b"0123456789"), (4, b"0123"), (6, b"0123\0\0"), (0, b"")):
            await disk.truncate(fd, length)
            assert await disk.read(fd, 100, 0) == expected
            assert (await disk.stat(path)).size_bytes == length


@promise
async def many_are_cut_by_name_and_one_that_fails_keeps_no_other(disk, folder):
    paths = [await put(disk, folder / name, b"0123456789") for name in "abc"]
    ends = [(paths[0], 3), (folder / "none", 1), (paths[1], 12), (folder, 0), (paths[2], 0)]
    assert numbers_of(await disk.truncate_many(ends)) == [None, errno.ENOENT, None, errno.EISDIR, None]
    assert [await content_of(disk, path) for path in paths] == [b"012", b"0123456789\0\0", b""]
    assert await disk.truncate_many([]) == []


LARGER_THAN_ANY_FILE = 1 << 62


@promise
async def space_is_taken_and_the_size_changes_where_that_is_asked_for(disk, folder):
    path = await put(disk, folder / "a", b"content")
    async with opened(disk, path) as fd:
        await disk.fallocate(fd, 0, 1 << 16, keep_size=True)
        assert await disk.read(fd, 100, 0) == b"content"
        await disk.fallocate(fd, 2, 3, keep_size=False)
        assert (await disk.stat(path)).size_bytes == 7
        await disk.fallocate(fd, 4, 8, keep_size=False)
        assert await disk.read(fd, 100, 0) == b"content" + bytes(5)
        async with refused(errno.EINVAL):
            await disk.fallocate(fd, 0, 0, keep_size=True)
        async with refused(errno.ENOSPC, errno.EFBIG):  # at once: one that fits a file fills the disk before it fails
            await disk.fallocate(fd, 0, LARGER_THAN_ANY_FILE, keep_size=True)
        assert await disk.read(fd, 100, 0) == b"content" + bytes(5)


@promise
async def space_for_many_in_one_go_and_one_that_fails_keeps_no_other(disk, folder):
    async with opened(disk, folder / "a") as one, opened(disk, folder / "b") as other:
        spaces = [FileSpace(one, 0, 8192), FileSpace(NO_DESCRIPTOR, 0, 8192), FileSpace(other, 0, 0),
                  FileSpace(other, 4096, 4096)]  # fmt: skip
        assert numbers_of(await disk.reserve_many(spaces)) == [None, errno.EBADF, errno.EINVAL, None]
        assert await disk.reserve_many([]) == []
    assert [(await disk.stat(folder / name)).size_bytes for name in "ab"] == [0, 0]


@promise
async def small_files_are_replaced_and_who_has_one_open_keeps_the_old(disk, folder):
    old = await put(disk, folder / "a", b"a longer content")
    async with opened(disk, old, os.O_RDONLY) as fd:
        await disk.replace_many([(old, b"new"), (folder / "b", b"")])
        assert await disk.read(fd, 100, 0) == b"a longer content"
    assert [await content_of(disk, folder / name) for name in "ab"] == [b"new", b""]
    assert sorted(await disk.listdir(folder)) == ["a", "b"], "nothing is left beside them"
    async with refused(errno.ENOENT):
        await disk.replace_many([(folder / "a", b"newer"), (folder / "nowhere" / "c", b"x")])
    assert await content_of(disk, folder / "a") in (b"new", b"newer")
    await disk.replace_many([])


# -- past the page cache -----------------------------------------------------------------------------------------------


@promise
async def direct_reads_and_writes_are_whole_aligned_blocks(disk, folder):
    path = folder / "a"
    await put(disk, path)
    [fd] = await disk.open_many([path], os.O_RDWR | os.O_DIRECT)
    if isinstance(fd, OSError) and fd.errno == errno.EINVAL:
        pytest.skip("the file system has no direct input and output")
    memory = memoryview(mmap.mmap(-1, 4 * BLOCK_BYTES))
    memory[:] = os.urandom(len(memory))
    expected = bytes(memory[: 2 * BLOCK_BYTES])
    try:
        await disk.write_at(fd, memory[:BLOCK_BYTES], 0)
        await disk.durable_write(fd, memory[BLOCK_BYTES : 2 * BLOCK_BYTES], BLOCK_BYTES)
        into = memory[2 * BLOCK_BYTES :]
        assert await disk.read_into(fd, into, 0) == len(expected)
        assert into == expected
        for data, position in ((memory[:100], 0), (memory[:BLOCK_BYTES], 100), (memory[1 : 1 + BLOCK_BYTES], 0)):
            for write in (disk.write_at, disk.durable_write):
                async with refused(errno.EINVAL):
                    await write(fd, data, position)
            async with refused(errno.EINVAL):
                await disk.writev(fd, [data], position)
            assert numbers_of(await disk.write_many([FileWrite(fd, data, position)])) == [errno.EINVAL]
        async with refused(errno.EINVAL):
            await disk.read_into(fd, memory[1 : 1 + BLOCK_BYTES], 0)
        async with refused(errno.EINVAL):
            await disk.read_into(fd, memory[:BLOCK_BYTES], 100)
    finally:
        await disk.close(fd)
    assert await content_of(disk, path) == expected


# -- names -------------------------------------------------------------------------------------------------------------


@promise
async def a_name_is_removed_and_the_file_stays_while_it_is_open(disk, folder):
    path = await put(disk, folder / "a", b"content")
    async with opened(disk, path) as fd:
        await disk.unlink(path)
        async with refused(errno.ENOENT):
            await disk.unlink(path)
        await put(disk, path, b"another")
        await disk.write_at(fd, b"C", 0)
        await disk.fdatasync(fd)
        assert await disk.read(fd, 100, 0) == b"Content"
    assert await content_of(disk, path) == b"another"
    async with refused(errno.EISDIR):
        await disk.unlink(folder)


@promise
async def a_renamed_file_takes_the_others_place(disk, folder):
    one, other = await put(disk, folder / "a", b"one"), await put(disk, folder / "b", b"other")
    async with opened(disk, one) as fd, opened(disk, other) as replaced:
        await disk.rename(one, other)
        await disk.write_at(fd, b"O", 0)
        assert await disk.read(replaced, 100, 0) == b"other"
    assert await disk.listdir(folder) == ["b"]
    assert await content_of(disk, other) == b"One"
    await disk.rename(other, other)
    async with refused(errno.ENOENT):
        await disk.rename(one, folder / "c")
    async with refused(errno.ENOENT):
        await disk.rename(other, folder / "nowhere" / "c")
    await disk.mkdir(folder / "d")
    async with refused(errno.EISDIR):
        await disk.rename(other, folder / "d")
    async with refused(errno.ENOTDIR):
        await disk.rename(folder / "d", other)
    assert await content_of(disk, other) == b"One"


@promise
async def a_renamed_folder_takes_along_what_is_in_it(disk, folder):
    one, other = folder / "t-0", folder / "t-0-delete"
    await disk.mkdir(one)
    await disk.mkdir(one / "deeper")
    await put(disk, one / "a", b"content")
    await put(disk, one / "deeper" / "b", b"more")
    await disk.rename(one, other)
    assert await disk.listdir(folder) == [other.name]
    assert sorted(await disk.listdir(other)) == ["a", "deeper"]
    assert await content_of(disk, other / "deeper" / "b") == b"more"
    await disk.mkdir(one)
    await disk.rename(other, one)  # over an empty one
    assert await content_of(disk, one / "a") == b"content"
    await disk.mkdir(other)
    async with refused(errno.ENOTEMPTY):
        await disk.rename(other, one)
    async with refused(errno.EINVAL):
        await disk.rename(one, one / "deeper" / "c")
    assert await content_of(disk, one / "a") == b"content"


@promise
async def a_second_name_keeps_the_file(disk, folder):
    one, other = await put(disk, folder / "a", b"content"), folder / "b"
    await disk.link(one, other)
    async with opened(disk, one) as fd:
        await disk.write_at(fd, b"C", 0)
    assert await content_of(disk, other) == b"Content"
    await disk.unlink(one)
    assert await content_of(disk, other) == b"Content"
    async with refused(errno.ENOENT):
        await disk.link(one, folder / "c")
    async with refused(errno.ENOENT):
        await disk.link(other, folder / "nowhere" / "c")
    async with refused(errno.EEXIST):
        await disk.link(other, other)
    async with refused(errno.EPERM):
        await disk.link(folder, folder / "c")
    assert await disk.listdir(folder) == ["b"]


@promise
async def folders_are_made_and_removed(disk, folder):
    inner = folder / "inner"
    await disk.mkdir(inner)
    assert (await disk.stat(inner)).is_directory
    assert await disk.listdir(inner) == []
    async with refused(errno.EEXIST):
        await disk.mkdir(inner)
    async with refused(errno.ENOENT):
        await disk.mkdir(folder / "nowhere" / "inner")
    file = await put(disk, inner / "a")
    async with refused(errno.EEXIST):
        await disk.mkdir(file)
    async with refused(errno.ENOTDIR):
        await disk.mkdir(file / "b")
    async with refused(errno.ENOTDIR):
        await disk.rmdir(file)
    async with refused(errno.ENOTEMPTY):
        await disk.rmdir(inner)
    await disk.unlink(file)
    await disk.rmdir(inner)
    async with refused(errno.ENOENT):
        await disk.rmdir(inner)
    assert await disk.listdir(folder) == []


@promise
async def many_folders_are_made_with_a_file_and_those_that_are_there_are_left(disk, folder):
    there = folder / "there"
    await disk.mkdir(there)
    assert await disk.make_folders([folder / "a", there, folder / "b"], "meta", b"content") == [True, False, True]
    assert [await content_of(disk, folder / name / "meta") for name in "ab"] == [b"content"] * 2
    assert await disk.listdir(there) == []
    assert await disk.make_folders([], "meta", b"") == []
    async with refused(errno.ENOENT):
        await disk.make_folders([folder / "c", folder / "nowhere" / "d"], "meta", b"")


@promise
async def a_folder_tells_its_names(disk, folder):
    for name in "ab":
        await put(disk, folder / name)
    await disk.mkdir(folder / "c")
    await put(disk, folder / "c" / "d")
    assert sorted(await disk.listdir(folder)) == ["a", "b", "c"]
    async with refused(errno.ENOENT):
        await disk.listdir(folder / "none")
    async with refused(errno.ENOTDIR):
        await disk.listdir(folder / "a")


@promise
async def many_folders_tell_names_sizes_and_small_files(disk, folder):
    one, empty = folder / "one", folder / "empty"
    for path in (one, empty):
        await disk.mkdir(path)
    await put(disk, one / "a", b"content")
    await put(disk, one / "b")
    await put(disk, one / "c", b"not asked for")
    await disk.mkdir(one / "deeper")
    found, nothing, gone = await disk.read_folders([one, empty, folder / "none"], ["a", "b", "absent"])
    assert gone is None
    assert nothing == ({}, {}, {})
    assert {name: size for name, size in found.sizes_bytes.items() if name != "deeper"} == {"a": 7, "b": 0, "c": 13}
    assert "deeper" in found.sizes_bytes
    assert (found.small_files, found.unreadable) == ({"a": b"content", "b": b""}, {})
    assert await disk.read_folders([], ["a"]) == []
    async with refused(errno.ENOTDIR):
        await disk.read_folders([one / "a"], [])


@promise
async def a_files_status_is_its_size_and_when_it_was_written(disk, folder):
    path = await put(disk, folder / "a", b"content")
    status = await disk.stat(path)
    assert (status.size_bytes, status.is_directory) == (7, False)
    assert abs(status.modified_ms - time.time() * 1000) < 600_000
    assert (await disk.stat(folder)).is_directory
    async with refused(errno.ENOENT):
        await disk.stat(folder / "none")
    async with refused(errno.ENOTDIR):
        await disk.stat(path / "b")


@promise
async def a_file_system_has_no_more_left_than_it_has(disk, folder):
    status = await disk.statvfs(folder)
    assert 0 < status.available_bytes <= status.total_bytes
    async with refused(errno.ENOENT):
        await disk.statvfs(folder / "none")


# -- syncs -------------------------------------------------------------------------------------------------------------


@promise
async def syncs_change_nothing_that_is_seen(disk, folder):
    path = await put(disk, folder / "a", b"content")
    async with opened(disk, path) as fd:
        await disk.fdatasync(fd)
        await disk.write_at(fd, b"C", 0)
        await disk.syncfs(fd)
        await disk.write_at(fd, b"!", 7)
    await disk.fsync_directory(folder)
    async with opened(disk, path, os.O_RDONLY) as fd:
        await disk.fdatasync(fd)
        await disk.syncfs(fd)
    assert await content_of(disk, path) == b"Content!"
    async with refused(errno.ENOENT):
        await disk.fsync_directory(folder / "none")
    async with refused(errno.ENOTDIR):
        await disk.fsync_directory(path)


@promise
async def others_have_their_turn_only_where_there_is_an_await(disk, folder):
    turns = []

    async def other():
        while True:
            turns.append(1)
            await trio.lowlevel.checkpoint()

    path = await put(disk, folder / "a", b"content")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await trio.lowlevel.checkpoint()
        before = len(turns)
        disk.poll_ring()
        assert len(turns) == before
        assert await content_of(disk, path) == b"content"
        assert len(turns) > before
        nursery.cancel_scope.cancel()


@promise
async def a_cancelled_operation_may_have_happened_and_leaves_nothing_open(disk, folder):
    path = await put(disk, folder / "a", b"content")
    async with opened(disk, path) as fd:
        for operation in (disk.write_at(fd, b"C", 0), disk.stat(path), disk.listdir(folder), disk.statvfs(folder)):
            with trio.CancelScope() as scope:
                scope.cancel()
                await operation
            assert scope.cancelled_caught
        assert (await disk.read(fd, 100, 0)).lower() == b"content"
