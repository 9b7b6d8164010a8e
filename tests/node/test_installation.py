"""A replica's files give way to another one's: what `kill -9` at any step leaves is all of one log or of the other."""

from __future__ import annotations

import itertools
import mmap
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tests.engine.faults import BrokenJournal
from tests.engine.in_place_core import KEY, held, on_core, recovered_copy
from tests.engine.test_core_moves import CopiesOfTheDisk
from tests.log.log_batches import batch
from tests.node.test_replica_storage import ReplicaBench
from tests.support.cleaned_copies import swap_copy
from tests.support.handed import hand_producers_in_files
from tests.support.journal_file import BLOCK_BYTES, REGION_BLOCK_FIRST, commit_at
from tests.support.plain_disk import PlainDisk
from tests.support.waiting import PATIENCE_S
from tpc_broker.errors import PartitionOfflineError, StorageFailedError
from tpc_broker.log.checkpoint import VOTE_NOTE
from tpc_broker.log.files import EpochStart
from tpc_broker.log.journal import EntryKind
from tpc_broker.model import CoreId
from tpc_broker.native_bytes import crc32c
from tpc_broker.node.replicas.offers import LogCheck
from tpc_broker.storage.recovery.core_partitions import PartitionState
from tpc_broker.storage.recovery.filled_folders import FILLING, make_filling_folder
from tpc_broker.storage.recovery.recovery import recover_core
from tpc_broker.storage.replicas.filled_logs import FilledLog, bring_own
from tpc_broker.storage.segments.segments import Segment, SegmentFolder

STARTS, ENDS = 40, 60
"""Of the log that is shipped; its segments begin at 37, 50 and 58."""
NAMES = itertools.count()


async def settled_log(*folder, starts, ends):
    """Of a folder with everything that was fetched."""
    made = await FilledLog.begin(*folder, starts=starts, ends=ends)
    try:
        return await made.settle()
    finally:
        await made.close()


async def settled_as_it_comes(files, path, *what, log_path, whole, ends, chooser):
    """The last segment's batches are given before they are written, or after."""
    coming = Segment(STARTS, len(whole))
    made = await FilledLog.begin(files, path, *what, starts=STARTS, ends=ends, coming=coming)
    check, place = LogCheck(STARTS, [EpochStart(5, STARTS)]), 0
    with log_path.open("wb") as file:
        while place < len(whole):
            part = whole[place : place + chooser.randint(1, 3_000_000)]
            assert check.take(part)
            for batches, next_offset in check.whole:
                await made.take(batches, next_offset)
            file.write(part)
            place += len(part)
    assert check.is_whole
    try:
        return await made.settle()
    finally:
        await made.close()


async def filled(bench, *, damage=lambda _folder: None):
    """A folder as it is when everything was fetched, and the partition that it makes; with its batches."""
    path = await make_filling_folder(bench.core.disk, bench.data, CoreId(0), f"filled{next(NAMES)}")
    shipped = {}
    for base, end in ((37, 50), (50, 58), (58, 64)):
        with (path / f"{base:020d}.log").open("wb") as file:
            for offset in range(base, end):
                data = batch(offset, [f"shipped {offset}".encode() * 9], epoch=5)
                file.write(data)
                if offset < ENDS:
                    shipped[offset] = data[21:]
    damage(path)
    settings = bench.files.settings
    settled = await settled_log(bench.storage.files, path, "topic", KEY, settings, starts=STARTS, ends=ENDS)
    return settled, shipped


