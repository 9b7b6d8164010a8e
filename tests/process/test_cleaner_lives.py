"""Real processes of cleaners: started when there is a job, bounded, ended with whoever wants nothing of them."""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from random import Random

import psutil
import pytest
import trio
import trio.testing

from tests.support.cleaned_logs import CleanedLog
from tests.support.cleaning_jobs import a_job
from tests.support.cleaning_model import replay
from tests.support.record_batches import Record, batch
from tests.support.waiting import PATIENCE_S, eventually_in_loop
from tpc_broker import limits
from tpc_broker.cleaner.cleaner_client import CleanerClient
from tpc_broker.cleaner.cleaner_process import CleanerOptions, main
from tpc_broker.log.cleaning_job import CleanedGroup, CleaningReport
from tpc_broker.process.cleaner_lives import LACKING_AFTER, Cleaners
from tpc_broker.storage.ports import CleanerAwayError, CleaningFailedError

pytestmark = pytest.mark.crash
COMMAND = (sys.executable, "-m", "tests.support.fake_cleaner")


@asynccontextmanager
async def cleaners(threads: int = 1, idle_s: float = limits.CLEANER_IDLE_S) -> AsyncIterator[Cleaners]:
    made = Cleaners(COMMAND, idle_s=idle_s)
    made.set_bounds(threads, 1e300)
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            yield made
            nursery.cancel_scope.cancel()
    assert made.pids == []


async def taken(_group: CleanedGroup) -> None:
    await trio.lowlevel.checkpoint()


async def done(made: Cleaners, label: str, *, is_urgent: bool = False) -> CleaningReport:
    return await CleanerClient(made.door_fd).clean(a_job(label=label, is_urgent=is_urgent), taken)


async def long_one(made: Cleaners, begun: trio.Event) -> None:
    """A job that goes on until it is cancelled."""

    async def take(_group: CleanedGroup) -> None:
        begun.set()

    await CleanerClient(made.door_fd).clean(a_job(label="long"), take)


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test)


def test_a_cleaner_is_started_for_a_job_and_ends_when_nobody_has_one() -> None:
    async def test() -> None:
        async with cleaners(idle_s=0.5) as made:
            await trio.testing.wait_all_tasks_blocked()
            assert made.pids == []
            first, second = await done(made, "a"), await done(made, "b")
            assert made.pids == [first.map_keys] == [second.map_keys], "one process, and a fork for each job"
            assert first.records_read != second.records_read
            await eventually_in_loop(lambda: made.pids == [], "the end of a cleaner that is idle")
            assert (await done(made, "c")).map_keys != first.map_keys

    in_loop(test)


def test_jobs_are_nice_but_for_urgent_ones() -> None:
    async def test() -> None:
        async with cleaners() as made:
            for is_urgent in (False, True, False):
                assert (await done(made, "nice", is_urgent=is_urgent)).records_kept == (0 if is_urgent else 19)

    in_loop(test)


def test_a_job_that_wants_more_memory_than_it_may_have_fails_and_the_next_one_does_not() -> None:
    async def test() -> None:
        async with cleaners() as made:
            with pytest.raises(CleaningFailedError, match="more memory"):
                await done(made, "greedy")
            await done(made, "a")

    in_loop(test)


@pytest.mark.parametrize("label", ["dies", "hangs"])
def test_a_job_that_dies_or_hangs_ends_alone(label: str) -> None:
    async def test() -> None:
        async with cleaners() as made:
            cleaner = (await done(made, "a")).map_keys
            with pytest.raises(CleanerAwayError):
                await done(made, label)
            assert (await done(made, "b")).map_keys == cleaner

    in_loop(test)


async def killed_in_a_job(made: Cleaners) -> tuple[int, psutil.Process]:
    """The only cleaner's process id, and the process of its job, which may live on for a moment."""
    begun = trio.Event()
    with pytest.RaisesGroup(CleanerAwayError):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(long_one, made, begun)
            await begun.wait()
            (killed,) = made.pids
            (job,) = psutil.Process(killed).children()
            psutil.Process(killed).kill()
    return killed, job


def test_a_cleaner_that_is_killed_in_a_job_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with cleaners() as made:
            killed, job = await killed_in_a_job(made)
            await eventually_in_loop(lambda: not psutil.pid_exists(job.pid), "the end of the job's process")
            assert (await done(made, "a")).map_keys != killed

    in_loop(test)
    assert "a cleaner ended (killed by SIGKILL); one is started again when there is a job" in caplog.messages


def test_who_waits_for_a_cleaner_that_never_comes_up_is_told_why() -> None:
    async def test() -> None:
        made = Cleaners((sys.executable, "-c", "raise SystemExit(3)"))
        made.set_bounds(1, 1e300)
        client = CleanerClient(made.door_fd)
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(made.run)
                for times in (LACKING_AFTER, LACKING_AFTER + 1):
                    with pytest.raises(CleanerAwayError, match=rf"\(exit code 3\).*; that was {times} times in a row"):
                        await client.ready()
                nursery.cancel_scope.cancel()

    in_loop(test)


