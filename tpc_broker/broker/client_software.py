"""Which software a client says that it runs, in ApiVersions: of each connection, also where C gave the answer.

C answers all who ask ApiVersions in the same bytes. Each answer that it has carries a number for the software, which
the connection keeps (`ports.Connections.mark_of`). Of software without a number, because there are too many kinds,
Python answers each time, and remembers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.limits import SOFTWARE_KINDS_MAX, SOFTWARE_TEXT_LENGTH_MAX

if TYPE_CHECKING:
    from tpc_broker.broker.ports import Connections

Software = tuple[str, str]
"""Name and version."""
UNKNOWN: Final = ("unknown", "unknown")
"""As Kafka says of a client that has not told."""
NO_MARK: Final = 0


class ClientSoftware:
    def __init__(self, connections: Connections, kinds_max: int = SOFTWARE_KINDS_MAX) -> None:
        self._connections = connections
        self._kinds_max = kinds_max
        self._marks: dict[Software, int] = {}
        self._kinds: list[Software] = [UNKNOWN]
        self._told: dict[int, Software] = {}

    def mark(self, software: Software) -> int | None:
        """To be given with a prepared answer. None: there are too many kinds, and none is to be prepared for it."""
        found = self._marks.get(software)
        if found is None and len(self._kinds) <= self._kinds_max and _is_kept(software):
            found = self._marks[software] = len(self._kinds)
            self._kinds.append(software)
        return found

    def note(self, connection: int, software: Software) -> None:
        """Python has answered this one."""
        if _is_kept(software):
            self._told[connection] = self._kinds[self._marks[software]] if software in self._marks else software

    def of(self, connection: int) -> Software:
        told = self._told.get(connection)
        return self._kinds[self._connections.mark_of(connection)] if told is None else told

    def closed(self, connection: int) -> None:
        self._told.pop(connection, None)


def _is_kept(software: Software) -> bool:
    """What is longer than anybody's name is not."""
    return max(map(len, software)) <= SOFTWARE_TEXT_LENGTH_MAX
