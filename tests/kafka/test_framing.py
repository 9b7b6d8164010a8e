"""The frame reader and the headers around bodies."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kafka import golden_values
from tpc_broker.kafka import ApiKey, DecodeError, FrameReader, UnsupportedVersionError, apis, messages, protocol
from tpc_broker.kafka.framing import SIZE, frame
from tpc_broker.kafka.schema import message_schema

BODIES = [b"a", b"bc" * 500, b"d", bytes(70_000)]
STREAM = b"".join(SIZE.pack(len(body)) + body for body in BODIES)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_division_gives_the_same_frames(cuts):
    reader = FrameReader()
    edges = [0, *sorted(cuts), len(STREAM)]
    found = []
    for start, end in pairwise(edges):
        found += reader.receive(STREAM[start:end])
    assert found == BODIES
    assert len(reader._pending) == 0


def test_byte_by_byte_equals_whole():
    reader = FrameReader()
    short = STREAM[:1020]
    found = [body for position in range(len(short)) for body in reader.receive(short[position : position + 1])]
    assert found == FrameReader().receive(short) == BODIES[:3]
    assert len(reader._pending) == len(short) - sum(len(body) + 4 for body in found)


@pytest.mark.parametrize("size", [0, -1, -(2**31), 2**31 - 1, 1001])
def test_a_refused_size_takes_no_memory_and_ends_the_reader(size):
    reader = FrameReader(frame_bytes_max=1000)
    with pytest.raises(DecodeError, match=str(size)):
        reader.receive(SIZE.pack(size) + b"x" * 100)
    assert len(reader._pending) == 0
    with pytest.raises(DecodeError, match="before"):
        reader.receive(SIZE.pack(1) + b"x")


def test_the_largest_size_is_allowed():
    assert FrameReader(frame_bytes_max=1000).receive(SIZE.pack(1000) + bytes(1000)) == [bytes(1000)]


@pytest.mark.parametrize("api", apis().values(), ids=lambda api: api.name)
def test_requests_and_responses_with_their_headers_come_back(api):
    for version in range(api.first_version, api.last_version + 1):
        request = golden_values.build(message_schema(api.request_name), version, "full")
        buffers = protocol.encode_request_frame(api.key, version, -7, "client é", request)
        (whole,) = FrameReader().receive(b"".join(buffers))
        header, position = protocol.decode_request_header(whole)
        assert (header.request_api_key, header.request_api_version) == (api.key, version)
        assert (header.correlation_id, header.client_id) == (-7, "client é")
        assert protocol.decode_request(api.key, version, whole, position) == request

        response = golden_values.build(message_schema(api.response_name), version, "full")
        (whole,) = FrameReader().receive(b"".join(protocol.encode_response_frame(api.key, version, 99, response)))
        assert protocol.decode_response_frame(api.key, version, whole) == (99, response)


def test_the_header_of_unknown_keys_and_versions_is_read():
    for key, version in ((999, 0), (-1, -1), (18, 99), (0, -5), (7, 3)):
        head = key.to_bytes(2, "big", signed=True) + version.to_bytes(2, "big", signed=True)
        header, _ = protocol.decode_request_header(head + b"\0\0\0\5\xff\xff" + b"\0" + b"whatever")
        assert (header.request_api_key, header.request_api_version, header.correlation_id) == (key, version, 5)
        with pytest.raises(UnsupportedVersionError):
            protocol.decode_request(key, version, b"whatever")


def test_an_unsupported_api_versions_request_can_be_answered_in_version_0():
    response = messages.ApiVersionsResponse(error_code=35)
    response.api_keys.append(response.ApiVersion(api_key=18, min_version=0, max_version=4))
    buffers = protocol.encode_response_frame(ApiKey.API_VERSIONS, 0, 5, response)
    assert b"".join(buffers).hex() == "00000010" + "00000005" + "0023" + "00000001" + "0012" + "0000" + "0004"


def test_the_api_versions_response_header_is_never_flexible():
    body = messages.ApiVersionsResponse()
    plain = b"".join(protocol.encode_response_frame(ApiKey.API_VERSIONS, 3, 1, body))
    assert plain == b"".join(frame([b"\0\0\0\1", protocol.encode_response(ApiKey.API_VERSIONS, 3, body)]))


def test_short_frames_are_refused():
    for data in (b"\0", b"\0\x12\0", b"\0\x12\0\3", b"\0\x12\0\3\0\0\0\1", b"\0\x12\0\3\0\0\0\1\0\5ab"):
        with pytest.raises(DecodeError):
            protocol.decode_request_header(data)


def test_large_records_are_passed_on_and_not_copied():
    response = messages.FetchResponse()
    topic = response.FetchableTopicResponse(topic="t")
    large = [memoryview(bytes(5000)), memoryview(bytes(9000))]
    topic.partitions.append(response.PartitionData(partition_index=1, high_watermark=9, records=large))
    response.responses.append(topic)
    buffers = protocol.encode_response_frame(ApiKey.FETCH, 11, 1, response)
    assert [buffer for buffer in buffers if len(buffer) >= 5000] == large
    assert any(buffer is large[0] or getattr(buffer, "obj", None) is large[0].obj for buffer in buffers)
    _, again = protocol.decode_response_frame(ApiKey.FETCH, 11, b"".join(buffers)[4:])
    assert again.responses[0].partitions[0].records == bytes(14000)


@pytest.mark.parametrize("version", range(3, apis()[ApiKey.PRODUCE].last_version + 1))
def test_a_prepared_request_is_what_the_whole_one_would_be(version):
    for client_id, transactional_id in ((None, None), ("c" * 300, "t" if version >= 3 else None)):

        def make(records, transactional_id=transactional_id):
            row = messages.ProduceRequest.PartitionProduceData(index=7, records=records)
            topic = messages.ProduceRequest.TopicProduceData(name="orders" * (version < 13), partition_data=[row])
            return messages.ProduceRequest(transactional_id=transactional_id, timeout_ms=1, topic_data=[topic])

        prepared = protocol.BlobRequest(ApiKey.PRODUCE, version, client_id, make)
        for size in (1, 126, 127, 16_382, 16_383):
            whole = protocol.encode_request_frame(ApiKey.PRODUCE, version, 2**31 - 1, client_id, make(b"r" * size))
            parts = prepared.frame(2**31 - 1, bytearray(b"r" * size))
            assert b"".join(parts) == b"".join(whole)
            assert len(parts) == (1 if size < 4096 else 3)


@pytest.mark.parametrize("version", range(3, apis()[ApiKey.PRODUCE].last_version + 1))
def test_an_expected_response_is_read_without_decoding_and_another_one_is_not(version):
    kind = messages.ProduceResponse

    def make(base_offset, log_append_time_ms=-1, **others):
        row = kind.PartitionProduceResponse(index=7, base_offset=base_offset, log_append_time_ms=log_append_time_ms)
        for name in ("error_code", "error_message", "log_start_offset"):
            if name in others:
                setattr(row, name, others.pop(name))
        name = others.pop("name", "orders") * (version < 13)
        topics = [kind.TopicProduceResponse(name=name, partition_responses=[row])]
        return kind(responses=topics * others.pop("times", 1), **others)

    def frame_of(message, correlation_id=2**31 - 1):
        return b"".join(protocol.encode_response_frame(ApiKey.PRODUCE, version, correlation_id, message))[4:]

    expected = protocol.FixedResponse(ApiKey.PRODUCE, version, "qq8x" if version >= 5 else "qq", make)
    for numbers in ((0, -1), (2**63 - 1, 1), (-1, 2**63 - 1)):
        others = {"log_start_offset": 9} if version >= 5 else {}
        assert expected.read(frame_of(make(*numbers, **others)), 2**31 - 1) == numbers
    for others in ({"error_code": 3}, {"throttle_time_ms": 1}, {"times": 2}, {"times": 0}):
        assert expected.read(frame_of(make(5, **others)), 2**31 - 1) is None
    if version >= 8:
        assert expected.read(frame_of(make(5, error_message="why")), 2**31 - 1) is None
    if version < 13:
        assert expected.read(frame_of(make(5, name="others")), 2**31 - 1) is None
    whole = frame_of(make(5))
    assert all(expected.read(whole[:size], 2**31 - 1) is None for size in range(len(whole)))
    assert expected.read(whole + b"\0", 2**31 - 1) is None
    assert expected.read(whole, 2**31 - 2) is None
