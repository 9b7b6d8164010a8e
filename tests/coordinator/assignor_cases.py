"""The table of cases on which our assignors and Apache Kafka's are compared: groups that change step by step.

Each step is one assignment, on what the one before has answered. Kafka answers when the table is made
(`tools/golden_assignments.py`), and the table is committed as `golden/assignments.json`.

Kafka goes through members and topics in the order of its hash tables. The steps here are put to it in a defined
order, the one that is ours: it is given sorted members and partitions, and small numbers as topic ids, which a Java
hash set has in their order. So it can be asked who gets what. `in_hash_order` has it work as it does in a broker.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tpc_broker.coordinator.assignors import GroupSpec, MemberSpec, TopicSpec
from tpc_broker.model import TopicId

Row = dict[str, Any]
Targets = dict[str, dict[str, list[int]]]
Kafka = Callable[[Row], Row]
"""Gets a row without an answer and gives it back with one."""


def topic_id_of(text: str) -> TopicId:
    return TopicId(uuid.UUID(int=int(text, 16)))


def spec_of(row: Row) -> GroupSpec:
    return GroupSpec(
        {
            member_id: MemberSpec(
                frozenset(topic_id_of(topic) for topic in member["topics"]),
                {topic_id_of(topic): frozenset(found) for topic, found in member.get("assigned", {}).items()},
                member.get("rack"),
                member.get("instance"),
            )
            for member_id, member in row["members"].items()
        },
        {
            topic_id_of(topic): TopicSpec(each["partitions"], tuple(map(frozenset, each.get("racks", ()))))
            for topic, each in row["topics"].items()
        },
    )


def as_row(targets) -> Targets:
    """Our answer in the table's form."""
    return {
        member_id: {f"{topic_id.int:x}": sorted(partitions) for topic_id, partitions in target.items()}
        for member_id, target in targets.items()
    }


@dataclass
class Group:
    """A group that Kafka assigns. Members and topics are changed by the steps' authors, between `assign`s."""

    kafka: Kafka
    name: str
    assignor: str
    order: str = "sorted"
    members: dict[str, Row] = field(default_factory=dict)
    topics: dict[str, Row] = field(default_factory=dict)

    def topic(self, topic: str | int, partitions: int, racks: list[list[str]] | None = None) -> None:
        self.topics[str(topic)] = {"partitions": partitions} | ({"racks": racks} if racks else {})

    def join(self, member_id: str, *topics: str | int, **details: str) -> None:
        self.members[member_id] = {"topics": sorted(map(str, topics)), **details}

    def subscribe(self, member_id: str, *topics: str | int) -> None:
        self.members[member_id]["topics"] = sorted(map(str, topics))

    def leave(self, member_id: str) -> Row:
        return self.members.pop(member_id)

    def assign(self, step: str) -> None:
        members = {member_id: dict(self.members[member_id]) for member_id in sorted(self.members)}
        answered = self.kafka(
            {
                "name": f"{self.name}: {step}",
                "assignor": self.assignor,
                "order": self.order,
                "topics": {topic: dict(self.topics[topic]) for topic in sorted(self.topics)},
                "members": members,
            }
        )
        for member_id, member in self.members.items():
            member["assigned"] = answered["answer"].get(member_id, {})


def grows_and_shrinks(group: Group) -> None:
    group.topic(1, 10)
    for number in (3, 1, 5, 2, 4):
        group.join(f"m{number}", 1)
        group.assign(f"m{number} joins")
    for number in (1, 4, 3):
        group.leave(f"m{number}")
        group.assign(f"m{number} leaves")


def several_topics(group: Group) -> None:
    for topic, partitions in ((1, 7), (2, 5), (3, 2)):
        group.topic(topic, partitions)
    for number in range(4):
        group.join(f"m{number}", 1, 2, 3)
    group.assign("from nothing")
    group.join("m15", 1, 2, 3)
    group.assign("one joins")
    group.leave("m1")
    group.assign("one leaves")


