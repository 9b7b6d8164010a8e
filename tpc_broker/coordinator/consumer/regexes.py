"""Regular expressions of consumer groups, in Kafka's language (RE2): checked, and matched with the names of topics.

Both take time in proportion to the text, whatever a client sends. Nothing of a pattern outlives a call.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import re2

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PATTERN_BYTES_MAX: Final = 4 << 10
PROGRAM_BYTES_MAX: Final = 1 << 18
"""Of a compiled pattern. One that would be larger (nested repetitions of large classes) is no pattern here."""
FAULT_CHARACTERS_MAX: Final = 100
HUGE_REPETITION: Final = re.compile(r"(?<!\\)\{\d{9}")
"""RE2 in C++ takes it for text, the RE2 of Kafka refuses it."""
STEP_COST: Final = 100_000
"""Instructions times names that are matched at once: a few milliseconds, 50 where a pattern is made for it."""
NAME_COST: Final = 25
"""Of a name, beside the instructions."""


def fault_of(pattern: str) -> str | None:
    """Why it is no pattern, in the words of RE2 and without the pattern; None when it is one."""
    try:
        _compiled(pattern)
    except _NoPatternError as error:
        return str(error)
    return None


def matches(pattern: str, names: Sequence[str]) -> Iterator[list[str]]:
    """Those of `names` that it matches as a whole, in their order, a part of them at each step. No pattern matches
    nothing: one that was stored may be none for another release.
    """
    try:
        compiled = _compiled(pattern)
    except _NoPatternError:
        return
    count = max(1, STEP_COST // (NAME_COST + compiled.programsize))
    for begin in range(0, len(names), count):
        yield [name for name in names[begin : begin + count] if compiled.fullmatch(name.encode()) is not None]


class _NoPatternError(Exception):
    """Why, for clients."""


def _compiled(pattern: str) -> Any:
    """`re2` keeps the last ones that it compiled, with all the memory that they may have: it is not to."""
    encoded = pattern.encode(errors="replace")
    if len(encoded) > PATTERN_BYTES_MAX:
        raise _NoPatternError(f"it is longer than {PATTERN_BYTES_MAX} bytes")
    if HUGE_REPETITION.search(pattern):
        raise _NoPatternError("it repeats something too often")
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(encoded, options)
    except re2.error as error:
        raise _NoPatternError(_words_of(error)) from None
    finally:
        re2.purge()


def _words_of(error: re2.error) -> str:
    """What RE2 says, up to where it repeats the pattern."""
    said = error.args[0] if error.args else b""
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    return text.partition(": ")[0][:FAULT_CHARACTERS_MAX]
