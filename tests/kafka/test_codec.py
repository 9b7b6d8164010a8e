"""Rules of the codec that single messages show: defaults, absent fields, nulls, tags, limits, places of errors."""

import pytest

from tpc_broker.kafka import DecodeError, EncodeError, UnsupportedVersionError, decode, encode, messages, protocol
from tpc_broker.kafka.source import read_uvarint, uvarint

TOPIC = messages.MetadataRequest.MetadataRequestTopic


def test_defaults_are_kafkas():
    request = messages.FetchRequest()
    assert (request.cluster_id, request.max_bytes, request.session_epoch, request.topics) == (None, 0x7FFFFFFF, -1, [])
    assert request.replica_state == messages.FetchRequest.ReplicaState(replica_id=-1, replica_epoch=-1)
    assert messages.FetchResponse.PartitionData().aborted_transactions == []
    assert messages.FetchRequest().topics is not messages.FetchRequest().topics


def test_a_field_that_the_version_lacks_must_have_its_default():
    response = messages.MetadataResponse(cluster_id="c")
    assert decode("MetadataResponse", 1, encode("MetadataResponse", 1, response)).cluster_id is None
    request = messages.FetchRequest(forgotten_topics_data=[messages.FetchRequest.ForgottenTopic(topic="t")])
    with pytest.raises(EncodeError, match=r"FetchRequest v4, forgotten_topics_data: .*no such field"):
        encode("FetchRequest", 4, request)
    answer = messages.ProduceResponse()
    part = answer.PartitionProduceResponse(current_leader=answer.LeaderIdAndEpoch(leader_id=3))
    answer.responses.append(answer.TopicProduceResponse(name="t", partition_responses=[part]))
    with pytest.raises(EncodeError, match=r"responses\[0\].partition_responses\[0\].current_leader"):
        encode("ProduceResponse", 9, answer)
    assert decode("ProduceResponse", 10, encode("ProduceResponse", 10, answer)) == answer


def test_values_that_cannot_be_written_are_refused_with_their_place():
    def refused(name, version, message, match):
        with pytest.raises(EncodeError, match=match):
            encode(name, version, message)

    refused("MetadataRequest", 0, messages.MetadataRequest(topics=None), "null")
    two = messages.MetadataRequest(topics=[TOPIC(name="a"), TOPIC(name=None)])
    refused("MetadataRequest", 1, two, r"topics\[1\].name")
    refused("MetadataRequest", 1, messages.MetadataRequest(topics=[TOPIC(name="x" * 32768)]), "32768")
    refused("MetadataRequest", 10, messages.MetadataRequest(topics=[TOPIC(topic_id=b"short", name="a")]), "16 bytes")
    refused("MetadataRequest", 1, messages.MetadataRequest(topics=[TOPIC(name="\ud800")]), "surrogate")
    refused("MetadataRequest", 1, messages.MetadataRequest(topics=["a"]), "no attribute")
    refused("HeartbeatRequest", 0, messages.HeartbeatRequest(generation_id=2**31), "generation_id")
    refused("HeartbeatRequest", 0, messages.MetadataRequest(), "got a MetadataRequest")
    refused("SaslAuthenticateRequest", 0, messages.SaslAuthenticateRequest(auth_bytes=None), "null")


def test_versions_and_names_that_do_not_exist():
    absent = (("MetadataRequest", 14), ("MetadataRequest", -1), ("Nothing", 0), ("ControlledShutdownRequest", 0))
    for name, version in absent:
        with pytest.raises(UnsupportedVersionError):
            decode(name, version, b"")
    with pytest.raises(AttributeError):
        _ = messages.Nothing
    with pytest.raises(TypeError):
        messages.MetadataRequest(nothing=1)


