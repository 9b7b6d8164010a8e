"""Types in the words of SQL (``user string, at timestamp``), checked before Spark parses them.

A data source gives its columns to Spark as one text. When Spark does not understand that, its message is about the text
as a whole and names another column than the one that is wrong. So the part that a user wrote is looked at first, for
its form and for the names of types that values can have here.
"""

import re
from typing import Final

_QUOTED: Final = r"`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'" + r'|"(?:[^"\\]|\\.)*"'
_TOKEN: Final = re.compile(rf"\s*({_QUOTED}|\w+|\S)")
_TYPES: Final = frozenset({
    "boolean", "tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long", "float", "real", "double",
    "decimal", "dec", "numeric", "string", "char", "varchar", "binary", "date", "timestamp", "timestamp_ltz",
    "timestamp_ntz",
})  # fmt: skip
_END: Final = ""


def check_ddl_fields(text: str) -> None:
    """`ValueError` says what in a list of fields is not understood."""
    reader = _Reader(text)
    reader.fields()
    reader.expect(_END)


def check_ddl_type(text: str) -> None:
    """The same for one type: ``struct<…>``, ``array<…>``, ``map<…>`` or a plain one."""
    reader = _Reader(text)
    reader.type()
    reader.expect(_END)


class _Reader:
    """From the first word to the last."""

    def __init__(self, text: str) -> None:
        self._words: list[str] = [*_TOKEN.findall(text.rstrip()), _END]
        self._place = 0

    @property
    def _next(self) -> str:
        return self._words[self._place].lower()

    def _take(self) -> str:
        word = self._next
        self._place += 1
        return word

    def _has(self, word: str) -> bool:
        """Whether this word comes next; if so, it is taken."""
        if self._next != word:
            return False
        self._place += 1
        return True

    def expect(self, word: str) -> None:
        found = self._next
        if not self._has(word):
            raise ValueError(f"there is {found or 'an end'!r} where {word or 'the end'!r} should be")

    def fields(self) -> None:
        self._field()
        while self._has(","):
            self._field()

    def _field(self) -> None:
        name = self._take()
        if not re.match(r"[\w`]", name):
            raise ValueError(f"there is {name or 'an end'!r} where a field's name should be")
        self._has(":")
        self.type()
        if self._has("not"):
            self.expect("null")
        if self._has("comment") and self._take()[:1] not in ("'", '"'):
            raise ValueError("a comment has to stand in quotation marks")

    def type(self) -> None:
        name = self._take()
        if name == "struct":
            self.expect("<")
            if not self._has(">"):
                self.fields()
                self.expect(">")
        elif name in ("array", "map"):
            self.expect("<")
            self.type()
            if name == "map":
                self.expect(",")
                self.type()
            self.expect(">")
        elif name not in _TYPES:
            raise ValueError(f"there is {name or 'an end'!r} where a type should be")
        elif self._has("("):
            while not self._has(")"):
                if not (self._next.isdigit() or self._next == ","):
                    raise ValueError(f"there is {self._next or 'an end'!r} in the size of a {name}")
                self._take()
