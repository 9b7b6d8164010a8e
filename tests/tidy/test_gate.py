"""What holds for every test of the gate: it is to fail only when the product is wrong, and to take little time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.support.sources import nodes_of, tree_of
from tests.support.tiers import MARKS, is_gate_module
from tests.support.waiting import PATIENCE_S

TESTS: Final = Path(__file__).parents[1]
STARTERS: Final = {
    "tests.support.broker_process": {"TpcBroker", "run_command"},
    "tests.support.cluster_nodes": {"Cluster", "Node", "cluster"},
    "tests.support.kafka_peer": {"KafkaCluster", "KafkaPeer", "run_tool", "start_tool"},
    "tests.support.server_process": {"ServerProcess"},
    "tests.support.shared_servers": {"SharedBroker", "SharedCluster", "new_kafka"},
    "tests.support.tls_proxy": {"AdvertisingBroker", "make_certificates"},
    "tests.durability.conftest": {"new_broker", "new_broker_on_disk"},
    "tests.durability.test_crash_images": {"record_life"},
    "subprocess": {"Popen", "call", "check_call", "check_output", "run"},
    "multiprocessing": {"Pool", "Process", "get_context"},
    "os": {"fork", "posix_spawn", "spawnv", "system"},
    "pyspark.sql": {"SparkSession"},
}
"""By module, what starts a process when it is called."""
_ENDS = "what a process says when it ends by itself, or is ended, is what is tested"
_LIVES = "each test is another life of a broker: other options, limits, data or ends"
_FRESH = "what an interpreter of its own does, or leaves, is what is tested"
_TOOLS = "a program of the host is the judge, and runs for less than a second"
OWN_PROCESSES: Final = {
    "bench/test_histogram.py": _TOOLS,
    "bench/test_others.py": "servers of others are processes; these stand for them",
    "bench/test_server.py": _ENDS,
    "cli/test_tpc.py": _ENDS,
    "client/test_what_it_imports.py": _FRESH,
    "cluster/test_options.py": _ENDS,
    "durability/test_earlier_formats.py": _LIVES,
    "engine/test_cache_bound.py": _FRESH,
    "engine/test_connections_bound.py": _LIVES,
    "engine/test_connections_per_ip.py": _LIVES,
    "engine/test_invariants.py": _ENDS,
    "integration/test_clients_kcat.py": "kcat is a program",
    "integration/test_datagrams.py": _ENDS,
    "integration/test_listeners.py": "kcat is a program",
    "integration/test_shared_listener.py": _ENDS,
    "native_bytes/test_pinned.py": _FRESH,
    "operations/test_backup_staging.py": _ENDS,
    "operations/test_scrub.py": _ENDS,
    "packaging/test_seccomp.py": _LIVES,
    "packaging/test_service_files.py": _TOOLS,
    "process/test_core_watch.py": "processes that hang are what is watched",
    "process/test_listening.py": _FRESH,
    "process/test_logs.py": _ENDS,
    "process/test_reload.py": _LIVES,
    "process/test_supervisor_lives.py": _LIVES,
    "process/test_supervisor_refusals.py": _ENDS,
    "simulator/test_core.py": _FRESH,
    "simulator/test_nodes.py": _FRESH,
    "spark/test_security_options.py": _LIVES,
    "spark/test_surroundings.py": _FRESH,
    "swim/test_generated.py": _TOOLS,
    "telemetry/test_admin.py": _ENDS,
    "tidy/test_kept_files.py": "a run of pytest is what is tested",
    "tidy/test_manual.py": _TOOLS,
    "tidy/test_server_process.py": "when a process counts as gone is what is tested",
    "tidy/test_tidy.py": _TOOLS,
}
"""Gate modules whose tests start processes themselves, and why these are not a fixture's."""


def modules() -> list[Path]:
    return sorted(path for path in TESTS.rglob("test_*.py") if is_gate_module(path))


def dotted(node: ast.AST) -> str:
    """A name, or one of its attributes, as it is written; of anything else nothing."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def starters_in(tree: ast.Module) -> set[str]:
    """Dotted names by which the module may call what starts a process; subclasses that it makes among them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            known = STARTERS.get(node.module or "", ())
            found |= {each.asname or each.name for each in node.names if each.name in known}
        elif isinstance(node, ast.Import):
            names = {each.asname or each.name: each.name for each in node.names}
            found |= {f"{name}.{starter}" for name, module in names.items() for starter in STARTERS.get(module, ())}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) in found for base in node.bases):
            found.add(node.name)
    return found


