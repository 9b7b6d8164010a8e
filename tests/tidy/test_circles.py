"""Circles: modules that import each other, files of C that call each other; and which room of C may use which."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

from tests.support.sources import tree_of
from tests.tidy.test_tidy import ALLOWED, room_named

ROOT = Path(__file__).parents[2]
CIRCLE_MAX: Final = 3
"""Of modules that import each other, types included, and of files of C."""
C_CIRCLES = [{"context", "session"}]
"""Files of C that may call each other in a circle, each inside one room: three at most."""
C_ROOMS = {
    "io": set(),
    "tls": {"io"},
    "net": {"io", "tls"},
    "journal": {"io"},
    "log": {"io", "journal"},
    "replication": {"io", "net", "journal", "log"},
    "requests": {"io", "tls", "net", "journal", "log", "replication"},
}
"""Rooms of `native/`, and whose functions those of each may use besides `bytes`."""


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The strongly connected components with more than one node (Tarjan)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
            if other in stack:
                lowest[node] = min(lowest[node], lowest[other])
        if lowest[node] == order[node]:
            place = stack.index(node)
            if len(stack) - place > 1:
                found.append(set(stack[place:]))
            del stack[place:]

    for node in graph:
        if node not in order:
            visit(node)
    return found


def modules() -> dict[str, Path]:
    paths = sorted((ROOT / "tpc_broker").rglob("*.py"))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def _statements(body: list[ast.stmt], *, types: bool) -> list[ast.stmt]:
    """Those that run when a module is loaded; with `types`, what only mypy reads, too."""
    found = []
    for one in body:
        found.append(one)
        is_for_types = isinstance(one, ast.If) and isinstance(one.test, ast.Name) and one.test.id == "TYPE_CHECKING"
        if not is_for_types or types:
            for part in ("body", "orelse", "finalbody"):
                if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                    found += _statements(getattr(one, part, []), types=types)
    return found


def imports(known: dict[str, Path], *, types: bool) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = set()
        package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
        for one in _statements(tree_of(path).body, types=types):
            if isinstance(one, ast.Import):
                graph[name] |= {alias.name for alias in one.names} & known.keys()
            elif isinstance(one, ast.ImportFrom):
                base = ".".join([*package[: len(package) - one.level + 1], one.module or ""]).strip(".")
                base = base if one.level else one.module or ""
                for alias in one.names:
                    graph[name] |= {f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base} & known.keys()
        graph[name].discard(name)
    return graph


def test_no_modules_import_each_other_in_a_circle_and_types_only_within_a_room() -> None:
    known = modules()
    assert circles(imports(known, types=False)) == []
    for circle in circles(imports(known, types=True)):
        assert len({room_named(name.split(".")[1:]) for name in circle}) == 1, sorted(circle)


def test_circles_of_types_have_three_modules_at_most() -> None:
    found = [sorted(circle) for circle in circles(imports(modules(), types=True)) if len(circle) > CIRCLE_MAX]
    assert found == []


def test_rooms_do_not_use_each_other_in_a_circle() -> None:
    """As the law has it; a circle of rooms would be one room."""
    assert circles({room: others & ALLOWED.keys() for room, others in ALLOWED.items()}) == []


def test_the_check_finds_a_circle(tmp_path: Path) -> None:
    texts = {"a": "from tpc_broker import b", "b": "if True:\n    import tpc_broker.c", "c": "from . import a"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    known = {f"tpc_broker.{name}": tmp_path / f"{name}.py" for name in "abc"}
    assert circles(imports(known, types=False)) == [set(known)]


def test_the_check_finds_a_circle_of_types(tmp_path: Path) -> None:
    texts = {"a": "import tpc_broker.b", "b": "if TYPE_CHECKING:\n    from tpc_broker.a import A"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    known = {f"tpc_broker.{name}": tmp_path / f"{name}.py" for name in "ab"}
    assert circles(imports(known, types=False)) == []
    assert circles(imports(known, types=True)) == [set(known)]


def c_calls() -> dict[str, set[str]]:
    """Which file of C uses functions and tables of which others."""
    texts = {path.stem: re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)
             for room in (*C_ROOMS, "bytes") for path in sorted((ROOT / "native" / room).glob("*.c"))}  # fmt: skip
    places = {}
    for file, text in texts.items():
        for form in (r"^(?!static)[a-z][\w *]*?\b(\w+)\([^;{]*?\)\s*\{", r"^(?!static)const [\w ]+ (\w+) = \{"):
            places.update(dict.fromkeys(re.findall(form, text, flags=re.MULTILINE), file))
    graph = {}
    for file, text in texts.items():
        graph[file] = {places[word] for word in set(re.findall(r"\w+", text)) if places.get(word, file) != file}
    return graph


def rooms_of_c() -> dict[str, str]:
    """In which room each file of C is."""
    return {path.stem: path.parent.name for room in C_ROOMS for path in (ROOT / "native" / room).glob("*.c")}


def test_files_of_c_call_each_other_in_a_circle_only_inside_a_room() -> None:
    graph, rooms = c_calls(), rooms_of_c()
    assert "batch" in graph["produce"], "the check finds calls"
    for circle in circles(graph):
        assert any(circle <= files for files in C_CIRCLES), sorted(circle)
    assert all(len({rooms[file] for file in files}) == 1 for files in C_CIRCLES)
    assert max(map(len, C_CIRCLES)) <= CIRCLE_MAX


def test_rooms_of_c_use_what_stands_below_them() -> None:
    rooms = rooms_of_c()
    assert rooms["journal_writer"] == "journal"
    used = [(file, other) for file, others in c_calls().items() if file in rooms for other in others if other in rooms]
    assert ("append", "journal_queue") in used, "the check finds calls"
    wrong = [
        f"{rooms[file]}/{file}.c uses {rooms[other]}/{other}.c"
        for file, other in used
        if rooms[file] != rooms[other] and rooms[other] not in C_ROOMS[rooms[file]]
    ]
    assert sorted(wrong) == []
