"""Memory of fetch answers: one is held as a whole until all partitions in it are read, or little of it is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.client.consumer.decoding import Part


class Held:
    """Counts the bytes of answers that are held for parts that are not read yet, and of what was unpacked of them."""

    def __init__(self) -> None:
        self.bytes = 0
        self._answers: dict[Part, _Answer] = {}
        self._unpacked: dict[Part, int] = {}

    def add(self, parts: Iterable[Part]) -> None:
        """Those that came in one answer."""
        answer = _Answer(list(parts))
        self.bytes += answer.bytes
        for part in answer.parts:
            self._answers[part] = answer

    def look(self, part: Part) -> None:
        """Something of it was read, and may have been unpacked for that."""
        unpacked = part.unpacked_bytes
        if unpacked or part in self._unpacked:
            self.bytes += unpacked - self._unpacked.get(part, 0)
            self._unpacked[part] = unpacked

    def drop(self, part: Part) -> None:
        """It is read, or not wanted."""
        self.bytes -= self._unpacked.pop(part, 0)
        answer = self._answers.pop(part)
        self.bytes -= answer.bytes
        answer.drop(part)
        self.bytes += answer.bytes


class _Answer:
    def __init__(self, parts: list[Part]) -> None:
        self.parts = dict.fromkeys(parts)
        self.bytes = self._left_bytes = sum(part.records.nbytes for part in parts)

    def drop(self, part: Part) -> None:
        del self.parts[part]
        self._left_bytes -= part.records.nbytes
        if 2 * self._left_bytes <= self.bytes:
            self.bytes = self._left_bytes
            for other in self.parts:
                other.keep_apart()
