"""The end of a transaction is brought in some offsets at a time, and nobody sees that."""

import random

import pytest

from tests.coordinator.scenario import Scenario, replay
from tests.coordinator.test_compacted_logs import Offsets, state_of
from tpc_broker.coordinator import GroupCoordinator, pending_offsets
from tpc_broker.coordinator.effects import Producer
from tpc_broker.coordinator.messages import OffsetToCommit, TxnOffsetCommitRequest
from tpc_broker.coordinator.pending_offsets import BROUGHT_IN_AT_ONCE

A, COUNT = 7, 2_000


def asked_of(machine, chance):
    """One answer, which is asked for before all that it does not depend on is brought in."""
    group, partition = chance.choice("gh"), (chance.choice("tu"), chance.randrange(2))
    stable = chance.random() < 0.5
    return chance.choice([
        lambda: machine.offset_fetch(group, [partition], require_stable=stable),
        lambda: sorted(machine.offset_fetch(group, require_stable=stable).offsets, key=str),
        lambda: machine.pending.may_come(group),
        lambda: machine.pending.may_come(group, partition),
        lambda: machine.pending.is_pending(group, partition),
    ])()  # fmt: skip


def bring_in_for_looks(machine, _now_ms):
    """Nothing by the way: only what a look at all offsets waits for."""
    if machine._expiry.is_under_way or machine._offsets.looks_for_gone:
        machine.pending.bring_in()


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_brought_in_answers_are_as_if_all_was(seed, monkeypatch):
    history = Offsets(seed)
    monkeypatch.setattr(pending_offsets, "BROUGHT_IN_AT_ONCE", 0)
    monkeypatch.setattr(GroupCoordinator, "_bring_in", bring_in_for_looks)
    for number in range(120):
        history.step()
        other = history.s.new_machine()
        for entry in history.s.log:
            replay(other, entry)
            other.pending.bring_in()
        other.finish_loading(history.s.now)
        asked = random.Random(number)
        assert asked_of(history.s.machine, random.Random(number)) == asked_of(other, asked)
    history.s.machine.pending.bring_in()
    history.s.start()
    assert state_of(history.s.machine) == state_of(other)


def large(s, offset):
    offsets = tuple(OffsetToCommit(topic="t", partition=each, offset=offset) for each in range(COUNT))
    request = TxnOffsetCommitRequest(group_id="g", offsets=offsets, producer=Producer(A, 0))
    s.run(s.machine.txn_offset_commit(request, s.token("txn-commit"), s.now))


@pytest.mark.parametrize("commit", [True, False])
def test_no_step_brings_in_more_than_a_part_of_a_large_transaction(commit):
    s, brought_in = Scenario(), []
    pending = s.machine.pending
    large(s, 1)
    s.end(A, commit=True)
    s.wait(0)
    one = pending._bring_in_one
    pending._bring_in_one = lambda *what: brought_in.append(what) or one(*what)
    large(s, 2)
    s.txn_commit(A + 1, offset=3, partition=5)
    s.end(A, commit=commit)
    expected, steps = 2 if commit else 1, 0
    while s.machine.next_deadline_ms() <= s.now:
        assert 0 < len(brought_in) <= 2 * BROUGHT_IN_AT_ONCE + 2
        brought_in.clear()
        where = [("t", partition) for partition in (steps, COUNT - 1 - steps)]
        assert [each.offset for each in s.machine.offset_fetch("g", where).offsets] == [expected] * 2
        s.run(s.machine.on_deadline(s.now))
        steps += 1
    assert steps >= COUNT // BROUGHT_IN_AT_ONCE - 2
    assert not s.machine.pending._ended
    assert {each.offset for each in s.machine.offset_fetch("g").offsets} == {expected}
    assert s.machine.pending.is_pending("g", ("t", 5))
    s.end(A + 1, commit=True)
    assert s.offset(partition=5) == 3


def test_a_load_after_a_part_was_brought_in_is_right():
    s = Scenario()
    large(s, 2)
    s.end(A, commit=True)
    s.start()
    assert {each.offset for each in s.machine.offset_fetch("g").offsets} == {2}


def test_the_next_transaction_of_the_producer_may_begin_at_once():
    s = Scenario()
    large(s, 1)
    s.end(A, commit=True)
    large(s, 2)
    assert s.machine.pending.is_open(Producer(A, 0))
    assert s.offset(partition=9) == 1
    s.end(A, commit=True)
    assert s.offset(partition=9) == 2
    assert {each.offset for each in s.machine.offset_fetch("g").offsets} == {2}