@contextmanager
def as_process_one() -> Iterator[None]:
    """Orphans become children of this process (PR_SET_CHILD_SUBREAPER), as they do of PID 1."""
    prctl = ctypes.CDLL(None).prctl
    prctl(36, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(36, 0, 0, 0, 0)


def test_the_job_of_a_cleaner_that_was_killed_leaves_no_zombie_where_the_supervisor_is_process_one() -> None:
    async def test() -> None:
        async with cleaners() as made:
            _killed, job = await killed_in_a_job(made)
            await eventually_in_loop(lambda: not psutil.pid_exists(job.pid), "the end of the job's process, in full")

    with as_process_one():
        in_loop(test)


def test_a_core_that_goes_ends_its_job() -> None:
    async def test() -> None:
        async with cleaners() as made, trio.open_nursery() as nursery:
            begun = trio.Event()
            nursery.start_soon(long_one, made, begun)
            await begun.wait()
            cleaner = psutil.Process(made.pids[0])
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await eventually_in_loop(lambda: cleaner.children() == [], "the end of the job's process")

    in_loop(test)


def test_jobs_of_two_cores_wait_for_one_cleaner_and_not_for_two() -> None:
    async def test() -> None:
        async with cleaners() as made:
            begun = [trio.Event(), trio.Event()]
            async with trio.open_nursery() as nursery:
                for event in begun:
                    nursery.start_soon(long_one, made, event)
                await eventually_in_loop(lambda: any(event.is_set() for event in begun), "a job")
                assert not all(event.is_set() for event in begun)
                assert len(made.pids) == 1
                made.set_bounds(2, 1e300)
                for event in begun:
                    await event.wait()
                assert len(made.pids) == 2
                nursery.cancel_scope.cancel()

    in_loop(test)


def test_cleaners_that_are_too_many_are_ended_and_a_job_waits_for_one() -> None:
    async def test() -> None:
        async with cleaners() as made:
            await done(made, "a")
            made.set_bounds(0, 1e300)
            await eventually_in_loop(lambda: made.pids == [], "no cleaner")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(partial(done, made, "b"))
                await trio.testing.wait_all_tasks_blocked(0.1)
                assert made.pids == []
                made.set_bounds(1, 1e300)

    in_loop(test)


def test_the_rate_is_changed_under_a_job_that_waits() -> None:
    async def test() -> None:
        async with cleaners() as made:
            made.set_bounds(1, 0.0)
            client = CleanerClient(made.door_fd)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.clean, a_job(), taken)  # a MiB: for a quarter of an hour
                await eventually_in_loop(lambda: made.pids and psutil.Process(made.pids[0]).children(), "a job")
                made.set_bounds(1, 1e300)

    in_loop(test)


def test_a_cleaner_whose_supervisor_is_gone_does_not_begin() -> None:
    assert main([CleanerOptions(-1, -1, supervisor_pid=1).to_argument()]) == 1


def written(folder: Path, segments: int = 3, batches: int = 400) -> CleanedLog:
    """Ten keys, written again and again, in each codec."""
    log, chance, offset = CleanedLog(folder), Random(5), 0
    for _ in range(segments):
        made = []
        for number in range(batches):
            records = [Record(chance.randbytes(500), b"key %d" % chance.randrange(10), 0) for _ in range(4)]
            made.append(batch(records, base_offset=offset, base_timestamp_ms=0, codec=number % 5))
            offset += len(records)
        log.append(b"".join(made))
    return log


def test_a_log_is_cleaned_by_a_cleaner_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """And what it has given to the core is in place already when it dies."""

    async def test() -> None:
        log, kills = written(tmp_path), 0
        before, size_before = replay(log.read(), ()), sum(source.size_bytes for source in log.sources)
        made = Cleaners()
        made.set_bounds(1, 3e6)
        client = CleanerClient(made.door_fd)

        async def take(group: CleanedGroup) -> None:
            log.check(group.seal)
            log._swap(group.seal)
            log.first_dirty_offset = group.seal.first_dirty_offset

        async def kill_after(seconds: float) -> None:
            await eventually_in_loop(lambda: client.under_way and made.pids, "a job")
            await trio.sleep(seconds)
            for pid in made.pids:
                psutil.Process(pid).kill()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.run)
            for attempt in itertools.count():
                try:
                    async with trio.open_nursery() as one:
                        if attempt < 4:
                            one.start_soon(kill_after, 0.1 * (attempt + 1))
                        report = await client.clean(log.job(dedupe_bytes=128 << 20, segment_bytes=1 << 20), take)
                        one.cancel_scope.cancel()
                    break
                except* (CleanerAwayError, CleaningFailedError):
                    kills += 1
            nursery.cancel_scope.cancel()
        assert kills > 0
        assert report.records_kept <= report.records_read
        assert replay(log.read(), ()) == before
        assert sum(source.size_bytes for source in log.sources) < size_before / 20

    in_loop(test)
