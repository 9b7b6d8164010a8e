"""The log's format is Kafka's: the bytes here were written by Kafka 4.3.1's own classes."""

import contextlib
import gc
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.coordinator import RecordDamagedError
from tpc_broker.coordinator.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    MemberMetadata,
    OffsetKey,
    group_record,
    offset_record,
    read_group,
    read_key,
    read_offset,
    read_stored_offset,
    subscribed_topics,
)
from tpc_broker.model import TopicId

TOPIC_ID = TopicId(uuid.UUID("00000000-0000-4000-8000-000000000001"))
OFFSET_VALUES = {
    0: "0000000000000000002a00046d6574610000018bcfe56800",
    1: "0001000000000000002a00046d6574610000018bcfe56800ffffffffffffffff",
    2: "0002000000000000002a00046d6574610000018bcfe56800",
    3: "0003000000000000002a0000000700046d6574610000018bcfe56800",
    4: "0004000000000000002a00000007056d6574610000018bcfe5680001001000000000000040008000000000000001",
}
GROUP_VALUES = {
    0: "00000008636f6e73756d657200000003000572616e676500026d310000000100026d31000163000a2f3132372e302e302e310000afc8"
    "0000000201020000000103",
    1: "00010008636f6e73756d657200000003000572616e676500026d310000000100026d31000163000a2f3132372e302e302e31000493e0"
    "0000afc80000000201020000000103",
    2: "00020008636f6e73756d657200000003000572616e676500026d310000018bcfe568010000000100026d31000163000a2f3132372e30"
    "2e302e31000493e00000afc80000000201020000000103",
    3: "00030008636f6e73756d657200000003000572616e676500026d310000018bcfe568010000000100026d3100026931000163000a2f31"
    "32372e302e302e31000493e00000afc80000000201020000000103",
    4: "000409636f6e73756d6572000000030672616e6765036d310000018bcfe5680102036d3103693102630b2f3132372e302e302e310004"
    "93e00000afc803010202030000",
}
PLAIN_VALUE = offset_record(OffsetKey("g", "t", 5), CommittedOffset(42, topic_id=TOPIC_ID)).value
OFFSET = CommittedOffset(42, 7, "meta", 1_700_000_000_000, None, TOPIC_ID)
MEMBER = MemberMetadata("m1", "i1", "c", "/127.0.0.1", 300_000, 45_000, b"\x01\x02", b"\x03")
GROUP = GroupMetadata("consumer", 3, "range", "m1", 1_700_000_000_001, (MEMBER,))

texts = st.text(max_size=20)
offsets = st.builds(
    CommittedOffset,
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.text(max_size=300),
    st.integers(0, 2**62),
    st.none(),
    st.uuids().map(TopicId),
)
members = st.builds(
    MemberMetadata,
    texts,
    st.none() | texts,
    texts,
    texts,
    st.integers(0, 9),
    st.integers(0, 9),
    st.binary(),
    st.binary(),
)
groups = st.builds(
    GroupMetadata,
    texts,
    st.integers(0, 99),
    st.none() | texts,
    st.none() | texts,
    st.integers(-1, 2**62),
    st.lists(members, max_size=3).map(tuple),
)


def test_what_is_written_is_what_kafka_writes():
    record = offset_record(OffsetKey("g", "t", 5), OFFSET)
    assert (record.key.hex(), record.value.hex()) == ("000100016700017400000005", OFFSET_VALUES[4])
    record = group_record("g", GROUP)
    assert (record.key.hex(), record.value.hex()) == ("0002000167", GROUP_VALUES[3])


