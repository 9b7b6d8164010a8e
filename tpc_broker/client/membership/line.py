"""A connection of one's own to a group's coordinator, wherever that is now; and pauses between attempts.

It is shared with nobody: a heartbeat must not stand behind a fetch that waits, nor anything behind a JoinGroup.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio

from tpc_broker.client.cluster import BACKOFF_SECONDS_FIRST, BACKOFF_SECONDS_MAX
from tpc_broker.client.coordinators import CoordinatorKind
from tpc_broker.client.errors import ClientError
from tpc_broker.client.membership.explaining import is_elsewhere, is_tried_again

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpc_broker.client.net.channel import Channel
    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.kafka import ApiKey


class Line:
    """``request_seconds``: for one answer; None: as the client's others."""

    def __init__(self, fleet: Fleet, group: str, request_seconds: float | None = None) -> None:
        self._fleet = fleet
        self._group = group
        self._request_seconds = request_seconds
        self._channel: Channel | None = None
        self._opening = anyio.Lock()
        self.place = ""
        """Of the coordinator that was asked last, for errors."""

    async def channel(self) -> Channel:
        """One attempt. `ClientError`: the coordinator is not known, or cannot be reached."""
        async with self._opening:
            found = self._channel
            if found is not None and not found.is_closed:
                return found
            self.close()
            shared = await self._fleet.coordinator(CoordinatorKind.GROUP, self._group)
            made = await self._fleet.own_channel(shared.broker_id, self._request_seconds)
            self._channel = made
            self.place = f"broker {made.broker_id}, {made.node.host}:{made.node.port}"
            return made

    async def ask(self, key: ApiKey, make: Callable[[int], Any]) -> Any:
        """One attempt."""
        try:
            return await (await self.channel()).call(key, make)
        except ClientError as error:
            self.failed(error)
            raise

    def failed(self, error: ClientError) -> None:
        """Where it says that the coordinator is elsewhere, the next attempt looks for it."""
        if is_elsewhere(error):
            self._fleet.forget_coordinator(CoordinatorKind.GROUP, self._group)
            self.close()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class Patience:
    """Waits between the attempts at one thing. ``seconds``: for all of them; None: without end."""

    def __init__(self, seconds: float | None) -> None:
        self._deadline = float("inf") if seconds is None else time.monotonic() + seconds
        self._pause = BACKOFF_SECONDS_FIRST

    @property
    def left_seconds(self) -> float:
        return self._deadline - time.monotonic()

    def next_pause(self, error: ClientError) -> float:
        """How long to wait before the next attempt; raises the error where there is none."""
        if not is_tried_again(error) or self.left_seconds < self._pause:
            raise error
        pause, self._pause = self._pause, min(2 * self._pause, BACKOFF_SECONDS_MAX)
        return pause

    async def again(self, error: ClientError) -> None:
        await anyio.sleep(self.next_pause(error))
