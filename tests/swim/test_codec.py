"""Whatever the bytes are: a message or a `SwimDecodeError`; and messages come back as they were."""

from __future__ import annotations

import contextlib
import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpc_broker.limits import SWIM_DATAGRAM_BYTES_MAX, SWIM_ENDPOINTS_MAX, SWIM_FRAME_BYTES_MAX
from tpc_broker.model import NODE_ID_MAX, NodeId
from tpc_broker.swim import swim_pb2 as pb
from tpc_broker.swim.codec import SwimCodec, SwimDecodeError
from tpc_broker.swim.model import INCARNATION_MAX, Address, Kind, Message, NodeInfo, Sender, State, Update

EXAMPLES = 150
CODEC = SwimCodec("a cluster")

nodes = st.integers(0, NODE_ID_MAX).map(NodeId)
incarnations = st.integers(0, INCARNATION_MAX)
addresses = st.builds(Address, st.text(min_size=1, max_size=10), st.integers(1, 65_535))
infos = st.builds(
    NodeInfo,
    address=addresses,
    boot_id=st.uuids(),
    endpoints=st.lists(st.tuples(st.text(max_size=8), addresses), max_size=SWIM_ENDPOINTS_MAX, unique_by=lambda e: e[0])
    .map(tuple),
    cores=st.integers(1, 1024),
    load_permille=st.integers(0, 2000),
    rack=st.text(max_size=16),
    version=st.text(max_size=16),
    lacks_space=st.booleans(),
)  # fmt: skip
updates = st.builds(Update, nodes, incarnations, st.just(State.ALIVE), nodes, infos) | st.builds(
    Update, nodes, incarnations, st.just(State.SUSPECT), nodes, st.none() | infos
) | st.builds(
    Update, nodes, incarnations, st.sampled_from([State.DEAD, State.LEFT]), nodes, st.none() | infos,
    st.integers(0, 2**64 - 1),
)  # fmt: skip
senders = st.builds(Sender, nodes, incarnations, st.uuids())
messages = st.builds(
    Message, st.sampled_from([Kind.PING, Kind.ACK, Kind.NACK]), senders, st.integers(0, 2**32 - 1), nodes,
    updates=st.lists(updates, max_size=2).map(tuple),
) | st.builds(
    Message, st.just(Kind.PING_REQ), senders, st.integers(0, 2**32 - 1), nodes, addresses, st.integers(0, 10_000),
)  # fmt: skip


def largest_info(name: str = "x") -> NodeInfo:
    """All texts together are as long as they may be."""
    endpoints = tuple((name * 63 + str(number), Address("h", 65_535)) for number in range(SWIM_ENDPOINTS_MAX))
    return NodeInfo(
        address=Address("h" * (640 - 4 - 4 * 64 - 2 * 64), 65_535),
        boot_id=uuid.UUID(int=2**128 - 1),
        endpoints=endpoints,
        cores=1024,
        load_permille=1_000_000,
        rack="r" * 64,
        version="v" * 64,
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(messages)
def test_messages_come_back(message):
    data = CODEC.encode(message)
    assert CODEC.decode(data) == message
    assert len(data) <= CODEC.header_bytes(message.address) + sum(map(CODEC.update_bytes, message.updates))


@settings(max_examples=EXAMPLES, deadline=None)
@given(senders, st.lists(updates, max_size=5))
def test_a_state_comes_back_in_frames(sender, some):
    many = some * 200
    found, lasts = [], []
    for frame in CODEC.encode_state(sender, many):
        length = int.from_bytes(frame[:4], "big")
        CODEC.check_frame_bytes(length)
        assert length == len(frame) - 4
        who, part, is_last = CODEC.decode_state(frame[4:])
        assert who == sender
        found += part
        lasts.append(is_last)
    assert found == many
    assert lasts == [False] * (len(lasts) - 1) + [True]


def test_the_largest_node_fits_beside_the_largest_header():
    update = Update(NodeId(NODE_ID_MAX), INCARNATION_MAX, State.ALIVE, NodeId(NODE_ID_MAX), largest_info())
    longest_name = SwimCodec("c" * 64)
    header_bytes = longest_name.header_bytes(Address("h" * 253, 65_535))
    assert header_bytes + longest_name.update_bytes(update) <= SWIM_DATAGRAM_BYTES_MAX


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"endpoints": tuple((str(n), Address("h", 1)) for n in range(5))}, "5 endpoints; at most 4"),
        ({"endpoints": (("a", Address("h", 1)), ("a", Address("h", 2)))}, "same name"),
        ({"cores": 0}, "cores = 0; allowed are 1 to 1024"),
        ({"load_permille": -1}, "load_permille = -1"),
        ({"rack": "r" * 65}, "has 65 bytes; a rack, a version or a name has at most 64"),
        ({"address": Address("h", 0)}, "port 0 of 'h'"),
        ({"address": Address("", 1)}, "a host of 0 bytes"),
        ({"address": Address("h" * 254, 1)}, "a host of 254 bytes"),
        ({"endpoints": tuple((str(n), Address("h" * 200, 1)) for n in range(4))}, "all texts have"),
    ],
)
def test_information_out_of_bounds_is_named(change, said):
    with pytest.raises(ValueError, match=said):
        NodeInfo(**({"address": Address("h", 1), "boot_id": uuid.UUID(int=1)} | change))


