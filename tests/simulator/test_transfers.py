"""A bank on whole nodes in the simulator: fixed seeds, and planted faults of transactions that must be found."""

from __future__ import annotations

import pytest

from tests.simulator.nodes_mutants import CRASHING, CUT_OFF, Mutant, _not_waited_for, each_of, look_for
from tests.simulator.nodes_run import execute, plan
from tests.simulator.transfers_run import TransfersStory
from tests.support.bank import Told
from tpc_broker.broker.partition import Partition
from tpc_broker.coordinator.transactions import TransactionCoordinator
from tpc_broker.coordinator.transactions.machine import _EXPIRY

STEPS = 15
SEEDS = (2,)


def _not_owed(self, now_ms):
    self._timers.set(_EXPIRY, now_ms + self._limits.expiration_interval_ms)
    yield


MUTANTS = (
    Mutant("an end is told before it is committed", Partition, "append_durably", _not_waited_for, CUT_OFF, 2),
    Mutant("markers are not sent again after a load", TransactionCoordinator, "_finish", _not_owed, CRASHING),
)  # fmt: skip
IN_THE_GATE = {"an end is told before it is committed"}


def execute_one(seed, shape, schedule):
    return execute(seed, shape, schedule, TransfersStory)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_transfer_is_torn_lost_or_there_twice(seed):
    ledger = execute_one(seed, *plan(seed, STEPS)).ledger
    assert ledger.count(Told.COMMITTED) > 10
    assert ledger.count(Told.ABORTED) > 2
    assert len(ledger.views) > 20


@each_of(MUTANTS, IN_THE_GATE)
def test_a_planted_fault_is_found(mutant: Mutant):
    look_for(mutant, execute_one, STEPS)
