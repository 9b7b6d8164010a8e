"""What a core tells the other cores of its node: who leads, in which epoch.

To each other core one message is under way, with all that had come by then; what comes meanwhile goes with the next
one. So one that hangs, or gets no CPU, keeps no other from hearing it, and nobody waits for it for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.model import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from tpc_broker.broker.view import Leader
    from tpc_broker.model import CoreId, TopicPartition

WAIT_S: Final = 1.0
"""For so long a core that does not answer is waited for before a change of the metadata goes on."""


class _Message:
    """To one core. `leaves_s`: when it left; infinity: not yet."""

    def __init__(self) -> None:
        self.leaves_s = float("inf")
        self.is_over = trio.Event()
        self._leaders: dict[tuple[TopicPartition, bool], Leader] = {}

    def add(self, leaders: Iterable[tuple[TopicPartition, Leader]]) -> None:
        """The newest of each; that there is no leader counts by itself, since lower epochs may come behind it."""
        for partition, leader in leaders:
            key = partition, leader.epoch == NO_LEADER_EPOCH
            self._leaders.pop(key, None)
            self._leaders[key] = leader

    def leaders(self) -> list[tuple[TopicPartition, Leader]]:
        """In the order in which they are to be taken."""
        return [(partition, leader) for (partition, _is_none), leader in self._leaders.items()]


# Rule: A core that does not answer keeps no other core, and no other node, from hearing who leads. A change of the
# metadata waits a second, for each message that leaves for it, until it has heard that. The first change, and those
# behind it, wait ten seconds until it has taken it; after that it is sent none before it asks anew. See also
# tpc_broker/broker/metadata_service.py. Held by tests/broker/test_core_news.py.
class CoreNews:
    """`ask` brings one message to a core and takes its answer; it raises nothing."""

    def __init__(
        self,
        ask: Callable[[CoreId, list[tuple[TopicPartition, Leader]]], Awaitable[None]],
        start_soon: Callable[[Callable[[CoreId], Awaitable[None]], CoreId], None],
    ) -> None:
        self._ask = ask
        self._start_soon = start_soon
        self._next: dict[CoreId, _Message] = {}
        self._under_way: dict[CoreId, _Message] = {}

    def tell(self, cores: Iterable[CoreId], leaders: list[tuple[TopicPartition, Leader]]) -> None:
        """A message without leaders is one, too: its answer says whom the other core leads."""
        for core in cores:
            is_idle = core not in self._next and core not in self._under_way
            self._next.setdefault(core, _Message()).add(leaders)
            if is_idle:
                self._start_soon(self._tell, core)

    async def wait_told(self, seconds: float = WAIT_S) -> None:
        """Until all that was told has arrived, or for so long; not at cores that have left a message unanswered for
        longer.
        """
        late_s = trio.current_time() - seconds
        waited_for = [
            self._next.get(core) or self._under_way[core]
            for core in self._next.keys() | self._under_way.keys()
            if core not in self._under_way or self._under_way[core].leaves_s > late_s
        ]
        with trio.move_on_after(seconds):
            for message in waited_for:
                await message.is_over.wait()

    async def _tell(self, core: CoreId) -> None:
        while core in self._next:
            message = self._under_way[core] = self._next.pop(core)
            message.leaves_s = trio.current_time()
            await self._ask(core, message.leaders())
            message.is_over.set()
        del self._under_way[core]