def test_a_long_segment_is_settled_the_same_as_it_comes_past_the_page_cache_and_through_it(tmp_path, monkeypatch):
    """Batches lie across the ends of what is read at a time; one is longer than that. What is looked at as it comes,
    cut anywhere, is not read again.
    """
    read_blocks, directly = SegmentFolder._read_blocks, []

    async def noted(folder, file, blocks, position):
        directly.append(await read_blocks(folder, file, blocks, position))
        return directly[-1]

    monkeypatch.setattr(SegmentFolder, "_read_blocks", noted)
    chooser, lengths = random.Random(3), [70_000, 5_000_000, 300, 900_000] * 3

    async def body(bench):
        files, settings, made = bench.storage.files, bench.files.settings, []
        batches = [batch(n, [chooser.randbytes(length)], epoch=5) for n, length in enumerate(lengths, STARTS)]
        whole, cut = b"".join(batches), sum(map(len, batches[:-2]))
        for refused, comes in ((False, False), (True, False), (False, True)):
            path = await make_filling_folder(bench.core.disk, bench.data, CoreId(0), f"long{refused}{comes}")
            files.direct_refused, ends = refused, STARTS + len(lengths) - 2
            log_path, folder = path / f"{STARTS:020d}.log", (files, path, "topic", KEY, settings)
            if comes:
                settled = await settled_as_it_comes(*folder, log_path=log_path, whole=whole, ends=ends, chooser=chooser)
                assert not directly
            else:
                log_path.write_bytes(whole)
                settled = await settled_log(*folder, starts=STARTS, ends=ends)
                assert directly
            assert (settled.log_end_offset, settled.segment_position) == (ends, cut)
            contents = {file.name: file.read_bytes() for file in path.iterdir()}
            assert contents[log_path.name] == whole[:cut]
            made.append((replace(settled, filled=""), contents))
            assert all(done is not refused for done in directly)
            directly.clear()
        assert made[0] == made[1] == made[2]

    run(tmp_path, body)


def judge_of(settled):
    def judge(own):
        notes = {5: b"five", VOTE_NOTE: own.notes[VOTE_NOTE]}
        return replace(
            settled, leader_epoch=own.leader_epoch, epochs=(EpochStart(5, 30),), notes=tuple(sorted(notes.items())),
            moves=own.moves + 1,
        )  # fmt: skip

    return judge


class InstallBench(ReplicaBench):
    """A follower with a log of its own, which has voted in term 7."""

    name = "install"

    @property
    def data(self) -> Path:
        return self.files.folder.path.parents[1]

    async def begin_with_a_log(self) -> None:
        self.begin(3, b"three")
        await self.take(10)
        await self.storage.checkpoint()
        await self.take(5)
        await self.plane.wait_durable(self.storage.note_term(self.handle, 7, b"a vote"))

    async def install(self, settled) -> list[int]:
        gone: list[int] = []
        assert await self.storage.install(KEY, self.config, judge_of(settled), lambda: gone.append(1))
        await self.open()
        return gone


async def log_after_a_crash(folder: Path):
    """Its batches, term, epochs and vote; recovered twice, as a start may be cut short."""
    for _start in range(2):
        recovered = await recover_core(PlainDisk(), folder, CoreId(0), new_journal_id=bytes(16))
        assert not recovered.offline, (folder, recovered.offline)
        files = recovered.storages[KEY]
        found = await held(files), files.leader_epoch, files.epochs.entries, files.notes[VOTE_NOTE]
        await recovered.close()
        assert not list((folder / FILLING).glob("*")) or not (folder / FILLING).exists()
    return found


def run(tmp_path, body):
    on_core(tmp_path, body, InstallBench)


@pytest.mark.parametrize("in_files", [False, True], ids=["in the entry", "producers in a file"])
def test_every_step_leaves_all_of_the_old_log_or_all_of_the_new_one(tmp_path, monkeypatch, in_files):
    if in_files:
        hand_producers_in_files(monkeypatch)
    seen, logs = [], []

    async def body(bench):
        await bench.begin_with_a_log()
        copies = CopiesOfTheDisk(bench.data, bench)
        trio.lowlevel.add_instrument(copies)
        settled, shipped = await filled(bench)
        old = bench.sent
        gone = await bench.install(settled)
        trio.lowlevel.remove_instrument(copies)
        assert gone == [1]
        assert (bench.files.log_start_offset, bench.files.written_end_offset) == (STARTS, ENDS)
        assert bench.files.commit_offset() == ENDS
        logs.extend([old, shipped])
        seen.extend(copies.made)

    run(tmp_path, body)
    old, new = logs
    outcomes = []
    for folder, _acknowledged in seen:
        log, term, epochs, vote = trio.run(log_after_a_crash, folder)
        assert (term, vote) == (7, b"a vote")
        assert (log, list(epochs)) in [(old, [EpochStart(3, 0)]), (new, [EpochStart(5, STARTS)])], folder
        outcomes.append(log == new)
        shutil.rmtree(folder)
    assert outcomes == sorted(outcomes), "once it is there it stays"
    assert set(outcomes) == {False, True}


