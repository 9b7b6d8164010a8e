"""The slice of a CPU that a core asks the kernel for, and what it leaves as it is."""

from __future__ import annotations

import os
import platform
import threading
from typing import TYPE_CHECKING

import pytest

from tests.support.broker_process import TpcBroker
from tpc_broker import limits
from tpc_broker._ring import lib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLICES_SINCE = (6, 12)
NICENESS = 5

pytestmark = pytest.mark.skipif(
    tuple(int(part) for part in platform.release().split(".")[:2]) < SLICES_SINCE, reason="one slice for all threads"
)


def in_a_thread(function: Callable[[], object]) -> object:
    """What a thread has is its own, and ends with it."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_takes_the_shortest_slice_and_stays_as_nice_as_it_is() -> None:
    def take() -> tuple[int, int, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        error = lib.tpc_cpu_slice_take(limits.CORE_CPU_SLICE_NS)
        return error, lib.tpc_cpu_slice(0), os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert in_a_thread(take) == (0, limits.CORE_CPU_SLICE_NS, NICENESS)
    assert lib.tpc_cpu_slice(0) > limits.CORE_CPU_SLICE_NS


def test_what_it_starts_has_the_schedulers_own_slice() -> None:
    def take() -> object:
        lib.tpc_cpu_slice_take(limits.CORE_CPU_SLICE_NS)
        return in_a_thread(lambda: lib.tpc_cpu_slice(0))

    assert in_a_thread(take) == lib.tpc_cpu_slice(0)


def test_a_thread_of_another_class_stays_in_it() -> None:
    def take() -> tuple[int, int]:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return lib.tpc_cpu_slice_take(limits.CORE_CPU_SLICE_NS), os.sched_getscheduler(0)

    assert in_a_thread(take) == (0, os.SCHED_IDLE)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[TpcBroker]:
    broker = TpcBroker(tmp_path, cores_count=1)
    broker.start()
    yield broker
    broker.kill()


def test_a_core_has_it_and_its_supervisor_has_not(broker: TpcBroker) -> None:
    core = broker.core_process(0)
    assert lib.tpc_cpu_slice(core.pid) == limits.CORE_CPU_SLICE_NS < lib.tpc_cpu_slice(core.ppid())
