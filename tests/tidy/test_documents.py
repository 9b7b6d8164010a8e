"""README and ARCHITECTURE say what is: files that they name exist, every room is in the table, commands are real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tidy.test_tidy import ALLOWED

ROOT = Path(__file__).parent.parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NATIVE = ROOT / "native"
OF_C = sorted({path.parent for path in NATIVE.glob("*/*.c")})
PLACES = [ROOT, ROOT / "tpc_broker", NATIVE, *OF_C]


def exists(name: str, neighbours: set[Path]) -> bool:
    return any((place / name).exists() for place in [*PLACES, *neighbours])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    missing = [link for link in links if not link.startswith("http") and not (document.parent / link).exists()]
    assert missing == []


def test_files_named_in_the_architecture_exist() -> None:
    """A name without its folder stands for a neighbour of a file named before it on the same line."""
    missing = []
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        neighbours: set[Path] = set()
        for name in re.findall(r"`([\w./-]+\.(?:py|c|h|json|jsonl|md))`|\(([\w./]+\.py)\)", line):
            path = name[0] or name[1]
            if not exists(path, neighbours):
                missing.append(path)
            neighbours |= {(place / path).parent for place in PLACES if (place / path).exists()}
    neighbours_of_all = {path.parent for path in ROOT.glob("native/*/*.c")} | set(ROOT.glob("tests/*"))
    missing = [name for name in missing if not exists(name, neighbours_of_all)]
    assert missing == []


LIVES = tuple(f"## The life of a {one}\n" for one in ("produce", "replicated append", "transaction", "fetch"))
ARCHITECTURE_BYTES_MAX = 20_000


def moves(life: str) -> list[tuple[str, str]]:
    """The (file, function) pairs of the numbered steps and of what may come between them."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = re.split(r"^#", text[text.index(life) + len(life) :], maxsplit=1, flags=re.MULTILINE)[0]
    return re.findall(r"`(\w+\.c):(\w+)`", section)


def defines(path: Path, function: str) -> bool:
    """A definition begins at the margin and opens a body; a call is indented, a prototype ends in a semicolon."""
    return re.search(rf"^[a-z][\w *]*\b{function}\([^;{{]*\) \{{", path.read_text(), re.MULTILINE) is not None


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.split()[-1])
def test_functions_named_in_the_life_of_a_request_are_where_it_says(life: str) -> None:
    named = moves(life)
    assert named
    missing = [
        (file, name)
        for file, name in named
        if not any((at / file).exists() and defines(at / file, name) for at in OF_C)
    ]
    assert missing == []


def test_every_room_is_in_the_folder_table() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text[text.index("| folder") : text.index("## Processes")]
    named = [room.replace(".", "/") for room in ALLOWED if not room.startswith("_")]
    missing = [room for room in named if not re.search(rf"\b{room}\b", table)]
    assert missing == []


def test_the_architecture_is_short_enough_to_be_read() -> None:
    """Details are told where they are kept: in the packages' docstrings and in the other documents."""
    assert (ROOT / "ARCHITECTURE.md").stat().st_size <= ARCHITECTURE_BYTES_MAX


def test_the_first_screen_of_the_readme_has_both_commands() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:40])
    assert "\nmake run " in first_screen
    assert "\nmake test " in first_screen
    assert "kcat -b 127.0.0.1:9092" in first_screen


def test_every_decision_has_its_row() -> None:
    folder = ROOT / "docs" / "decisions"
    rows = [line for line in (folder / "README.md").read_text().splitlines() if line.startswith("| [")]
    pages = {path.name for path in folder.glob("2*.md")}
    assert len(pages) > 100
    assert pages - {name for row in rows for name in re.findall(r"^\| \[[^]]*\]\(([^)]*)\)", row)} == set()
