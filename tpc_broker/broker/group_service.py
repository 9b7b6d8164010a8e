"""The group coordinators of this core: what groups add to the driver of their machines.

A machine is told which topics its offsets are of, and forgets those of topics that are gone; what members of groups
say is bounded for all machines of a core together. The rest is in `coordinators` and `coordinator_driver`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import trio

from tpc_broker import limits
from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.broker.coordinator_driver import MachineDriver, MachineFailedError, NotLoadedError
from tpc_broker.broker.coordinators import AGAIN_S, AGAIN_S_MAX, Coordinators
from tpc_broker.broker.dispatch import CoreWithClients
from tpc_broker.broker.known_topics import TopicsOfCore
from tpc_broker.broker.replicated import CoreWithPartitions
from tpc_broker.coordinator import Fate, GroupCoordinator, GroupLimits, Producer, TransactionEnd
from tpc_broker.coordinator.assignors import ASSIGNORS
from tpc_broker.coordinator.consumer import regexes
from tpc_broker.coordinator.consumer.messages import ConsumerSettings
from tpc_broker.coordinator.consumer.records import ResolvedRegex
from tpc_broker.coordinator.consumer.subscribed import RESOLVED_AGAIN_MS
from tpc_broker.coordinator.messages import MarkerResponse
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import MailboxError
from tpc_broker.metadata.group_config import CONSUMER, consumer_group_settings, serves_consumer_groups
from tpc_broker.metadata.image import ClusterImage, changed_topics
from tpc_broker.model import CONSUMER_OFFSETS_TOPIC, NO_TOPIC_ID, TopicId
from tpc_broker.task_queue import TaskQueue, in_queue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tpc_broker.auth.principals import Subject
    from tpc_broker.broker.partition import Partition
    from tpc_broker.broker.producers_port import EndMarker
    from tpc_broker.coordinator import Effects
    from tpc_broker.metadata.broker_config import Settings
    from tpc_broker.metadata.group_config import ConsumerGroupSettings

log = logging.getLogger(__name__)

DECISION_BYTES_MAX = 48 * limits.MIB
"""Room that a decision of a consumer group needs, which is written whole: of all members of a group (GROUP_BYTES_MAX),
and what is made of it.
"""
RESOLVED_BYTES = 1 << 20
"""Of names that expressions match: so many are decided on, and written, at a time."""
LOOKED_AGAIN_S, LOOK_S_MAX = 1.0, 2.0
LOOKS_AT_ONCE = 2
"""Pieces, a tenth of a millisecond each."""
"""Between the times that the newest metadata are asked whether there are consumer groups by now; and for the answer."""

VerifyOffsets = Callable[[str, Producer, str, int], Awaitable[ErrorCode]]
"""Of a transactional id and its producer, a group, and the version of TxnOffsetCommit: NONE when a transaction is open
with the group's partition of the offsets, to which that is added where such clients leave it to the broker; else what
they are told.
"""


WANTED_KEPT_MAX: Final = 10_000
"""Groups with expressions that are resolved at once when the rules change; those of others at their next time."""
VISIBLE_AT_ONCE: Final = 500


class _Wanted(NamedTuple):
    patterns: frozenset[str]
    asker: Subject | None
    """Of the member whose heartbeat asks for it; None: everybody may see all topics."""


async def _nobody_verifies(_transactional_id: str, _producer: Producer, _group_id: str, _version: int) -> ErrorCode:
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


class CoreWithGroups(CoreWithPartitions, CoreWithClients):
    """It coordinates groups, too."""

    groups: GroupService


# Rule: An offset that was acknowledged to a group is there until a later one was sent, whatever became of its
# coordinator. See also tpc_broker/coordinator/machine.py. Held by tests/broker/test_groups_random.py,
# tests/broker/test_group_service.py, tests/simulator/nodes_groups.py (members across failovers).
class LoadedCoordinator(MachineDriver[GroupCoordinator]):
    """The groups of one partition."""

    _core: CoreWithGroups

    def __init__(self, core: CoreWithGroups, partition: Partition, group_limits: GroupLimits) -> None:
        self._knows_all_topics = False
        """Of those of which offsets were stored when it was loaded: later ones are of topics that are known here."""
        groups = core.groups
        machine = GroupCoordinator(
            group_limits, self._fate_of, groups.bytes_left,
            settings_of=groups.consumer_settings_of, topics=groups.topics, assignors=ASSIGNORS,
            has_room=self._has_room,
        )  # fmt: skip
        super().__init__(core, partition, machine, "groups")
        self._wanted: dict[str, _Wanted] = {}
        """Groups whose regular expressions are to be resolved."""
        self._wanted_last: dict[str, _Wanted] = {}
        """The same as of groups that were resolved, to be looked at again when the rules of access change."""
        self._asking: Subject | None = None
        self._being_resolved: set[str] = set()
        self._has_wanted = trio.Event()

    def _fate_of(self, name: str, topic_id: TopicId) -> Fate:
        image = self._core.view.image
        is_there = image.topic(name) is not None if topic_id == NO_TOPIC_ID else topic_id in image.topics
        if is_there:
            return Fate.THERE
        return Fate.GONE if self._knows_all_topics or image.is_deleted(topic_id) else Fate.UNKNOWN

    def _has_room(self) -> bool:
        """For another decision that runs ahead: what is decided has to be written, or costs all groups of the machine.
        The largest one is of all members of a group.
        """
        bytes_left = limits.COORDINATOR_WRITES_BYTES_MAX - self._writes_bytes
        return bytes_left >= DECISION_BYTES_MAX and 2 * len(self._writes) < limits.COORDINATOR_WRITES_MAX

    def perform(self, effects: Effects) -> None:
        super().perform(effects)
        wanted = self.machine.expressions_wanted()
        has_authorizer = self._core.access.authorizer is not None
        if not wanted or (has_authorizer and self._asking is None):  # then the next heartbeat asks for it again
            return
        asked = {group_id: _Wanted(patterns, self._asking) for group_id, patterns in wanted}
        self._wanted.update(asked)
        self._has_wanted.set()
        if has_authorizer:
            self._wanted_last.update(asked)
            while len(self._wanted_last) > WANTED_KEPT_MAX:
                del self._wanted_last[next(iter(self._wanted_last))]

    @contextmanager
    def asked_by(self, subject: Subject) -> Iterator[None]:
        """Whose heartbeat is handed in meanwhile: expressions that it has resolved match what that one may see."""
        self._asking = subject
        try:
            yield
        finally:
            self._asking = None

    def _look_again(self) -> None:
        """Topics may be seen now that were not, or not any more."""
        if self._wanted_last:
            self._wanted.update(self._wanted_last)
            self._has_wanted.set()

    def _parts_of_end_of_loading(self) -> Iterator[None]:
        return self.machine.groups_finished(self.now_ms())

    async def _work_beside(self) -> None:
        on_rules_changed = self._core.access.on_rules_changed
        on_rules_changed.append(self._look_again)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._learn_topics)
                with in_queue(TaskQueue.MAINTENANCE):
                    nursery.start_soon(self._resolve_regexes)
        finally:
            on_rules_changed.remove(self._look_again)

    # Rule: Regular expressions are matched beside the loop in short jobs, between which every client is heard, and what
    # comes out is of one image. Held by tests/broker/test_consumer_groups.py.
    async def _resolve_regexes(self) -> None:
        """As the machine asks for it, those of a group once a second at most."""
        async with trio.open_nursery() as nursery:
            while True:
                await self._has_wanted.wait()
                self._has_wanted = trio.Event()
                for group_id in sorted(self._wanted.keys() - self._being_resolved):
                    self._being_resolved.add(group_id)
                    nursery.start_soon(self._resolve, group_id, self._wanted.pop(group_id))

    async def _resolve(self, group_id: str, wanted: _Wanted) -> None:
        """One whose patterns take long holds up no other group: each has its turn after each job."""
        version, names = self._core.groups.names()
        found: dict[str, ResolvedRegex] = {}
        found_bytes = 0
        for pattern in sorted(wanted.patterns):
            matched = await self._visible(await self._matches(pattern, names), wanted.asker)
            matched_bytes = sum(map(len, matched))
            if 4 * matched_bytes > limits.OWN_BATCH_BYTES_MAX:  # of a name each character is a byte
                text = f"{self._partition.label}: an expression of group {group_id!r} matches too many topics, so none"
                self._core.log_limiter.say(log, "expressions of groups that match too many topics", group_id, text)
                matched, matched_bytes = (), 0
            if found_bytes + matched_bytes > RESOLVED_BYTES and found:
                self._take_resolved(group_id, found, has_more=True)
                found, found_bytes = {}, 0
            found[pattern] = ResolvedRegex(matched, version, self.now_ms())
            found_bytes += matched_bytes
        self._take_resolved(group_id, found, has_more=False)
        if self.is_unloaded:
            return
        await trio.sleep(RESOLVED_AGAIN_MS / 1_000)
        self._being_resolved.remove(group_id)
        if group_id in self._wanted:
            self._has_wanted.set()

    def _take_resolved(self, group_id: str, found: Mapping[str, ResolvedRegex], *, has_more: bool) -> None:
        if not self.is_unloaded:
            self.do(lambda now_ms: self.machine.expressions_resolved(group_id, found, now_ms, has_more=has_more))

    async def _matches(self, pattern: str, names: Sequence[str]) -> tuple[str, ...]:
        """A step at a time, each a short job of a helper thread: a core that ends does not wait for the rest."""
        parts, matched, has_more = regexes.matches(pattern, names), list[str](), True
        while has_more:
            async with self._core.groups.matching:
                part = await self._core.in_thread(next, parts, None)
            has_more = part is not None
            matched += part or ()
        return tuple(sorted(matched))

    # Rule: Of topics that an expression matches a group gets those that the member may see who asked, and is looked at
    # again when the rules change. Held by tests/broker/test_rights_of_expressions.py.
    async def _visible(self, names: tuple[str, ...], asker: Subject | None) -> tuple[str, ...]:
        access, seen = self._core.access, list[str]()
        for begin in range(0, len(names), VISIBLE_AT_ONCE):
            if access.authorizer is None:
                return names
            some = names[begin : begin + VISIBLE_AT_ONCE]
            if asker is not None:
                allows = access.allows_subject
                seen += (name for name in some if allows(asker, Operation.DESCRIBE, Resource.TOPIC, name))
            await trio.lowlevel.checkpoint()
        return tuple(seen)

    async def write_marker(self, marker: EndMarker) -> ErrorCode:
        """End what a producer's transaction has in this partition, and wait until that is committed."""
        producer = Producer(marker.producer_id, marker.producer_epoch)
        end = TransactionEnd(producer, marker.commits, marker.coordinator_epoch, marker.transaction_version)
        try:
            answer = await self.call(MarkerResponse, lambda token, _now_ms: self.machine.marker(end, token))
        except NotLoadedError as error:
            return error.error_code
        except MachineFailedError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return answer.error_code

    def topics_changed(self, deleted: Sequence[str] = ()) -> None:
        """More is known of topics that are gone, as of those of these names."""
        self.do_unasked(lambda now_ms: self.machine.topics_changed(now_ms, deleted))

    async def _learn_topics(self) -> None:
        """The log may name topics that this core's image does not: they were deleted, or another coordinator knew more
        than this core does by now. By the newest image it is certain.
        """
        self.topics_changed()
        again_s = AGAIN_S
        while await self._has_unknown_topics():
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
        self.topics_changed()

    async def _has_unknown_topics(self) -> bool:
        """Or maybe so. What comes while it is looked is of topics that are known here, or of the newest image."""
        for number, is_unknown in enumerate(self.machine.look_for_unknown_topics(), 1):
            if is_unknown:
                return True
            if number % LOOKS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
                if self.is_unloaded:
                    return False
        return False


