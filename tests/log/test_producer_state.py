"""Producer state is a function of the log; snapshots and checkpoints bring it back."""

import struct
import uuid
from dataclasses import replace

import pytest

from tests.log.log_batches import batch, marker
from tpc_broker.log import producer_state
from tpc_broker.log.batch import CONTROL_ABORT, CONTROL_COMMIT, decode_header, walk_headers
from tpc_broker.log.checkpoint import CheckpointError, PartitionCheckpoint, decode_checkpoint, encode_checkpoint
from tpc_broker.log.files import EpochStart
from tpc_broker.log.producer_state import ProducerState, SnapshotError
from tpc_broker.native_bytes import crc32c


def applied(*batches):
    state, aborted, data = ProducerState(), [], b"".join(batches)
    for header, place in walk_headers(data):
        transaction = state.apply(header, data, place)
        aborted += [transaction] if transaction else []
    return state, aborted


def test_the_last_five_batches_are_kept():
    state, _aborted = applied(*(batch(offset, [b"a", b"b"], producer=(7, 2, offset)) for offset in range(0, 16, 2)))
    kept = state.producers[7].batches
    assert [one.last_sequence for one in kept] == [7, 9, 11, 13, 15]
    assert [one.last_offset for one in kept] == [7, 9, 11, 13, 15]


def test_sequences_wrap_and_a_new_epoch_begins_anew():
    state, _aborted = applied(batch(0, [b"a", b"b"], producer=(7, 2, 2**31 - 1)))
    assert state.producers[7].batches[-1].last_sequence == 0
    state, _aborted = applied(batch(0, producer=(7, 2, 0)), batch(1, producer=(7, 3, 0)))
    assert (state.producers[7].epoch, len(state.producers[7].batches)) == (3, 1)


def test_transactions_hold_the_last_stable_offset_until_they_end():
    open_ones = [batch(0, producer=(1, 0, 0), transactional=True), batch(1, producer=(2, 0, 0), transactional=True)]
    state, aborted = applied(*open_ones)
    assert state.last_stable_offset(2) == 0
    state, aborted = applied(*open_ones, marker(2, CONTROL_ABORT, 1, coordinator_epoch=4))
    assert aborted == [(1, 0, 2, 1)]
    assert state.last_stable_offset(3) == 1
    assert state.producers[1].coordinator_epoch == 4
    state, aborted = applied(*open_ones, marker(2, CONTROL_ABORT, 1), marker(3, CONTROL_COMMIT, 2))
    assert aborted == [(1, 0, 2, 1)]
    assert state.last_stable_offset(4) == 4


def test_an_abort_does_not_look_at_all_producers(monkeypatch):
    """Of which there may be hundreds of thousands, and an abort in each batch."""
    state, aborted, passes, look = ProducerState(), [], [], ProducerState.__iter__
    monkeypatch.setattr(ProducerState, "__iter__", lambda self: passes.append(1) or look(self))
    for offset in range(0, 60, 3):
        data = b"".join(
            [
                batch(offset, producer=(offset, 0, 0), transactional=True),
                batch(offset + 1, producer=(offset + 1, 0, 0), transactional=True),
                marker(offset + 2, CONTROL_COMMIT if offset % 2 else CONTROL_ABORT, offset),
            ]
        )
        for header, place in walk_headers(data):
            transaction = state.apply(header, data, place)
            aborted += [transaction] if transaction else []
    assert aborted == [(offset, offset, offset + 2, min(1, offset + 1)) for offset in range(0, 60, 6)]
    assert (state.last_stable_offset(60), len(passes)) == (1, 1)
    assert state.copy().last_stable_offset(60) == 1


def test_expiry_spares_open_transactions():
    state, _aborted = applied(batch(0, producer=(1, 0, 0)), batch(1, producer=(2, 0, 0), transactional=True))
    assert state.expire(1000, 1000, 1000) == 0
    assert state.expire(1999, 1999, 1000) == 0
    assert state.expire(2000, 2000, 1000) == 1
    assert list(state.producers) == [2]


