"""What a replica makes of what it is offered and sent, without nodes."""

from __future__ import annotations

import contextlib
import random
import uuid
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.log.log_batches import batch
from tpc_broker.log.checkpoint import PartitionCheckpoint
from tpc_broker.log.files import EpochStart
from tpc_broker.log.seals import SEAL_BYTES_MAX, Seal, SealedFile
from tpc_broker.model import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from tpc_broker.node.replicas.filling import Pace
from tpc_broker.node.replicas.offers import FillingFailedError, LogCheck, Offer

OFFER = {
    "shipment": "0000-ab", "term": 5, "position": [4, 90], "starts": 7,
    "markers": [[2, 0, "00ff"], [4, 60, ""]], "files": [[f"{0:020d}.log", 500], [f"{50:020d}.log", 70]],
}  # fmt: skip


def test_an_offer_is_read():
    offer = Offer.decode(OFFER)
    assert (offer.position, offer.starts, offer.size_bytes, offer.logs) == ((4, 90), 7, 570, [0, 50])
    assert (offer.first_offset, offer.notes) == (0, {2: b"\x00\xff", 4: b""})


@pytest.mark.parametrize(("own_start", "starts"), [(0, 7), (7, 7), (30, 30)])
def test_records_that_were_deleted_while_a_replica_was_filled_stay_deleted(own_start, starts):
    """It has told its leader that its log starts there, and is not told again."""
    own = SimpleNamespace(log_start_offset=Offset(own_start), leader_epoch=LeaderEpoch(5), notes={}, moves=1)
    key = TopicPartition(TopicId(uuid.UUID(int=5)), PartitionIndex(0))
    state = Offer.decode(OFFER).state(PartitionCheckpoint(*key, "t", log_end_offset=Offset(90)), own)
    assert (state.log_start_offset, state.commit_offset) == (starts, 90)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("position", [5, 90]),
        ("position", [4]),
        ("starts", 91),
        ("starts", -1),
        ("term", 3),
        ("markers", []),
        ("markers", [[4, 60, "no hex"]]),
        ("files", [["../../etc/passwd", 1]]),
        ("files", [["/etc/passwd.log", 1]]),
        ("files", [[f"{0:020d}.log", -1]]),
        ("files", [[f"{0:020d}.log", 1], [f"{0:020d}.log", 2]]),
        ("files", 3),
        ("removed_upto", 91),
        ("removed_upto", -1),
        ("lost", [[3]]),
        ("files", [[f"{0:020d}.log", 1], [f"{50:020d}.seal", 1]]),
        ("files", [[f"{0:020d}.log", 1], [f"{0:020d}.seal", SEAL_BYTES_MAX + 1]]),
    ],
)
def test_an_offer_that_cannot_be_is_refused(field, value):
    with pytest.raises(FillingFailedError):
        Offer.decode({**OFFER, field: value})


@pytest.mark.parametrize(
    ("removed_upto", "own", "keeps"),
    [
        (0, (0, 60), True),
        (50, (0, 60), True),
        (51, (0, 60), False),
        (55, (0, 60), False),
        (0, (50, 60), False),
        (0, (0, 49), False),
    ],
)
def test_the_front_is_kept_only_in_front_of_what_was_removed(removed_upto, own, keeps):
    """The first shipped segment begins at 50; where the replica's own log begins and ends."""
    said = {**OFFER, "files": [[f"{50:020d}.log", 70]], "removed_upto": removed_upto}
    assert Offer.decode(said).continues(*own) is keeps


def seal_of(base_offset, end_offset, *, log_bytes, removed_upto=0):
    files = [SealedFile(log_bytes, 7), *[SealedFile(0, 0)] * 3]
    return Seal("0" * 16, base_offset, end_offset, (base_offset,), end_offset, removed_upto, 1, 1, *files)


SEALED_OFFER = {**OFFER, "files": [*OFFER["files"], [f"{0:020d}.seal", 90], [f"{50:020d}.seal", 90]]}