class GroupService(Coordinators[LoadedCoordinator]):
    _core: CoreWithGroups

    def __init__(self, core: CoreWithGroups, nursery: trio.Nursery) -> None:
        super().__init__(core, nursery, CONSUMER_OFFSETS_TOPIC)
        self.topics = TopicsOfCore(core.view, core.settings.broker_rack)
        """For all coordinators of this core."""
        self.matching = trio.Lock()
        """Held for a job: whoever waits has the next one."""
        self.verify_offsets: VerifyOffsets = _nobody_verifies
        """Given by whoever knows of transactions."""
        self._names: tuple[int, tuple[str, ...]] = (-1, ())
        self._of_groups: dict[str, ConsumerSettings] = {}
        self._settled_by: tuple[ClusterImage, Settings] | None = None
        self._looking = trio.Lock()
        self._looked_s = -math.inf

    def names(self) -> tuple[int, tuple[str, ...]]:
        """Of all topics, in any order, with the version of the metadata that they are of."""
        if self._names[0] != self.topics.version:
            self._names = self.topics.version, tuple(self.topics.names())
        return self._names

    @property
    def serves_consumer_groups(self) -> bool:
        """Whether there are groups of KIP-848: not until all nodes of the cluster know them."""
        return serves_consumer_groups(self._core.settings, self._core.view.image)

    async def may_serve_consumer_groups(self) -> bool:
        """The same by the newest metadata, for whoever is about to be refused: a client whom another core has told of
        the level may come here first. It is looked at once in a while.
        """
        async with self._looking:
            is_due = trio.current_time() >= self._looked_s + LOOKED_AGAIN_S and not self.serves_consumer_groups
            if is_due and CONSUMER in self._core.settings.group_coordinator_rebalance_protocols:
                with trio.move_on_after(LOOK_S_MAX), suppress(MailboxError):
                    await self._core.metadata.take_newest()
                self._looked_s = trio.current_time()
        return self.serves_consumer_groups

    def consumer_settings_of(self, group_id: str) -> ConsumerSettings:
        """Every heartbeat asks, so they are kept as long as nothing is another."""
        image, settings = self._core.view.image, self._core.settings
        if self._settled_by is None or self._settled_by[0] is not image or self._settled_by[1] is not settings:
            self._settled_by = image, settings
            self._of_groups.clear()
        name = group_id if group_id in image.group_configs else ""  # all others have the same, whatever clients ask for
        found = self._of_groups.get(name)
        if found is None:
            found = self._of_groups[name] = _settings_of(consumer_group_settings(settings, image, group_id))
        return found

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
                coordinator.topics_changed(deleted)

    async def write_marker(self, partition: Partition, marker: EndMarker) -> ErrorCode:
        """By the groups' coordinator of a partition, in the order of its writes."""
        found = self._coordinators.get(partition.key)
        if found is None or not found[0].is_loaded:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return await found[0].write_marker(marker)

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


def _settings_of(configured: ConsumerGroupSettings) -> ConsumerSettings:
    return ConsumerSettings(
        session_timeout_ms=configured.session_timeout_ms,
        heartbeat_interval_ms=configured.heartbeat_interval_ms,
        assignment_interval_ms=configured.assignment_interval_ms,
        size_max=configured.members_max,
        assignors=configured.assignors,
        regex_refresh_interval_ms=configured.regex_refresh_interval_ms,
        may_upgrade=configured.migration_policy in {"bidirectional", "upgrade"},
        may_downgrade=configured.migration_policy in {"bidirectional", "downgrade"},
    )
