"""Whose request is begun when: a share of them each turn, fair over connections, members of groups first."""

from __future__ import annotations

from collections import Counter
from functools import partial
from types import SimpleNamespace

import pytest
import trio
import trio.testing

from tests.support.definitions import encode_request
from tpc_broker.broker import dispatch
from tpc_broker.broker.dispatch import Dispatcher
from tpc_broker.broker.handlers.table import PROMPT_APIS
from tpc_broker.broker.log_limiter import LogLimiter
from tpc_broker.broker.ports import ProduceFallback
from tpc_broker.kafka.api_keys import ApiKey

LONG_NS = 2 * dispatch.SHARE_NS


class Clock:
    """Goes on while a handler works, and at no other time."""

    def __init__(self):
        self.now_ns = 0

    def monotonic_ns(self):
        return self.now_ns

    cpu_ns = monotonic_ns

    def work(self, duration_ns):
        self.now_ns += duration_ns


class SlowHandlers:
    """A dispatcher with handlers that take long, and what came of it."""

    def __init__(self, nursery, handlers, first_levels=None):
        self.answered, self.closed, self.asked_c, self.clock = [], [], [], Clock()
        connections = SimpleNamespace(
            answer=lambda request, _parts: self.answered.append(request), answer_none=lambda _request: None,
            close=lambda connection, _reason: self.closed.append(connection),
            needs_authentication=lambda _listener: False,
        )  # fmt: skip
        disk = SimpleNamespace(poll_ring=lambda: None)
        self.image = SimpleNamespace(level=2)
        core = SimpleNamespace(
            view=SimpleNamespace(image=self.image), connections=connections, disk=disk,
            access=SimpleNamespace(authorizer=None), produce_now=self.produce_now, clock=self.clock,
            quotas=SimpleNamespace(counts_time=False, told=lambda _request, _version, response: response),
            log_limiter=LogLimiter(lambda: self.clock.now_ns / 1e9),
        )
        bound = {key: partial(handler, core) for key, handler in handlers.items()}
        self.dispatcher = Dispatcher(core, bound, PROMPT_APIS, nursery, first_levels or {})

    def send(self, connection, api_key, body_values=None, version=0, fallback_reason=0):
        body = encode_request(api_key.name.title().replace("_", ""), version, body_values or {}, 1, None)[10:]
        request = SimpleNamespace(
            connection=connection, api_key=int(api_key), api_version=version, correlation_id=1, body=memoryview(body),
            client_id=None, fallback_reason=fallback_reason,
        )  # fmt: skip
        self.dispatcher.on_request(request)
        return request

    def produce_now(self, request):
        self.asked_c.append(request)
        return False

    def open(self, count):
        for connection in range(count):
            self.dispatcher.on_opened(connection, f"127.0.0.1:{connection}", 0)


HEARTBEAT = {"GroupId": "g", "GenerationId": 1, "MemberId": "m"}


def takes_long(core, _request, _message):
    core.clock.work(LONG_NS)


async def turns_until(condition):
    turns = 0
    while not condition():
        await trio.lowlevel.checkpoint()
        turns += 1
        assert turns < 100_000
    return turns


async def test_an_api_of_a_later_level_closes_the_connection_until_the_cluster_is_there():
    async with trio.open_nursery() as nursery:
        handlers = {ApiKey.LIST_GROUPS: lambda *_asked: None, ApiKey.HEARTBEAT: takes_long}
        world = SlowHandlers(nursery, handlers, {ApiKey.LIST_GROUPS: 5})
        world.open(4)
        for connection, level, api_key in ((0, 4, ApiKey.HEARTBEAT), (1, 4, ApiKey.LIST_GROUPS)):
            world.image.level = level
            world.send(connection, api_key, HEARTBEAT if api_key == ApiKey.HEARTBEAT else None)
            await trio.testing.wait_all_tasks_blocked()
        assert world.closed == [1]
        for connection, level in ((2, 5), (3, 6)):
            world.image.level = level
            world.send(connection, ApiKey.LIST_GROUPS)
            await trio.testing.wait_all_tasks_blocked()
        assert world.closed == [1]
        assert world.dispatcher.statistics().refused == 1
        nursery.cancel_scope.cancel()


