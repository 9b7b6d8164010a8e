"""What is asked of a core while its journal or a segment fails: nothing is lost by it, and nothing stays stuck."""

from __future__ import annotations

import dataclasses
import errno
import os
import uuid

import pytest
import trio

from tests.engine.faults import BrokenJournal
from tests.engine.in_place_core import KEY, assert_kept, held, on_core, recovered_copy
from tests.log.log_batches import batch
from tests.support.waiting import PATIENCE_S
from tpc_broker.errors import PartitionNotMadeError, PartitionOfflineError
from tpc_broker.log.batch import walk_headers
from tpc_broker.log.files import segment_file_name
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.storage.ports import JournalUse
from tpc_broker.storage.recovery import recovery
from tpc_broker.storage.recovery.checkpoint import JournalFile
from tpc_broker.storage.upkeep import checkpoint_schedule, journal_growth, mending, segment_space

OTHER = TopicPartition(TopicId(uuid.UUID(int=78)), PartitionIndex(0))


async def wait_until(condition):
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.01)


async def checkpoint_at_last(bench):
    with trio.fail_after(PATIENCE_S):
        while not await bench.storage.checkpoint():
            await trio.sleep(0.05)


def with_maintenance(tmp_path, body):
    async def main(bench):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.storage.run_maintenance)
            await body(bench)
            nursery.cancel_scope.cancel()

    on_core(tmp_path, main)


async def fail_the_journal(bench):
    with pytest.raises(PartitionOfflineError):
        await bench.append(1000)
    assert bench.plane.journal_error()


def test_a_partition_deleted_while_the_journal_fails_holds_no_checkpoint_back(tmp_path):
    async def body(bench):
        await bench.append(1000, 5)
        with BrokenJournal(bench):
            await fail_the_journal(bench)
            await bench.storage.delete(bench.files, bench.handle)
        await wait_until(lambda: not bench.plane.journal_error())
        await checkpoint_at_last(bench)
        await wait_until(lambda: not bench.files.folder.path.exists())
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert not recovered.offline
        assert KEY not in recovered.storages
        await recovered.close()

    with_maintenance(tmp_path, body)


def test_a_partition_that_is_made_while_the_journal_fails_is_made_when_it_works(tmp_path):
    async def body(bench):
        await bench.append(1000, 5)
        with BrokenJournal(bench):
            await fail_the_journal(bench)
            files = await bench.storage.open(OTHER, "other", bench.config)
            with pytest.raises(PartitionNotMadeError):  # so that the broker tries again
                await bench.storage.begin_epoch(files)
        await wait_until(lambda: not bench.plane.journal_error())
        files = await bench.storage.open(OTHER, "other", bench.config)
        await bench.storage.begin_epoch(files)
        bench.storage.register(files, bench.config, is_internal=False)
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert not recovered.offline
        assert recovered.storages[OTHER].leader_epoch == files.leader_epoch
        await recovered.close()

    with_maintenance(tmp_path, body)


def test_behind_a_failure_a_new_leader_epoch_begins_and_everybody_hears_of_it_when_it_is_durable(tmp_path):
    async def body(bench):
        told = []
        bench.storage.on_epochs_begun(told.append)
        before = bench.files.leader_epoch
        untouched = await bench.storage.open(OTHER, "other", bench.config)
        await bench.storage.begin_epoch(untouched)
        bench.storage.register(untouched, bench.config, is_internal=False)
        await bench.append(1000, 5)
        epochs = [tuple(entry) for entry in bench.files.epochs.entries]
        for number in range(1, 3):
            with BrokenJournal(bench):
                await fail_the_journal(bench)
            assert await bench.storage.mend_once()
            await bench.append(1000, 2)
            epochs.append((before + number, 3 + 2 * number))
            assert told == [[(KEY, before + number)]]
            told.clear()
            recovered = await recovered_copy(bench, tmp_path / f"crashed{number}")
            files = recovered.storages[KEY]
            assert [tuple(entry) for entry in files.epochs.entries] == epochs
            assert files.leader_epoch == bench.files.leader_epoch == before + number
            assert recovered.storages[OTHER].leader_epoch == untouched.leader_epoch == 0
            assert await held(files) == bench.acknowledged
            await recovered.close()
            await checkpoint_at_last(bench)
        assert [tuple(entry) for entry in bench.files.epochs.entries] == epochs
        headers = [header for header, _place in walk_headers(await bench.files.read(0, 1 << 20))]
        assert [header.partition_leader_epoch - before for header in headers] == [0] * 5 + [1] * 2 + [2] * 2

    on_core(tmp_path, body)


