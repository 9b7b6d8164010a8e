"""Which partitions without space storage looks for space for, and in which order."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio

from tpc_broker.errors import PartitionOfflineError
from tpc_broker.storage.upkeep.segment_space import LOOK_S, Lack, SegmentSpace

FULL = OSError(errno.ENOSPC, "full")
GONE = 9


class Space(SegmentSpace):
    """Three partitions lack space, and one that is not here any more; `error` is what each attempt ends with."""

    def __init__(self, error, internal=()):
        led = {
            handle: SimpleNamespace(
                handle=handle, is_internal=handle in internal,
                files=SimpleNamespace(topic="t", key=SimpleNamespace(partition=handle)),
            )
            for handle in (1, 2, 3)
        }  # fmt: skip
        super().__init__(SimpleNamespace(on_room_low=lambda _is_low: None), None, Path(), led, None)
        sizes = {1: 300, 2: 100, 3: 200, GONE: 50}
        self.lacking |= {handle: Lack(0.0, size, is_of_disk=True) for handle, size in sizes.items()}
        self.error, self.asked = error, []

    async def make(self, _files, handle, size):
        self.asked.append((handle, size))
        if self.error is not None:
            raise self.error
        del self.lacking[handle]


@pytest.mark.parametrize(
    ("error", "internal", "asked"),
    [
        (None, (), [2, 3, 1]),
        (FULL, (), [2]),
        (FULL, (2,), [2, 3]),
        (OSError(errno.EIO, "no"), (), [2, 3, 1]),
        (PartitionOfflineError("no"), (), [2, 3, 1]),
    ],
)
async def test_the_smallest_is_looked_for_first_and_what_the_disk_lacks_for_it_ends_the_look(error, internal, asked):
    space = Space(error, internal)
    await space._look_for_lacking()
    assert [handle for handle, _size in space.asked] == asked
    assert GONE not in space.lacking
    assert bool(space.lacking) == (error is not None)


async def test_it_looks_until_there_is_space_and_then_rests_until_somebody_is_refused(autojump_clock):
    space = Space(FULL)
    space._refusals.refused(FULL)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(space.look_for_lacking)
        await trio.sleep(10 * LOOK_S)
        assert not space.asked, "nobody was refused"
        space._refused.set()
        await trio.sleep(10.5 * LOOK_S)
        assert (len(space.asked), space.is_disk_full) == (10, True)
        space.error = None
        await trio.sleep(LOOK_S)
        assert (space.lacking, space.is_disk_full) == ({}, False)
        space.lacking[1] = Lack(0.0, 1, is_of_disk=True)
        space.asked.clear()
        await trio.sleep(10 * LOOK_S)
        assert not space.asked, "it rests"
        nursery.cancel_scope.cancel()
