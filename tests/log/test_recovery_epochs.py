"""What replay knows of leader epochs: the beginning of one is an item of the log, and a cut takes only later ones."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.log.checkpoint import PartitionCheckpoint
from tpc_broker.log.files import EpochStart
from tpc_broker.log.journal import EntryKind, JournalEntry
from tpc_broker.log.recovery import plan_partition
from tpc_broker.model import TopicPartition

KEY = TopicPartition(uuid.UUID(int=5), 0)
NO_STATE = PartitionCheckpoint(KEY.topic_id, KEY.partition, "t")


def entry(kind, offset, argument, number=0):
    return JournalEntry(kind, number + 1, KEY, offset, argument, number, 0)


def plan(*entries):
    return plan_partition(None, NO_STATE, "t", KEY, entries)


def test_a_cut_at_an_epochs_first_offset_leaves_the_epoch():
    """Epoch 7 was durable, and by it a replica may have acknowledged all that is in front of it."""
    before = (entry(EntryKind.EPOCH, 0, 4), entry(EntryKind.APPEND, 0, 10), entry(EntryKind.EPOCH, 10, 7))
    for argument in (7, 0):  # 0: a journal of an earlier release
        found = plan(*before, entry(EntryKind.CUT, 10, argument))
        assert found.epochs == ((4, 0), (7, 10))
        assert (found.leader_epoch, found.log_end_offset) == (7, 10)
    assert plan(*before, entry(EntryKind.CUT, 10, 4)).epochs == ((4, 0),)


def test_epochs_that_begin_at_one_offset_are_all_kept():
    found = plan(*(entry(EntryKind.EPOCH, 0, epoch) for epoch in (1, 3, 4)), entry(EntryKind.CUT, 0, 3))
    assert found.epochs == ((1, 0), (3, 0))


@st.composite
def histories(draw):
    """Entries as a leader and a follower of a partition write them, and the epochs that are left by the model."""
    entries, log, end, epoch = [], [], 0, 0
    for number in range(draw(st.integers(1, 30))):
        step = draw(st.sampled_from(["epoch", "append", "cut"]))
        if step == "epoch":
            epoch += draw(st.integers(1, 3))
            log.append(EpochStart(epoch, end))
            entries.append(entry(EntryKind.EPOCH, end, epoch, number))
        elif step == "append" and log:
            size = draw(st.integers(1, 5))
            entries.append(entry(EntryKind.APPEND, end, end + size, number))
            end += size
        elif step == "cut" and log:
            kept = draw(st.integers(1, len(log)))
            until = log[kept].start_offset if kept < len(log) else end
            end = draw(st.integers(log[kept - 1].start_offset, until))
            log = log[:kept]
            entries.append(entry(EntryKind.CUT, end, log[-1].epoch, number))
    return entries, log, end


@given(histories())
def test_replay_finds_the_epochs_of_the_log(history):
    entries, log, end = history
    found = plan(*entries)
    assert found.log_end_offset == end
    assert list(found.epochs) == log
