"""How long Produces wait at replicas of which nobody is known to lead them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from tests.support.memory_node import MemoryClock
from tpc_broker.broker.handlers import produce
from tpc_broker.broker.holds import KEPT_NS, Holds
from tpc_broker.broker.replicated import HELD_S, ReplicatedPartitions

SECOND_NS = 1_000_000_000


class Held:
    """A core whose one replica has no leader until `elect`."""

    def __init__(self) -> None:
        self.clock, self._moved = MemoryClock(), trio.Event()
        partition = SimpleNamespace(key="t-0", is_led=False, is_open=True)
        replicated = object.__new__(ReplicatedPartitions)
        replicated.holds = Holds(int(HELD_S * 1e9))
        replicated.replication = SimpleNamespace(
            hears_leader=lambda _key: self._moved.is_set(), wait_moved=lambda _key: self._moved.wait()
        )
        find = lambda _key, _index: partition if replicated.is_between_leaders(partition) else None  # noqa: E731
        partitions = SimpleNamespace(waiting_for_leader=find)
        self.core = SimpleNamespace(replicated=replicated, clock=self.clock, partitions=partitions)

    def elect(self) -> None:
        self._moved.set()

    def came(self, connection: int = 1):
        """A request, now."""
        return SimpleNamespace(connection=connection, received_ns=self.clock.monotonic_ns())

    async def waits_s(self, request) -> float:
        """How long it waits from now on."""
        begun_s = trio.current_time()
        await produce._wait_between_leaders(self.core, request, [("t", 0)])
        return trio.current_time() - begun_s


async def test_what_came_on_a_connection_meanwhile_waits_no_longer_than_what_stands_in_front_of_it(autojump_clock):
    held = Held()
    requests = [held.came(), held.came(), held.came(2)]
    assert await held.waits_s(requests[0]) == HELD_S
    requests.append(held.came())
    assert await held.waits_s(requests[1]) == 0
    assert await held.waits_s(requests[2]) == HELD_S, "it stands behind nothing on its own connection"
    assert await held.waits_s(requests[3]) == 0, "it came at the end"
    await trio.sleep(0.001)
    assert await held.waits_s(held.came()) == HELD_S, "whoever comes back waits for another election"


async def test_what_is_left_of_a_hold_that_ended_early_is_for_the_next(autojump_clock):
    held = Held()
    first, second = held.came(), held.came()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(held.waits_s, first)
        await trio.sleep(0.5)
        held.elect()
    held._moved = trio.Event()
    assert await held.waits_s(second) == HELD_S - 0.5


@pytest.mark.parametrize("connections", [1, 1000])
def test_holds_are_forgotten(connections):
    holds = Holds(2 * SECOND_NS)
    for number in range(connections):
        assert holds.left_s(number, number, number) == 2
    assert len(holds) == connections
    assert holds.left_s(connections, 0, KEPT_NS + 3 * SECOND_NS) == 2
    assert len(holds) == 1
