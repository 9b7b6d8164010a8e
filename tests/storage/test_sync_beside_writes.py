"""A sync that begins while a write is on its way to the file covers nothing of it: the next one has to."""

import errno
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tests.log.log_batches import batch
from tests.storage.direct_writes import append_past_the_page_cache
from tests.storage.test_partition_storage import make
from tests.storage.test_short_runs import in_two_steps
from tests.support.disk_operations import Held
from tests.support.fake_disk import FakeDisk
from tests.support.waiting import PATIENCE_S
from tpc_broker.errors import StorageFailedError
from tpc_broker.log.segment import LogSettings
from tpc_broker.storage.recovery import checkpoint
from tpc_broker.storage.recovery.checkpoint import capture_and_sync
from tpc_broker.storage.segments import segment_appender as storage_module
from tpc_broker.storage.segments.files import DIRECT_BLOCK_BYTES

SETTINGS = LogSettings(segment_bytes=1_000_000, index_interval_bytes=100_000, retention_ms=-1)

FIRST_BLOCK = next(data for size in range(4000, 4096) if len(data := batch(0, [bytes(size)])) == DIRECT_BLOCK_BYTES)


async def append(storage, data):
    await storage.append([data])


async def append_in_parts(storage, data):
    """The middle of it was written in place, so two writes are made by one job."""
    end = storage.active.size_bytes
    await storage.append([data], [(end + 100, end + 200)])


async def append_in_two_steps(storage, data):
    assert await in_two_steps(storage, data)


async def append_direct(storage, data):
    assert await append_past_the_page_cache(storage, [data, batch(2, [b"b" * 9000])])


async def cut(storage, _data):
    await storage.truncate(0)


def any_descriptor(storage):
    return next(iter(storage.folder.disk.descriptors))


async def sync_each(storage):
    await storage.sync()


async def sync_all(storage):
    storage.folder.begin_sync()
    await storage.folder.disk.syncfs(any_descriptor(storage))


def changes(disk, file, what):
    """Whether a change of a descriptor, or one of several, is of this file."""
    descriptors = [what] if isinstance(what, int) else [one.fd for one in what]
    return any(disk.descriptors[fd].inode is file for fd in descriptors)


@pytest.mark.parametrize("sync", [sync_each, sync_all])
@pytest.mark.parametrize("change", [append, append_in_parts, append_in_two_steps, append_direct, cut])
async def test_the_next_checkpoint_syncs_what_the_last_one_came_too_early_for(change, sync, monkeypatch):
    monkeypatch.setattr(storage_module, "DIRECT_BYTES_MIN", 4096)
    disk = FakeDisk()
    storage = await make(SETTINGS, disk)
    await storage.append([FIRST_BLOCK])
    await storage.capture()
    file = disk.names[storage.folder.path / storage.active.log_name]
    change_of_it = Held(when=lambda what, *_more: changes(disk, file, what))
    disk.during("write_at", "writev", "write_many", "truncate", do=change_of_it)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(change, storage, batch(1, [b"a" * 9000]))
            await change_of_it.waiting.wait()
            await sync(storage)
            change_of_it.may_go.set()
    state = await storage.capture()
    await sync_each(storage)
    assert file.durable == file.content
    assert len(file.durable) >= state.segment_position
    assert state.log_end_offset == (0 if change is cut else 2)


async def checkpoint_of(storage):
    await capture_and_sync(SimpleNamespace(disk=storage.folder.disk, fd=any_descriptor(storage)), [storage])


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("together", [1, 100], ids=["a sync of the file system", "a sync of each"])
async def test_a_sync_that_begins_during_another_waits_for_it(together, fails, monkeypatch):
    """As that of a partition that moves to another core does, while its core makes a checkpoint: what the first one has
    taken to be synced is not durable yet, and may never be.
    """
    monkeypatch.setattr(checkpoint, "SYNCFS_PARTITIONS", together)
    disk, begun, may_end = FakeDisk(), trio.Event(), trio.Event()
    storage = await make(SETTINGS, disk)
    storage.epochs.assign(1, 0)
    await storage.append([FIRST_BLOCK])
    file = disk.names[storage.folder.path / storage.active.log_name]
    outcomes = []

    async def run(sync):
        try:
            await sync(storage)
            outcomes.append(file.durable == file.content)
        except StorageFailedError:
            outcomes.append("failed")

    async def slowly_once(go, *_arguments):
        if not begun.is_set():
            begun.set()
            await may_end.wait()
            if fails:
                raise OSError(errno.EIO, "no")
        return await go()

    disk.during("fdatasync", "syncfs", do=slowly_once)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run, checkpoint_of)
            await begun.wait()
            nursery.start_soon(run, sync_each)
            await trio.testing.wait_all_tasks_blocked()
            assert outcomes == []
            may_end.set()
    assert outcomes == (["failed"] * 2 if fails else [True, True])
