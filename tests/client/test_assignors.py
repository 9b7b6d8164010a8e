"""How the leader of a classic group divides: what holds for every group, and Kafka's results for some."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpc_broker.client.errors import DamagedDataError
from tpc_broker.client.membership.assignors import ASSIGNORS, GroupMember, cooperative_sticky, sticky
from tpc_broker.client.membership.encoding import (
    Said,
    read_assignment,
    read_subscription,
    written_assignment,
    written_subscription,
)
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import messages
from tpc_broker.kafka.codec import codec


def places(text):
    """``"a0 a1 b0"``."""
    return frozenset(TopicPartition(one[0], int(one[1:])) for one in text.split())


def group(**members):
    """By member id: topics, then what is owned, and in which generation."""
    made = []
    for member_id, said in members.items():
        topics, owned, generation = (*said, 1)[:3] if isinstance(said, tuple) else (said, "", -1)
        made.append(GroupMember(member_id, None, Said(tuple(topics), places(owned), generation)))
    return made


def shown(assignment):
    return {
        member_id: " ".join(f"{topic}{partition}" for topic, partition in sorted(found))
        for member_id, found in assignment.items()
    }


@pytest.mark.parametrize(
    ("name", "members", "counts", "expected"),
    [
        ("range", {"x": "ab", "y": "ab"}, {"a": 3, "b": 3}, {"x": "a0 a1 b0 b1", "y": "a2 b2"}),
        ("range", {"x": "ab", "y": "b"}, {"a": 2, "b": 3}, {"x": "a0 a1 b0 b1", "y": "b2"}),
        ("range", {"x": "a", "y": "a"}, {"a": 1}, {"x": "a0", "y": ""}),
        ("roundrobin", {"x": "ab", "y": "ab"}, {"a": 3, "b": 3}, {"x": "a0 a2 b1", "y": "a1 b0 b2"}),
        ("roundrobin", {"x": "a", "y": "ab", "z": "abc"}, {"a": 1, "b": 2, "c": 3},
         {"x": "a0", "y": "b0", "z": "b1 c0 c1 c2"}),
        ("cooperative-sticky", {"x": "a", "y": "a"}, {"a": 4}, {"x": "a0 a1", "y": "a2 a3"}),
        ("cooperative-sticky", {"x": ("a", "a0 a1 a2 a3"), "y": "a"}, {"a": 4}, {"x": "a0 a1", "y": ""}),
        ("cooperative-sticky", {"x": ("a", "a0 a1"), "y": "a"}, {"a": 4}, {"x": "a0 a1", "y": "a2 a3"}),
        ("cooperative-sticky", {"x": ("a", "a0"), "y": ("a", "a1")}, {"a": 1}, {"x": "a0", "y": ""}),
        ("range", {"x": "q"}, {}, {"x": ""}),
        ("roundrobin", {"x": "q"}, {}, {"x": ""}),
        ("cooperative-sticky", {"x": "q"}, {}, {"x": ""}),
    ],
)  # fmt: skip
def test_examples(name, members, counts, expected):
    assert shown(ASSIGNORS[name](group(**members), counts)) == expected


def test_static_members_have_the_same_part_under_another_member_id():
    def divided(*ids):
        members = [GroupMember(one, instance, Said(("a",))) for one, instance in zip(ids, "pqr", strict=True)]
        given = ASSIGNORS["range"](members, {"a": 6})
        return {member.instance_id: given[member.member_id] for member in members}

    assert divided("1", "2", "3") == divided("9", "1", "4")


def test_of_two_claims_the_newer_one_counts_and_of_equal_ones_none():
    newer = group(x=("a", "a0", 5), y=("a", "a0", 7))
    assert shown(cooperative_sticky(newer, {"a": 1})) == {"x": "", "y": "a0"}
    equal = group(x=("a", "a0", 5), y=("a", "a0", 5))
    (owner,) = [member_id for member_id, found in cooperative_sticky(equal, {"a": 1}).items() if found]
    assert owner in "xy"


MEMBERS = st.integers(1, 6).flatmap(
    lambda count: st.lists(
        st.tuples(
            st.sets(st.sampled_from("abc"), min_size=0, max_size=3),
            st.frozensets(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 7))),
            st.integers(-1, 3),
        ),
        min_size=count,
        max_size=count,
    )
)
COUNTS = st.fixed_dictionaries({}, optional={name: st.integers(0, 7) for name in "abc"})


def made(said):
    return [
        GroupMember(f"m{number}", None, Said(tuple(sorted(topics)), owned, generation))
        for number, (topics, owned, generation) in enumerate(said)
    ]


def check_whole(members, counts, given):
    """Each partition of a topic that somebody subscribes to is given once, to somebody who does."""
    topics = {topic for member in members for topic in member.said.topics} & counts.keys()
    wanted = [TopicPartition(topic, partition) for topic in topics for partition in range(counts[topic])]
    assert sorted(where for found in given.values() for where in found) == sorted(wanted)
    for member in members:
        assert {where.topic for where in given[member.member_id]} <= set(member.said.topics)


def check_even(members, given):
    for giver, taker in product(members, members):
        if len(given[giver.member_id]) >= len(given[taker.member_id]) + 2:
            assert not {where.topic for where in given[giver.member_id]} & set(taker.said.topics)


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@settings(derandomize=True, deadline=None, max_examples=25)
@given(said=MEMBERS, counts=COUNTS)
def test_everything_is_given_once(name, said, counts):
    members = made(said)
    check_whole(members, counts, ASSIGNORS[name](members, counts))


@settings(derandomize=True, deadline=None, max_examples=60)
@given(said=MEMBERS, counts=COUNTS)
def test_sticky_is_whole_and_even_and_cooperative_never_takes_away_at_once(said, counts):
    members = made(said)
    given = sticky(members, counts)
    check_whole(members, counts, given)
    check_even(members, given)
    at_once = cooperative_sticky(members, counts)
    for member in members:
        mine = at_once[member.member_id]
        assert mine <= given[member.member_id]
        others = {where for other in members if other is not member for where in other.said.owned}
        assert not mine & others - member.said.owned


def rounds(members, counts):
    """Until nobody has to give anything back."""
    for count in range(4):
        given = cooperative_sticky(members, counts)
        after = [
            GroupMember(m.member_id, None, Said(m.said.topics, frozenset(given[m.member_id]), count)) for m in members
        ]
        if not any(m.said.owned - given[m.member_id] for m in members) and count:
            return after
        members = after
    raise AssertionError("more than four rounds")


@pytest.mark.parametrize("seed", range(10))
def test_of_a_settled_group_little_moves(seed):
    chance = Random(seed)
    counts = {"a": chance.randint(1, 30), "b": chance.randint(0, 9)}
    settled = rounds([GroupMember(f"m{n}", None, Said(("a", "b"))) for n in range(chance.randint(2, 7))], counts)
    assert rounds(settled, counts) == [
        GroupMember(m.member_id, None, m.said._replace(generation=1)) for m in settled
    ], "nothing moves when nothing changed"
    gone = settled.pop(chance.randrange(len(settled)))
    after = rounds(settled, counts)
    for before, now in zip(settled, after, strict=True):
        assert before.said.owned <= now.said.owned, "who stays keeps all it had"
    total = sum(counts.values())
    joined = rounds([*after, GroupMember("new", None, Said(("a", "b")))], counts)
    share = total // len(joined)
    moved = sum(len(before.said.owned - now.said.owned) for before, now in zip(after, joined, strict=False))
    assert moved <= share + 1, (gone.member_id, moved)


def test_what_is_written_is_read():
    said = Said(("b", "a"), places("a1 b0"), 7, "here")
    data = written_subscription(said, is_sticky=True)
    assert read_subscription(data) == said._replace(topics=("a", "b"))
    assert read_assignment(written_assignment(places("a1 a0 b2"))) == places("a0 a1 b2")
    assert read_assignment(b"") == frozenset()


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_older_members_are_understood(version):
    kind = messages.ConsumerProtocolSubscription
    message = kind(topics=["a"], user_data=(9).to_bytes(4, "big"))
    if version >= 1:
        message.owned_partitions = [kind.TopicPartition(topic="a", partitions=[1])]
    if version >= 2:
        message.generation_id = 5
    data = version.to_bytes(2, "big") + b"".join(codec("ConsumerProtocolSubscription", version).encode_parts(message))
    said = read_subscription(data)
    assert said.topics == ("a",)
    assert said.owned == (places("a1") if version >= 1 else frozenset())
    assert said.generation == (5 if version >= 2 else 9)


@pytest.mark.parametrize("data", [b"", b"\0", b"\xff\xff", b"\0\1\0\0\0\x09abc"])
def test_what_is_damaged_is_told(data):
    with pytest.raises(DamagedDataError):
        read_subscription(data)
