"""Every operation of a core's storage, disturbed at each of its points in turn.

A *fault*: the journal, one call of the disk, or the space fails in the midst of it. Then a crash loses nothing that was
acknowledged, and without a crash everything works again as soon as the disk does. A *commit* that completes there: what
was sampled before it is old. The gate takes a few points of each, the long tier all.
"""

from __future__ import annotations

import functools

import pytest
import trio

from tests.engine.faults import failing
from tests.engine.in_place_core import on_core
from tests.engine.interference import interfering, serve_until_committed
from tests.engine.storage_actors import OPERATIONS, REFUSALS, Actors
from tpc_broker.storage.upkeep import checkpoint_schedule, mending

FEW = 2
ALL = 10_000


@pytest.fixture(params=[FEW, pytest.param(ALL, marks=pytest.mark.crash)], ids=["few points", "all points"])
def points_max(request):
    return request.param


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    for module in (mending, checkpoint_schedule):
        monkeypatch.setattr(module, "RETRY_S", 0.001)


def some(count: int, at_most: int) -> list[int]:
    """Of 1, 2, … count so many, from the whole range."""
    if count <= at_most:
        return [*range(1, count + 1)]
    return sorted({1 + number * count // at_most for number in range(at_most)})


async def prepare(actors: Actors) -> None:
    """A little of everything: written behind, in memory, in a checkpoint, behind it."""
    if actors.other.is_deleted:
        actors.other = await actors.create(f"other-{len(actors.parts)}")
    actors.storage._space._plenty_bytes = 0
    await actors.append_to(actors.main, 1000, 2)
    await actors.append_to(actors.other, 300)
    await actors.storage.checkpoint()
    await actors.append_to(actors.main, 400)
    await actors.append_to(actors.other, 400)


async def refused_or_done(operation, actors: Actors) -> bool:
    """Whether it was done; any error but a refusal is one."""
    try:
        await operation(actors)
    except REFUSALS:
        return False
    except ExceptionGroup as group:
        refusals, others = group.split(REFUSALS)
        if others is not None or refusals is None:
            raise
        return False
    return True


async def count_points(actors: Actors, operation, disturb) -> int:
    await prepare(actors)
    with disturb(at=1 << 30) as points:
        await operation(actors)
    return points[0]


@pytest.mark.parametrize("fault", ["journal", "segment", "space"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_nothing_is_lost_or_stuck_when_something_fails_in_the_midst_of_it(tmp_path, name, fault, points_max):
    async def body(actors: Actors) -> None:
        operation, disturb = OPERATIONS[name], functools.partial(failing, actors, fault)
        for at in [0, *some(await count_points(actors, operation, disturb), points_max)]:
            await prepare(actors)
            with disturb(at=at):
                await refused_or_done(operation, actors)
            await actors.check_crash()
            await actors.mend()
            actors.settled()
            await actors.append_to(actors.main, 500, 2)
            await actors.storage.write_behind()
            await actors.check_crash()

    on_core(tmp_path, body, Actors)


def beside_a_checkpoint(operation):
    async def both(actors: Actors) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(actors.storage.checkpoint)
            await operation(actors)

    return both


@pytest.mark.parametrize("beside", ["alone", "beside a checkpoint"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_commit_may_complete_at_every_point_of_it(tmp_path, name, beside, points_max):
    async def body(actors: Actors) -> None:
        operation = OPERATIONS[name] if beside == "alone" else beside_a_checkpoint(OPERATIONS[name])

        def commit() -> None:
            for one in (actors.main, actors.other):
                appended = None if one.is_deleted else actors.append_nowait(one, 200)
                if appended is not None:
                    result, data = appended
                    serve_until_committed(actors, one.handle, result.end_offset)
                    one.acknowledged[result.base_offset] = data

        def disturb(at):
            return interfering(actors, commit, at)

        await prepare(actors)
        with disturb(()) as points:
            await operation(actors)
        chosen = [[at] for at in some(points[0], points_max)]
        for at in [*chosen, None]:
            await prepare(actors)
            with disturb(at):
                await operation(actors)
            await actors.check_crash()
            for one in (actors.main, actors.other):
                if not one.is_deleted:
                    state = actors.plane.state(one.handle)
                    assert one.files.reserved_bytes >= state.bytes_admitted + state.unwritten_bytes

    on_core(tmp_path, body, Actors)


@pytest.mark.parametrize("fault", ["journal", "segment", "space"])
@pytest.mark.parametrize("at", [1, 4, 9, 15, 25])
def test_a_drain_in_which_something_fails_loses_nothing(tmp_path, fault, at):
    async def body(actors: Actors) -> None:
        await prepare(actors)
        with failing(actors, fault, at), trio.move_on_after(5):
            await refused_or_done(lambda _actors: actors.storage.drain(), actors)
        await actors.check_crash()

    on_core(tmp_path, body, Actors)