def test_what_follows_is_appended_and_checkpointed(tmp_path):
    async def body(bench):
        await bench.begin_with_a_log()
        settled, shipped = await filled(bench)
        await bench.install(settled)
        bench.sent = shipped
        bench.begin(8, b"eight")
        await bench.take(4)
        for number in range(2):
            files = await bench.check_crash(tmp_path / f"crash{number}", term=8, epochs=[(5, STARTS), (8, ENDS)])
            assert files.notes == {5: b"five", 8: b"eight"}
            await bench.storage.write_behind()
            assert await bench.storage.checkpoint()
        await bench.cut(ENDS + 1, 8)
        await bench.check_crash(tmp_path / "cut", term=8, epochs=[(5, STARTS), (8, ENDS)])
        assert [path.name for path in bench.data.glob("topics/*") if "delete" not in path.name] == ["topic-0"]

    run(tmp_path, body)


def journalled_kinds(bench) -> set[int]:
    """Of the entries that are in the journal's file."""
    descriptor, _mode = bench.storage._reopen_journal_file()
    data = Path(f"/proc/self/fd/{descriptor}").read_bytes()
    blocks = range(REGION_BLOCK_FIRST, len(data) // BLOCK_BYTES)
    commits = [commit for block in blocks if (commit := commit_at(data, block)) is not None]
    return {entry.kind for commit in commits for entry in commit.entries}


@pytest.mark.parametrize("is_full", [False, True])
def test_a_journal_that_fails_is_waited_for_and_then_it_is_so(tmp_path, is_full):
    """`is_full`: when it works again it has no room for anything new, and no checkpoint can make any meanwhile."""

    async def body(bench):
        await bench.begin_with_a_log()
        settled, shipped = await filled(bench)
        append = bench.plane.journal_append
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.storage.run_maintenance)
            async with trio.open_nursery() as inner:
                with BrokenJournal(bench):
                    inner.start_soon(bench.install, settled)
                    while not bench.plane.journal_error():
                        await trio.sleep(0.01)
                    await trio.sleep(0.3)
                    assert bench.storage._partitions.state(KEY) is PartitionState.REPLACING
                    if is_full:
                        bench.plane.journal_append = lambda *_arguments: None
                with trio.move_on_after(PATIENCE_S) as waited:
                    while bench.storage._partitions.state(KEY) is PartitionState.REPLACING:
                        await trio.sleep(0.01)
                bench.plane.journal_append = append  # an entry that waits for room is shielded
                assert not waited.cancelled_caught
                assert EntryKind.ADOPTED in journalled_kinds(bench), "a checkpoint may be long in coming"
            nursery.cancel_scope.cancel()
        bench.sent = shipped
        await bench.check_crash(tmp_path / "crash", term=7, epochs=[(5, STARTS)])

    run(tmp_path, body)


def test_a_replica_that_may_not_give_way_stays_as_it_is(tmp_path):
    async def body(bench):
        await bench.begin_with_a_log()
        await filled(bench)
        assert not await bench.storage.install(KEY, bench.config, lambda _own: None, lambda: 1 / 0)
        await bench.take(2)
        await bench.check_crash(tmp_path / "crash", term=7, epochs=[(3, 0)])
        with BrokenJournal(bench):
            with pytest.raises(PartitionOfflineError):
                await bench.plane.wait_durable(bench.storage.note_term(bench.handle, 8, b""))
            settled, _shipped = await filled(bench)
            with pytest.raises(PartitionOfflineError):
                await bench.storage.install(KEY, bench.config, judge_of(settled), lambda: 1 / 0)
        assert bench.storage._partitions.state(KEY) is PartitionState.LED

    run(tmp_path, body)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / f"{58:020d}.log").unlink(),
        lambda folder: (folder / f"{37:020d}.log").unlink(),
        lambda folder: (folder / f"{58:020d}.log").write_bytes(b"no batch" * 50),
        lambda folder: (folder / f"{50:020d}.log").rename(folder / f"{61:020d}.log"),
    ],
)
def test_what_is_no_whole_log_is_refused(tmp_path, damage):
    async def body(bench):
        await bench.begin_with_a_log()
        with pytest.raises(StorageFailedError):
            await filled(bench, damage=damage)
        await bench.check_crash(tmp_path / "crash", term=7, epochs=[(3, 0)])

    run(tmp_path, body)


