"""The recorder sees every write, flush and name that the disk port and the journal ask for, in order, with results."""

import os

from tests.durability.crash_images import (
    ALLOCATE,
    COMPLETED,
    CREATE,
    FLUSH,
    RENAME,
    TRUNCATE,
    UNLINK,
    WRITE,
    read_record,
)
from tests.support.journal_harness import Core, Journal, JournalFile
from tpc_broker._ring import lib
from tpc_broker.engine import trio_ring
from tpc_broker.engine.disk import RingDisk
from tpc_broker.engine.trio_ring import RingOptions, current_ring


def test_what_the_disk_port_does_is_recorded(tmp_path):
    folder, record = tmp_path / "d", tmp_path / "record"
    path, moved = folder / "a", folder / "b"

    async def main():
        disk = RingDisk(current_ring())
        await disk.mkdir(folder)
        fd = await disk.open(path, os.O_RDWR | os.O_CREAT)
        await disk.write_at(fd, b"plain", 0)
        await disk.durable_write(fd, b"durable", 5)
        await disk.writev(fd, [b"two", b"parts"], 12)
        await disk.write_fdatasync(fd, b"linked", 20)
        await disk.fdatasync(fd)
        await disk.fallocate(fd, 0, 10, keep_size=False)
        await disk.fallocate(fd, 0, 4096, keep_size=False)
        await disk.truncate(fd, 3)
        await disk.close(fd)
        await disk.rename(path, moved)
        await disk.fsync_directory(folder)
        await disk.unlink(moved)

    assert lib.tpc_recorder_start(bytes(record)) == 0
    try:
        trio_ring.run(main, options=RingOptions(stall_ms=0))
    finally:
        assert lib.tpc_recorder_stop() == 0
    entries = list(read_record(record))
    results = {entry.token: entry.result for entry in entries if entry.kind == COMPLETED}
    seen = [(e.kind, e.flags, e.offset, e.payload) for e in entries if e.kind != COMPLETED]
    assert seen == [
        (CREATE, 0, 0, b""),
        (CREATE, 0, 0, b""),
        (WRITE, 0, 0, b"plain"),
        (WRITE, lib.TPC_DISK_RECORD_DSYNC, 5, b"durable"),
        (WRITE, 0, 12, b"twoparts"),
        (WRITE, 0, 20, b"linked"),
        (FLUSH, lib.TPC_DISK_RECORD_DATA_ONLY | lib.TPC_DISK_RECORD_LINKED, 0, b""),
        (FLUSH, lib.TPC_DISK_RECORD_DATA_ONLY, 0, b""),
        (ALLOCATE, 0, 0, b""),
        (TRUNCATE, 0, 3, b""),
        (RENAME, 0, 0, bytes(moved)),
        (FLUSH, 0, 0, b""),
        (UNLINK, 0, 0, b""),
    ]
    writes = [entry for entry in entries if entry.kind == WRITE]
    assert [results[entry.token] for entry in writes] == [5, 7, 8, 6]
    assert {entry.path for entry in writes} == {str(path)}
    created = [entry for entry in entries if entry.kind == CREATE]
    assert [entry.path for entry in created] == [str(folder), str(path)]
    assert created[1].inode == writes[0].inode != (0, 0)
    assert all(results[entry.token] >= 0 for entry in entries if entry.kind in (WRITE, FLUSH, TRUNCATE, ALLOCATE))


def test_what_the_journal_writes_is_recorded(tmp_path):
    record = tmp_path / "record"
    core = Core()
    file = JournalFile(tmp_path / "j", mode=lib.TPC_JOURNAL_BUFFERED_FDATASYNC)
    journal = Journal(core, file)
    assert lib.tpc_recorder_start(bytes(record)) == 0
    journal.append(b"payload")
    journal.wait_durable(1)
    assert lib.tpc_recorder_stop() == 0
    write, flush, *completed = read_record(record)
    assert (write.kind, write.offset, write.length, write.path) == (WRITE, 8192, 4096, str(file.path))
    assert write.payload == file.path.read_bytes()[8192:12288]
    assert (flush.kind, flush.flags) == (FLUSH, lib.TPC_DISK_RECORD_DATA_ONLY | lib.TPC_DISK_RECORD_LINKED)
    assert [(entry.kind, entry.token, entry.result) for entry in completed] == [
        (COMPLETED, write.token, 4096),
        (COMPLETED, flush.token, 0),
    ]
    journal.close()
    core.close()
    os.close(file.descriptor)
