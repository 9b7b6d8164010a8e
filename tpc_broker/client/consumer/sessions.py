"""Fetch sessions (KIP-227): what a broker has been told of, so that only what changed is sent. No I/O.

The first request of a session names every partition; later ones those whose row is another than before, and those that
are not wanted any more. A session ends with any failure, and the next request begins another. Brokers have room for a
number of them: of one that is over they are told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from tpc_broker.client.requests import FETCH_WITH_IDS_VERSION, NO_TOPIC_ID
from tpc_broker.kafka import ErrorCode, messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tpc_broker.client.consumer.stock import Wanted
    from tpc_broker.client.isolation import Isolation

_FIRST_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_LOST: Final = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)
Place: TypeAlias = "tuple[bytes | str, int]"
"""A topic's id, or its name before version 13, and a partition."""


class FetchTerms(NamedTuple):
    """What is the same for all partitions of a fetch."""

    isolation: Isolation
    wait_ms: int
    bytes_max: int
    bytes_min: int = 1
    rack: str = ""


class FetchSession:
    """Of one connection to one broker. Each `request` is followed by `took` or `failed`."""

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = _FIRST_EPOCH
        self._by_id = True
        self._told: dict[Place, Wanted] = {}
        """What the broker knows of, once the request is taken."""
        self._asked: dict[Place, Wanted] = {}

    def request(self, version: int, wanted: Iterable[Wanted], terms: FetchTerms) -> Any:
        """The message that asks for these, and for no other partition."""
        by_id = version >= FETCH_WITH_IDS_VERSION
        if by_id != self._by_id:
            self.end()
            self._by_id = by_id
        self._asked = asked = {(row.topic_id if by_id else row.where.topic, row.where.partition): row for row in wanted}
        if self.epoch <= _FIRST_EPOCH:
            sent, gone = list(asked), []
        else:
            told = self._told
            sent = [place for place, row in asked.items() if (old := told.get(place)) is None or old[2:5] != row[2:5]]
            gone = [] if asked.keys() == told.keys() else [place for place in told if place not in asked]
        self._told = asked
        return messages.FetchRequest(
            max_wait_ms=terms.wait_ms,
            min_bytes=terms.bytes_min,
            max_bytes=terms.bytes_max,
            isolation_level=int(terms.isolation),
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=self._topics(sent),
            forgotten_topics_data=_forgotten(gone),
            rack_id=terms.rack,
        )

    def _topics(self, places: Iterable[Place]) -> list[Any]:
        request = messages.FetchRequest
        topics: dict[bytes | str, Any] = {}
        for place in places:
            topic, partition = place
            if topic not in topics:
                topics[topic] = request.FetchTopic(**_named(topic))
            row = self._asked[place]
            topics[topic].partitions.append(
                request.FetchPartition(
                    partition=partition,
                    current_leader_epoch=row.leader_epoch,
                    fetch_offset=row.offset,
                    partition_max_bytes=row.bytes_max,
                )
            )
        return list(topics.values())

    def took(self, response: Any) -> list[tuple[Wanted, Any]]:
        """Each partition that the answer tells of, as it was asked for. A session's end is no error: nothing is told,
        and the next request begins anew. Other error codes of the whole answer are the caller's to look at.
        """
        asked = self._asked
        if response.error_code:
            self.end(is_known=response.error_code != ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return []
        told = []
        for topic in response.responses:
            name = bytes(topic.topic_id) if self._by_id else topic.topic
            for row in topic.partitions:
                wanted = asked.get((name, row.partition_index))
                if wanted is not None:
                    told.append((wanted, row))
        self._move_on(response.session_id)
        return told

    def _move_on(self, session_id: int) -> None:
        if not session_id:  # brokers before version 7 have none, others no room
            self.end(is_known=False)
            return
        self.session_id = session_id
        self.epoch = max(1, (self.epoch + 1) & 0x7FFF_FFFF)

    def end(self, *, is_known: bool = True) -> None:
        """The next request begins a session, in the place of the one that there was if the broker may still have it."""
        self.epoch = _FIRST_EPOCH
        if not is_known:
            self.session_id = 0
        self._told = {}

    def final(self) -> Any:
        """The message that says that nothing more will be asked; None: there is no session to end."""
        if self.epoch <= _FIRST_EPOCH:
            return None
        session_id = self.session_id
        self.end(is_known=False)
        return messages.FetchRequest(
            max_wait_ms=0, min_bytes=0, session_id=session_id, session_epoch=_FINAL_EPOCH, topics=[]
        )

    @staticmethod
    def is_lost(code: int) -> bool:
        """Whether an error code of a whole answer says only that the session is no more."""
        return code in _LOST


def uses_names(wanted: Iterable[Wanted]) -> bool:
    """Whether a topic has no id, so that a fetch has to go by names."""
    return not {row.topic_id for row in wanted}.isdisjoint((b"", NO_TOPIC_ID))


def _forgotten(places: Iterable[Place]) -> list[Any]:
    topics: dict[bytes | str, Any] = {}
    for topic, partition in places:
        if topic not in topics:
            topics[topic] = messages.FetchRequest.ForgottenTopic(**_named(topic))
        topics[topic].partitions.append(partition)
    return list(topics.values())


def _named(topic: bytes | str) -> dict[str, Any]:
    return {"topic" if isinstance(topic, str) else "topic_id": topic}
