"""Memory that malloc keeps and nobody has needed for a while goes back to the kernel, a step at a time."""

import errno
import os

import pytest
import trio

from tpc_broker.engine.spare_memory import LOOKS, SPARE_BYTES_MIN, STEP_BYTES, STEPS, SpareMemory

MIB = 1 << 20
BESIDE = 50 * MIB


class Memory:
    """A process: what frames take is resident, and what they have left stays so until it is given back."""

    def __init__(self):
        self.used = self.peak = self.free = self.stuck = 0
        self.steps, self.looks = [], 0

    def grow(self, more):
        self.used += more
        self.free -= min(self.free, more)
        self.peak = max(self.peak, self.used)

    def shrink(self, less):
        self.used -= less
        self.free += less

    def wave(self, height):
        self.grow(height)
        self.shrink(height)

    def resident(self):
        self.looks += 1
        return BESIDE + self.used + self.free + self.stuck

    def frame_bytes(self):
        return self.used

    def take_peak_frame_bytes(self):
        peak, self.peak = self.peak, self.used
        return peak

    def trim_memory(self, kept_bytes=0):
        self.steps.append(self.free - min(self.free, kept_bytes))
        self.free = min(self.free, kept_bytes)


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def spare(memory):
    return SpareMemory(memory, memory.resident)


def look(spare, times=1):
    for _ in range(times):
        trio.run(spare.look)


def test_what_a_wave_has_left_goes_in_steps_when_no_other_has_come(memory, spare):
    memory.wave(300 * MIB)
    look(spare, LOOKS)
    assert memory.steps == []
    look(spare)
    assert memory.steps == [STEP_BYTES] * STEPS
    look(spare, 10)
    assert set(memory.steps) == {STEP_BYTES}
    assert memory.free < SPARE_BYTES_MIN


def test_waves_that_come_again_keep_what_they_need(memory, spare):
    for _ in range(5):
        memory.wave(200 * MIB)
        look(spare, LOOKS - 1)
    assert (memory.steps, memory.free) == ([], 200 * MIB)
    for _ in range(5):
        memory.wave(100 * MIB)
        look(spare, LOOKS - 1)
    assert sum(memory.steps) > 75 * MIB, "they are lower now"
    assert memory.free >= 100 * MIB, "and find what they need"


def test_what_comes_back_is_left_alone_until_the_core_rests(memory, spare):
    memory.used, memory.stuck = 100 * MIB, 60 * MIB

    def trim_memory(kept_bytes=0):
        memory.steps.append(kept_bytes)
        memory.stuck -= 20 * MIB

    memory.trim_memory = trim_memory
    for number in range(4 * LOOKS):
        memory.wave((20 if number % 2 else 10) * MIB)
        look(spare)
        memory.free, memory.stuck = 0, 60 * MIB
    assert 0 < len(memory.steps) <= STEPS, "once: it was wanted again"
    tried = len(memory.steps)
    look(spare, LOOKS + 1)
    assert len(memory.steps) > tried


def test_what_cannot_be_given_back_is_not_tried_again_and_again(memory, spare):
    memory.stuck = 10 * STEP_BYTES
    look(spare, 5 * LOOKS)
    assert 0 < len(memory.steps) <= 10
    assert set(memory.steps) == {0}


def test_a_core_at_rest_does_not_look(memory, spare):
    memory.wave(300 * MIB)
    look(spare, 4 * LOOKS)
    looks = memory.looks
    look(spare, 4 * LOOKS)
    assert memory.looks == looks
    memory.wave(300 * MIB)
    look(spare, 4 * LOOKS)
    assert memory.looks > looks
    assert memory.free < SPARE_BYTES_MIN


def test_memory_that_cannot_be_looked_at_is_left(memory, spare):
    def resident():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    memory.wave(300 * MIB)
    resident_before, spare._resident = spare._resident, resident
    look(spare, 4 * LOOKS)
    assert memory.steps == []
    spare._resident = resident_before
    look(spare)
    assert memory.steps
