"""The state of a log: what batches and beginnings of epochs make of it, and its one encoding."""

import struct

import pytest

from tests.log.log_batches import batch, marker
from tpc_broker.log.batch import CONTROL_ABORT, walk_headers
from tpc_broker.log.files import EpochStart
from tpc_broker.log.state import LogState, decode_state, encode_state


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
    epochs, producers = encode_state(state.epochs.entries, state.producers)
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