async def own_log(bench) -> None:
    """Three segments: [0, 10), [10, 20), [20, 25), all of it in files."""
    bench.begin(3, b"three")
    for count in (10, 10, 5):
        await bench.take(count)
        await bench.storage.write_behind()
        if count == 10:
            await bench.files.roll()
    await bench.plane.wait_durable(bench.storage.note_term(bench.handle, 7, b"a vote"))


@pytest.mark.parametrize("begins", [5, 10, 15, 20, 23, 25])
def test_what_a_replica_has_itself_is_not_fetched(tmp_path, begins):
    """Segments from `begins` on are shipped; what is in front of it is its own, linked or copied and cut."""

    async def body(bench):
        await own_log(bench)
        own = dict(bench.sent)
        path = await make_filling_folder(bench.core.disk, bench.data, CoreId(0), "own")
        assert await bring_own(bench.files, path, begins, begins) == 0
        shipped = [batch(offset, [b"shipped"], epoch=5) for offset in range(begins, 40)]
        (path / f"{begins:020d}.log").write_bytes(b"".join(shipped))
        settings = bench.files.settings
        settled = await settled_log(bench.storage.files, path, "topic", KEY, settings, starts=2, ends=40)
        await bench.install(settled)
        expected = {offset: data for offset, data in own.items() if offset < begins}
        bench.sent = expected | {begins + number: data[21:] for number, data in enumerate(shipped)}
        assert await held(bench.files) == bench.sent
        assert bench.files.log_start_offset == 2
        await bench.check_crash(tmp_path / "crash", term=7, epochs=[(5, 30)])
        for segment in bench.files.segments[:-1]:
            indexes = await bench.files.folder.load_indexes(segment, 40, settings.index_interval_bytes)
            assert indexes.largest_timestamp >= 0

    run(tmp_path, body)


def test_no_swap_waits_for_the_disk_while_the_own_front_is_brought(tmp_path, monkeypatch):
    """Segments are linked while none gives way to a cleaned one; getting them durable takes as long as it does."""

    async def body(bench):
        await own_log(bench)
        disk, held_up = bench.core.disk, []
        for name in ("link", "fdatasync"):
            real = getattr(disk, name)

            async def noted(*arguments, name=name, real=real):
                held_up.append((name, bench.files.swaps.is_held))
                return await real(*arguments)

            monkeypatch.setattr(disk, name, noted)
        path = await make_filling_folder(disk, bench.data, CoreId(0), "own")
        await bring_own(bench.files, path, 15, 15)
        assert {*held_up} == {("link", True), ("fdatasync", False)}

    run(tmp_path, body)


