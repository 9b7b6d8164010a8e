"""The long tier's parts: each has tests, and CONTRIBUTING says of each what it proves and how long it takes."""

from __future__ import annotations

from pathlib import Path

from tests.support.tiers import MARKS, OF_A_FIXTURE, PARTS, marks_in

ROOT = Path(__file__).parents[2]


def rows() -> str:
    return "".join(f"| `{name}` | {part.proves} | {part.minutes} |\n" for name, part in PARTS.items())


def test_contributing_lists_the_parts():
    assert f"| part | proves | minutes |\n|---|---|---|\n{rows()}\n" in (ROOT / "CONTRIBUTING.md").read_text()


def test_every_part_has_tests():
    marked = {name for path in (ROOT / "tests").rglob("test_*.py") for name in marks_in(path)[1]}
    assert set(PARTS) - set(OF_A_FIXTURE) <= marked
    marks = [f'add_marker("{mark}")' for mark, name in MARKS.items() if name in OF_A_FIXTURE]
    assert all(mark in (ROOT / "tests/engine/conftest.py").read_text() for mark in marks)


def test_a_mark_of_the_module_is_told_from_one_of_a_test(tmp_path):
    module = tmp_path / "test_some.py"
    of_module = "pytestmark = [\n    pytest.mark.crash,\n    skip,\n]\n"
    module.write_text(f"import pytest\n\n{of_module}\n\n@pytest.mark.sim\ndef f(): ...\n")
    assert marks_in(module) == ({"crash"}, {"crash", "sim"})
    other = tmp_path / "test_other.py"
    other.write_text("import pytest\n\n\n@pytest.mark.as_5_8\ndef f(): ...\n")
    assert marks_in(other) == (set(), {"as-5.8"})
