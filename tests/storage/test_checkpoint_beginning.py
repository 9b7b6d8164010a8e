"""When the next checkpoint begins: late where runs are short, and never later than the last ones allow."""

import pytest

from tpc_broker._ring import lib
from tpc_broker.log.journal import BLOCK_BYTES
from tpc_broker.storage.ports import JournalUse
from tpc_broker.storage.upkeep.checkpoint_beginning import (
    EARLIEST,
    LATEST,
    LEFT_FACTOR,
    REMEMBERED,
    SHORT_RUNS_BYTES_MAX,
    CheckpointBeginning,
)

REGION = 65_534
MANY = 5_000
COVERED = 24_576


def use(blocks_filled):
    return JournalUse(blocks_filled, REGION, 0)


def test_it_leaves_more_than_the_longest_of_the_last_ones_filled():
    beginning = CheckpointBeginning()
    assert beginning.after(COVERED, MANY, use(18_000)) == REGION - LEFT_FACTOR * 18_000
    assert beginning.after(COVERED, MANY, use(20_000)) == REGION - LEFT_FACTOR * 20_000
    for _ in range(REMEMBERED - 1):
        assert beginning.after(COVERED, MANY, use(18_000)) == REGION - LEFT_FACTOR * 20_000
    assert beginning.after(COVERED, MANY, use(18_000)) == REGION - LEFT_FACTOR * 18_000


def test_one_that_filled_much_lets_the_next_begin_as_ever():
    assert CheckpointBeginning().after(COVERED, MANY, use(int((1 - EARLIEST) * REGION / LEFT_FACTOR) + 1)) == 0


def test_it_never_begins_when_there_is_hardly_anything_left():
    assert CheckpointBeginning().after(COVERED, MANY, use(1)) == int(LATEST * REGION)


@pytest.mark.parametrize(
    ("partitions", "run_bytes", "is_late"),
    [
        (MANY, 4096, True),
        (500, SHORT_RUNS_BYTES_MAX - 4096, True),
        (500, SHORT_RUNS_BYTES_MAX, False),
        (1, 4096, False),
    ],
)
def test_long_runs_and_few_partitions_gain_nothing_by_it(partitions, run_bytes, is_late):
    blocks = partitions * run_bytes // BLOCK_BYTES
    assert (CheckpointBeginning().after(blocks, partitions, use(100)) > 0) == is_late


@pytest.mark.parametrize("filled", [20_000, 24_000, 16_000])
def test_a_checkpoint_that_takes_three_times_as_long_as_those_before_does_not_fill_the_journal(filled):
    """The journal's pauses leave clients slow answers until then."""
    commit_blocks, commit_ns = 10, 500_000
    beginning = CheckpointBeginning().after(COVERED, MANY, use(filled))
    used, now_ns = beginning or int(EARLIEST * REGION), 0
    while now_ns < 3 * filled // commit_blocks * commit_ns:
        used += commit_blocks
        now_ns += max(commit_ns, lib.tpc_journal_pace_ns(commit_blocks, max(0, REGION - used), now_ns))
    assert used < REGION
