"""The client's fetch sessions against the broker's, whatever is asked for and whatever is lost."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fetch_sessions_model import FetchPartition, FetchSessions
from tpc_broker.client.consumer.sessions import FetchSession, FetchTerms, uses_names
from tpc_broker.client.consumer.stock import Wanted
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.requests import NO_TOPIC_ID, TopicPartition
from tpc_broker.kafka import ErrorCode, messages, protocol

TERMS: Final = FetchTerms(Isolation.READ_COMMITTED, 500, 1000)
WITH_IDS, WITH_NAMES, WITHOUT_SESSIONS = 16, 12, 6


def wanted(topic: int, partition: int, offset: int = 0, epoch: int = 0) -> Wanted:
    where = TopicPartition(f"t{topic}", partition)
    return Wanted(where, bytes([topic + 1]) * 16, offset, epoch, 100, 0)


def asked_of(request: Any, *, by_id: bool) -> list[FetchPartition]:
    return [
        FetchPartition(topic.topic_id if by_id else topic.topic, row.partition, row.fetch_offset, 1)
        for topic in request.topics
        for row in topic.partitions
    ]


def forgotten_of(request: Any, *, by_id: bool) -> list[Any]:
    return [
        (topic.topic_id if by_id else topic.topic, partition)
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]


rounds = st.lists(
    st.tuples(
        st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.integers(0, 3), min_size=1),
        st.sampled_from(["well", "well", "well", "lost", "restarted", "names"]),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(rounds, st.integers(0, 1))
def test_a_broker_reads_just_what_is_wanted(story: Any, slots: int) -> None:
    session, brokers = FetchSession(), FetchSessions(slots, 0)
    for number, (offsets, fate) in enumerate(story):
        version = WITH_NAMES if fate == "names" else WITH_IDS
        by_id = version == WITH_IDS
        rows = [wanted(*place, offset) for place, offset in offsets.items()]
        for attempt in range(3):
            request = session.request(version, rows, TERMS)
            protocol.encode_request(1, version, request)
            if fate == "restarted" and not attempt:
                brokers = FetchSessions(slots, 0)
            context = brokers.context(
                request.session_id, request.session_epoch, uses_topic_ids=by_id, asked=asked_of(request, by_id=by_id),
                forgotten=forgotten_of(request, by_id=by_id), now_ms=number, new_session_id=3 * number + attempt + 1,
            )  # fmt: skip
            if fate == "lost" and not attempt:
                session.end()
                continue
            if context.error_code:
                assert FetchSession.is_lost(context.error_code)
                assert session.took(messages.FetchResponse(error_code=context.error_code)) == []
                continue
            break
        else:
            pytest.fail("three attempts at one fetch")
        read = {(one.topic, one.partition): one.fetch_offset for one in context.partitions}
        names = {row.where: row.topic_id if by_id else row.where.topic for row in rows}
        assert read == {(names[row.where], row.where.partition): row.offset for row in rows}
        answer = messages.FetchResponse(session_id=context.session_id)
        for topic, partition in read:
            told = messages.FetchResponse.FetchableTopicResponse
            rows_told = [messages.FetchResponse.PartitionData(partition_index=partition)]
            name = {"topic_id": topic} if by_id else {"topic": topic}
            answer.responses.append(told(partitions=rows_told, **name))
        assert {one.where for one, _row in session.took(answer)} == {row.where for row in rows}


def test_what_did_not_change_is_not_sent_again() -> None:
    session = FetchSession()
    session.request(WITH_IDS, [wanted(0, 0), wanted(0, 1), wanted(1, 0)], TERMS)
    session.took(messages.FetchResponse(session_id=7))
    request = session.request(WITH_IDS, [wanted(0, 0, 5), wanted(0, 1)], TERMS)
    assert (request.session_id, request.session_epoch) == (7, 1)
    assert [(row.partition, row.fetch_offset) for topic in request.topics for row in topic.partitions] == [(0, 5)]
    assert [(topic.topic_id, topic.partitions) for topic in request.forgotten_topics_data] == [(b"\2" * 16, [0])]


def test_the_epoch_begins_again_behind_the_largest() -> None:
    session = FetchSession()
    session.session_id, session.epoch = 7, 2**31 - 1
    session.request(WITH_IDS, [wanted(0, 0)], TERMS)
    session.took(messages.FetchResponse(session_id=7))
    assert session.epoch == 1


@pytest.mark.parametrize(
    ("code", "session_id"),
    [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7)],
)
def test_a_session_that_is_lost_is_begun_anew(code: int, session_id: int) -> None:
    session = FetchSession()
    session.request(WITH_IDS, [wanted(0, 0)], TERMS)
    session.took(messages.FetchResponse(session_id=7))
    session.request(WITH_IDS, [wanted(0, 0)], TERMS)
    assert session.took(messages.FetchResponse(error_code=code)) == []
    request = session.request(WITH_IDS, [wanted(0, 0)], TERMS)
    assert (request.session_id, request.session_epoch) == (session_id, 0)
    assert len(request.topics) == 1


def test_old_brokers_have_no_sessions() -> None:
    session = FetchSession()
    for _ in range(2):
        request = session.request(WITHOUT_SESSIONS, [wanted(0, 0)], TERMS)
        assert len(request.topics) == 1
        session.took(messages.FetchResponse())


def test_what_nobody_asked_for_is_passed_over() -> None:
    session = FetchSession()
    session.request(WITH_NAMES, [wanted(0, 0)], TERMS)
    told = messages.FetchResponse.FetchableTopicResponse
    rows = [messages.FetchResponse.PartitionData(partition_index=index) for index in (0, 1)]
    answer = messages.FetchResponse(session_id=7, responses=[told(topic="t0", partitions=rows), told(topic="no")])
    assert [row.partition_index for _one, row in session.took(answer)] == [0]


def test_a_topic_without_an_id_is_asked_for_by_name() -> None:
    assert not uses_names([wanted(0, 0)])
    assert uses_names([wanted(0, 0), wanted(1, 0)._replace(topic_id=NO_TOPIC_ID)])
