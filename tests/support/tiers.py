"""Which tests are the gate and which the long tier, and the one seed of a run.

The gate is what every change must pass: the same run every time, in a quarter of an hour. What needs minutes, chance,
a JVM, a compiler or a machine of its own is marked with a part of the long tier (`PARTS`), a module as a whole by
``pytestmark`` or a single test. ``make test`` runs the gate, ``make test-long PART=crash`` a part; a module that is
named on the command line is run whole.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from random import Random, SystemRandom
from typing import Final, NamedTuple

import hypothesis
import pytest
from trio._core import _run as trio_run

GATE: Final = "gate"
GATE_SEED: Final = 20_261_128
GATE_MINUTES: Final = 12


class Part(NamedTuple):
    """Of the long tier."""

    proves: str
    minutes: int
    """On two cores, about: measured in one process beside other work, or made from CPU seconds."""


PARTS: Final = {
    "crash": Part("what a broker acknowledged outlives kill -9, loss of power, full and damaged disks, backup", 28),
    "cluster": Part("three nodes and more: failures of all kinds; moves, joins, upgrades; every example given", 38),
    "kafka": Part("answers and files as Apache Kafka has them, with Kafka beside us; its command-line tools", 10),
    "spark": Part("data source, sink and pipelines on a real Spark; kills of drivers, tasks, planners, brokers", 22),
    "asan": Part("the C under AddressSanitizer and UBSan: the ring's tests, both backends, and a million mutations", 9),
    "as-5.8": Part("the ring's tests with only what Linux 5.8 has", 2),
    "plain": Part("the ring's tests, kills, loss of power, three nodes and an overlay without io_uring", 7),
    "packaging": Part("sdist, wheel and their installation; Prometheus' own check of alerts and dashboards", 10),
    "sim": Part("planted faults, in C too; every state of small clusters; each combination of one-way cuts", 21),
    "clients": Part(
        "stock clients and ours: a million records, large groups, kills, exactly once, compaction, flat memory",
        32,
    ),
    "machine": Part("what only a quiet machine shows: idle CPU, shares of it, memory, the benchmark's harness", 5),
}
MARKS: Final = {re.sub(r"\W", "_", name): name for name in PARTS}
"""Name of the mark, and the part that it means."""
OF_A_FIXTURE: Final = ("as-5.8", "plain")
"""Parts that tests/engine/conftest.py marks."""
_OF_THE_MODULE: Final = re.compile(r"^pytestmark\b.*?(?=^\S)", re.MULTILINE | re.DOTALL)
_MARK: Final = re.compile(r"\bmark\.(" + "|".join(MARKS) + r")\b")


def pytest_addoption(parser: pytest.Parser) -> None:
    names = [GATE, "long", *PARTS]
    parser.addoption("--part", action="append", choices=names, help="what to run: gate (default), long, or a part")
    parser.addoption("--seed", default=str(GATE_SEED), help="a number, or fresh: the seed of all chance in the run")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    for mark, name in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: long tier, {name}: {PARTS[name].proves}")
    if config.option.seed == "fresh":  # processes of xdist are given the option as it is now
        config.option.seed = str(SystemRandom().randrange(1 << 31))
    seed = int(config.option.seed)
    # How long an example takes, or is made, is the machine's matter: it is shared.
    healthy = [hypothesis.HealthCheck.too_slow]
    is_fixed = seed == GATE_SEED
    hypothesis.settings.register_profile(
        "untimed", deadline=None, suppress_health_check=healthy, derandomize=is_fixed, database=None, print_blob=True
    )
    hypothesis.settings.load_profile("untimed")
    if not is_fixed:
        config.option.hypothesis_seed = str(seed)
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # trio's own switch for Hypothesis; what it draws is seeded below


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tasks that are ready at once run in an order that follows from the run's seed and the test's name."""
    trio_run._r.seed(f"{item.config.option.seed} {item.nodeid}")


def pytest_report_header(config: pytest.Config) -> str:
    chosen = [name for name in PARTS if name in wanted(config)] + [GATE] * (GATE in wanted(config))
    minutes = sum(PARTS[name].minutes if name in PARTS else GATE_MINUTES for name in chosen)
    again = "" if config.option.seed == str(GATE_SEED) else f"; again with --seed {config.option.seed}"
    return f"{', '.join(chosen)}: whole, about {minutes} minutes on two cores; seed {config.option.seed}{again}"


def wanted(config: pytest.Config) -> frozenset[str]:
    """The names of what this run is to have: `GATE`, parts."""
    given = config.option.part or [GATE]
    return frozenset(PARTS if "long" in given else ()) | frozenset(given) - {"long"}


@cache
def marks_in(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """The parts that a module names as a whole, and all that it names anywhere; read without importing it."""
    text = path.read_text()
    whole = _OF_THE_MODULE.search(text)
    of_module = frozenset(MARKS[name] for name in _MARK.findall(whole[0])) if whole else frozenset()
    return of_module, frozenset(MARKS[name] for name in _MARK.findall(text))


def is_gate_module(path: Path) -> bool:
    """Whether a module has tests in the gate, as far as it says for all of them."""
    return not marks_in(path)[0]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what has nothing for this run. The sets of 5.8 and of the plain backend
    are made by a fixture, so their parts import them all.
    """
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    of_module, anywhere = marks_in(collection_path)
    chosen = wanted(config)
    has_some = (chosen & {GATE, *OF_A_FIXTURE} and not of_module) or chosen & anywhere
    return None if has_some else True


def parts_of(item: pytest.Item) -> frozenset[str]:
    """The parts of the long tier that a test belongs to; none: it is the gate's."""
    return frozenset(MARKS[mark.name] for mark in item.iter_markers() if mark.name in MARKS)


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = wanted(config)
    kept, left_out = [], []
    for item in items:
        is_named = config.option.part is None and session.isinitpath(item.path)
        is_wanted = is_named or (parts_of(item) or {GATE}) & chosen
        (kept if is_wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Of this run; printed with the command that repeats the test, what is sent follows from it."""
    chosen = int(request.config.option.seed)
    print(f"to repeat: python -m pytest '{request.node.nodeid}' --seed {chosen}")
    return chosen


@pytest.fixture
def chance(seed: int, request: pytest.FixtureRequest) -> Random:
    """Made from the run's seed and the test's name, so that tests do not all draw the same."""
    return Random(f"{seed} {request.node.nodeid}")

