"""Members that only send heartbeats: what they say next, and when a group counts as stable."""

import socket

import pytest

from tpc_broker.bench import grouping
from tpc_broker.bench.grouping import Member, Members
from tpc_broker.bench.load import LoadFailed
from tpc_broker.kafka import ApiKey, messages, protocol

TOPIC = bytes(range(16))
ANSWER = messages.ConsumerGroupHeartbeatResponse


def answer(epoch: int, partitions: list[int] | None = None, error: int = 0) -> messages.ConsumerGroupHeartbeatResponse:
    made = ANSWER(error_code=error, member_epoch=epoch, heartbeat_interval_ms=5_000)
    if partitions is not None:
        made.assignment = ANSWER.Assignment(
            topic_partitions=[ANSWER.TopicPartitions(topic_id=TOPIC, partitions=partitions)]
        )
    return made


def said(member: Member) -> messages.ConsumerGroupHeartbeatRequest:
    frame = member.request()[4:]
    _header, position = protocol.decode_request_header(frame)
    return protocol.decode_request(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, frame, position)


@pytest.fixture
def member():
    ours, theirs = socket.socketpair()
    yield Member("group", "topic", ours)
    ours.close()
    theirs.close()


def test_a_member_says_at_once_what_it_took_over_and_comes_again_when_it_is_asked_to(member: Member) -> None:
    assert member.take(answer(2, [0, 1])) == 0.0
    assert said(member).topic_partitions[0].partitions == [0, 1]
    assert member.take(answer(2)) == 5.0
    assert said(member).topic_partitions is None
    assert member.take(answer(2, [0])) == 0.0, "it gives one back"
    assert said(member).topic_partitions[0].partitions == [0]


def test_a_member_comes_again_when_the_coordinator_is_loading_and_ends_the_run_when_it_is_refused(
    member: Member,
) -> None:
    assert member.take(answer(0, error=14)) == grouping._RETRY_S
    assert member.epoch == 0
    with pytest.raises(LoadFailed, match="FENCED_MEMBER_EPOCH"):
        member.take(answer(0, error=110))


@pytest.mark.parametrize(
    ("held", "epochs", "is_stable"),
    [
        (([0, 1], [2, 3]), (3, 3), True),
        (([0, 1, 2, 3], []), (2, 2), False),
        (([0, 1], [2, 3]), (3, 2), False),
        (([0, 1], [1, 2]), (3, 3), False),
        (([0, 1], [2]), (3, 3), False),
        (([], []), (0, 0), False),
    ],
)
def test_a_group_is_stable_when_all_are_in_one_epoch_with_equal_shares(held, epochs, is_stable) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    members = Members(listener.getsockname(), "group", "topic", 2)
    for one, partitions, epoch in zip(members.members, held, epochs, strict=True):
        one.assigned, one.epoch = frozenset((TOPIC, index) for index in partitions), epoch
    assert members._is_stable(4) is is_stable
    members.close()
    listener.close()


@pytest.mark.parametrize("error", [0, 110])
def test_steady_heartbeats_count_when_they_are_answered_without_an_error(member: Member, error: int) -> None:
    ours, theirs = socket.socketpair()
    listener = socket.create_server(("127.0.0.1", 0))
    members = Members(listener.getsockname(), "group", "topic", 1)
    member.connection = ours
    frame = b"".join(
        protocol.encode_response_frame(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, 1, answer(3, [0], error))
    )
    theirs.sendall(2 * frame + frame[:7])
    if error:
        with pytest.raises(LoadFailed, match="FENCED_MEMBER_EPOCH"):
            members._hear(member)
    else:
        members._hear(member)
        theirs.sendall(frame[7:])
        members._hear(member)
        assert members.heartbeats == 3
        theirs.close()
        with pytest.raises(LoadFailed, match="closed"):
            members._hear(member)
    for one in (ours, theirs, listener):
        one.close()
    members.close()
