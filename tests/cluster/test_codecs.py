"""Whatever the bytes are: a value or a `LinkDecodeError`; and values come back as they were."""

from __future__ import annotations

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpc_broker.cluster import link_codec as links
from tpc_broker.cluster.link_codec import Hello, Kind, LinkDecodeError, Reason
from tpc_broker.cluster.raft_codec import decode_entry, decode_frame, encode_entry, encode_frame
from tpc_broker.feature_levels import Levels
from tpc_broker.limits import CLUSTER_GROUP_BYTES_MAX, LINK_FRAME_BYTES_MAX, LINK_GREETING_BYTES_MAX
from tpc_broker.model import CORES_PER_NODE_MAX, NODE_ID_MAX
from tpc_broker.raft.items import Address, Batch, Config, Marker, Position, Voter
from tpc_broker.raft.journal import (
    AdoptEntry,
    AppendEntry,
    Checkpoint,
    CutEntry,
    MarkerEntry,
    TakenEntry,
    VoteEntry,
)
from tpc_broker.raft.log import LogImage
from tpc_broker.raft.messages import (
    Ack,
    AppendEntries,
    Frame,
    GroupList,
    Heartbeat,
    Install,
    ReadRound,
    ReadRoundReply,
    Reject,
    RequestVote,
    Resign,
    TimeoutNow,
    Vote,
)
from tpc_broker.raft.messages import (
    Reason as VoteReason,
)

EXAMPLES = 150
GROUP = "metadata"

numbers = st.integers(0, links.NUMBER_MAX)
nodes = st.integers(0, NODE_ID_MAX)
voters = st.builds(Voter, nodes, numbers)
sets = st.frozensets(voters, min_size=1, max_size=5)
configs = sets.map(lambda who: Config(who, who)) | st.builds(Config, sets, sets)
positions = st.builds(Position, numbers, numbers)
markers = st.builds(Marker, numbers, numbers, configs)
batches = st.builds(
    lambda epoch, base, more, payload: Batch(epoch, base + more, base, len(payload), payload),
    numbers, st.integers(0, 2**60), st.integers(1, 1_000), st.binary(max_size=40),
)  # fmt: skip
items = st.lists(markers | batches, max_size=3).map(tuple)
who = (st.just(GROUP), voters, voters, numbers)
groups = st.text(st.characters(codec="utf-8"), min_size=1, max_size=CLUSTER_GROUP_BYTES_MAX // 4)
messages = st.one_of(
    st.builds(RequestVote, *who, positions, st.sampled_from(VoteReason), st.booleans()),
    st.builds(Vote, *who, st.booleans(), st.booleans()),
    st.builds(AppendEntries, *who, positions, items, positions),
    st.builds(Ack, *who, positions, positions),
    st.builds(Reject, *who, positions, positions),
    st.builds(TimeoutNow, *who, positions),
    st.builds(Install, *who, positions, st.lists(markers, max_size=3).map(tuple), numbers),
    st.builds(Resign, *who),
    st.builds(Heartbeat, numbers, st.lists(st.tuples(groups, numbers), max_size=2).map(tuple), numbers),
    st.builds(GroupList, st.lists(st.tuples(groups, numbers, st.booleans()), max_size=2).map(tuple)),
    st.builds(ReadRound, numbers, st.lists(st.tuples(groups, numbers), max_size=2).map(tuple)),
    st.builds(ReadRoundReply, numbers, st.lists(st.tuples(groups, numbers, voters), max_size=2).map(tuple)),
)
addresses = st.builds(Address, nodes, st.integers(0, CORES_PER_NODE_MAX - 1))
frames = st.builds(Frame, addresses, addresses, numbers, st.just(0), st.lists(messages, max_size=3).map(tuple))
logs = st.builds(LogImage, positions, numbers, numbers, st.lists(markers, max_size=3).map(tuple), items)
entries = st.one_of(
    st.builds(VoteEntry, st.just(GROUP), numbers, st.none() | voters),
    st.builds(MarkerEntry, st.just(GROUP), markers),
    st.builds(AppendEntry, st.just(GROUP), st.lists(batches, min_size=1, max_size=3).map(tuple)),
    st.builds(CutEntry, st.just(GROUP), numbers, numbers),
    st.builds(
        AdoptEntry, st.just(GROUP), positions, st.lists(markers, max_size=3).map(tuple), numbers, numbers,
        st.none() | voters, positions,
    ),
    st.builds(Checkpoint, numbers, st.none() | voters, positions, logs),
)  # fmt: skip
hellos = st.builds(
    Hello, st.text(max_size=16), nodes, numbers, numbers, st.integers(0, CORES_PER_NODE_MAX - 1),
    st.text(max_size=16), st.integers(0, 65_535), st.text(max_size=16),
    st.booleans(), st.tuples(st.integers(0, 9), st.integers(10, 32_767)).map(lambda pair: Levels(*pair)),
    st.booleans(),
)  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None)
@given(frames)
def test_frames_of_replication_come_back(frame):
    assert decode_frame(encode_frame(frame)) == frame


@settings(max_examples=EXAMPLES, deadline=None)
@given(entries, st.binary(max_size=8))
def test_entries_of_a_voters_file_come_back(entry, image):
    found = decode_entry(GROUP, encode_entry(entry, image))
    assert found.entry == entry
    if isinstance(entry, AdoptEntry | Checkpoint):
        assert found.image == image


