"""The group coordinators of this core: what groups add to the driver of their machines.

A machine is told which topics its offsets are of, and forgets those of topics that are gone; what members of groups
say is bounded for all machines of a core together. The rest is in `coordinators` and `coordinator_driver`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from tpc_broker import limits
from tpc_broker.broker.coordinator_driver import MachineDriver
from tpc_broker.broker.coordinators import AGAIN_S, AGAIN_S_MAX, Coordinators
from tpc_broker.coordinator import Fate, GroupCoordinator, GroupLimits
from tpc_broker.errors import MailboxError
from tpc_broker.metadata.image import ClusterImage, changed_topics
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, NO_TOPIC_ID, TopicId

if TYPE_CHECKING:
    from tpc_broker.broker.core import Core
    from tpc_broker.broker.partition import Partition

log = logging.getLogger(__name__)


# Rule: An offset that was acknowledged to a group is there until a later one was sent, whatever became of its
# coordinator. See also tpc_broker/coordinator/machine.py. Held by tests/broker/test_groups_random.py,
# tests/broker/test_group_service.py, tests/simulator/nodes_groups.py (members across failovers).
class LoadedCoordinator(MachineDriver[GroupCoordinator]):
    """The groups of one partition."""

    def __init__(self, core: Core, partition: Partition, group_limits: GroupLimits) -> None:
        self._knows_all_topics = False
        """Of those of which offsets were stored when it was loaded: later ones are of topics that are known here."""
        machine = GroupCoordinator(group_limits, self._fate_of, core.groups.bytes_left)
        super().__init__(core, partition, machine, "groups")

    def _fate_of(self, name: str, topic_id: TopicId) -> Fate:
        image = self._core.view.image
        is_there = image.topic(name) is not None if topic_id == NO_TOPIC_ID else topic_id in image.topics
        if is_there:
            return Fate.THERE
        return Fate.GONE if self._knows_all_topics or image.is_deleted(topic_id) else Fate.UNKNOWN

    async def _work_beside(self) -> None:
        """The log may name topics that this core's image does not: they were deleted, or another coordinator knew more
        than this core does by now. By the newest image it is certain.
        """
        self.perform(self.machine.topics_changed())
        again_s = AGAIN_S
        while self.machine.has_unknown_topics:
            try:
                await self._core.metadata.take_newest()
                break
            except MailboxError as error:
                log.info(
                    "%s: offsets of topics that are not known here wait for the metadata: %s",
                    self._partition.label, error,
                )  # fmt: skip
            await trio.sleep(again_s)
            again_s = min(2 * again_s, AGAIN_S_MAX)
        self._knows_all_topics = True
        self.perform(self.machine.topics_changed())


class GroupService(Coordinators[LoadedCoordinator]):
    def __init__(self, core: Core, nursery: trio.Nursery) -> None:
        super().__init__(core, nursery, CONSUMER_OFFSETS_TOPIC)

    def bytes_left(self) -> int:
        """For members of groups of this core; below 0 where more was stored than would be taken now."""
        held = sum(coordinator.machine.size_bytes for coordinator, _scope in self._coordinators.values())
        return limits.GROUPS_BYTES_MAX - held

    async def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        """Forget offsets of deleted topics, too."""
        deleted = [old.name for old, new in changed_topics(before, after) if new is None and old is not None]
        await super().follow(before, after)
        if deleted:
            for coordinator in self.loaded():
                coordinator.perform(coordinator.machine.topics_changed(deleted))

    def _new_coordinator(self, partition: Partition) -> LoadedCoordinator:
        settings = self._core.settings
        group_limits = GroupLimits(
            session_timeout_ms_min=settings.group_min_session_timeout_ms,
            session_timeout_ms_max=settings.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=settings.group_initial_rebalance_delay_ms,
            group_size_max=settings.group_max_size,
            offset_metadata_bytes_max=settings.offset_metadata_max_bytes,
            offsets_retention_ms=settings.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=settings.offsets_retention_check_interval_ms,
        )
        return LoadedCoordinator(self._core, partition, group_limits)
