"""States in which clients are refused, and what fails: told when they begin and end; seldom when they come and go."""

from __future__ import annotations

import logging

import trio

from tpc_broker.storage.upkeep.refusals import QUIET_S, STATES_KEPT_MAX, TOLD_EVERY_S, Failures, Refusals


async def test_a_state_that_comes_and_goes_all_the_time_is_told_once_a_minute(autojump_clock, caplog):
    state, times = Refusals("the disk is full"), 300
    for _ in range(times):
        state.refused("no space", 10)
        await trio.sleep(1.1 * QUIET_S)
        state.succeeded()
    lines = caplog.messages
    minutes = trio.current_time() / TOLD_EVERY_S
    assert minutes > 5
    assert lines[0] == "the disk is full: requests are refused until this is over (no space)"
    assert lines[1] == "the disk is full: over after 0.0 s, in which 10 requests were refused"
    assert lines[2].startswith(f"{lines[0]}; it came and went ")
    assert lines[2].endswith(f"{(int(TOLD_EVERY_S / 1.1)) * 10} requests were refused")
    assert len(lines) <= 2 * (minutes + 1)


async def test_a_state_that_begins_again_soon_and_stays_is_told_when_it_has_lasted(autojump_clock, caplog):
    state = Refusals("the disk is full")
    state.refused("no space")
    await trio.sleep(2 * QUIET_S)
    state.succeeded()
    caplog.clear()
    while trio.current_time() < 2 * TOLD_EVERY_S:
        state.refused("no space")
        await trio.sleep(QUIET_S)
    assert caplog.messages == ["the disk is full: requests are refused until this is over (no space)"]
    assert state.is_on


async def test_what_fails_now_and_then_is_told_once_a_minute(autojump_clock, caplog):
    failures, times = Failures(), 300
    for _ in range(times):
        failures.failed("checkpoint failed", "no space")
        await trio.sleep(0.5)
        failures.failed("checkpoint failed", "no space")
        await trio.sleep(0.5)
        failures.over("checkpoint failed", "checkpoints succeed again")
    minutes = trio.current_time() / TOLD_EVERY_S
    assert caplog.messages[:2] == [
        "checkpoint failed: no space", "checkpoints succeed again, after 1.0 s and 2 attempts",
    ]  # fmt: skip
    assert len(caplog.messages) <= 2 * (minutes + 1)


async def test_what_begins_to_fail_again_and_stays_is_told_when_it_has_lasted(autojump_clock, caplog):
    failures = Failures()
    failures.failed("checkpoint failed", "no space")
    failures.over("checkpoint failed")
    caplog.clear()
    while trio.current_time() < 2 * TOLD_EVERY_S:
        failures.failed("checkpoint failed", "no space", logging.WARNING)
        await trio.sleep(1.0)
    failures.over("checkpoint failed", "checkpoints succeed again")
    assert caplog.messages[0] == "checkpoint failed: no space"
    assert caplog.messages[1].startswith("checkpoints succeed again, after 120.0 s")


async def test_what_is_remembered_of_failures_is_bounded(autojump_clock):
    failures = Failures()
    for number in range(3 * STATES_KEPT_MAX):
        failures.failed(f"t-{number} still fails", "no space")
        failures.over(f"t-{number} still fails")
    assert len(failures._begun_s) == STATES_KEPT_MAX
    assert not failures._told