def test_entries_of_what_others_have_written_already_are_none_of_this_file():
    with pytest.raises(TypeError, match="TakenEntry"):
        encode_entry(TakenEntry(GROUP, 5, 1))


@settings(max_examples=EXAMPLES, deadline=None)
@given(hellos)
def test_hellos_come_back(hello):
    assert links.decode_hello(links.encode_hello(hello)[links.HEADER.size :]) == hello


@given(st.integers(0, 2**63), st.text(max_size=20), st.lists(st.binary(max_size=9), max_size=3))
def test_requests_and_answers_come_back(number, method, blobs):
    request = links.decode_request(links.encode_request(number, method, {"a": [1]}, blobs)[links.HEADER.size :])
    assert (request.id, request.method, request.payload, request.blobs) == (number, method, {"a": [1]}, blobs)
    answer = links.decode_answer(links.encode_answer(number, {"b": None}, blobs, "no")[links.HEADER.size :])
    assert (answer.id, answer.payload, answer.blobs, answer.error) == (number, {"b": None}, blobs, "no")


@pytest.mark.parametrize("length", [0, 1, LINK_GREETING_BYTES_MAX + 1, 2**32 - 1])
def test_the_length_of_a_greeting_is_checked_before_memory_is_taken(length):
    with pytest.raises(LinkDecodeError, match=f"{length} bytes; allowed"):
        links.check_header(links.HEADER.pack(length, links.VERSION, Kind.PROOF), is_known=False)


def test_a_known_node_may_say_more_but_not_anything():
    header = links.HEADER.pack(LINK_FRAME_BYTES_MAX, links.VERSION, Kind.REQUEST)
    assert links.check_header(header, is_known=True) == (Kind.REQUEST, LINK_FRAME_BYTES_MAX - 2)
    for wrong in (
        links.HEADER.pack(LINK_FRAME_BYTES_MAX + 1, links.VERSION, Kind.REQUEST),
        links.HEADER.pack(9, links.VERSION + 1, Kind.REQUEST),
        links.HEADER.pack(9, links.VERSION, 99),
    ):
        with pytest.raises(LinkDecodeError):
            links.check_header(wrong, is_known=True)


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.REQUEST, Kind.ANSWER, Kind.RAFT, Kind.STEADY, Kind.PART])
def test_who_has_not_proved_the_secret_says_nothing_else(kind):
    with pytest.raises(LinkDecodeError, match="has not proved"):
        links.check_header(links.HEADER.pack(9, links.VERSION, kind), is_known=False)


def test_a_boot_id_comes_back():
    assert links.decode_steady(links.encode_steady(2**63 - 1)[links.HEADER.size :]) == 2**63 - 1
    for wrong in (b"", bytes(7), bytes(9), b"\xff" * 8):
        with pytest.raises(LinkDecodeError, match="boot id"):
            links.decode_steady(wrong)


def test_a_reason_of_a_later_release_is_taken_as_none():
    body = links.encode_refused(Reason.CLUSTER, "why")[links.HEADER.size :]
    assert links.decode_refused(body) == (Reason.CLUSTER, "why")
    assert links.decode_refused(body.replace(b"cluster", b"clu5ter")) == (None, "why")


DECODERS = [
    decode_frame,
    lambda data: decode_entry(GROUP, data),
    links.decode_challenge,
    links.decode_proof,
    links.decode_hello,
    links.decode_refused,
    links.decode_request,
    links.decode_answer,
    links.decode_steady,
    links.decode_part,
]


def test_a_part_of_a_file_is_an_answer_that_is_not_copied_into_a_message():
    for data in (b"", bytes(range(256)) * 9):
        header = links.part_header(77, len(data))
        kind, length = links.check_header(header[: links.HEADER.size], is_known=True)
        body = header[links.HEADER.size :] + data
        assert (kind, length) == (Kind.PART, len(body))
        assert links.decode_part(body) == links.Answer(77, {}, [data], "")
    with pytest.raises(LinkDecodeError, match="3 bytes; it has 8"):
        links.decode_part(b"abc")


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(data):
    for decode in DECODERS:
        with contextlib.suppress(LinkDecodeError):
            decode(data)


def mutated(chooser: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(chooser.randint(1, 4)):
        position = chooser.randrange(len(out) + 1)
        match chooser.randrange(3):
            case 0:
                out[position : position + 1] = bytes([chooser.choice((0, 0x7F, 0x80, 0xFF, chooser.randrange(256)))])
            case 1:
                del out[position : position + chooser.randint(1, 8)]
            case 2:
                out[position:position] = chooser.randbytes(chooser.randint(1, 8))
    return bytes(out)


@settings(max_examples=EXAMPLES, deadline=None)
@given(frames, entries, st.integers(0, 2**32))
def test_mutated_bytes_are_refused_or_read(frame, entry, seed):
    """What is read can be written again, and read again as the same: nothing half-made gets through."""
    chooser = random.Random(seed)
    for _ in range(8):
        with contextlib.suppress(LinkDecodeError):
            read = decode_frame(mutated(chooser, encode_frame(frame)))
            assert decode_frame(encode_frame(read)) == read
        with contextlib.suppress(LinkDecodeError):
            found = decode_entry(GROUP, mutated(chooser, encode_entry(entry)))
            assert decode_entry(GROUP, encode_entry(found.entry, found.image)).entry == found.entry
