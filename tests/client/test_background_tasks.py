"""What comes out of a block with background tasks, on both loops."""

from __future__ import annotations

import signal

import anyio
import anyio.lowlevel
import pytest
import trio

from tests.support.both_loops import on_both_loops
from tests.support.waiting import PATIENCE_S
from tpc_broker.client.net.tasks import background_tasks


class Ends(BaseException):
    """What no task handles, as an interrupt from the keyboard is."""


async def fail(error):
    raise error


async def fail_when_cancelled(error):
    try:
        await anyio.sleep_forever()
    finally:
        raise error


async def fail_within_a_group(error):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fail, error)
        await anyio.sleep_forever()


@on_both_loops
async def test_what_the_block_raises_comes_out_as_it_is():
    first, cause = ValueError("first"), ValueError("cause")
    with pytest.raises(KeyError) as caught:
        async with background_tasks() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            try:
                raise first
            except ValueError:
                raise KeyError("block") from cause
    assert caught.value.__context__ is first
    assert caught.value.__cause__ is cause
    whole = ExceptionGroup("of the block", [ValueError("one"), KeyError("two")])
    with pytest.raises(ExceptionGroup) as group:
        async with background_tasks():
            raise whole
    assert group.value is whole


@pytest.mark.parametrize("task", [fail, fail_within_a_group])
@pytest.mark.parametrize("kind", [ValueError, Ends])
@on_both_loops
async def test_a_task_that_fails_ends_the_block_with_its_error(task, kind):
    error = kind("task")
    with pytest.raises(kind) as caught:
        async with background_tasks() as tasks:
            tasks.start_soon(task, error)
            await anyio.sleep_forever()
    assert caught.value is error


@on_both_loops
async def test_several_errors():
    with pytest.raises(KeyError) as caught:
        async with background_tasks() as tasks:
            tasks.start_soon(fail_when_cancelled, ValueError("task"))
            await anyio.wait_all_tasks_blocked()
            raise KeyError("block")
    assert caught.value.__notes__ == ["a background task failed as well: ValueError('task')"]
    with pytest.raises(BaseExceptionGroup) as group:
        async with background_tasks() as tasks:
            for number in range(2):
                tasks.start_soon(fail_when_cancelled, ValueError(f"task {number}"))
            await anyio.wait_all_tasks_blocked()
    assert {str(error) for error in group.value.exceptions} == {"task 0", "task 1"}


@on_both_loops
async def test_a_cancelled_block_is_cancelled():
    with anyio.CancelScope() as scope:
        async with background_tasks() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            scope.cancel()
            await anyio.sleep_forever()
        raise AssertionError
    assert scope.cancelled_caught


@pytest.fixture
def interrupts():
    """As in a program: a shell's background job starts without."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


def test_an_interrupt_while_a_background_task_runs_is_the_main_task_s(interrupts):
    """asyncio interrupts nothing else; trio would raise it in the middle of the client's own work."""
    went_on = []

    async def interrupted():
        signal.raise_signal(signal.SIGINT)
        went_on.append(1)
        await anyio.lowlevel.checkpoint()
        went_on.append(2)

    async def main():
        async with background_tasks() as tasks:
            tasks.start_soon(interrupted)
            await anyio.sleep_forever()

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert went_on[0] == 1


class Interrupting:
    """A scope that is cancelled while somebody presses Ctrl-C."""

    def __init__(self, scope):
        self._scope = scope

    def cancel(self):
        signal.raise_signal(signal.SIGINT)
        self._scope.cancel()


def test_an_interrupt_while_background_tasks_are_ended_leaves_none_behind(interrupts):
    """They are shielded: one that is not cancelled would be waited for until the next interrupt."""
    ended = []

    async def work(number):
        try:
            await anyio.sleep(PATIENCE_S)
        except trio.Cancelled:
            ended.append(number)
            raise

    async def main():
        async with background_tasks() as tasks:
            for number in range(3):
                tasks.start_soon(work, number)
            await anyio.wait_all_tasks_blocked()
            scopes = [*tasks._scopes]
            tasks._scopes = {Interrupting(scope) for scope in scopes}

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    assert sorted(ended) == [0, 1, 2]
