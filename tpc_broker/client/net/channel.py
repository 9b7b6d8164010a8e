"""One connection to a broker for all tasks of a client: requests are sent ahead, answers come in the same order.

`start` is synchronous: it encodes and hands the request to the wire, and the answer comes to a function. `call` waits
for it. A cancelled `call` only stops waiting: the answer is read and dropped, and the connection stays whole.
The channel ends as a whole: with its first failure every request in flight fails with it, and those that come later.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

from tpc_broker.client.conversation import Conversation
from tpc_broker.client.errors import ClientError, UnreachableError
from tpc_broker.kafka import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.client.net.wires import Wire
    from tpc_broker.client.requests import Node
    from tpc_broker.kafka import ApiKey

SIZE_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 1024 * 1024 * 1024
READ_BYTES: Final = 64 * 1024
"""Of one receive; a frame that is longer is received where it is to stay."""


class Channel:
    """``tasks`` runs `run`. ``request_timeout_seconds`` without an answer to the oldest request ends the channel."""

    def __init__(self, node: Node, broker_id: int, wire: Wire, client_id: str, request_timeout_seconds: float) -> None:
        self.node = node
        self.broker_id = broker_id
        """-1: it is not known, the address is one that was given to begin with."""
        self.expires_at = float("inf")
        """On `time.monotonic`: the broker will end the session soon."""
        self._wire = wire
        self._conversation = Conversation(client_id)
        self._timeout_seconds = request_timeout_seconds
        self._waiting: deque[tuple[Callable[[Any], None], float]] = deque()
        self._failure: ClientError | None = None
        self._something_left = anyio.Event()

    @property
    def is_closed(self) -> bool:
        return self._failure is not None

    @property
    def in_flight_count(self) -> int:
        return len(self._waiting)

    def has(self, key: ApiKey) -> bool:
        return self._conversation.knows(key)

    def version(self, key: ApiKey) -> int:
        """The version in which an API is used here. `ClientError`: there is none."""
        return self._conversation.version(key)

    def start(self, key: ApiKey, version: int, message: Any, on_answer: Callable[[Any], None]) -> None:
        """Send a request. ``on_answer`` takes the answer or the `ClientError` that came in its place: once, never from
        within this call, and it must not raise. A closed channel raises its failure.
        """
        if self._failure is not None:
            raise self._failure
        self._send(self._conversation.request(key, version, message), on_answer)

    async def call(self, key: ApiKey, make: Callable[[int], Any], version_max: int | None = None) -> Any:
        """The answer to the message that ``make`` gives for the version that is used here, ``version_max`` at most."""
        if self._failure is not None:
            raise self._failure
        version = self._conversation.version(key)
        if version_max is not None:
            version = min(version, version_max)
        return await self._answer_to(self._conversation.request(key, version, make(version)))

    async def hello(self) -> None:
        """The first request: agree about versions."""
        self._conversation.agree(await self._answer_to(self._conversation.hello()))

    async def _answer_to(self, buffers: list[Any]) -> Any:
        answered = anyio.Event()
        answer: list[Any] = []

        def on_answer(given: Any) -> None:
            answer.append(given)
            answered.set()

        self._send(buffers, on_answer)
        await answered.wait()
        if isinstance(answer[0], ClientError):
            raise answer[0]
        return answer[0]

    def _send(self, buffers: list[Any], on_answer: Callable[[Any], None]) -> None:
        self._waiting.append((on_answer, time.monotonic() + self._timeout_seconds))
        try:
            if not self._wire.write(buffers):
                self._something_left.set()
        except ClientError as error:
            self._waiting.pop()
            self.close(error)
            raise

    def close(self, why: ClientError | None = None) -> None:
        """Everything in flight fails."""
        if self._failure is not None:
            return
        self._failure = why or UnreachableError(f"the connection to {self.node.host}:{self.node.port} is closed")
        self._wire.close()
        self._something_left.set()
        while self._waiting:
            self._waiting.popleft()[0](self._failure)

    def check_age(self, now: float) -> None:
        """End the channel when its oldest request has waited too long."""
        if self._waiting and self._waiting[0][1] <= now:
            self.close(self._broken(f"no answer within {self._timeout_seconds:g} s"))

    async def run(self) -> None:
        """Read and write until the channel is closed, here or by the broker."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write_rest)
                await self._read()
                tasks.cancel_scope.cancel()
        finally:
            self.close()

    async def _write_rest(self) -> None:
        while self._failure is None:
            await self._something_left.wait()
            self._something_left = anyio.Event()
            try:
                await self._wire.drain()
            except ClientError as error:
                self.close(error)
            except anyio.ClosedResourceError:
                return

    async def _read(self) -> None:
        buffer = bytearray(READ_BYTES)
        view = memoryview(buffer)
        begin = end = 0
        try:
            while self._failure is None:
                while end - begin >= SIZE_BYTES:
                    size = int.from_bytes(view[begin : begin + SIZE_BYTES], "big", signed=True)
                    if not 0 < size <= FRAME_BYTES_MAX:
                        raise self._broken(f"a frame of {size} bytes")
                    if begin + SIZE_BYTES + size > READ_BYTES:
                        frame = memoryview(bytearray(size))
                        there = min(size, end - begin - SIZE_BYTES)
                        frame[:there] = view[begin + SIZE_BYTES : begin + SIZE_BYTES + there]
                        begin += SIZE_BYTES + there
                        await self._fill(frame, there)
                        self._take(frame)
                        continue
                    if end - begin < SIZE_BYTES + size:
                        break
                    begin += SIZE_BYTES
                    self._take(memoryview(bytes(view[begin : begin + size])))
                    begin += size
                if begin == end:
                    begin = end = 0
                elif begin:
                    view[: end - begin] = bytes(view[begin:end])
                    begin, end = 0, end - begin
                end += await self._receive(view[end:])
        except ClientError as error:
            self.close(error)
        except anyio.ClosedResourceError:
            self.close()

    async def _fill(self, frame: memoryview, there: int) -> None:
        while there < len(frame):
            there += await self._receive(frame[there:])

    async def _receive(self, into: memoryview) -> int:
        count = await self._wire.receive_into(into)
        if not count:
            raise self._broken("the broker closed it")
        return count

    def _take(self, frame: memoryview) -> None:
        if not self._waiting:
            raise self._broken("an answer that nothing was asked for")
        try:
            answer = self._conversation.answer(frame)
        except (CodecError, ClientError) as error:
            raise self._broken(f"an answer that cannot be read: {error}") from error
        self._waiting.popleft()[0](answer)

    def _broken(self, why: object) -> UnreachableError:
        return UnreachableError(f"the connection to {self.node.host}:{self.node.port} broke: {why}")
