"""One connection to a broker for all tasks of a client: requests are sent ahead, answers come in the same order.

`start` is synchronous: it encodes and hands the request to the wire, and the answer comes to a function. `call` waits
for it. A cancelled `call` only stops waiting: the answer is read and dropped, and the connection stays whole.
The channel ends as a whole: with its first failure every request in flight fails with it, and those that come later.

Requests are held back, in their order, while the broker wants the client to be silent (throttling, KIP-219) and while a
session is renewed (KIP-368), which happens on the same connection: its users notice a delay, and nothing else.
"""

from __future__ import annotations

import random
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio

from tpc_broker.client.conversation import Conversation, Request
from tpc_broker.client.errors import AuthenticationError, ClientError, RefusedError, UnreachableError, UnsupportedError
from tpc_broker.client.introduction import FOREVER, introduction, renewal
from tpc_broker.client.net.frames import Frames
from tpc_broker.client.net.loops import event_maker
from tpc_broker.client.net.throttling import throttles_client
from tpc_broker.client.net.wires import pushed
from tpc_broker.kafka import CodecError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from anyio.abc import TaskGroup

    from tpc_broker.client.introduction import Ask
    from tpc_broker.client.net.loops import Event
    from tpc_broker.client.net.wires import Wire
    from tpc_broker.client.requests import Node
    from tpc_broker.client.sasl import Login
    from tpc_broker.kafka import ApiKey
    from tpc_broker.kafka.protocol import BlobRequest

    MakeLogin: TypeAlias = Callable[[], Awaitable[Login]]

RENEWAL_SHARES: Final = (0.75, 0.85)
"""A session that the broker limits is renewed after a share of its life between these."""
RENEWAL_SECONDS_MIN: Final = 1.1
"""Brokers take no renewal within a second of the login before."""
LAST_LOGIN_SHARE: Final = 0.95
"""And given up after this one, when there was no token."""
LOGIN_PAUSE_SECONDS: Final = 0.1


class _Told(Request):
    """Its answer comes to a function."""

    __slots__ = ("_on_answer",)

    def __init__(self, key: ApiKey, version: int, message: Any, on_answer: Callable[[Any], None]) -> None:
        super().__init__(key, version, message)
        self._on_answer = on_answer

    def answered(self, given: Any) -> None:
        self._on_answer(given)


class _Awaited(Request):
    """Its answer is waited for."""

    __slots__ = ("_came", "given")

    def __init__(self, key: ApiKey, version: int, message: Any, came: Event) -> None:
        super().__init__(key, version, message)
        self._came = came
        self.given: Any = None

    def answered(self, given: Any) -> None:
        self.given = given
        self._came.set()

    async def wait(self) -> Any:
        await self._came.wait()
        if isinstance(self.given, ClientError):
            raise self.given.again()
        return self.given


