"""The C codec of Produce and Fetch against bytes that Kafka's own classes wrote, against the Python codec, and kio."""

import importlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader

from tests.kafka import golden_values
from tests.kafka.test_golden import VECTORS
from tests.native_bytes import hot_structs
from tests.native_bytes.hot_structs import (
    decode_fetch,
    decode_produce,
    encode_fetch,
    encode_produce,
    fetch_request_of,
    header_of,
    produce_request_of,
)
from tpc_broker._bytes import lib
from tpc_broker.kafka import encode, schema
from tpc_broker.kafka.message import message_classes

EBADMSG, E2BIG, ENOSYS, EPROTONOSUPPORT, EMSGSIZE, EINVAL = -74, -7, -38, -93, -90, -22


def vectors(name):
    return [pytest.param(version, variant, data, id=f"{version}-{variant}") for version, variant, data in VECTORS[name]]


def golden(name, version, variant):
    return golden_values.build(schema.message_schema(name), version, variant)


@pytest.mark.parametrize(("version", "variant", "data"), vectors("ProduceRequest"))
def test_produce_request(version, variant, data):
    result, decoded = decode_produce(data, version)
    assert result == 0
    assert decoded == produce_request_of(golden("ProduceRequest", version, variant), version)


@pytest.mark.parametrize(("version", "variant", "data"), vectors("FetchRequest"))
def test_fetch_request(version, variant, data):
    result, decoded = decode_fetch(data, version)
    assert result == 0
    assert decoded == fetch_request_of(golden("FetchRequest", version, variant), version)


@pytest.mark.parametrize(("version", "variant", "data"), vectors("ProduceResponse"))
def test_produce_response(version, variant, data):
    frame = encode_produce(golden("ProduceResponse", version, variant), version, 77)
    header = struct.pack(">i", 77) + (b"\0" if version >= 9 else b"")
    assert frame == struct.pack(">i", len(header) + len(data)) + header + data


@pytest.mark.parametrize(("version", "variant", "data"), vectors("FetchResponse"))
def test_fetch_response(version, variant, data):
    frame = encode_fetch(golden("FetchResponse", version, variant), version, 77)
    header = struct.pack(">i", 77) + (b"\0" if version >= 12 else b"")
    assert frame == struct.pack(">i", len(header) + len(data)) + header + data


@pytest.mark.parametrize("name", ["ProduceRequest", "FetchRequest"])
def test_every_prefix_and_any_extension_is_refused(name):
    decode = decode_produce if name == "ProduceRequest" else decode_fetch
    for version, _, data in VECTORS[name]:
        for size in range(len(data)):
            assert decode(data[:size], version)[0] == EBADMSG
        assert decode(data + b"\0", version)[0] == EBADMSG


def test_versions_that_are_not_served():
    for version in (-1, 0, 2, 14, 100):
        assert decode_produce(b"", version)[0] == EPROTONOSUPPORT
    for version in (-1, 3, 19):
        assert decode_fetch(b"", version)[0] == EPROTONOSUPPORT


def test_more_partitions_than_room():
    for version, variant, data in VECTORS["ProduceRequest"]:
        count = len(hot_structs.flat_produce(golden("ProduceRequest", version, variant)))
        for room in range(count):
            assert decode_produce(data, version, room)[0] == E2BIG
    for version, variant, data in VECTORS["FetchRequest"]:
        if variant == "full":
            assert decode_fetch(data, version, 3)[0] == E2BIG


CLAIMS = [
    ("topics", struct.pack(">hhii", -1, 1, 1000, 2**31 - 1)),
    ("negative topics", struct.pack(">hhii", -1, 1, 1000, -1)),
    ("partitions", struct.pack(">hhiih1si", -1, 1, 1000, 1, 1, b"t", 2**31 - 1)),
    ("records", struct.pack(">hhiih1siii", -1, 1, 1000, 1, 1, b"t", 1, 0, 2**31 - 1)),
    ("negative records", struct.pack(">hhiih1siii", -1, 1, 1000, 1, 1, b"t", 1, 0, -2)),
    ("name", struct.pack(">hhiih", -1, 1, 1000, 1, 32767)),
    ("null name", struct.pack(">hhiihi", -1, 1, 1000, 1, -1, 0)),
    ("negative name", struct.pack(">hhiihi", -1, 1, 1000, 1, -2, 0)),
]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim[0])
def test_claims_beyond_the_frame_are_refused(claim):
    assert decode_produce(claim[1], 3)[0] == EBADMSG


