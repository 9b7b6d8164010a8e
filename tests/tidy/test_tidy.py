"""The architecture as a test: who may import whom, how long files and functions may be, which names are banned."""

import ast
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.sources import nodes_of, tree_of

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "tpc_broker"
FOUNDATION = {"model", "limits", "errors", "error_codes", "task_queue", "feature_levels", "host_port", "rounds",
              "foreign_protocols"}  # fmt: skip
LINKED = ("routing", "ebpf")
"""Folders at the top level that are parts of the package."""
NATIVE_BYTES = {"native_bytes", "_bytes"}
NATIVE_COLUMNS = NATIVE_BYTES | {"native_columns"}

UNDER_STORAGE = {"storage.ports", "storage.uncontended_lock"}
STORAGE = UNDER_STORAGE | {"storage.disk_watch", "storage.segments", "storage.recovery", "storage.upkeep"}
STORAGE |= {"storage.replicas", "storage"}

OF_A_CORE = {"kafka", "log", "metadata", "auth", "broker"}
OF_A_NODE = FOUNDATION | {"cluster", "metadata", "engine"}

# What each room of the package, or wing of one, may import from the others, as ARCHITECTURE.md's folder table
# says.
ALLOWED = {
    "kafka": FOUNDATION | NATIVE_BYTES,
    "log": FOUNDATION | NATIVE_BYTES,
    "routing": FOUNDATION,
    "ebpf": set(),
    "auth": FOUNDATION,
    "metadata": FOUNDATION | {"routing", "auth"},
    "raft": FOUNDATION,
    "swim": FOUNDATION,
    "cluster": FOUNDATION | {"raft", "swim"},
    "coordinator": FOUNDATION | {"kafka", "log"},
    "telemetry.pushed": FOUNDATION | NATIVE_BYTES | {"kafka", "metadata"},
    "storage.ports": FOUNDATION | {"log", "storage.disk_watch"},
    "storage.disk_watch": set(),
    "storage.uncontended_lock": set(),
    "storage.segments": FOUNDATION | NATIVE_BYTES | {"log", "metadata"} | UNDER_STORAGE,
    "storage.recovery": FOUNDATION | NATIVE_BYTES | {"log", "metadata"} | UNDER_STORAGE | {"storage.segments"},
    "storage.upkeep": FOUNDATION | {"log", "metadata"} | UNDER_STORAGE | {"storage.segments", "storage.recovery"},
    "storage.replicas": FOUNDATION | NATIVE_BYTES | {"log", "storage.ports"}
    | {"storage.segments", "storage.recovery", "storage.upkeep"},
    "storage": FOUNDATION | {"log", "metadata"} | (STORAGE - {"storage", "storage.uncontended_lock"}),
    "broker": FOUNDATION | NATIVE_BYTES | {"kafka", "log", "routing", "metadata", "coordinator", "storage.ports"}
    | {"storage.segments", "storage.recovery", "storage.upkeep", "storage.replicas", "telemetry.pushed", "auth"},
    "options": FOUNDATION | {"cluster", "metadata"},
    "engine": FOUNDATION | NATIVE_BYTES | OF_A_CORE | {"routing", "raft", "ebpf", "_ring", "options"}
    | {"storage.ports", "storage.disk_watch", "storage.segments", "storage.upkeep"},
    "cleaner": FOUNDATION | NATIVE_BYTES | {"kafka", "log", "storage.ports", "engine"},
    "node.links": OF_A_NODE | NATIVE_BYTES | {"swim", "broker", "_ring"},
    "node.membership": OF_A_NODE | {"raft", "swim", "log", "storage.ports", "storage.upkeep", "options", "node.links"},
    "node.metadata": OF_A_NODE | NATIVE_BYTES | {"raft", "swim", "storage.ports", "storage.disk_watch", "broker"}
    | {"options", "node.links", "node.membership"},
    "node.replicas": OF_A_NODE | NATIVE_BYTES | {"raft", "log", "storage.ports", "storage.segments", "storage.recovery"}
    | {"storage.upkeep", "storage.replicas", "storage", "broker", "options", "node.links", "node.membership"},
    "node": OF_A_NODE | {"raft", "swim", "storage.ports", "broker", "options"}
    | {"node.links", "node.membership", "node.metadata", "node.replicas"},
    "telemetry": FOUNDATION | {"kafka", "storage.recovery", "storage", "broker", "raft", "options", "engine", "node"}
    | {"telemetry.pushed"},
    "operations": FOUNDATION | NATIVE_BYTES | OF_A_CORE | {"raft", "cluster", "ebpf", "_ring", "options", "engine"}
    | {"storage.ports", "storage.segments", "storage.recovery", "storage"}
    | {"node.membership", "node.replicas", "telemetry", "cli"},
    "process": FOUNDATION | {"log", "metadata", "auth", "broker", "routing", "ebpf", "_ring", "options"}
    | {"storage.ports", "storage.recovery", "storage"}
    | {"engine", "cleaner", "node", "node.membership", "node.replicas", "telemetry", "operations", "cli"},
    "client": FOUNDATION | NATIVE_COLUMNS | {"kafka"},
    "testing": FOUNDATION | NATIVE_BYTES | {"kafka", "log", "routing", "metadata", "auth", "broker", "client"}
    | {"storage.ports", "storage.upkeep"},
    "faststream": FOUNDATION | {"client", "testing"},
    "spark": FOUNDATION | NATIVE_COLUMNS | {"client", "kafka", "log"},
    "native_columns": {"_bytes"},
    "cli": {"bench", "spark", "client", "kafka", "routing", "host_port"},
    "native_bytes": FOUNDATION | {"_bytes"},
    "model": set(),
    "limits": set(),
    "errors": set(),
    "error_codes": set(),
    "task_queue": set(),
    "host_port": set(),
    "foreign_protocols": set(),
    "rounds": set(),
    "feature_levels": set(),
}
EVERYTHING = {"bench", "entry"}
NO_KERNEL = ("kafka", "log", "raft", "swim", "cluster", "routing", "metadata", "coordinator",
             "telemetry.pushed", "auth", *STORAGE, "broker", "options", "node.metadata")  # fmt: skip
