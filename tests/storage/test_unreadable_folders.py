"""A partition whose `partition.metadata` the disk has lost is offline, alone, and nothing of it is lost by that: not
what only the journal had, and not after the file can be read again.
"""

import errno
import uuid

import pytest

from tests.log.log_batches import batch
from tests.storage.checkpointed_core import DATA, SETTINGS, JournalWriter
from tests.support.fake_disk import FakeDisk
from tests.support.journal_file import encode_entry
from tests.support.plain_disk import PlainDisk
from tpc_broker.engine import disk as runtime_disk
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.files import PARTITION_METADATA_FILE, encode_partition_metadata
from tpc_broker.log.journal import EntryKind
from tpc_broker.model import METADATA_TOPIC, PartitionIndex, TopicId, TopicPartition
from tpc_broker.storage.recovery.checkpoint import Checkpointer
from tpc_broker.storage.recovery.lost_and_found import METADATA_PARTITION, list_lost, metadata_problem
from tpc_broker.storage.recovery.recovery import OfflinePartition, recover_core
from tpc_broker.storage.recovery.repair import checkpoints_of, repair_partition
from tpc_broker.storage.segments.folders import (
    LOST_MARK_FILE,
    OFFLINE_FILE,
    FolderTakenError,
    FolderUnsureError,
    LostMark,
    PartitionListing,
    create_partition,
    delete_offline_files,
    list_partitions,
    lost_folder_name,
    lost_marks,
)

KEY, OTHER = (TopicPartition(TopicId(uuid.UUID(int=number)), PartitionIndex(0)) for number in (5, 6))
FOLDER = DATA / "topics" / "events-0"
METADATA = FOLDER / PARTITION_METADATA_FILE
MARK = DATA / "journals" / lost_folder_name(KEY) / LOST_MARK_FILE
BATCHES = [batch(offset) for offset in range(4)]
MISSING = (
    "its folder is missing, or is one whose partition.metadata the disk refuses now (events-0): "
    "have that file readable again before a repair"
)


async def recover(disk):
    return await recover_core(
        disk, DATA, 0, new_journal_id=bytes(16), settings_of=lambda _topic: SETTINGS, journal_bytes_max=256 * 1024
    )


async def nothing_left(_place):
    return None


async def write(disk, *, is_checkpointed, written_behind=0, is_all_in_journal=False):
    """Two partitions; of the first so many batches are in its segment, the rest, or all, in the journal."""
    disk.put_folder(DATA)
    core = await recover(disk)
    for key, topic in ((KEY, "events"), (OTHER, "others")):
        core.storages[key] = await create_partition(core.files, DATA / "topics", topic, key, SETTINGS)
    if written_behind:
        await core.storages[KEY].append(BATCHES[:written_behind])
    journal = JournalWriter(disk, core.journal_file, core.scan)
    named = core.storages if is_checkpointed else {OTHER: core.storages[OTHER]}
    assert await Checkpointer(core.journal_file, journal, named).run(nothing_left)
    first = 0 if is_all_in_journal else written_behind
    entry = encode_entry(EntryKind.APPEND, KEY, first, len(BATCHES), b"".join(BATCHES[first:]))
    assert await journal.commit([entry])
    await core.close()


async def repair(disk):
    core = await recover(disk)
    states = [state for _core, state in (await checkpoints_of(disk, DATA, [0])).values()]
    listing = (await list_partitions(disk, DATA / "topics", states))[KEY]
    report = await repair_partition(core, core.offline[KEY], DATA, listing)
    await core.close()
    return report


async def stored(disk):
    core = await recover(disk)
    assert not core.offline
    assert not core.marked
    storage, found, offset = core.storages[KEY], b"", 0
    while offset < storage.written_end_offset:
        data = bytes(await storage.read(offset, 1 << 20))
        found, offset = found + data, [header.next_offset for header, _place in walk_headers(data)][-1]
    await core.close()
    return found


async def test_it_is_offline_alone_and_comes_back_whole():
    disk = FakeDisk()
    await write(disk, is_checkpointed=True, written_behind=2)
    disk.unreadable = {METADATA}
    for _start in range(2):
        core = await recover(disk)
        assert list(core.storages) == [OTHER]
        assert "partition.metadata cannot be read ([Errno 5]" in core.offline[KEY].reason
        await core.close()
    report = await repair(disk)
    assert report.lost == ()
    disk.unreadable = set()
    assert await stored(disk) == b"".join(BATCHES)