def test_seals_are_those_of_the_offered_segments():
    offer = Offer.decode({**SEALED_OFFER, "removed_upto": 20})
    assert list(offer.seals) == [0, 50]
    assert [name for name, _size in offer.in_order] == [f"{0:020d}.log", f"{50:020d}.log"]
    right = {
        0: seal_of(0, 50, log_bytes=500, removed_upto=20),
        50: seal_of(50, 90, log_bytes=70),
    }  # fmt: skip
    offer.check_seals(right)
    for changes in (
        {0: seal_of(0, 49, log_bytes=500)},
        {0: seal_of(0, 50, log_bytes=499)},
        {0: seal_of(0, 50, log_bytes=500, removed_upto=21)},
        {50: seal_of(50, 91, log_bytes=70)},
        {50: seal_of(40, 90, log_bytes=70)},
    ):
        with pytest.raises(FillingFailedError):
            offer.check_seals({**right, **changes})


def test_offsets_may_be_missing_in_what_was_cleaned_and_where_a_repair_says_so():
    """An older leader says nothing: then they may be missing anywhere, as they may in front of the first term."""
    seals = {0: seal_of(0, 50, log_bytes=500)}
    offer = Offer.decode({**SEALED_OFFER, "lost": [[60, 70]], "markers": [[4, 5, ""]]})
    assert offer.gaps_in(0, seals) is None
    assert offer.gaps_in(50, seals) == ((0, 5), (60, 70))
    assert Offer.decode(SEALED_OFFER).gaps_in(50, seals) is None
    chooser = random.Random(7)
    data = b"".join(batch(offset, [chooser.randbytes(50)], epoch=1) for offset in (0, 1, 4, 5))

    def found(gaps):
        check = LogCheck(0, EPOCHS[:1], gaps)
        for place in range(0, len(data), 37):
            assert check.take(data[place : place + 37])
        return check.next_offset, check.is_whole

    assert found(None) == found(((2, 4),)) == found(((0, 9),)) == (6, True)
    assert found(()) == found(((2, 3),)) == (2, False)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*sorted(OFFER), "removed_upto", "lost"]), json))
def test_any_offer_is_read_or_refused(changes):
    with contextlib.suppress(FillingFailedError):
        Offer.decode({**OFFER, **changes})


EPOCHS = [
    EpochStart(LeaderEpoch(1), Offset(0)),
    EpochStart(LeaderEpoch(2), Offset(8)),
    EpochStart(LeaderEpoch(3), Offset(12)),
]


@given(st.integers(0, 2**32))
def test_a_log_is_checked_however_it_is_cut_and_no_flipped_bit_gets_through(seed):
    chooser = random.Random(seed)
    data = b"".join(
        batch(offset, [chooser.randbytes(chooser.randint(1, 300))], epoch=offset // 4) for offset in range(5, 15)
    )

    def checked(log: bytes) -> LogCheck:
        check, place = LogCheck(5, EPOCHS), 0
        while place < len(log):
            length = chooser.randint(1, 700)
            assert check.take(log[place : place + length])
            place += length
        return check

    whole = checked(data)
    assert (whole.next_offset, whole.is_whole) == (15, True)
    flipped = bytearray(data)
    flipped[chooser.randrange(len(data))] ^= 1 << chooser.randrange(8)
    found = checked(bytes(flipped))
    assert (found.next_offset, found.is_whole) != (15, True)


def test_bytes_are_fetched_at_the_pace_that_is_allowed_now():
    async def fetch():
        pace, begun_s = Pace(), trio.current_time()
        for _chunk in range(5):
            await pace.spend(4_000, 1_000)
        assert trio.current_time() - begun_s == pytest.approx(16)
        await pace.spend(4_000, 1_000_000)
        assert trio.current_time() - begun_s == pytest.approx(20)
        await trio.sleep(100)  # what was not used is gone
        before_s = trio.current_time()
        await pace.spend(8_000, 4_000)
        await pace.spend(8_000, 4_000)
        assert trio.current_time() - before_s == pytest.approx(2)

    trio.run(fetch, clock=MockClock(autojump_threshold=0))
