"""`Timers` beside a dictionary that is looked through each time, and what it keeps of deadlines that are put off."""

from __future__ import annotations

import random

import pytest

from tpc_broker.coordinator import effects
from tpc_broker.coordinator.effects import Timers


@pytest.mark.parametrize("seed", range(40))
def test_it_wakes_what_a_plain_dictionary_would_wake(seed, monkeypatch):
    monkeypatch.setattr(effects, "STALE_MIN", seed % 2 * effects.STALE_MIN)
    source, timers, deadlines, now_ms = random.Random(seed), Timers(), {}, 0
    for _ in range(400):
        key = source.randrange(6)
        match source.choice(["set", "set", "set", "set if none", "cancel", "shift", "wait", "wait"]):
            case "set":
                deadlines[key] = now_ms + source.randrange(50)
                timers.set(key, deadlines[key])
            case "set if none":
                deadline_ms = now_ms + source.randrange(50)
                deadlines.setdefault(key, deadline_ms)
                timers.set_if_none(key, deadline_ms)
            case "cancel":
                deadlines.pop(key, None)
                timers.cancel(key)
            case "shift":
                by_ms = source.randrange(-20, 20)
                deadlines = {each: deadline_ms + by_ms for each, deadline_ms in deadlines.items()}
                timers.shift(by_ms)
            case "wait":
                now_ms += source.randrange(20)
                woken = []
                while (due := timers.pop_due(now_ms)) is not None:
                    woken.append((deadlines.pop(due), due))
                assert [deadline_ms for deadline_ms, _key in woken] == sorted(each for each, _key in woken)
                assert all(deadline_ms <= now_ms for deadline_ms, _key in woken)
                assert all(deadline_ms > now_ms for deadline_ms in deadlines.values())
        assert timers.next_deadline_ms() == min(deadlines.values(), default=None)


def test_a_deadline_that_is_put_off_again_and_again_is_kept_once():
    timers = Timers()
    for now_ms in range(10_000):
        for member in range(3):
            timers.set(member, now_ms + 45_000)
    assert len(timers._heap) == 3
    assert timers.next_deadline_ms() == 9_999 + 45_000


def test_of_what_was_cancelled_or_comes_sooner_little_is_kept():
    """A client may say that it has weeks, and go."""
    timers = Timers()
    timers.set("stays", 10**9)
    for number in range(10_000):
        timers.set(number, 2**31)
        timers.cancel(number)
        timers.set("sooner", 2**31 - number)
    assert len(timers._heap) < 100
    assert timers.next_deadline_ms() == 10**9
    timers.cancel("stays")
    assert timers.next_deadline_ms() == 2**31 - 9_999
