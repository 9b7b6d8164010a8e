"""Whole nodes in the simulator: a few seeds, that they repeat, and planted faults that must be found."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from dataclasses import replace
from itertools import count
from pathlib import Path
from unittest import mock

import pytest
import trio

from tests.simulator.nodes_disk import NodeDisk
from tests.simulator.nodes_mutants import CRASHING, LEAVING, MUTANTS, Mutant, each_of, look_for
from tests.simulator.nodes_run import PARTITIONS, TOPICS, execute, plan, run
from tests.support.steady_peers import Frames
from tpc_broker.log.journal import BLOCK_BYTES, REGION_BLOCK_FIRST

STEPS = 30
SEEDS = (2, 3)
"""Three nodes of up to three cores, and five of up to two."""
SHORT_STEPS = 6
SHORT_SEEDS = range(11, 23)
LARGE_SEEDS = (1, 2)
LARGE_BYTES = 32 * 1024
CRASHING_SEED = 1
LEAVING_SEED = 66
"""One dies in it, and one is drained."""
IN_THE_GATE = {
    "acknowledged before the quorum", "whoever was a member commits",
}  # fmt: skip
"""Planted faults of replication and of groups, each found by a run of a second or two."""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_keep_what_they_promise_and_agree_when_left_alone(seed):
    assert "acknowledged" in run(seed, STEPS)


@pytest.mark.parametrize("seed", SHORT_SEEDS)
def test_nodes_keep_what_they_promise_in_short_runs(seed):
    assert "acknowledged" in run(seed, SHORT_STEPS)


@pytest.mark.parametrize("seed", LARGE_SEEDS)
def test_large_batches_are_written_in_place_and_segments_roll(seed):
    story = execute(seed, *plan(seed, SHORT_STEPS, replace(CRASHING, is_large=True)))
    assert story.cluster.in_place_bytes > LARGE_BYTES
    assert story.cluster.rolls


def test_nodes_leave_for_good_and_others_come_under_their_numbers():
    story = execute(LEAVING_SEED, *plan(LEAVING_SEED, STEPS, LEAVING))
    assert len(story.left) > 1
    assert len(story.cluster.promises.acknowledged) == len(TOPICS) * PARTITIONS
    followers = [node.acknowledgements for node in story.cluster.nodes.values()]
    assert all(one.count for one in followers), "what followers say was held against what they have"
    assert any(one.kept for one in followers), "and so was what they have recovered"


def test_a_follower_that_acknowledges_more_than_is_durable_is_found(monkeypatch):
    acknowledged = Frames.acknowledged

    def one_more(frames, data):
        for *who, offset, commit in acknowledged(frames, data):
            yield *who, offset + 1, commit

    monkeypatch.setattr(Frames, "acknowledged", one_more)
    with pytest.raises(AssertionError, match=r"acknowledges \S+ up to \d+ in term \d+, and \d+ is durable"):
        execute(CRASHING_SEED, *plan(CRASHING_SEED, SHORT_STEPS, CRASHING))


def test_a_disk_that_forgets_what_a_follower_acknowledged_is_found(monkeypatch):
    """Its journal's last commit: no recovery can know of that."""
    newest, numbers = {}, count()
    written, crash = NodeDisk.written, NodeDisk.crash

    def noted(disk, inode, position, data, *, durably=False):
        change, number = written(disk, inode, position, data, durably=durably), next(numbers)

        def happens():
            change.happens()
            if durably and position >= REGION_BLOCK_FIRST * BLOCK_BYTES:
                newest[disk] = max(newest.get(disk, (0,)), (number, inode, position, len(data)))

        return change._replace(happens=happens)

    def forgets(disk, chance):
        for one in disk._under_way:
            one.change = one.change._replace(torn=None)  # nothing of what would be behind it
        crash(disk, chance)
        if disk in newest:
            _number, inode, position, size = newest.pop(disk)
            for content in (inode.content, inode.durable):
                content.write(position, bytes(size))

    monkeypatch.setattr(NodeDisk, "written", noted)
    monkeypatch.setattr(NodeDisk, "crash", forgets)
    with pytest.raises(AssertionError, match=r"has acknowledged .* and has recovered"):
        execute(CRASHING_SEED, *plan(CRASHING_SEED, STEPS, CRASHING))


def told(seed, steps):
    """What came of it, and a checksum of all that was written to disks: what, where and when."""
    written, checksum = NodeDisk.written, 0

    def noted(disk, inode, position, data, *, durably=False):
        nonlocal checksum
        checksum = zlib.crc32(f"{trio.current_time():.9f} {position} {durably} ".encode() + bytes(data), checksum)
        return written(disk, inode, position, data, durably=durably)

    with mock.patch.object(NodeDisk, "written", noted):
        story = execute(seed, *plan(seed, steps))
    promises = story.cluster.promises
    facts = (story.oracle.leaders, promises.acknowledged, promises.seen)
    return *(sorted(each.items()) for each in facts), checksum


@pytest.mark.parametrize(("seed", "steps"), [(6, 3), (1, 1)], ids=["small batches", "large batches"])
def test_a_seed_repeats_itself_in_another_interpreter(seed, steps):
    """Also where strings have other hashes: what is printed for a seed that failed can be had again."""
    code = f"from tests.simulator.test_nodes import told; print(repr(told({seed}, {steps})))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=True
    )
    assert other.stdout.strip() == repr(told(seed, steps))


def test_the_gate_looks_for_planted_faults_that_there_are():
    assert {mutant.name for mutant in MUTANTS} > IN_THE_GATE


@each_of(MUTANTS, IN_THE_GATE)
def test_a_planted_fault_is_found(mutant: Mutant):
    look_for(mutant, execute, STEPS)
