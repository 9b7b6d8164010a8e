"""Commits and committed positions: one attempt each, with every partition's error told."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import anyio

from tpc_broker.client.errors import PartitionsLostError, RefusedError
from tpc_broker.client.membership.offsets import commit_answer, commit_request, committed_answer, committed_request
from tpc_broker.kafka import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tpc_broker.client.consumer.ports import GroupIdentity, Position
    from tpc_broker.client.membership.line import Line
    from tpc_broker.client.requests import TopicPartition


class _Kept(NamedTuple):
    """``position`` None: the partition was given back or lost."""

    number: int
    position: Position | None


class Commits:
    """Of one member. One attempt at a time, and what was said later counts: a commit that is tried again moves no
    position back that another one has moved on meanwhile.
    """

    def __init__(self, line: Line, group: str) -> None:
        self._line = line
        self._group = group
        self._lock = anyio.Lock()
        self._number = 0
        self._kept: dict[TopicPartition, _Kept] = {}

    def begin(self) -> int:
        """The number of a commit, for all of its attempts."""
        self._number += 1
        return self._number

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """They are not read any more: commits that began before are too late."""
        number = self.begin()
        self._kept |= {where: _Kept(number, None) for where in partitions}

    async def attempt(
        self, number: int, left: dict[TopicPartition, Position], who: Callable[[], GroupIdentity]
    ) -> tuple[GroupIdentity, dict[TopicPartition, int]]:
        """Takes out of ``left`` what is kept now; gives who asked, and the partitions that were refused with their
        error codes. `PartitionsLostError` for those that were forgotten meanwhile.
        """
        async with self._lock:
            self._leave_out(number, left)
            identity = who()
            if not left:
                return identity, {}
            request = commit_request(identity, left)
            codes = commit_answer(await self._line.ask(ApiKey.OFFSET_COMMIT, request))
            refused = {where: codes[where] for where in left if codes.get(where)}
            for code in set(refused.values()):
                self._line.failed(RefusedError(code, ""))
            for where in left.keys() - refused.keys():
                self._kept[where] = _Kept(number, left.pop(where))
            return identity, refused

    def _leave_out(self, number: int, left: dict[TopicPartition, Position]) -> None:
        lost = []
        for where in list(left):
            kept = self._kept.get(where)
            if kept is not None and kept.position is None and kept.number > number:
                lost.append(where)
            elif kept is not None and (kept.number > number or kept.position == left[where]):
                del left[where]
        if lost:
            raise lost_error(self._group, lost)


def lost_error(group: str, partitions: Iterable[TopicPartition]) -> PartitionsLostError:
    text = f"group {group}: {listed(partitions)} are not this member's any more"
    return PartitionsLostError(f"{text}: what was read of them may be read again by another")


def listed(partitions: Iterable[TopicPartition]) -> str:
    """At most a few of them."""
    names = sorted(map(str, partitions))
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


async def committed_once(
    line: Line, identity: GroupIdentity, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, Position | None]:
    """None where nothing is committed. `RefusedError`, of one partition too."""
    told = committed_answer(await line.ask(ApiKey.OFFSET_FETCH, committed_request(identity, partitions)))
    if told.error_code:
        error = RefusedError(told.error_code, "")
        line.failed(error)
        raise error
    for where, code in told.errors.items():
        raise RefusedError(code, str(where))
    return {where: told.positions.get(where) for where in partitions}
