"""Which quota counts for a client, and who shares it: an index of the quotas of one image.

Kafka's order, for each kind of quota on its own: (user, client id), (user, any client id), user, (any user, client id),
(any user, any client id), any user, client id, any client id; of connections: an address, any address. "Any" is the
entity without a name. What is found counts for all that the entity names: a quota of a user for all of that user's
clients together, one of "any user" for each user on its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.metadata.records import CLIENT_ID, IP, USER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.metadata.image import QuotaEntity

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"


class Found(NamedTuple):
    """A quota, and by what those are known that share it."""

    limit: float
    """A second: bytes, percent of a core, partitions or connections."""
    user: str
    """Empty: whoever they are."""
    client_id: str
    """Empty: whichever."""


class QuotaIndex:
    """The quotas of one image. It only reads."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self._quotas = quotas
        self.keys: Final = frozenset(key for each in quotas.values() for key in each)
        """Kinds of which there is a quota at all."""

    def of_client(self, key: str, user: str, client_id: str) -> Found | None:
        """The quota of that kind of a user's client; None: there is none. A client without an id has only the quotas
        that name no client ids, as in Kafka.
        """
        if key not in self.keys:
            return None
        places: tuple[tuple[QuotaEntity, str, str], ...]
        if client_id:
            places = (
                (self._pair(user, client_id), user, client_id), (self._pair(user, None), user, client_id),
                (((USER, user),), user, ""),
                (self._pair(None, client_id), user, client_id), (self._pair(None, None), user, client_id),
                (((USER, None),), user, ""),
                (((CLIENT_ID, client_id),), "", client_id), (((CLIENT_ID, None),), "", client_id),
            )  # fmt: skip
        else:
            places = ((((USER, user),), user, ""), (((USER, None),), user, ""))
        for entity, for_user, for_client in places:
            limit = self._quotas.get(entity, {}).get(key)
            if limit is not None:
                return Found(limit, for_user, for_client)
        return None

    def of_address(self, address: str) -> float | None:
        """New connections a second from one address; None: as many as come."""
        for name in (address, None):
            limit = self._quotas.get(((IP, name),), {}).get(CONNECTION_CREATION_RATE)
            if limit is not None:
                return limit
        return None

    @staticmethod
    def _pair(user: str | None, client_id: str | None) -> QuotaEntity:
        return ((CLIENT_ID, client_id), (USER, user))
