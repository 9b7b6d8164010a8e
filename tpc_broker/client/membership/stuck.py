"""A handler that takes too long is named: topic, partition, offset, and for how long. No I/O: times come as arguments.

What is under way too long keeps its partition from everybody, while heartbeats say that all is well. So it is told in
the log when half of the time is over, and when all of it is over the member leaves its group, as Kafka's clients do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.client.consumer.ports import Position
    from tpc_broker.client.requests import TopicPartition

WARNED_SHARE: Final = 0.5
"""Of the time that there is, after which it is told first."""


class Stuck(NamedTuple):
    """``offset`` is the first that is not finished; -1: not known."""

    where: TopicPartition
    offset: int
    seconds: float

    def __str__(self) -> str:
        at = f"offset {self.offset}" if self.offset >= 0 else "its first records"
        return f"{self.where} at {at} for {self.seconds:.0f} s"


class StuckWatch:
    """``seconds`` that one item may take."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._warned: dict[TopicPartition, float] = {}

    def look(
        self,
        now: float,
        handed_out: Mapping[TopicPartition, float],
        positions: Mapping[TopicPartition, Position | None],
    ) -> tuple[list[Stuck], list[Stuck]]:
        """What is to be told for the first time, and what has taken too long."""
        late, over = [], []
        for where, since in handed_out.items():
            position = positions.get(where)
            stuck = Stuck(where, -1 if position is None else position.offset, now - since)
            if stuck.seconds >= self._seconds:
                over.append(stuck)
            elif stuck.seconds >= WARNED_SHARE * self._seconds and self._warned.get(where) != since:
                late.append(stuck)
                self._warned[where] = since
        for where in self._warned.keys() - handed_out.keys():
            del self._warned[where]
        return late, over
