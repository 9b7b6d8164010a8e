"""Answers to requests, which come as records of a topic: each is handed to who asked, by its correlation id."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio

from tpc_broker.client.errors import ClientError, ClosedError
from tpc_broker.faststream.message import CORRELATION_ID

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tpc_broker.client.handle import Client
    from tpc_broker.client.values import Record

POSITIONS_PAUSE_SECONDS: Final = 0.005


class Replies:
    """Of one topic, from when it was first asked for on. Others may have answers in it too: those are left alone."""

    def __init__(self, client: Client, topic: str) -> None:
        self._waiting: dict[str, asyncio.Future[Record]] = {}
        self._is_ready = anyio.Event()
        self._error: ClientError | None = None
        self._task = asyncio.create_task(self._run(client, topic))

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    async def answer(self, correlation_id: str, ask: Callable[[], Awaitable[object]]) -> Record:
        """The record that answers what ``ask`` sends; the topic is read by then."""
        await self._is_ready.wait()
        if self._error is not None:
            raise self._error.again()
        waiting: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = waiting
        try:
            await ask()
            return await waiting
        finally:
            self._waiting.pop(correlation_id, None)

    async def end(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _run(self, client: Client, topic: str) -> None:
        failure: ClientError = ClosedError("the broker was stopped")
        try:
            await self._read(client, topic)
        except ClientError as error:
            failure = error
        finally:
            self._error = failure
            self._is_ready.set()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(failure.again())

    async def _read(self, client: Client, topic: str) -> None:
        partitions_count = len((await client.fleet.topic(topic)).leaders)
        async with client.read(topic, start="latest") as stream:
            while len(stream.positions) < partitions_count:
                await anyio.sleep(POSITIONS_PAUSE_SECONDS)
            self._is_ready.set()
            async for record in stream:
                self._take(record)

    def _take(self, record: Record) -> None:
        told = dict(record.headers).get(CORRELATION_ID)
        waiting = None if told is None else self._waiting.get(told.decode(errors="replace"))
        if waiting is not None and not waiting.done():
            waiting.set_result(record)
