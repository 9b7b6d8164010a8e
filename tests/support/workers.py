"""How the tests are spread over processes: what shares costly fixtures stays together, what takes longest is first.

Three processes, a module in one of them (``-n 3 --dist loadfile``): on two cores, as half of their time is waits for
disks and timers. Without the order one process would be left alone with a long module at the end; how long each takes
is in ``tests/durations.txt``, which ``make durations`` writes.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

SHARED_BUILD: Final = (
    "tests/durability/test_crash_images.py",
    "tests/engine/test_journal_mutants.py",
    "tests/simulator/test_core_mutants.py",
)
"""Modules that want `built_with_mutants`."""
TOGETHER: Final = ("tests/spark", "tests/tidy")
"""Folders whose modules share what is started, or parsed, once a session."""
DURATIONS: Final = Path(__file__).parents[1] / "durations.txt"
_LISTED_S_MIN: Final = 2.0
_DEFAULT_S: Final = 1.0


def one_process_for(nodeid: str) -> str:
    """What shares costly fixtures with this test: its module, its folder, or what runs one build of the C part."""
    module = nodeid.partition("::")[0]
    if module in SHARED_BUILD:
        return "tests/support/mutants.py"
    return next((folder for folder in TOGETHER if module.startswith(f"{folder}/")), module)


class FixturesTogether(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return one_process_for(nodeid)


def durations() -> dict[str, float]:
    """Seconds by module, of those that take long."""
    rows = (line.rsplit(maxsplit=1) for line in DURATIONS.read_text().splitlines() if not line.startswith("#"))
    return {module: float(seconds) for module, seconds in rows}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help=f"write {DURATIONS.name} from this run")


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # the order of the collection counts, not the number of tests
    if config.option.write_durations and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Measured())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return FixturesTogether(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end, so nobody looks for garbage in it: that took two fifths of the collection."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Longest first; within what stays together the order is as it was."""
    seconds: dict[str, float] = defaultdict(float)
    known = durations()
    for module in {item.nodeid.partition("::")[0] for item in items}:
        seconds[one_process_for(module)] += known.get(module, _DEFAULT_S)
    items.sort(key=lambda item: -seconds[one_process_for(item.nodeid)])


class _Measured:
    def __init__(self) -> None:
        self._seconds = durations() if DURATIONS.exists() else {}
        self._measured: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._measured[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        known = self._seconds | self._measured
        rows = [f"{module} {seconds:.0f}" for module, seconds in sorted(known.items()) if seconds >= _LISTED_S_MIN]
        head = "# Seconds of each module, for the order in which they begin: make durations writes it.\n"
        DURATIONS.write_text(head + "\n".join(rows) + "\n")
