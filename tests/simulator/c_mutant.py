"""A fault planted in C: what of a file is changed, which rule that breaks, and what finds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


class NotThereError(Exception):
    """The text that a mutant changes is not in its file, or more than once."""


@dataclass(frozen=True)
class Mutant:
    """A fault. `rule` is what it breaks: a section of docs/raft-rules.md, or words of a rule in docs/rules.md. `old`
    occurs in `file` (below native/) once. `caught_by`: the test that finds it soonest, below tests/.
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    caught_by: str = ""

    def text(self) -> str:
        """The file, with the fault."""
        sound = (ROOT / "native" / self.file).read_text()
        if sound.count(self.old) != 1:
            raise NotThereError(f"{self.name}: {sound.count(self.old)} times in {self.file}: {self.old!r}")
        return sound.replace(self.old, self.new)
