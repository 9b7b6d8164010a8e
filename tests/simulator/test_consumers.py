"""Consumer groups of KIP-848 on whole nodes in the simulator: fixed seeds, and planted faults that must be found."""

from __future__ import annotations

import pytest

from tests.simulator.consumers_run import ConsumerStory, run
from tests.simulator.nodes_mutants import CRASHING, PAUSED, SILENT, Mutant, each_of, look_for
from tests.simulator.nodes_run import execute, plan
from tests.simulator.schedule import failure_of
from tpc_broker.coordinator import offsets
from tpc_broker.coordinator.consumer.ahead import Ahead
from tpc_broker.coordinator.consumer.group import ConsumerGroup
from tpc_broker.error_codes import ErrorCode

STEPS = 30
SEEDS = (2,)


def _not_waited_for(_self, _group_id, effects, now_ms, on_written, _on_failed):
    on_written(effects, now_ms)


def _never_at_fault(_group, _request):
    return lambda _offset: ErrorCode.NONE


def _owned_by_nobody(_self, _topic_id, _partition):
    return False


def _not_looked_at(_self, _member_id, _current):
    """Two owners are not noticed where they are made."""


MUTANTS = (
    Mutant("a heartbeat is answered before it is durable", Ahead, "answer", _not_waited_for, CRASHING, 13),
    Mutant("whoever was a member commits", offsets, "faults_of_commit", _never_at_fault, SILENT, 4),
)
IN_THE_GATE = {"whoever was a member commits"}


def execute_one(seed, shape, schedule):
    return execute(seed, shape, schedule, ConsumerStory)


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_keep_what_they_promise_and_settle_when_left_alone(seed):
    assert "partitions handed over" in run(seed, STEPS)


@each_of(MUTANTS, IN_THE_GATE)
def test_a_planted_fault_is_found(mutant: Mutant):
    look_for(mutant, execute_one, STEPS)


def test_a_partition_that_is_given_twice_is_found():
    """Planted in the machine, which would notice it by itself; as would its members, who are told."""
    twice = Mutant("", ConsumerGroup, "is_owned", _owned_by_nobody, PAUSED)
    unseen = Mutant("", ConsumerGroup, "_own", _not_looked_at, PAUSED)
    with twice.planted(), unseen.planted():
        what = failure_of(execute_one, 1, *plan(1, STEPS, PAUSED))
    assert what is not None
    assert " has {" in what