def topics_change(group: Group) -> None:
    group.topic(1, 6)
    group.topic(2, 4)
    for number in range(3):
        group.join(f"m{number}", 1)
    group.assign("one topic")
    for member_id in group.members:
        group.subscribe(member_id, 1, 2)
        group.assign(f"{member_id} wants another one, too")
    group.topic(2, 9)
    group.assign("a topic has grown")
    del group.topics["1"]
    group.assign("a topic is gone")
    for member_id in group.members:
        group.subscribe(member_id)
    group.assign("nobody wants anything")


def more_members_than_partitions(group: Group) -> None:
    group.topic(1, 2)
    group.topic(2, 1)
    for number in range(5):
        group.join(f"m{number}", 1, 2)
    group.assign("from nothing")
    group.leave("m4")
    group.leave("m0")
    group.assign("two leave")


def subscriptions_differ(group: Group) -> None:
    for topic, partitions in ((1, 6), (2, 5), (3, 3)):
        group.topic(topic, partitions)
    group.join("a", 1, 2)
    group.join("b", 2, 3)
    group.join("c", 1, 2, 3)
    group.assign("from nothing")
    group.join("d", 3)
    group.assign("one joins")
    group.subscribe("a", 1)
    group.assign("one wants less")
    group.leave("c")
    group.assign("the one that wanted all leaves")
    group.subscribe("d")
    group.assign("one wants nothing")


def subscriptions_have_nothing_in_common(group: Group) -> None:
    group.topic(1, 9)
    group.topic(2, 2)
    group.join("a", 1)
    group.join("b", 1)
    group.join("c", 2)
    group.assign("from nothing")
    group.join("d", 2)
    group.leave("a")
    group.assign("one joins, one leaves")


def becomes_uneven(group: Group) -> None:
    """Who joins can take of one topic only, of which the one with the most has none."""
    group.topic(1, 12)
    group.topic(2, 2)
    group.join("a", 1)
    group.join("b", 2)
    group.assign("two topics, two members")
    group.join("c", 1, 2)
    group.assign("one joins for both")
    group.join("d", 2)
    group.assign("one joins for the small one")


def racks(group: Group) -> None:
    group.topic(1, 6, [["x"], ["y"], ["z"], ["x", "y"], ["y", "z"], ["z", "x"]])
    group.topic(2, 3, [["z"], ["z"], ["x"]])
    group.join("a", 1, rack="z")
    group.join("b", 1, rack="y")
    group.join("c", 1, rack="x")
    group.assign("one topic")
    for member_id in group.members:
        group.subscribe(member_id, 1, 2)
    group.assign("two topics")
    group.subscribe("b", 2)
    group.assign("other subscriptions")


def static_members(group: Group) -> None:
    group.topic(1, 7)
    group.topic(2, 7)
    group.join("z", 1, 2, instance="i1")
    group.join("y", 1, 2, instance="i2")
    group.join("x", 1, 2)
    group.assign("from nothing")
    group.members["a"] = group.leave("y")
    group.assign("a static member has come back")
    group.join("b", 1, 2, instance="i0")
    group.join("w", 1, 2)
    group.assign("one more of each kind")
    group.subscribe("z", 1)
    group.assign("one wants less")


def one_more_stays_where_it_is(group: Group) -> None:
    group.topic(1, 10)
    for member_id, partitions in (("a", [0, 1, 2]), ("b", [3, 4, 5, 6]), ("c", [7, 8, 9])):
        group.join(member_id, 1)
        group.members[member_id]["assigned"] = {"1": partitions}
    group.assign("nothing to do")
    group.topic(1, 11)
    group.assign("one partition more")


def a_long_chain(group: Group) -> None:
    """Each shares a topic with the next one and has all of it; the last has nothing. It takes more rounds to be level
    than Kafka allows.
    """
    for topic in range(1, 9):
        group.topic(topic, 46)
    for number in range(9):
        group.join(f"m{number}", *(topic for topic in (number, number + 1) if 1 <= topic <= 8))
        group.members[f"m{number}"]["assigned"] = {str(number + 1): list(range(46))} if number < 8 else {}
    group.assign("as far as the rounds go")
    group.assign("once more")