@pytest.mark.parametrize("timestamp", [1000, 10**9], ids=["old records", "records of the future"])
def test_expiry_goes_by_when_batches_came_and_not_by_their_records(timestamp):
    state, _aborted = applied(batch(0, producer=(1, 0, 0), timestamp=timestamp))
    assert state.expire(10**6, 10**6, 1000) == 0
    state = state.copy()
    data = batch(1, producer=(1, 0, 1), timestamp=timestamp)
    state.apply(decode_header(data), data)
    assert state.expire(10**6 + 1000, 10**6 + 1000, 1000) == 0
    assert state.expire(10**6 + 1999, 10**6 + 1999, 1000) == 0
    assert state.expire(10**6 + 2000, 10**6 + 2000, 1000) == 1


def test_silence_goes_on_over_restarts():
    """Or a partition that is opened each day would keep all the producers that it ever had."""
    state, _aborted = applied(batch(0, producer=(1, 0, 0), timestamp=10**6))
    assert state.expire(10**6 + 600, 10**6 + 600, 1000) == 0
    assert state.copy().expire(10**6 + 1000, 10**6 + 1000, 1000) == 1
    again, _end = ProducerState.decode_full(state.encode_full(), 0)
    assert again.expire(10**6 + 999, 10**6 + 999, 1000) == 0
    assert again.expire(10**6 + 1000, 10**6 + 1000, 1000) == 1


@pytest.mark.parametrize("set_to", [10**12, 0], ids=["forward", "back"])
def test_a_clock_that_is_set_makes_nobody_silent_or_heard(set_to):
    """Machines without a clock of their own begin in 1970, and hear of the time later."""
    state, _aborted = applied(batch(0, producer=(1, 0, 0), timestamp=10**6))
    assert state.expire(10**6, 50, 1000) == 0
    assert state.expire(set_to, 1049, 1000) == 0
    assert state.expire(set_to, 1050, 1000) == 1


def test_any_negative_id_is_no_producer():
    state, _aborted = applied(batch(0, producer=(-2, -1, -1)), batch(1, producer=(-(2**63), 0, 0)), batch(2))
    assert not state.producers


def test_what_earlier_releases_kept_of_negative_ids_is_left_out():
    """A core could not be started with it."""
    state, _aborted = applied(batch(0, producer=(7, 2, 0)))
    wanted = state.copy()
    state.producers[-2] = replace(state.producers[7], producer_id=-2)
    assert ProducerState.decode_snapshot(state.encode_snapshot()) == wanted
    full = state.encode_full()
    assert ProducerState.decode_full(full, 0) == (wanted, len(full))


def test_the_snapshot_file():
    state, _aborted = applied(
        batch(0, [b"a", b"b"], producer=(7, 2, 5), timestamp=99),
        batch(2, producer=(8, 1, 0), timestamp=98, transactional=True),
    )
    data = state.encode_snapshot()
    assert data[:2] == b"\0\1"
    assert struct.unpack_from(">qhiqiqiq", data, 10) == (7, 2, 6, 1, 1, 99, -1, -1)
    again = ProducerState.decode_snapshot(data)
    assert again == state
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 4
        with pytest.raises(SnapshotError):
            ProducerState.decode_snapshot(bytes(wrong))
        with pytest.raises(SnapshotError):
            ProducerState.decode_snapshot(data[:at])


def test_the_checkpoint_file():
    state, _aborted = applied(*(batch(offset, producer=(7, 2, offset), transactional=True) for offset in range(7)))
    one = PartitionCheckpoint(
        uuid.UUID(int=1),
        3,
        "tøpic",
        5,
        1000,
        2,
        7,
        4,
        1,
        99,
        6,
        90,
        16,
        24,
        34,
        (EpochStart(1, 2), EpochStart(4, 6)),
        state,
    )
    two = PartitionCheckpoint(uuid.UUID(int=2), 0, "other")
    data = encode_checkpoint(12, [one, two])
    assert decode_checkpoint(data) == (12, {one.key: one, two.key: two})
    for at in range(len(data)):
        with pytest.raises(CheckpointError):
            decode_checkpoint(data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :])


