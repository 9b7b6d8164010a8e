"""What clients make up: partitions that are not there, topics named again and again, and more expressions than a group
may have.
"""

import contextlib
import tracemalloc
import uuid
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.coordinator.consumer.classic_client import given as given_assignment
from tests.coordinator.consumer.classic_client import said
from tests.coordinator.consumer.scenario import ConsumerScenario
from tpc_broker.coordinator.assignors import ASSIGNORS, assign
from tpc_broker.coordinator.assignors.spec import GroupSpec, MemberSpec, TopicSpec
from tpc_broker.coordinator.consumer.client_protocol import by_id, read_assignment, read_subscription
from tpc_broker.coordinator.consumer.messages import KnownTopic, NoTopics
from tpc_broker.coordinator.consumer.subscribed import PATTERNS_MAX
from tpc_broker.coordinator.consumer.validation import OWNED_PARTITIONS_MAX
from tpc_broker.coordinator.driven import RecordDamagedError
from tpc_broker.coordinator.records import encoded
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages
from tpc_broker.model import TopicId

TOPIC = TopicId(uuid.UUID(int=1))


class OneTopic(NoTopics):
    def named(self, name: str) -> KnownTopic | None:
        return KnownTopic(TOPIC, "t", 4) if name == "t" else None


def assignment(*topics: tuple[str, list[int]]) -> bytes:
    kind = messages.ConsumerProtocolAssignment
    parts = [kind.TopicPartition(topic=name, partitions=partitions) for name, partitions in topics]
    return encoded(0, "ConsumerProtocolAssignment", 0, kind(assigned_partitions=parts))


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_partitions_that_are_not_there_take_nobodys_place(name: str) -> None:
    subscribed = frozenset([TOPIC])
    members = {
        "a": MemberSpec(subscribed, {TOPIC: frozenset([-5000, -1, 0, 4, 2000])}, None, None),
        "b": MemberSpec(subscribed, {}, None, None),
    }
    found = assign(name, GroupSpec(members, {TOPIC: TopicSpec(4, ())}))
    given = [partition for each in found.values() for partition in each.get(TOPIC, ())]
    assert sorted(given) == [0, 1, 2, 3]


def test_an_assignment_is_of_the_partitions_that_there_are() -> None:
    read = read_assignment(assignment(("t", [-1, 0, 3, 4, 2000]), ("gone", [0])))
    assert by_id(read.partitions, OneTopic()) == {TOPIC: frozenset([0, 3])}


def test_a_topic_may_be_named_again_and_again_within_a_bound() -> None:
    parts = [("t", [number % 4]) for number in range(OWNED_PARTITIONS_MAX // 2)]
    assert read_assignment(assignment(*parts)).partitions == {"t": frozenset(range(4))}
    with pytest.raises(RecordDamagedError, match="too many partitions"):
        read_assignment(assignment(*parts, ("t", [0])))


def most_memory(read: Callable[[bytes], object], data: bytes) -> int:
    """That is taken until it is refused, in bytes."""
    tracemalloc.start()
    try:
        with pytest.raises(RecordDamagedError, match="too many"):
            read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("parts", [[("t", list(range(300_000)))], [("t", [])] * 150_000, [("t", [0, 1, 2])] * 40_000])
def test_too_many_partitions_take_no_memory(parts: list[tuple[str, list[int]]]) -> None:
    assert most_memory(read_assignment, assignment(*parts)) < 100_000
    kind = messages.ConsumerProtocolSubscription
    owned = [kind.TopicPartition(topic=name, partitions=partitions) for name, partitions in parts]
    message = kind(topics=["t"], owned_partitions=owned, user_data=b"any")
    for version in (1, 2, 3):
        data = encoded(version, "ConsumerProtocolSubscription", version, message)
        assert most_memory(read_subscription, data) < 100_000


@given(st.binary(max_size=60), st.integers(0, 60))
def test_whatever_clients_say_is_read_or_refused(data: bytes, cut: int) -> None:
    whole = said("t", "u", owned={"t": {0, 1}}, user_data=b"data", rack_id="r")
    for read in (read_assignment, read_subscription):
        for each in (data, whole[:cut], whole[:cut] + data, given_assignment({"t": {3}})[:cut] + data):
            with contextlib.suppress(RecordDamagedError):
                read(each)
    assert read_subscription(whole) == (("t", "u"), {"t": frozenset([0, 1])}, "r")


def test_a_group_has_so_many_expressions_and_no_more() -> None:
    s = ConsumerScenario()
    for number in range(PATTERNS_MAX):
        answer = s.join_consumers(f"m{number}", topic_names=None, topic_regex=f"t{number}")
        assert answer.error_code is ErrorCode.NONE
    before = len(s.log)
    assert s.join_consumers("late", topic_names=None, topic_regex="x").error_code is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert len(s.log) == before
    assert s.join_consumers("late", topic_names=None, topic_regex="t0").error_code is ErrorCode.NONE


def test_what_is_no_expression_is_told_to_those_whom_the_group_takes() -> None:
    """As by Kafka: who is fenced, unknown or in a full group hears that; and one that leaves is let go."""
    s = ConsumerScenario()
    bad = {"topic_regex": "a("}
    epoch = s.join_consumers("a").member_epoch
    assert s.told("a", epoch + 7, **bad).error_code is ErrorCode.FENCED_MEMBER_EPOCH
    assert s.told("b", epoch, **bad).error_code is ErrorCode.UNKNOWN_MEMBER_ID
    refused = s.told("a", epoch, **bad)
    assert refused.error_code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert refused.error_message == "SubscribedTopicRegex `a(` is not a valid regular expression: missing )."
    assert s.join_consumers("new", group="h", **bad).error_code is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert [group.group_id for group in s.machine.list_groups()] == ["g"], "nothing is left of the other"
    assert s.told("a", -1, **bad).error_code is ErrorCode.NONE
