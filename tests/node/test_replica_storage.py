"""A replicated partition on a core's real disk: terms, cuts and what is committed, crashed by copying its folder."""

from __future__ import annotations

import contextlib
import errno
import os

import pytest
import trio
import trio.testing

from tests.engine.faults import BrokenJournal
from tests.engine.in_place_core import KEY, Bench, held, on_core, recovered_copy
from tests.engine.interference import disturbed
from tests.log.log_batches import batch
from tests.support.waiting import PATIENCE_S
from tpc_broker.broker.partition import Partition
from tpc_broker.errors import JournalStoppedError, LeadershipLostError, PartitionOfflineError
from tpc_broker.log.checkpoint import VOTE_NOTE
from tpc_broker.model import CoreId
from tpc_broker.storage.recovery.checkpoint import read_checkpoint
from tpc_broker.storage.segments.files_life import FilesState
from tpc_broker.storage.segments.leader_partition import partition_params
from tpc_broker.storage.upkeep import mending


class ReplicaBench(Bench):
    """A follower. `sent` is what its log has, by base offset."""

    async def open(self):
        self.config = self.make_config()
        self.files = await self.storage.open(KEY, "topic", self.config)
        self.handle = self.storage.register(self.files, self.config, is_internal=False, is_replicated=True)
        self.sent = {}

    def begin(self, term, note=b""):
        """The term's marker, and its leader is followed."""
        sequence = self.storage.begin_term(self.handle, term, note)
        assert sequence is not None
        self.plane.follow(self.handle, term)
        self.term = term
        return sequence

    async def take(self, count, value_bytes=100, term=None):
        """So many batches of one record from the leader, durable here."""
        end_offset = self.plane.bounds(self.handle).log_end_offset
        for offset in range(end_offset, end_offset + count):
            data = batch(offset, [self.chooser.randbytes(value_bytes)], epoch=term or self.term)
            await self.storage.make_room(self.files, self.handle, len(data))
            result = self.plane.append_replica(self.handle, self.term, data)
            assert result.error_code == 0
            self.sent[offset] = data[21:]
        await self.plane.wait_settled(self.handle)

    async def cut(self, offset, last_epoch_kept):
        self.sent = {base: data for base, data in self.sent.items() if base < offset}
        await self.storage.cut(self.handle, offset, last_epoch_kept)

    async def check_crash(self, target, *, term, epochs):
        """What a crash now would leave is what the log has."""
        recovered = await recovered_copy(self, target)
        assert not recovered.offline
        files = recovered.storages[KEY]
        assert await held(files) == self.sent
        assert (files.leader_epoch, [tuple(entry) for entry in files.epochs.entries]) == (term, epochs)
        await recovered.close()
        return files


def on_replica(tmp_path, body):
    on_core(tmp_path, body, ReplicaBench)


def test_terms_notes_and_votes_are_there_after_a_crash_with_and_without_a_checkpoint(tmp_path):
    async def body(bench):
        bench.begin(1, b"one")
        await bench.take(3)
        bench.begin(4, bytes(range(200)))
        await bench.take(2)
        sequence = bench.storage.note_term(bench.handle, 6, b"voted for nobody" * 9)
        await bench.plane.wait_durable(sequence)
        expected = {1: b"one", 4: bytes(range(200)), VOTE_NOTE: b"voted for nobody" * 9}
        for number in range(2):
            files = await bench.check_crash(tmp_path / f"crash{number}", term=6, epochs=[(1, 0), (4, 3)])
            assert files.notes == expected == bench.files.notes
            await bench.storage.write_behind()
            assert await bench.storage.checkpoint()
        bench.begin(7, b"")
        await bench.take(1)
        files = await bench.check_crash(tmp_path / "later", term=7, epochs=[(1, 0), (4, 3), (7, 5)])
        assert files.notes == {1: b"one", 4: bytes(range(200)), 7: b""}, "who is in a term has not voted in it"

    on_replica(tmp_path, body)


@pytest.mark.parametrize("how", ["its files are damaged at the start", "it is given up"])
def test_one_that_goes_offline_forgets_no_term_and_no_vote(tmp_path, how):
    """What its journal has said since the last checkpoint is in the next one."""

    async def body(bench):
        bench.begin(1, b"one")
        await bench.take(3)
        await bench.storage.write_behind()
        assert await bench.storage.checkpoint()
        bench.begin(4, b"four")
        await bench.take(2)
        await bench.plane.wait_durable(bench.storage.note_term(bench.handle, 6, b"a vote"))
        expected = ((VOTE_NOTE, b"a vote"), (1, b"one"), (4, b"four"))
        if how == "it is given up":
            bench.files.fail("a sync that failed")
            bench.storage._mending._give_up(bench.storage._partitions.led[bench.handle], "for a test")
            offline = bench.storage._partitions.given_up[KEY]
        else:
            recovered = await recovered_copy(
                bench, tmp_path / "crashed", lambda log: log.write_bytes(log.read_bytes()[:-10])
            )
            offline = recovered.offline[KEY]
            await recovered.close()
            _generation, kept = await read_checkpoint(bench.core.disk, tmp_path / "crashed" / "journals", CoreId(0))
            assert kept[KEY] == offline.checkpoint
        assert (offline.checkpoint.leader_epoch, offline.checkpoint.notes) == (6, expected)
        assert offline.checkpoint.log_end_offset == 3

    on_replica(tmp_path, body)