KERNEL_MODULES = {"socket", "select", "subprocess", "cffi", "ctypes", "asyncio"}
SANS_IO = ("kafka", "log", "raft", "swim", "cluster", "routing", "metadata", "coordinator", "telemetry.pushed", "auth")
CLOCK_BY_PORT = (*STORAGE, "broker")
CHANCE_BY_PORT = ("broker",)
CHANCE_MODULES = {"random", "secrets"}
CHANCE_CALLS = {"uuid.uuid1", "uuid.uuid4", "os.urandom"}
IO_MODULES = KERNEL_MODULES | {"trio", "time", "random", "threading", "secrets"}
BANNED_MODULE_NAMES = {"util", "utils", "helpers", "helper", "impl", "common", "misc"}
BANNED_WORDS = re.compile(r"\b(shard|reactor)s?\b", re.IGNORECASE)
FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 75


def sources() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).exists()]


def room_of(path: Path) -> str | None:
    parts = path.relative_to(ROOT).parts
    if parts[0] in LINKED:
        return parts[0]
    if parts[0] != "tpc_broker" or (len(parts) == 2 and parts[1] == "__init__.py"):
        return None
    return room_named([part.removesuffix(".py") for part in parts[1:]])


def room_named(parts: Sequence[str]) -> str:
    """Of a dotted name without the package's: a wing, where the law has one of that name, or the room."""
    wing = ".".join(parts[:2])
    return wing if wing in ALLOWED else "".join(parts[:1])


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of everything a file imports; relative imports are made absolute."""
    package = list(path.relative_to(ROOT).parts[:-1])
    if package and package[0] in LINKED:
        package = ["tpc_broker", *package]
    found = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


def wrong_imports(path: Path) -> list[str]:
    room = room_of(path)
    if room is None or room in EVERYTHING:
        return []
    assert room in ALLOWED, f"{path}: the room {room!r} is not in the table; add it here and to ARCHITECTURE.md"
    may = ALLOWED[room] | {room, "__version__", ""}
    wrong = []
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "tpc_broker" and room_named(parts[1:]) not in may:
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} must not import {name}")
        if room in NO_KERNEL and parts[0] in KERNEL_MODULES:
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} does not touch the kernel, not by {name}")
        if room in SANS_IO and parts[0] in IO_MODULES:
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} is free of I/O, clocks and chance, not {name}")
        if room in CLOCK_BY_PORT and parts[0] == "time":
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} has its time from its ports and from trio")
        if room in CHANCE_BY_PORT and (parts[0] in CHANCE_MODULES or name in CHANCE_CALLS):
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} has its chance from its ports")
    return wrong + (wrong_chance(path) if room in CHANCE_BY_PORT else [])


def wrong_chance(path: Path) -> list[str]:
    named = [ast.unparse(node) for node in nodes_of(path) if isinstance(node, ast.Attribute)]
    return [f"{path.name}: {name}: a core has its chance from its ports" for name in named if name in CHANCE_CALLS]


def test_every_room_imports_only_what_it_may() -> None:
    assert [fault for path in sources() for fault in wrong_imports(path)] == []


EXACT = ("storage", "options", "engine", "cleaner", "node", "telemetry", "operations", "process")
"""What runs a broker, and a core's files."""


