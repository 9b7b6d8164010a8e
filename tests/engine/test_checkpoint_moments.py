"""Checkpoints at the worst moments, and what they may not leave behind."""

from __future__ import annotations

import errno

import pytest
import trio

from tests.engine.in_place_core import KEY, assert_kept, on_core, recovered_copy
from tests.engine.interference import durable_sequence, serve_until_durable
from tests.log.log_batches import batch
from tpc_broker._ring import ffi, lib
from tpc_broker.engine.data_plane import _partition_params
from tpc_broker.log.journal import EntryKind
from tpc_broker.storage.segments.leader_partition import partition_params

DIRTY_PARTITIONS = 66_000


@pytest.mark.parametrize("to_the_end", [False, True])
def test_a_log_start_survives_a_checkpoint_in_the_turn_in_which_it_became_durable(tmp_path, to_the_end):
    async def body(bench):
        await bench.append(1000, 20)
        await bench.storage.write_behind()
        await bench.storage.checkpoint()
        wait_durable = bench.plane.wait_durable

        async def wait_durable_then_checkpoint(*arguments):
            await wait_durable(*arguments)
            await bench.storage.checkpoint()

        bench.plane.wait_durable = wait_durable_then_checkpoint
        offset = 20 if to_the_end else 7
        await bench.storage.set_log_start(bench.handle, offset)
        recovered = await recovered_copy(bench, tmp_path / "crashed")
        assert not recovered.offline
        assert recovered.storages[KEY].log_start_offset == offset
        await recovered.close()

    on_core(tmp_path, body)


def test_what_an_entry_says_is_known_to_whoever_gets_a_place_behind_it(tmp_path):
    """Also when the task that wrote the entry was cancelled, and before any event of the ring was looked at."""

    async def body(bench):
        known = []
        sequence = bench.plane.journal_append(EntryKind.LOG_START, KEY, 0, 0)
        with trio.CancelScope() as scope:
            scope.cancel()
            await bench.plane.wait_durable(sequence, lambda: known.append(sequence))
        assert known == [] or durable_sequence(bench) >= sequence, "the disk may be faster"
        serve_until_durable(bench, sequence)
        assert bench.plane.durable_cursor().sequence > sequence
        assert known == [sequence]

    on_core(tmp_path, body)


def test_nothing_that_was_durable_is_left_behind_by_a_checkpoint(tmp_path):
    """Here because write-behind does not hear of a partition."""

    async def body(bench):
        await bench.append(1000, 20)
        dirty, bench.plane.dirty = bench.plane.dirty, list
        assert not await bench.storage.checkpoint()
        await assert_kept(bench, tmp_path / "crashed")
        bench.plane.dirty = dirty
        assert await bench.storage.checkpoint()

    on_core(tmp_path, body)


def test_more_dirty_partitions_than_ever_were_are_all_written_behind(tmp_path):
    async def body(bench):
        params, _kept = _partition_params(partition_params(bench.files, bench.config, is_internal=False))
        data, result, handle = batch(0, [b"x"]), ffi.new("tpc_append_result *"), ffi.new("uint64_t *")
        params.bytes_admitted = len(data)
        params.log_start_offset = params.log_end_offset = params.high_watermark = 0
        handles = []
        for index in range(DIRTY_PARTITIONS):
            params.partition = index + 1
            assert lib.tpc_partition_register(bench.plane._plane, params, handle) == 0
            assert lib.tpc_partition_arm(bench.plane._plane, handle[0], lib.TPC_ROLE_LEADER, params.leader_epoch) == 0
            while (refused := lib.tpc_plane_append(bench.plane._plane, handle[0], data, len(data), result)) != 0:
                assert refused == -errno.EAGAIN
                await trio.sleep(0.001)
            handles.append(handle[0])
        await bench.plane.wait_durable(result.sequence)
        assert sorted(bench.plane.dirty()) == sorted(handles)
        assert sorted(bench.plane.dirty_due(0, 0, 0)) == sorted(handles)

    on_core(tmp_path, body)
