"""Calls between the cores of a node in memory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import trio

from tpc_broker.errors import CallFailedError, CoreDownError, NotDeliveredError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tpc_broker.broker.payloads import Answer, MailboxHandler, Payload
    from tpc_broker.model import CoreId

CALL_TIMEOUT_S = 30.0


class MemoryMailboxes:
    """`Mailboxes` between the cores that are in `posts`. `lost`: methods whose calls from here never arrive."""

    _nursery: trio.Nursery

    def __init__(
        self, core_id: CoreId, posts: dict[CoreId, MemoryMailboxes], delay_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self.core_id = core_id
        self.lost: set[str] = set()
        self._delay_s = delay_s
        self._arrive_s: dict[CoreId, float] = {}
        self._posts = posts
        self._handlers: dict[str, MailboxHandler] = {}
        self._calls: set[trio.Event] = set()

    def open(self, nursery: trio.Nursery) -> None:
        """From now on it is answered."""
        self._nursery = nursery
        self._posts[self.core_id] = self

    def close(self) -> None:
        """The core is gone: so are the calls that it serves."""
        del self._posts[self.core_id]
        for event in self._calls:
            event.set()

    def serve(self, method: str, handler: MailboxHandler) -> None:
        self._handlers[method] = handler

    async def notify(self, core: CoreId, method: str, payload: Payload, blobs: Sequence[bytes] = ()) -> bool:
        try:
            await self.call(core, method, payload, blobs)
        except (NotDeliveredError, CoreDownError):
            return False
        return True

    async def call(
        self,
        core: CoreId,
        method: str,
        payload: Payload,
        blobs: Sequence[bytes] = (),
        *,
        timeout_ms: int | None = None,
    ) -> Answer:
        payload, given = json.loads(json.dumps(payload)), [bytes(blob) for blob in blobs]
        if core == self.core_id:
            return await self._handlers[method](core, payload, given)
        # Calls to one core arrive in their order.
        self._arrive_s[core] = max(self._arrive_s.get(core, 0.0), trio.current_time() + self._delay_s())
        await trio.sleep_until(self._arrive_s[core])
        if core not in self._posts or method in self.lost:
            raise NotDeliveredError(f"core {core} is not there, for {method}")
        with trio.move_on_after(CALL_TIMEOUT_S if timeout_ms is None else timeout_ms / 1000):
            answer = await self._posts[core].answer(self.core_id, method, payload, given)
            await trio.sleep(self._delay_s())
            return answer
        raise CoreDownError(f"core {core} did not answer {method}")

    async def answer(self, caller: CoreId, method: str, payload: Payload, blobs: list[bytes]) -> Answer:
        """In this core's task, which ends with it."""
        done = trio.Event()
        answers: list[Answer | Exception] = []

        async def serve() -> None:
            try:
                answers.append(await self._handlers[method](caller, payload, blobs))
            except Exception as error:  # noqa: BLE001  (it is the caller's to hear of)
                answers.append(error)
            done.set()

        self._calls.add(done)
        self._nursery.start_soon(serve)
        try:
            await done.wait()
        finally:
            self._calls.remove(done)
        if not answers:
            raise CoreDownError(f"core {self.core_id} went away during {method}")
        if isinstance(answers[0], Exception):
            raise CallFailedError(f"{method}: {answers[0]!r}") from answers[0]
        found, more = answers[0]
        return json.loads(json.dumps(found)), list(more)
