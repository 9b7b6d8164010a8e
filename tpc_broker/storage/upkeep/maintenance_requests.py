"""What one part of a core's storage asks of another that runs as a task of its own.

The parts call each other in one direction only: who asks does not know who answers. Asking is never lost and never
waits; asked for twice before it is begun, a thing is done once.
"""

from __future__ import annotations

import trio


class MaintenanceRequest:
    """Something to be done as soon as may be."""

    def __init__(self) -> None:
        self._asked = trio.Event()

    def ask(self) -> None:
        """Do it, once more if it is being done now."""
        self._asked.set()

    async def wait(self) -> None:
        """Until it is asked for; from here on it counts as begun."""
        await self._asked.wait()
        self._asked = trio.Event()


class MaintenanceRequests:
    """Of one core's storage."""

    def __init__(self) -> None:
        self.checkpoint = MaintenanceRequest()
        self.mend = MaintenanceRequest()
        """The journal or a partition has failed, or a deletion is left to do."""
