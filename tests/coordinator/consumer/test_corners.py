"""Corners of consumer groups that a random history seldom reaches."""

from tests.coordinator.consumer.members_alone import MembersAlone
from tpc_broker.coordinator.consumer.group import MemberState, partitions_of


def parts(topic_id, *numbers):
    return {topic_id: frozenset(numbers)} if numbers else {}


def test_a_member_that_has_partitions_to_give_back_is_told_nothing_of_a_topic_that_it_has_dropped():
    s = MembersAlone()
    a, b = s.topics.put("a", 2), s.topics.put("b", 2)
    s.join("m1", "a", "b")
    s.join("m2", "a", "b")
    told = s.beat("m1", 2)
    assert told.assignment == {**parts(a, 0), **parts(b, 0)}, "it is to give back one of each"
    both = {**parts(a, 0, 1), **parts(b, 0, 1)}
    told = s.beat("m1", 2, topic_names=("a",), rebalance_timeout_ms=5_000, owned=both)
    assert told.assignment == parts(a, 0), "a client takes a topic that it did not ask for as an error"
    current = s.groups["g"].currents["m1"]
    assert current.state == MemberState.UNREVOKED_PARTITIONS
    assert partitions_of(current.pending_revocation) == {**parts(a, 1), **parts(b, 0, 1)}
    assert s.beat("m1", 2, owned={**parts(a, 0), **parts(b, 0)}).member_epoch == 2, "b is not given back yet"
    assert s.beat("m1", 2, owned=parts(a, 0)).member_epoch == s.groups["g"].epoch
