"""A partition is handed from one core to another and back: what `kill -9` at any step of it leaves has one owner, and
every acknowledged record.

Two cores do not run in one process, so each leg is run by itself; of every change of the disk that the loop comes to
see a copy is made, and all are recovered afterwards.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import trio

from tests.engine.faults import failing
from tests.engine.in_place_core import KEY, Bench, held
from tests.log.log_batches import batch
from tests.support.cleaned_copies import cleaned_copy, sources_of
from tests.support.crash_copy import copy_as_crashed
from tests.support.handed import hand_producers_in_files
from tests.support.plain_disk import PlainDisk
from tests.support.waiting import PATIENCE_S
from tpc_broker.bench.kafka_requests import PRODUCE_VERSION, produce_request
from tpc_broker.engine.trio_ring import run as run_on_ring
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import PartitionOfflineError, StorageFailedError
from tpc_broker.kafka import ApiKey, protocol
from tpc_broker.log.checkpoint import Release, decode_entry
from tpc_broker.log.journal import JournalMode
from tpc_broker.log.producer_state import ProducedBatch, Producer, ProducerState
from tpc_broker.model import CoreId
from tpc_broker.options import CoreOptions
from tpc_broker.process import assembly
from tpc_broker.storage.recovery import handed_producers
from tpc_broker.storage.recovery.handover import hand_over, recover_all
from tpc_broker.storage.recovery.recovery import recover_core
from tpc_broker.storage.segments.files_life import FilesState
from tpc_broker.storage.upkeep import checkpoint_schedule, mending

MOVE_ID = 77
CORES = (1, 2)
"""Core 0 would ask for the cluster's metadata."""


class CopiesOfTheDisk(trio.abc.Instrument):
    """A copy of the folder after every step of a task that has changed anything in it, with what was promised then."""

    def __init__(self, data: Path, bench) -> None:
        self._data, self._bench = data, bench
        self._seen = None
        self._numbers = itertools.count()
        self.made: list[tuple[Path, dict[int, bytes]]] = []

    def after_task_step(self, task):
        while (state := self._state()) != self._seen:
            target = self._data.with_name(f"{self._data.name}-{next(self._numbers)}-of-{self._bench.name}")
            try:
                shutil.copytree(self._data, target)
            except (shutil.Error, FileNotFoundError):
                continue
            if self._state() == state:  # else a thread has renamed something in the midst
                self._seen = state
                self.made.append((target, dict(self._bench.acknowledged)))

    def _state(self):
        while True:
            with suppress(FileNotFoundError):
                return sorted((str(one), one.stat().st_size, one.stat().st_mtime_ns) for one in self._data.rglob("*"))


async def _on_core(data: Path, core: int, body, acknowledged) -> None:
    nowhere = dict.fromkeys(("mailbox_fd", "control_fd"), -1)
    options = CoreOptions(
        core=CoreId(core), cores=3, data=str(data), **nowhere, mailbox_names=(), listeners=(), listen_fds=(),
        cpu=None, settings="", overrides=(), log_style="json", log_level="warning", supervisor_pid=os.getpid(),
    )  # fmt: skip
    async with assembly.open_assembly(options) as ports:
        bench = Bench(ports)
        bench.config, bench.acknowledged = bench.make_config(), acknowledged
        await body(bench)


class Node:
    """Cores on one directory, of which one runs at a time, and what was acknowledged."""

    def __init__(self, tmp_path: Path) -> None:
        self.data = tmp_path / "data"
        for name in ("journals", "topics"):
            (self.data / name).mkdir(parents=True)
        self.acknowledged: dict[int, bytes] = {}
        self.copies: list[tuple[Path, dict[int, bytes]]] = []
        self.released: bytes | None = None

    def run(self, core: int, body) -> None:
        with mock.patch.object(assembly, "probe_journal_mode", return_value=JournalMode.DIRECT_DSYNC):
            run_on_ring(partial(_on_core, self.data, core, body, self.acknowledged))

    def watch(self, bench, name: str) -> CopiesOfTheDisk:
        bench.name = name
        copies = CopiesOfTheDisk(self.data, bench)
        trio.lowlevel.add_instrument(copies)
        return copies

    def end(self, copies: CopiesOfTheDisk) -> None:
        trio.lowlevel.remove_instrument(copies)
        self.copies += copies.made

    async def release(self, bench, target: int, *, watched: bool = True) -> None:
        copies = self.watch(bench, f"release-to-{target}") if watched else None
        gone: list[int] = []
        released = await bench.storage.release(bench.handle, CoreId(target), MOVE_ID, lambda: gone.append(1))
        if copies is not None:
            self.end(copies)
        assert gone == [1]
        self.released = released.encode()

    async def adopt(self, bench, *, watched: bool = True, name: str = "adopt") -> None:
        copies = self.watch(bench, name) if watched else None
        await bench.storage.adopt(decode_entry(self.released), bench.config)
        await bench.open()
        await bench.append(500, 3)
        if copies is not None:
            self.end(copies)

    # -- what a crash leaves -------------------------------------------------------------------------------------------

    def check_copies(self) -> None:
        assert self.copies
        for folder, acknowledged in self.copies:
            trio.run(_check, folder, acknowledged)
            shutil.rmtree(folder)

    def check_now(self) -> None:
        target = self.data.with_name("now")
        copy_as_crashed(self.data, target)
        trio.run(_check, target, self.acknowledged)
        shutil.rmtree(target)


