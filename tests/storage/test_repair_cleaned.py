"""Repair of a partition with cleaned segments: their gaps are no losses, and each has a right seal afterwards."""

import random
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from tests.log.log_batches import batch
from tests.storage.checkpointed_core import DATA, FakeDisk, JournalWriter
from tests.storage.test_repair import everything, kept_files, nothing_left
from tests.support.cleaned_copies import set_modified
from tests.support.cleaned_folder import make_cleaned
from tests.support.fake_disk import PowerLoss, at_every_effect
from tpc_broker.log.files import SEAL_SUFFIX, cleaned_file_name, segment_file_name
from tpc_broker.log.seals import Seal
from tpc_broker.log.segment import LogSettings
from tpc_broker.model import TopicPartition
from tpc_broker.native_bytes import crc32c
from tpc_broker.storage.recovery.checkpoint import Checkpointer
from tpc_broker.storage.recovery.recovery import recover_core
from tpc_broker.storage.recovery.repair import repair_partition, survey
from tpc_broker.storage.segments.folders import OFFLINE_FILE, create_partition, list_partitions

KEY = TopicPartition(uuid.UUID(int=5), 0)
FOLDER = DATA / "topics" / "events-0"
BATCHES = [batch(offset, [bytes([offset]) * 300], producer=(offset % 3, 0, offset // 3)) for offset in range(30)]
SETTINGS = LogSettings(segment_bytes=10 * len(BATCHES[0]), index_interval_bytes=100, retention_ms=-1)
KEPT = [one for offset, one in enumerate(BATCHES) if offset % 2 == 0 or offset >= 20]


async def recover(disk):
    return await recover_core(disk, DATA, 0, new_journal_id=bytes(16), settings_of=lambda _topic: SETTINGS,
                              journal_bytes_max=256 * 1024)  # fmt: skip


def put(disk, name, content):
    inode = type(next(one for one in disk.names.values() if one is not None))()
    inode.change(("write", 0, content))
    inode.sync()
    disk.names[FOLDER / name] = inode


def names(disk):
    return {path.name for path, inode in disk.names.items() if inode is not None and path.parent == FOLDER}


def content(disk, base, suffix=".log"):
    return disk.names[FOLDER / segment_file_name(base, suffix)].content


def clean(disk, tmp_path, bases, end, **how):
    """In place of segments that the fake disk has."""
    for base in bases:
        for suffix in (".log", ".txnindex"):
            path = FOLDER / segment_file_name(base, suffix)
            (tmp_path / path.name).write_bytes(disk.names[path].content if disk.names.get(path) else b"")
    made = make_cleaned(tmp_path, bases, end, **how)
    for base in bases:
        for name in [name for name in names(disk) if name.startswith(segment_file_name(base, "."))]:
            del disk.names[FOLDER / name]
    for suffix, data in zip((".log", ".index", ".timeindex", ".txnindex"), made.contents, strict=True):
        if data or suffix != ".txnindex":
            put(disk, segment_file_name(bases[0], suffix), data)
    put(disk, segment_file_name(bases[0], SEAL_SUFFIX), made.seal.encode())
    return made


async def set_aside(tmp_path, batches=BATCHES, **how):
    """Three segments of ten batches; the first two are cleaned, and the partition is marked offline."""
    disk = FakeDisk()
    disk.put_folder(DATA)
    core = await recover(disk)
    storage = await create_partition(core.files, DATA / "topics", "events", KEY, SETTINGS)
    core.storages[KEY] = storage
    for one in batches:
        await storage.append([one])
    journal = JournalWriter(disk, core.journal_file, core.scan)
    assert await Checkpointer(core.journal_file, journal, core.storages).run(nothing_left)
    await storage.folder.write_file(OFFLINE_FILE, b"somebody says so")
    await storage.sync()
    await core.close()
    first = clean(disk, tmp_path, [0], 10, number=1, removed_upto=4, **how)
    made = [first, clean(disk, tmp_path, [10], 20, number=2, **how)]
    disk.durable_names = dict(disk.names)
    return disk, made


async def repair(disk):
    core = await recover(disk)
    listing = (await list_partitions(disk, DATA / "topics"))[KEY]
    report = await repair_partition(core, core.offline[KEY], DATA, listing)
    await core.close()
    return report


async def opened(disk):
    core = await recover(disk)
    assert not core.offline
    return core.storages[KEY]


def check_seals(disk):
    """What a scrub would look at: each seal fits its files, to the last byte; by base offset."""
    found = {}
    for name in names(disk):
        if name.endswith(SEAL_SUFFIX):
            seal = Seal.decode(bytes(disk.names[FOLDER / name].content))
            for suffix, file in zip((".log", ".index", ".timeindex", ".txnindex"), seal.files, strict=True):
                inode = disk.names.get(FOLDER / segment_file_name(seal.base_offset, suffix))
                data = bytes(inode.content) if inode else b""
                assert (len(data), crc32c(data)) == file, (name, suffix)
            found[seal.base_offset] = seal
    return found


async def test_holes_in_cleaned_segments_are_no_losses(tmp_path):
    disk, made = await set_aside(tmp_path)
    report = await repair(disk)
    assert (report.lost, report.doubts, report.kept) == ((), (), None)
    assert await everything(await opened(disk)) == KEPT
    assert check_seals(disk) == {0: made[0].seal, 10: made[1].seal}


async def test_sequences_of_a_producer_without_a_batch_are_known_afterwards(tmp_path):
    """What it sends again is known to be that; nobody waits for a transaction of it."""
    gone = batch(12, [bytes(300)], producer=(7, 2, 5))
    batches = [*BATCHES[:12], gone, *BATCHES[13:]]
    disk, _made = await set_aside(
        tmp_path, batches, keep=lambda header, kept: None if header.producer_id == 7 else kept
    )
    await repair(disk)
    storage = await opened(disk)
    known = storage.producers.producers[7]
    assert (known.epoch, [one.last_sequence for one in known.batches]) == (2, [5])
    assert known.transaction_first_offset == -1


async def test_a_segment_that_was_cleaned_to_nothing_stays(tmp_path):
    disk, made = await set_aside(tmp_path, keep=lambda header, kept: kept if header.base_offset < 10 else None)
    report = await repair(disk)
    assert (report.lost, report.doubts) == ((), ())
    assert await everything(await opened(disk)) == BATCHES[:10] + BATCHES[20:]
    assert check_seals(disk) == {0: made[0].seal, 10: made[1].seal}


async def test_the_same_hole_without_a_seal_is_a_loss(tmp_path):
    disk, _made = await set_aside(tmp_path)
    del disk.names[FOLDER / segment_file_name(0, SEAL_SUFFIX)]
    report = await repair(disk)
    assert report.lost == tuple((offset, offset + 1) for offset in (1, 3, 5, 7, 9))


@pytest.mark.parametrize("number", [0, 2, 4])
async def test_damage_in_a_cleaned_segment_costs_its_batch_and_says_what_nobody_knows(tmp_path, number):
    disk, made = await set_aside(tmp_path)
    content(disk, 0)[number * len(BATCHES[0]) + 100] ^= 1
    report = await repair(disk)
    gone = 2 * number
    doubted = (max(gone - 1, 0), gone + 2)
    assert report.lost == (doubted,)
    [doubt] = report.doubts
    assert (doubt.base_offset, doubt.end_offset) == (0, 10)
    where = f"[{doubted[0]}, {doubted[1]})"
    assert f"whether records in {where} are lost or were cleaned away cannot be told" in doubt.reason
    assert await everything(await opened(disk)) == [one for one in KEPT if one is not BATCHES[gone]]
    seals = check_seals(disk)
    assert seals[10] == made[1].seal
    assert (seals[0].end_offset, seals[0].removed_upto, seals[0].batches_count) == (10, 4, 4)
    assert seals[0].first_dirty_offset == made[0].seal.first_dirty_offset
    assert seals[0].generation != made[0].seal.generation
    assert len(kept_files(disk)) == 1


async def test_a_cleaned_segment_of_which_nothing_is_left_leaves_no_hole_for_a_scrub(tmp_path):
    disk, _made = await set_aside(tmp_path)
    content(disk, 10)[:] = bytes(len(content(disk, 10)))
    report = await repair(disk)
    assert report.lost == ((10, 20),)
    assert await everything(await opened(disk)) == [one for one in KEPT if one not in BATCHES[10:20]]
    seals = check_seals(disk)
    assert (seals[10].log.size_bytes, seals[10].end_offset) == (0, 20)


async def test_an_end_that_is_missing(tmp_path):
    disk, _made = await set_aside(tmp_path)
    del content(disk, 0)[3 * len(BATCHES[0]) :]
    report = await repair(disk)
    assert report.lost == ((5, 10),)
    assert check_seals(disk)[0].batches_count == 3


@pytest.mark.parametrize("damage", [b"", b"tpc-seal 1 nonsense"])
async def test_a_seal_that_says_nothing_is_written_anew(tmp_path, damage):
    """Of what it said the worst is believed: all may have been forgotten, and nothing is without a second record."""
    disk, _made = await set_aside(tmp_path)
    content(disk, 10, SEAL_SUFFIX)[:] = damage
    report = await repair(disk)
    assert report.lost == ()
    assert [one.base_offset for one in report.doubts] == [10]
    assert await everything(await opened(disk)) == KEPT
    seal = check_seals(disk)[10]
    assert (seal.end_offset, seal.removed_upto, seal.first_dirty_offset) == (20, 20, 0)


@pytest.mark.parametrize("suffix", [".log", SEAL_SUFFIX])
async def test_a_segment_that_was_repaired_is_as_old_as_before(tmp_path, suffix):
    """Retention counts from there where records have no time; a seal that says nothing leaves its file's word."""
    disk, made = await set_aside(tmp_path)
    assert made[1].seal.modified_ms != 0
    await set_modified(disk, FOLDER / segment_file_name(10, ".log"), made[1].seal.modified_ms)
    content(disk, 10, suffix)[-5] ^= 1
    await repair(disk)
    storage = await opened(disk)
    (segment,) = [one for one in storage.segments if one.base_offset == 10]
    assert segment.seal.generation != made[1].seal.generation
    assert await storage.folder.modified_ms(segment) == segment.seal.modified_ms == made[1].seal.modified_ms


@pytest.mark.parametrize("how", ["flipped", "missing"])
async def test_indexes_that_are_not_the_seal_s_are_made_anew(tmp_path, how):
    disk, _made = await set_aside(tmp_path)
    if how == "missing":
        del disk.names[FOLDER / segment_file_name(0, ".index")]
    else:
        content(disk, 0, ".timeindex")[0] ^= 1
    report = await repair(disk)
    assert (report.lost, report.doubts) == ((), ())
    assert await everything(await opened(disk)) == KEPT
    assert set(check_seals(disk)) == {0, 10}


async def test_an_offset_that_was_changed_is_noticed_by_the_seal(tmp_path):
    """Each batch is sound, and offsets rise; what is kept is not known to be right, and that is said."""
    disk, _made = await set_aside(tmp_path)
    content(disk, 0)[4 * len(BATCHES[0]) + 7] = 9
    report = await repair(disk)
    assert report.lost == ()
    [doubt] = report.doubts
    assert "whether they are what was stored cannot be told" in doubt.reason
    assert check_seals(disk)[0].batches_count == 5


async def test_what_was_cleaned_away_does_not_come_back_from_a_journal(tmp_path):
    disk, _made = await set_aside(tmp_path)
    put(disk, "salvage-3", b"".join(BATCHES[:10]))
    content(disk, 0)[100] ^= 1
    report = await repair(disk)
    assert report.salvaged_count == 0
    assert BATCHES[1] not in await everything(await opened(disk))


async def test_when_all_behind_a_cleaned_segment_is_gone_it_takes_nothing(tmp_path):
    """What is appended next goes to a segment of its own."""
    disk, made = await set_aside(tmp_path)
    content(disk, 20)[:] = bytes(len(content(disk, 20)))
    report = await repair(disk)
    assert report.log_end_offset == 30
    storage = await opened(disk)
    assert storage.active.base_offset >= 20
    await storage.append([batch(30)])
    assert (await everything(storage))[-1] == batch(30)
    assert check_seals(disk)[10] == made[1].seal


async def test_a_swap_that_is_not_finished_is_surveyed_as_recovery_would_leave_it(tmp_path):
    disk, made = await set_aside(tmp_path)
    for base, one in zip((0, 10), made, strict=True):
        name = FOLDER / segment_file_name(base, ".log")
        disk.names[FOLDER / one.made_names()[0]] = disk.names.pop(name)
        put(disk, name.name, b"".join(BATCHES[base : base + 10]))
    core = await recover(disk)
    offline = core.offline[KEY]
    await core.close()
    put(disk, made[0].made_names()[1].replace("01", "09"), b"of another job")
    listing = (await list_partitions(disk, DATA / "topics"))[KEY]
    plan = await survey(disk, DATA, offline, listing)
    assert (plan.lost, plan.doubts, plan.replaced) == ((), (), ())
    await repair(disk)
    assert await everything(await opened(disk)) == KEPT
    assert check_seals(disk) == {0: made[0].seal, 10: made[1].seal}
    assert not [name for name in names(disk) if "cleaned" in name]


async def test_a_repair_that_is_cut_short_is_done_again(tmp_path):
    async def run(effect):
        disk, _made = await set_aside(tmp_path)
        content(disk, 0)[2 * len(BATCHES[0]) + 100] ^= 1
        disk.names[FOLDER / segment_file_name(0, ".log")].durable[:] = content(disk, 0)
        damaged, disk.effects, disk.lose_power_at = bytes(content(disk, 0)), 0, effect
        with suppress(PowerLoss):
            await repair(disk)
            return False
        disk.crash(random.Random(effect))
        core = await recover(disk)
        is_offline = bool(core.offline)
        await core.close()
        if is_offline:
            await repair(disk)
        assert await everything(await opened(disk)) == [one for one in KEPT if one is not BATCHES[4]]
        kept = [inode.content for path, inode in disk.names.items() if inode and "lost+found" in path.parts]
        assert damaged in kept
        check_seals(disk)
        return True

    assert await at_every_effect(run) > 20


@pytest.mark.parametrize("base", [0, 10])
async def test_a_cleaned_segment_that_is_gone_is_a_loss_and_so_is_its_seal(tmp_path, base):
    disk, _made = await set_aside(tmp_path)
    del disk.names[FOLDER / segment_file_name(base, ".log")]
    report = await repair(disk)
    assert report.lost == ((base, base + 10),)
    assert await everything(await opened(disk)) == [one for one in KEPT if one not in KEPT[base // 2 : base // 2 + 5]]
    assert check_seals(disk).keys() == {0, 10} - {base}


@pytest.mark.parametrize("has_seal", [True, False])
async def test_a_segment_that_is_gone_behind_a_cleaned_one_is_noticed_by_a_start(tmp_path, has_seal):
    """And no more when a repair has said what is lost."""
    disk, _made = await set_aside(tmp_path)
    await repair(disk)
    assert await everything(await opened(disk)) == KEPT
    for suffix in (".log", *[SEAL_SUFFIX] * (not has_seal)):
        del disk.names[FOLDER / segment_file_name(10, suffix)]
    core = await recover(disk)
    if not has_seal:
        assert "no segment has the records behind cleaned segment 0: [10, 20)" in core.offline[KEY].reason
    assert KEY in core.offline
    await core.close()
    report = await repair(disk)
    assert report.lost == ((10, 20),)
    assert await everything(await opened(disk)) == KEPT[:5] + KEPT[10:]


async def test_what_waits_for_a_seal_that_is_damaged_is_kept(tmp_path):
    """The swap was cut short, and it may be all that is left of the segments that had gone by then."""
    disk, made = await set_aside(tmp_path)
    waiting = cleaned_file_name(segment_file_name(0, ".log"), "a" * 16)
    stranger = cleaned_file_name(segment_file_name(10, ".log"), "b" * 16)
    put(disk, waiting, made[0].contents[0])
    put(disk, stranger, made[1].contents[0])
    content(disk, 0, SEAL_SUFFIX)[30] ^= 1
    report = await repair(disk)
    assert bytes(disk.names[Path(report.kept) / waiting].content) == made[0].contents[0]
    assert Path(report.kept) / stranger not in disk.names
    await opened(disk)
    assert not names(disk) & {waiting, stranger}
