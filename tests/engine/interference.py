"""The data plane moving on at every point at which it may: where a commit completes while Python is in the midst of
something.

A core's disk is wrapped. At each `poll_ring`, and in front of and behind each of its awaited operations,
`interfering` counts a point, and at the chosen ones has its `act` done, which usually appends a batch and serves the
ring until that is durable. So what Python sampled before the point is old behind it.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.log.log_batches import batch
from tests.support.waiting import patiently
from tpc_broker._ring import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from tests.engine.in_place_core import Bench
    from tpc_broker.engine.disk import RingDisk


def durable_sequence(bench: Bench) -> int:
    statistics = ffi.new("tpc_journal_statistics *")
    lib.tpc_journal_get_statistics(bench.plane._journal, statistics)
    return int(statistics.durable_sequence)


def serve_until_durable(bench: Bench, sequence: int) -> None:
    """Without a turn of any task."""
    _serve_until(bench, lambda: durable_sequence(bench) >= sequence)


def serve_until_committed(bench: Bench, handle: int, end_offset: int) -> None:
    """The same for an offset."""
    _serve_until(bench, lambda: bench.plane.bounds(handle).high_watermark >= end_offset)


def _serve_until(bench: Bench, is_so: Callable[[], bool]) -> None:
    for _ in patiently("it is durable"):
        if is_so():
            break
        assert not bench.plane.journal_error(), "the journal failed"
        lib.tpc_ring_serve(bench.core.disk._ring.pointer, 0)


def append_now(bench: Bench, value_bytes: int = 100) -> bool:
    """A batch appended and made durable, acknowledged without any task's having run; False: there is no room for it."""
    data = batch(0, [bench.chooser.randbytes(value_bytes)], epoch=bench.files.leader_epoch)
    result = bench.plane.append(bench.handle, data)
    if result is None:
        return False
    serve_until_committed(bench, bench.handle, result.end_offset)
    bench.acknowledged[result.base_offset] = data[21:]
    return True


def nothing(_name: str) -> None:
    pass


@contextmanager
def disturbed(
    disk: RingDisk, before: Callable[[str], object] = nothing, behind: Callable[[str], object] = nothing
) -> Iterator[None]:
    """`before` is called with the name of each awaited operation of a disk, and may raise its OSError; `behind` behind
    each of them, and behind each `poll_ring`.
    """

    def around(name, method):
        @functools.wraps(method)
        async def call(*arguments, **options):
            try:
                before(name)
            except OSError as error:
                if name not in ("write_many", "reserve_many"):
                    raise
                return [error for _ in arguments[0]]
            result = await method(*arguments, **options)
            behind(name)
            return result

        return call

    def after(name, method):
        @functools.wraps(method)
        def call(*arguments):
            result = method(*arguments)
            behind(name)
            return result

        return call

    methods = [(name, one) for name, one in inspect.getmembers(disk, inspect.ismethod) if not name.startswith("_")]
    for name, method in methods:
        setattr(disk, name, (around if inspect.iscoroutinefunction(method) else after)(name, method))
    try:
        yield
    finally:
        for name, _method in methods:
            vars(disk).pop(name, None)


@contextmanager
def interfering(bench: Bench, act: Callable[[], object], at: Collection[int] | None = None) -> Iterator[list[int]]:
    """Has `act` done at the chosen points (None: at all); yields how many points there were, in a list."""
    points, acting = [0], [False]

    def point(_name: str) -> None:
        if acting[0]:
            return
        points[0] += 1
        if at is None or points[0] in at:
            acting[0] = True
            try:
                act()
            finally:
                acting[0] = False

    with disturbed(bench.core.disk, point, point):
        yield points
