"""Consumer groups of KIP-848 without consumers: members that only send heartbeats, as clients send them.

A member joins, says at once what it has taken over or given back, and otherwise comes when the coordinator's last
answer asks it to. One thread in Python makes all members, on a connection each.
"""

from __future__ import annotations

import heapq
import selectors
import socket
import time
import uuid
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.bench.bars import GROUP_CPU, GROUP_STABLE_S
from tpc_broker.bench.load import LoadFailed
from tpc_broker.bench.measured import Round, Stage, Workload, figures_round
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import ApiKey, messages, protocol

if TYPE_CHECKING:

    from tpc_broker.bench.peers.kafka_like import Address

GROUPS: Final = 3
"""Measured of one round, after one that warms up."""
PATIENCE_S: Final = 120.0
STEADY_PER_S: Final = 4_000
STEADY_MEMBERS: Final = 200
_HEARTBEAT_VERSION: Final = 1
_FIND_VERSION: Final = 4
_RETRY_S: Final = 0.1
_REBALANCE_MS: Final = 60_000
_ERROR_AT: Final = 4 + 4 + 1 + 4
_RECEIVE_BYTES: Final = 1 << 16
_COME_AGAIN: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
}  # fmt: skip

Places = frozenset[tuple[bytes, int]]
"""Partitions: the topic's id, and the index."""


@dataclass
class Member:
    """One member, which has one heartbeat under way at most."""

    group: str
    topic: str
    connection: socket.socket
    member_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    epoch: int = 0
    assigned: Places = frozenset()
    is_full: bool = True
    """The next heartbeat says all that there is to say."""
    received: bytearray = field(default_factory=bytearray)
    sent_s: float = 0.0

    def request(self) -> bytes:
        kind = messages.ConsumerGroupHeartbeatRequest
        wanted = kind(group_id=self.group, member_id=self.member_id, member_epoch=self.epoch)
        if self.is_full:
            wanted.rebalance_timeout_ms = _REBALANCE_MS
            wanted.subscribed_topic_names = [self.topic]
            by_topic: dict[bytes, list[int]] = {}
            for topic_id, partition in sorted(self.assigned):
                by_topic.setdefault(topic_id, []).append(partition)
            wanted.topic_partitions = [
                kind.TopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in by_topic.items()
            ]
        return framed(ApiKey.CONSUMER_GROUP_HEARTBEAT, _HEARTBEAT_VERSION, wanted)

    def take(self, answer: Any) -> float:
        """In how many seconds it comes again."""
        error = ErrorCode(answer.error_code)
        if error in _COME_AGAIN:
            return _RETRY_S
        if error is not ErrorCode.NONE:
            raise LoadFailed(f"a member of {self.group} was refused: {error.name} {answer.error_message or ''}")
        self.epoch = answer.member_epoch
        self.is_full = False
        if answer.assignment is not None:
            given = frozenset(
                (bytes(topic.topic_id), partition)
                for topic in answer.assignment.topic_partitions
                for partition in topic.partitions
            )
            self.is_full = given != self.assigned
            self.assigned = given
        return 0.0 if self.is_full else answer.heartbeat_interval_ms / 1000


def framed(key: ApiKey, version: int, request: object) -> bytes:
    return b"".join(protocol.encode_request_frame(key, version, 1, "bench", request))


def coordinator_of(address: Address, key: str, key_type: int = 0) -> Address:
    """Of a group (1: of a transactional id), as the broker there tells it."""
    request = messages.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            connection.sendall(framed(ApiKey.FIND_COORDINATOR, _FIND_VERSION, request))
            size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            frame = connection.recv(size, socket.MSG_WAITALL)
        answer: Any = protocol.decode_response_frame(ApiKey.FIND_COORDINATOR, _FIND_VERSION, frame)[1]
        found = answer.coordinators[0]
        if not found.error_code:
            return found.host, found.port
        time.sleep(_RETRY_S)
    raise LoadFailed(f"no coordinator of {key}")