def test_a_journal_that_fails_again_before_the_new_epoch_is_durable_begins_one_more(tmp_path):
    async def body(bench):
        told = []
        bench.storage.on_epochs_begun(told.append)
        before = bench.files.leader_epoch
        await bench.append(1000, 5)
        with BrokenJournal(bench):
            await fail_the_journal(bench)
        journal = bench.storage._journal
        reopen_file, path = journal._reopen_file, bench.storage._recovered.journal_file.path
        for_reading = os.open(path, os.O_RDONLY | os.O_DIRECT)
        journal._reopen_file = lambda: (for_reading, reopen_file()[1])
        assert not await bench.storage.mend_once()
        assert (told, bench.files.leader_epoch) == ([], before + 1)
        journal._reopen_file = reopen_file
        assert await bench.storage.mend_once()
        assert told == [[(KEY, bench.files.leader_epoch)]]
        assert bench.files.leader_epoch == before + 2
        os.close(for_reading)
        await bench.append(1000, 1)
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert recovered.storages[KEY].leader_epoch == before + 2
        assert await held(recovered.storages[KEY]) == bench.acknowledged
        await recovered.close()

    on_core(tmp_path, body)


def test_a_segment_made_anew_stays_as_long_as_the_journal_names_batches_in_it(tmp_path):
    async def body(bench):
        await bench.begin_in_place()
        written = bench.in_place_bytes()
        await bench.append(300_000, 3)
        assert bench.in_place_bytes() > written
        await bench.storage.write_behind()
        bench.files.fail("a sync that failed")
        assert await bench.storage._mending.mend_partitions()
        end_offset = bench.files.written_end_offset
        await bench.storage.set_log_start(bench.handle, end_offset)
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert not recovered.offline
        assert recovered.storages[KEY].log_start_offset == end_offset
        await recovered.close()
        await bench.append(300_000)
        await checkpoint_at_last(bench)
        await bench.storage.retain(bench.files, bench.handle, 0)
        assert len(bench.files.segments) == 1, "the checkpoint does not name it any more"
        assert end_offset in await held(bench.files)

    on_core(tmp_path, body)


@pytest.mark.parametrize("suffix", [".snapshot", ".log"])
def test_files_are_written_anew_when_a_roll_that_is_under_way_has_ended(tmp_path, suffix):
    """It would go on in the midst, with the segments of before."""

    async def body(bench):
        await bench.append(1000, 3)
        await checkpoint_at_last(bench)
        await bench.append(1000, 3)
        await bench.storage.write_behind()
        disk, is_held, may_go_on = bench.core.disk, trio.Event(), trio.Event()
        open_file, held_name = disk.open, segment_file_name(6, suffix)

        async def slow_open(path, *args):
            if path.name == held_name and not may_go_on.is_set():
                is_held.set()
                await may_go_on.wait()
            return await open_file(path, *args)

        disk.open = slow_open
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.files.roll)
            await is_held.wait()
            bench.files.fail("a sync that failed")
            nursery.start_soon(bench.storage._mending.mend_partitions)
            await wait_until(lambda: bench.files.lock.statistics().tasks_waiting)
            may_go_on.set()
        assert bench.files.failed is None
        assert [segment.base_offset for segment in bench.files.segments] == [0]
        assert not [*bench.files.folder.path.glob(segment_file_name(6, ".*"))]
        await bench.append(1000, 2)
        await bench.storage.write_behind()
        assert await held(bench.files) == bench.acknowledged
        await checkpoint_at_last(bench)
        await assert_kept(bench, tmp_path / "crashed")

    on_core(tmp_path, body)


def short_of_space(bench, while_there_are=None):
    """The file system says that nothing is left of it, as long as files of such a name are there."""
    statvfs = bench.core.disk.statvfs

    async def full(path):
        status = await statvfs(path)
        is_full = while_there_are is None or any(bench.files.folder.path.glob(while_there_are))
        return status._replace(available_bytes=0) if is_full else status

    bench.core.disk.statvfs = full
    bench.storage._space._plenty_bytes = 0  # what it saw before
    return statvfs


