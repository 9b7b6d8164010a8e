"""Collects the rules that are easy to break into docs/rules.md: `.venv/bin/python tools/collect_rules.py`.

A rule stands next to the code that keeps it, in a comment of Python or C (or a paragraph of a docstring) of this form:

    # Rule: What must always hold, in one or a few sentences. Why: docs/decisions/DATE-NAME.md. See also native/x.c,
    # tpc_broker/y.py. Held by tests/a/test_b.py (what is special there), tests/c/test_d.py.

"Why" and "See also" may be missing. "Held by" names the tests that fail when the rule is broken, and ends the rule.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "rules.md"
SOURCES = ("tpc_broker", "native", "ebpf", "routing")
SUFFIXES = {".py", ".c", ".h"}
HEADER = """# Rules that are easy to break

Each of them is kept in the code next to a comment that begins with `Rule:`, and held by the tests that it names. This
page is collected from those comments by `tools/collect_rules.py`: change the comment, then run it.
"""

_BEGINS = re.compile(r"^\s*(?:# |/\* | \* )?Rule: ")
_MARKS = re.compile(r"^\s*(?:#|/\*|\*(?!/))?|(?:\*/|\"\"\")$")
_PARTS = re.compile(
    r"(?P<text>.+?)(?: Why: (?P<why>docs/\S+\.md)\.)?(?: See also (?P<also>[^ ,]+(?:, [^ ,]+)*)\.)?"
    r" Held by (?P<held>.+)\."
)
_PATH = re.compile(r"\b(?:tests|tpc_broker|native|ebpf)(?:/[\w-]+)*(?:\.\w+)?")


class RuleFormError(Exception):
    """A comment that begins like a rule and does not go on like one."""


@dataclass(frozen=True)
class Rule:
    """`file`, `also` and what `held_by` names are relative to the root."""

    file: str
    text: str
    why: str | None
    also: tuple[str, ...]
    held_by: str

    @property
    def room(self) -> str:
        parts = Path(self.file).parts[:-1]
        depth = 3 if parts[1:2] in (("node",), ("storage",)) else 2
        return "/".join(parts[:depth])

    @property
    def tests(self) -> list[str]:
        return [path for path in _PATH.findall(self.held_by) if path.startswith("tests")]

    def line(self) -> str:
        why = f" ([why]({Path(self.why).relative_to('docs')}))" if self.why else ""
        also = f"; see also {', '.join(_link(path) for path in self.also)}" if self.also else ""
        held = _PATH.sub(lambda found: f"`{found[0]}`", self.held_by)
        return f"- {self.text}{why}  \n  {_link(self.file)}{also}; held by {held}\n"


def _link(path: str) -> str:
    return f"[{path}](../{path})"


def _comment(lines: list[str]) -> str:
    """The rule that begins in the first line, up to its last test or the comment's end, without a comment's marks."""
    words = ""
    for line in lines:
        words = f"{words} {_MARKS.sub('', line.strip()).strip()}".strip()
        if line.strip() in ("", "#", "*") or line.endswith(("*/", '"""')) or re.search(r"Held by .+\.$", words):
            break
    return words


def rules_of(file: str, text: str) -> list[Rule]:
    """The rules of one source file, in its order."""
    found, lines = [], text.splitlines()
    for number, line in enumerate(lines):
        if not _BEGINS.match(line):
            continue
        whole = _comment(lines[number:]).removeprefix("Rule: ")
        parts = _PARTS.fullmatch(whole)
        if parts is None:
            raise RuleFormError(f"{file}:{number + 1}: not of the form in tools/collect_rules.py: {whole}")
        also = tuple(parts["also"].split(", ")) if parts["also"] else ()
        found.append(Rule(file, parts["text"], parts["why"], also, parts["held"]))
    return found


def collect() -> list[Rule]:
    """All rules of the sources, by file."""
    paths = {path.resolve() for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES}
    files = sorted(str(path.relative_to(ROOT)) for path in paths)
    return [rule for file in files for rule in rules_of(file, (ROOT / file).read_text(encoding="utf-8"))]


def document(rules: list[Rule]) -> str:
    rooms = sorted({rule.room for rule in rules})
    chapters = (f"\n## {room}\n\n" + "".join(rule.line() for rule in rules if rule.room == room) for room in rooms)
    return HEADER + "".join(chapters)


if __name__ == "__main__":
    DOCUMENT.write_text(document(collect()), encoding="utf-8")
    sys.stdout.write(f"{DOCUMENT.relative_to(ROOT)} is written\n")
