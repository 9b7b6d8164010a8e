"""How a core's broker tells its connections which quotas there are, and whose requests they are."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class QuotaRow(NamedTuple):
    """The quotas of an entity, a second: bytes of produces and of fetches, percent of the core; 0: none. `user`,
    `client_id`: a name, "" for whoever has none of its own, None where the entity names none.
    """

    user: str | None
    client_id: str | None
    produce_bytes: float
    fetch_bytes: float
    percentage: float


class QuotasPort(Protocol):
    """Counts what clients use, and mutes the connections of who is above a quota."""

    def set_quotas(
        self, windows: tuple[int, float], rows: list[QuotaRow], addresses: dict[str | None, float]
    ) -> None:
        """In place of those before. `windows`: how many, of how many seconds. `addresses`: new connections a second, by
        IP address, None for any other.
        """
        ...

    def mute(self, connection: int, milliseconds: int) -> None:
        """Take no request of it for so long."""
        ...

    def spent(self, connection: int, client_id: str, spent_ns: int) -> None:
        """Time of this core that a request of that client took in Python."""
        ...