async def add_other(bench):
    """Another partition: files and handle."""
    files = await bench.storage.open(OTHER, "other", bench.config)
    await bench.storage.begin_epoch(files)
    return files, bench.storage.register(files, bench.config, is_internal=False)


async def delete_a_segment(bench, delay_ms):
    bench.files.settings = dataclasses.replace(bench.files.settings, file_delete_delay_ms=delay_ms)
    await bench.append(1000, 5)
    await bench.storage.write_behind()
    await bench.files.roll()
    await bench.storage.set_log_start(bench.handle, 5)
    assert list(bench.files.folder.path.glob("*.deleted"))


def test_deleted_segments_are_freed_when_their_delay_is_over(tmp_path):
    async def body(bench):
        await delete_a_segment(bench, 300)
        await wait_until(lambda: not list(bench.files.folder.path.glob("*.deleted")))

    with_maintenance(tmp_path, body)


def test_deleted_segments_are_freed_at_once_on_a_full_disk(tmp_path):
    async def body(bench):
        await delete_a_segment(bench, 3_600_000)
        short_of_space(bench, "*.deleted")
        await bench.storage.make_room(bench.files, bench.handle, 10_000_000)
        assert not list(bench.files.folder.path.glob("*.deleted"))

    on_core(tmp_path, body)


def test_a_full_disk_is_told_once_when_it_begins_and_once_when_it_is_over(tmp_path, caplog):
    async def body(bench):
        await bench.append(1000)
        statvfs = short_of_space(bench)
        for _ in range(20):
            with pytest.raises(OSError, match="No space left"):
                await bench.storage.make_room(bench.files, bench.handle, 10_000_000)
        bench.core.disk.statvfs = statvfs
        await trio.sleep(segment_space.PLENTY_S + 0.1)  # what was seen before is too old
        for _ in range(3):
            await bench.storage.make_room(bench.files, bench.handle, 10_000_000)

    on_core(tmp_path, body)
    told = [record.getMessage() for record in caplog.records if "the disk is full" in record.getMessage()]
    assert len(told) == 2
    assert "20 requests were refused" in told[1]


def test_a_full_disk_is_over_by_itself_when_nobody_asks_any_more(tmp_path, caplog):
    """Clients may have been told to go elsewhere: what was refused is looked for."""

    async def body(bench):
        await bench.append(1000)
        statvfs = short_of_space(bench)
        for size in (10_000_000, 9_000_000, 11_000_000):
            with pytest.raises(OSError, match="No space left"):
                await bench.storage.make_room(bench.files, bench.handle, size)
        lack = bench.storage.lacking[bench.handle]
        assert (lack.size, lack.is_of_disk) == (9_000_000, True), "the least that was refused"
        await trio.sleep(2 * segment_space.LOOK_S)
        assert bench.storage.lacking[bench.handle] == lack
        bench.core.disk.statvfs = statvfs
        await wait_until(lambda: not bench.storage.lacking)
        assert bench.plane.state(bench.handle).bytes_admitted >= lack.size
        await wait_until(lambda: "over after" in caplog.text)
        assert not bench.storage.counters()["disk_full"]

    with_maintenance(tmp_path, body)
    told = [record.getMessage() for record in caplog.records if "the disk is full" in record.getMessage()]
    assert len(told) == 2
    assert "3 requests were refused" in told[1]


def test_a_full_disk_is_not_over_while_a_partition_lacks_space(tmp_path, caplog):
    """Another one may have been given enough before: what it takes says nothing of the disk."""

    async def body(bench):
        await bench.append(1000)
        await bench.storage.make_room(bench.files, bench.handle, 100_000)
        other = await add_other(bench)
        short_of_space(bench)
        with pytest.raises(OSError, match="No space left"):
            await bench.storage.make_room(*other, 10_000_000)
        await trio.sleep(segment_space.PLENTY_S + 0.1)  # what was seen before is too old
        await bench.storage.make_room(bench.files, bench.handle, 100_000)
        assert bench.storage.counters()["disk_full"]
        await bench.storage.delete(*other)
        await wait_until(lambda: not bench.storage.lacking)

    with_maintenance(tmp_path, body)
    told = [record.getMessage() for record in caplog.records if "the disk is full" in record.getMessage()]
    assert len(told) == 1 or "1 requests were refused" in told[1]


