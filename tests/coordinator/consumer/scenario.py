"""Consumer groups in a scenario: topics that come and go, heartbeats, and clients that do as they are told.

As in `tests.coordinator.scenario`, writes are durable at once unless `hold` is set. When one fails that ran ahead, the
machine is unloaded, and another one begins with the log as it is.
"""

import uuid
from dataclasses import replace

from tests.coordinator.scenario import Scenario
from tpc_broker.coordinator import GroupCoordinator
from tpc_broker.coordinator.consumer.messages import ConsumerHeartbeat, ConsumerSettings, KnownTopic
from tpc_broker.coordinator.consumer.records import ResolvedRegex
from tpc_broker.error_codes import ErrorCode
from tpc_broker.model import TopicId

SESSION_MS, INTERVAL_MS = 45_000, 1_000
RESTARTED = {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}
"""What makes a client give up all it has, and join again."""


class FakeTopics:
    """The cluster's topics, by what a test says of them."""

    def __init__(self, **partitions_counts):
        self.version = 0
        self.by_name = {}
        self.made = 0
        for name, count in partitions_counts.items():
            self.make(name, count)

    def make(self, name, partitions_count, racks=()):
        """A new one, or with the same name another one."""
        self.made += 1
        topic_id = TopicId(uuid.UUID(int=self.made))
        self._put(KnownTopic(topic_id, name, partitions_count, racks))
        return topic_id

    def grow(self, name, partitions_count):
        self._put(replace(self.by_name[name], partitions_count=partitions_count))

    def delete(self, name):
        del self.by_name[name]
        self.version += 1

    def _put(self, topic):
        self.by_name[topic.name] = topic
        self.version += 1

    def named(self, name):
        return self.by_name.get(name)

    def of_id(self, topic_id):
        return next((topic for topic in self.by_name.values() if topic.topic_id == topic_id), None)

    def names(self):
        return self.by_name.keys()


def in_turn(spec):
    """An assignor that can be followed by eye: each topic's partitions go round its subscribers, by member id."""
    targets = {member_id: {} for member_id in spec.members}
    for topic_id, topic in sorted(spec.topics.items(), key=lambda item: item[0].bytes):
        subscribers = sorted(member_id for member_id, member in spec.members.items() if topic_id in member.topics)
        for partition in range(topic.partitions_count if subscribers else 0):
            member_id = subscribers[partition % len(subscribers)]
            targets[member_id].setdefault(topic_id, set()).add(partition)
        yield
    return {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in target.items()}
        for member_id, target in targets.items()
    }


class ConsumerScenario(Scenario):
    """`topics` is by name, with numbers of partitions. Settings may be changed at any time: of all groups, and of some
    in `settings_by_group`.
    """

    begin_ms = 1_000_000
    """Long after 1970, when groups that have no target yet were given one."""

    def __init__(self, topics=None, assignors=None, **limits):
        self.topics = FakeTopics(**({"t": 4} if topics is None else topics))
        self.assignors = assignors or {"uniform": in_turn, "range": in_turn}
        self.settings = ConsumerSettings(session_timeout_ms=SESSION_MS, assignment_interval_ms=INTERVAL_MS)
        self.settings_by_group = {}
        self.room = True
        super().__init__(**limits)

    def new_machine(self):
        return GroupCoordinator(
            self.limits,
            self.fate_of,
            settings_of=lambda group_id: self.settings_by_group.get(group_id, self.settings),
            topics=self.topics,
            assignors=self.assignors,
            has_room=lambda: self.room,
        )

    # Heartbeats. `beat` returns the token; the answer, when it is there, is in `replies`.

    def beat(self, member_id, epoch, group="g", **details):
        token = self.token(f"beat {member_id}")
        details.setdefault("client_id", "client")
        request = ConsumerHeartbeat(group_id=group, member_id=member_id, member_epoch=epoch, **details)
        self.run(self.machine.consumer_heartbeat(request, token, self.now, f"made-{self.tokens}"))
        return token

    def told(self, member_id, epoch, group="g", **details):
        """The answer to a heartbeat, which is there at once."""
        return self.replies[self.beat(member_id, epoch, group, **details)]

    def join_consumers(self, member_id, *topics, group="g", **details):
        """The answer to a whole heartbeat of epoch 0."""
        details = {"rebalance_timeout_ms": 10_000, "topic_names": topics or ("t",), "owned": {}, **details}
        return self.told(member_id, 0, group, **details)

    def stable_consumers(self, *member_ids, topics=("t",), group="g", **details):
        """A stable group of these members: clients by name."""
        clients = {member_id: Client(self, member_id, *topics, group=group, **details) for member_id in member_ids}
        self.until_stable(*clients.values())
        return clients

    def until_stable(self, *clients):
        """These are all that a group has; they send heartbeats until nobody has anything to wait for."""
        for _ in range(10):
            for client in clients:
                client.beat()
            group = self.described(clients[0].group)
            if group.state == "Stable" and all(client.is_settled for client in clients):
                return
            self.wait(INTERVAL_MS)
        raise AssertionError(f"not stable: {group}")

    def resolve(self, pattern, *topics, group="g", has_more=False):
        """What an expression of a group matches, as the driver finds it out."""
        found = {pattern: ResolvedRegex(topics, self.topics.version, self.now)}
        self.run(self.machine.expressions_resolved(group, found, self.now, has_more=has_more))

    # What can be seen.

    def described(self, group="g"):
        token = self.token("describe")
        self.run(self.machine.describe_consumer_group(group, token, self.now))
        return self.replies[token]

    def names(self, partitions):
        """Partitions by the names of their topics, as lists."""
        names = {topic.topic_id: topic.name for topic in self.topics.by_name.values()}
        return {names[topic_id]: sorted(indexes) for topic_id, indexes in partitions.items()}

    def owned_by(self, group="g"):
        """What each member has, by the coordinator."""
        return {member.member_id: self.names(member.assignment) for member in self.described(group).members}


class Client:
    """One that does as it is told: it gives back what it is no longer assigned, and says what it has each time."""

    def __init__(self, scenario, member_id, *topics, group="g", **details):
        self.s = scenario
        self.member_id = member_id
        self.group = group
        self.asked = {"topic_names": topics, "rebalance_timeout_ms": 10_000, **details}
        self.epoch = 0
        self.owned = {}
        self.is_settled = False
        """Whether its last heartbeat brought nothing new."""

    def beat(self):
        """Sends a heartbeat, and does what the answer says."""
        whole = self.asked if self.epoch == 0 else {}
        instance = {"instance_id": self.asked["instance_id"]} if "instance_id" in self.asked else {}
        details = {**instance, **whole, "owned": self.owned}
        response = self.s.told(self.member_id, self.epoch, self.group, **details)
        before = self.epoch, self.owned
        if response.error_code in RESTARTED:
            self.epoch, self.owned = 0, {}
        elif response.error_code is ErrorCode.NONE:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = response.assignment
        self.is_settled = response.error_code is ErrorCode.NONE and before == (self.epoch, self.owned)
        return response

    def topic_id(self, name="t"):
        return self.s.topics.named(name).topic_id

    def leave(self, epoch=-1):
        instance = {"instance_id": self.asked["instance_id"]} if "instance_id" in self.asked else {}
        return self.s.told(self.member_id, epoch, self.group, **instance)
