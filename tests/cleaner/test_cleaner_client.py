"""A core and a cleaner over their socket: the cleaner's side in a thread, with what it does in place of `clean`."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

import pytest
import trio

from tests.support.cleaning_jobs import REPORT, a_group, a_job
from tests.support.waiting import PATIENCE_S
from tpc_broker.cleaner import cleaner_client, cleaner_process
from tpc_broker.cleaner.cleaner_client import DEATHS_MAX, CleanerClient, put_in
from tpc_broker.cleaner.cleaner_door import make_door, take_out
from tpc_broker.cleaner.cleaner_frames import (
    FrameError,
    Kind,
    encode_frame,
    encode_group,
    encode_job,
    encode_report,
)
from tpc_broker.cleaner.cleaner_process import CleaningConversation, CoreGoneError
from tpc_broker.cleaner.shared_pace import SharedPace
from tpc_broker.engine.trio_ring import run
from tpc_broker.log.cleaning_job import CleanedGroup, CleaningJob, CleaningReport
from tpc_broker.storage.ports import CleanerAwayError, CleaningFailedError, JobVoidError

Clean = Callable[..., CleaningReport]
FIRST, SECOND = a_group(0, 100), a_group(100, 200)


class ChangedError(ValueError):
    """Segments are others."""


class ProcessEndedError(BaseException):
    """In place of the end of the cleaner's process."""


class OneCleaner:
    """Takes connections and carries jobs out, in a thread, until the test is over."""

    def __init__(self) -> None:
        self.waiting, self.door = make_door()
        self.clean: Clean = lambda *_ports: REPORT
        self.ended_by: list[BaseException | None] = []
        self.prepared: list[CleaningJob] = []
        self.pace = SharedPace.make()
        self.raw: Callable[[socket.socket], None] | None = None
        """In place of a conversation."""

    def serve_one(self) -> None:
        self.waiting.setblocking(True)
        connection = take_out(self.waiting)
        assert connection is not None
        with connection:
            if self.raw is not None:
                self.raw(connection)
                return
            try:
                CleaningConversation(
                    connection, self.pace, self.clean, end=self.end, void=ChangedError
                ).serve(self.prepared.append)
            except BaseException as error:
                self.ended_by.append(error)
            else:
                self.ended_by.append(None)

    def end(self) -> NoReturn:
        raise ProcessEndedError

    @contextmanager
    def serving(self, count: int = 1) -> Iterator[CleanerClient]:
        async def serve() -> None:
            for _ in range(count):
                await trio.to_thread.run_sync(self.serve_one, abandon_on_cancel=True)

        self.task = serve
        yield CleanerClient(self.door.fileno())


@pytest.fixture
def cleaner() -> Iterator[OneCleaner]:
    one = OneCleaner()
    yield one
    one.waiting.close()
    one.door.close()
    one.pace.close()


async def nothing(_group: CleanedGroup) -> None:
    raise AssertionError("nothing is to be taken")


async def cleaned(cleaner: OneCleaner, take: Any = nothing, job: CleaningJob | None = None) -> CleaningReport:
    """One job with one connection."""
    outcome: CleaningReport | Exception
    with trio.fail_after(PATIENCE_S), cleaner.serving() as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cleaner.task)
            try:
                outcome = await client.clean(job or a_job(), take)
            except (CleanerAwayError, CleaningFailedError, LookupError) as error:
                outcome = error
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_groups_are_taken_in_order_before_the_cleaner_goes_on(cleaner):
    async def main() -> None:
        said = []

        def clean(job, take, pace, should_stop):
            assert job == a_job()
            for name, group in (("first", FIRST), ("second", SECOND)):
                pace(100)
                assert not should_stop()
                said.append(f"made {name}")
                take(group)
            return REPORT

        async def take(group):
            await trio.lowlevel.checkpoint()
            said.append(f"took {group.seal.base_offset}")

        cleaner.clean = clean
        assert await cleaned(cleaner, take) == REPORT
        assert said == ["made first", "took 0", "made second", "took 100"]
        assert cleaner.prepared == [a_job()]
        assert cleaner.ended_by == [None]

    run(main)


