"""The assignors of KIP-848: what must always be so, what Apache Kafka answers, and that they do not hold up a core."""

import itertools
import json
import random
import sys
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.assignor_cases import as_row, run_all, spec_of
from tpc_broker.coordinator.assignors import ASSIGNORS, GroupSpec, MemberSpec, TopicSpec, assign
from tpc_broker.model import TopicId

ROWS = json.loads((Path(__file__).parent / "golden" / "assignments.json").read_text())
ASSIGNORS_DIR = str(Path(sys.modules[assign.__module__].__file__).parent)
NAMES = sorted(ASSIGNORS)
GONE = TopicId(uuid.UUID(int=77))
"""A topic that does not exist."""


def sizes(targets):
    return {member_id: sum(map(len, target.values())) for member_id, target in targets.items()}


def owned(targets):
    """By (topic, partition): who has it. Nobody may have one twice or beside another."""
    found = {}
    for member_id, target in targets.items():
        for topic_id, partitions in target.items():
            assert partitions, "a topic without partitions is left out"
            for partition in partitions:
                assert (topic_id, partition) not in found
                found[topic_id, partition] = member_id
    return found


def given_before(spec, targets):
    """The group once it has got these targets."""
    members = {key: replace(each, assigned=targets.get(key, {})) for key, each in spec.members.items()}
    return GroupSpec(members, spec.topics)


def member(topics, assigned=None, rack_id=None, instance_id=None):
    return MemberSpec(frozenset(topics), assigned or {}, rack_id, instance_id)


def without(spec, member_id):
    return GroupSpec({key: each for key, each in spec.members.items() if key != member_id}, spec.topics)


def with_member(spec, member_id, each):
    return GroupSpec({**spec.members, member_id: each}, spec.topics)


def moved(before, after):
    """How many partitions have gone from one member to another, of those that both times have an owner."""
    then, now = owned(before), owned(after)
    return sum(now[key] != owner for key, owner in then.items() if key in now)


@st.composite
def topics(draw):
    ids = draw(st.lists(st.uuids(), min_size=1, max_size=6, unique=True))
    counts = st.integers(1, 12)
    return {TopicId(each): TopicSpec(draw(counts), ()) for each in ids if each != GONE}


@st.composite
def groups(draw, *, alike=None):
    """Any state: partitions that are nobody's or several members', that their topic lacks, of topics that are gone."""
    there = draw(topics())
    all_of_them = st.frozensets(st.sampled_from([*there, GONE]))
    shared = draw(all_of_them) if alike or (alike is None and draw(st.booleans())) else None
    members = {}
    for member_id in draw(st.lists(st.text("abcé", min_size=1, max_size=3), min_size=1, max_size=7, unique=True)):
        partitions = st.frozensets(st.integers(0, 13), min_size=1, max_size=6)
        assigned = draw(st.dictionaries(st.sampled_from([*there, GONE]), partitions, max_size=4))
        subscription = draw(all_of_them) if shared is None else shared
        instance_id = f"i{len(members)}" if draw(st.booleans()) else None
        members[member_id] = MemberSpec(subscription, assigned, draw(st.sampled_from([None, "x", "y"])), instance_id)
    return GroupSpec(members, there)


def settled(name, spec):
    return given_before(spec, assign(name, spec))


@pytest.mark.parametrize("name", NAMES)
@given(spec=groups())
def test_every_partition_has_one_owner_who_subscribes_to_its_topic(name, spec):
    targets = assign(name, spec)
    assert targets.keys() == spec.members.keys()
    wanted = set().union(*(each.topics for each in spec.members.values())) & spec.topics.keys()
    expected = {(topic, partition) for topic in wanted for partition in range(spec.topics[topic].partitions_count)}
    found = owned(targets)
    assert found.keys() == expected
    assert all(topic in spec.members[owner].topics for (topic, _partition), owner in found.items())


@pytest.mark.parametrize("name", NAMES)
@given(spec=groups(), seed=st.integers(0, 99))
def test_the_answer_depends_on_no_order_of_mappings_and_on_no_rack(name, spec, seed):
    chance = random.Random(seed)

    def shuffled(mapping):
        return dict(chance.sample(list(mapping.items()), len(mapping)))

    members = {
        key: MemberSpec(each.topics, shuffled(each.assigned), None, each.instance_id)
        for key, each in shuffled(spec.members).items()
    }
    racks = frozenset("xyz")
    there = {
        key: replace(each, racks=(racks,) * each.partitions_count) for key, each in shuffled(spec.topics).items()
    }
    assert assign(name, GroupSpec(members, there)) == assign(name, spec)


