"""What the probe makes of a disk; that it measures the truth, only a disk can say."""

from __future__ import annotations

import os
import random
from types import SimpleNamespace

import pytest

from tpc_broker.engine import journal_probe
from tpc_broker.engine.journal_probe import PROBE_BLOCKS, ROUNDS_MAX, probe_journal_mode
from tpc_broker.log.journal import JournalMode

DIRECT, BUFFERED, FDATASYNC = JournalMode.DIRECT_DSYNC, JournalMode.BUFFERED_DSYNC, JournalMode.BUFFERED_FDATASYNC
ALIKE = {DIRECT: 0.0003, BUFFERED: 0.0003, FDATASYNC: 0.0004}


class Disk:
    """In place of the module's `os` and clock: a write takes as long as its mode does, times what `busy` says."""

    def __init__(self, monkeypatch, seconds, busy=lambda _now_s: 1.0, refused=()):
        self.seconds, self.busy, self.refused = seconds, busy, refused
        self.now_s = 0.0
        self.written = []
        self._directs = set()
        replaced = SimpleNamespace(
            **{name: getattr(os, name) for name in dir(os) if not name.startswith("_")}
            | {"open": self._open, "pwritev": self._pwritev, "fdatasync": lambda _descriptor: None}
        )
        monkeypatch.setattr(journal_probe, "os", replaced)
        monkeypatch.setattr(journal_probe, "time", SimpleNamespace(perf_counter=lambda: self.now_s))

    def _open(self, path, flags):
        descriptor = os.open(path, flags & ~os.O_DIRECT)
        (self._directs.add if flags & os.O_DIRECT else self._directs.discard)(descriptor)
        return descriptor

    def _pwritev(self, descriptor, blocks, _position, flags=0):
        mode = DIRECT if descriptor in self._directs else BUFFERED if flags & os.RWF_DSYNC else FDATASYNC
        self.written.append(mode)
        if mode in self.refused:
            raise OSError(22, "refused")
        self.now_s += self.seconds[mode] * self.busy(self.now_s)
        return len(blocks[0])


def bursts(seed, quiet_s, busy_s, factor):
    """A disk that others use now and then: while they do, everything takes so many times as long."""
    chance = random.Random(seed)
    state = {"until_s": 0.0, "is_busy": chance.random() < 0.5}

    def busy(now_s):
        while now_s >= state["until_s"]:
            state["is_busy"] = not state["is_busy"]
            state["until_s"] = now_s + chance.expovariate(1 / (busy_s if state["is_busy"] else quiet_s))
        return chance.uniform(1, 2 * factor) if state["is_busy"] else chance.uniform(0.7, 1.5)

    return busy


def test_a_free_disk_is_measured_in_one_round(monkeypatch, tmp_path):
    disk = Disk(monkeypatch, ALIKE)
    assert probe_journal_mode(tmp_path) is DIRECT
    assert len(disk.written) == len(ALIKE) * PROBE_BLOCKS
    assert set(disk.written[: len(ALIKE)]) == set(ALIKE), "in turn"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("quiet_s", "busy_s", "factor"), [(0.002, 0.002, 10), (0.01, 0.01, 30), (0.05, 0.01, 100)])
def test_a_disk_that_is_busy_now_and_then_does_not_hide_that_direct_writes_are_as_fast(
    monkeypatch, tmp_path, quiet_s, busy_s, factor
):
    found = set()
    for seed in range(100):
        with monkeypatch.context() as patched:
            Disk(patched, ALIKE, bursts(seed, quiet_s, busy_s, factor))
            found.add(probe_journal_mode(tmp_path))
    assert found == {DIRECT}


def test_a_few_writes_that_are_over_at_once_do_not_decide(monkeypatch, tmp_path):
    """As where a host takes some of them into a cache of its own."""
    found = set()
    for seed in range(100):
        chance = random.Random(seed)
        with monkeypatch.context() as patched:
            Disk(patched, ALIKE, lambda _now_s, chance=chance: 0.1 if chance.random() < 0.05 else 1.0)
            found.add(probe_journal_mode(tmp_path))
    assert found == {DIRECT}


@pytest.mark.parametrize("busy", [lambda _now_s: 1.0, bursts(1, 0.01, 0.005, 3)])
def test_direct_writes_that_stay_slow_are_not_taken(monkeypatch, tmp_path, busy):
    disk = Disk(monkeypatch, {**ALIKE, DIRECT: 0.006}, busy)
    assert probe_journal_mode(tmp_path) is BUFFERED
    assert len(disk.written) == len(ALIKE) * PROBE_BLOCKS * ROUNDS_MAX, "it is made sure of"


def test_a_slow_disk_does_not_hold_up_the_start(monkeypatch, tmp_path):
    disk = Disk(monkeypatch, {DIRECT: 0.5, BUFFERED: 0.1, FDATASYNC: 0.1})
    assert probe_journal_mode(tmp_path) is not DIRECT
    assert len(disk.written) == len(ALIKE) * PROBE_BLOCKS


def test_of_buffered_modes_the_faster_one_is_taken(monkeypatch, tmp_path):
    for fastest, slower in ((BUFFERED, FDATASYNC), (FDATASYNC, BUFFERED)):
        with monkeypatch.context() as patched:
            Disk(patched, {DIRECT: 0.1, fastest: 0.0002, slower: 0.0003})
            assert probe_journal_mode(tmp_path) is fastest


def test_modes_that_are_refused_are_not_asked_for_again(monkeypatch, tmp_path):
    disk = Disk(monkeypatch, ALIKE, refused={DIRECT})
    assert probe_journal_mode(tmp_path) is BUFFERED
    assert disk.written.count(DIRECT) == 1
    disk = Disk(monkeypatch, ALIKE, refused={BUFFERED, FDATASYNC})
    assert probe_journal_mode(tmp_path) is DIRECT
    Disk(monkeypatch, ALIKE, refused=set(ALIKE))
    with pytest.raises(OSError, match="refused"):
        probe_journal_mode(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_direct_writes_that_worked_before_are_tried_once_and_not_compared(monkeypatch, tmp_path):
    disk = Disk(monkeypatch, {**ALIKE, DIRECT: 0.9})
    assert probe_journal_mode(tmp_path, DIRECT) is DIRECT
    assert disk.written == [DIRECT]
    assert list(tmp_path.iterdir()) == []


def test_a_mode_that_is_refused_by_now_is_found_anew(monkeypatch, tmp_path):
    """The folder may lie on another file system than last time."""
    Disk(monkeypatch, ALIKE, refused={DIRECT})
    assert probe_journal_mode(tmp_path, DIRECT) is BUFFERED


def test_a_mode_that_a_busy_disk_may_have_led_to_is_compared_again(monkeypatch, tmp_path):
    Disk(monkeypatch, ALIKE)
    assert probe_journal_mode(tmp_path, BUFFERED) is DIRECT
