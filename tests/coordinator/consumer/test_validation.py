"""What is wrong with a heartbeat by itself: what is said first, and what is never taken."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.coordinator.consumer.messages import ConsumerHeartbeat
from tpc_broker.coordinator.consumer.validation import (
    ID_CHARACTERS_MAX,
    NAMES_MAX,
    OWNED_PARTITIONS_MAX,
    fault_of_expression,
    fault_of_heartbeat,
)
from tpc_broker.error_codes import ErrorCode

ASSIGNORS = ("uniform", "range")
TOPIC, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
JOIN = ConsumerHeartbeat(
    group_id="g", member_id="m", member_epoch=0, rebalance_timeout_ms=5_000, topic_names=("t",), owned={}
)
BEAT = ConsumerHeartbeat(group_id="g", member_id="m", member_epoch=3)
INVALID = ErrorCode.INVALID_REQUEST

FAULTS = [
    ({"member_id": " "}, INVALID, "MemberId can't be empty."),
    ({"group_id": ""}, INVALID, "GroupId can't be empty."),
    ({"instance_id": "\t"}, INVALID, "InstanceId can't be empty."),
    ({"rack_id": ""}, INVALID, "RackId can't be empty."),
    ({"rebalance_timeout_ms": -1}, INVALID, "RebalanceTimeoutMs must be provided in first request."),
    ({"owned": {TOPIC: frozenset([0])}}, INVALID, "TopicPartitions must be empty when (re-)joining."),
    (
        {"topic_names": None}, INVALID,
        "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
    ),
    (
        {"assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR,
        "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
    ),
]  # fmt: skip
"""Of a join, in the order in which they are found."""
WORDS = {text: number for number, (_broken, _code, text) in enumerate(FAULTS)}


@pytest.mark.parametrize(("broken", "code", "text"), FAULTS)
def test_what_is_wrong_with_a_join_is_said_in_kafkas_words(broken, code, text):
    assert fault_of_heartbeat(JOIN, ASSIGNORS) is None
    assert fault_of_heartbeat(replace(JOIN, **broken), ASSIGNORS) == (code, text)


@given(st.sets(st.sampled_from(range(len(FAULTS))), min_size=1))
def test_of_several_faults_kafkas_first_is_told(numbers):
    broken = JOIN
    for number in numbers:
        broken = replace(broken, **FAULTS[number][0])
    found = fault_of_heartbeat(broken, ASSIGNORS)
    assert found is not None
    assert WORDS[found[1]] == min(numbers)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        ({"member_epoch": -1, "member_id": ""}, "MemberId can't be empty."),
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"member_epoch": -(2**31)}, "MemberEpoch is -2147483648, but must be greater than or equal to -2."),
    ],
)
@pytest.mark.parametrize("version", [0, 1])
def test_later_heartbeats(changed, text, version):
    asked = replace(BEAT, requires_member_id=version >= 1)
    assert fault_of_heartbeat(asked, ASSIGNORS) is None
    assert fault_of_heartbeat(replace(asked, **changed), ASSIGNORS) == (INVALID, text)


def test_version_0_leaves_the_member_id_to_the_broker_at_a_join_alone():
    asked = replace(JOIN, member_id="")
    assert fault_of_heartbeat(asked, ASSIGNORS) == (INVALID, "MemberId can't be empty.")
    assert fault_of_heartbeat(replace(asked, requires_member_id=False), ASSIGNORS) is None


@pytest.mark.parametrize(
    "sound",
    [
        replace(JOIN, topic_names=()),
        replace(JOIN, topic_names=None, topic_regex=""),
        replace(JOIN, topic_regex="t.*"),
        replace(JOIN, assignor="range", instance_id="i", rack_id="r"),
        replace(BEAT, owned={TOPIC: frozenset([0])}),
        replace(BEAT, member_epoch=-1),
        replace(BEAT, member_epoch=-2, instance_id="i"),
        replace(JOIN, topic_names=("t",) * NAMES_MAX, member_id="m" * ID_CHARACTERS_MAX),
        replace(BEAT, owned={TOPIC: frozenset(range(OWNED_PARTITIONS_MAX))}),
    ],
)
def test_what_is_sound(sound):
    assert fault_of_heartbeat(sound, ASSIGNORS) is None


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"group_id": "g" * (ID_CHARACTERS_MAX + 1)}, "GroupId"),
        ({"member_id": "m" * (ID_CHARACTERS_MAX + 1)}, "MemberId"),
        ({"instance_id": "i" * (ID_CHARACTERS_MAX + 1)}, "InstanceId"),
        ({"rack_id": "r" * (ID_CHARACTERS_MAX + 1)}, "RackId"),
        ({"assignor": "a" * (ID_CHARACTERS_MAX + 1)}, "ServerAssignor"),
        ({"topic_names": ("t",) * (NAMES_MAX + 1)}, "SubscribedTopicNames"),
        ({"owned": {TOPIC: frozenset(range(OWNED_PARTITIONS_MAX)), OTHER: frozenset([0])}}, "TopicPartitions"),
    ],
)  # fmt: skip
def test_what_would_take_too_much_memory_is_refused_and_not_repeated(changed, what):
    code, text = fault_of_heartbeat(replace(BEAT, **changed), ASSIGNORS)
    assert (code, text.split()[0]) == (INVALID, what)
    assert len(text) < 100


def test_what_is_no_expression_is_said_in_kafkas_words():
    assert fault_of_expression("a.*") is None
    assert fault_of_expression("a(") == "SubscribedTopicRegex `a(` is not a valid regular expression: missing )."


def test_a_pattern_that_is_too_long_is_told_in_part():
    text = fault_of_expression("a" * 100_000)
    assert text[-31:] == ": it is longer than 4096 bytes."
    assert len(text) < 4_300


TEXTS = st.none() | st.text(max_size=5)


@given(
    st.builds(
        ConsumerHeartbeat,
        group_id=st.text(max_size=5),
        member_id=st.text(max_size=5),
        member_epoch=st.integers(-4, 4) | st.integers(-(2**31), 2**31 - 1),
        instance_id=TEXTS,
        rack_id=TEXTS,
        rebalance_timeout_ms=st.integers(-2, 2),
        topic_names=st.none() | st.tuples(st.text(max_size=3)),
        topic_regex=TEXTS,
        assignor=st.none() | st.sampled_from(ASSIGNORS) | st.text(max_size=3),
        owned=st.none() | st.dictionaries(st.just(TOPIC), st.frozensets(st.integers(-1, 3), min_size=1)),
        requires_member_id=st.booleans(),
    )
)
def test_what_is_let_through_is_what_the_coordinator_relies_on(request_):
    if fault_of_heartbeat(request_, ASSIGNORS) is not None:
        return
    assert request_.group_id
    assert request_.member_epoch >= -2
    assert request_.member_id or (not request_.requires_member_id and request_.member_epoch in {0, -2})
    assert request_.assignor in {None, *ASSIGNORS}
    if request_.member_epoch == 0:
        assert request_.owned == {}
        assert request_.rebalance_timeout_ms != -1
        assert request_.topic_names is not None or request_.topic_regex is not None
