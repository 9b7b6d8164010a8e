"""The coordinators of one internal topic on this core: a `MachineDriver` for each partition of it that is led here.

An id (of a group, …) belongs to the partition that `coordinator_partition` says. A coordinator begins with its
partition's leadership here and ends with it; one that cannot be loaded is tried again.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from tpc_broker.broker.coordinator_driver import MachineDriver
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import OffsetOutOfRangeError, PartitionOfflineError
from tpc_broker.model import PartitionIndex, TopicPartition, coordinator_partition
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    from tpc_broker.broker.partition import Partition
    from tpc_broker.broker.replicated import CoreWithPartitions
    from tpc_broker.metadata.image import ClusterImage

log = logging.getLogger(__name__)

AGAIN_S, AGAIN_S_MAX = 1.0, 60.0
"""Until what could not be loaded is loaded again; twice as long each time."""
CONFIRM_RETRY_S = 0.02
COMMIT_HELD_S = 2.0
"""As long as records are held between two leaders."""

D = TypeVar("D", bound=MachineDriver[Any])


class Coordinators(ABC, Generic[D]):
    def __init__(self, core: CoreWithPartitions, nursery: trio.Nursery, topic: str) -> None:
        self._core = core
        self._nursery = nursery
        self._topic = topic
        self._coordinators: dict[TopicPartition, tuple[D, trio.CancelScope]] = {}

    @abstractmethod
    def _new_coordinator(self, partition: Partition) -> D: ...

    async def wait_coordinator(self, name: str) -> None:
        """Where the coordinator of that id may be here soon, wait for it, or until it is somebody else.

        librdkafka sends a commit that came too early twice more within 0.3 s, and one that found no coordinator once
        more, before it tells its user of the error.
        """
        key = self._key_of(name)
        partition = None if key is None else self._core.partitions.get(key)
        if key is None or partition is None:
            return
        with trio.move_on_after(COMMIT_HELD_S):
            if self._core.replicated is not None and partition.is_replicated:
                await self._core.replicated.wait_leaders([partition])
            found = self._coordinators.get(key)
            if found is not None and not found[0].is_loaded:
                await found[0].has_loaded.wait()

    def _key_of(self, name: str) -> TopicPartition | None:
        topic = self._core.view.topic(self._topic)
        if topic is None:
            return None
        return TopicPartition(topic.topic_id, coordinator_partition(name, topic.partitions_count))

    def coordinator_of(self, name: str) -> D | ErrorCode:
        """The coordinator of an id when it is here and loaded, else the error that clients understand."""
        key = self._key_of(name)
        found = None if key is None else self._coordinators.get(key)
        if found is None:
            if key is not None and (topic := self._core.view.topic(self._topic)) is not None:
                self._core.note_asked(topic.owner_on(self._core.view.node, key.partition))
            return ErrorCode.NOT_COORDINATOR
        return found[0] if found[0].is_loaded else ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    async def confirm(self, name: str) -> bool:
        """Whether it is certain that no other node has coordinated that id before this call."""
        topic, key = self._core.view.topic(self._topic), self._key_of(name)
        replicated = self._core.replicated
        if topic is None or key is None or replicated is None:
            return True
        return not topic.is_replicated(key.partition) or await replicated.replication.leaderships.confirm(key)

    async def until_confirmed(self, name: str) -> None:
        """Until that is certain of a coordinator here, or there is none any more: what it tells is the newest."""
        while isinstance(self.coordinator_of(name), MachineDriver) and not await self.confirm(name):
            await trio.sleep(CONFIRM_RETRY_S)  # its leadership is ending, and the coordinator with it

    def loaded(self) -> list[D]:
        return [coordinator for coordinator, _scope in self._coordinators.values() if coordinator.is_loaded]

    @property
    def is_loading(self) -> bool:
        """One that could not be loaded is not: it is tried again after a while."""
        return any(not coordinator.has_loaded.is_set() for coordinator, _scope in self._coordinators.values())

    async def follow(self, _before: ClusterImage, after: ClusterImage) -> None:
        """Begin and end coordinators as the topic comes and goes."""
        topic = after.topic(self._topic)
        wanted: set[TopicPartition] = set()
        if topic is not None:
            wanted = {TopicPartition(topic.topic_id, PartitionIndex(index)) for index in range(topic.partitions_count)}
        for key in [key for key in self._coordinators if key not in wanted]:
            self.end(key)
        for key in wanted - self._coordinators.keys():
            self.begin_if_coordinates(key)

    def begin_if_coordinates(self, key: TopicPartition) -> None:
        """A partition is led here: if it is one of the topic, what belongs to it is coordinated here now."""
        topic = self._core.view.topic(self._topic)
        partition = self._core.partitions.get(key)
        is_of_topic = topic is not None and topic.topic_id == key.topic_id
        if is_of_topic and partition is not None and partition.is_led and key not in self._coordinators:
            self._begin(key, partition)

    def end(self, key: TopicPartition) -> None:
        """A partition is served here no more; whoever it coordinates, if anybody, finds the coordinator anew."""
        found = self._coordinators.pop(key, None)
        if found is not None:
            coordinator, scope = found
            coordinator.unload()
            scope.cancel()

    def _begin(self, key: TopicPartition, partition: Partition) -> None:
        coordinator, scope = self._new_coordinator(partition), trio.CancelScope()
        self._coordinators[key] = coordinator, scope
        with in_queue(TaskQueue.COORDINATORS):
            self._nursery.start_soon(self._run, key, partition, coordinator, scope)

    async def _run(self, key: TopicPartition, partition: Partition, coordinator: D, scope: trio.CancelScope) -> None:
        """Until the partition is served here no more. What cannot be loaded now may be later, so it is tried again; so
        is a machine that raises at its loading, or soon after when nobody asks it for anything. Any other that is of no
        use any more is followed by the next at once, but for one a second.
        """
        again_s = AGAIN_S
        with scope:
            while True:
                began_s = trio.current_time()
                try:
                    await coordinator.run()
                    if coordinator.raised_unasked and trio.current_time() < began_s + AGAIN_S_MAX:
                        if again_s > AGAIN_S:  # it is not for a while
                            coordinator.has_loaded.set()
                        again_s = await _slept(again_s)
                    else:
                        await trio.sleep_until(began_s + AGAIN_S)
                        again_s = AGAIN_S
                except (PartitionOfflineError, OffsetOutOfRangeError) as error:
                    log.error(
                        "%s: its %s cannot be loaded, which is tried again in %.0f s: %s",
                        partition.label, coordinator.what, again_s, str(error) or "it is about to close",
                    )  # fmt: skip
                    coordinator.unload()
                    again_s = await _slept(again_s)
                if scope.cancel_called:
                    return
                before, coordinator = coordinator, self._new_coordinator(partition)
                coordinator.come_after(before)
                self._coordinators[key] = coordinator, scope

    async def prepare_drain(self) -> None:
        """Answer everybody who waits for others (joins, syncs): they go to the next coordinator."""
        for coordinator, scope in self._coordinators.values():
            coordinator.unload()
            scope.cancel()
        self._coordinators.clear()


async def _slept(again_s: float) -> float:
    """How long it is the next time."""
    await trio.sleep(again_s)
    return min(2 * again_s, AGAIN_S_MAX)