class Channel:
    """``request_seconds`` without an answer to the oldest request ends the channel. `run` is to be run meanwhile."""

    def __init__(self, node: Node, broker_id: int, wire: Wire, client_id: str, request_seconds: float) -> None:
        self.node = node
        self.broker_id = broker_id
        """-1: it is not known, the address is one that was given to begin with."""
        self.used_at = time.monotonic()
        """When something was last sent or received."""
        self._wire = wire
        self._conversation = Conversation(client_id)
        self._request_seconds = request_seconds
        self._in_flight = self._conversation.in_flight
        self._held: deque[Request] | None = None
        """None: nothing is held back."""
        self._is_renewing = False
        self.silent_until = 0.0
        """Until when the broker wants nothing more: what is sent meanwhile leaves later. 0: it takes what comes."""
        self._since = 0.0
        """Since when the oldest request in flight waits for nothing but its own answer."""
        self._failure: ClientError | None = None
        self.is_closed = False
        self._something_left = anyio.Event()
        self._tasks: TaskGroup | None = None
        self._new_event = event_maker()

    def __str__(self) -> str:
        """For errors: who it is to."""
        place = f"{self.node.host}:{self.node.port}"
        return place if self.broker_id < 0 else f"broker {self.broker_id} at {place}"

    @property
    def in_flight_count(self) -> int:
        """With those that are held back."""
        return len(self._in_flight) + (len(self._held) if self._held is not None else 0)

    def has(self, key: ApiKey) -> bool:
        return self._conversation.knows(key)

    def version(self, key: ApiKey) -> int:
        """The version in which an API is used here. `UnsupportedError`: there is none."""
        try:
            return self._conversation.version(key)
        except UnsupportedError as error:
            raise UnsupportedError(f"{self}: {error}") from None

    def refusal(self, code: int, what: str, message: str | None = None) -> RefusedError:
        """Of this broker, with its own words where it has any."""
        return RefusedError(code, f"{what} at {self}: {message}" if message else f"{what} at {self}")

    def start(
        self, key: ApiKey, version: int, message: Any, on_answer: Callable[[Any], None], wait_seconds: float = 0.0
    ) -> None:
        """Send a request. ``on_answer`` takes the answer or the `ClientError` that came in its place: once, never from
        within this call, and it must not raise. A closed channel raises its failure.

        ``wait_seconds``: how long the broker is asked to wait by itself, on top of ``request_seconds``.
        """
        self.ask(_Told(key, version, message, on_answer), wait_seconds)

    def ask(self, request: Request, wait_seconds: float = 0.0) -> None:
        """The same for a request that knows by itself what becomes of its answer."""
        if self._failure is not None:
            raise self._failure.again()
        request.wait_seconds = wait_seconds
        if self._held is not None:
            self._held.append(request)
        else:
            self._send(request)

    def prepare(self, key: ApiKey, version: int, make: Callable[[bytes], Any]) -> BlobRequest:
        """For requests that differ in a blob alone; ``make`` gives the message for one."""
        return self._conversation.prepare(key, version, make)

    async def call(
        self, key: ApiKey, make: Callable[[int], Any], version_max: int | None = None, *, wait_seconds: float = 0.0
    ) -> Any:
        """The answer to the message that ``make`` gives for the version that is used here, ``version_max`` at most."""
        version = self.version(key)
        if version_max is not None:
            version = min(version, version_max)
        request = _Awaited(key, version, make(version), self._new_event())
        self.ask(request, wait_seconds)
        return await request.wait()

    def _send(self, request: Request) -> None:
        buffers = self._conversation.request(request)
        try:
            if not self._wire.write(buffers):
                self._something_left.set()
        except ClientError as error:
            self._in_flight.pop()
            self.close(self._named(error))
            raise self._failed() from error
        if len(self._in_flight) == 1:
            self._since = self.used_at = time.monotonic()

    async def introduce(self, make_login: MakeLogin | None = None) -> None:
        """What is done first: agree about versions, log in. The session is renewed in time, with a new login."""
        login = None if make_login is None else await make_login()
        seconds = await self._carry_out(introduction(self._conversation, str(self), login))
        if make_login is not None and seconds < FOREVER and self._tasks is not None:
            self._tasks.start_soon(self._renew, make_login, seconds)

    async def _renew(self, make_login: MakeLogin, seconds: float) -> None:
        try:
            while seconds < FOREVER:
                begun = time.monotonic()
                await anyio.sleep(max(seconds * random.uniform(*RENEWAL_SHARES), RENEWAL_SECONDS_MIN))
                login = await self._new_login(make_login, begun + seconds * LAST_LOGIN_SHARE)
                self._is_renewing, self._held = True, self._held or deque()
                seconds = await self._carry_out(renewal(self._conversation, str(self), login))
                self._is_renewing = False
                self._release()
        except ClientError as error:
            self.close(error)

    async def _new_login(self, make_login: MakeLogin, until: float) -> Login:
        """Who gives tokens may be away for a while."""
        pause = LOGIN_PAUSE_SECONDS
        while True:
            try:
                return await make_login()
            except AuthenticationError:
                if time.monotonic() + pause >= until:
                    raise
            await anyio.sleep(pause)
            pause *= 2

    async def _carry_out(self, machine: Generator[Ask, Any, float]) -> float:
        try:
            asked = next(machine)
            while True:
                asked = machine.send(await self._ask_first(asked))
        except StopIteration as ended:
            return float(ended.value)

    async def _ask_first(self, asked: Ask) -> Any:
        """Before everything that is held back."""
        if self._failure is not None:
            raise self._failure.again()
        request = _Awaited(asked.key, asked.version, asked.message, self._new_event())
        request.wait_seconds = 0.0
        self._send(request)
        return await request.wait()

    def _be_silent(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        is_news = self.silent_until == 0.0
        self.silent_until = max(until, self.silent_until)
        if self._held is None:
            self._held = deque()
        if is_news and self._tasks is not None:
            self._tasks.start_soon(self._speak_again)

    async def _speak_again(self) -> None:
        while (left := self.silent_until - time.monotonic()) > 0:
            await anyio.sleep(left)
        self.silent_until = 0.0
        self._release()

    def _release(self) -> None:
        """Send what was held back, unless there is another reason to hold it."""
        if self._is_renewing or self.silent_until or self._failure is not None:
            return
        held, self._held = self._held or deque(), None
        self._since = time.monotonic()
        while held:
            request = held.popleft()
            try:
                if self._failure is not None:
                    raise self._failed()
                self._send(request)
            except (ClientError, CodecError) as error:
                request.answered(error if isinstance(error, ClientError) else ClientError(str(error)))

    def close(self, why: ClientError | None = None) -> None:
        """Everything in flight fails."""
        if self._failure is not None:
            return
        self._failure = why or UnreachableError(f"the connection to {self} is closed")
        self.is_closed = True
        self._wire.close()
        self._something_left.set()
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()
        unanswered = [*self._in_flight, *(self._held or ())]
        self._in_flight.clear()
        self._held = None
        for request in unanswered:
            request.answered(self._failure)

    def check_age(self, now: float) -> None:
        """End the channel when its oldest request has waited too long."""
        if not self._in_flight:
            return
        oldest = self._in_flight[0]
        seconds = self._request_seconds + oldest.wait_seconds
        if max(self._since, self.silent_until) + seconds <= now:
            name = oldest.key.name.lower()
            self.close(self._broken(f"no answer to {name} within {seconds:g} s (request_seconds)"))

    async def run(self) -> None:
        """Read and write until the channel is closed, here or by the broker."""
        try:
            if self._failure is None:
                async with anyio.create_task_group() as self._tasks:
                    self._tasks.start_soon(self._write_rest)
                    await self._read()
                    self._tasks.cancel_scope.cancel()
        finally:
            self.close()

    async def _write_rest(self) -> None:
        while self._failure is None:
            await self._something_left.wait()
            self._something_left = anyio.Event()
            try:
                await self._wire.drain()
            except ClientError as error:
                self.close(self._named(error))
            except anyio.ClosedResourceError:
                return

    async def _read(self) -> None:
        try:
            await pushed(self._wire, Frames(self._take))
            self.close(self._broken("the broker closed it"))
        except (UnreachableError, AuthenticationError) as error:
            self.close(self._named(error))
        except ClientError as error:
            self.close(self._broken(error))
        except anyio.ClosedResourceError:
            self.close()

    def _take(self, frame: Any) -> None:
        if self._failure is not None:
            return
        if not self._in_flight:
            raise self._broken("an answer that nothing was asked for")
        request = self._in_flight[0]
        try:
            answer = request.read(frame)
        except (CodecError, ClientError) as error:
            raise self._broken(f"an answer that cannot be read: {error}") from error
        self._in_flight.popleft()
        self._since = self.used_at = time.monotonic()
        if answer.__class__ is not tuple:  # numbers of an expected answer, which says nothing of this
            throttle_ms = getattr(answer, "throttle_time_ms", 0)
            if throttle_ms > 0 and throttles_client(request.key, request.version):
                self._be_silent(throttle_ms / 1000)
        request.answered(answer)

    def _failed(self) -> ClientError:
        assert self._failure is not None
        return self._failure.again()

    def _named(self, error: ClientError) -> ClientError:
        """A wire's error, with the broker's id."""
        made = error.again()
        made.args = (str(error).replace(f"{self.node.host}:{self.node.port}", str(self), 1),)
        return made if str(self) not in str(error) else error

    def _broken(self, why: object) -> UnreachableError:
        return UnreachableError(f"the connection to {self} broke: {why}")