def ping(**changes):
    datagram = pb.Datagram(
        version=1,
        cluster="a cluster",
        kind=pb.KIND_PING,
        sender=pb.Sender(node=1, boot_id=bytes(16)),
        sequence=7,
        subject=2,
    )
    for name, value in changes.items():
        field = getattr(datagram, name)
        if hasattr(field, "CopyFrom"):
            field.CopyFrom(value)
        elif hasattr(field, "extend"):
            field.extend(value)
        else:
            setattr(datagram, name, value)
    return datagram.SerializeToString()


WRONG = {
    "version 2; this node knows 1": ping(version=2),
    "of cluster 'another'; this one is 'a cluster'": ping(cluster="another"),
    "0 is not a valid Kind": ping(kind=0),
    "77 is not a valid Kind": ping(kind=77),
    "PING with an address": ping(address=pb.Address(host="h", port=1)),
    "PING_REQ without an address": ping(kind=pb.KIND_PING_REQ),
    "bytes is not a 16-char string": ping(sender=pb.Sender(node=1, boot_id=b"short")),
    f"node {NODE_ID_MAX + 1} is above": ping(subject=NODE_ID_MAX + 1),
    "is above": ping(sender=pb.Sender(node=1, incarnation=2**63, boot_id=bytes(16))),
    "alive without its information": ping(updates=[pb.Update(node=1, state=pb.STATE_ALIVE)]),
    "SUSPECT, and gone for 5 ms": ping(updates=[pb.Update(node=1, state=pb.STATE_SUSPECT, gone_for_ms=5)]),
    "state 0 of node 1": ping(updates=[pb.Update(node=1)]),
    "incarnation 9223372036854775808 is outside": ping(updates=[pb.Update(state=pb.STATE_DEAD, incarnation=2**63)]),
    "a host of 0 bytes": ping(updates=[pb.Update(state=pb.STATE_ALIVE, info=pb.NodeInfo(boot_id=bytes(16)))]),
    "1401 bytes; a datagram has at most 1400": bytes(1401),
    "version 0": b"",
    "not a membership datagram": b"\xff" * 20,
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_with_a_datagram_is_named(said):
    with pytest.raises(SwimDecodeError, match=said):
        CODEC.decode(WRONG[said])


def test_an_ack_without_a_subject_is_refused():
    datagram = pb.Datagram.FromString(ping(kind=pb.KIND_ACK))
    datagram.ClearField("subject")
    with pytest.raises(SwimDecodeError, match="ACK without a subject"):
        CODEC.decode(datagram.SerializeToString())


@pytest.mark.parametrize("length", [0, SWIM_FRAME_BYTES_MAX + 1, 2**32 - 1])
def test_the_length_of_a_frame_is_checked_before_memory_is_taken(length):
    with pytest.raises(SwimDecodeError, match=f"a frame of {length} bytes; allowed are 1 to {SWIM_FRAME_BYTES_MAX}"):
        CODEC.check_frame_bytes(length)


def test_a_newer_node_may_add_fields():
    assert CODEC.decode(ping() + b"\xa2\x06\x03new") == CODEC.decode(ping())


def mutated(chooser: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(chooser.randint(1, 4)):
        position = chooser.randrange(len(out) + 1)
        match chooser.randrange(4):
            case 0:
                out[position : position + 1] = bytes([chooser.choice((0, 1, 0x7F, 0x80, 0xFF, chooser.randrange(256)))])
            case 1:
                out[position : position + 5] = chooser.choice((b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07"))
            case 2:
                del out[position : position + chooser.randint(1, 8)]
            case 3:
                out[position:position] = chooser.randbytes(chooser.randint(1, 8))
    return bytes(out[:SWIM_DATAGRAM_BYTES_MAX])


@settings(max_examples=EXAMPLES, deadline=None)
@given(messages, st.integers(0, 2**32))
def test_mutated_datagrams_are_refused_or_read(message, seed):
    """What is read can be written again, and read again as the same: nothing half-made gets through."""
    chooser = random.Random(seed)
    for _ in range(8):
        try:
            read = CODEC.decode(mutated(chooser, CODEC.encode(message)))
        except SwimDecodeError:
            continue
        assert CODEC.decode(CODEC.encode(read)) == read


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(data):
    for decode in (CODEC.decode, CODEC.decode_state):
        with contextlib.suppress(SwimDecodeError):
            decode(data)
