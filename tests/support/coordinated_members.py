"""Machines of the client's members beside the broker's own coordinator, without I/O, on a clock that is told.

What a member reads, `held`, is told from what its machine thinks, `owned`: between the two are the steps, which take
time, and end when the membership does.
"""

from __future__ import annotations

import uuid
from random import Random
from typing import Any

from tests.coordinator.consumer.scenario import ConsumerScenario
from tpc_broker.client.errors import RefusedError
from tpc_broker.client.membership.classic import ClassicMember
from tpc_broker.client.membership.consumer import ConsumerMember
from tpc_broker.client.membership.settings import GroupSettings
from tpc_broker.client.membership.steps import Ask, Assign, Divide, Lose, Resolve, Revoke
from tpc_broker.client.requests import TopicPartition
from tpc_broker.coordinator.assignors import ASSIGNORS
from tpc_broker.coordinator.messages import HeartbeatRequest, JoinRequest, LeavingMember, SyncRequest
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.model import TopicId

NEWEST = {ApiKey.JOIN_GROUP: 9, ApiKey.SYNC_GROUP: 5, ApiKey.HEARTBEAT: 4, ApiKey.LEAVE_GROUP: 5}
BEAT_MS = 1_000


class Coordinator(ConsumerScenario):
    """Takes the client's messages, and has its own answers as messages."""

    def __init__(self, topics: dict[str, int], **limits: Any) -> None:
        super().__init__(topics, dict(ASSIGNORS), **limits)

    def ask(self, key: ApiKey, message: Any) -> str:
        """The answer is in `answer`, at once or later."""
        token = self.token(key.name)
        made = f"made-{self.tokens}"
        if key == ApiKey.JOIN_GROUP:
            join = JoinRequest(
                group_id=message.group_id, member_id=message.member_id, group_instance_id=message.group_instance_id,
                protocols=tuple((row.name, bytes(row.metadata)) for row in message.protocols),
                session_timeout_ms=message.session_timeout_ms, rebalance_timeout_ms=message.rebalance_timeout_ms,
            )  # fmt: skip
            self.run(self.machine.join_group(join, token, self.now, made))
        elif key == ApiKey.SYNC_GROUP:
            sync = SyncRequest(
                group_id=message.group_id, generation_id=message.generation_id, member_id=message.member_id,
                group_instance_id=message.group_instance_id, protocol_type=message.protocol_type,
                protocol_name=message.protocol_name,
                assignments=tuple((row.member_id, bytes(row.assignment)) for row in message.assignments),
            )  # fmt: skip
            self.run(self.machine.sync_group(sync, token, self.now))
        elif key == ApiKey.HEARTBEAT:
            beat = HeartbeatRequest(
                group_id=message.group_id, generation_id=message.generation_id, member_id=message.member_id,
                group_instance_id=message.group_instance_id,
            )  # fmt: skip
            self.replies[token] = self.machine.heartbeat(beat, self.now)
        elif key == ApiKey.LEAVE_GROUP:
            leaving = [LeavingMember(row.member_id, row.group_instance_id) for row in message.members]
            self.run(self.machine.leave_group(message.group_id, leaving, token, self.now))
        else:
            self._beat(message, token)
        return token

    def _beat(self, message: Any, token: str) -> None:
        owned = None
        if message.topic_partitions is not None:
            rows = message.topic_partitions
            owned = {TopicId(uuid.UUID(bytes=row.topic_id)): frozenset(row.partitions) for row in rows}
        names = message.subscribed_topic_names
        told = self.beat(
            message.member_id, message.member_epoch, message.group_id, instance_id=message.instance_id,
            rebalance_timeout_ms=message.rebalance_timeout_ms, topic_names=None if names is None else tuple(names),
            topic_regex=message.subscribed_topic_regex, assignor=message.server_assignor, owned=owned,
        )  # fmt: skip
        self.replies[token] = self.replies.pop(told)

    def answer(self, key: ApiKey, token: str) -> Any:
        """None: not yet."""
        told = self.replies.pop(token, None)
        if told is None:
            return None
        if key == ApiKey.HEARTBEAT:
            return messages.HeartbeatResponse(error_code=int(told))
        if key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
            return self._beat_answer(told)
        if key == ApiKey.SYNC_GROUP:
            return messages.SyncGroupResponse(error_code=int(told.error_code), assignment=told.assignment)
        if key == ApiKey.LEAVE_GROUP:
            return messages.LeaveGroupResponse(error_code=int(told.error_code))
        row = messages.JoinGroupResponse.JoinGroupResponseMember
        return messages.JoinGroupResponse(
            error_code=int(told.error_code), generation_id=told.generation_id, protocol_name=told.protocol_name,
            leader=told.leader, skip_assignment=told.skip_assignment, member_id=told.member_id,
            members=[row(member_id=m.member_id, group_instance_id=m.group_instance_id, metadata=m.metadata)
                     for m in told.members],
        )  # fmt: skip

    def _beat_answer(self, told: Any) -> Any:
        kind = messages.ConsumerGroupHeartbeatResponse
        assignment = None
        if told.assignment is not None:
            rows = [
                kind.TopicPartitions(topic_id=each.bytes, partitions=sorted(found))
                for each, found in told.assignment.items()
            ]
            assignment = kind.Assignment(topic_partitions=rows)
        return kind(
            error_code=int(told.error_code), error_message=told.error_message, member_id=told.member_id,
            member_epoch=told.member_epoch, heartbeat_interval_ms=told.heartbeat_interval_ms, assignment=assignment,
        )  # fmt: skip

    def member_ids(self, group: str) -> set[str]:
        """Whom the coordinator counts among the group's members."""
        consumers = self.described(group)
        if not consumers.error_code:
            return {one.member_id for one in consumers.members}
        return {one.member_id for one in self.machine.describe_group(group).members}


