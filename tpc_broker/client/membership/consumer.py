"""A member of a group of KIP-848, as a machine without I/O.

The heartbeat is all there is. Its answer may bring what the member is to have; the member comes there in steps, and
says with its next heartbeats what it has: it gives back first, says so, is told more, takes that, and says so.

    joining (epoch 0) --> member (epoch > 0) --FENCED_MEMBER_EPOCH, UNKNOWN_MEMBER_ID--> joining, what it had is lost
    member --> left (epoch -1; -2: a static member that will be back)

What a heartbeat says that has not changed is left out, unless the one before had no answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tpc_broker.client.consumer.ports import GroupIdentity
from tpc_broker.client.errors import RefusedError
from tpc_broker.client.membership.steps import Assign, Beat, Lose, Resolve, Revoke, Step
from tpc_broker.client.requests import TopicPartition
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, messages

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from tpc_broker.client.membership.settings import GroupSettings

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
STATIC_LEAVE_EPOCH: Final = -2
FIRST_INTERVAL_SECONDS: Final = 3.0
"""Until the coordinator says another one."""
SOON_SECONDS: Final = 0.5
SOON_COUNT: Final = 10
"""So many heartbeats come so soon at first."""
_FENCED: Final = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}
_Place = tuple[bytes, int]
"""Topic id and partition: what the coordinator calls a partition."""


class ConsumerMember:
    """``member_id``: a fresh one, for the whole life of the program's member. Subscribes to ``names``, or to what the
    coordinator finds by ``pattern``.
    """

    def __init__(
        self, settings: GroupSettings, member_id: str, names: Collection[str], pattern: str | None = None
    ) -> None:
        self.life = 0
        self._interval_seconds = FIRST_INTERVAL_SECONDS
        self._soon_left = SOON_COUNT
        self.member_id = member_id
        self.epoch = JOIN_EPOCH
        self._settings = settings
        self._names = tuple(sorted(names))
        self._pattern = pattern
        self._owned: dict[_Place, str] = {}
        self._is_beating = False
        self._taking: set[_Place] = set()
        """Of an `Assign` that is being carried out."""
        self._target: set[_Place] | None = None
        self._resolved: dict[bytes, str] = {}
        self._lost: set[TopicPartition] = set()
        self._is_away = False
        self._says_all = True
        self._subscription_unsaid = False
        self._said: set[_Place] | None = None
        """What the coordinator knows to be owned; None: it is to be told."""
        self._saying: set[_Place] = set()

    @property
    def identity(self) -> GroupIdentity:
        return GroupIdentity(self._settings.group, self.epoch, self.member_id, self._settings.instance_id)

    @property
    def interval_seconds(self) -> float:
        return self._interval_seconds if self.interval_is_usual else min(SOON_SECONDS, self._interval_seconds)

    @property
    def interval_is_usual(self) -> bool:
        """What an expression matches is told with a later heartbeat, which is to come soon."""
        return self._pattern is None or bool(self._target) or self._soon_left == 0

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(TopicPartition(name, place[1]) for place, name in self._owned.items())

    @property
    def is_settled(self) -> bool:
        return self.epoch > JOIN_EPOCH and not self._is_away

    @property
    def is_hurried(self) -> bool:
        """Joining, or something to say."""
        if self._is_away or self._lost:
            return False
        return self._says_all or self._subscription_unsaid or (not self._taking and self._said != self._owned.keys())

    # Steps

    def step(self) -> Step | None:
        if self._lost:
            return Lose(frozenset(self._lost))
        if self._target is None or self.epoch <= JOIN_EPOCH:
            return None
        surplus = self._owned.keys() - self._target
        if surplus:
            return Revoke(frozenset(TopicPartition(self._owned[place], place[1]) for place in surplus))
        missing = self._target - self._owned.keys()
        known = {place for place in missing if place[0] in self._resolved}
        if known and self._is_beating:
            return None
        if known:
            self._taking = known
            return Assign(frozenset(TopicPartition(self._resolved[place[0]], place[1]) for place in known))
        return Resolve(frozenset(place[0] for place in missing)) if missing else None

    def done(self, step: Step) -> None:
        if isinstance(step, Lose):
            self._lost -= step.partitions
        elif isinstance(step, Revoke):
            gone = {place for place, name in self._owned.items() if TopicPartition(name, place[1]) in step.partitions}
            self._owned = {place: name for place, name in self._owned.items() if place not in gone}
            self._lost -= step.partitions
        elif isinstance(step, Assign):
            self._owned |= {place: self._resolved[place[0]] for place in self._taking}
            self._taking = set()

    def abandoned(self, step: Step) -> None:
        if isinstance(step, Assign):
            self._lost |= step.partitions
            self._taking = set()

    def resolved(self, step: Resolve, names: Mapping[bytes, str]) -> None:
        """The names of `Resolve`; topics that are not there (any more) are left out. A name is one topic's only."""
        gone = {topic_id for topic_id, name in self._resolved.items() if name in names.values()}
        for topic_id in gone - names.keys():
            del self._resolved[topic_id]
        self._resolved |= {topic_id: names[topic_id] for topic_id in step.topic_ids if topic_id in names}

    def divided(self, counts: Mapping[str, int]) -> None:
        raise AssertionError("the coordinator divides", counts)

    # Heartbeats

    def beat(self) -> Beat | None:
        if self._lost or self._is_away:
            return None
        # Rule: A member of a group by KIP-848 says to have what it is about to take, and begins to take nothing while a
        # heartbeat is under way, nor after one that was lost: what that left out counts as given back, and may be
        # somebody else's. Held by tests/client/test_member_machines.py, tests/client/test_member_histories.py.
        owned = self._owned.keys() | self._taking
        self._saying = owned
        self._is_beating = True
        says_all = self._says_all or self.epoch == JOIN_EPOCH
        says_names = says_all or self._subscription_unsaid
        says_owned = says_all or self._said != owned
        self._subscription_unsaid = False
        epoch = self.epoch
        return Beat(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            lambda version: self._request(version, epoch, owned if says_owned else None, says_all, says_names),
            self.life,
            epoch,
        )

    def _request(
        self, version: int, epoch: int, owned: set[_Place] | None, says_all: bool, says_names: bool  # noqa: FBT001
    ) -> Any:
        request = self._bare_request(epoch)
        if says_all:
            request.rack_id = self._settings.rack or None
            request.rebalance_timeout_ms = round(self._settings.max_work_seconds * 1000)
            request.server_assignor = self._settings.server_assignor
        if says_names:
            request.subscribed_topic_names = list(self._names)
            if version >= 1 and self._pattern is not None:
                request.subscribed_topic_regex = self._pattern
        if owned is not None:
            by_id: dict[bytes, list[int]] = {}
            for topic_id, partition in sorted(owned):
                by_id.setdefault(topic_id, []).append(partition)
            row = messages.ConsumerGroupHeartbeatRequest.TopicPartitions
            request.topic_partitions = [row(topic_id=each, partitions=found) for each, found in by_id.items()]
        return request

    def _bare_request(self, epoch: int) -> Any:
        return messages.ConsumerGroupHeartbeatRequest(
            group_id=self._settings.group,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self._settings.instance_id,
            rack_id=None,
            rebalance_timeout_ms=-1,
            subscribed_topic_names=None,
            subscribed_topic_regex=None,
            server_assignor=None,
            topic_partitions=None,
        )

    def beaten(self, beat: Beat, answer: Any) -> None:
        self._is_beating = False
        if beat.life != self.life:
            return
        code = answer.error_code
        if code in _FENCED or (code == ErrorCode.GROUP_ID_NOT_FOUND and self.epoch > JOIN_EPOCH):
            self._forgotten()
            return
        if code:
            self.beat_lost()
            raise RefusedError(code, answer.error_message or "")
        self.member_id = answer.member_id or self.member_id
        self.epoch = answer.member_epoch
        self._interval_seconds = answer.heartbeat_interval_ms / 1000
        if not self.interval_is_usual:
            self._soon_left -= 1
        self._says_all = False
        self._said = self._saying
        if answer.assignment is not None:
            self._target = {
                (bytes(row.topic_id), partition)
                for row in answer.assignment.topic_partitions
                for partition in row.partitions
            }

    def beat_lost(self) -> None:
        """Whether it came is not known: the next one says everything, and is told everything."""
        self._is_beating = False
        self._says_all = True
        self._target = None
        self._said = None

    def _forgotten(self) -> None:
        self.life += 1
        self._lost |= self.owned
        self._owned.clear()
        self._target = None
        self.epoch = JOIN_EPOCH
        self._says_all = True
        self._said = None

    # What changes from outside

    def subscribe(self, names: Collection[str]) -> None:
        wanted = tuple(sorted(names))
        if wanted != self._names:
            self._names = wanted
            self._subscription_unsaid = True

    def topics_grew(self) -> None:
        """The coordinator sees that itself."""

    def refused(self, identity: GroupIdentity) -> None:
        """The next heartbeat tells whether the member is still known."""
        if identity == self.identity:
            self.beat_lost()

    def stop(self) -> None:
        self._forgotten()
        self._is_away = True

    def resume(self) -> None:
        self._is_away = False

    def leave_request(self) -> tuple[ApiKey, Callable[[int], Any]] | None:
        """Also of one that was not answered yet: it may be in the group."""
        epoch = LEAVE_EPOCH if self._settings.instance_id is None else STATIC_LEAVE_EPOCH
        request = self._bare_request(epoch)
        return ApiKey.CONSUMER_GROUP_HEARTBEAT, lambda _version: request