async def test_a_turn_begins_a_share_however_many_came():
    async with trio.open_nursery() as nursery:
        seen = Counter()

        def handle(core, request, _message):
            seen[request.connection] += 1
            core.clock.work(LONG_NS)

        world = SlowHandlers(nursery, {ApiKey.LIST_GROUPS: handle})
        world.open(50)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            for connection in range(50):
                world.send(connection, ApiKey.LIST_GROUPS)
        assert seen.total() == 1, "the rest waits, and the loop turns"
        while not world.dispatcher.is_idle():
            before = seen.total()
            await trio.lowlevel.checkpoint()
            assert seen.total() <= before + 2, "a turn's share, or the next one's too: tasks run in any order"
            assert max(seen.values()) - min(seen[one] for one in range(50)) <= 2, "one after the other"
        assert seen.total() == 150
        nursery.cancel_scope.cancel()


async def test_the_data_plane_is_not_asked_again_for_what_only_python_decides():
    """It would decode the request once more, and leave it for the same reason."""
    handled = []
    body = {"TransactionalId": None, "Acks": 1, "TimeoutMs": 1, "TopicData": []}
    for reason in ProduceFallback:
        async with trio.open_nursery() as nursery:
            world = SlowHandlers(nursery, {ApiKey.PRODUCE: lambda _core, *asked: handled.append(asked)})
            world.open(1)
            request = world.send(0, ApiKey.PRODUCE, body, version=3, fallback_reason=reason)
            await turns_until(lambda: handled)
            is_final = reason in {1, 2, 3, 4, 5, 9, 11, 12}
            assert world.asked_c == ([] if is_final else [request]), reason
            assert handled.pop() == (request, None), "it is not decoded here either"
            nursery.cancel_scope.cancel()


async def test_members_of_groups_go_first_and_nobody_starves():
    async with trio.open_nursery() as nursery:
        order = []

        def note(name):
            def handle(core, _request, _message):
                order.append(name)
                core.clock.work(LONG_NS // 4)

            return handle

        world = SlowHandlers(nursery, {ApiKey.LIST_GROUPS: note("slow"), ApiKey.HEARTBEAT: note("prompt")})
        world.open(600)
        await trio.testing.wait_all_tasks_blocked()
        for connection in range(500):
            world.send(connection, ApiKey.LIST_GROUPS)
        begun = len(order)
        for connection in range(500, 600):
            world.send(connection, ApiKey.HEARTBEAT, HEARTBEAT)
        await turns_until(lambda: order.count("prompt") == 100)
        assert order.index("prompt") == begun
        assert 20 <= order.count("slow") < 400
        nursery.cancel_scope.cancel()


async def test_where_one_of_a_group_s_takes_a_whole_share_the_others_have_every_other_one():
    async with trio.open_nursery() as nursery:
        order = []

        def note(name):
            def handle(core, _request, _message):
                order.append(name)
                core.clock.work(LONG_NS)

            return handle

        world = SlowHandlers(nursery, {ApiKey.LIST_GROUPS: note("slow"), ApiKey.HEARTBEAT: note("prompt")})
        world.open(80)
        await trio.testing.wait_all_tasks_blocked()
        for connection in range(40):
            world.send(connection, ApiKey.LIST_GROUPS)
        del order[:]
        for connection in range(40, 80):
            world.send(connection, ApiKey.HEARTBEAT, HEARTBEAT)
        await turns_until(lambda: len(order) >= 40)
        assert order[:40] == ["prompt", "slow"] * 20
        nursery.cancel_scope.cancel()


async def test_of_handlers_that_wait_as_many_are_begun_as_there_is_time_for(monkeypatch):
    monkeypatch.setattr(dispatch, "TURN_CPU_NS_MAX", 2_000_000)
    async with trio.open_nursery() as nursery:
        begun = []

        async def handle(core, request, _message):
            begun.append(request.connection)
            core.clock.work(LONG_NS)
            await trio.lowlevel.checkpoint()

        world = SlowHandlers(nursery, {ApiKey.LIST_GROUPS: handle})
        world.open(1000)
        await trio.testing.wait_all_tasks_blocked()
        for connection in range(1000):
            world.send(connection, ApiKey.LIST_GROUPS)
        in_a_turn, before = [], 0
        while len(begun) < 400:
            await trio.lowlevel.checkpoint()
            in_a_turn.append(len(begun) - before)
            before = len(begun)
        assert max(in_a_turn) <= 2 * dispatch.STARTS_FIRST
        assert max(in_a_turn[-3:]) <= 2
        nursery.cancel_scope.cancel()


async def test_a_connection_s_requests_are_answered_in_order_and_those_of_a_closed_one_forgotten():
    async with trio.open_nursery() as nursery:
        async def wait(_core, request, _message):
            await trio.lowlevel.checkpoint()
            return

        world = SlowHandlers(nursery, {ApiKey.LIST_GROUPS: takes_long, ApiKey.HEARTBEAT: wait})
        world.open(3)
        begun = []
        world.dispatcher.respond = lambda request, _response: begun.append(request)
        await trio.testing.wait_all_tasks_blocked()
        of_first = [
            world.send(0, *which)
            for which in ((ApiKey.HEARTBEAT, HEARTBEAT), (ApiKey.LIST_GROUPS,), (ApiKey.HEARTBEAT, HEARTBEAT)) * 3
        ]
        of_second = [world.send(1, ApiKey.LIST_GROUPS) for _ in range(5)]
        world.dispatcher.on_closed(1, "reset", "")
        await turns_until(world.dispatcher.is_idle)
        await trio.testing.wait_all_tasks_blocked()
        assert [request for request in begun if request.connection == 0] == of_first
        assert [request for request in begun if request.connection == 1] == of_second[:1]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("reason", "kept"), [("peer closed", 2), ("reset", 2), ("refused", 0), ("session over", 0)])
