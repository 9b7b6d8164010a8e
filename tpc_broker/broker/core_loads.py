"""What each core of this node has to do, and partitions moved by themselves so that they have about the same.

Each core tells what its partitions have cost since it has them (`routing.load`). Core 0 asks all of them every
`core.rebalance.interval.ms`, as long as `core.rebalance.enable` says so, and plans by what was done between two looks.
Every move costs clients a moment, so it is slow to act: a plan is carried out only where the busiest core has
`GAP_MIN` of a CPU more to do than the idlest; a few partitions at a time; not while others move; and then, for
`core.rebalance.cooldown.ms`, nothing, so that what has moved is seen in the figures, and clients are at rest, before it
is judged again. A core that does not answer is a reason to leave everything as it is.

In a cluster each node does so for its own cores, with the replicas that it has, leading or following; the metadata's
leader begins of its plan what can be moved then.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.broker.reassignments import WantedBrokers
from tpc_broker.errors import MailboxError
from tpc_broker.metadata.cluster_core_moves import CoreShift, can_change_core
from tpc_broker.model import CoreId, PartitionIndex, Replica, TopicId, TopicPartition, broker_id_of
from tpc_broker.rounds import next_round
from tpc_broker.routing import CoreUse, cost_ns, loads_between, plan_balance

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.broker.core_moves import CoreMoves
    from tpc_broker.broker.payloads import Answer, Payload
    from tpc_broker.broker.replicated import CoreWithPartitions
    from tpc_broker.metadata.broker_config import Settings
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.routing import Shift

log = logging.getLogger(__name__)

AT_ONCE_MAX: Final = 4
GAP_MIN: Final = 0.05
ASK_TIMEOUT_MS: Final = 5_000
LOOK_S: Final = 1.0
"""At the settings, which may be changed while it waits."""


class CoreLoads:
    """Of one core; on core 0 it balances."""

    def __init__(self, core: CoreWithPartitions, moves: CoreMoves) -> None:
        self._core = core
        self._moves = moves
        core.mailboxes.serve("loads.use", self._serve_use)

    def here(self) -> CoreUse[TopicPartition]:
        """Of this core."""
        core = self._core
        costs = {one.key: cost_ns(core.plane.use(one.handle)) for one in core.partitions.opened()}
        return CoreUse(core.clock.cpu_ns(), costs)

    async def _serve_use(self, _caller: CoreId, _payload: Payload, _blobs: list[bytes]) -> Answer:
        found = self.here()
        costs = [[key.topic_id.hex, key.partition, cost] for key, cost in found.costs_ns.items() if cost]
        return {"cpu_ns": found.cpu_ns, "costs_ns": costs}, []

    async def of_node(self) -> dict[CoreId, CoreUse[TopicPartition]]:
        """Of each core. MailboxError: one of them does not answer."""
        found: dict[CoreId, CoreUse[TopicPartition]] = {}
        for each in range(self._core.view.cores):
            core = CoreId(each)
            if core == self._core.core_id:
                found[core] = self.here()
                continue
            answer, _blobs = await self._core.mailboxes.call(core, "loads.use", {}, timeout_ms=ASK_TIMEOUT_MS)
            costs = {
                TopicPartition(TopicId(uuid.UUID(hex=topic_id)), PartitionIndex(index)): cost
                for topic_id, index, cost in answer["costs_ns"]
            }
            found[core] = CoreUse(answer["cpu_ns"], costs)
        return found

    async def facts_of_node(self) -> Payload:
        """The same for a client (`tpc partition balance`). MailboxError as above."""
        image = self._core.view.image
        cores = []
        for core, use in (await self.of_node()).items():
            costs = [
                (image.topics[key.topic_id].name, key.partition, cost)
                for key, cost in use.costs_ns.items()
                if key.topic_id in image.topics
            ]
            cores.append({"core": core, "cpu_ns": use.cpu_ns, "costs_ns": costs})
        owners = {topic.name: topic.cores_on(self._core.view.node) for topic in image.topics.values()}
        return {"node": self._core.view.node, "cores": cores, "owners": owners}

    # -- core 0 --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Balance as the settings say, until cancelled. Core 0 only; nothing to do where it is the only one."""
        while self._core.view.cores > 1:
            if not await self._wait(lambda _settings: 0):
                await trio.sleep(LOOK_S)
                continue
            try:
                before, began_s = await self.of_node(), trio.current_time()
                if not await self._wait(lambda settings: settings.core_rebalance_interval_ms):
                    continue
                after, took_s = await self.of_node(), trio.current_time() - began_s
            except MailboxError as error:
                log.debug("what cores have to do is not known: %s", error)
                await trio.sleep(LOOK_S)
                continue
            if await self._balance(before, after, took_s):
                await self._wait(lambda settings: settings.core_rebalance_cooldown_ms)

    async def _wait(self, time_ms: Callable[[Settings], int]) -> bool:
        """Until so much time is over, by the settings as they are then. False: it is switched off."""
        began_s = trio.current_time()
        while self._core.settings.core_rebalance_enable:
            left_s = began_s + time_ms(self._core.settings) / 1000 - trio.current_time()
            if left_s <= 0:
                return True
            if left_s > LOOK_S:
                await next_round(LOOK_S)
            else:
                await trio.sleep(left_s)
        return False

    async def _balance(
        self,
        before: Mapping[CoreId, CoreUse[TopicPartition]],
        after: Mapping[CoreId, CoreUse[TopicPartition]],
        seconds: float,
    ) -> bool:
        """Whether anything was begun."""
        core = self._core
        image, node = core.view.image, core.view.node
        is_moving = any(move.is_on(node) for move in image.moving.values())
        is_paused = core.cluster is not None and core.settings.replica_moves_paused
        if is_moving or is_paused or not all(core.is_up(each) for each in after):
            return False
        loads, owners, totals = {}, {}, []
        for each, use in after.items():
            taken = loads_between(before[each], use, seconds)
            totals.append(sum(taken.values()))
            for key in use.costs_ns:
                if self._may_move(image, key, each):
                    loads[key], owners[key] = taken.get(key, 0.0), int(each)
        if max(totals) - min(totals) < GAP_MIN:
            return False
        shifts = plan_balance(loads, owners, core.view.cores, moves_max=AT_ONCE_MAX)
        if not shifts:
            return False
        told = ", ".join(f"core {number} {total:.0%}" for number, total in enumerate(totals))
        log.info("cores are loaded unevenly (%s of a CPU by their partitions); moving %d of them", told, len(shifts))
        if core.cluster is None:
            await self._moves.alter([self._wanted(shift) for shift in shifts], allow_factor_change=False)
            return True
        wanted = [CoreShift(shift.key, CoreId(shift.source), CoreId(shift.target)) for shift in shifts]
        try:
            return await self._moves.begin_own(wanted) > 0
        except MailboxError as error:
            log.info("whether moves between cores were begun is not known: %s", error)
            return True

    def _may_move(self, image: ClusterImage, key: TopicPartition, core: CoreId) -> bool:
        """Whether a core's partition is its own by the metadata, too, and no other move has it."""
        if self._core.cluster is not None:
            return can_change_core(image, key, Replica(self._core.view.node, core))
        return image.owner_of(key) == core and key.topic_id in image.topics

    def _wanted(self, shift: Shift[TopicPartition]) -> WantedBrokers:
        key = shift.key
        topic = self._core.view.image.topics[key.topic_id].name
        return WantedBrokers(topic, key.partition, (broker_id_of(self._core.view.node, CoreId(shift.target)),))