def decorators_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in function.decorator_list}


def is_of_the_long_tier(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(f"pytest.mark.{mark}" in decorators_of(function) for mark in MARKS)


def is_left_out(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A fixture, or a test of the long tier."""
    return "pytest.fixture" in decorators_of(function) or is_of_the_long_tier(function)


@cache
def starts_in(tree: ast.Module) -> list[tuple[int, str]]:
    """(line, what is called) of each call outside a fixture that starts a process."""
    starters = starters_in(tree)
    builders = {f"{name}.builder" for name in starters}

    def look(node: ast.AST) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_left_out(node):
            return
        if isinstance(node, ast.Call) and (name := dotted(node.func)).removesuffix(".builder") in starters:
            yield node.lineno, name
        if isinstance(node, ast.Attribute) and (name := dotted(node)) in builders:
            yield node.lineno, name
        for child in ast.iter_child_nodes(node):
            yield from look(child)

    return list(look(tree))


def test_no_gate_test_starts_a_process_outside_a_fixture() -> None:
    """A fixture is where it is seen what a module costs, and what ends a server also when a test fails. Commands that
    end by themselves are called in this process (`run_here`, click's CliRunner).
    """
    wrong = []
    for path in modules():
        name = path.relative_to(TESTS).as_posix()
        if name not in OWN_PROCESSES:
            wrong += [f"tests/{name}:{line}: {what}" for line, what in starts_in(tree_of(path))]
    assert not wrong, "\n".join(wrong)


def test_what_is_excepted_needs_it() -> None:
    starting = {path.relative_to(TESTS).as_posix() for path in modules() if starts_in(tree_of(path))}
    assert OWN_PROCESSES.keys() - starting == set()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import subprocess\ndef test_a():\n    subprocess.run(['x'])", [(3, "subprocess.run")]),
        ("import subprocess as s\ndef helper():\n    return s.Popen(['x'])", [(3, "s.Popen")]),
        ("from os import fork\ndef test_a():\n    fork()", [(3, "fork")]),
        (
            "from tests.support.broker_process import TpcBroker as B\nclass Own(B): ...\ndef test_a():\n    Own()",
            [(4, "Own")],
        ),
        (
            "from tests.support.cluster_nodes import cluster\ndef test_a(p):\n    with cluster(p) as made: pass",
            [(3, "cluster")],
        ),
        (
            "from pyspark.sql import SparkSession\ndef test_a():\n    SparkSession.builder.getOrCreate()",
            [(3, "SparkSession.builder")],
        ),
        ("import subprocess\nimport pytest\n@pytest.fixture(scope='module')\ndef a():\n    subprocess.run(['x'])", []),
        ("import subprocess\nimport pytest\n@pytest.mark.kafka\ndef test_a():\n    subprocess.run(['x'])", []),
        ("from tpc_broker.client.cluster import Cluster\ndef test_a():\n    Cluster(1)", []),
    ],
)
def test_what_starts_a_process_is_found(source: str, expected: list[tuple[int, str]]) -> None:
    assert starts_in(ast.parse(source)) == expected


REAL_CLOCKS: Final = {
    "time": {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep", "time", "time_ns"},
    "datetime.datetime": {"now", "today", "utcnow"},
}
"""By module, what reads the real clock or waits by it; tests/support/waiting.py and today.py are the places for it."""
CHANCE: Final = {
    "random": {"choice", "choices", "getrandbits", "randbytes", "randint", "random", "randrange", "sample", "seed",
               "shuffle", "uniform", "SystemRandom"},
    "os": {"urandom"},
    "secrets": {"choice", "randbelow", "token_bytes", "token_hex"},
    "uuid": {"uuid1", "uuid4"},
}  # fmt: skip
"""What draws chance that no seed repeats. `Random` is given a seed; the fixtures `seed` and `chance` have one."""


def calls_in(tree: ast.Module, unwanted: dict[str, set[str]]) -> list[tuple[int, str]]:
    """(line, what is called) of each call of those, however they were imported; not in tests of the long tier."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names.update({each.asname or each.name: f"{node.module}.{each.name}" for each in node.names})
        elif isinstance(node, ast.Import):
            names.update({each.asname or each.name: each.name for each in node.names})
    full_names = {f"{module}.{name}" for module, functions in unwanted.items() for name in functions}

    def look(node: ast.AST) -> Iterator[tuple[int, str]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_of_the_long_tier(node):
            return
        if isinstance(node, ast.Call):
            first, dot, rest = dotted(node.func).partition(".")
            name = names.get(first, "") + dot + rest
            seedless = name == "random.Random" and not node.args
            if name in full_names or (seedless and "random" in unwanted):
                yield node.lineno, name
        for child in ast.iter_child_nodes(node):
            yield from look(child)

    return list(look(tree))


@pytest.mark.parametrize("unwanted", [REAL_CLOCKS, CHANCE], ids=["clock", "chance"])
def test_no_gate_test_reads_a_real_clock_or_draws_chance_without_a_seed(unwanted: dict[str, set[str]]) -> None:
    """A machine that is slow makes a test of the gate slow and not red, and each run of it is the same."""
    wrong = []
    for path in modules():
        found = calls_in(tree_of(path), unwanted)
        wrong += [f"tests/{path.relative_to(TESTS).as_posix()}:{line}: {what}" for line, what in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import time\ntime.sleep(1)", [(2, "time.sleep")]),
        ("from time import monotonic as now\ndef test_a():\n    now()", [(3, "time.monotonic")]),
        ("from datetime import UTC, datetime\ndatetime.now(UTC)", [(2, "datetime.datetime.now")]),
        ("import datetime\ndatetime.datetime.now()", [(2, "datetime.datetime.now")]),
        ("import random\nrandom.choice([1])\nrandom.Random()", [(2, "random.choice"), (3, "random.Random")]),
        ("from random import Random\nchance = Random(7)\nchance.random()", []),
        ("import random\ndef test_a(random):\n    Random(3)", []),
        ("import os\nos.urandom(3)", [(2, "os.urandom")]),
        ("import time\nimport pytest\n@pytest.mark.machine\ndef test_a():\n    time.sleep(1)", []),
        ("import trio\nasync def test_a():\n    await trio.sleep(1)", []),
    ],
)
def test_what_reads_a_clock_or_draws_chance_is_found(source: str, expected: list[tuple[int, str]]) -> None:
    assert calls_in(ast.parse(source), REAL_CLOCKS | CHANCE) == expected


PATIENT_METHODS: Final = {
    "awaitTermination", "communicate", "exception", "flush", "join", "result", "settimeout", "terminate", "wait",
}  # fmt: skip
"""The first argument of these is for how long to wait at most."""
PATIENT_KEYWORDS: Final = {"deadline_s", "deadline_seconds", "patience_s", "timeout", "timeout_s", "timeout_seconds"}
LOOKS: Final = {"consume", "get", "getmany", "poll", "select"}
"""Turns of a loop that waits: nothing is said by what one of them does not find."""
PATIENCE_NAME: Final = re.compile(r"_?(DEADLINE|PATIENCE|TIMEOUT|WAIT)_S(ECONDS)?")
_OF_THE_TEST: Final = "a method of the test's own: its clock is not the machine's"
OTHER_TIMES: Final = {
    ("broker/test_rebalancing.py", "join"): _OF_THE_TEST,
    ("coordinator/test_rounds.py", "wait"): _OF_THE_TEST,
    ("durability/workload.py", "flush"): "a turn of a loop that waits",
    ("durability/workload.py", "wait"): "an actor's pause between two requests",
    ("metadata/test_rebalance.py", "join"): _OF_THE_TEST,
    ("simulator/test_coming_and_going.py", "join"): _OF_THE_TEST,
    ("simulator/test_moves.py", "join"): _OF_THE_TEST,
    ("simulator/test_quorum.py", "join"): _OF_THE_TEST,
    ("spark/test_pace.py", "wait"): _OF_THE_TEST,
}
"""By module and method, what looks like a time-out and is none. One that is to pass has a name that says so."""


def number(node: ast.expr | None) -> float:
    """A literal's; what is none counts as long enough."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    return PATIENCE_S


def defaults_of(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    by_place = [*arguments.posonlyargs, *arguments.args]
    for given, default in zip(reversed(by_place), reversed(arguments.defaults), strict=False):
        yield given.arg, default
    for given, by_name in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if by_name is not None:
            yield given.arg, by_name


def impatience_in(nodes: Iterable[ast.AST], module: str = "") -> list[tuple[int, str]]:
    """(line, what is called or named) of each time-out that a loaded machine may reach: a number below `PATIENCE_S`."""
    found = []
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found += [
                (default.lineno, node.name)
                for name, default in defaults_of(node.args)
                if name in PATIENT_KEYWORDS and 0 < number(default) < PATIENCE_S
            ]
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
            if PATIENCE_NAME.fullmatch(target) and number(node.value) < PATIENCE_S:
                found.append((node.lineno, target))
        if not isinstance(node, ast.Call):
            continue
        is_method = isinstance(node.func, ast.Attribute)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
        given = [each.value for each in node.keywords if each.arg in PATIENT_KEYWORDS]
        given += node.args[:1] if is_method and called in PATIENT_METHODS else []
        if called in LOOKS or (module, called) in OTHER_TIMES:
            continue
        found += [(node.lineno, called) for each in given if 0 < number(each) < PATIENCE_S]
    return sorted(found)


def test_no_test_gives_up_while_a_loaded_machine_may_still_answer() -> None:
    """Of the gate and of the long tier: `PATIENCE_S` for what is to come, `LOOK_S` for an attempt that is made again; a
    time-out that is to pass has a name that says so.
    """
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        module = path.relative_to(TESTS).as_posix()
        wrong += [f"tests/{module}:{line}: {what}" for line, what in impatience_in(nodes_of(path), module)]
    assert not wrong, "\n".join(wrong)


def test_other_times_are_there() -> None:
    for module, called in OTHER_TIMES:
        assert called in {what for _line, what in impatience_in(nodes_of(TESTS / module))}, (module, called)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("future.result(15)", [(1, "result")]),
        ("future.result(timeout=20)\nassert producer.flush(1.5) == 0", [(1, "result"), (2, "flush")]),
        ("subprocess.run([x], timeout=60)\nsocket.create_connection(a, timeout=5)",
         [(1, "run"), (2, "create_connection")]),
        ("process.communicate(timeout=5)\ncreate(timeout_s=4)", [(1, "communicate"), (2, "create")]),
        ("def ask(place, timeout_seconds=60.0, *, patience_s=5, deadline_s): ...", [(1, "ask"), (1, "ask")]),
        ("def ask(timeout=LOOK_S, wait=5, *, timeout_s=240): ...", []),
        ("DEADLINE_S = 90.0\nPATIENCE_S: Final = 60", [(1, "DEADLINE_S"), (2, "PATIENCE_S")]),
        ("future.result(PATIENCE_S)\nfuture.result()\nfuture.result(240)\nprocess.wait(REFUSED_S)", []),
        ("consumer.poll(0.5)\nconsumer.consume(10, timeout=1)\nselect.select([x], [], [], 1)", []),
        ("lines.join(names)\nring.wait(0)\nring.wait(-1)\nwait(5)", []),
    ],
)  # fmt: skip
def test_time_outs_that_are_too_short_are_found(source: str, expected: list[tuple[int, str]]) -> None:
    assert impatience_in(ast.walk(ast.parse(source))) == expected


def test_no_test_has_its_seed_from_the_environment() -> None:
    """What repeats a run is its `--seed`, and nothing that the next one does not see."""
    asked = re.compile(r"\b(environ(\.get\(|\[)|getenv\()['\"]\w*SEED")
    wrong = [
        f"{path.relative_to(TESTS).as_posix()}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line, text in enumerate(path.read_text().splitlines(), 1)
        if asked.search(text) and path != Path(__file__)
    ]
    assert wrong == []
    assert asked.search('int(os.environ.get("TPC_SEED", "1"))')
    assert asked.search('os.getenv("SEED")')
    assert not asked.search('os.environ | {"PYTHONHASHSEED": "1"}')