def test_what_taking_raises_ends_the_job_at_once(cleaner):
    async def main() -> None:
        def clean(_job, take, _pace, _should_stop):
            take(FIRST)
            raise AssertionError("it was not taken")

        async def take(_group):
            raise LookupError("the log has changed")

        cleaner.clean = clean
        with pytest.raises(LookupError, match="the log has changed"):
            await cleaned(cleaner, take)
        assert isinstance(cleaner.ended_by[0], ProcessEndedError)  # nothing touches files that may be in place by now

    run(main)


@pytest.mark.parametrize(
    ("raised", "error", "said"),
    [
        (ValueError("segment 5 is damaged"), CleaningFailedError, "segment 5 is damaged"),
        (OSError(errno.ENOENT, "No such file", "/a/b"), CleaningFailedError, "No such file: /a/b"),
        (OSError(errno.EIO, os.strerror(errno.EIO)), CleaningFailedError, "Input/output error: /data/topics/prices-0"),
        (OSError(errno.ENOSPC, "No space left"), CleanerAwayError, "No space left"),
        (MemoryError(), CleaningFailedError, "more memory"),
        (ChangedError("it was replaced"), JobVoidError, "it was replaced"),
        (KeyError("a bug"), CleaningFailedError, "KeyError: 'a bug'"),
    ],
    ids=["value", "gone", "disk", "space", "memory", "void", "bug"],
)
def test_a_job_that_fails_says_why(cleaner, raised, error, said):
    async def main() -> None:
        def clean(*_ports):
            raise raised

        cleaner.clean = clean
        with pytest.raises(error, match=said):
            await cleaned(cleaner)

    run(main)


def test_a_cancelled_job_ends_at_the_next_look_and_while_it_waits(cleaner):
    async def main() -> None:
        begun = trio.Event()
        token = trio.lowlevel.current_trio_token()
        looks = []

        def clean(_job, _take, pace, should_stop):
            token.run_sync_soon(begun.set)
            cleaner.pace.set_rate(1024)
            pace(1 << 30)  # for more than a week
            looks.append(should_stop())
            return REPORT

        cleaner.clean = clean
        with trio.fail_after(PATIENCE_S), cleaner.serving() as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cleaner.task)
                async with trio.open_nursery() as jobs:
                    jobs.start_soon(client.clean, a_job(), nothing)
                    await begun.wait()
                    assert client.under_way == {"prices-0": 0}
                    jobs.cancel_scope.cancel()
        assert looks == [True]
        assert client.under_way == {}

    run(main)


def test_progress_is_told(cleaner, monkeypatch):
    async def main() -> None:
        monkeypatch.setattr(cleaner_process, "_PROGRESS_S", 0.0)
        seen = []

        def clean(_job, take, pace, _should_stop):
            pace(1000)
            pace(500)
            take(FIRST)
            return REPORT

        async def take(_group):
            seen.append(client.under_way["prices-0"])

        cleaner.clean = clean
        with trio.fail_after(PATIENCE_S), cleaner.serving() as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cleaner.task)
                await client.clean(a_job(), take)
        assert seen == [1500]

    run(main)


def test_a_cleaner_that_dies_is_away_and_one_that_dies_in_a_job_again_and_again_is_the_jobs_doing(cleaner):
    async def main() -> None:
        def die(*_ports):
            raise CoreGoneError("as if it were killed")

        cleaner.clean = die
        with trio.fail_after(PATIENCE_S), cleaner.serving(2 * DEATHS_MAX) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cleaner.task)
                for error in 2 * [*(DEATHS_MAX - 1) * [CleanerAwayError], CleaningFailedError]:
                    with pytest.raises(error):
                        await client.clean(a_job(), nothing)

    run(main)


def test_deaths_that_are_not_one_behind_the_other_do_not_count(cleaner):
    async def main() -> None:
        dies = iter([True, True, False] * 2)

        def clean(*_ports):
            if next(dies):
                raise CoreGoneError
            return REPORT

        cleaner.clean = clean
        with trio.fail_after(PATIENCE_S), cleaner.serving(6) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cleaner.task)
                for is_well in [False, False, True] * 2:
                    if is_well:
                        assert await client.clean(a_job(), nothing) == REPORT
                    else:
                        with pytest.raises(CleanerAwayError):
                            await client.clean(a_job(), nothing)

    run(main)


