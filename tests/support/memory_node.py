"""A node's cores in memory: the real `Core` of each over ports without disk, ring, network or real time.

`MemoryNode` plays the supervisor: it starts cores, says who is up, crashes them and starts them again over what was
durable. `ask` sends one request through a core's dispatcher, encoded and decoded as on the wire. Time is trio's
(`autojump_clock`), chance has a seed: a run can be repeated.
"""

from __future__ import annotations

import json
import random
import uuid
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from tests.support.fake_disk import FakeDisk
from tests.support.memory_core import CoreFiles, MemoryStorage
from tests.support.memory_plane import MemoryPlane
from tpc_broker.auth.principals import NOBODY, Subject
from tpc_broker.broker.core import Core, CoreIdentity
from tpc_broker.errors import CallFailedError, CoreDownError, NotDeliveredError
from tpc_broker.kafka.api_keys import ApiKey, api
from tpc_broker.kafka.protocol import decode_response_frame, encode_request
from tpc_broker.metadata.listeners import Address, Listener, ListenerMode, SecurityProtocol
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import CoreId

BEGAN_MS = 1_700_000_000_000
CALL_TIMEOUT_S = 30.0
LIFE_S = 3600.0


class MemoryClock:
    """trio's, and a wall clock that can be set."""

    def __init__(self):
        self.wall_ahead_ms = 0

    def wall_ms(self):
        return BEGAN_MS + self.monotonic_ms() + self.wall_ahead_ms

    def monotonic_ms(self):
        return self.monotonic_ns() // 1_000_000

    def monotonic_ns(self):
        return round(trio.current_time() * 1e9)

    def cpu_ns(self):
        return 0


class MemoryChance:
    """`Chance` from a seed."""

    def __init__(self, source):
        self.uniform = source.uniform
        self._source = source

    def uuid(self):
        return uuid.UUID(int=self._source.getrandbits(128), version=4)


@dataclass(eq=False)
class MemoryRequest:
    """A request, and what became of it: `answer` is header and body, None without one."""

    connection: int
    api_key: int
    api_version: int
    correlation_id: int
    body: memoryview
    received_ns: int
    listener: int = 0
    fallback_reason: int = 0
    throttle_ms: int = 0
    client_id: str | None = "a-client"
    subject: Subject = NOBODY
    answer: bytes | None = None
    done: trio.Event = field(default_factory=trio.Event)


