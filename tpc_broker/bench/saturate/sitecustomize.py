# ruff: noqa: INP001 (a folder for PYTHONPATH, no package)
"""In front of a broker's PYTHONPATH, for the bench and the tests: its cores always have background work.

``TPC_SATURATE=TASKS,STEP_US``: so many tasks of the queue `background` that never rest, with steps of so many
microseconds of CPU time, from when the core is ready on. Python imports a module of this name at its start.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec

CORE_MODULE = "tpc_broker.process.core"


class _CoreFinder:
    """Lets the core's module be found as ever, and changes it when it is there."""

    def find_spec(self, name: str, _path: Sequence[str] | None, _target: object = None) -> ModuleSpec | None:
        if name != CORE_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def run_and_saturate(module: Any) -> None:
            run(module)
            _saturate(module.CoreProcessMain)

        spec.loader.exec_module = run_and_saturate  # type: ignore[method-assign]
        return spec


def _saturate(process: Any) -> None:
    import trio  # noqa: PLC0415 (it has to come after what the core does first)

    from tpc_broker.task_queue import TaskQueue, in_queue  # noqa: PLC0415

    tasks, step_us = map(int, os.environ["TPC_SATURATE"].split(","))
    heartbeat = process.heartbeat

    async def work(self: Any) -> None:
        while not self._is_ready:
            await trio.sleep(0.01)
        while True:
            until_ns = time.thread_time_ns() + step_us * 1000
            while time.thread_time_ns() < until_ns:
                pass
            await trio.lowlevel.checkpoint()

    async def heartbeat_beside_work(self: Any) -> None:
        async with trio.open_nursery() as nursery:
            with in_queue(TaskQueue.BACKGROUND):
                for _ in range(tasks):
                    nursery.start_soon(work, self)
            await heartbeat(self)

    process.heartbeat = heartbeat_beside_work


if "TPC_SATURATE" in os.environ:
    sys.meta_path.insert(0, _CoreFinder())