def flexible_produce(tags, topics=b"\x01"):
    return b"\0" + struct.pack(">hi", 1, 5) + topics + tags


def test_tagged_fields():
    assert decode_produce(flexible_produce(b"\0"), 9)[0] == 0
    assert decode_produce(flexible_produce(b"\x02\x05\x03abc\x09\x00"), 9)[0] == 0, "unknown ones are skipped"
    assert decode_produce(flexible_produce(b"\x01\x05\x04abc"), 9)[0] == EBADMSG
    assert decode_produce(flexible_produce(b"\x02\x05\x00\x05\x00"), 9)[0] == 0, "Kafka takes them in any order"
    assert decode_produce(flexible_produce(b"\xff\xff\xff\xff\x0f"), 9)[0] == EBADMSG
    assert decode_produce(flexible_produce(b"\x80\x80\x80\x80\x80\x00"), 9)[0] == EBADMSG
    assert decode_produce(flexible_produce(b"\0", topics=b"\0"), 9)[0] == EBADMSG, "null topics"
    assert decode_produce(flexible_produce(b"\0", topics=b"\x80\x80\x80\x80\x20"), 9)[0] == EBADMSG


def test_a_known_tag_must_be_used_up_and_know_its_version():
    data = encode("FetchRequest", 15, message_classes("FetchRequest")["FetchRequest"]())
    assert data.endswith(b"\x00")
    state = struct.pack(">iq", 5, 6) + b"\0"
    for version, expected in ((15, 5), (18, 5)):
        result, decoded = decode_fetch(data[:-1] + bytes([1, 1, len(state)]) + state, version)
        assert (result, decoded["replica_id"], decoded["replica_epoch"]) == (0, expected, 6)
    assert decode_fetch(data[:-1] + bytes([1, 1, len(state) + 1]) + state + b"x", 15)[0] == EBADMSG
    assert decode_fetch(data[:-1] + bytes([1, 1, len(state) - 1]) + state[:-1], 15)[0] == EBADMSG


NAMES = st.text(min_size=1, max_size=12)
IDS = st.binary(min_size=16, max_size=16)
INT16, INT32, INT64 = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))


def messages(name, version):
    """Any value of a message: its fields as the schema has them."""
    scalars = {"int8": st.integers(-128, 127), "int16": INT16, "int32": INT32, "int64": INT64, "string": NAMES}
    scalars |= {"uuid": IDS, "records": st.binary(max_size=50), "bool": st.booleans()}
    classes = message_classes(name)

    def struct_of(struct_schema):
        fields = {}
        for field in struct_schema.fields:
            if version not in field.versions:
                continue
            one = struct_of(field.struct) if field.struct is not None else scalars[field.element]
            value = st.lists(one, max_size=3) if field.is_array else one
            fields[field.name] = st.none() | value if version in field.nullable else value
        return st.builds(classes[struct_schema.name], **fields)

    return struct_of(schema.message_schema(name).root)


def versioned(name, first, last):
    return st.integers(first, last).flatmap(lambda v: st.tuples(st.just(v), messages(name, v)))


@settings(max_examples=150, deadline=None)
@given(versioned("ProduceRequest", 3, 13))
def test_any_produce_request_as_the_python_codec_writes_it(given_message):
    version, message = given_message
    result, decoded = decode_produce(encode("ProduceRequest", version, message), version)
    assert (result, decoded) == (0, produce_request_of(message, version))


@settings(max_examples=150, deadline=None)
@given(versioned("FetchRequest", 4, 18))
def test_any_fetch_request_as_the_python_codec_writes_it(given_message):
    version, message = given_message
    result, decoded = decode_fetch(encode("FetchRequest", version, message), version)
    assert (result, decoded) == (0, fetch_request_of(message, version))


def without_empty_topics(message, parts):
    """Results are a flat array, in which a topic without partitions does not occur."""
    message.responses = [topic for topic in message.responses if getattr(topic, parts)]
    return message


