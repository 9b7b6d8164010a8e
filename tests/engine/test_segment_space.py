"""The account of segment space: what is admitted is reserved, nothing else is, whatever becomes durable meanwhile."""

from __future__ import annotations

from tests.engine.in_place_core import assert_kept, on_core
from tests.engine.interference import append_now, interfering


def test_commits_during_write_behind_leave_the_account_of_space_exact(tmp_path):
    async def body(bench):
        def space_beyond_what_is_admitted():
            return bench.files.reserved_bytes - bench.plane._state_of(bench.handle).bytes_admitted

        await bench.append(1000, 4)
        for _ in range(8):
            await bench.storage.make_room(bench.files, bench.handle, 200_000)
            await bench.append(40_000, 8)
            with interfering(bench, lambda: append_now(bench, 2000)) as points:
                await bench.storage.write_behind(all_of_it=False)
                await bench.storage.write_behind()
            assert points[0]
        while bench.plane.dirty():
            await bench.storage.write_behind()
        await bench.storage.make_room(bench.files, bench.handle, bench.plane._state_of(bench.handle).bytes_admitted + 1)
        assert space_beyond_what_is_admitted() == 0, "space is held for records that are in the segments already"

    on_core(tmp_path, body)


def test_reserved_space_moves_along_with_a_roll_and_admission_ends_with_a_rewrite(tmp_path):
    async def body(bench):
        await bench.append(1000)
        await bench.storage.make_room(bench.files, bench.handle, 500_000)
        await bench.append(40_000, 3)
        await bench.files.roll()
        assert bench.files.reserved_bytes >= bench.plane._state_of(bench.handle).bytes_admitted + 120_000
        await bench.storage.write_behind()
        bench.files.fail("a sync that failed")
        await bench.append(40_000, 3)
        assert await bench.storage._mending.mend_partitions()
        await bench.storage.write_behind()
        state = bench.plane._state_of(bench.handle)
        assert bench.files.reserved_bytes >= state.bytes_admitted, "more is admitted than has its space"
        await bench.append(40_000)
        await assert_kept(bench, tmp_path / "crashed")

    on_core(tmp_path, body)