async def in_turn(function, /, *arguments):
    """`InThread`, without a thread."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


class MemoryConnections:
    """`Connections`. A connection is a number, open from its first request on. All are served, whoever they are; `let`
    keeps what is said of them.
    """

    def __init__(self):
        self.dispatcher = None
        self.is_accepting = self.takes_more = True
        self.open, self.closed, self.marks, self.let = set(), {}, {}, {}
        self.authenticated, self.tokens, self.requires_subject = set(), set(), False
        self.quotas, self.muted, self.time_spent = None, [], []
        self._waiting = set()

    def send(self, request):
        """As a client does. Nothing is taken any more during a drain."""
        if request.connection not in self.open:
            self.open.add(request.connection)
            self.dispatcher.on_opened(request.connection, f"127.0.0.1:{request.connection}", request.listener)
        if self.takes_more:
            self._waiting.add(request)
            self.dispatcher.on_request(request)

    def _end(self, request, answer):
        self._waiting.remove(request)
        request.answer = answer
        request.done.set()

    def answer(self, request, buffers):
        self._end(request, b"".join(map(bytes, buffers)))

    def answer_none(self, request):
        self._end(request, None)

    def close(self, connection, reason):
        if connection in self.open:
            self.open.remove(connection)
            self.closed[connection] = reason
            self.dispatcher.on_closed(connection, "local", "")

    def needs_authentication(self, listener):
        return listener in self.authenticated

    def let_in(self, connection, subject_number, deadline_ns):
        if connection in self.open:
            self.let[connection] = (subject_number, deadline_ns)

    def expect_tokens(self, connection, *, on):
        (self.tokens.add if on else self.tokens.discard)(connection)

    def require_subject(self, *, on):
        self.requires_subject = on

    def mark_of(self, connection):
        return self.marks.get(connection, 0)

    def set_quotas(self, windows, rows, addresses):
        self.quotas = windows, rows, addresses

    def mute(self, connection, milliseconds):
        self.muted.append((connection, milliseconds))

    def spent(self, connection, client_id, spent_ns):
        self.time_spent.append((connection, client_id, spent_ns))

    def stop_accepting(self):
        self.is_accepting = False

    def take_no_more(self):
        self.takes_more = False

    def close_all(self):
        for connection in list(self.open):
            self.close(connection, "shutdown")

    def unanswered(self):
        return len(self._waiting)

    def unsent_bytes(self):
        return 0


class MemoryMailboxes:
    """`Mailboxes` between the cores that are in `posts`. `lost`: methods whose calls from here never arrive."""

    def __init__(self, core_id, posts, delay_s=lambda: 0.0):
        self.core_id = core_id
        self.lost = set()
        self._delay_s, self._arrive_s = delay_s, {}
        self._posts, self._handlers = posts, {}
        self._nursery = None
        self._calls = set()

    def open(self, nursery):
        """From now on it is answered."""
        self._nursery = nursery
        self._posts[self.core_id] = self

    def close(self):
        """The core is gone: so are the calls that it serves."""
        del self._posts[self.core_id]
        for event in self._calls:
            event.set()

    def serve(self, method, handler):
        self._handlers[method] = handler

    async def notify(self, core, method, payload, blobs=()):
        try:
            await self.call(core, method, payload, blobs)
        except (NotDeliveredError, CoreDownError):
            return False
        return True

    async def call(self, core, method, payload, blobs=(), *, timeout_ms=None):
        payload, blobs = json.loads(json.dumps(payload)), [bytes(blob) for blob in blobs]
        if core == self.core_id:
            return await self._handlers[method](core, payload, blobs)
        # Calls to one core arrive in their order.
        self._arrive_s[core] = max(self._arrive_s.get(core, 0.0), trio.current_time() + self._delay_s())
        await trio.sleep_until(self._arrive_s[core])
        if core not in self._posts or method in self.lost:
            raise NotDeliveredError(f"core {core} is not there, for {method}")
        with trio.move_on_after(CALL_TIMEOUT_S if timeout_ms is None else timeout_ms / 1000):
            answer = await self._posts[core].answer(self.core_id, method, payload, blobs)
            await trio.sleep(self._delay_s())
            return answer
        raise CoreDownError(f"core {core} did not answer {method}")

    async def answer(self, caller, method, payload, blobs):
        """In this core's task, which ends with it."""
        done, answers = trio.Event(), []

        async def serve():
            try:
                answers.append(await self._handlers[method](caller, payload, blobs))
            except Exception as error:
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


def half_full_disk(folder):
    """Requests ask for its size, and write nothing."""
    disk = FakeDisk(1000, available_bytes=500)
    disk.put_folder(folder)
    return disk


class Life:
    """One core from a start to its end."""

    def __init__(self, node, number, nursery):
        self.connections = MemoryConnections()
        self.settings_told = []
        self.plane = MemoryPlane(self.connections, node.clock)
        self.storage = MemoryStorage(self.plane, node.files[number])
        self.mailboxes = MemoryMailboxes(number, node.posts, node.delay_s)
        self.nursery = nursery
        self.core = Core(
            CoreIdentity(number, node.cores, node.listeners, Path("/data"), "a-cluster", b"a secret"),
            node.configuration,
            connections=self.connections, plane=self.plane, storage=self.storage, disk=half_full_disk(Path("/data")),
            mailboxes=self.mailboxes, clock=node.clock, chance=MemoryChance(node.chance), nursery=nursery,
            on_settings=self.settings_told.append, in_thread=in_turn,
        )  # fmt: skip
        self.connections.dispatcher = self.core.dispatcher
        self.connections.authenticated = {
            number for number, listener in enumerate(node.listeners) if listener.security.authenticates
        }


