"""Members of both protocols in histories of chance beside the broker's own coordinator, without I/O."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.coordinated_members import Coordinator, Member
from tpc_broker.client.membership.settings import GroupSettings
from tpc_broker.client.requests import TopicPartition

TOPICS = {"a": 5, "b": 3}
NAP_TURNS = 150
"""Longer than a session lasts."""
KINDS = {
    "cooperative": {"protocol": "classic", "assignors": ("cooperative-sticky",)},
    "eager": {"protocol": "classic", "assignors": ("range", "roundrobin")},
    "consumer": {"protocol": "consumer"},
}


def settings(kind, **more):
    return GroupSettings("g", session_seconds=10, heartbeat_seconds=1, max_work_seconds=20, **(KINDS[kind] | more))


class History:
    """Members come, go, nap, are killed, lose answers: no partition is held by two that the coordinator counts."""

    def __init__(self, kind, seed):
        self.kind = kind
        self.chance = Random(seed)
        self.coordinator = Coordinator(dict(TOPICS))
        self.members = []
        self.killed = []
        self.naps = {}
        self.made = 0

    def comes(self):
        self.made += 1
        more = {"instance_id": f"static-{self.made}"} if self.chance.random() < 0.2 else {}
        names = tuple(TOPICS) if self.chance.random() < 0.7 else ("a",)
        member = Member(self.coordinator, settings(self.kind, **more), names, self.chance, self.made)
        member.losses, member.slowness = self.chance.choice([0.0, 0.1, 0.3]), self.chance.choice([0, 2, 8])
        self.members.append(member)

    def comes_again(self):
        """A static member that is started again, while the killed one may still be counted."""
        dead = [member for member in self.killed if member.settings.instance_id]
        if dead:
            self.made += 1
            before = self.killed.pop(self.killed.index(dead[-1]))
            self.members.append(Member(self.coordinator, before.settings, before.names, self.chance, self.made))

    def turn(self):
        what = self.chance.random()
        if what < 0.01 and len(self.members) < 6:
            self.comes()
        elif what < 0.015 and len(self.members) > 1:
            self.members.pop(self.chance.randrange(len(self.members))).leave()
        elif what < 0.02 and len(self.members) > 1:
            self.killed.append(self.members.pop(self.chance.randrange(len(self.members))))
        elif what < 0.025:
            self.comes_again()
        elif what < 0.03:
            self.naps[self.chance.choice(self.members)] = NAP_TURNS
        elif what < 0.032:
            self.grows()
        elif what < 0.034:
            self.chance.choice(self.members).stays_away()
        elif what < 0.05:
            for member in self.members:
                member.machine.resume()
        self.naps = {member: turns - 1 for member, turns in self.naps.items() if turns > 1}
        awake = [member for member in self.members if member not in self.naps]
        self.go_on(self.chance.sample(awake, k=self.chance.randint(0, len(awake))))

    def grows(self):
        known = self.coordinator.topics
        known.grow("a", known.named("a").partitions_count + 1)
        self.coordinator.run(self.coordinator.machine.topics_changed(self.coordinator.now))
        for member in self.members:
            member.machine.topics_grew()

    def go_on(self, members):
        self.coordinator.wait(self.chance.choice([10, 100, 300]))
        for member in members:
            member.turn()
            self.check()

    def check(self):
        known = self.coordinator.member_ids("g")
        having = [member for member in self.members if member.machine.identity.member_id in known]
        held = [where for member in having for where in member.held]
        assert len(held) == len(set(held)), [(member.machine.identity, member.held) for member in having]

    def settles(self):
        for member in self.members:
            member.losses, member.slowness = 0.0, 0
            member.machine.resume()
            member.machine.topics_grew()
        places = {
            TopicPartition(name, partition)
            for name, topic in self.coordinator.topics.by_name.items()
            for partition in range(topic.partitions_count)
        }
        for _ in range(3_000):
            self.go_on(self.members)
            held = [where for member in self.members for where in member.held]
            wanted = {where for where in places if any(where.topic in member.names for member in self.members)}
            if len(held) == len(wanted) and set(held) == wanted and all(member.is_quiet for member in self.members):
                return
        raise AssertionError([(m.machine.identity, m.held, m.machine.step()) for m in self.members])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_no_partition_is_held_twice_and_all_are_in_the_end(kind, seed):
    history = History(kind, seed)
    history.comes()
    for _ in range(600):
        history.turn()
    history.settles()
    for member in history.members:
        assert member.held == member.machine.owned
