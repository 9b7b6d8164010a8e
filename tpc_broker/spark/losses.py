"""What a read cannot have (any more): an error, or a warning where ``failOnDataLoss`` is false."""

import logging
from collections.abc import Hashable, Iterable, Mapping
from typing import Final

from tpc_broker.client.errors import OffsetsMissingError
from tpc_broker.client.requests import TopicFacts

SAID_MAX: Final = 10_000
logger = logging.getLogger("tpc.spark")


class Losses:
    """Of one read. A stream plans every few milliseconds, so a warning is given once for each cause."""

    def __init__(self, *, are_errors: bool) -> None:
        self.are_errors = are_errors
        self.seen_ids: dict[str, bytes] = {}
        """Of topics that were asked for, b"" of missing ones: what need not be doubted when it is heard again."""
        self._said: dict[Hashable, str] = {}

    def lost(self, about: Hashable, what: str, goes_on: str = "without them") -> None:
        """`OffsetsMissingError`, or a warning where losses are allowed. ``goes_on``: where, in that case."""
        if self.are_errors:
            raise OffsetsMissingError(f"{what}; to go on {goes_on}, set failOnDataLoss to false")
        if self._said.get(about) == what:
            return
        if len(self._said) >= SAID_MAX:
            self._said.clear()
        self._said[about] = what
        logger.warning("%s; going on %s", what, goes_on)

    def note_existing(self, asked: Iterable[str], facts: Mapping[str, TopicFacts]) -> None:
        """Which of the topics that were asked for are there."""
        self.seen_ids |= {name: facts[name].topic_id if name in facts else b"" for name in asked}