class MemoryNode:
    """Use `running_node`."""

    def __init__(self, nursery, cores, settings, seed):
        self.cores = cores
        self.files = {CoreId(number): CoreFiles() for number in range(cores)}
        self.posts: dict[CoreId, MemoryMailboxes] = {}
        self.clock, self.chance = MemoryClock(), random.Random(seed)
        self.delay_s_max = self.write_s_max = 0.0
        addresses = tuple(Address("here", 9092 + number) for number in range(cores))
        modes = ListenerMode.PER_CORE_PORT, addresses, addresses
        self.listeners = (
            Listener("PLAINTEXT", *modes), Listener("LOGIN", *modes, SecurityProtocol.SASL_PLAINTEXT),
        )  # fmt: skip
        self.configuration = load_settings("", ("group.initial.rebalance.delay.ms=0", *settings))
        self.lives: dict[CoreId, Life] = {}
        self._nursery = nursery
        self._asked = 0

    def __getitem__(self, number) -> Core:
        return self.lives[CoreId(number)].core

    def delay_s(self):
        """Of a call between two cores."""
        return self.chance.uniform(0, self.delay_s_max)

    async def start(self, number):
        """A core, until it serves; the others hear of it."""
        self.lives[CoreId(number)] = life = await self._nursery.start(self._live, CoreId(number))
        await self._tell_who_is_up()
        return life

    async def _live(self, number, *, task_status):
        async with trio.open_nursery() as nursery:
            life = Life(self, number, nursery)
            life.core.serve_metadata_calls()
            life.mailboxes.open(nursery)
            nursery.start_soon(self._write, life.plane)
            await life.core.start()
            task_status.started(life)

    async def _write(self, plane):
        """Make durable what a slow disk has taken."""
        while True:
            plane.holds = plane.holds or self.write_s_max > 0
            await trio.sleep(self.chance.uniform(0, self.write_s_max) or 1)
            if self.write_s_max:
                plane.make_durable()

    async def _tell_who_is_up(self):
        up = sorted(self.lives)
        async with trio.open_nursery() as nursery:
            for life in list(self.lives.values()):
                nursery.start_soon(life.core.cores_changed, up)

    async def crash(self, number):
        """What was not durable is gone."""
        life = self.lives.pop(CoreId(number))
        life.mailboxes.close()
        life.nursery.cancel_scope.cancel()
        for files in self.files[number].values():
            files.log.crash()
        await self._tell_who_is_up()

    async def restart(self, number):
        await self.crash(number)
        return await self.start(number)

    def send(
        self, number, message, version=None, *, connection=1, client_id="a-client", listener=0, throttle_ms=0
    ):
        """A request by its message; in the newest version that is offered unless another is named."""
        key = ApiKey[_api_name(message)]
        version = api(key).last_version if version is None else version
        self._asked += 1
        body = memoryview(encode_request(key, version, message))
        request = MemoryRequest(
            connection, int(key), version, self._asked, body, self.clock.monotonic_ns(), listener, client_id=client_id,
            throttle_ms=throttle_ms,
        )  # fmt: skip
        self.lives[CoreId(number)].connections.send(request)
        return request

    async def ask(self, number, message, version=None, **client) -> Any:
        """The response's message; None when there is none, or the connection was closed. `client`: as of `send`."""
        request = self.send(number, message, version, **client)
        await request.done.wait()
        return answer_of(request)


def answer_of(request):
    if request.answer is None:
        return None
    correlation_id, message = decode_response_frame(request.api_key, request.api_version, request.answer)
    assert correlation_id == request.correlation_id
    return message


def _api_name(message):
    """`CREATE_TOPICS` of a CreateTopicsRequest."""
    words = type(message).__name__.removesuffix("Request")
    return "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in words).strip("_")


@asynccontextmanager
async def running_node(cores=2, settings=(), seed=1):
    """A node whose cores serve, for an hour of trio's time: what waits for ever fails at once where the clock jumps."""
    with trio.fail_after(LIFE_S):
        async with trio.open_nursery() as nursery:
            node = MemoryNode(nursery, cores, settings, seed)
            for number in range(cores):
                await node.start(number)
            yield node
            nursery.cancel_scope.cancel()