def topics_in_a_tie(group: Group) -> None:
    """As many partitions for each subscriber: those with fewer subscribers come first, then in the order of their ids,
    which Kafka compares as signed numbers.
    """
    wide, low, high = f"{1 << 127:x}", f"{1 << 127 | 1:x}", "1"
    for topic, partitions in ((low, 2), (high, 2), (wide, 3)):
        group.topic(topic, partitions)
    group.join("a", low, wide)
    group.join("b", low, high)
    group.join("c", high, wide)
    group.join("d", wide)
    group.assign("one partition for each, of all")
    group.join("e", high)
    group.topic(high, 3)
    group.topic("8000000000000000", 3)
    for member_id in ("a", "b", "e"):
        group.subscribe(member_id, "8000000000000000", high)
    group.assign("ids of either sign")


SCENARIOS = [
    grows_and_shrinks, several_topics, topics_change, more_members_than_partitions, subscriptions_differ,
    subscriptions_have_nothing_in_common, becomes_uneven, racks, static_members,
]  # fmt: skip
UNIFORM_ONLY = [one_more_stays_where_it_is, a_long_chain, topics_in_a_tie]
DIFFERENT_SEEDS = range(14)
ALIKE_SEEDS = range(6)
HASH_SEEDS = range(4)


def _random_start(group: Group, chance: random.Random, topics: list[str]) -> None:
    """Partitions are somebody's, evenly or not, or nobody's."""
    for topic in topics:
        group.topic(topic, chance.randint(1, 12))
    favourites = chance.sample(sorted(group.members), 2)
    for topic in topics:
        for partition in range(group.topics[topic]["partitions"]):
            owner = chance.choice([*group.members, *favourites * 3, None])
            if owner:
                assigned = group.members[owner].setdefault("assigned", {})
                assigned.setdefault(topic, []).append(partition)


def random_subscriptions(group: Group, chance: random.Random) -> None:
    topics = [f"{chance.getrandbits(128):x}" for _topic in range(chance.randint(2, 6))]
    for number in range(chance.randint(4, 8)):
        group.join(f"m{number}", *chance.sample(topics, chance.randint(1, len(topics) - 1)))
    _random_start(group, chance, topics)
    group.assign("start")
    group.leave(chance.choice(sorted(group.members)))
    group.join("late", *chance.sample(topics, 2))
    group.assign("one leaves, one joins")


def random_members(group: Group, chance: random.Random) -> None:
    topics = [f"{number + 1:x}" for number in range(chance.randint(1, 5))]
    for number in range(chance.randint(2, 7)):
        group.join(f"m{number}", *topics)
    _random_start(group, chance, topics)
    group.assign("start")
    group.join("late", *topics)
    group.assign("one joins")


def in_hash_order(group: Group, chance: random.Random) -> None:
    topics = [f"{chance.getrandbits(128):x}" for _topic in range(3)]
    for topic in topics:
        group.topic(topic, chance.randint(3, 20))
    for _number in range(chance.randint(3, 6)):
        group.join(str(uuid.UUID(int=chance.getrandbits(128))), *topics)
    group.assign("start")
    group.join(str(uuid.UUID(int=chance.getrandbits(128))), *topics)
    group.assign("one joins")
    group.leave(sorted(group.members)[1])
    group.assign("one leaves")


def run_all(kafka: Kafka) -> None:
    """Put every case to Kafka, in the table's order."""
    for assignor in ("uniform", "range"):
        for scenario in [*SCENARIOS, *(UNIFORM_ONLY if assignor == "uniform" else [])]:
            scenario(Group(kafka, f"{assignor}, {scenario.__name__}", assignor))
        for seed in HASH_SEEDS:
            in_hash_order(Group(kafka, f"{assignor}, hash order {seed}", assignor, "hash"), random.Random(seed))
    for seed in DIFFERENT_SEEDS:
        random_subscriptions(Group(kafka, f"uniform, subscriptions {seed}", "uniform"), random.Random(seed))
    for seed in ALIKE_SEEDS:
        random_members(Group(kafka, f"uniform, members {seed}", "uniform"), random.Random(seed))