def test_such_rooms_may_import_no_more_than_they_do() -> None:
    used: dict[str, set[str]] = {room: set() for room in ALLOWED if room.partition(".")[0] in EXACT}
    for path in sources():
        room = room_of(path)
        if room in used:
            names = [name.split(".") for _line, name in imports_of(path)]
            used[room] |= {room_named(parts[1:]) for parts in names if parts[0] == "tpc_broker"}
    unused = {room: ALLOWED[room] - others - FOUNDATION - NATIVE_BYTES for room, others in used.items()}
    assert {room: others for room, others in unused.items() if others} == {}


KEEPS_BUFFERS = {"tpc_broker/native_bytes.py"}


def kept_buffers(path: Path) -> list[str]:
    """Where what `ffi.from_buffer` makes is more than an argument of a call of C: Python may crash when it is collected
    (`tpc_broker.native_bytes.pinned`).
    """
    calls = [node for node in nodes_of(path) if isinstance(node, ast.Call)]
    into_c = [call for call in calls if ast.unparse(call.func).startswith(("lib.", "native"))]
    passed = {id(argument) for call in into_c for argument in call.args}
    names = [node for node in nodes_of(path) if isinstance(node, ast.Attribute) and node.attr == "from_buffer"]
    allowed = {id(call.func) for call in calls if id(call) in passed}
    lines = sorted(name.lineno for name in names if id(name) not in allowed)
    return [f"{path}:{line}: pinned() instead" for line in lines]


def test_buffers_are_lent_to_c_for_one_call_only() -> None:
    product = [path for path in sources() if room_of(path) and str(path.relative_to(ROOT)) not in KEEPS_BUFFERS]
    assert [fault for path in product for fault in kept_buffers(path)] == []