@pytest.mark.parametrize(
    ("name", "version", "data", "match"),
    [
        ("MetadataRequest", 1, "7fffffff", "more than 1000000 elements"),
        ("MetadataRequest", 1, "000f4240", r"topics, byte 4: more elements"),
        ("MetadataRequest", 0, "ffffffff", "null"),
        ("MetadataRequest", 1, "fffffffe", "negative count"),
        ("MetadataRequest", 1, "00000001fffe61", "negative length"),
        ("MetadataRequest", 1, "00000001ffff61", "null"),
        ("MetadataRequest", 1, "00000002000161000561", r"topics\[1\].name, byte 9: a length beyond"),
        ("MetadataRequest", 1, "000000010002c328", r"topics\[0\].name.*UTF-8"),
        ("MetadataRequest", 1, "0000000100", "more elements"),
        ("MetadataRequest", 9, "ffffffff7f", "five bytes|32 bits|elements"),
        ("MetadataRequest", 9, "ffffffffffff01", "longer than five bytes"),
        ("MetadataRequest", 9, "02ffff0f", "more than 32767 bytes"),
        ("MetadataRequest", 9, "00000000 914e", "more than 10000 tagged fields|left can hold"),
        ("MetadataRequest", 9, "0000000005", "tagged fields"),
        ("MetadataRequest", 9, "00000000010505", "beyond the end"),
        ("MetadataRequest", 9, "00000000ffffffff0f", "more than 10000 tagged fields"),
        ("MetadataRequest", 9, "", "ends early"),
        ("ApiVersionsResponse", 3, "0000 01 00000000 01 01 03 ffffffffffffffff", "size is not that"),
    ],
)
def test_damage_is_named_with_its_place(name, version, data, match):
    with pytest.raises(DecodeError, match=match) as caught:
        decode(name, version, bytes.fromhex(data))
    assert caught.value.message == name
    assert caught.value.version == version


def test_unknown_tagged_fields_are_skipped():
    plain = encode("MetadataRequest", 9, messages.MetadataRequest(topics=[TOPIC(name="t")]))
    assert plain.endswith(b"\0")
    extended = plain[:-1] + b"\2" + b"\x05\x03abc" + b"\xff\x7f\0"
    assert decode("MetadataRequest", 9, extended) == decode("MetadataRequest", 9, plain)


def test_bytes_are_slices_of_the_buffer():
    data = encode("SaslAuthenticateRequest", 2, messages.SaslAuthenticateRequest(auth_bytes=b"secret"))
    for buffer in (data, bytearray(data), memoryview(data)):
        view = decode("SaslAuthenticateRequest", 2, buffer).auth_bytes
        assert view == b"secret"
        assert view.obj is (buffer.obj if isinstance(buffer, memoryview) else buffer)


def test_vector_and_joined_are_the_same_bytes():
    produce = messages.ProduceRequest(acks=-1, timeout_ms=1)
    part = produce.PartitionProduceData(index=1, records=[b"a" * 5000, b"", bytearray(b"b" * 10)])
    produce.topic_data.append(produce.TopicProduceData(name="t", partition_data=[part]))
    sent = protocol.encode_request_frame(0, 9, 7, "c", produce)
    assert len(sent) == 3, "the large records are passed on"
    assert b"".join(sent).endswith(encode("ProduceRequest", 9, produce))


def test_messages_compare_and_print_by_their_fields():
    assert TOPIC(name="a") == TOPIC(name="a") != TOPIC(name="b")
    assert TOPIC(name="a") != "a"
    assert repr(messages.RequestHeader(client_id="c")).endswith("client_id='c')")
    assert messages.MetadataRequest(topics=[TOPIC(name="a")]).to_dict()["topics"][0]["name"] == "a"
    with pytest.raises(TypeError):
        hash(TOPIC())


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2**21 - 1, 2**28, 2**31 - 1, 2**32 - 1])
def test_uvarint_comes_back(value):
    data = uvarint(value)
    assert read_uvarint(data, 0) == (value, len(data))


def test_elements_are_counted_over_all_arrays_of_a_message():
    group = messages.OffsetFetchRequest.OffsetFetchRequestGroup
    topic = messages.OffsetFetchRequest.OffsetFetchRequestTopics
    half = group(topics=[topic(name="t", partition_indexes=[7] * 499_990)])
    enough = encode("OffsetFetchRequest", 8, messages.OffsetFetchRequest(groups=[half, half]))
    assert len(decode("OffsetFetchRequest", 8, enough).groups) == 2
    too_many = encode("OffsetFetchRequest", 8, messages.OffsetFetchRequest(groups=[half, half, half]))
    with pytest.raises(DecodeError, match=r"groups\[2\].topics\[0\].partition_indexes.*more than 1000000 elements"):
        decode("OffsetFetchRequest", 8, too_many)
