"""Connections that say nothing keep no node out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.cluster.test_links import links_of, streams
from tpc_broker import limits
from tpc_broker.cluster.founding import SeedAddress
from tpc_broker.node.links.greeting_places import GREETING_S_MIN, Greeting, GreetingPlaces
from tpc_broker.node.links.links import FrameReader
from tpc_broker.node.links.surroundings import SYSTEM


def places(*dialled: str) -> GreetingPlaces:
    return GreetingPlaces(lambda host: host in dialled)


def took(there: GreetingPlaces, count: int, address: str | None = None) -> list[Greeting | None]:
    return [there.take(address or f"10.1.{number // 256}.{number % 256}") for number in range(count)]


def with_clock(scenario) -> None:
    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_one_address_has_a_share_of_the_places_and_displaces_itself():
    async def scenario() -> None:
        there = places()
        first = took(there, limits.LINK_GREETINGS_OF_ADDRESS_MAX, "10.0.0.9")
        assert all(first)
        assert there.take("10.0.0.9") is None, "they have just come"
        assert there.take("10.0.0.8")
        await trio.sleep(GREETING_S_MIN)
        assert there.take("10.0.0.9")
        assert [each.scope.cancel_called for each in first] == [True] + [False] * (len(first) - 1)
        assert len(there) == limits.LINK_GREETINGS_OF_ADDRESS_MAX + 1

    with_clock(scenario)


def test_where_all_places_are_taken_the_oldest_of_the_largest_crowd_goes():
    async def scenario() -> None:
        there = places()
        others = took(there, limits.LINK_GREETINGS_MAX - 3)
        crowd = took(there, 3, "10.0.0.9")
        assert there.take("10.0.0.8") is None, "they have just come"
        await trio.sleep(GREETING_S_MIN)
        assert there.take("10.0.0.8")
        assert crowd[0].scope.cancel_called
        assert not any(each.scope.cancel_called for each in (*others, *crowd[1:]))
        assert len(there) == limits.LINK_GREETINGS_MAX

    with_clock(scenario)


def test_nodes_find_a_place_whatever_knocks_from_elsewhere():
    """Those that are dialled from here, and those that have proved the secret before."""

    async def scenario() -> None:
        there = places("10.0.0.2")
        there.note_known("10.0.0.3")
        assert all(took(there, limits.LINK_GREETINGS_MAX))
        assert there.take("10.0.0.4") is None
        node = [there.take("10.0.0.2"), there.take("10.0.0.3")]
        assert all(node)
        await trio.sleep(GREETING_S_MIN)
        assert all(took(there, 2 * limits.LINK_GREETINGS_OF_ADDRESS_MAX, "10.0.0.9")[:1])
        assert not any(each.scope.cancel_called for each in node)
        assert all(took(there, limits.LINK_GREETINGS_OF_ADDRESS_MAX + 1, "10.0.0.3")), "many cores of one node"

    with_clock(scenario)


def test_known_addresses_are_bounded_and_those_of_late_stay():
    there = places()
    for number in range(limits.LINK_KNOWN_ADDRESSES_MAX + 10):
        there.note_known(str(number))
        there.note_known("0")
    assert len(there._known) == limits.LINK_KNOWN_ADDRESSES_MAX
    assert "0" in there._known
    assert "1" not in there._known


def test_a_place_is_given_back_once():
    async def scenario() -> None:
        there = places()
        (first,) = took(there, 1)
        there.give_back(first)
        there.give_back(first)
        assert len(there) == 0

    with_clock(scenario)


@pytest.mark.parametrize(("knocks_from", "node"), [("10.0.0.9", "10.0.0.2"), ("10.0.0.9", "10.0.0.9")])
def test_connections_that_say_nothing_keep_no_node_out(knocks_from, node):
    """From one address that is no node's, and from a node's own. The node was not heard since this one was started."""

    async def scenario() -> None:
        here, there = links_of(1), links_of(2)
        knocking = []
        async with trio.open_nursery() as nursery:
            await nursery.start(here.run, None)
            for _ in range(2 * limits.LINK_GREETINGS_MAX):
                near, far = streams("here", knocks_from)
                knocking.append(near)
                nursery.start_soon(here._serve_connection, far)
            await trio.sleep(2 * GREETING_S_MIN)
            near, far = streams("here", node)
            nursery.start_soon(here._serve_connection, far)
            hello = await there.greet(near, FrameReader(near, there.counts))
            assert hello.node == 1
            await trio.testing.wait_all_tasks_blocked()
            assert [each.node for each in here.incoming.values()] == [2]
            nursery.cancel_scope.cancel()

    with_clock(scenario)


def test_who_has_proved_the_secret_is_known_at_both_ends():
    async def scenario() -> None:
        here, there = links_of(1), links_of(2)
        async with trio.open_nursery() as nursery:
            await nursery.start(here.run, None)

            async def dial(_host: str, _port: int) -> object:
                near, far = streams("10.0.0.1", "10.0.0.2")
                nursery.start_soon(here._serve_connection, far)
                return near

            there._surroundings = replace(SYSTEM, network=SimpleNamespace(dial=dial))
            await nursery.start(there.run, None)
            up = trio.Event()
            there.on_up = lambda _peer: up.set()
            there.peer(SeedAddress("a-name", 1))
            await up.wait()
            assert [list(links.places._known) for links in (here, there)] == [["10.0.0.2"], ["10.0.0.1"]]
            assert len(here.places) == 0
            nursery.cancel_scope.cancel()

    with_clock(scenario)