@settings(max_examples=150, deadline=None)
@given(versioned("ProduceResponse", 3, 13))
def test_any_produce_response_as_the_python_codec_writes_it(given_message):
    version, message = given_message
    message = without_empty_topics(message, "partition_responses")
    body = encode("ProduceResponse", version, message)
    assert encode_produce(message, version, 1)[8 + (version >= 9) :] == body


@pytest.mark.parametrize("version", range(8, 14))
@pytest.mark.parametrize("name", ["", "t", "t" * 126, "t" * 127, "t" * 249])
def test_a_plain_produce_response(version, name):
    """One partition and no errors to tell: what nearly every answer is."""
    message = message_classes("ProduceResponse")["ProduceResponse"](throttle_time_ms=7)
    topic = message.TopicProduceResponse(name=name, topic_id=bytes(range(16)))
    part = message.PartitionProduceResponse(
        index=3, error_code=2, base_offset=1 << 40, log_append_time_ms=-1, log_start_offset=5
    )
    topic.partition_responses.append(part)
    message.responses.append(topic)
    assert encode_produce(message, version, 1)[8 + (version >= 9) :] == encode("ProduceResponse", version, message)


@settings(max_examples=150, deadline=None)
@given(versioned("FetchResponse", 4, 18))
def test_any_fetch_response_as_the_python_codec_writes_it(given_message):
    version, message = given_message
    message = without_empty_topics(message, "partitions")
    body = encode("FetchResponse", version, message)
    assert encode_fetch(message, version, 1)[8 + (version >= 12) :] == body


@pytest.mark.parametrize("version", range(3, 14))
def test_kio_reads_our_produce_responses(version):
    response = importlib.import_module(f"kio.schema.produce.v{version}.response").ProduceResponse
    topic_class = message_classes("ProduceResponse")
    part = topic_class["PartitionProduceResponse"](index=3, error_code=0, base_offset=41, log_start_offset=7)
    topic = topic_class["TopicProduceResponse"](name="orders", topic_id=bytes(range(16)), partition_responses=[part])
    frame = encode_produce(topic_class["ProduceResponse"](responses=[topic]), version, 5)
    read = entity_reader(response)(frame, 8 + (version >= 9))
    answer = read[0] if isinstance(read, tuple) else read
    found = answer.responses[0].partition_responses[0]
    assert (found.index, found.error_code, found.base_offset) == (3, 0, 41)


def test_an_answer_needs_room():
    message = golden("ProduceResponse", 13, "full")
    whole = encode_produce(message, 13, 1)
    for room in (0, 1, 4, len(whole) // 2, len(whole) - 1):
        assert encode_produce(message, 13, 1, room) == len(whole)


def test_an_answer_over_two_gibibytes():
    assert hot_structs.fetch_size_with_records(12, [2**30, 2**30]) == EMSGSIZE
    assert hot_structs.fetch_size_with_records(12, [2**30]) > 0


def test_request_headers():
    for name, version in (("ProduceRequest", 8), ("ProduceRequest", 9), ("FetchRequest", 11), ("FetchRequest", 12)):
        flexible = version in (9, 12)
        key = 0 if name == "ProduceRequest" else 1
        frame = struct.pack(">hhih4s", key, version, 99, 4, b"test") + (b"\0" if flexible else b"") + b"body"
        result, header = header_of(frame)
        assert result == 0
        assert header == (key, version, 99, b"test", flexible, len(frame) - 4)
        for size in range(len(frame) - 4):
            assert header_of(frame[:size])[0] == EBADMSG
    assert header_of(struct.pack(">hhih", 18, 2, 1, -1))[1] == (18, 2, 1, None, False, 10)
    for key in (-1, 4, 5, 6, 7, 95, 32767):
        result, header = header_of(struct.pack(">hhih", key, 0, 12, -1))
        assert (result, header[0], header[2]) == (ENOSYS, key, 12)


def test_which_versions_are_flexible():
    for name in schema.message_names():
        message = schema.message_schema(name)
        if not name.endswith("Request"):
            continue
        for version in range(message.valid.first, message.valid.end):
            assert lib.tpc_api_flexible(message.key, version) == (version in message.flexible), (name, version)
