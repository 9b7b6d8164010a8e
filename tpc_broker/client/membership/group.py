"""A member of a group: drives its machine over the network. `GroupMembership` is the `Membership` of a stream.

Its tasks, until the first fails or `run` is cancelled:

    steps      carries out what the machine wants, one step after another: rounds, giving back, taking
    beats      heartbeats, also while a step takes long; their answers may end the step
    topics     looks whether topics came, went or grew, where the coordinator does not do that
    handlers   looks whether something takes too long
"""

from __future__ import annotations

import logging
import time
import uuid
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any, Final

import anyio

from tpc_broker.client.cluster import MISSING_TOPIC_SECONDS
from tpc_broker.client.consumer.ports import GroupIdentity
from tpc_broker.client.errors import ClientError, PartitionsLostError, RefusedError
from tpc_broker.client.membership import topics
from tpc_broker.client.membership.classic import ClassicMember
from tpc_broker.client.membership.committing import Commits, committed_once, listed, lost_error
from tpc_broker.client.membership.consumer import ConsumerMember
from tpc_broker.client.membership.explaining import (
    FENCED,
    ROUND_UNDER_WAY,
    explained,
    is_tried_again,
)
from tpc_broker.client.membership.line import Line, Patience
from tpc_broker.client.membership.steps import Ask, Assign, Divide, Lose, Resolve, Revoke
from tpc_broker.client.membership.stuck import StuckWatch
from tpc_broker.client.net.tasks import background_tasks
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tpc_broker.client.consumer.ports import Position, Reader
    from tpc_broker.client.membership.settings import GroupSettings, Subscription
    from tpc_broker.client.membership.steps import Beat, MemberMachine, Step
    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.client.requests import TopicPartition

JOIN_SLACK_SECONDS: Final = 5.0
"""Beyond the time that a round may take, until a JoinGroup without an answer counts as lost."""
LOOK_SECONDS: Final = 1.0
"""At most, between two looks at what is under way."""
TROUBLE_TOLD_SECONDS: Final = 60.0
"""Between two lines in the log about the same trouble."""
EXPRESSIONS_VERSION: Final = 1
"""Of ConsumerGroupHeartbeat: from it on the coordinator finds topics by an expression."""
STATIC_VERSION: Final = 5
"""Of JoinGroup: from it on there are static members."""
_NO_CONSUMER_GROUP: Final = {
    ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
}  # fmt: skip
logger = logging.getLogger("tpc.client")