async def test_a_mark_that_cannot_be_read_is_one():
    disk = FakeDisk()
    await write(disk, is_checkpointed=True, written_behind=2)
    disk.unreadable = {METADATA}
    await (await recover(disk)).close()
    disk.unreadable = {FOLDER / OFFLINE_FILE}
    core = await recover(disk)
    assert "why cannot be read" in core.offline[KEY].reason
    await core.close()
    assert (await repair(disk)).lost == ()
    assert FOLDER / OFFLINE_FILE not in disk.names


async def test_what_lies_beside_the_journals_for_an_empty_one_that_can_be_read_again_is_not_forgotten():
    disk = FakeDisk()
    await write(disk, is_checkpointed=True)
    disk.unreadable = {METADATA}
    core = await recover(disk)
    assert core.offline[KEY].reason == MISSING
    assert MARK in disk.names
    await core.close()
    disk.unreadable = set()
    for _start in range(2):
        core = await recover(disk)
        assert core.offline[KEY].reason == MISSING
        await core.close()
    assert (await repair(disk)).salvaged_count == len(BATCHES)
    assert await stored(disk) == b"".join(BATCHES)


async def test_one_that_no_checkpoint_names_comes_back_whole_when_the_disk_is_well_again():
    """Its journal has all of it, and nobody else takes its records for his."""
    disk = FakeDisk()
    await write(disk, is_checkpointed=False, written_behind=2, is_all_in_journal=True)
    disk.unreadable = {METADATA}
    core = await recover(disk)
    assert core.offline[KEY].reason == MISSING
    with pytest.raises(FolderUnsureError):
        await create_partition(core.files, DATA / "topics", "events", NEW, SETTINGS)
    offline = OfflinePartition("events", KEY, MISSING)
    with pytest.raises(OSError, match=PARTITION_METADATA_FILE):
        await repair_partition(core, offline, DATA, None)
    await core.close()
    disk.unreadable = set()
    core = await recover(disk)
    assert core.marked == {KEY}
    listing = (await list_partitions(disk, DATA / "topics"))[KEY]
    report = await repair_partition(core, offline, DATA, listing)
    assert (report.log_end_offset, report.lost) == (len(BATCHES), ())
    await core.close()
    assert await stored(disk) == b"".join(BATCHES)


async def test_the_mark_of_an_earlier_release_which_removed_none_takes_nothing_offline():
    """Its partition may long have been repaired, and have taken records since."""
    disk = FakeDisk()
    await write(disk, is_checkpointed=True)
    disk.unreadable = {METADATA}
    await (await recover(disk)).close()
    left = disk.names[MARK]
    disk.unreadable = set()
    await repair(disk)
    assert MARK not in disk.names
    disk.names[MARK.with_name(OFFLINE_FILE)] = left
    assert await stored(disk) == b"".join(BATCHES)


@pytest.mark.parametrize(
    "content", [b"", b"its folder is missing", b"no/name: it is not there", b"events: ", b"\xff: x"]
)
async def test_a_mark_that_names_no_topic_is_one(content):
    disk = FakeDisk()
    await write(disk, is_checkpointed=False)
    disk.unreadable = {METADATA}
    await (await recover(disk)).close()
    disk.names[MARK].content[:] = content
    mark = (await lost_marks(disk, DATA / "journals"))[KEY]
    assert mark == LostMark("", content.decode("utf-8", "replace"), has_salvage=True)
    disk.unreadable = {MARK}
    assert (await lost_marks(disk, DATA / "journals"))[KEY].topic == ""


async def test_a_mark_of_which_neither_journal_nor_checkpoint_tells_any_more_is_found():
    disk = FakeDisk()
    await write(disk, is_checkpointed=False)
    disk.unreadable = {METADATA}
    core = await recover(disk)
    assert core.offline[KEY].reason == MISSING
    await core.close()
    disk.unreadable = set()
    core = await recover(disk)
    assert KEY not in core.offline
    assert core.marked == {KEY}
    assert await lost_marks(disk, DATA / "journals") == {KEY: LostMark("", MISSING, has_salvage=True)}
    await core.close()
    await delete_offline_files(disk, DATA, "events", KEY, "unique")
    assert await lost_marks(disk, DATA / "journals") == {}


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "events-0"
    path.mkdir()
    (path / PARTITION_METADATA_FILE).write_bytes(encode_partition_metadata(KEY.topic_id))
    (path / f"{0:020d}.log").write_bytes(b"x" * 10)
    return path