async def test_produces_of_a_client_that_has_gone_are_carried_out(reason, kept):
    """Who sends with acks=0 need not stay. Whom the broker has cut off gets nothing more."""
    async with trio.open_nursery() as nursery:
        handled = []
        handlers = {
            ApiKey.PRODUCE: lambda _core, request, _message: handled.append(request),
            ApiKey.LIST_GROUPS: takes_long,
        }
        world = SlowHandlers(nursery, handlers)
        world.open(1)
        await trio.testing.wait_all_tasks_blocked()
        body = {"TransactionalId": None, "Acks": 0, "TimeoutMs": 1, "TopicData": []}
        world.send(0, ApiKey.LIST_GROUPS)
        asks_rights = {"version": 3, "fallback_reason": ProduceFallback.AUTHORIZE}
        sent = [world.send(0, ApiKey.PRODUCE, body, **asks_rights), world.send(0, ApiKey.LIST_GROUPS),
                world.send(0, ApiKey.PRODUCE, body, **asks_rights)]  # fmt: skip
        subject = world.dispatcher.subject_of(0)
        assert not handled, "they stand in line"
        world.dispatcher.on_closed(0, reason, "")
        await trio.testing.wait_all_tasks_blocked()
        assert handled == [sent[0], sent[2]][:kept]
        assert all(one.subject == subject for one in handled)
        assert len(world.answered) == 0
        nursery.cancel_scope.cancel()


async def test_caught_up_is_when_members_were_heard():
    async with trio.open_nursery() as nursery:
        heard = []

        def handle(core, request, _message):
            heard.append(request)
            core.clock.work(LONG_NS)

        world = SlowHandlers(nursery, {ApiKey.HEARTBEAT: handle, ApiKey.LIST_GROUPS: takes_long})
        world.open(60)
        await trio.testing.wait_all_tasks_blocked()
        for connection in range(40):
            world.send(connection, ApiKey.LIST_GROUPS)
        for connection in range(40, 60):
            world.send(connection, ApiKey.HEARTBEAT, HEARTBEAT)
        await world.dispatcher.wait_caught_up()
        assert len(heard) == 20
        assert not world.dispatcher.is_idle(), "the others are not waited for"
        nursery.cancel_scope.cancel()