def test_an_expiry_of_its_own_is_written_in_version_1():
    value = offset_record(OffsetKey("g", "t", 5), CommittedOffset(42, 7, "meta", 1_700_000_000_000, 9)).value
    assert value.hex() == OFFSET_VALUES[1].replace("f" * 16, "0" * 15 + "9")
    assert read_offset(value).expire_timestamp_ms == 9


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_an_offset_is_read(version):
    read = read_offset(bytes.fromhex(OFFSET_VALUES[version]))
    assert (read.offset, read.metadata, read.commit_timestamp_ms) == (42, "meta", 1_700_000_000_000)
    assert read.leader_epoch == (7 if version >= 3 else -1)
    assert (read.topic_id == TOPIC_ID) == (version == 4)
    assert read.expire_timestamp_ms is None


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_is_read(version):
    read = read_group(bytes.fromhex(GROUP_VALUES[version]))
    assert (read.protocol_type, read.generation_id, read.protocol, read.leader) == ("consumer", 3, "range", "m1")
    assert read.current_state_timestamp_ms == (1_700_000_000_001 if version >= 2 else -1)
    (member,) = read.members
    assert member.group_instance_id == ("i1" if version >= 3 else None)
    assert member.rebalance_timeout_ms == (300_000 if version >= 1 else 45_000)
    assert (member.session_timeout_ms, member.subscription, member.assignment) == (45_000, b"\x01\x02", b"\x03")


@given(texts, texts, st.integers(0, 2**31 - 1), offsets)
def test_an_offset_survives_its_bytes(group, topic, partition, committed):
    record = offset_record(OffsetKey(group, topic, partition), committed)
    assert read_key(record.key) == OffsetKey(group, topic, partition)
    assert read_offset(record.value) == committed


@given(texts, groups)
def test_a_group_survives_its_bytes(group_id, metadata):
    record = group_record(group_id, metadata)
    assert read_key(record.key) == GroupKey(group_id)
    assert read_group(record.value) == metadata


def test_keys_of_other_coordinators_are_passed_over():
    assert read_key(bytes.fromhex("0003000167")) is None


def test_a_key_of_the_first_type_is_an_offset():
    assert read_key(bytes.fromhex("000000016700017400000005")) == OffsetKey("g", "t", 5)


@pytest.mark.parametrize("damaged", ["", "00", "0001", "00010001", "000100016700017400"])
def test_a_key_that_ends_early_is_damaged(damaged):
    with pytest.raises(RecordDamagedError):
        read_key(bytes.fromhex(damaged))


@pytest.mark.parametrize("version", range(5))
def test_the_collector_leaves_out_what_is_kept_of_an_offset(version):
    stored = [read_stored_offset(bytes.fromhex(OFFSET_VALUES[version])), read_stored_offset(PLAIN_VALUE)]
    gc.collect(0)
    assert not any(map(gc.is_tracked, stored))


@given(offsets, st.binary(max_size=3))
def test_an_offset_without_metadata_is_read_as_any_other(committed, behind):
    committed = replace(committed, metadata="")
    value = offset_record(OffsetKey("g", "t", 0), committed).value
    assert read_offset(value + behind) == committed
    for size in range(len(value)):
        with pytest.raises(RecordDamagedError):
            read_offset(value[:size])


def test_what_stands_behind_a_value_is_not_read():
    assert read_offset(bytes.fromhex(OFFSET_VALUES[3] + "0102")) == read_offset(bytes.fromhex(OFFSET_VALUES[3]))


@given(st.sampled_from([*OFFSET_VALUES.values(), *GROUP_VALUES.values()]), st.integers(0, 200), st.integers(0, 255))
def test_damage_is_an_error_of_one_family_and_never_takes_more_memory_than_there_are_bytes(text, place, byte):
    data = bytearray(bytes.fromhex(text))
    data[place % len(data)] = byte
    for read in (read_offset, read_group):
        for value in (bytes(data), bytes(data[: place % len(data)])):
            with contextlib.suppress(RecordDamagedError):
                read(value)


def test_a_count_beyond_the_bytes_is_refused_before_anything_is_made():
    head = "0003" + "0000" + "00000001" + "ffff" + "ffff" + "0" * 16
    with pytest.raises(RecordDamagedError, match="byte 24: more than 1000000 elements"):
        read_group(bytes.fromhex(head + "7fffffff"))
    with pytest.raises(RecordDamagedError, match="byte 24: more elements than the bytes that are left can hold"):
        read_group(bytes.fromhex(head + "000f4240" + "00026d31"))


def test_subscriptions_of_clients_are_understood():
    assert subscribed_topics(bytes.fromhex("0000" + "00000002" + "000174" + "000175" + "ffffffff")) == {"t", "u"}
    assert subscribed_topics(b"\x00") is None