@pytest.mark.parametrize("name", NAMES)
@given(spec=groups())
def test_who_is_asked_again_answers_the_same(name, spec):
    first = assign(name, spec)
    assert assign(name, given_before(spec, first)) == first


@pytest.mark.parametrize("name", NAMES)
@given(spec=groups(), data=st.data())
def test_topics_that_do_not_exist_change_nothing(name, spec, data):
    members = {
        key: replace(each, topics=each.topics | {GONE} if data.draw(st.booleans()) else each.topics - {GONE})
        for key, each in spec.members.items()
    }
    assert assign(name, GroupSpec(members, spec.topics)) == assign(name, spec)


@pytest.mark.parametrize("name", NAMES)
def test_a_group_without_members_has_no_targets(name):
    assert assign(name, GroupSpec({}, {GONE: TopicSpec(3, ())})) == {}


@given(groups(alike=True))
def test_uniform_is_even_within_one_when_all_subscribe_alike(spec):
    found = sizes(assign("uniform", spec)).values()
    assert max(found) - min(found) <= 1


@given(groups(alike=False))
def test_no_member_with_two_fewer_could_take_a_partition(spec):
    targets = assign("uniform", spec)
    counts = sizes(targets)
    for (topic, _partition), owner in owned(targets).items():
        fewest = min(counts[key] for key, each in spec.members.items() if topic in each.topics)
        assert counts[owner] - fewest <= 1


@given(groups(alike=True), st.data())
def test_who_leaves_moves_only_what_was_its_own(spec, data):
    spec = settled("uniform", spec)
    leaving = data.draw(st.sampled_from(sorted(spec.members)))
    after = assign("uniform", without(spec, leaving))
    for member_id, target in after.items():
        for topic_id, partitions in spec.members[member_id].assigned.items():
            assert partitions <= target[topic_id]


@given(groups(alike=True), st.sampled_from(["", "bb", "zz"]))
def test_who_joins_moves_only_what_it_gets(spec, newcomer):
    spec = settled("uniform", spec)
    before = {key: each.assigned for key, each in spec.members.items()}
    subscription = next(iter(spec.members.values())).topics
    after = assign("uniform", with_member(without(spec, newcomer), newcomer, member(subscription)))
    if newcomer not in before:
        assert moved(before, after) == sizes(after)[newcomer]


@given(groups(alike=True), st.data())
def test_a_topic_that_grows_moves_nothing(spec, data):
    spec = settled("uniform", spec)
    topic_id = data.draw(st.sampled_from(sorted(spec.topics)))
    grown = TopicSpec(spec.topics[topic_id].partitions_count + data.draw(st.integers(1, 9)), ())
    after = assign("uniform", GroupSpec(spec.members, {**spec.topics, topic_id: grown}))
    assert moved({key: each.assigned for key, each in spec.members.items()}, after) == 0


@given(groups(alike=False), groups(alike=False), st.data())
def test_members_that_share_no_topic_do_not_concern_one_another(one, other, data):
    """Two groups in one; what happens to the members of one half moves nothing in the other."""
    taken = {topic_id: each for topic_id, each in other.topics.items() if topic_id not in one.topics}
    members = {}
    for half, group, there in (("1", one, one.topics), ("2", other, taken)):
        for key, each in group.members.items():
            members[half + key] = replace(each, topics=each.topics.intersection(there))
    both = settled("uniform", GroupSpec(members, {**one.topics, **taken}))
    leaving = data.draw(st.sampled_from(sorted(key for key in members if key[0] == "2")))
    changed = with_member(without(both, leaving), "2new", member(taken))
    after = assign("uniform", changed)
    if not (subscribe_alike(both) or subscribe_alike(changed)):
        assert all(after[key] == both.members[key].assigned for key in members if key[0] == "1")


def subscribe_alike(spec):
    """Such a group is assigned in another way, with other answers."""
    return len({each.topics.intersection(spec.topics) for each in spec.members.values()}) == 1


def precedence(spec, member_id):
    instance_id = spec.members[member_id].instance_id
    return (1, member_id) if instance_id is None else (0, instance_id)


@given(groups())
def test_range_cuts_each_topic_into_runs_in_the_order_of_members(spec):
    targets = assign("range", spec)
    for topic_id, topic in spec.topics.items():
        subscribers = [key for key, each in spec.members.items() if topic_id in each.topics]
        subscribers.sort(key=lambda key: precedence(spec, key))
        runs = [sorted(targets[key].get(topic_id, ())) for key in subscribers]
        assert list(itertools.chain.from_iterable(runs)) == list(range(topic.partitions_count if runs else 0))
        lengths = [len(run) for run in runs]
        assert lengths == sorted(lengths, reverse=True)
        assert not lengths or lengths[0] - lengths[-1] <= 1


