"""Partitions that the program chose, or all of topics: without membership in a group. `HandMembership`.

Offsets may be kept in a group all the same, as long as that has no members: then reading goes on from there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from tpc_broker.client.consumer.ports import GroupIdentity, Position
from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.client.membership import topics
from tpc_broker.client.membership.committing import Commits, committed_once
from tpc_broker.client.membership.explaining import FENCED, explained
from tpc_broker.client.membership.line import Line, Patience
from tpc_broker.client.requests import EARLIEST, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpc_broker.client.consumer.ports import Reader
    from tpc_broker.client.membership.settings import GroupSettings, Subscription
    from tpc_broker.client.net.fleet import Fleet

NOBODY: Final = ("", -1)
TOPICS_SECONDS: Final = 30.0
"""Between two looks at how many partitions the topics have."""
logger = logging.getLogger("tpc.client")


class HandMembership:
    """Reads ``chosen``: partitions with the position to begin at (None: what is committed, or else the reader's
    `start`), or all partitions of what is subscribed to, also those that come later. ``settings``: of the group that
    keeps offsets; None: nothing is committed.
    """

    def __init__(
        self,
        fleet: Fleet,
        reader: Reader,
        chosen: Subscription | Mapping[TopicPartition, Position | None],
        settings: GroupSettings | None = None,
        topics_seconds: float = TOPICS_SECONDS,
    ) -> None:
        self._fleet = fleet
        self._reader = reader
        self._chosen = chosen
        self._settings = settings
        self._topics_seconds = topics_seconds
        self._line = None if settings is None else Line(fleet, settings.group)
        self._commits = None if self._line is None or settings is None else Commits(self._line, settings.group)
        self._read: set[TopicPartition] = set()

    @property
    def identity(self) -> GroupIdentity | None:
        return None if self._settings is None else GroupIdentity(self._settings.group, NOBODY[1], NOBODY[0], None)

    async def run(self) -> None:
        """`UnknownTopicError`: a topic that is named is not there."""
        if not isinstance(self._chosen, tuple):
            await self._take(self._chosen)
            await anyio.sleep_forever()
        is_first = True
        while True:
            found = await self._found(is_first=is_first)
            # Of what comes later nothing is to be missed between its making and its being found, wherever `start` is.
            begin = None if is_first else Position(EARLIEST)
            await self._take({where: begin for where in found if where not in self._read})
            is_first = False
            await anyio.sleep(self._topics_seconds)

    async def _found(self, *, is_first: bool) -> list[TopicPartition]:
        chosen = self._chosen
        assert isinstance(chosen, tuple)
        try:
            counts = await self._fleet.answered(lambda: topics.counts_found(self._fleet, chosen))
        except ClientError:
            if is_first:
                raise
            logger.warning("%s: which partitions there are is not known now", chosen)
            return []
        missing = sorted(set(chosen.names) - counts.keys())
        if missing and is_first:  # a topic just made is not known everywhere at once
            await self._fleet.refresh(missing)
            return await self._found(is_first=is_first)
        return [TopicPartition(name, partition) for name, count in counts.items() for partition in range(count)]

    async def _take(self, chosen: Mapping[TopicPartition, Position | None]) -> None:
        positions = dict(chosen)
        asked = [where for where, position in positions.items() if position is None]
        if asked and self._line is not None and self.identity is not None:
            positions |= await self._committed(self._line, self.identity, asked)
        if positions:
            await self._reader.assign(positions)
            self._read |= positions.keys()

    async def _committed(
        self, line: Line, identity: GroupIdentity, asked: list[TopicPartition]
    ) -> dict[TopicPartition, Position | None]:
        patience = Patience(self._fleet.settings.retry_seconds)
        while True:
            try:
                return await committed_once(line, identity, asked)
            except ClientError as error:
                await self._again(line, patience, error, "asking for committed offsets")

    async def commit(self, positions: Mapping[TopicPartition, Position]) -> None:
        """`ClientError` when there is no group that could keep them."""
        settings, line, identity = self._settings, self._line, self.identity
        if settings is None or line is None or identity is None or self._commits is None:
            raise ClientError("nothing is committed without a group: give group= beside the assignment")
        patience = Patience(settings.commit_retry_seconds or self._fleet.settings.retry_seconds)
        left = dict(positions)
        number = self._commits.begin()
        while left:
            try:
                _identity, refused = await self._commits.attempt(number, left, lambda: identity)
            except ClientError as error:
                await self._again(line, patience, error, "committing")
                continue
            if refused:
                where, code = next(iter(refused.items()))
                told = "it has members, and an assignment by hand needs a group of its own" if code in FENCED else ""
                await self._again(line, patience, RefusedError(code, told), f"committing {where}")

    async def _again(self, line: Line, patience: Patience, error: ClientError, what: str) -> None:
        assert self._settings is not None
        try:
            await patience.again(error)
        except ClientError:
            raise explained(error, f"group {self._settings.group}: {what}", line.place, self._settings) from error

    async def leave(self) -> None:
        """There is nothing to leave."""
        if self._line is not None:
            self._line.close()