def test_a_partition_whose_files_fail_lacks_space_that_others_have(tmp_path):
    async def body(bench):
        await bench.append(1000)
        reserve = bench.files.reserve

        async def fails(_size):
            await trio.lowlevel.checkpoint()
            raise OSError(errno.EIO, "for a test")

        bench.files.reserve = fails
        with pytest.raises(OSError, match="for a test"):
            await bench.storage.make_room(bench.files, bench.handle, 10_000_000)
        assert not bench.storage.lacking[bench.handle].is_of_disk
        bench.files.reserve = reserve
        await wait_until(lambda: not bench.storage.lacking)

    with_maintenance(tmp_path, body)


def test_a_failed_journal_says_how_many_it_refused(tmp_path, caplog):
    async def body(bench):
        await bench.append(1000)
        with BrokenJournal(bench):
            await fail_the_journal(bench)
        await wait_until(lambda: any("works again; 0 produces" in one.getMessage() for one in caplog.records))

    with_maintenance(tmp_path, body)


def lines_with(caplog, text):
    return [record.getMessage() for record in caplog.records if text in record.getMessage()]


def test_a_journal_that_fails_for_long_is_told_once_and_when_it_works(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(mending, "RETRY_S", 0.02)

    async def body(bench):
        await bench.append(1000)
        with BrokenJournal(bench):
            await fail_the_journal(bench)
            await wait_until(lambda: bench.storage._failures._attempts["the journal still fails"] >= 5)
        await wait_until(lambda: lines_with(caplog, "the journal works again"))

    with_maintenance(tmp_path, body)
    assert len(lines_with(caplog, "a journal write failed")) == 1
    assert len(lines_with(caplog, "the journal still fails")) == 1


def test_a_journal_that_fails_for_long_is_opened_again_more_and_more_seldom(tmp_path, monkeypatch):
    monkeypatch.setattr(mending, "RETRY_S", 0.01)
    rounds = []

    async def body(bench):
        await bench.append(1000)
        mend_once = bench.storage._mending.mend_once

        async def counted(**options):
            rounds.append(None)
            return await mend_once(**options)

        bench.storage._mending.mend_once = counted
        with BrokenJournal(bench):
            await fail_the_journal(bench)
            await wait_until(lambda: len(rounds) >= 80)
            assert 1 <= bench.storage._failures._attempts["the journal still fails"] <= 20
        await wait_until(lambda: not bench.plane.journal_error())

    with_maintenance(tmp_path, body)


def test_a_partition_that_cannot_be_mended_nor_set_aside_is_told_once_of_each(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(mending, "RETRY_S", 0.02)
    attempts = []

    async def set_aside(*args):
        attempts.append(args)
        return await recovery.set_aside(*args)

    async def rewrite_partition(*args):
        attempts.append(args)
        return await recovery.rewrite_partition(*args)

    monkeypatch.setattr(mending, "set_aside", set_aside)
    monkeypatch.setattr(mending, "rewrite_partition", rewrite_partition)

    async def body(bench):
        await bench.append(1000, 3)
        await checkpoint_at_last(bench)
        await bench.append(1000, 3)
        folder, away = bench.files.folder.path, tmp_path / "away"
        folder.rename(away)
        bench.files.fail("a sync that failed")
        bench.storage._requests.mend.ask()
        await wait_until(lambda: len(attempts) >= 5)
        assert len(lines_with(caplog, "topic-0 still fails")) == 1
        for _ in range(3):
            assert not await bench.storage.checkpoint()
        assert len(lines_with(caplog, "checkpoint held back")) == 1
        storage = bench.storage
        storage._mending._give_up(storage._partitions.led[bench.handle], "for a test")
        seen = len(attempts)
        await wait_until(lambda: len(attempts) >= seen + 5)
        assert len(lines_with(caplog, "topic-0 cannot be set aside")) == 1
        away.rename(folder)
        await wait_until(lambda: lines_with(caplog, "topic-0 is offline"))
        await wait_until(lambda: lines_with(caplog, "checkpoints are held back no longer"))

    with_maintenance(tmp_path, body)


def counting_rounds(bench):
    """An entry for each round of mending from now on."""
    rounds, mend_partitions = [], bench.storage._mending.mend_partitions

    async def counted(**options):
        rounds.append(None)
        return await mend_partitions(**options)

    bench.storage._mending.mend_partitions = counted
    return rounds


def test_what_cannot_be_mended_is_tried_more_and_more_seldom(tmp_path, monkeypatch):
    """Each attempt reads the whole journal, and checkpoints wait for it; one is asked for when something was mended."""
    monkeypatch.setattr(mending, "RETRY_S", 0.01)
    monkeypatch.setattr(checkpoint_schedule, "INTERVAL_S", 3600)
    attempts = []

    async def rewrite_partition(*args):
        attempts.append(args)
        raise OSError(errno.EIO, "for a test")

    async def body(bench):
        await bench.append(1000, 3)
        await checkpoint_at_last(bench)
        await bench.append(1000, 3)
        rounds = counting_rounds(bench)
        with monkeypatch.context() as patched:
            patched.setattr(mending, "rewrite_partition", rewrite_partition)
            bench.files.fail("a sync that failed")
            bench.storage._requests.mend.ask()
            await wait_until(lambda: len(rounds) >= 80)
            assert 1 <= len(attempts) <= 20
            assert bench.storage._failures._attempts["checkpoint held back"] <= 1
            patched.setattr(mending, "ATTEMPTS_MIN", 1 << 30)
            patched.setattr(bench.plane, "journal_use", lambda: JournalUse(1, 1, 0))
            seen = len(attempts)
            await wait_until(lambda: len(attempts) >= seen + 30)  # others need what it takes of the journal
            assert not await bench.storage.checkpoint()
            assert bench.storage._failures._attempts["checkpoint held back"]
        await wait_until(lambda: bench.files.failed is None)
        await wait_until(lambda: not bench.storage._failures._attempts["checkpoint held back"])

    with_maintenance(tmp_path, body)


@pytest.mark.parametrize("lacking", [JournalUse(81, 100, 0, 62), JournalUse(62, 100, 0, 62, is_refused=True)])
def test_a_partition_is_not_given_up_because_checkpoints_begin_late(tmp_path, monkeypatch, lacking):
    """With nothing wrong the journal is more than half full then."""
    monkeypatch.setattr(mending, "RETRY_S", 0.01)
    monkeypatch.setattr(mending, "ATTEMPTS_MIN", 3)
    attempts = []

    async def rewrite_partition(*args):
        attempts.append(args)
        raise OSError(errno.EIO, "for a test")

    async def body(bench):
        await bench.append(1000, 3)
        partitions, rounds = bench.storage._partitions, counting_rounds(bench)
        monkeypatch.setattr(mending, "rewrite_partition", rewrite_partition)
        monkeypatch.setattr(bench.plane, "journal_use", lambda: JournalUse(62, 100, 0, 62))
        bench.files.fail("a sync that failed")
        bench.storage._requests.mend.ask()
        await wait_until(lambda: len(rounds) >= 80)
        assert 3 <= len(attempts) <= 20
        assert bench.handle in partitions.led
        monkeypatch.setattr(bench.plane, "journal_use", lambda: lacking)
        await wait_until(lambda: bench.handle not in partitions.led)
        await wait_until(lambda: KEY in bench.storage._recovered.offline)

    with_maintenance(tmp_path, body)


def test_of_partitions_that_failed_together_the_journal_is_read_once(tmp_path, monkeypatch):
    scans, scan = [], JournalFile.scan

    async def counted(self):
        scans.append(None)
        return await scan(self)

    async def body(bench):
        await bench.append(1000, 3)
        others = []
        for number in range(5):
            key = TopicPartition(TopicId(uuid.UUID(int=80 + number)), PartitionIndex(0))
            files = await bench.storage.open(key, f"other{number}", bench.config)
            await bench.storage.begin_epoch(files)
            handle = bench.storage.register(files, bench.config, is_internal=False)
            await bench.storage.make_room(files, handle, 10_000)
            for _ in range(3):
                appended = bench.plane.append(handle, batch(0, [bytes(500)]))
                await bench.plane.wait_committed(handle, appended.end_offset, appended.leader_epoch)
            others.append(files)
        await bench.storage.write_behind()
        for files in [bench.files, *others]:
            files.fail("a sync that failed")
        monkeypatch.setattr(JournalFile, "scan", counted)
        assert await bench.storage.mend_once()
        assert len(scans) == 1
        assert [files.failed for files in others] == [None] * 5
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert not recovered.offline
        assert await held(recovered.storages[KEY]) == bench.acknowledged
        assert [len(await held(recovered.storages[files.key])) for files in others] == [3] * 5
        await recovered.close()

    on_core(tmp_path, body)


def test_a_partition_that_is_deleted_while_it_is_being_mended_is_not_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(mending, "ATTEMPTS_MIN", 1)

    async def body(bench):
        await bench.append(1000, 3)
        bench.files.fail("a sync that failed")
        bench.plane.journal_use = lambda: JournalUse(1, 1, 0)
        async with trio.open_nursery() as nursery:

            async def rewrite_partition(*_args):
                nursery.start_soon(bench.storage.delete, bench.files, bench.handle)
                await wait_until(lambda: not bench.storage._partitions.led)
                raise OSError(errno.EIO, "for a test")

            monkeypatch.setattr(mending, "rewrite_partition", rewrite_partition)
            assert await bench.storage._mending.mend_partitions(), "nothing is left to be mended"
        assert not bench.storage._partitions.given_up
        assert not bench.files.folder.path.exists()

    on_core(tmp_path, body)


def test_a_partition_that_cannot_be_mended_goes_offline_before_the_journal_is_full(tmp_path, monkeypatch):
    """Its records that only the journal has are kept beside its files; the other partition goes on."""
    monkeypatch.setattr(journal_growth, "SPACE_FACTOR", 1 << 40)  # the disk has no space for a longer one

    async def body(bench):
        files = await bench.storage.open(OTHER, "other", bench.config)
        await bench.storage.begin_epoch(files)
        handle = bench.storage.register(files, bench.config, is_internal=False)

        async def append(files, handle, size):
            data = batch(0, [bench.chooser.randbytes(size)], epoch=files.leader_epoch)
            await bench.storage.make_room(files, handle, len(data))
            while (result := bench.plane.append(handle, data)) is None:
                await bench.storage.wait_journal_room()
            await bench.plane.wait_committed(handle, result.end_offset, result.leader_epoch)
            return result.base_offset, data

        await append(files, handle, 1000)
        await checkpoint_at_last(bench)
        kept = [(await append(files, handle, 1000))[1] for _ in range(3)]
        other_log = files.folder.path / files.active.log_name
        log_before = other_log.read_bytes()
        other_log.unlink()
        files.fail("a sync that failed")
        bench.storage._requests.mend.ask()
        with trio.fail_after(PATIENCE_S):
            for _ in range(800):
                base_offset, data = await append(bench.files, bench.handle, 50_000)
                bench.acknowledged[base_offset] = data[21:]
        await checkpoint_at_last(bench)
        with pytest.raises(PartitionOfflineError):
            await bench.storage.make_room(files, handle, 1)
        with pytest.raises(PartitionOfflineError, match="could not be written anew"):
            await bench.storage.open(OTHER, "other", bench.config)

        def bring_back(log):
            (log.parents[1] / other_log.parent.name / other_log.name).write_bytes(log_before)

        recovered = await recovered_copy(bench, tmp_path / "crashed", bring_back)
        assert "could not be written anew" in recovered.offline[OTHER].reason, "until an operator decides"
        assert set(recovered.storages) == {KEY}
        assert await held(recovered.storages[KEY]) == bench.acknowledged
        await recovered.close()
        (salvaged,) = files.folder.path.glob("salvage-*")
        assert [header.base_offset for header, _place in walk_headers(salvaged.read_bytes())] == [1, 2, 3]
        assert all(data[61:] in salvaged.read_bytes() for data in kept)
        await bench.storage.delete(files, handle)
        await wait_until(lambda: not files.folder.path.exists())
        assert OTHER not in bench.storage._checkpointer.kept

    with_maintenance(tmp_path, body)
