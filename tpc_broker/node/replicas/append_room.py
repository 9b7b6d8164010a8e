"""What leaders have sent waits here for segment space, in front of the machine.

The journal's sequences of a core are one row over all its groups (`raft/core.py`): an entry that cannot be written
holds back what the core says of every other group, its acknowledgements and its own part of their quorums, and after
`disk_hangs_ms` all its leaderships end. So the machine is given no append that has no room yet. To the machine one
that comes late is nothing new, and what is dropped its leader sends again.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, Final, Protocol

import trio

from tpc_broker.errors import PartitionOfflineError
from tpc_broker.raft.items import Batch
from tpc_broker.raft.journal import AppendEntry
from tpc_broker.raft.messages import AppendEntries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.journal import JournalEntry
    from tpc_broker.raft.messages import Frame, Message
    from tpc_broker.storage.journalled_storage import JournalledStorage
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

RETRY_S: Final = 0.5


class Replica(Protocol):
    """`entries`: those that are not in the journal yet."""

    @property
    def handle(self) -> int: ...
    @property
    def files(self) -> PartitionStorage: ...
    @property
    def entries(self) -> deque[tuple[int, JournalEntry]]: ...


# Rule: The machine is given no append that the journal cannot take for want of segment space: it would hold back what
# the core says of all other groups. Held by tests/node/test_replica_driver.py.
class AppendRoom:
    """Of one core. `inbox`: the frames that its driver will hear, before which goes what has waited; how to wake it."""

    def __init__(
        self,
        core: RaftCore,
        plane: RingDataPlane,
        storage: JournalledStorage,
        replicas: Mapping[str, Replica],
        inbox: tuple[deque[Frame], Callable[[], None]],
    ) -> None:
        self._core = core
        self._plane = plane
        self._storage = storage
        self._replicas = replicas
        self._inbox, self._wake = inbox
        self._waiting: dict[str, deque[Frame]] = {}
        """By group, in their order: one message in each frame. A task works on each group."""
        self._waiting_bytes: Counter[str] = Counter()
        self._passed: Counter[str] = Counter()
        """Bytes that this turn has let through: their entries come at its end."""

    def begin_turn(self) -> None:
        """All that was let through is in the replicas' entries, or in the data plane."""
        self._passed.clear()

    def waits(self, group: str) -> bool:
        return group in self._waiting

    def let_through(self, frame: Frame, tasks: trio.Nursery) -> Frame:
        """A frame without the appends that have to wait."""
        passed: list[Message] = []
        for message in frame.messages:
            if type(message) is not AppendEntries or self._passes(message):
                passed.append(message)
            else:
                self._keep(frame._replace(messages=(message,)), str(message.group), tasks)
        return frame if len(passed) == len(frame.messages) else frame._replace(messages=tuple(passed))

    def _passes(self, message: AppendEntries) -> bool:
        group, size = str(message.group), _size(message)
        replica = self._replicas.get(group)
        if replica is None:
            return True
        if group in self._waiting:
            return False
        if not size:
            return True
        needed = size + self._on_its_way(group, replica)
        try:
            has_room = self._plane.state(replica.handle).bytes_admitted >= needed or not self._lacks(group, message)
        except PartitionOfflineError:
            return True
        if has_room:
            self._passed[group] += size
        return has_room

    def _on_its_way(self, group: str, replica: Replica) -> int:
        waiting = [entry for _number, entry in replica.entries if isinstance(entry, AppendEntry)]
        return self._passed[group] + sum(batch.length for entry in waiting for batch in entry.batches)

    def _lacks(self, group: str, message: AppendEntries) -> bool:
        """Whether some of it is not in the log yet: what is there needs no room, and its leader an answer."""
        machine_log = self._core.look(group).log
        return not all(machine_log.contains(item.position) for item in message.items)

    def _keep(self, frame: Frame, group: str, tasks: trio.Nursery) -> None:
        """Or drop it. What is kept is bounded for each group, and for all of them: their disk may hang. Room is made
        also for what is dropped: its leader sends it again, and may not find it in the way of others once more.
        """
        size, settings = sum(map(_size, frame.messages)), self._core.settings
        waiting = self._waiting.get(group)
        if waiting is None:
            waiting = self._waiting[group] = deque()
            tasks.start_soon(self._make, group, size, waiting)
        if self._waiting_bytes.total() + size > settings.link_inflight_bytes_max:
            return
        fits = self._waiting_bytes[group] + size <= settings.inflight_bytes_max
        if not waiting or (fits and len(waiting) < settings.inflight_messages_max):
            waiting.append(frame)
            self._waiting_bytes[group] += size

    async def _make(self, group: str, size: int, waiting: deque[Frame]) -> None:
        """For the first, of `size`: where space is short, what is behind it must not keep it out."""
        replica = self._replicas.get(group)
        try:
            if replica is not None:
                needed = size + self._on_its_way(group, replica)
                await self._storage.make_replica_room(replica.files, replica.handle, needed)
        except (PartitionOfflineError, OSError) as error:  # of a full disk the storage tells, once
            log.debug("%s: what its leader has sent is dropped: %s", group, error)
            await trio.sleep(RETRY_S)
            waiting.clear()
        del self._waiting[group], self._waiting_bytes[group]
        self._inbox.extendleft(reversed(waiting))
        self._wake()


def _size(message: Message) -> int:
    items = message.items if isinstance(message, AppendEntries) else ()
    return sum(item.length for item in items if isinstance(item, Batch))
