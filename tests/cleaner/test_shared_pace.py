"""What all cleaners of a node read and write together, a second."""

from __future__ import annotations

import os

import pytest

from tpc_broker import limits
from tpc_broker.cleaner.shared_pace import SharedPace


class Clock:
    """Goes on while somebody waits."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> bool:
        assert 0 < seconds <= 0.1
        self.now_s += seconds
        return False


@pytest.fixture
def two():
    """One page, seen by two processes."""
    first = SharedPace.make()
    second = SharedPace(os.dup(first.fd))
    yield first, second
    first.close()
    second.close()


def test_without_a_bound_nobody_waits(two):
    def wait(_seconds):
        raise AssertionError

    for pace in two:
        pace.spend(1 << 40, wait)


def test_the_rate_is_that_of_all_together(two):
    clock = Clock()
    two[0].set_rate(1_000_000)
    for turn in range(20):
        two[turn % 2].spend(500_000, clock.wait, clock)
    assert clock.now_s == pytest.approx(1010)
    clock.now_s += 100  # what was not used is not saved up
    two[0].spend(1_000_000, clock.wait, clock)
    assert clock.now_s == pytest.approx(1111)


def test_a_new_rate_is_obeyed_by_who_waits(two):
    clock = Clock()
    two[0].set_rate(1.0)
    waited = []

    def wait(seconds):
        waited.append(seconds)
        if len(waited) == 3:
            two[1].set_rate(1e6)
        return clock.wait(seconds)

    two[0].spend(1 << 30, wait, clock)
    assert len(waited) == 3
    two[0].spend(1_000_000, clock.wait, clock)
    assert clock.now_s == pytest.approx(1001.3)


def test_who_is_not_wanted_any_more_does_not_wait(two):
    two[0].set_rate(1.0)
    two[0].spend(1 << 30, lambda _seconds: True)


@pytest.mark.parametrize("rate", [0.0, -5.0])
def test_there_is_always_some_progress(two, rate):
    clock = Clock()
    two[0].set_rate(rate)
    two[0].spend(limits.CLEANER_BYTES_PER_SECOND_MIN, clock.wait, clock)
    assert clock.now_s == pytest.approx(1001)