class Bell:
    """Wakes the one task that waits for it; a ring before it waits is not lost."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        self._event.set()

    async def wait(self) -> None:
        await self._event.wait()
        self._event = anyio.Event()


class _ClassicGroupError(Exception):
    """The group, or the broker, knows the classic protocol only."""


class GroupMembership:
    """Tells ``reader`` what to read, as the group divides it."""

    def __init__(self, fleet: Fleet, reader: Reader, subscription: Subscription, settings: GroupSettings) -> None:
        self._fleet = fleet
        self._reader = reader
        self._subscription = subscription
        self._settings = settings
        self._machine: MemberMachine | None = None
        self._line = Line(fleet, settings.group)
        self._commits = Commits(self._line, settings.group)
        long_seconds = settings.max_work_seconds + JOIN_SLACK_SECONDS + fleet.settings.request_seconds
        self._joining = Line(fleet, settings.group, long_seconds)
        self._news = Bell()
        self._hurry = Bell()
        self._changed = anyio.Event()
        self._step: tuple[anyio.CancelScope, int] | None = None
        self._counts: dict[str, int] = {}
        self._watched: frozenset[str] = frozenset()
        self._finds_topics = True
        self._began_at: dict[TopicPartition, Position | None] = {}
        self._classic_only = False
        self._was_member = False
        self._told_at = float("-inf")
        self._failing: Patience | None = None

    @property
    def identity(self) -> GroupIdentity | None:
        if self._machine is None:
            return GroupIdentity(self._settings.group, -1, "", self._settings.instance_id)
        return self._machine.identity

    @property
    def owned(self) -> frozenset[TopicPartition]:
        """What it reads now."""
        return frozenset() if self._machine is None else self._machine.owned

    # Running

    async def run(self) -> None:
        """Until cancelled. Raises what cannot be mended, with the setting that would change it."""
        try:
            while True:
                await self._prepare()
                try:
                    async with background_tasks() as tasks:
                        tasks.start_soon(self._beats)
                        tasks.start_soon(self._handlers)
                        if self._finds_topics:
                            tasks.start_soon(self._topics)
                        await self._steps()
                except _ClassicGroupError:
                    logger.info("group %s is a classic one", self._settings.group)
                    self._machine = None
                    self._classic_only = True
        finally:
            self._joining.close()

    async def _prepare(self) -> None:
        """Chooses the protocol, and finds the topics where that is the client's work."""
        patience = Patience(self._fleet.settings.retry_seconds)
        while self._machine is None:
            try:
                self._machine = await self._chosen()
            except ClientError as error:
                await self._again(patience, error, "looking for the coordinator")

    async def _chosen(self) -> MemberMachine:
        channel = await self._line.channel()
        settings, pattern = self._settings, self._subscription.pattern
        has_groups = channel.has(ApiKey.CONSUMER_GROUP_HEARTBEAT)
        if settings.protocol == "consumer" and not has_groups:
            raise RefusedError(ErrorCode.UNSUPPORTED_VERSION, "")
        is_consumer = has_groups and settings.protocol != "classic" and not self._classic_only
        if is_consumer and pattern is not None:
            self._finds_topics = channel.version(ApiKey.CONSUMER_GROUP_HEARTBEAT) < EXPRESSIONS_VERSION
        else:
            self._finds_topics = not is_consumer
        if self._finds_topics:
            self._counts = await topics.counts_found(self._fleet, self._subscription)
            names = self._names()
            self._watched = frozenset(names)
        else:
            names = self._subscription.names
        self._tell_missing()
        if is_consumer:
            member_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            return ConsumerMember(settings, member_id, names, None if self._finds_topics else pattern)
        if settings.instance_id is not None and channel.version(ApiKey.JOIN_GROUP) < STATIC_VERSION:
            raise ClientError("instance_id needs a broker that knows static members (Kafka 2.3)")
        return ClassicMember(settings, names)

    def _names(self) -> Collection[str]:
        return self._subscription.names if self._subscription.pattern is None else self._counts

    def _tell_missing(self) -> None:
        missing = sorted(set(self._subscription.names) - self._counts.keys()) if self._finds_topics else []
        if missing:
            logger.warning("group %s: there is no topic %s yet", self._settings.group, ", ".join(missing))

    # Steps

    async def _steps(self) -> None:
        machine = self._machine
        assert machine is not None
        while True:
            step = machine.step()
            if step is None:
                self._tell_changed()
                await self._news.wait()
                continue
            life = machine.life
            with anyio.CancelScope() as scope:
                self._step = scope, life
                try:
                    await self._carry_out(machine, step)
                finally:
                    self._step = None
            if machine.life == life and not scope.cancelled_caught:
                machine.done(step)
            else:
                machine.abandoned(step)
            self._tell_changed()
            self._hurry.ring()

    def _tell_changed(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _end_step(self) -> None:
        """Where the membership that it belongs to is over."""
        if self._step is not None and self._machine is not None and self._step[1] != self._machine.life:
            self._step[0].cancel()

    async def _carry_out(self, machine: MemberMachine, step: Step) -> None:
        match step:
            case Ask():
                await self._ask(step)
            case Divide():
                await self._divide(machine, step)
            case Resolve():
                await self._resolve(machine, step)
            case Revoke():
                await self._give_back(step.partitions)
            case Assign():
                await self._take(machine, step.partitions)
            case Lose():
                text = "group %s: %s are lost, another member may have them"
                logger.warning(text, self._settings.group, listed(step.partitions))
                self._forget(step.partitions)

    async def _ask(self, step: Ask) -> None:
        """Until it is answered."""
        while True:
            try:
                answer = await self._joining.ask(step.key, step.make)
                step.take(answer)
            except ClientError as error:
                self._joining.failed(error)
                await self._trouble(error, "joining")
            else:
                self._well()
                return

    async def _divide(self, machine: MemberMachine, step: Divide) -> None:
        patience = Patience(self._settings.max_work_seconds)
        while True:
            try:
                self._watched = step.topics
                self._counts = await topics.counts_of(self._fleet, step.topics)
            except ClientError as error:
                await self._again(patience, error, "looking at the topics of all members")
            else:
                machine.divided(self._counts)
                return

    async def _resolve(self, machine: MemberMachine, step: Resolve) -> None:
        try:
            found = await topics.names_of(self._fleet, step.topic_ids)
        except ClientError as error:
            if not is_tried_again(error):
                raise self._explained(error, "looking for the names of topics") from error
            found = {}
        machine.resolved(step, found)
        if not found:  # not every broker has heard of a new topic yet
            with anyio.move_on_after(LOOK_SECONDS):
                await self._news.wait()

    async def _give_back(self, partitions: frozenset[TopicPartition]) -> None:
        await self._reader.revoke(partitions, self._settings.grace_seconds)
        for where, since in self._reader.handed_out().items():
            if where in partitions:
                logger.warning(
                    "group %s: %s goes to another member while something of it is under way since %.0f s: "
                    "grace_seconds is %g",
                    self._settings.group, where, time.monotonic() - since, self._settings.grace_seconds,
                )  # fmt: skip
        finished = {where: position for where, position in self._reader.finished().items() if where in partitions}
        try:
            await self._commit(finished, waits=False)
        except ClientError as error:
            logger.warning("%s", error)
        self._forget(partitions)

    def _forget(self, partitions: frozenset[TopicPartition]) -> None:
        self._reader.forget(partitions)
        self._commits.forget(partitions)
        for where in partitions:
            self._began_at.pop(where, None)

    async def _take(self, machine: MemberMachine, partitions: frozenset[TopicPartition]) -> None:
        patience = Patience(None)
        while True:
            try:
                positions = await committed_once(self._line, machine.identity, partitions)
            except ClientError as error:
                if isinstance(error, RefusedError) and error.code in FENCED:
                    machine.refused(machine.identity)
                    self._hurry.ring()
                    await anyio.sleep(LOOK_SECONDS)  # the next heartbeat tells, and ends this
                    continue
                await self._again(patience, error, "asking for committed offsets")
            else:
                break
        await self._reader.assign(positions)
        self._began_at |= positions

    # Heartbeats

    async def _beats(self) -> None:
        machine = self._machine
        assert machine is not None
        while True:
            beat = machine.beat()
            if beat is None:
                await self._hurry.wait()
                continue
            pause = await self._beat(machine, beat)
            with anyio.move_on_after(pause):
                while True:
                    await self._hurry.wait()
                    if machine.is_hurried:
                        break

    async def _beat(self, machine: MemberMachine, beat: Beat) -> float:
        """Seconds until the next one."""
        try:
            answer = await self._line.ask(beat.key, beat.make)
        except ClientError as error:
            machine.beat_lost()
            return await self._trouble(error, "a heartbeat", pauses=False)
        try:
            machine.beaten(beat, answer)
        except ClientError as error:
            self._line.failed(error)
            if self._is_classic(error):
                raise _ClassicGroupError from error
            return await self._trouble(error, "a heartbeat", pauses=False)
        self._well()
        self._end_step()
        self._tell_changed()
        self._news.ring()
        return machine.interval_seconds

    def _is_classic(self, error: ClientError) -> bool:
        is_asked_for = self._settings.protocol == "auto" and isinstance(self._machine, ConsumerMember)
        return is_asked_for and isinstance(error, RefusedError) and error.code in _NO_CONSUMER_GROUP

    def _well(self) -> None:
        self._was_member = True
        self._failing = None

    async def _trouble(self, error: ClientError, what: str, *, pauses: bool = True) -> float:
        """Waits (or says how long to wait) before the next attempt. Who was a member before tries without end."""
        is_released_soon = isinstance(error, RefusedError) and error.code == ErrorCode.UNRELEASED_INSTANCE_ID
        if self._failing is None:
            without_end = self._was_member and not is_released_soon
            self._failing = Patience(None if without_end else self._fleet.settings.retry_seconds)
            self._told_at = float("-inf")
        now = time.monotonic()
        if now - self._told_at >= TROUBLE_TOLD_SECONDS:
            self._told_at = now
            logger.warning("%s", self._explained(error, what))
        tried = RefusedError(ErrorCode.REBALANCE_IN_PROGRESS, "") if is_released_soon else error
        try:
            pause = self._failing.next_pause(tried)
        except ClientError:
            raise self._explained(error, what) from error
        if pauses:
            await anyio.sleep(pause)
        return pause

    # Topics and handlers

    async def _topics(self) -> None:
        machine = self._machine
        assert machine is not None
        while True:
            await anyio.sleep(self._settings.topics_seconds)
            try:
                if self._subscription.pattern is not None:
                    machine.subscribe(await topics.counts_found(self._fleet, self._subscription))
                if self._counts != await topics.counts_of(self._fleet, self._watched):
                    machine.topics_grew()
            except ClientError as error:
                logger.warning("%s", self._explained(error, "looking at topics"))
            self._news.ring()
            self._hurry.ring()

    async def _handlers(self) -> None:
        machine = self._machine
        assert machine is not None
        watch = StuckWatch(self._settings.max_work_seconds)
        while True:
            await anyio.sleep(min(LOOK_SECONDS, self._settings.max_work_seconds / 4))
            handed_out = self._reader.handed_out()
            late, over = watch.look(time.monotonic(), handed_out, self._began_at | self._reader.finished())
            for stuck in late:
                logger.warning(
                    "group %s: a handler works at %s; after max_work_seconds (%g) the member leaves the group",
                    self._settings.group, stuck, self._settings.max_work_seconds,
                )  # fmt: skip
            if over:
                await self._stay_away(machine, {stuck.where: handed_out[stuck.where] for stuck in over}, over)

    async def _stay_away(self, machine: MemberMachine, since: dict[TopicPartition, float], over: list[Any]) -> None:
        """Until what takes too long is over."""
        logger.error(
            "group %s: a handler works at %s, longer than max_work_seconds (%g): the member leaves the group meanwhile",
            self._settings.group, "; ".join(map(str, over)), self._settings.max_work_seconds,
        )  # fmt: skip
        request = machine.leave_request()
        machine.stop()
        self._end_step()
        self._news.ring()
        if request is not None:
            try:
                await self._line.ask(*request)
            except ClientError as error:
                logger.warning("%s", self._explained(error, "leaving"))
        while since.items() & self._reader.handed_out().items():
            await anyio.sleep(min(LOOK_SECONDS, self._settings.max_work_seconds / 4))
        logger.info("group %s: the handler is back, the member joins again", self._settings.group)
        machine.resume()
        self._news.ring()
        self._hurry.ring()

    # Commits

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Tried again until ``commit_retry_seconds`` are over. `PartitionsLostError` for partitions that are another
        member's now; `RefusedError`, or another `ClientError`.
        """
        await self._commit(positions, waits=True)

    async def _commit(self, positions: Mapping[TopicPartition, Position], *, waits: bool) -> None:
        machine = self._machine
        if machine is None:
            raise PartitionsLostError(f"group {self._settings.group}: no member yet, nothing can be committed")
        left = dict(positions)
        number = self._commits.begin()
        seconds = self._settings.commit_retry_seconds or self._fleet.settings.retry_seconds
        patience = Patience(seconds if waits else min(seconds, max(self._settings.grace_seconds, JOIN_SLACK_SECONDS)))
        missing_until: float | None = None
        """From the first answer on that says so: the question may have taken long."""
        while left:
            if lost := left.keys() - machine.owned:
                raise lost_error(self._settings.group, lost)
            try:
                identity, refused = await self._commits.attempt(number, left, lambda: machine.identity)
            except ClientError as error:
                await self._again(patience, error, f"committing {listed(left)}")
                continue
            if refused:
                refusal = RefusedError(next(iter(refused.values())), listed(refused))
                if refusal.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    now = time.monotonic()
                    missing_until = missing_until or now + MISSING_TOPIC_SECONDS
                    if now > missing_until:
                        raise self._explained(refusal, "committing")
                if refusal.code in FENCED | ROUND_UNDER_WAY and waits:
                    await self._next_round(machine, identity, patience, refusal)
                else:
                    await self._again(patience, refusal, "committing")

    async def _next_round(
        self, machine: MemberMachine, identity: GroupIdentity, patience: Patience, error: RefusedError
    ) -> None:
        """Until the member is in another generation or epoch than that which was refused."""
        if error.code in FENCED:
            machine.refused(identity)
            self._end_step()
            self._news.ring()
        self._hurry.ring()
        with anyio.move_on_after(max(patience.left_seconds, 0)):
            while machine.owned and (machine.identity == identity or not machine.is_settled):
                await self._changed.wait()
            return
        raise self._explained(error, "committing")

    async def _again(self, patience: Patience, error: ClientError, what: str) -> None:
        try:
            await patience.again(error)
        except PartitionsLostError:
            raise
        except ClientError:
            raise self._explained(error, what) from error

    def _explained(self, error: ClientError, what: str) -> ClientError:
        member = "" if self._machine is None else self._machine.identity.member_id
        name = f"group {self._settings.group}{f' member {member}' if member else ''}: {what}"
        return explained(error, name, self._line.place, self._settings)

    # Leaving

    async def leave(self) -> None:
        """After `run` has ended, and what is finished was committed. A static member stays in the group until its
        session is over, so that it may be back. The caller bounds the time.
        """
        try:
            request = None if self._machine is None else self._machine.leave_request()
            patience = Patience(self._fleet.settings.retry_seconds)
            while request is not None:
                try:
                    await self._say_goodbye(*request)
                except ClientError as error:
                    await self._again(patience, error, "leaving")
                else:
                    request = None
        finally:
            self._machine = None
            self._line.close()
            self._joining.close()

    async def _say_goodbye(self, key: ApiKey, make: Callable[[int], Any]) -> None:
        answer = await self._line.ask(key, make)
        if answer.error_code and answer.error_code not in FENCED:
            refusal = RefusedError(answer.error_code, "")
            self._line.failed(refusal)
            raise refusal