def reading_fails_with(monkeypatch, number):
    def refused(_path):
        raise OSError(number, "injected")

    monkeypatch.setattr(runtime_disk, "_read_file", refused)


@pytest.mark.parametrize("number", [errno.EIO, errno.EUCLEAN])
async def test_a_file_that_the_disk_has_lost_is_told(folder, monkeypatch, number):
    reading_fails_with(monkeypatch, number)
    [contents] = await PlainDisk().read_folders([folder], (PARTITION_METADATA_FILE, OFFLINE_FILE))
    assert contents.unreadable[PARTITION_METADATA_FILE].errno == number
    assert contents.small_files == {}
    with pytest.raises(OSError, match="injected"):  # who asks for this folder alone can ask again
        await PartitionListing.read(PlainDisk(), folder)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
async def test_what_says_nothing_of_the_file_is_an_error(folder, monkeypatch, number):
    reading_fails_with(monkeypatch, number)
    with pytest.raises(OSError, match="injected"):
        await list_partitions(PlainDisk(), folder.parent)


# -- names that folders block -----------------------------------------------------------------------------------------

NEW = TopicPartition(TopicId(uuid.UUID(int=7)), PartitionIndex(0))


@pytest.mark.parametrize("is_checkpointed", [False, True])
async def test_the_metadata_log_is_known_by_its_name(is_checkpointed):
    """Nothing is lost with a file that says what everybody knows, and there is nothing to rebuild."""
    disk = FakeDisk()
    disk.put_folder(DATA)
    core = await recover(disk)
    storage = await create_partition(core.files, DATA / "topics", METADATA_TOPIC, METADATA_PARTITION, SETTINGS)
    journal = JournalWriter(disk, core.journal_file, core.scan)
    if is_checkpointed:
        assert await Checkpointer(core.journal_file, journal, {METADATA_PARTITION: storage}).run(nothing_left)
    entry = encode_entry(EntryKind.APPEND, METADATA_PARTITION, 0, len(BATCHES), b"".join(BATCHES))
    assert await journal.commit([entry])
    await core.close()
    disk.unreadable = {storage.folder.path / PARTITION_METADATA_FILE}
    core = await recover(disk)
    assert not core.offline
    assert core.storages[METADATA_PARTITION].written_end_offset == len(BATCHES)
    assert metadata_problem([core], ["events-0", "__cluster_metadata-0"]) is None
    await core.close()


async def test_a_deleted_one_gives_its_name_up_at_the_start_and_is_removed_by_nobody():
    disk = FakeDisk()
    await write(disk, is_checkpointed=True, written_behind=2)
    core = await recover(disk)
    journal = JournalWriter(disk, core.journal_file, core.scan)
    assert await journal.commit([encode_entry(EntryKind.PARTITION_DELETED, KEY, 0, 0, b"")])
    await core.close()
    disk.unreadable = {METADATA}
    core = await recover(disk)
    assert KEY not in core.offline
    await create_partition(core.files, DATA / "topics", "events", NEW, SETTINGS)
    await core.close()
    (aside,) = {path.parent for path in disk.names if path.name.endswith(".log") and "lost+found" in path.parts}
    assert aside.name.endswith(".deleted")
    disk.unreadable = {aside / PARTITION_METADATA_FILE}
    assert await list_lost(disk, DATA) == [], "a rebuild of the metadata does not bring it back"


async def test_a_folder_without_records_is_taken_whatever_its_lost_file_said():
    disk = FakeDisk()
    await write(disk, is_checkpointed=True, written_behind=2)
    core = await recover(disk)
    disk.unreadable = {METADATA}
    with pytest.raises(FolderUnsureError, match=r"holds records, and .*; tried again; if the disk has lost that file"):
        await create_partition(core.files, DATA / "topics", "events", NEW, SETTINGS)
    for name in [path for path in disk.names if path.parent == FOLDER and path != METADATA]:
        await disk.unlink(name)
    await create_partition(core.files, DATA / "topics", "events", NEW, SETTINGS)
    disk.unreadable = set()
    assert (await PartitionListing.read(disk, FOLDER)).folder.partition == NEW
    with pytest.raises(FolderTakenError, match=f"belongs to topic id {NEW.topic_id}") as taken:
        await create_partition(core.files, DATA / "topics", "events", KEY, SETTINGS)
    assert (taken.value.path, taken.value.owner) == (FOLDER, NEW)
    await core.close()