def test_terms_do_not_fall(tmp_path):
    async def body(bench):
        bench.begin(3)
        for term in (2, 3):
            with pytest.raises(ValueError, match="cannot begin"):
                bench.storage.begin_term(bench.handle, term)
        with pytest.raises(ValueError, match="below"):
            bench.storage.note_term(bench.handle, 2)
        bench.storage.note_term(bench.handle, 9, b"a vote")
        bench.storage.begin_term(bench.handle, 5)  # of a leader before this one
        bench.plane.follow(bench.handle, 9)
        bench.term = 9
        await bench.take(2, term=5)
        files = await bench.check_crash(tmp_path / "crashed", term=9, epochs=[(3, 0), (5, 0)])
        assert files.notes[VOTE_NOTE] == b"a vote"

    on_replica(tmp_path, body)


def test_what_is_not_committed_goes_to_the_segments_and_survives_the_checkpoint_that_frees_its_journal(tmp_path):
    async def body(bench):
        bench.begin(1)
        await bench.take(8)
        assert bench.plane.commit(bench.handle, 1, 5)
        await bench.storage.write_behind()
        assert await bench.storage.checkpoint()
        assert bench.plane.journal_use().blocks_used == 0
        assert (bench.files.written_end_offset, bench.plane.bounds(bench.handle).high_watermark) == (8, 5)
        assert bench.plane.read(bench.handle, 0, 8, 1 << 20, False)[1] == len(await stored(bench, 0, 5))
        files = await bench.check_crash(tmp_path / "crashed", term=1, epochs=[(1, 0)])
        assert files.checkpointed.committed_end_offset == 5, "readers of files go no further"
        params = partition_params(files, bench.config, is_internal=False, is_replicated=True)
        assert (params.high_watermark, params.log_end_offset) == (5, 8)
        await bench.take(2)
        files = await bench.check_crash(tmp_path / "again", term=1, epochs=[(1, 0)])
        assert (files.checkpointed.log_end_offset, files.checkpointed.committed_end_offset) == (10, 5), "nor recovery"

    on_replica(tmp_path, body)


async def stored(bench, offset, upto):
    return await bench.files.read(offset, 1 << 20, upto)


@pytest.mark.parametrize("written", [False, True])
def test_the_record_with_the_largest_timestamp_is_one_of_the_committed(tmp_path, written):
    async def body(bench):
        bench.begin(1)
        for offset in range(8):
            data = batch(offset, [b"value"], epoch=1, timestamp=1000 + offset)
            await bench.storage.make_room(bench.files, bench.handle, len(data))
            assert bench.plane.append_replica(bench.handle, 1, data).error_code == 0
        await bench.plane.wait_settled(bench.handle)
        assert bench.plane.commit(bench.handle, 1, 5)
        if written:
            await bench.storage.write_behind()
        assert bench.files.written_end_offset == (8 if written else 0)
        partition = Partition(
            KEY.topic_id, "topic", KEY.partition, bench.config, plane=bench.plane, storage=bench.storage,
            files=bench.files, handle=bench.handle, is_internal=False,
        )  # fmt: skip
        assert await partition.find_max_timestamp(partition.bounds().high_watermark, 1 << 20) == (1004, 4, 1)
        assert await partition.find_timestamp(1003, 5, 1 << 20) == (1003, 3, 1)
        assert await partition.find_timestamp(1005, 5, 1 << 20) is None

    on_replica(tmp_path, body)