class Member:
    """``losses``: how often an answer is lost on its way."""

    def __init__(
        self, coordinator: Coordinator, settings: GroupSettings, names: tuple[str, ...], chance: Random, number: int
    ) -> None:
        self.coordinator = coordinator
        self.chance = chance
        self.settings = settings
        self.names = names
        if settings.protocol == "classic":
            self.machine: Any = ClassicMember(settings, names)
        else:
            self.machine = ConsumerMember(settings, f"member-{number}", names)
        self.held: set[TopicPartition] = set()
        self.losses = 0.0
        self.slowness = 0
        self._step: Any = None
        self._life = 0
        self._left = 0
        self._token: str | None = None
        self._is_lost = False
        self._beat_at = 0
        self._under_way: Any = None

    @property
    def is_quiet(self) -> bool:
        machine = self.machine
        return self._step is None and machine.step() is None and machine.is_settled and not machine.is_hurried

    def turn(self) -> None:
        """A little of what it has to do."""
        if self._under_way is not None:
            self._beaten()
        elif self.coordinator.now >= self._beat_at or self.machine.is_hurried:
            self._beat()
        if self._step is None:
            self._begin()
        step = self._step
        if isinstance(step, Ask):
            self._ask(step)
        elif self._left > 0:
            self._left -= 1
        elif step is not None:
            self._carry_out(step)

    def _begin(self) -> None:
        """The next step. What is lost is forgotten in the same moment."""
        while isinstance(step := self.machine.step(), Lose):
            self.held -= step.partitions
            self.machine.done(step)
        self._step, self._life = step, self.machine.life
        self._left = self.chance.randint(0, self.slowness)

    def _end_step(self) -> None:
        """Of a membership that is over."""
        if self.machine.life != self._life:
            if self._step is not None:
                self._end(is_done=False)
            self._begin()

    def _carry_out(self, step: Any) -> None:
        if isinstance(step, Divide):
            known = self.coordinator.topics.by_name
            self.machine.divided({name: known[name].partitions_count for name in step.topics if name in known})
        elif isinstance(step, Resolve):
            topics = self.coordinator.topics.by_name.values()
            self.machine.resolved(step, {topic.topic_id.bytes: topic.name for topic in topics})
        elif isinstance(step, Assign):
            assert not self.held & step.partitions
            self.held |= step.partitions
        else:
            assert isinstance(step, Revoke)
            self.held -= step.partitions
        self._end(is_done=True)

    def _end(self, *, is_done: bool) -> None:
        step, self._step, self._token = self._step, None, None
        if is_done and self.machine.life == self._life:
            self.machine.done(step)
        else:
            if isinstance(step, Assign):  # it may have come as far as that
                self.held |= step.partitions
            self.machine.abandoned(step)

    def _ask(self, step: Ask) -> None:
        if self._token is None:
            self._token = self.coordinator.ask(step.key, step.make(NEWEST[step.key]))
            self._is_lost = self.chance.random() < self.losses
        answer = self.coordinator.answer(step.key, self._token)
        if answer is None:
            return
        self._token = None
        if self._is_lost:
            return  # the driver asks once more
        try:
            step.take(answer)
        except RefusedError as error:
            if error.code != ErrorCode.REBALANCE_IN_PROGRESS and not error.is_retriable:
                raise
            return
        self._end(is_done=True)

    def _beat(self) -> None:
        self._beat_at = self.coordinator.now + BEAT_MS
        beat = self.machine.beat()
        if beat is not None:
            self._under_way = beat, self.coordinator.ask(beat.key, beat.make(1))

    def _beaten(self) -> None:
        (beat, token), self._under_way = self._under_way, None
        answer = self.coordinator.answer(beat.key, token)
        if answer is None or self.chance.random() < self.losses:
            self.machine.beat_lost()
            return
        try:
            self.machine.beaten(beat, answer)
        except RefusedError as error:
            if error.code != ErrorCode.UNRELEASED_INSTANCE_ID and not error.is_retriable:
                raise
        self._end_step()

    def stays_away(self) -> None:
        """What a member does of which a handler takes too long."""
        request = self.machine.leave_request()
        self.machine.stop()
        self._end_step()
        if request is not None:
            key, make = request
            self.coordinator.ask(key, make(NEWEST.get(key, 1)))

    def leave(self) -> None:
        request = self.machine.leave_request()
        self.held.clear()
        if request is not None:
            key, make = request
            self.coordinator.ask(key, make(NEWEST.get(key, 1)))