async def _recovered(folder: Path, core: int):
    return await recover_core(PlainDisk(), folder, CoreId(core), new_journal_id=bytes([core]) * 16)


async def _check(folder: Path, acknowledged: dict[int, bytes]) -> None:
    """Both cores start; twice, as a start may be cut short. Then the same with another number of cores."""
    for _start in range(2):
        cores = [await _recovered(folder, core) for core in CORES]
        assert not any(one.offline for one in cores), (folder, cores)
        owners = [core for core, one in enumerate(cores) if KEY in one.storages]
        assert len(owners) <= 1, (folder, owners)
        assert owners or any(KEY in one.released for one in cores), f"{folder}: nobody knows of it"
        for owner in owners:
            await _has_all(cores[owner].storages[KEY], acknowledged, folder)
        for one in cores:
            await one.close()
    disk = PlainDisk()
    recovered = await recover_all(disk, folder, lambda: bytes(16))
    await hand_over(
        disk, folder, recovered, lambda _key, _core: CoreId(0), cores_count=1, new_journal_id=lambda: b"1" * 16
    )
    one = await _recovered(folder, 0)
    assert list(one.storages) == [KEY], folder
    assert not one.offline
    assert not one.released
    await _has_all(one.storages[KEY], acknowledged, folder)
    await one.close()


async def _has_all(storage, acknowledged: dict[int, bytes], folder: Path) -> None:
    found = await held(storage)
    wanted = {offset: data for offset, data in acknowledged.items() if offset >= storage.log_start_offset}
    lost = [offset for offset, data in wanted.items() if found.get(offset) != data]
    assert not lost, f"{folder}: lost {lost}"


# -- moves -----------------------------------------------------------------------------------------------------------


async def _fill(node: Node, bench) -> None:
    await bench.open()
    await bench.append(2000, 20)
    await bench.storage.checkpoint()
    await bench.append(2000, 20)
    await bench.storage.set_log_start(bench.handle, 5)


@pytest.mark.parametrize("in_files", [False, True], ids=["in the entries", "producers in files"])
def test_every_step_of_a_move_leaves_one_owner_and_every_record(tmp_path, monkeypatch, in_files):
    node = Node(tmp_path)
    if in_files:
        hand_producers_in_files(monkeypatch)

    async def first_leg(bench):
        await _fill(node, bench)
        await node.release(bench, 2)

    node.run(1, first_leg)
    node.run(2, partial(node.adopt, name="adopt"))

    async def back(bench):
        await bench.open()
        await bench.append(700, 4)
        await node.release(bench, 1)

    node.run(2, back)
    node.run(1, partial(node.adopt, name="adopt-again"))
    files = {path.name for folder, _acknowledged in node.copies for path in folder.rglob("*.handed-*")}
    assert len(files) == (4 if in_files else 0)
    node.check_copies()
    node.check_now()


