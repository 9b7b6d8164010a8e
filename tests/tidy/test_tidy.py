"""The architecture as a test: who may import whom, how long files and functions may be, which names are banned."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "tpc_broker"
FOUNDATION = {"model", "limits", "errors", "error_codes"}
LINKED = ("routing", "ebpf")
"""Folders at the top level that are parts of the package."""
NATIVE_BYTES = {"native_bytes", "_bytes"}
NATIVE_COLUMNS = NATIVE_BYTES | {"native_columns"}

# What each room of the package may import from the others, as ARCHITECTURE.md's folder table says.
ALLOWED = {
    "kafka": FOUNDATION | NATIVE_BYTES,
    "log": FOUNDATION | NATIVE_BYTES,
    "routing": FOUNDATION,
    "ebpf": set(),
    "metadata": FOUNDATION | {"routing"},
    "raft": FOUNDATION,
    "swim": FOUNDATION,
    "coordinator": FOUNDATION | {"kafka", "log"},
    "broker": FOUNDATION | NATIVE_BYTES | {"kafka", "log", "routing", "metadata", "coordinator"},
    "client": FOUNDATION | NATIVE_COLUMNS | {"kafka"},
    "spark": FOUNDATION | NATIVE_COLUMNS | {"client", "kafka", "log"},
    "native_columns": {"_bytes"},
    "cli": {"bench", "spark"},
    "native_bytes": FOUNDATION | {"_bytes"},
    "model": set(),
    "limits": set(),
    "errors": set(),
    "error_codes": set(),
}
EVERYTHING = {"runtime", "bench"}
NO_KERNEL = ("kafka", "log", "raft", "swim", "routing", "metadata", "coordinator", "broker")
KERNEL_MODULES = {"socket", "select", "subprocess", "cffi", "ctypes", "asyncio"}
SANS_IO = ("kafka", "log", "raft", "swim", "routing", "metadata", "coordinator")
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
    return parts[1].removesuffix(".py")


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and dotted name of everything a file imports; relative imports are made absolute."""
    package = list(path.relative_to(ROOT).parts[:-1])
    if package and package[0] in LINKED:
        package = ["tpc_broker", *package]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
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
    wrong = []
    for line, name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "tpc_broker" and len(parts) > 1 and parts[1] not in ALLOWED[room] | {room, "__version__"}:
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} must not import {name}")
        if room in NO_KERNEL and parts[0] in KERNEL_MODULES:
            wrong.append(f"{path.relative_to(ROOT)}:{line}: only runtime touches the kernel, not {name}")
        if room in SANS_IO and parts[0] in IO_MODULES:
            wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} is free of I/O, clocks and chance, not {name}")
    return wrong


def test_every_room_imports_only_what_it_may() -> None:
    assert [fault for path in sources() for fault in wrong_imports(path)] == []


def test_the_import_check_finds_a_wrong_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    wrong = tmp_path / "tpc_broker" / "log" / "wrong.py"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("import socket\nfrom tpc_broker.runtime import ring\nfrom ..metadata import image\n")
    faults = wrong_imports(wrong)
    assert sum("only runtime touches the kernel" in fault for fault in faults) == 1
    assert sum("must not import" in fault for fault in faults) == 2


def test_files_and_functions_are_not_too_long() -> None:
    faults = []
    for path in sources():
        text = path.read_text()
        if text.count("\n") > FILE_LINES_MAX:
            faults.append(f"{path.relative_to(ROOT)}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    faults.append(f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} has {lines} lines")
    assert faults == []


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
    started = {"tpc_broker.runtime.main", "tpc_broker.runtime.core", "tpc_broker.cli.main"}
    used: set[str] = set()
    for path in sources():
        for _line, name in imports_of(path):
            parts = name.split(".")
            used.update(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    modules = {module_name(path) for path in sources() if path.relative_to(ROOT).parts[0] in ("tpc_broker", *LINKED)}
    runnable = {module_name(path) for path in sources() if "__main__" in path.read_text()}
    runnable |= {name.rpartition(".")[0] for name in runnable}
    assert sorted(modules - used - started - runnable - {"tpc_broker"}) == []
