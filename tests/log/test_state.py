"""The state of a log: what batches and beginnings of epochs make of it, and its one encoding."""

import struct
import uuid

import pytest

from tests.log.log_batches import batch, marker
from tests.support.record_batches import CONTROL
from tests.support.record_batches import batch as any_batch
from tpc_broker.log.batch import CONTROL_ABORT, CONTROL_COMMIT, walk_headers
from tpc_broker.log.checkpoint import CheckpointError, PartitionCheckpoint, decode_entry
from tpc_broker.log.files import EpochStart
from tpc_broker.log.producer_state import ProducerState
from tpc_broker.log.state import EndedTransaction, LogState, decode_state, encode_epochs, encode_producers


def taken(state, data):
    """What each of the batches aborts."""
    return [state.take(header, data, place) for header, place in walk_headers(data)]


def some_state():
    state = LogState()
    taken(state, batch(0, [b"a", b"b"], epoch=1, producer=(7, 0, 0)))
    taken(state, batch(2, [b"c"], epoch=3, producer=(8, 0, 0), transactional=True))
    return state


def test_a_batch_moves_producers_transactions_and_epochs_at_once():
    state = some_state()
    assert state.epochs.entries == (EpochStart(1, 0), EpochStart(3, 2))
    assert (state.last_stable_offset(3), len(state.producers)) == (2, 2)
    (aborted,) = taken(state, marker(3, CONTROL_ABORT, producer_id=8, epoch=4))
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (8, 2, 3)
    assert state.epochs.latest == 4
    assert state.last_stable_offset(4) == 4
    assert not state.begin_epoch(4, 9), "it is known"


def test_what_is_encoded_is_decoded_wherever_it_lies():
    state = some_state()
    epochs, producers = encode_epochs(state.epochs.entries), state.producers.encode_full()
    data = b"before" + epochs + producers + b"behind"
    assert decode_state(data, 6, 2) == (state.epochs.entries, state.producers, len(data) - 6)
    for end in range(len(epochs) + len(producers)):
        with pytest.raises(struct.error):
            decode_state((epochs + producers)[:end], 0, 2)


def test_a_plan_keeps_what_only_batches_tell():
    state = LogState([EpochStart(1, 0), EpochStart(2, 5)])
    state.begin_epoch(4, 8)
    state.follow_plan([EpochStart(1, 0), EpochStart(2, 5)], [EpochStart(1, 0), EpochStart(3, 6)], 4)
    assert state.epochs.entries == (EpochStart(1, 4), EpochStart(3, 6), EpochStart(4, 8))


def test_cuts_at_both_ends():
    state = some_state()
    state.cut_epochs(2, 1)
    assert state.epochs.entries == (EpochStart(1, 0),)
    state.advance_start(1)
    assert state.epochs.entries == (EpochStart(1, 1),)
    assert len(state.producers) == 2, "they are not told by a cut"


def ended_state():
    """Two transactions that ended at 6 and at 8, one that is open, from 9 on."""
    state = LogState()
    for offset, producer_id in ((2, 1), (4, 2)):
        taken(state, batch(offset, producer=(producer_id, 0, 0), transactional=True))
    taken(state, marker(5, CONTROL_COMMIT, producer_id=2) + marker(7, CONTROL_ABORT, producer_id=1))
    taken(state, batch(9, producer=(3, 0, 0), transactional=True) + marker(10, CONTROL_COMMIT, producer_id=4))
    assert state.ended == [EndedTransaction(2, 4, 6), EndedTransaction(1, 2, 8)]
    return state


def test_a_transaction_ends_where_readers_see_its_marker():
    state = ended_state()
    assert [state.last_stable_offset(offset) for offset in range(12)] == [0, 1, 2, 2, 2, 2, 2, 2, 8, 9, 9, 9]
    state.settle(7)
    assert state.ended == [EndedTransaction(1, 2, 8)]
    assert [state.last_stable_offset(offset) for offset in (7, 8)] == [2, 8]
    state.settle(8)
    assert state.ended == []


def test_a_cut_keeps_what_ended_below_it():
    state = ended_state()
    state.cut_producers(7, ProducerState())
    assert state.ended == [EndedTransaction(2, 4, 6)]


def test_a_control_batch_that_was_emptied_ends_nothing():
    state = LogState()
    taken(state, batch(0, producer=(1, 0, 0), transactional=True))
    taken(state, any_batch([], attributes=CONTROL, producer=(1, 0, -1), base_offset=1, last_offset_delta=0))
    assert (state.last_stable_offset(2), state.ended) == (0, [])


def test_a_checkpoint_has_what_ended_above_its_commit():
    state = ended_state()
    entry = PartitionCheckpoint(
        uuid.UUID(int=1), 0, "t", log_end_offset=11, commit_offset=5, producers=state.producers,
        ended=tuple(state.ended),
    )  # fmt: skip
    again = decode_entry(entry.encode())
    assert again == entry
    assert again.log_state().last_stable_offset(6) == 2
    with pytest.raises(CheckpointError):
        decode_entry(entry.encode().replace(struct.pack("<HI", 11, 48), struct.pack("<HI", 11, 47) + b"0"))


def test_the_plane_gets_producers_in_the_order_of_their_transactions():
    state = LogState()
    for offset, producer_id in ((0, 3), (1, 2), (2, 1)):
        taken(state, batch(offset, producer=(producer_id, 0, 0)))
    for offset, producer_id in ((3, 1), (4, 2)):
        taken(state, batch(offset, producer=(producer_id, 0, 1), transactional=True))
    known, end = ProducerState.decode_full(encode_producers(state.producers, [EndedTransaction(1, 2, 3)]), 0)
    assert list(known.producers) == [3, 1, 2]
    assert known == state.producers
    assert encode_producers(state.producers, [EndedTransaction(1, 2, 3)])[end:] == struct.pack("<qqq", 1, 2, 3)