def test_without_a_door_there_is_no_cleaner():
    async def main() -> None:
        with pytest.raises(CleanerAwayError, match="there are no cleaners"):
            await CleanerClient(-1).clean(a_job(), nothing)
        waiting, door = make_door()
        waiting.close()
        with door, pytest.raises(CleanerAwayError, match="no cleaner can be reached: Broken pipe"):
            await CleanerClient(door.fileno()).clean(a_job(), nothing)

    run(main)


def test_nobody_else_can_reach_a_cleaner():
    """Who is no core has no way into the door, and out of it comes nothing else."""
    waiting, door = make_door()
    with door, waiting:
        assert (waiting.getsockname(), door.getsockname()) == ("", "")
        assert take_out(waiting) is None
        door.send(b"x")
        assert take_out(waiting) is None, "there was no conversation"
        door.close()
        with pytest.raises(EOFError):
            take_out(waiting)


def test_a_job_that_is_too_long_fails_before_a_cleaner_is_asked(cleaner, monkeypatch):
    async def main() -> None:
        monkeypatch.setattr(cleaner_client.limits, "CLEANER_JOB_BYTES_MAX", 100)
        with pytest.raises(CleaningFailedError, match="too many"):
            await CleanerClient(cleaner.door.fileno()).clean(a_job(), nothing)

    run(main)


@pytest.mark.parametrize(
    "frames",
    [
        encode_frame(Kind.TAKEN), b"\xff" * 16, encode_frame(Kind.READY) + encode_frame(Kind.READY),
        encode_frame(Kind.READY) + encode_frame(Kind.REPORT, {"bytes_read": -1}),
        encode_frame(Kind.READY) + encode_frame(Kind.GROUP, {}, b"no seal"),
        encode_frame(Kind.READY) + encode_frame(Kind.PROGRESS), encode_frame(Kind.READY) + encode_report(REPORT)[:-1],
        encode_frame(Kind.READY),
    ],
)  # fmt: skip
def test_a_cleaner_that_says_what_cannot_be_is_away(cleaner, frames):
    async def main() -> None:
        cleaner.raw = lambda connection: connection.sendall(frames)
        with pytest.raises(CleanerAwayError):
            await cleaned(cleaner)

    run(main)


@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_core_that_says_what_cannot_be_is_left(cleaner, in_the_middle):
    """In place of a job, or while one is carried out."""

    async def main() -> None:
        begun, token = trio.Event(), trio.lowlevel.current_trio_token()

        def clean(_job, _take, _pace, should_stop):
            token.run_sync_soon(begun.set)
            while not should_stop():
                pass
            return REPORT

        cleaner.clean = clean
        with trio.fail_after(PATIENCE_S), cleaner.serving():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cleaner.task)
                stream = trio.SocketStream(trio.socket.from_stdlib_socket(await put_in(cleaner.door.fileno())))
                if in_the_middle:
                    await stream.send_all(encode_job(a_job()))
                    await begun.wait()
                await stream.send_all(encode_group(FIRST))
                with suppress(trio.BrokenResourceError):
                    while await stream.receive_some(1000):
                        pass
                await stream.aclose()
        assert [type(error) for error in cleaner.ended_by] == [type(None) if in_the_middle else FrameError]

    run(main)


def test_who_has_waited_for_a_cleaner_has_it(cleaner):
    async def main() -> None:
        with trio.fail_after(PATIENCE_S), cleaner.serving() as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cleaner.task)
                await client.ready()
                await client.ready()
                assert await client.clean(a_job(), nothing) == REPORT

    run(main)


def test_a_cleaner_that_was_kept_waiting_for_too_long_is_let_go(cleaner, monkeypatch):
    async def main() -> None:
        monkeypatch.setattr(cleaner_client, "_HELD_S", 0.0)
        with trio.fail_after(PATIENCE_S), cleaner.serving(3) as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cleaner.task)
                await client.ready()
                await client.ready()
                client.let_go()
                assert await client.clean(a_job(), nothing) == REPORT
        assert [type(error) for error in cleaner.ended_by] == [CoreGoneError, CoreGoneError, type(None)]

    run(main)
