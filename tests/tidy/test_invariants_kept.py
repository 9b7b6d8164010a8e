"""Where C decides what is durable, committed, shown or sent, it says what it relies on: often enough that a wrong state
is met by an invariant before it is written, answered or read.

An invariant is a call of ``TPC_HOLDS``, ``TPC_INVARIANT`` or another macro of that name (``TPC_PARTITION_INVARIANT``).
Lines are those of code: comments, blank lines and definitions of macros are not counted. A header counts when it has
functions.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PER_HUNDRED_LINES_MIN = 5.0
ROOMS = ("journal", "log", "replication")

_NOT_CODE = re.compile(
    r'("(?:\\.|[^"\\\n])*")'  # kept: what looks like a comment in a string is none
    r"|/\*.*?\*/|//[^\n]*"
    r"|^[ \t]*#[ \t]*define\b(?:\\\n|[^\n])*",
    re.DOTALL | re.MULTILINE,
)
_INVARIANT = re.compile(r"\b(?:TPC_HOLDS|(?:[A-Z]+_)*INVARIANT)\(")


def code_of(text: str) -> list[str]:
    text = _NOT_CODE.sub(lambda found: found[1] or "", text)
    return [line for line in text.splitlines() if line.strip()]


def files_of(room: str) -> list[Path]:
    files = sorted((ROOT / "native" / room).glob("*.[ch]"))
    return [path for path in files if path.suffix == ".c" or "static inline" in path.read_text()]


@pytest.mark.parametrize("room", ROOMS)
def test_what_decides_says_what_it_relies_on(room: str) -> None:
    told, lines_of_all, invariants_of_all = [], 0, 0
    for path in files_of(room):
        code = code_of(path.read_text())
        count = sum(len(_INVARIANT.findall(line)) for line in code)
        told.append(f"{path.relative_to(ROOT)}: {count} in {len(code)} lines")
        lines_of_all += len(code)
        invariants_of_all += count
    share = 100 * invariants_of_all / lines_of_all
    assert share >= PER_HUNDRED_LINES_MIN, f"{room}: {share:.2f} in 100 lines\n" + "\n".join(told)


def test_only_code_is_counted() -> None:
    text = """
        /* TPC_HOLDS(a) in a
         * comment */
        #define OF_A_TAIL_INVARIANT(a) \\
            TPC_INVARIANT(a, "a tail")

        TPC_HOLDS(a); /* and why */
        say("/*"); // TPC_HOLDS(a)
        TPC_PARTITION_INVARIANT(partition, a), JOURNAL_INVARIANT(journal, b);
        VARIANT(a); TPC_HOLDS_NOT(a);
    """
    code = code_of(text)
    assert len(code) == 4
    assert [len(_INVARIANT.findall(line)) for line in code] == [1, 0, 2, 0]


def test_the_rooms_have_their_files() -> None:
    assert {path.name for path in files_of("journal")} >= {"journal_state.h", "journal_writer.c", "in_place.c"}
    assert {path.name for path in files_of("log")} >= {"append.c", "commit.c", "producer_bound.c", "tail.c"}
    assert {path.name for path in files_of("replication")} >= {"replica.c", "steady_beats.c", "steady_link.c"}