def test_the_check_of_lent_buffers_finds_them(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("view = ffi.from_buffer(data)\nlib.f(0, ffi.from_buffer(data), 1)\ntake = ffi.from_buffer\n")
    assert [fault.split(":")[1] for fault in kept_buffers(wrong)] == ["1", "3"]


COROUTINE_TEST_ROOMS = ("broker", "storage")
"""Here pytest runs async tests, in a loop without the ring. Everywhere else a test says itself where its loop waits."""
SAYS_ITS_LOOP = {"on_both_loops", "on_loops_in_turn", "on_asyncio"}
WRONG_CALLS = {"trio.run", "time.sleep", "time.monotonic"}


def says_its_loop(test: ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(each).partition("(")[0] in SAYS_ITS_LOOP for each in test.decorator_list)


def wrong_loops(path: Path, room: str) -> list[str]:
    """What a test does with loops and real time that its room has no use for."""
    tree = tree_of(path)
    if room not in COROUTINE_TEST_ROOMS:
        tests = (node for node in tree.body if isinstance(node, ast.AsyncFunctionDef))
        alone = (node for node in tests if node.name.startswith("test_") and not says_its_loop(node))
        return [f"{path}:{node.lineno}: would run without the ring" for node in alone]
    calls = (ast.unparse(node.func) for node in nodes_of(path) if isinstance(node, ast.Call))
    return [f"{path}: {call}: async tests, and a clock of their own" for call in calls if call in WRONG_CALLS]


def test_coroutines_without_the_ring_are_run_by_pytest_and_no_others() -> None:
    tests = [path for path in sources() if path.relative_to(ROOT).parts[0] == "tests"]
    assert [fault for path in tests for fault in wrong_loops(path, path.relative_to(ROOT).parts[1])] == []


def test_the_check_of_loops_finds_them(tmp_path: Path) -> None:
    wrong = tmp_path / "test_wrong.py"
    wrong.write_text("async def test_a():\n    trio.run(main)\n    time.sleep(1)\n")
    assert len(wrong_loops(wrong, "engine")) == 1
    assert len(wrong_loops(wrong, "storage")) == 2


def test_the_import_check_finds_a_wrong_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    wrong = tmp_path / "tpc_broker" / "log" / "wrong.py"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("import socket\nfrom tpc_broker.engine import ring\nfrom ..metadata import image\n")
    faults = wrong_imports(wrong)
    assert sum("does not touch the kernel" in fault for fault in faults) == 1
    assert sum("must not import" in fault for fault in faults) == 2
    wing = tmp_path / "tpc_broker" / "node" / "replicas" / "wrong.py"
    wing.parent.mkdir(parents=True)
    wing.write_text("import tpc_broker\nfrom tpc_broker import process\nfrom tpc_broker.node import links, metadata\n")
    named = [fault.rpartition(" ")[2] for fault in wrong_imports(wing)]
    assert named == ["tpc_broker.process", "tpc_broker.node.metadata"]
    below = tmp_path / "tpc_broker" / "storage" / "segments" / "wrong.py"
    below.parent.mkdir(parents=True)
    below.write_text("import time\nfrom tpc_broker.storage import ports, upkeep\nfrom ..recovery import recovery\n")
    assert sum("has its time from" in fault for fault in wrong_imports(below)) == 1
    named = [fault.rpartition(" ")[2] for fault in wrong_imports(below) if "must not" in fault]
    assert named == ["tpc_broker.storage.upkeep", "tpc_broker.storage.recovery.recovery"]
    core = tmp_path / "tpc_broker" / "broker" / "wrong.py"
    core.parent.mkdir()
    core.write_text("import random\nfrom uuid import uuid4\nimport uuid\n\nprint(uuid.uuid4())\n")
    assert sum("chance from its ports" in fault for fault in wrong_imports(core)) == 3


def test_files_and_functions_are_not_too_long() -> None:
    faults = []
    for path in sources():
        text = path.read_text()
        if text.count("\n") > FILE_LINES_MAX:
            faults.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    faults.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines")
    assert faults == []


def c_sources() -> list[Path]:
    return sorted(path for path in (ROOT / "native").rglob("*") if path.suffix in (".c", ".h"))


def c_functions(text: str) -> list[tuple[int, str, int]]:
    """Line, name and length of each function; clang-format has put their first and last lines at the margin."""
    found = []
    begin = None
    for number, line in enumerate(text.splitlines(), start=1):
        named = re.match(r"(?!typedef\b|enum\b|union\b)\w[\w\s*]*?\b(\w+)\(", line)
        if named:
            begin = (number, named[1])
        if begin and re.search(r"^\}|^\w.*\}$", line):
            found.append((*begin, number - begin[0] + 1))
        if line.endswith((";", "}")) and not line.startswith(" "):
            begin = None
    return found


def test_c_files_and_functions_are_not_too_long() -> None:
    faults = []
    for path in c_sources():
        text = path.read_text()
        name = str(path.relative_to(ROOT))
        if text.count("\n") > FILE_LINES_MAX:
            faults.append(f"{name}: {text.count(chr(10))} lines")
        faults += [
            f"{name}:{line}: {function} has {lines} lines"
            for line, function, lines in c_functions(text)
            if lines > FUNCTION_LINES_MAX
        ]
    assert faults == []


def test_c_functions_are_found_as_they_are_written() -> None:
    text = "int declared(int a);\n\nstatic bool one(void) { return true; }\n\n"
    text += "int wrapped(int a,\n            int b) {\n    if (a) {\n        b();\n    }\n    return 0;\n}\n"
    assert c_functions(text) == [(3, "one", 1), (5, "wrapped", 7)]
    journal = c_functions((ROOT / "native/log/append.c").read_text())
    assert {name for _line, name, _lines in journal} >= {"stamp", "tpc_append_batch_to", "tpc_plane_reopen_journal"}


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [path for path in sources() if path.stem in BANNED_MODULE_NAMES] == []


def test_the_words_of_other_systems_are_not_used() -> None:
    faults = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        if "tests" not in path.relative_to(ROOT).parts
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if BANNED_WORDS.search(line)
    ]
    assert faults == []


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("tpc_broker", *parts) if parts[0] in LINKED else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_module_is_imported_by_something() -> None:
    """A module that nothing imports and nothing starts is dead."""
    started = {"tpc_broker.entry", "tpc_broker.process.main", "tpc_broker.process.core", "tpc_broker.cli.main"}
    started.add("tpc_broker.bench.saturate.sitecustomize")  # by Python, where its folder is in PYTHONPATH
    used: set[str] = set()
    for path in sources():
        for _line, name in imports_of(path):
            parts = name.split(".")
            used.update(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    modules = {module_name(path) for path in sources() if path.relative_to(ROOT).parts[0] in ("tpc_broker", *LINKED)}
    runnable = {module_name(path) for path in sources() if "__main__" in path.read_text()}
    runnable |= {name.rpartition(".")[0] for name in runnable}
    assert sorted(modules - used - started - runnable - {"tpc_broker"}) == []