def version_1(data):
    """A checkpoint file as the first release wrote it: the values without lengths and tags."""
    generation, partitions = decode_checkpoint(data)
    bodies = []
    for one in partitions.values():
        fields = replace(one, commit_offset=-1).encode()[4:]
        while fields:
            size = int.from_bytes(fields[2:6], "little")
            bodies.append(fields[6 : 6 + size])
            fields = fields[6 + size :]
    whole = data[:4] + (1).to_bytes(2, "little") + data[6:20] + b"".join(bodies)
    assert len(partitions) == int.from_bytes(data[16:20], "little")
    return whole + crc32c(whole).to_bytes(4, "little"), generation


CHECKPOINT = PartitionCheckpoint(
    uuid.UUID(int=7), 3, "tøpic", 10, 500, 4, 20, 6, epochs=(EpochStart(2, 4), EpochStart(6, 20)), commit_offset=18
)


def test_a_checkpoint_of_version_1_is_read():
    data, generation = version_1(encode_checkpoint(12, [CHECKPOINT, replace(CHECKPOINT, partition=4)]))
    assert generation == 12
    found = decode_checkpoint(data)[1]
    assert list(found.values()) == [replace(CHECKPOINT, partition=p, commit_offset=-1) for p in (3, 4)]
    assert [one.committed_end_offset for one in found.values()] == [20, 20]


@pytest.mark.parametrize(("tag", "is_read"), [(0x8000 | 99, True), (99, False)])
def test_an_unknown_field_of_a_checkpoint_is_passed_over_only_where_it_says_so(tag, is_read):
    data = encode_checkpoint(12, [CHECKPOINT])
    field = tag.to_bytes(2, "little") + (5).to_bytes(4, "little") + b"later"
    length = int.from_bytes(data[20:24], "little") + len(field)
    whole = data[:20] + length.to_bytes(4, "little") + data[24:-4] + field
    whole += crc32c(whole).to_bytes(4, "little")
    if is_read:
        assert decode_checkpoint(whole) == (12, {CHECKPOINT.key: CHECKPOINT})
    else:
        with pytest.raises(CheckpointError, match="field 99 is not known"):
            decode_checkpoint(whole)


def test_what_a_copy_knows_never_changes():
    """And is encoded as it was, however often and whenever either was."""
    batches = [batch(offset, producer=(offset % 3, 0, offset // 3)) for offset in range(9)]
    state, _aborted = applied(*batches[:6])
    state.encode_full()
    early = state.copy()
    before = early.encode_full()
    for data in batches[6:]:
        state.apply(decode_header(data), data)
    state.extend(1, 5, [], is_epoch_new=True, last_timestamp=7, transaction_first_offset=8)
    again = state.copy()
    state.mark_lost()
    assert (early.encode_full(), early) == (before, applied(*batches[:6])[0])
    assert not again.lost
    assert sorted(state.lost) == [0, 1, 2]
    assert state.encode_full() == again.encode_full() != before
    early.apply(decode_header(batches[6]), batches[6])
    assert early.producers[0].batches == state.producers[0].batches
    assert ProducerState.decode_full(state.encode_full(), 0)[0] == state
    assert b"".join(state.encode_in_parts(2)) == state.encode_full()


def test_too_many_go_that_have_not_changed_for_longest(monkeypatch):
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 32)
    state, _aborted = applied(
        batch(0, producer=(0, 0, 0), transactional=True),
        *(batch(number, producer=(number, 0, 0)) for number in range(1, 32)),
        batch(32, producer=(1, 0, 1)), batch(33, producer=(40, 0, 0)),
    )  # fmt: skip
    assert list(state.producers) == [0, *range(4, 32), 1, 40], "one has a transaction open, one has written since"
    assert state.producers[1].batches[-1].last_sequence == 1
    for number in range(41, 1_000):
        data = batch(number, producer=(number, 0, 0), transactional=True)
        state.apply(decode_header(data), data)
    assert not any(one.transaction_first_offset == -1 for one in state)