@pytest.mark.parametrize("written", ["nothing", "some", "all, and checkpointed"])
def test_a_cut_and_what_comes_behind_it_survive_a_crash_at_any_time(tmp_path, written):
    async def body(bench):
        bench.begin(1)
        await bench.take(4)
        if written == "some":
            await bench.storage.write_behind()
        bench.begin(2, b"gone")
        await bench.take(6)
        bench.plane.commit(bench.handle, 2, 3)
        if written.startswith("all"):
            await bench.storage.write_behind()
            assert await bench.storage.checkpoint()
        bench.storage.note_term(bench.handle, 3)
        await bench.cut(4, 1)
        bounds = bench.plane.bounds(bench.handle)
        assert (bounds.high_watermark, bounds.log_end_offset) == (3, 4)
        files = await bench.check_crash(tmp_path / "cut", term=3, epochs=[(1, 0)])
        assert 2 not in files.notes
        bench.begin(3)
        await bench.take(5)
        await bench.check_crash(tmp_path / "behind it", term=3, epochs=[(1, 0), (3, 4)])
        await bench.storage.write_behind()
        assert await held(bench.files) == bench.sent
        assert await bench.storage.checkpoint()
        await bench.check_crash(tmp_path / "checkpointed", term=3, epochs=[(1, 0), (3, 4)])
        await bench.take(3)
        await bench.check_crash(tmp_path / "later", term=3, epochs=[(1, 0), (3, 4)])

    on_replica(tmp_path, body)


def test_a_log_that_is_cut_to_nothing_has_no_term_left(tmp_path):
    async def body(bench):
        bench.begin(1, b"one")
        await bench.take(2)
        await bench.storage.write_behind()
        assert await bench.storage.checkpoint()
        await bench.cut(0, 0)
        files = await bench.check_crash(tmp_path / "crashed", term=1, epochs=[])
        assert files.notes == {}
        bench.begin(2)
        await bench.take(2)
        await bench.check_crash(tmp_path / "again", term=2, epochs=[(2, 0)])

    on_replica(tmp_path, body)


def test_a_cut_waits_for_what_is_on_its_way_and_ends_the_role(tmp_path):
    async def body(bench):
        bench.begin(1)
        data = batch(0, [b"x"], epoch=1)
        await bench.storage.make_room(bench.files, bench.handle, len(data))
        bench.plane.append_replica(bench.handle, 1, data)
        await bench.cut(0, 1)
        with pytest.raises(LeadershipLostError):
            bench.plane.append_replica(bench.handle, 1, data)
        await bench.check_crash(tmp_path / "crashed", term=1, epochs=[(1, 0)])
        bench.plane.follow(bench.handle, 1)
        await bench.take(2)
        await bench.check_crash(tmp_path / "again", term=1, epochs=[(1, 0)])

    on_replica(tmp_path, body)


def test_what_is_committed_is_not_cut(tmp_path):
    async def body(bench):
        bench.begin(1)
        await bench.take(4)
        bench.plane.commit(bench.handle, 1, 3)
        with pytest.raises(ValueError, match="cut at offset 2"):
            await bench.storage.cut(bench.handle, 2, 1)
        assert bench.plane.bounds(bench.handle).log_end_offset == 4
        await bench.storage.delete(bench.files, bench.handle)
        with pytest.raises(PartitionOfflineError):
            await bench.storage.cut(bench.handle, 3, 1)

    on_replica(tmp_path, body)


def test_a_journal_that_fails_under_a_cut_is_told_it_again_when_it_works(tmp_path):
    async def body(bench):
        bench.begin(1)
        await bench.take(6)
        await bench.storage.write_behind()
        assert await bench.storage.checkpoint()
        cut = bench.plane.cut

        def cut_and_fail(*arguments):
            broken.__enter__()
            return cut(*arguments)

        bench.plane.cut, broken = cut_and_fail, BrokenJournal(bench)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bench.cut, 2, 1)
                while not bench.plane.journal_error():
                    await trio.sleep(0.01)
                assert bench.files.written_end_offset == 6, "no file is cut before the journal says so"
                broken.__exit__()
                append = bench.plane.journal_append
                bench.plane.journal_append = lambda *_arguments: None  # no room, and no checkpoint can make any
                assert await bench.storage.mend_once()
        bench.plane.journal_append = append
        assert bench.files.written_end_offset == 2
        await bench.check_crash(tmp_path / "crashed", term=1, epochs=[(1, 0)])
        bench.plane.follow(bench.handle, 1)
        await bench.take(3)
        await bench.check_crash(tmp_path / "again", term=1, epochs=[(1, 0)])

    on_replica(tmp_path, body)