class Members:
    """Of one group. `until_stable` makes them come; they go with their connections."""

    def __init__(self, address: Address, group: str, topic: str, count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int]] = []
        self.heartbeats = 0
        self.longest_s = 0.0
        self.members: list[Member] = []
        for _ in range(count):
            connection = socket.create_connection(address, timeout=PATIENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(connection, selectors.EVENT_READ, len(self.members))
            self.members.append(Member(group, topic, connection))

    def close(self) -> None:
        for member in self.members:
            member.connection.close()
        self._selector.close()

    def until_stable(self, partitions: int) -> float:
        """How many seconds from the first heartbeat until all members are in one epoch, and have each partition once,
        as many as the others within one: behind a first member that has all of them, all are in its epoch, too.
        """
        began_s = time.monotonic()
        self._due = [(began_s, index) for index in range(len(self.members))]
        while not self._is_stable(partitions):
            if time.monotonic() - began_s > PATIENCE_S:
                raise LoadFailed(f"a group of {len(self.members)} is not stable after {PATIENCE_S:g} s")
            self._turn()
        return time.monotonic() - began_s

    def _is_stable(self, partitions: int) -> bool:
        if self.members[0].epoch == 0 or any(one.epoch != self.members[0].epoch for one in self.members):
            return False
        held = [len(one.assigned) for one in self.members]
        if max(held) > min(held) + 1:
            return False
        return sum(held) == partitions == len(frozenset().union(*(one.assigned for one in self.members)))

    def _turn(self) -> None:
        now_s = time.monotonic()
        while self._due and self._due[0][0] <= now_s:
            member = self.members[heapq.heappop(self._due)[1]]
            member.sent_s = time.monotonic()
            member.connection.sendall(member.request())
        wait_s = min(_RETRY_S, max(0.0, self._due[0][0] - now_s)) if self._due else _RETRY_S
        for key, _events in self._selector.select(wait_s):
            self._receive(key.data)

    def _receive(self, index: int) -> None:
        member = self.members[index]
        data = member.connection.recv(_RECEIVE_BYTES)
        if not data:
            raise LoadFailed("a connection was closed by the broker")
        member.received += data
        size = int.from_bytes(member.received[:4], "big")
        if len(member.received) < 4 or len(member.received) < 4 + size:
            return
        frame = bytes(member.received[4:])
        member.received.clear()
        answer = protocol.decode_response_frame(ApiKey.CONSUMER_GROUP_HEARTBEAT, _HEARTBEAT_VERSION, frame)[1]
        now_s = time.monotonic()
        self.heartbeats += 1
        self.longest_s = max(self.longest_s, now_s - member.sent_s)
        heapq.heappush(self._due, (now_s + member.take(answer), index))

    def beat_steadily(self, per_s: float, seconds: float) -> float:
        """Heartbeats that say nothing new, in turn; how many a second were answered, without an error each."""
        requests = [one.request() for one in self.members]
        heard = self.heartbeats
        began_s, sent = time.monotonic(), 0
        while (passed_s := time.monotonic() - began_s) < seconds:
            while sent < passed_s * per_s:
                index = sent % len(self.members)
                self.members[index].connection.sendall(requests[index])
                sent += 1
            for key, _events in self._selector.select(0.001):
                self._hear(self.members[key.data])
        return (self.heartbeats - heard) / seconds

    def _hear(self, member: Member) -> None:
        """Answers that are behind each other, if so. The error stands behind the size, the number of the request, the
        count of tagged fields and the throttle time.
        """
        data = member.connection.recv(_RECEIVE_BYTES)
        if not data:
            raise LoadFailed("a connection was closed by the broker")
        member.received += data
        while len(member.received) >= 4:
            size = int.from_bytes(member.received[:4], "big")
            if len(member.received) < 4 + size:
                return
            error = int.from_bytes(member.received[_ERROR_AT : _ERROR_AT + 2], "big", signed=True)
            if error:
                raise LoadFailed(f"a heartbeat was refused: {ErrorCode(error).name}")
            del member.received[: 4 + size]
            self.heartbeats += 1


def group_from_nothing(workload: Workload, stage: Stage) -> Round:
    """`connections` members that come at once to a topic of so many partitions: when they are stable."""
    peer, shape = stage.kafka_like, workload.shape
    topic = f"load-{workload.key}"
    peer.create_topic(topic, shape.partitions)
    address = peer.broker_addresses()[0]
    took_s, heartbeats, longest_s = list[float](), list[float](), list[float]()
    used_s = list[float]()
    for number in range(GROUPS + 1):
        group = f"{workload.key}-{number}"
        stage.server.settle()
        members = Members(coordinator_of(address, group), group, topic, shape.connections)
        before_s = stage.server.cpu_s()
        try:
            took = members.until_stable(shape.partitions)
        finally:
            members.close()
        if number:
            took_s.append(took)
            used_s.append(stage.server.cpu_s() - before_s)
            heartbeats.append(members.heartbeats)
            longest_s.append(members.longest_s)
    return figures_round(
        stage,
        {
            GROUP_STABLE_S: median(took_s),
            "slowest of these groups, s": max(took_s),
            "server's CPU s until stable": median(used_s),
            "heartbeats until stable": median(heartbeats),
            "longest answer, ms": median(longest_s) * 1e3,
        },
    )


def steady_heartbeats(workload: Workload, stage: Stage) -> Round:
    """A stable group whose members send so many heartbeats a second: what that costs."""
    peer, shape = stage.kafka_like, workload.shape
    topic = f"load-{workload.key}"
    peer.create_topic(topic, shape.partitions)
    members = Members(coordinator_of(peer.broker_addresses()[0], workload.key), workload.key, topic, shape.connections)
    try:
        members.until_stable(shape.partitions)
        members.beat_steadily(shape.rate, stage.extent.warm_up)
        before_s = stage.server.cpu_s()
        rate = members.beat_steadily(shape.rate, stage.extent.measured)
        used_s = stage.server.cpu_s() - before_s
    finally:
        members.close()
    return figures_round(
        stage,
        {
            GROUP_CPU: used_s / stage.extent.measured * 100,
            "heartbeats/s": rate,
            "CPU µs a heartbeat": used_s / stage.extent.measured / rate * 1e6,
        },
    )