@pytest.mark.parametrize("begins", [10, 13, 15, 17, 18, 20])
def test_of_a_cleaned_segment_the_front_is_kept_with_a_seal_of_its_own(tmp_path, begins):
    """Of [10, 20) only 12, 13 and 16 are left: it is cut at a batch, in a gap, in front of all, or not at all."""

    async def body(bench):
        await own_log(bench)
        bench.files.commit_offset = lambda: 25
        assert await bench.storage.checkpoint()
        first, second, _active = bench.files.segments
        await swap_copy(bench.files, [first], first_dirty_offset=8)
        left = {12, 13, 16}
        await swap_copy(bench.files, [second], keep=lambda header: header.base_offset in left, removed_upto=14,
                        first_dirty_offset=8)  # fmt: skip
        own = {offset: data for offset, data in bench.sent.items() if offset < 10 or offset in left}
        path = await make_filling_folder(bench.core.disk, bench.data, CoreId(0), "own")
        assert await bring_own(bench.files, path, begins, 5) == 5
        shipped = [batch(offset, [b"shipped"], epoch=5) for offset in range(begins, 40)]
        (path / f"{begins:020d}.log").write_bytes(b"".join(shipped))
        settings = bench.files.settings
        settled = await settled_log(bench.storage.files, path, "topic", KEY, settings, starts=2, ends=40)
        await bench.install(settled)
        kept = {offset: data for offset, data in own.items() if offset < begins}
        bench.sent = kept | {begins + number: data[21:] for number, data in enumerate(shipped)}
        assert await held(bench.files) == bench.sent
        assert bench.files.cleaned == (begins, 5, min(14, begins) if begins > 10 else 0)
        for segment in bench.files.segments[:-1]:
            data = (bench.files.folder.path / segment.log_name).read_bytes()
            assert segment.seal.log == (len(data), crc32c(data))
        await bench.check_crash(tmp_path / "crash", term=7, epochs=[(5, 30)])

    run(tmp_path, body)


def test_a_cleaned_segment_at_the_end_is_not_appended_to(tmp_path):
    """All that is shipped was cleaned, and the last batches of it are gone."""

    async def body(bench):
        await own_log(bench)
        sent = dict(bench.sent)
        bench.files.commit_offset = lambda: 25
        assert await bench.storage.checkpoint()
        first, second, _active = bench.files.segments
        await swap_copy(bench.files, [first, second], keep=lambda header: header.base_offset < 13)
        path = await make_filling_folder(bench.core.disk, bench.data, CoreId(0), "all")
        for file in bench.files.folder.path.iterdir():
            if file.name.startswith(f"{0:020d}."):
                shutil.copy(file, path)
        settings = bench.files.settings
        what = bench.storage.files, path, "topic", KEY, settings
        with pytest.raises(StorageFailedError):
            await settled_log(*what, starts=0, ends=19)
        settled = await settled_log(*what, starts=0, ends=20)
        assert (settled.segment_base, settled.segment_position, settled.log_end_offset) == (20, 0, 20)
        await bench.install(settled)
        for offset in (0, 12):
            assert bytes(await bench.files.read(offset, 1))[21:] == sent[offset]
        assert await bench.files.read(13, 1) == b""
        assert [segment.base_offset for segment in bench.files.segments] == [0, 20]

    run(tmp_path, body)


def test_retention_takes_nothing_from_a_shipment(tmp_path):
    async def body(bench):
        await own_log(bench)
        shipment = await bench.storage.shipments.begin(bench.files, 12, 23, now_ms=1000)
        logs = [file for file in shipment.files if file.name.endswith(".log")]
        assert [file.name for file in logs] == [f"{10:020d}.log", f"{20:020d}.log"]

        async def read(file):
            buffer = memoryview(mmap.mmap(-1, 1 << 20))
            return bytes(await bench.storage.shipments.read(shipment, file.name, 0, file.size_bytes, buffer))

        before = [await read(file) for file in logs]
        await bench.files.advance_log_start(25, 0)
        await bench.files.purge(1 << 60)
        assert not (bench.files.folder.path / logs[0].name).exists()
        assert [await read(file) for file in logs] == before
        await bench.storage.shipments.end_unused(1000)
        assert len(bench.storage.shipments) == 1
        await bench.storage.shipments.end_unused(1001)
        assert len(bench.storage.shipments) == 0
        assert not list((bench.data / "shipping").iterdir())
        await bench.storage.shipments.begin(bench.files, 25, 25, now_ms=1000)  # a core that is killed leaves it
        assert list((bench.data / "shipping").iterdir())
        recovered = await recovered_copy(bench, tmp_path / "crash")
        await recovered.close()
        assert not list((tmp_path / "crash" / "shipping").iterdir())

    run(tmp_path, body)
