"""Segment space for many partitions by few jobs.

When thousands of partitions are first written to, the first record of each waits for a file to be made and for space in
it. One by one that is two operations that the ring hands to workers of its own, and a few turns of the loop, for each;
clients with one request under way each get a few thousand answers a second. So requests that wait at the same time
share a job of a helper thread: what comes while one is under way makes the next one.

*Ahead.* Where many partitions of a topic are asked for together, more jobs, for which nobody waits, take space for
others of it that have none: for a few times as many, that nobody has written to, as there are that somebody has. So of
thousands most are not asked for. Which come first nobody can know, so they are taken from all over the topic.

Nothing depends on it: what a job did not do, for whatever reason, `SegmentSpace.make` does afterwards.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.storage.uncontended_lock import UncontendedLock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from tpc_broker.model import TopicId
    from tpc_broker.storage.ports import Disk, StoragePlane
    from tpc_broker.storage.segments.leader_partition import LeaderPartition
    from tpc_broker.storage.segments.reserved_space import SpaceBegun

log = logging.getLogger(__name__)

TOGETHER: Final = 128
"""In one job."""
AHEAD_FROM: Final = 8
"""Partitions of one topic that are asked for together, before others are taken ahead."""
AHEAD_FACTOR: Final = 4
"""The disk has so many times as much left as is taken ahead."""
AHEAD_OF_ONE: Final = 4
"""So many that nobody has written to may have space for each that somebody has."""
TOPICS_MAX: Final = 64
_SPREAD: Final = 2_654_435_761
"""Of Knuth's multiplicative hashing: 2**32 divided by the golden ratio."""


@dataclass(slots=True, eq=False)
class _Wanted:
    led: LeaderPartition
    size: int
    is_done: bool = False


@dataclass(slots=True)
class _Topic:
    """What was taken ahead of one topic. Partitions by handle: they may be deleted."""

    untouched: list[int]
    """They had no space when the topic was first looked at. Neighbours are far from each other."""
    size: int = 0
    """Of the largest first request."""
    asked_count: int = 0
    """For so many clients have asked, or written into what was taken ahead."""
    ahead: list[int] = field(default_factory=list)
    """Taken ahead, and nobody has written to them that is known."""


