"""What the probe makes of its measurements; that it measures the truth, only a disk can say."""

from __future__ import annotations

import pytest

from tpc_broker.log.journal import JournalMode
from tpc_broker.runtime import journal_probe

BUFFERED_S = 0.0003


def measured(monkeypatch: pytest.MonkeyPatch, direct_s: list[float]) -> list[JournalMode]:
    """Let the measurements of O_DIRECT be these, in their order; returns the list of what was measured."""
    asked: list[JournalMode] = []

    def measure(_path: object, mode: JournalMode, **_blocks: int) -> float:
        asked.append(mode)
        return direct_s.pop(0) if mode is JournalMode.DIRECT_DSYNC else BUFFERED_S

    monkeypatch.setattr(journal_probe, "_measure", measure)
    return asked


def test_a_free_disk_is_measured_once(monkeypatch, tmp_path):
    asked = measured(monkeypatch, [0.0001])
    assert journal_probe.probe_journal_mode(tmp_path) is JournalMode.DIRECT_DSYNC
    assert len(asked) == len(journal_probe.FLAGS)


def test_a_disk_that_was_busy_for_a_moment_gets_another_chance(monkeypatch, tmp_path):
    measured(monkeypatch, [0.0023, 0.0021, 0.0001])
    assert journal_probe.probe_journal_mode(tmp_path) is JournalMode.DIRECT_DSYNC


def test_direct_writes_that_stay_slow_are_not_taken(monkeypatch, tmp_path):
    asked = measured(monkeypatch, [0.0023] * journal_probe.ROUNDS_MAX)
    assert journal_probe.probe_journal_mode(tmp_path) is not JournalMode.DIRECT_DSYNC
    assert len(asked) == journal_probe.ROUNDS_MAX * len(journal_probe.FLAGS)


def test_direct_writes_that_are_refused_are_not_asked_for_again(monkeypatch, tmp_path):
    asked: list[JournalMode] = []

    def measure(_path: object, mode: JournalMode, **_blocks: int) -> float:
        asked.append(mode)
        if mode is JournalMode.DIRECT_DSYNC:
            raise OSError(22, "refused")
        return BUFFERED_S

    monkeypatch.setattr(journal_probe, "_measure", measure)
    assert journal_probe.probe_journal_mode(tmp_path) is not JournalMode.DIRECT_DSYNC
    assert len(asked) == len(journal_probe.FLAGS)


def test_direct_writes_that_worked_before_are_tried_once_and_not_compared(monkeypatch, tmp_path):
    asked = measured(monkeypatch, [0.9])
    before = JournalMode.DIRECT_DSYNC
    assert journal_probe.probe_journal_mode(tmp_path, before) is before
    assert asked == [before]
    assert list(tmp_path.iterdir()) == []


def test_a_mode_that_is_refused_by_now_is_found_anew(monkeypatch, tmp_path):
    """The folder may lie on another file system than last time."""

    def measure(_path: object, mode: JournalMode, **_blocks: int) -> float:
        if mode is JournalMode.DIRECT_DSYNC:
            raise OSError(22, "refused")
        return BUFFERED_S

    monkeypatch.setattr(journal_probe, "_measure", measure)
    found = journal_probe.probe_journal_mode(tmp_path, JournalMode.DIRECT_DSYNC)
    assert found in (JournalMode.BUFFERED_DSYNC, JournalMode.BUFFERED_FDATASYNC)


def test_a_mode_that_a_busy_disk_may_have_led_to_is_compared_again(monkeypatch, tmp_path):
    measured(monkeypatch, [0.0001])
    assert journal_probe.probe_journal_mode(tmp_path, JournalMode.BUFFERED_DSYNC) is JournalMode.DIRECT_DSYNC