@given(groups(alike=True))
def test_range_gives_one_member_the_same_partitions_of_topics_that_are_alike(spec):
    alike = GroupSpec(spec.members, {topic_id: TopicSpec(7, ()) for topic_id in spec.topics})
    for target in assign("range", alike).values():
        assert len(set(target.values())) <= 1


@given(groups(), st.data())
def test_range_gives_a_static_member_that_comes_back_what_it_had(spec, data):
    static = [key for key, each in spec.members.items() if each.instance_id is not None]
    if not static:
        return
    replaced = data.draw(st.sampled_from(sorted(static)))
    again = with_member(without(spec, replaced), data.draw(st.sampled_from(["", "zz"])), spec.members[replaced])
    before, after = assign("range", spec), assign("range", again)
    assert [each for _key, each in sorted(after.items(), key=lambda pair: precedence(again, pair[0]))] == [
        each for _key, each in sorted(before.items(), key=lambda pair: precedence(spec, pair[0]))
    ]


def test_the_table_is_of_the_cases_that_stand_in_the_code():
    rows = iter(ROWS)

    def kafka(row):
        answered = next(rows)
        assert answered | row == answered
        return answered

    run_all(kafka)
    assert next(rows, None) is None


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_what_kafka_answers(row):
    """Who gets what; where Kafka's hash tables decide that of `uniform`, how much everybody gets and how much moves:
    who is looked at first, and which topic is given out first, is then another in each run of other member ids.
    """
    theirs = {member_id: row["answer"].get(member_id, {}) for member_id in row["members"]}
    ours = as_row(assign(row["assignor"], spec_of(row)))
    if row["assignor"] == "range" or row["order"] == "sorted":
        assert ours == theirs
    else:
        before = {member_id: each["assigned"] for member_id, each in row["members"].items() if "assigned" in each}
        assert Counter(sizes(ours).values()) == Counter(sizes(theirs).values())
        assert moved(before, ours) == moved(before, theirs)


def test_kafka_asks_for_no_rack():
    rows = [row for row in ROWS if any("racks" in each for each in row["topics"].values())]
    assert len(rows) >= 6
    assert {row["racks_asked"] for row in ROWS} == {0}


def instructions_between_yields(steps):
    """How many of Python's instructions the assignors run at most from one yield to the next, and all together."""
    count, counts = 0, []

    def trace(frame, event, _argument):
        nonlocal count
        if not frame.f_code.co_filename.startswith(ASSIGNORS_DIR):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    traced = sys.gettrace()
    sys.settrace(trace)
    try:
        for _step in steps:
            counts.append(count)
            count = 0
    finally:
        sys.settrace(traced)
    return max([*counts, count]), sum(counts) + count


def many(members, topics_count, partitions, *, subscriptions=1, assigned=False):
    """A large group. `assigned`: one member has all of a topic."""
    ids = [TopicId(uuid.UUID(int=number + 1)) for number in range(topics_count)]
    wanted = [frozenset(ids[number::subscriptions]) | {ids[0]} for number in range(subscriptions)]
    there = {topic_id: TopicSpec(partitions, ()) for topic_id in ids}
    found = {f"m{number:04}": member(wanted[number % subscriptions]) for number in range(members)}
    if assigned:
        for number, topic_id in enumerate(ids):
            key = f"m{number % subscriptions:04}"
            held = {**found[key].assigned, topic_id: frozenset(range(partitions))}
            found[key] = replace(found[key], assigned=held)
    return GroupSpec(found, there)


LARGE = {
    "members": many(2_500, 1, 30),
    "topics": many(2, 3_000, 1),
    "partitions": many(2, 1, 6_000),
    "partitions that are somebody's": many(2, 1, 6_000, assigned=True),
    "partitions of many topics": many(2, 200, 30),
    "all of it": many(50, 50, 40),
    "subscriptions": many(300, 100, 10, subscriptions=50),
    "partitions that move": many(40, 3, 2_000, subscriptions=3, assigned=True),
    "topics that somebody has": many(40, 2_000, 1, subscriptions=3, assigned=True),
}


IN_ONE_STEP = {
    ("range", "partitions"), ("range", "partitions that are somebody's"), ("range", "partitions that move"),
}  # fmt: skip
"""Large runs, but few of them."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", LARGE)
def test_others_are_let_run_every_few_hundred_operations(name, case):
    """Counted in instructions of Python, some 50 for an operation, so that the machine's speed is no matter. 25,000 of
    them are less than a millisecond.
    """
    longest, total = instructions_between_yields(ASSIGNORS[name](LARGE[case]))
    assert longest <= 25_000
    assert total > longest or (name, case) in IN_ONE_STEP
