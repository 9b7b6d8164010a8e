"""Whatever the bytes are: a message or a `DecodeError`, and memory in proportion to the bytes given."""

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kafka import golden_values
from tpc_broker.kafka import DecodeError, UnsupportedVersionError, apis, decode, encode, protocol
from tpc_broker.kafka.codec import codec
from tpc_broker.kafka.message import message_classes
from tpc_broker.kafka.schema import FIXED_TYPES, message_names, message_schema

EXAMPLES = 150
MUTATIONS_PER_VECTOR = max(4, EXAMPLES // 20)
CASES = [
    (name, version)
    for name in message_names()
    for version in range(message_schema(name).valid.first, message_schema(name).valid.end)
]
MEMORY_BASE_BYTES = 200_000
MEMORY_PER_BYTE = 400
CLAIMS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00\x0f\x42\x40")
INTEGERS = {"b": 8, "h": 16, "i": 32, "q": 64}


def values(schema, field, version):
    if field.struct is not None:
        one = structures(schema, field.struct, version)
    elif field.element == "string":
        one = st.text(max_size=12)
    elif field.element in FIXED_TYPES:
        one = fixed(FIXED_TYPES[field.element][0])
    else:
        one = st.binary(max_size=12)
    many = st.lists(one, max_size=3) if field.is_array else one
    return st.none() | many if version in field.nullable else many


def fixed(code):
    if code in INTEGERS:
        half = 1 << (INTEGERS[code] - 1)
        return st.integers(-half, half - 1)
    named = {
        "H": st.integers(0, 2**16 - 1),
        "I": st.integers(0, 2**32 - 1),
        "?": st.booleans(),
        "d": st.floats(allow_nan=False),
        "16s": st.binary(min_size=16, max_size=16),
    }
    return named[code]


def structures(schema, struct, version):
    fields = {field.name: values(schema, field, version) for field in struct.fields if version in field.versions}
    return st.builds(message_classes(schema.name)[struct.name], **fields)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_random_messages_come_back(data):
    name, version = data.draw(st.sampled_from(CASES))
    schema = message_schema(name)
    message = data.draw(structures(schema, schema.root, version))
    assert decode(name, version, encode(name, version, message)) == message


@pytest.fixture(scope="module")
def compiled():
    """Both functions of each version are made before anything is measured: what they take is no message's."""
    for name, version in CASES:
        made = codec(name, version)
        made.make_decoder()
        made.make_encoder()


def attempt(name, version, data):
    """Decode and measure; returns whether it was a message."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        decode(name, version, data)
    except DecodeError:
        accepted = False
    else:
        accepted = True
    peak = tracemalloc.get_traced_memory()[1] - before
    assert peak < MEMORY_BASE_BYTES + MEMORY_PER_BYTE * len(data), (name, version, data.hex(), peak)
    return accepted


def mutated(chooser, data):
    out = bytearray(data)
    for _ in range(chooser.randint(1, 4)):
        kind = chooser.randrange(4)
        position = chooser.randrange(len(out) + 1)
        if kind == 0:
            out[position : position + 1] = bytes([chooser.choice((0, 1, 0x7F, 0x80, 0xFF, chooser.randrange(256)))])
        elif kind == 1:
            out[position : position + 4] = chooser.choice(CLAIMS)
        elif kind == 2:
            del out[position : position + chooser.randint(1, 8)]
        else:
            out[position:position] = chooser.randbytes(chooser.randint(1, 8))
    return bytes(out)


@pytest.fixture
def traced(compiled):
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
def test_mutated_messages_are_refused_or_read():
    chooser = random.Random(20261121)
    accepted = refused = 0
    for name, version in CASES:
        for variant in golden_values.VARIANTS:
            data = encode(name, version, golden_values.build(message_schema(name), version, variant))
            for _ in range(MUTATIONS_PER_VECTOR):
                if attempt(name, version, mutated(chooser, data)):
                    accepted += 1
                else:
                    refused += 1
    assert accepted > 100
    assert refused > 1000


@pytest.mark.usefixtures("traced")
def test_random_bytes_are_refused_or_read():
    chooser = random.Random(7)
    for name, version in CASES:
        for _ in range(MUTATIONS_PER_VECTOR):
            attempt(name, version, chooser.randbytes(chooser.choice((0, 1, 4, 15, 64, 400))))


def test_whole_frames_are_refused_or_read():
    chooser = random.Random(11)
    known = list(apis().values())
    for _ in range(EXAMPLES * 20):
        api = chooser.choice(known)
        version = chooser.randint(api.first_version, api.last_version)
        request = golden_values.build(message_schema(api.request_name), version, chooser.choice(golden_values.VARIANTS))
        data = b"".join(protocol.encode_request_frame(api.key, version, 1, "client", request))[4:]
        if chooser.random() < 0.2:
            data = chooser.randbytes(len(data))
        try:
            frame = mutated(chooser, data)
            header, position = protocol.decode_request_header(frame)
            protocol.decode_request(header.request_api_key, header.request_api_version, frame, position)
        except (DecodeError, UnsupportedVersionError):
            continue


@pytest.mark.usefixtures("traced")
def test_claims_of_many_elements_cost_nothing():
    for name, version in CASES:
        for claim in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x00\x0f\x42\x40", b"\x81\x89\x7a", b"\x00" * 4):
            for lead in (b"", bytes(2), bytes(4), bytes(6), bytes(17)):
                attempt(name, version, lead + claim * 3)
