"""Which silence of a core is a hang."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from tests.support.backends import OURS_IN_C
from tests.support.descriptors import descriptors_left
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker import limits
from tpc_broker._ring import ffi, lib
from tpc_broker.process.core_watch import Activity, CoreWatch, Judgement, activity_of
from tpc_broker.process.supervisor import _judge

LOOK_MS = limits.CORE_HEARTBEAT_MS
LOOKS_MISSED = limits.CORE_HEARTBEAT_MISSED_MS // LOOK_MS
FINE, STARVED, RECOVERED, HANGS = Judgement


def look_until(watch: CoreWatch, end: Judgement, activity_at, looks_max: int = 100_000) -> int:
    """Silent looks until the judgement `end`; `activity_at(look)`; anything but FINE before is an error."""
    for look in range(1, looks_max):
        judgement = watch.silent(look * LOOK_MS, activity_at(look))
        if judgement is end:
            return look
        assert judgement is FINE
    raise AssertionError(f"{end} never came")


@pytest.mark.parametrize("activity", [Activity(100, is_held_up=False), None], ids=["asleep or stopped", "unseen"])
def test_a_core_that_sleeps_and_does_not_turn_hangs(activity: Activity | None) -> None:
    watch = CoreWatch(0)
    assert look_until(watch, HANGS, lambda _look: activity) == LOOKS_MISSED + 1
    assert watch.silent_ms == (LOOKS_MISSED + 1) * LOOK_MS


def test_a_core_that_spins_hangs_when_it_has_had_the_time_however_long_that_takes() -> None:
    watch = CoreWatch(0)
    assert look_until(watch, STARVED, lambda look: Activity(look * LOOK_MS // 10, is_held_up=True)) == LOOKS_MISSED + 1
    assert watch.cpu_ms == LOOKS_MISSED * LOOK_MS // 10
    for look in range(LOOKS_MISSED + 2, 10 * LOOKS_MISSED + 2):
        assert watch.silent(look * LOOK_MS, Activity(look * LOOK_MS // 10, is_held_up=True)) is FINE
    assert watch.silent(10**6, Activity((10 * LOOKS_MISSED + 20) * LOOK_MS // 10, is_held_up=True)) is HANGS


def test_a_core_without_cpu_is_starved_and_never_hangs() -> None:
    watch = CoreWatch(0)
    look = look_until(watch, STARVED, lambda _look: Activity(70, is_held_up=True))
    for later in range(look + 1, 10 * LOOKS_MISSED):
        assert watch.silent(later * LOOK_MS, Activity(70, is_held_up=True)) is FINE
    assert watch.heard(10**6) is RECOVERED
    assert watch.silent_ms == 10**6
    assert watch.heard(10**6 + LOOK_MS) is FINE


def test_a_look_that_comes_late_counts_once() -> None:
    watch = CoreWatch(0)
    assert watch.heard(LOOK_MS) is FINE
    for late_ms in (22_000, 10_000_000, 10_030_000):
        assert watch.silent(late_ms, Activity(5, is_held_up=False)) is FINE
    assert watch.silent(10_100_000, Activity(99_000, is_held_up=True)) is FINE, "nor does a late look charge more"
    assert watch.heard(10_100_000 + LOOK_MS) is FINE


def test_what_was_charged_is_forgotten_with_a_sign_of_life() -> None:
    watch = CoreWatch(0)
    for _ in range(10):
        for _ in range(LOOKS_MISSED):
            assert watch.silent(0, Activity(1, is_held_up=False)) is FINE
        assert watch.heard(0) is FINE


@contextlib.contextmanager
def child(program: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", f"print('x', flush=True)\n{program}"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_activity(process: subprocess.Popen[bytes], is_wanted) -> None:
    eventually(lambda: (activity := activity_of(process.pid)) and is_wanted(activity), "another activity")


def test_what_the_kernel_says_of_processes() -> None:
    with child("while True: pass") as spinning:
        wait_activity(spinning, lambda seen: seen.is_held_up and seen.cpu_ms > 50)
        spinning.send_signal(signal.SIGSTOP)
        wait_activity(spinning, lambda seen: not seen.is_held_up)
    assert activity_of(spinning.pid) is None
    with child("import time; time.sleep(1000)") as asleep:
        wait_activity(asleep, lambda seen: not seen.is_held_up)
    in_a_thread = "exec('while True: pass')"
    with child(
        f"import threading, time; threading.Thread(target=lambda: {in_a_thread}).start(); time.sleep(1000)"
    ) as other_thread:
        wait_activity(other_thread, lambda seen: seen.is_held_up and seen.cpu_ms > 50)


def test_a_supervisor_that_cannot_look_takes_no_core_for_one_that_hangs() -> None:
    beats_fd = os.eventfd(0, os.EFD_NONBLOCK)

    async def judge(process: subprocess.Popen[bytes]) -> None:
        life: Any = SimpleNamespace(process=process, beats_fd=beats_fd, watch=CoreWatch(0))
        with descriptors_left(0):
            assert {_judge(life) for _ in range(3 * LOOKS_MISSED)} == {FINE}
        process.send_signal(signal.SIGSTOP)
        wait_activity(process, lambda seen: not seen.is_held_up)
        assert HANGS in [_judge(life) for _ in range(2 * LOOKS_MISSED)]

    try:
        with child("while True: pass") as spinning:
            wait_activity(spinning, lambda seen: seen.is_held_up)
            trio.run(judge, spinning)
    finally:
        os.close(beats_fd)


def test_the_counter_grows_while_the_ring_turns_and_between_the_steps_of_a_long_turn() -> None:
    out = ffi.new("tpc_ring **")
    assert lib.tpc_ring_new(64, 0, OURS_IN_C, out) == 0
    beats_fd = os.eventfd(0, os.EFD_NONBLOCK)
    events = ffi.new("tpc_event[]", 8)
    try:
        lib.tpc_ring_beat_on(out[0], beats_fd, 1)
        lib.tpc_ring_wait(out[0], 0, 8, events, 8)
        lib.tpc_ring_wait(out[0], 0, 8, events, 8)
        assert os.eventfd_read(beats_fd) == 2
        lib.tpc_ring_serve(out[0], 0)
        assert os.eventfd_read(beats_fd) == 1
        lib.tpc_ring_beat_on(out[0], beats_fd, 3600 * 10**9)
        for _ in range(5):
            lib.tpc_ring_wait(out[0], 0, 8, events, 8)
        assert os.eventfd_read(beats_fd) == 1, "once per interval"
        lib.tpc_ring_beat_on(out[0], -1, 0)
        lib.tpc_ring_wait(out[0], 0, 8, events, 8)
        with pytest.raises(BlockingIOError):
            os.eventfd_read(beats_fd)
    finally:
        os.close(beats_fd)
        assert lib.tpc_ring_close(out[0], PATIENCE_S * 1_000_000_000) == 0