class SpaceTogether:
    """Of one core. `has_left`: whether clients' records may take so many more bytes of the file system."""

    def __init__(
        self,
        plane: StoragePlane,
        disk: Disk,
        led: Mapping[int, LeaderPartition],
        has_left: Callable[[int], Awaitable[bool]],
    ) -> None:
        self._plane = plane
        self._disk = disk
        self._led = led
        self._has_left = has_left
        self._waiting: list[_Wanted] = []
        self._job = trio.Lock()
        self._topics: dict[TopicId, _Topic] = {}
        self._asked: set[TopicId] = set()
        """So many of them that others are to be taken ahead."""
        self._any_asked = trio.Event()

    async def make(self, led: LeaderPartition, size: int) -> None:
        """Space for so many more bytes of a partition, if that can be; together with whoever waits for a job, too."""
        one = _Wanted(led, size)
        self._waiting.append(one)
        async with UncontendedLock(self._job):
            if one.is_done:
                return
            batch, self._waiting = self._waiting[:TOGETHER], self._waiting[TOGETHER:]
            sizes = _sum_by_partition(batch)
            try:
                await self.take(sizes)
            finally:
                for each in batch:
                    each.is_done = True
        self._note_asked(sizes)

    # -- a job -------------------------------------------------------------------------------------------------------

    async def take(self, wanted: Sequence[tuple[LeaderPartition, int]]) -> None:
        """Space for so many more bytes of each partition, and what goes with it ahead, where a job can do that. None is
        to be named twice.
        """
        try:
            for first in range(0, len(wanted), TOGETHER):
                await self._take(wanted[first : first + TOGETHER])
        except OSError as error:
            log.debug("no room for many together: %s", error)

    async def _take(self, wanted: Sequence[tuple[LeaderPartition, int]]) -> None:
        wanted = [(led, size) for led, size in wanted if led.handle in self._led]  # others were deleted meanwhile
        if not wanted:
            return
        files = wanted[0][0].files.folder.files
        await files.open_many([led.files.folder.path / led.files.active.log_name for led, _size in wanted])
        begun: list[tuple[LeaderPartition, SpaceBegun]] = []
        try:
            for led, size in wanted:
                self._disk.poll_ring()
                one = self._begin(led, size)
                if one is not None:
                    begun.append((led, one))
            spaces = [one.space for _led, one in begun]
            if not spaces or not await self._has_left(sum(space.length for space in spaces)):
                return
            errors = await self._disk.reserve_many(spaces)
            for error in errors:
                led, one = begun.pop(0)
                self._end(led, one, error)
                self._disk.poll_ring()
        finally:
            for led, one in begun:
                led.files.end_reserve(one, OSError())
                led.lock.release()

    def _begin(self, led: LeaderPartition, size: int) -> SpaceBegun | None:
        if led.handle not in self._led or led.is_internal or led.is_leaving:
            return None
        try:
            led.lock.acquire_nowait()
        except trio.WouldBlock:
            return None
        begun, state = None, self._plane.state(led.handle)
        try:
            if state.bytes_admitted < size:
                ahead = min(led.step_bytes, led.files.settings.segment_bytes // 2)
                begun = led.files.begin_reserve(state.unwritten_bytes + size + ahead)
        finally:
            if begun is None:
                led.lock.release()
        return begun

    def _end(self, led: LeaderPartition, begun: SpaceBegun, error: OSError | None) -> None:
        try:
            if led.files.end_reserve(begun, error) and led.handle in self._led:
                admit_reserved(self._plane, led)
        finally:
            led.lock.release()

    # -- ahead -------------------------------------------------------------------------------------------------------

    def _note_asked(self, asked: Sequence[tuple[LeaderPartition, int]]) -> None:
        by_topic: dict[TopicId, dict[int, int]] = {}
        for led, size in asked:
            by_topic.setdefault(led.files.key.topic_id, {})[led.handle] = size
        for topic_id, sizes in by_topic.items():
            if len(sizes) >= AHEAD_FROM:
                topic = self._topic(topic_id)
                topic.asked_count += len(sizes)
                topic.size = max(topic.size, *sizes.values())
                self._asked.add(topic_id)
                self._any_asked.set()

    async def take_ahead(self) -> None:
        """Whenever many were asked for, until cancelled."""
        while True:
            await self._any_asked.wait()
            self._any_asked = trio.Event()
            while self._asked:
                topic = self._topics.get(self._asked.pop())
                try:
                    while topic is not None and (wanted := self._ahead_of(topic)):
                        size = sum(size + led.step_bytes for led, size in wanted)
                        if not await self._has_left(AHEAD_FACTOR * size):
                            break
                        await self.take(wanted)
                except OSError as error:
                    log.debug("no room ahead: %s", error)

    def _topic(self, topic_id: TopicId) -> _Topic:
        found = self._topics.get(topic_id)
        if found is None:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            of_topic = [led.handle for led in self._led.values() if led.files.key.topic_id == topic_id]
            order = sorted(range(len(of_topic)), key=lambda number: number * _SPREAD % (1 << 32))
            found = self._topics[topic_id] = _Topic([of_topic[number] for number in order])
        return found

    def _ahead_of(self, topic: _Topic) -> list[tuple[LeaderPartition, int]]:
        """What one job may take of it now, and is noted as taken."""
        if len(topic.ahead) + TOGETHER > AHEAD_OF_ONE * topic.asked_count:
            self._look_which_are_used(topic)
        found: list[tuple[LeaderPartition, int]] = []
        ahead_max = AHEAD_OF_ONE * topic.asked_count
        while topic.untouched and len(found) < TOGETHER and len(topic.ahead) < ahead_max:
            handle = topic.untouched.pop()
            led = self._led.get(handle)
            if led is not None and not led.admitted_bytes:
                topic.ahead.append(handle)
                found.append((led, topic.size))
        return found

    def _look_which_are_used(self, topic: _Topic) -> None:
        before, topic.ahead = topic.ahead, []
        for handle in before:
            led = self._led.get(handle)
            if led is None:
                continue
            if self._plane.state(handle).bytes_admitted < led.admitted_bytes:
                topic.asked_count += 1
            else:
                topic.ahead.append(handle)
            self._disk.poll_ring()


def _sum_by_partition(wanted: Sequence[_Wanted]) -> list[tuple[LeaderPartition, int]]:
    """Several requests may wait for one."""
    sizes: dict[int, tuple[LeaderPartition, int]] = {}
    for one in wanted:
        _led, size = sizes.get(one.led.handle, (one.led, 0))
        sizes[one.led.handle] = one.led, size + one.size
    return list(sizes.values())


def admit_reserved(plane: StoragePlane, led: LeaderPartition) -> None:
    """The data plane may take what is reserved: as much as nothing was admitted for."""
    files = led.files
    plane.set_in_place_space(led.handle, files.active.reserved_end_position)
    state = plane.state(led.handle)
    more = files.reserved_bytes - state.unwritten_bytes - state.bytes_admitted
    if more > 0:
        plane.admit(led.handle, more)
        led.admitted_bytes += more