@pytest.mark.machine
def test_a_partition_with_200_000_producers_moves_and_is_recovered(tmp_path, monkeypatch):
    """There and back; a start finds them in the entry's file, and when a checkpoint has them the file is gone."""
    monkeypatch.setattr(handed_producers.HandedProducers, "may_write", True)
    node, producers = Node(tmp_path), ProducerState()
    for number in range(200_000):
        batches = [ProducedBatch(9 * n + 8, n, 0, 1_700_000_000_000) for n in range(5)]
        producers.producers[number] = Producer(number, 1, -1, -1, 1_700_000_000_000, batches)

    async def first_leg(bench):
        await _fill(node, bench)
        await node.release(bench, 2, watched=False)

    node.run(1, first_leg)
    node.released = replace(decode_entry(node.released), producers=producers).encode()

    async def second_leg(bench):
        await node.adopt(bench, watched=False)
        assert bench.files.producers.producers.keys() == producers.producers.keys()
        await node.release(bench, 1, watched=False)

    def files():
        return [path.name[:11] for path in (node.data / "journals").glob("*.handed-*")]

    node.run(2, second_leg)
    node.run(1, partial(node.adopt, watched=False))
    assert "0001.handed" in files()

    async def is_here(bench):
        assert bench.storage.unclaimed() == [KEY]
        await bench.open()
        assert bench.files.producers.producers.keys() == producers.producers.keys()
        assert len(bench.plane.producers(bench.handle, 300_000)) == 200_000

    node.run(1, is_here)
    assert "0001.handed" not in files()


def test_a_busy_partition_whose_batches_are_written_in_place_moves(tmp_path):
    node = Node(tmp_path)

    async def first_leg(bench):
        await bench.open()
        await bench.begin_in_place()
        await bench.append(300_000, 4)
        await node.release(bench, 2)

    node.run(1, first_leg)
    node.run(2, node.adopt)
    node.check_copies()


def test_checkpoints_of_both_cores_go_with_the_move(tmp_path):
    """Its first core says in each that it has let it go, until that is forgotten; the second has it."""
    node = Node(tmp_path)

    async def first_leg(bench):
        await _fill(node, bench)
        await node.release(bench, 2)
        assert await bench.storage.checkpoint()
        assert bench.storage.released(KEY).released == Release(CoreId(2), MOVE_ID)

    node.run(1, first_leg)
    node.check_now()

    async def second_leg(bench):
        await node.adopt(bench)
        assert await bench.storage.checkpoint()

    node.run(2, second_leg)
    node.check_now()

    async def forget(bench):
        assert bench.storage.all_released() == [KEY]
        bench.storage.forget_release(KEY)
        assert await bench.storage.checkpoint()

    node.run(1, forget)
    node.check_now()

    async def is_forgotten(bench):
        assert not bench.storage.all_released()
        assert not bench.storage.has(KEY)

    node.run(1, is_forgotten)
    node.check_copies()


def test_what_nobody_adopted_is_taken_back(tmp_path):
    node = Node(tmp_path)

    async def first_leg(bench):
        await _fill(node, bench)
        await node.release(bench, 2)
        assert not bench.storage.has(KEY)
        with pytest.raises(PartitionOfflineError):
            bench.plane.bounds(bench.handle)

    node.run(1, first_leg)

    async def take_back(bench):
        copies = node.watch(bench, "take-back")
        await bench.open()
        await bench.append(500, 2)
        node.end(copies)
        assert bench.files.moves == 2

    node.run(1, take_back)
    node.check_copies()
    node.check_now()


def test_an_adoption_is_carried_out_once(tmp_path):
    node = Node(tmp_path)

    async def first_leg(bench):
        await _fill(node, bench)
        await node.release(bench, 2, watched=False)

    async def second_leg(bench):
        await node.adopt(bench, watched=False)
        end_offset = bench.plane.bounds(bench.handle).log_end_offset
        await bench.storage.adopt(decode_entry(node.released), bench.config)
        assert bench.plane.bounds(bench.handle).log_end_offset == end_offset
        await bench.append(100)

    node.run(1, first_leg)
    node.run(2, second_leg)
    node.check_now()


