"""Reading without a group: all partitions of topics, and those that are added later."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Final

import anyio

from tpc_broker.client.consumer.starts import Start
from tpc_broker.client.errors import ClientError
from tpc_broker.client.requests import EARLIEST, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from tpc_broker.client.consumer.ports import GroupIdentity, Position
    from tpc_broker.client.consumer.reader import StreamReader
    from tpc_broker.client.net.fleet import Fleet

LOOK_SECONDS: Final = 30.0
logger = logging.getLogger("tpc.client")


class Everything:
    """A `Membership` without a group. ``topics``: names, or an expression that names are to match as a whole.

    Partitions that are there when reading begins start where the reader says; those that come later at their beginning,
    whatever that is, so that nothing is missed between their making and their being found.
    """

    def __init__(
        self, fleet: Fleet, reader: StreamReader, topics: Collection[str] | re.Pattern[str], look_seconds: float
    ) -> None:
        self._fleet = fleet
        self._reader = reader
        self._topics = topics
        self._look_seconds = look_seconds
        self._known: set[TopicPartition] = set()

    async def begin(self) -> None:
        """Find the partitions that are there. `UnknownTopicError`, or another `ClientError` after the retries."""
        found = await self._find()
        self._known = set(found)
        await self._reader.assign(dict.fromkeys(found))

    async def run(self) -> None:
        while True:
            await anyio.sleep(self._look_seconds)
            try:
                found = await self._find()
            except ClientError as error:
                logger.warning("which partitions there are could not be found out, and is asked again: %s", error)
                continue
            new = [where for where in found if where not in self._known]
            self._known.update(new)
            if new:
                self._reader.begin(dict.fromkeys(new), Start(time_ms=EARLIEST))

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        text = f"positions of {len(positions)} partitions cannot be committed: read(…, group=…) names a group"
        raise ClientError(text)

    async def leave(self) -> None:
        """Nobody is to be told."""

    @property
    def identity(self) -> GroupIdentity | None:
        return None

    async def _find(self) -> list[TopicPartition]:
        chosen = self._topics
        if isinstance(chosen, re.Pattern):
            told = (await self._fleet.refresh(None)).topics
            facts = {name: one for name, one in told.items() if not one.is_internal and chosen.fullmatch(name)}
        else:
            facts = (await self._fleet.refresh(chosen)).topics
        return [TopicPartition(topic, partition) for topic, one in facts.items() for partition in sorted(one.leaders)]
