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
from tpc_broker.model import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from tpc_broker.runtime.cluster.filling import Pace
from tpc_broker.runtime.cluster.offers import FillingFailedError, LogCheck, Offer

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
    ],
)
def test_an_offer_that_cannot_be_is_refused(field, value):
    with pytest.raises(FillingFailedError):
        Offer.decode({**OFFER, field: value})


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(OFFER)), json))
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
