"""The image: replay, snapshot, bytes."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.metadata.image import DELETIONS_REMEMBERED_MAX, ClusterImage, changed_topics
from tpc_broker.metadata.records import (
    RECORD_TYPES,
    BrokerConfigChanged,
    ClusterCreated,
    CoresChanged,
    MetadataDamagedError,
    ProducerIdsReserved,
    TopicAssigned,
    TopicConfigChanged,
    TopicCreated,
    TopicDeleted,
    decode_record,
    encode_record,
)
from tpc_broker.model import MetadataVersion, TopicId

IDS = [TopicId(uuid.UUID(int=n)) for n in range(10, 15)]
names = st.sampled_from(["retention.ms", "segment.ms"])
values = st.one_of(st.none(), st.sampled_from(["1", "2"]))
owners = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)
# A topic id keeps its name for ever, and a name belongs to one live topic at a time: as the controller has it.
records = st.one_of(
    st.builds(ClusterCreated, st.just("c")),
    st.builds(CoresChanged, st.integers(1, 4)),
    st.sampled_from(IDS).flatmap(
        lambda i: st.builds(TopicCreated, st.just(f"tøpic-{i.int}"), st.just(i), owners, st.just(7), st.just(()))
    ),
    st.builds(TopicAssigned, st.sampled_from(IDS), owners, st.just((0,))),
    st.builds(TopicDeleted, st.sampled_from(IDS)),
    st.builds(TopicConfigChanged, st.sampled_from(IDS), names, values),
    st.builds(BrokerConfigChanged, st.sampled_from([None, 0, 1]), names, values),
)


@st.composite
def histories(draw):
    history = draw(st.lists(records, max_size=40))
    for index, position in enumerate(sorted(draw(st.lists(st.integers(0, len(history)), max_size=4)))):
        history.insert(position + index, ProducerIdsReserved(draw(st.integers(0, 2)), index * 1000, 1000))
    return history


def replay(history):
    return ClusterImage().apply(history, MetadataVersion(len(history)))


def live(image):
    """What an image holds, but for brokers that have no settings left."""
    configs = {broker: texts for broker, texts in image.broker_configs.items() if texts}
    return (
        image.cluster_id,
        image.cores_count,
        image.topics,
        image.ids,
        configs,
        image.next_producer_id,
        image.producer_ids,
        image.deleted,
    )


@given(records)
def test_a_record_survives_its_bytes(record):
    assert decode_record(encode_record(record)) == record


@given(histories())
def test_a_snapshot_rebuilds_the_image(history):
    image = replay(history)
    assert live(replay(image.snapshot())) == live(image)


@given(histories())
def test_a_snapshot_on_top_of_its_own_image_changes_nothing(history):
    image = replay(history)
    assert live(image.apply(image.snapshot(), MetadataVersion(10_000))) == live(image)


@given(histories())
def test_an_image_survives_being_pushed_to_another_core(history):
    image = replay(history)
    pushed = ClusterImage.from_bytes(image.to_bytes())
    assert (live(pushed), pushed.version) == (live(image), image.version)


@given(histories(), st.integers(0, 40))
def test_replay_in_two_parts_equals_replay_at_once(history, cut):
    cut = min(cut, len(history))
    parts = (
        ClusterImage().apply(history[:cut], MetadataVersion(cut)).apply(history[cut:], MetadataVersion(len(history)))
    )
    assert parts == replay(history)


@given(histories(), histories())
def test_applying_leaves_the_old_image_alone(first, second):
    image = replay(first)
    before = image.to_bytes()
    after = image.apply(second, MetadataVersion(99_999))
    assert image.to_bytes() == before
    changed = {(old or new).topic_id for old, new in changed_topics(image, after)}
    for topic_id in image.topics.keys() | after.topics.keys():
        assert (image.topic_by_id(topic_id) != after.topic_by_id(topic_id)) == (topic_id in changed)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"type":"topic_created","v":2}',
        b'{"type":"never_heard_of","v":1}',
        b'{"type":"topic_deleted","v":1}',
        b'{"type":"topic_deleted","v":1,"topic_id":"x"}',
        b'{"type":"topic_deleted","v":1,"topic_id":7}',
        b'{"type":"cluster_created","v":1,"cluster_id":"c","more":1}',
        b"\xff",
    ],
)
def test_what_cannot_be_read_is_damage_and_never_guessed(value):
    with pytest.raises(MetadataDamagedError):
        decode_record(value)


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version":1,"records":[{}]}'])
def test_an_image_that_cannot_be_read_is_damage(data):
    with pytest.raises(MetadataDamagedError):
        ClusterImage.from_bytes(data)


def test_the_format_on_the_disk_is_what_it_was():
    record = TopicCreated("t", IDS[0], (0, 1), 5, (1,), {"retention.ms": "9"})
    assert encode_record(record) == (
        b'{"type":"topic_created","v":1,"name":"t","topic_id":"00000000-0000-0000-0000-00000000000a",'
        b'"owners":[0,1],"created_ms":5,"manual":[1],"configs":{"retention.ms":"9"}}'
    )
    assert len(RECORD_TYPES) == 8


def test_deletions_are_remembered_up_to_a_bound_and_what_was_never_known_is_not_one():
    ids = [TopicId(uuid.UUID(int=number)) for number in range(DELETIONS_REMEMBERED_MAX + 2)]
    image = replay([record for one in ids[:-1] for record in (TopicCreated("t", one, (0,), 7), TopicDeleted(one))])
    assert [image.is_deleted(one) for one in (ids[0], ids[1], ids[-2], ids[-1])] == [False, True, True, False]
    assert list(replay(image.snapshot()).deleted) == list(image.deleted) == ids[1:-1]
