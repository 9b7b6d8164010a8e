"""Who a connection is to the broker, and what C is told of it."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import trio

from tests.broker.test_dispatch import SlowHandlers
from tests.support.memory_node import MemoryConnections
from tpc_broker.auth.acls import normal_host
from tpc_broker.auth.principals import ANONYMOUS, NOBODY, USER, Principal, Subject
from tpc_broker.broker import forwarded
from tpc_broker.broker.access import AccessControl
from tpc_broker.engine.client_connections import subject_of_names
from tpc_broker.kafka.api_keys import ApiKey

OPEN, STRICT = 0, 1
ALICE = Subject(Principal(USER, "alice"), "10.0.0.1")


@pytest.fixture
async def world():
    """A dispatcher behind an open listener and one that asks for authentication."""
    async with trio.open_nursery() as nursery:
        bench = SlowHandlers(nursery, {ApiKey.HEARTBEAT: lambda *_asked: None})
        dispatcher, connections = bench.dispatcher, MemoryConnections()
        core = dispatcher._core
        core.connections, core.dispatcher = connections, dispatcher
        core.settings = SimpleNamespace(has_authorizer=False)
        core.plane = SimpleNamespace(forget_answers=lambda _api_key: None)
        core.authentication = SimpleNamespace(session_of=lambda _listener: None)
        core.plane = Mock()
        core.access = access = AccessControl(core)
        connections.authenticated = {STRICT}
        connections.open = {1, 2, 3, 4}
        yield SimpleNamespace(dispatcher=dispatcher, connections=connections, access=access)
        nursery.cancel_scope.cancel()


def told(world):
    """The subjects that C was told, by connection."""
    return {each: world.access.subject_of_number(number) for each, (number, _until) in world.connections.let.items()}


async def test_without_rights_c_is_told_nothing_of_those_that_need_not_say_who_they_are(world):
    world.dispatcher.on_opened(1, "10.0.0.1:5000", OPEN)
    assert world.dispatcher.subject_of(1) == Subject(ANONYMOUS, "10.0.0.1")
    assert not told(world)
    assert not world.connections.requires_subject


async def test_who_has_to_say_who_it_is_is_nobody_until_it_is_let_in(world):
    world.dispatcher.on_opened(1, "10.0.0.1:5000", STRICT)
    assert world.dispatcher.subject_of(1) == NOBODY
    world.access.authorizer = SimpleNamespace()
    assert not told(world), "not by the rights that everybody has"
    world.dispatcher.let_in(1, ALICE, 77)
    assert world.dispatcher.subject_of(1) == ALICE
    assert world.connections.let[1] == (world.access.number_of(ALICE), 77)
    world.dispatcher.let_in(1, ALICE, 99)
    assert world.connections.let[1] == (world.access.number_of(ALICE), 99)


async def test_a_stream_is_its_clients_at_whichever_listener(world):
    for connection, listener in ((1, OPEN), (2, STRICT)):
        world.dispatcher.on_opened(connection, "core 1:5", listener, ALICE)
        assert world.dispatcher.subject_of(connection) == ALICE
    assert told(world) == {1: ALICE, 2: ALICE}


async def test_when_rights_begin_to_be_asked_for_c_learns_who_everybody_is(world):
    for connection, listener in ((1, OPEN), (2, STRICT), (3, STRICT)):
        world.dispatcher.on_opened(connection, f"10.0.0.{connection}:5000", listener)
    world.dispatcher.let_in(3, ALICE, 77)
    world.access.authorizer = SimpleNamespace()
    assert world.connections.requires_subject
    assert told(world) == {1: Subject(ANONYMOUS, "10.0.0.1"), 3: ALICE}
    assert world.connections.let[3][1] == 77, "its session ends when it did"
    world.dispatcher.on_opened(4, "10.0.0.4:5000", OPEN)
    assert told(world)[4] == Subject(ANONYMOUS, "10.0.0.4")
    world.connections.let.clear()
    world.access.authorizer = SimpleNamespace()  # other rules
    assert not told(world)
    world.access.authorizer = None
    assert not world.connections.requires_subject


async def test_one_that_is_gone_is_let_in_no_more(world):
    world.dispatcher.on_opened(1, "10.0.0.1:5000", STRICT)
    world.dispatcher.on_closed(1, "reset", "")
    world.dispatcher.let_in(1, ALICE, 0)
    assert world.dispatcher.subject_of(1) == NOBODY
    assert not told(world)


@pytest.mark.parametrize(
    ("principal", "host", "expected"),
    [
        (b"User:alice", b"10.0.0.1", ALICE),
        (b"User:a:b", b"", Subject(Principal(USER, "a:b"), "")),
        ("User:ä".encode(), b"::1", Subject(Principal(USER, "ä"), "::1")),
        (b"User:\xff", b"h", NOBODY),
        (b"User:alice", b"\xff", NOBODY),
        (b"alice", b"h", NOBODY),
        (b":alice", b"h", NOBODY),
        (b"User:", b"h", NOBODY),
    ],
)
def test_what_another_core_says(principal, host, expected):
    assert subject_of_names(principal, host) == expected


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("10.0.0.1:5000", "10.0.0.1"),
        ("[::1]:5000", "::1"),
        ("[::ffff:10.0.0.1]:5000", "10.0.0.1"),
        ("[2001:DB8:0:0:0:0:0:1]:5000", "2001:db8::1"),
        ("unix", ""),
    ],
)
async def test_the_host_is_one_that_rules_can_name(world, peer, host):
    """Also one that came by IPv4 to a socket of IPv6: a rule that denies its address denies it."""
    world.dispatcher.on_opened(1, peer, OPEN)
    assert normal_host(world.dispatcher.subject_of(1).host) == normal_host(host)
    assert "[" not in world.dispatcher.subject_of(1).host


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, Subject(ANONYMOUS, "10.0.0.1")),
        ({"principal": list(ALICE.principal)}, ALICE),
        ({"principal": list(ALICE.principal), "host": "10.0.0.2"}, Subject(ALICE.principal, "10.0.0.2")),
        ({"principal": list(NOBODY.principal), "host": NOBODY.host}, NOBODY),
    ],
)
def test_who_asks_by_another_core_and_where_from(said, expected):
    assert forwarded._subject({"peer": "10.0.0.1:5000", **said}) == expected
