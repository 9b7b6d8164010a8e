"""Which software a client says that it runs, in ApiVersions: of each connection, also where C gave the answer.

C answers all who ask ApiVersions in the same bytes. Each answer that it has carries a number for the software, which
the connection keeps (`ports.Connections.mark_of`), and so does the one for whom Python made the answer. Anybody may
make up names: when there are too many, the half that Python answered longest ago is let go, and the answers with it, so
that each who asks anew has a name. A connection whose name was let go is of unknown software.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from tpc_broker.limits import SOFTWARE_KINDS_MAX, SOFTWARE_TEXT_LENGTH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.broker.ports import Connections

Software = tuple[str, str]
"""Name and version."""
UNKNOWN: Final = ("unknown", "unknown")
"""As Kafka says of a client that has not told."""
NO_MARK: Final = 0
_MARK_OF_UNKNOWN: Final = 1
_MARK_MAX: Final = 2**32 - 1


class ClientSoftware:
    def __init__(
        self, connections: Connections, forget_answers: Callable[[], None], kinds_max: int = SOFTWARE_KINDS_MAX
    ) -> None:
        """`forget_answers`: C gives none any more that has a number."""
        self._connections = connections
        self._forget_answers = forget_answers
        self._kinds_max = kinds_max
        self._marks: dict[Software, int] = {}  # the one that Python answered longest ago first
        self._kinds: dict[int, Software] = {}
        self._last_mark = _MARK_OF_UNKNOWN

    def mark(self, software: Software) -> int:
        """To be given with the answer, and with each that is prepared of it."""
        if max(map(len, software)) > SOFTWARE_TEXT_LENGTH_MAX:
            return _MARK_OF_UNKNOWN  # longer than anybody's name
        mark = self._marks.pop(software, None)
        if mark is None:
            mark = self._new_mark()
            self._kinds[mark] = software
        self._marks[software] = mark
        return mark

    def of(self, connection: int) -> Software:
        return self._kinds.get(self._connections.mark_of(connection), UNKNOWN)

    def _new_mark(self) -> int:
        """One that was not given for as long as possible: connections have those that were let go."""
        if len(self._marks) >= self._kinds_max:
            for software in list(islice(self._marks, (self._kinds_max + 1) // 2)):
                del self._kinds[self._marks.pop(software)]
            self._forget_answers()
        while True:
            self._last_mark = self._last_mark + 1 if self._last_mark < _MARK_MAX else _MARK_OF_UNKNOWN + 1
            if self._last_mark not in self._kinds:
                return self._last_mark
