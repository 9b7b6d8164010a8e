"""How often Python has to run for what C takes in: counted in steps of trio's tasks, never in time."""

from __future__ import annotations

from collections import Counter

import trio

from tests.support.plane_bench import records_of
from tpc_broker import limits
from tpc_broker.bench import storage_shapes
from tpc_broker.engine.trio_ring import run
from tpc_broker.process.assembly import open_assembly
from tpc_broker.storage.upkeep import write_behind

APPENDED_BYTES = 16 * limits.MIB
AT_ONCE = 64
STEPS_PER_ROUND_MAX = 10
"""Woken, a write, perhaps its first and its last bytes apart, perhaps a file to be opened, done."""


class Steps(trio.abc.Instrument):
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts[".".join(task.name.split(".")[-2:])] += 1


def test_writing_behind_takes_a_bounded_number_of_steps_for_each_mebibyte(tmp_path, monkeypatch):
    monkeypatch.setattr(write_behind, "LOOK_S", 3600)
    monkeypatch.setattr(write_behind, "BYTES_AT_ONCE", write_behind.BYTES_MIN)
    for folder in ("journals", "topics"):
        (tmp_path / folder).mkdir()
    steps, batch = Steps(), records_of(1, value=bytes(1024))

    async def append_all(assembly, partition):
        for _ in range(APPENDED_BYTES // (AT_ONCE * len(batch)) + 1):
            appended = None
            for _ in range(AT_ONCE):
                while (result := assembly.plane.append(partition.handle, batch)) is None:
                    await assembly.storage.make_room(partition.files, partition.handle, len(batch))
                appended = result
            await assembly.plane.wait_committed(partition.handle, appended.end_offset, appended.leader_epoch)

    async def main():
        async with open_assembly(storage_shapes._options(tmp_path)) as assembly:
            partition = await storage_shapes._open_partition(assembly, "t")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(assembly.storage.run_maintenance)
                await append_all(assembly, partition)
                trio.lowlevel.add_instrument(steps)
                await append_all(assembly, partition)
                trio.lowlevel.remove_instrument(steps)
                nursery.cancel_scope.cancel()

    run(main)
    rounds_max = APPENDED_BYTES // write_behind.BYTES_MIN + 1
    wrote = steps.counts["WriteBehindWriter.run"] + steps.counts["WriteBehindWriter._write_in_turn"]
    assert 0 < wrote <= rounds_max * STEPS_PER_ROUND_MAX, steps.counts
    assert steps.counts["SegmentSpace.make_when_low"] <= APPENDED_BYTES // limits.MIB, steps.counts