GAP = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""The latter soon after a leader began: what is missing is about to be sent again."""


class RelaxedBench:
    """Idempotent producers of a partition that answers before it is durable."""

    def __init__(self, bench) -> None:
        object.__setattr__(bench.config, "durability", "relaxed")
        bench.make_config = lambda: bench.config
        self.bench = bench

    async def send(self, producer_id: int, sequence: int) -> int:
        """The error code of a batch of one record."""
        bench, data = self.bench, batch(0, producer=(producer_id, 0, sequence))
        await bench.storage.make_room(bench.files, bench.handle, len(data))
        ours, theirs = socket.socketpair()
        bench.core.connections._connections.adopt(theirs.detach())
        with ours:
            ours.sendall(produce_request("topic", 0, data))
            size = int.from_bytes(await self._receive(ours, 4), "big")
            _, answer = protocol.decode_response_frame(ApiKey.PRODUCE, PRODUCE_VERSION, await self._receive(ours, size))
        (partition,) = answer.responses[0].partition_responses
        if partition.error_code == ErrorCode.NONE:  # so that what is sent next finds it in the log
            await bench.plane.wait_committed(bench.handle, partition.base_offset + 1, bench.files.leader_epoch)
        return partition.error_code

    @staticmethod
    async def _receive(ours: socket.socket, size: int) -> bytes:
        return await trio.to_thread.run_sync(ours.recv, size, socket.MSG_WAITALL)


def test_a_move_loses_no_batch_so_a_producer_has_to_follow_its_own(tmp_path):
    node = Node(tmp_path)

    async def first_leg(bench):
        relaxed = RelaxedBench(bench)
        await bench.open()
        assert await relaxed.send(7, 0) == ErrorCode.NONE
        await node.release(bench, 2, watched=False)

    async def second_leg(bench):
        relaxed = RelaxedBench(bench)
        await bench.storage.adopt(decode_entry(node.released), bench.config)
        await bench.open()
        assert await relaxed.send(7, 5) in GAP
        assert await relaxed.send(7, 1) == ErrorCode.NONE

    node.run(1, first_leg)
    node.run(2, second_leg)


def test_who_was_silent_between_a_crash_and_a_move_may_lack_batches_after_it(tmp_path):
    node = Node(tmp_path)

    async def before(bench):
        relaxed = RelaxedBench(bench)
        await bench.open()
        assert [await relaxed.send(producer_id, 0) for producer_id in (7, 8)] == [ErrorCode.NONE] * 2

    async def first_leg(bench):
        relaxed = RelaxedBench(bench)
        await bench.open()
        assert await relaxed.send(7, 5) == ErrorCode.NONE
        assert await relaxed.send(7, 9) in GAP
        await node.release(bench, 2, watched=False)

    async def second_leg(bench):
        relaxed = RelaxedBench(bench)
        await bench.storage.adopt(decode_entry(node.released), bench.config)
        await bench.open()
        assert await relaxed.send(7, 9) in GAP
        assert await relaxed.send(8, 5) == ErrorCode.NONE
        assert await relaxed.send(8, 9) in GAP

    node.run(1, before)
    node.run(1, first_leg)
    node.run(2, second_leg)


def test_files_that_are_not_what_was_released_are_not_adopted(tmp_path):
    node = Node(tmp_path)

    async def first_leg(bench):
        await _fill(node, bench)
        await node.release(bench, 2, watched=False)
        os.truncate(bench.log, bench.log.stat().st_size // 2)

    async def second_leg(bench):
        with pytest.raises(PartitionOfflineError, match="were durable"):
            await bench.storage.adopt(decode_entry(node.released), bench.config)
        assert not bench.storage.has(KEY)

    node.run(1, first_leg)
    node.run(2, second_leg)


def test_files_that_fail_and_are_written_anew_while_they_are_synced_are_not_let_go(tmp_path, monkeypatch):
    """Of the new ones nobody has synced anything, and the journal would forget what is in them."""
    node = Node(tmp_path)

    async def leg(bench):
        await _fill(node, bench)
        capture, sync, is_captured = bench.files.capture, bench.files.sync, False

        async def captured():
            nonlocal is_captured
            is_captured = True
            return await capture()

        async def sync_that_another_one_overtakes():
            if is_captured:
                bench.files.fail("sync: another one, for a test")
                while bench.files.life.state is not FilesState.OPEN:
                    await trio.sleep(0.01)
            await sync()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.storage.run_maintenance)
            with monkeypatch.context() as patched:
                patched.setattr(bench.files, "capture", captured)
                patched.setattr(bench.files, "sync", sync_that_another_one_overtakes)
                with trio.fail_after(PATIENCE_S), pytest.raises(PartitionOfflineError, match="failed while"):
                    await bench.storage.release(bench.handle, CoreId(2), MOVE_ID, lambda: None)
            assert is_captured
            assert bench.storage.has(KEY)
            await bench.append(100)
            await node.release(bench, 2, watched=False)
            nursery.cancel_scope.cancel()

    node.run(1, leg)
    node.run(2, partial(node.adopt, watched=False))
    node.check_now()


def test_no_swap_of_cleaned_segments_begins_while_a_partition_leaves(tmp_path, monkeypatch):
    """The core that takes over removes cleaned files of which no seal says anything, maybe in the same moment."""
    node = Node(tmp_path)

    async def leg(bench):
        await bench.open()
        while len(bench.files.segments) < 3:
            await bench.append(500_000, 4)
            await bench.storage.write_behind(all_of_it=True)
            await bench.storage.checkpoint()
        segments = bench.files.segments[:2]
        sources, seal = await sources_of(bench.files, segments), await cleaned_copy(bench.files, segments)
        capture, ended = bench.files.capture, []

        async def swap():
            with pytest.raises(StorageFailedError, match="moved to another core"):
                await bench.files.swap(sources, seal, lambda: None)
            ended.append("refused")

        async with trio.open_nursery() as nursery:

            async def captured():
                state, swaps = await capture(), bench.files.swaps
                nursery.start_soon(swap)
                while not swaps.is_under_way and swaps._free is None:
                    await trio.lowlevel.checkpoint()
                return state

            monkeypatch.setattr(bench.files, "capture", captured)
            await node.release(bench, 2, watched=False)
        assert ended == ["refused"]
        assert not list(bench.files.folder.path.glob("*.seal*"))

    node.run(1, leg)
    node.run(2, partial(node.adopt, watched=False))
    node.check_now()


@pytest.mark.parametrize("is_mended", [False, True])
def test_files_that_fail_while_its_many_producers_are_written_are_not_let_go(tmp_path, monkeypatch, is_mended):
    """Which takes long where they are many. They may be written anew by then, and nobody has synced them."""
    hand_producers_in_files(monkeypatch)
    node = Node(tmp_path)

    async def leg(bench):
        await _fill(node, bench)
        write = handed_producers.HandedProducers.write

        async def written(self, producers):
            bench.files.fail("sync: one of a checkpoint, for a test")
            while is_mended and bench.files.life.state is not FilesState.OPEN:
                await trio.sleep(0.01)
            return await write(self, producers)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.storage.run_maintenance)
            with monkeypatch.context() as patched:
                patched.setattr(handed_producers.HandedProducers, "write", written)
                with trio.fail_after(PATIENCE_S), pytest.raises(PartitionOfflineError, match="failed while"):
                    await bench.storage.release(bench.handle, CoreId(2), MOVE_ID, lambda: None)
            assert bench.storage.has(KEY)
            with trio.fail_after(PATIENCE_S):
                while bench.files.life.state is not FilesState.OPEN:
                    await trio.sleep(0.01)
            await bench.append(100)
            await node.release(bench, 2, watched=False)
            nursery.cancel_scope.cancel()

    node.run(1, leg)
    node.run(2, partial(node.adopt, watched=False))
    node.check_now()


async def _until_done(bench, fault: str, at: int, attempt) -> None:
    """While something fails, and after it works again, as the conductor asks again."""
    done = trio.Event()

    async def attempts() -> None:
        while True:
            try:
                await attempt()
            except PartitionOfflineError:
                await trio.sleep(0.01)
            else:
                done.set()
                return

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bench.storage.run_maintenance)
            with failing(bench, fault, at):
                nursery.start_soon(attempts)
                with trio.move_on_after(0.1):
                    await done.wait()
            await done.wait()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("at", [0, 2, 5, 9, 14])
@pytest.mark.parametrize("fault", ["journal", "segment", "space"])
def test_a_move_goes_on_when_the_disk_does(tmp_path, monkeypatch, fault, at):
    """Whatever fails in the midst of each leg: one owner, every record, and in the end it has moved."""
    for module in (mending, checkpoint_schedule):
        monkeypatch.setattr(module, "RETRY_S", 0.01)
    node = Node(tmp_path)

    async def first_leg(bench):
        await _fill(node, bench)
        await _until_done(bench, fault, at, partial(node.release, bench, 2, watched=False))
        assert not bench.storage.has(KEY)

    async def second_leg(bench):
        adopt = partial(bench.storage.adopt, decode_entry(node.released), bench.config)
        await _until_done(bench, fault, at, adopt)
        await bench.open()
        await bench.append(500, 3)

    node.run(1, first_leg)
    node.check_now()
    node.run(2, second_leg)
    node.check_now()
