"""Groups that are new, and whose preferred leader is here: it need not wait for an election's time, since nobody else
leads them.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver
    from tpc_broker.storage.ports import Clock

STAND_EVERY_S: Final = 0.1
STAND_TIMES_MAX: Final = 20


class NewGroups:
    """Of one core, touched by its thread only."""

    def __init__(self, driver: ReplicaDriver, clock: Clock) -> None:
        self._driver = driver
        self._clock = clock
        self._at_once = 4 * driver.core.settings.elections_max
        """Of new groups, the first ones: the others' turn has not come."""
        self._times: dict[str, int] = {}
        """How often each may still stand."""
        self._came = trio.Event()

    def add(self, group: str) -> None:
        self._times[group] = STAND_TIMES_MAX
        self._came.set()

    def remove(self, group: str) -> None:
        """No effect on one that is not new."""
        self._times.pop(group, None)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._times:
                self._came = trio.Event()
                await self._came.wait()
            await trio.sleep(STAND_EVERY_S)
            now_ms = self._clock.monotonic_ms()
            for group, times in list(islice(self._times.items(), self._at_once)):
                machine = self._driver.core.groups.get(group)
                if machine is None or machine.term or machine.leader is not None or machine.yields or not times:
                    self._times.pop(group, None)
                    continue
                self._times[group] = times - 1
                self._driver.core.stand_at_once(group, now_ms)
            self._driver.wake()
