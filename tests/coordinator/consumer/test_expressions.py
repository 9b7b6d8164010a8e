"""When what members subscribe to by expressions raises the epoch of their group: once, when it is resolved."""

import pytest

from tests.coordinator.consumer.members_alone import MembersAlone
from tests.coordinator.consumer.scenario import Client, ConsumerScenario
from tpc_broker.coordinator.consumer import subscribed
from tpc_broker.error_codes import ErrorCode

TOPICS = {"one": 4, "two": 2, "three": 2}


def joined(s, member_id, pattern, *matched):
    """A member by an expression, which has its part."""
    client = Client(s, member_id, topic_regex=pattern)
    client.asked["topic_names"] = None
    client.beat()
    if matched:
        s.resolve(pattern, *matched)
    return client


def two_of_one_pattern():
    s = ConsumerScenario(TOPICS)
    a, b = joined(s, "a", "on.", "one"), joined(s, "b", "on.")
    s.until_stable(a, b)
    return s, a, b


def epoch(s):
    return s.described().group_epoch


def test_another_expression_raises_it_once_when_it_is_resolved():
    s, a, b = two_of_one_pattern()
    before = epoch(s)
    assert s.told("b", b.epoch, topic_regex="tw.").assignment == {}, "it reads nothing that it did not ask for"
    s.told("b", b.epoch, owned={})
    assert epoch(s) == before
    s.resolve("tw.", "two")
    assert epoch(s) == before + 1
    b.owned = {}
    s.until_stable(a, b)
    assert s.owned_by() == {"a": {"one": [0, 1, 2, 3]}, "b": {"two": [0, 1]}}
    assert epoch(s) == before + 1


def test_one_that_is_known_already_raises_it_at_once():
    s, _a, b = two_of_one_pattern()
    joined(s, "c", "tw.", "two")
    before = epoch(s)
    s.told("b", b.epoch, topic_regex="tw.")
    assert epoch(s) == before + 1


@pytest.mark.parametrize("bytes_left", [1 << 30, 0])
def test_what_a_member_does_not_ask_for_any_more_goes_to_others_whatever_its_next_expression_matches(bytes_left):
    """For Kafka nobody reads from those partitions until something else changes."""
    s, a, b = two_of_one_pattern()
    before = epoch(s)
    s.told("b", b.epoch, topic_regex="x")
    assert epoch(s) == before
    s.machine._consumer_membership.subscribed._bytes_left = lambda: bytes_left
    for _ in range(3):
        s.resolve("x", *(() if bytes_left else ("two",)))
    b.owned = {}
    s.until_stable(a, b)
    assert s.owned_by() == {"a": {"one": [0, 1, 2, 3]}, "b": {}}
    after = epoch(s)
    s.resolve("x")
    assert epoch(s) == after


def test_an_expression_that_matches_nothing_raises_nothing_for_a_member_that_had_nothing():
    s, *_both = two_of_one_pattern()
    before = epoch(s)
    joined(s, "c", "x")
    s.resolve("x")
    assert epoch(s) == before


PARTS = (("on.", "one"), ("tw.", "two"), ("th.*", "three"))


def of_three_expressions():
    s = ConsumerScenario(TOPICS)
    return s, [joined(s, name, pattern) for name, (pattern, _topic) in zip("abc", PARTS, strict=True)]


def tell(s, count):
    for number, (pattern, topic) in enumerate(PARTS[:count], 1):
        s.resolve(pattern, topic, has_more=number < len(PARTS))


def test_several_expressions_raise_it_once_however_many_parts_they_come_in():
    s, clients = of_three_expressions()
    before = epoch(s)
    tell(s, 2)
    assert epoch(s) == before
    tell(s, 3)
    assert epoch(s) == before + 1
    s.until_stable(*clients)
    assert s.owned_by() == {"a": {"one": [0, 1, 2, 3]}, "b": {"two": [0, 1]}, "c": {"three": [0, 1]}}
    assert epoch(s) == before + 1


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_coordinator_that_takes_over_between_the_parts_raises_it_when_all_are_resolved(count):
    """Also where others subscribe to those topics by name, so that the hash of the group is the same."""
    s, clients = of_three_expressions()
    named = Client(s, "d", "one", "two", "three")
    s.until_stable(*clients, named)
    before = epoch(s)
    tell(s, count)
    s.reload()
    tell(s, 3)
    assert epoch(s) == before + 1
    s.until_stable(*clients, named)
    assert all(s.owned_by()[name] for name in "abc")


@pytest.mark.parametrize("without_room", [0, 1, 2])
def test_a_part_that_finds_no_room_has_all_of_them_asked_for_again(without_room):
    s, clients = of_three_expressions()
    s.machine.expressions_wanted()
    before = epoch(s)
    for number, (pattern, topic) in enumerate(PARTS):
        s.room = number != without_room
        s.resolve(pattern, topic, has_more=number < 2)
    s.room = True
    assert epoch(s) == before
    clients[0].beat()
    [(group_id, patterns)] = s.machine.expressions_wanted()
    assert (group_id, patterns) == ("g", {pattern for pattern, _topic in PARTS})
    tell(s, 3)
    assert epoch(s) == before + 1


def test_a_member_that_goes_while_its_expression_is_held_back_takes_no_other_one_along():
    s, clients = of_three_expressions()
    before = epoch(s)
    tell(s, 2)
    clients[0].beat()
    s.told("a", clients[0].epoch, topic_regex="", topic_names=())
    s.resolve("th.*", has_more=False)
    assert epoch(s) == before + 1
    s.until_stable(*clients[1:], clients[0])
    assert s.owned_by()["b"] == {"two": [0, 1]}


def test_expressions_that_were_resolved_in_part_are_asked_for_a_second_later():
    s = MembersAlone()
    s.topics.put("a", 1)
    s.join("m", topic_names=None, topic_regex="a.*")
    s.resolve()
    s.topics.put("ab", 1)
    s.pass_time(subscribed.RESOLVED_AGAIN_MS)
    s.beat("m", s.groups["g"].current_of("m").epoch)
    [(_group_id, matches)] = s.looked_up()
    s.has_room = False
    s.resolve([("g", matches)])
    s.has_room = True
    assert s.beat("m", s.groups["g"].current_of("m").epoch).error_code is ErrorCode.NONE
    assert [patterns for _group_id, patterns in s.members.subscribed.wanted()] == [{"a.*"}]
