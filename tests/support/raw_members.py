"""Members of one consumer group by KIP-848 over sockets, turn by turn, and what they were told.

What a member was told is a promise, whichever node told it: its epoch goes on, what it has nobody else has, and what
it committed stays. A member that had no answer says all that it has with its next heartbeat, as client libraries do.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from threading import Event
from typing import Any

from tests.support.broker_process import TpcBroker
from tests.support.raw_client import Closed, RawConnection
from tests.support.waiting import LOOK_S, eventually
from tpc_broker.error_codes import ErrorCode

Place = tuple[uuid.UUID, int]
_LOST = (Closed, OSError)
_ELSEWHERE = {
    ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}  # fmt: skip
_REBALANCE_MS = 300_000


class RawMember:
    """Owns what it was told, and gives back at once. One with an `instance` is static; one with a `regex` takes what
    that matches, and names nothing.
    """

    def __init__(self, number: int, *, instance: str | None = None, regex: str | None = None) -> None:
        self.name = f"member {number}"
        self.member_id = str(uuid.UUID(int=number))
        self.instance, self.regex = instance, regex
        self.epoch = 0
        self.owned: set[Place] = set()
        self.said: set[Place] | None = None
        """None: its last heartbeat had no answer, or it is its first one."""

    def heartbeat(self, group: str, topic: str) -> dict[str, Any]:
        asked: dict[str, Any] = {"GroupId": group, "MemberId": self.member_id, "MemberEpoch": self.epoch}
        asked["InstanceId"] = self.instance
        if self.said is None:
            names = [topic] if self.regex is None else []
            asked |= {"RebalanceTimeoutMs": _REBALANCE_MS, "SubscribedTopicNames": names}
        if self.said is None and self.regex is not None:
            asked["SubscribedTopicRegex"] = self.regex
        if self.said != self.owned:
            indexes: dict[uuid.UUID, list[int]] = {}
            for topic_id, index in sorted(self.owned, key=lambda place: place[1]):
                indexes.setdefault(topic_id, []).append(index)
            asked["TopicPartitions"] = [{"TopicId": each, "Partitions": found} for each, found in indexes.items()]
        return asked


class RawMembers:
    """Of a group on a topic. `nodes`: those that clients may reach, asked in turn for the coordinator."""

    def __init__(self, nodes: Sequence[TpcBroker], group: str, topic: str, partitions: int) -> None:
        self.nodes, self.group, self.topic, self.partitions = list(nodes), group, topic, partitions
        self.members: list[RawMember] = []
        self.committed: dict[int, int] = {}
        """The last offsets of which a member was told that they are committed."""
        self.sent: dict[int, int] = {}
        """And the last ones that any has sent."""
        self.place: tuple[str, int] | None = None
        """Of the coordinator that was asked last."""
        self._connection: RawConnection | None = None
        self._turns = 0

    def come(self, count: int) -> None:
        """With the next turns: of three, one is static and one has an expression."""
        for number in range(len(self.members) + 1, len(self.members) + count + 1):
            instance = f"instance {number}" if number % 3 == 2 else None
            regex = f"{self.topic[:-1]}.?" if number % 3 == 0 else None
            self.members.append(RawMember(number, instance=instance, regex=regex))

    def at(self, nodes: Sequence[TpcBroker]) -> RawMembers:
        """The same members, as they are now, of a group that these are to have as well."""
        others = RawMembers(nodes, self.group, self.topic, self.partitions)
        others.members = deepcopy(self.members)
        others.committed, others.sent = dict(self.committed), dict(self.sent)
        for member in others.members:
            member.said = None
        return others

    @contextmanager
    def turning(self) -> Iterator[None]:
        """Turn after turn beside the body, and to the end of one."""
        is_over = Event()

        def turn() -> None:
            while not is_over.is_set():
                self.turn()

        with ThreadPoolExecutor(1) as pool:
            turns = pool.submit(turn)
            try:
                yield
            finally:
                is_over.set()
            turns.result()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def coordinator(self) -> tuple[str, int]:
        """As the first node tells it that answers."""
        return eventually(self._found, f"group {self.group} has a coordinator", not_yet=_LOST)

    def _found(self) -> tuple[str, int] | None:
        self._turns += 1
        node = self.nodes[self._turns % len(self.nodes)]
        with RawConnection(node.host, node.ports[0], LOOK_S) as asked:
            answer = asked.ask("FindCoordinator", 4, {"KeyType": 0, "CoordinatorKeys": [self.group]})
        (found,) = answer["Coordinators"]
        return None if found["ErrorCode"] else (found["Host"], found["Port"])

    def ask(self, api: str, version: int, values: dict[str, Any]) -> dict[str, Any] | None:
        """None: no answer, and whether it was carried out is not known."""
        try:
            if self._connection is None:
                self.place = self.coordinator()
                self._connection = RawConnection(*self.place, LOOK_S)
            return self._connection.ask(api, version, values)
        except _LOST:
            self.close()
            return None

    def turn(self) -> None:
        """Each member's heartbeat, and a commit of all that it has."""
        for member in self.members:
            if self._beat(member) and member.owned:
                self._commit(member)

    def _beat(self, member: RawMember) -> bool:
        """Whether it was answered well."""
        saying = set(member.owned)
        answer = self.ask("ConsumerGroupHeartbeat", 1, member.heartbeat(self.group, self.topic))
        code = ErrorCode(answer["ErrorCode"]) if answer is not None else None
        if answer is None or code in _ELSEWHERE:
            member.said = None
            self.close()
            return False
        told = f"{member.name} in epoch {member.epoch}: {answer}"
        assert code is ErrorCode.NONE, told
        assert answer["MemberEpoch"] >= max(1, member.epoch), told
        member.epoch, member.said = answer["MemberEpoch"], saying
        if answer["Assignment"] is not None:
            parts = answer["Assignment"]["TopicPartitions"]
            member.owned = {(each["TopicId"], index) for each in parts for index in each["Partitions"]}
            for other in self.members:
                both = other.owned & member.owned
                assert other is member or not both, f"{told}, and {other.name} in epoch {other.epoch} has {both}"
        return True

    def _commit(self, member: RawMember) -> None:
        indexes = sorted(index for _topic_id, index in member.owned)
        offsets = {index: self.sent.get(index, 0) + 1 for index in indexes}
        self.sent |= offsets
        parts = [{"PartitionIndex": index, "CommittedOffset": offset} for index, offset in offsets.items()]
        asked = {
            "GroupId": self.group, "GenerationIdOrMemberEpoch": member.epoch, "MemberId": member.member_id,
            "GroupInstanceId": member.instance,
            "Topics": [{"Name": self.topic, "Partitions": parts}],
        }  # fmt: skip
        answer = self.ask("OffsetCommit", 9, asked)
        if answer is None:
            return
        for part in answer["Topics"][0]["Partitions"]:
            code, index = ErrorCode(part["ErrorCode"]), part["PartitionIndex"]
            if code is ErrorCode.NONE:
                self.committed[index] = offsets[index]
            else:
                assert code in _ELSEWHERE, f"{member.name} in epoch {member.epoch} commits {index}: {code.name}"
                self.close()

    def wait_stable(self) -> None:
        """All members have equal shares, and have committed: turns until that is so."""
        eventually(self._is_stable, f"{len(self.members)} members are stable", not_yet=())

    def _is_stable(self) -> bool:
        before = dict(self.committed)
        self.turn()
        held = [len(member.owned) for member in self.members]
        has_gone_on = all(self.committed.get(index, 0) > before.get(index, 0) for index in range(self.partitions))
        is_whole = sum(held) == self.partitions and max(held) <= min(held) + 1
        return is_whole and has_gone_on and len({member.epoch for member in self.members}) == 1

    def check_offsets(self) -> None:
        """No commit is lost that a member was told of; and none is there that nobody has sent."""
        indexes = list(range(self.partitions))
        asked = {"GroupId": self.group, "MemberId": None, "MemberEpoch": -1,
                 "Topics": [{"Name": self.topic, "PartitionIndexes": indexes}]}  # fmt: skip

        def found() -> dict[int, int] | None:
            answer = self.ask("OffsetFetch", 9, {"Groups": [asked], "RequireStable": False})
            if answer is None:
                return None
            (group,) = answer["Groups"]
            if group["ErrorCode"]:
                assert ErrorCode(group["ErrorCode"]) in _ELSEWHERE, group
                self.close()
                return None
            return {one["PartitionIndex"]: one["CommittedOffset"] for one in group["Topics"][0]["Partitions"]}

        offsets = eventually(found, "offsets are told", not_yet=())
        bad = {index: offset for index, offset in offsets.items()
               if not self.committed.get(index, -1) <= offset <= self.sent.get(index, -1)}  # fmt: skip
        assert not bad, f"{bad} are told; told before: {self.committed}; sent: {self.sent}"
