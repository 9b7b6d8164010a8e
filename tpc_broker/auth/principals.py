"""Who asks: a principal, at a host. Rules name both, so both together are what is granted something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

USER: Final = "User"
"""The only type of principal that connections have; rules may name others, which nobody is."""
PRINCIPAL_NAME_BYTES_MAX: Final = 255


class Principal(NamedTuple):
    """Such as `User:alice`, as Kafka writes it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def parsed(cls, text: str) -> Self | None:
        """What `str` has made. None: there is no colon. Type and name may be empty: rules may name such, and nobody
        is one.
        """
        kind, colon, name = text.partition(":")
        return cls(kind, name) if colon else None

    @property
    def is_whole(self) -> bool:
        """Whether somebody may be it: type and name are given."""
        return bool(self.kind and self.name)


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Of a listener without authentication."""


class Subject(NamedTuple):
    """A principal at the address that its connection comes from, as text without a port."""

    principal: Principal
    host: str


NOBODY: Final = Subject(Principal("", ""), "")
"""In place of the subject of a connection that is closed, or has not said who it is: no rule names it."""


def host_of(peer: str) -> str:
    """The address alone, as rules name it, of one with its port; none of a Unix socket."""
    return peer.rpartition(":")[0].strip("[]")


class SubjectNumbers:
    """Small numbers for subjects, by which C knows them: of one core, and while its process lives. A number is never
    used again; one that no connection has may be forgotten, and then its subject gets another.
    """

    def __init__(self, in_use: Callable[[], Iterable[Subject]], count_max: int) -> None:
        """`in_use`: those that are kept when there are more than `count_max`, of which there should be fewer."""
        self._in_use = in_use
        self._count_max = self._next_look = count_max
        self._numbers: dict[Subject, int] = {}
        self._subjects: dict[int, Subject] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def number_of(self, subject: Subject) -> int:
        """> 0. ValueError: it is nobody."""
        number = self._numbers.get(subject)
        if number is None:
            if subject == NOBODY:
                raise ValueError("nobody has no number")
            if len(self._numbers) >= self._next_look:
                self._forget_unused()
            self._last = number = self._last + 1
            self._numbers[subject] = number
            self._subjects[number] = subject
        return number

    def subject_of(self, number: int) -> Subject:
        """NOBODY: no such number is known any more."""
        return self._subjects.get(number, NOBODY)

    def _forget_unused(self) -> None:
        """The next look is at twice as many, so that looking costs little for each subject."""
        kept = set(self._in_use())
        self._numbers = {subject: number for subject, number in self._numbers.items() if subject in kept}
        self._subjects = {number: subject for subject, number in self._numbers.items()}
        self._next_look = max(self._count_max, 2 * len(self._numbers))