@pytest.mark.parametrize("at", ["capture", "sync", "cut", "log start"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_files_that_fail_are_mended_whatever_was_done_with_them(tmp_path, monkeypatch, at, error):
    """A full disk in the midst of a checkpoint, and nothing is appended afterwards that could fail again."""
    monkeypatch.setattr(mending, "RETRY_S", 0.01)
    operations = {"capture": "writev", "sync": "fdatasync", "cut": "truncate", "log start": "rename"}

    async def body(bench):
        bench.begin(1)
        await bench.take(50)
        await bench.storage.write_behind()
        await bench.files.roll()
        await bench.take(10)
        bench.plane.commit(bench.handle, 1, 55)
        await bench.storage.write_behind()
        met, reasons, fail = [], [], bench.files.fail

        def fail_once(name):
            if name == operations[at] and not met:
                met.append(name)
                raise OSError(error, os.strerror(error))

        def note_failure(reason, **options):
            reasons.append(reason)
            fail(reason, **options)

        monkeypatch.setattr(bench.files, "fail", note_failure)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.storage.run_maintenance)
            with disturbed(bench.core.disk, fail_once), contextlib.suppress(PartitionOfflineError):
                if at == "cut":
                    await bench.cut(57, 1)
                elif at == "log start":
                    await bench.storage.set_log_start(bench.handle, 50)
                else:
                    await bench.storage.checkpoint()
            assert reasons
            with trio.fail_after(PATIENCE_S):
                while bench.files.life.state is not FilesState.OPEN:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        await bench.cut(56, 1)
        assert bench.files.written_end_offset == 56
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        files = recovered.storages[KEY]
        assert files.log_start_offset == bench.files.log_start_offset == (50 if at == "log start" else 0)
        assert {base: data for base, data in (await held(files)).items() if base >= 50} == {
            base: data for base, data in bench.sent.items() if base >= 50
        }
        await recovered.close()

    on_replica(tmp_path, body)


def test_large_batches_of_a_follower_are_written_once_but_not_behind_a_cut_before_a_checkpoint(tmp_path):
    async def body(bench):
        bench.begin(1)
        await begin_in_place(bench)
        await bench.take(2, 300_000)
        end_offset = bench.plane.bounds(bench.handle).log_end_offset
        await bench.cut(end_offset - 1, 1)
        bench.plane.follow(bench.handle, 1)
        before = bench.in_place_bytes()
        for _ in range(3):
            await bench.take(2, 300_000)
            await bench.storage.write_behind(all_of_it=False)
        assert bench.in_place_bytes() == before
        await bench.check_crash(tmp_path / "crashed", term=1, epochs=[(1, 0)])
        assert await bench.storage.checkpoint()
        await begin_in_place(bench)
        await bench.take(2, 300_000)
        assert bench.in_place_bytes() > before
        await bench.check_crash(tmp_path / "again", term=1, epochs=[(1, 0)])

    on_replica(tmp_path, body)


async def begin_in_place(bench):
    for _ in range(20):
        await bench.take(4, 300_000)
        await bench.storage.write_behind(all_of_it=False)
        await bench.storage.checkpoint()
        if bench.plane.set_in_place_space(bench.handle, bench.files.active.reserved_end_position):
            return
    pytest.skip("the file system takes no direct writes here")


def test_a_core_that_stops_takes_no_term_and_no_cut(tmp_path):
    async def body(bench):
        bench.begin(1)
        await bench.take(2)
        assert await bench.storage.drain()
        with pytest.raises(JournalStoppedError):
            bench.storage.begin_term(bench.handle, 2)
        with pytest.raises(JournalStoppedError):
            await bench.storage.cut(bench.handle, 0, 1)
        await bench.check_crash(tmp_path / "stopped", term=1, epochs=[(1, 0)])

    on_replica(tmp_path, body)


def test_the_plane_tells_what_is_durable_and_gives_out_what_is_not_committed(tmp_path):
    async def body(bench):
        told = []
        bench.plane.on_durable(told.append)
        bench.storage.begin_term(bench.handle, 1)
        bench.plane.lead(bench.handle, 1)
        appended = []
        bench.plane.on_appended(lambda: appended.extend(bench.plane.take_appended()))
        data = batch(0, [b"x", b"y"])
        await bench.storage.make_room(bench.files, bench.handle, len(data))
        result = bench.plane.append(bench.handle, data)
        with trio.fail_after(PATIENCE_S):
            while not appended:
                await trio.sleep(0.001)
        (told_range,) = appended
        assert told_range[:4] == (bench.handle, 0, 2, 1)
        if not bench.plane.watch_durable(told_range.sequence):
            with trio.fail_after(PATIENCE_S):
                while not told or told[-1] < told_range.sequence:
                    await trio.sleep(0.001)
        assert bench.plane.watch_durable(bench.plane.durable_sequence())
        assert bench.plane.durable_sequence() >= told_range.sequence
        assert bench.plane.read_log(bench.handle, 0, 2, 1)[21:] == data[21:]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.plane.wait_committed, bench.handle, result.end_offset, 1)
            await trio.testing.wait_all_tasks_blocked()
            assert bench.plane.bounds(bench.handle).high_watermark == 0
            assert bench.plane.commit(bench.handle, 1, 2)
        await bench.storage.write_behind()
        bench.plane.set_cache_bytes_max(0, 0)
        bench.plane.evict(1 << 30)
        assert bench.plane.read_log(bench.handle, 0, 2, 1) is None
        assert (await bench.files.read(0, 1, 2))[21:] == data[21:]

    on_replica(tmp_path, body)
