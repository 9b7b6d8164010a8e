"""The broker's tasks beside a program's own: they are trio's, whatever loop the program is on.

On trio they are tasks like any other, with the program's clock. On asyncio trio is a guest of its loop, in the same
thread (docs/decisions/2026-11-30-broker-in-memory.md).
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import anyio
import sniffio
import trio
from outcome import Error

from tpc_broker.client.net.tasks import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from outcome import Outcome


Serve: TypeAlias = "Callable[[Callable[[], None]], Coroutine[Any, Any, None]]"
"""A coroutine of trio that goes on until it is cancelled; it calls what it is given when it serves."""


class CallSoon(Protocol):
    """Have a function called among the tasks of the broker, after those that were given before."""

    def __call__(self, function: Callable[..., object], *arguments: Any) -> None: ...


@asynccontextmanager
async def hosted(serve: Serve) -> AsyncIterator[CallSoon]:
    """``serve`` runs for as long as the block; its failure is raised there."""
    if sniffio.current_async_library() == "trio":
        async with background_tasks() as tasks:
            ready = anyio.Event()
            tasks.start_soon(serve, ready.set)
            await ready.wait()
            yield _call_now
    else:
        async with _guest() as guest, background_tasks() as tasks:
            run = _Run(guest, serve)
            tasks.start_soon(run.watch)
            await run.ready.wait()
            yield guest.call_soon


def _call_now(function: Callable[..., object], *arguments: Any) -> None:
    function(*arguments)


class _Guest:
    """trio in asyncio's loop, in which all that is hosted there is system tasks: a thread has one guest at a time."""

    def __init__(self) -> None:
        self.users = 0
        self.is_ending = False
        self.done = anyio.Event()
        self.runs: set[_Run] = set()
        self._scope = trio.CancelScope()
        loop = asyncio.get_running_loop()
        trio.lowlevel.start_guest_run(
            self._main, run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            run_sync_soon_not_threadsafe=loop.call_soon, done_callback=self._end, host_uses_signal_set_wakeup_fd=True,
        )  # fmt: skip
        self._token = trio.lowlevel.current_trio_token()

    async def _main(self) -> None:
        with self._scope:
            await trio.sleep_forever()

    def _end(self, outcome: Outcome[None]) -> None:
        for run in self.runs:
            run.ended(outcome.error if isinstance(outcome, Error) else None)
        self.done.set()

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        if not self.done.is_set():
            self._token.run_sync_soon(function, *arguments)

    async def stop(self) -> None:
        self.is_ending = True
        self.call_soon(self._scope.cancel)
        with anyio.CancelScope(shield=True):
            await self.done.wait()


_guests: WeakKeyDictionary[asyncio.AbstractEventLoop, _Guest] = WeakKeyDictionary()


@asynccontextmanager
async def _guest() -> AsyncIterator[_Guest]:
    """The loop's guest: the first who wants one starts it, the last one stops it."""
    loop = asyncio.get_running_loop()
    while (guest := _guests.get(loop)) is not None and guest.is_ending:
        await guest.done.wait()
    if guest is None:
        guest = _guests[loop] = _Guest()
    guest.users += 1
    try:
        yield guest
    finally:
        guest.users -= 1
        if not guest.users:
            await guest.stop()
            del _guests[loop]


class _Run:
    """One coroutine in the guest."""

    def __init__(self, guest: _Guest, serve: Serve) -> None:
        self.ready, self._done = anyio.Event(), anyio.Event()
        self._guest, self._serve, self._scope = guest, serve, trio.CancelScope()
        self._failure: BaseException | None = None

    async def watch(self) -> None:
        """Until it is cancelled and over. Raises its failure."""
        self._guest.runs.add(self)
        self._guest.call_soon(trio.lowlevel.spawn_system_task, self._main)
        try:
            await self._done.wait()
        finally:
            self._guest.call_soon(self._scope.cancel)
            with anyio.CancelScope(shield=True):
                await self._done.wait()
            self._guest.runs.remove(self)
        if self._failure is not None:
            raise self._failure

    async def _main(self) -> None:
        failure: Exception | None = None
        try:
            with self._scope:
                await self._serve(self.ready.set)
        except Exception as error:  # noqa: BLE001  (it is raised by `watch`)
            failure = error
        self.ended(failure)

    def ended(self, failure: BaseException | None) -> None:
        self._failure = failure
        self._done.set()
