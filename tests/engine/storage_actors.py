"""A core's storage with several partitions, what was promised of each, and the operations that a broker asks of it.

What was promised is checked in what a crash at that moment would leave (`check_crash`). `OPERATIONS` are those that
`test_storage_faults` disturbs.
"""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import uuid
from typing import TYPE_CHECKING, Any, Final

import trio

from tests.engine.in_place_core import Bench, held
from tests.log.log_batches import batch
from tests.support.crash_copy import copy_as_crashed
from tests.support.waiting import PATIENCE_S
from tpc_broker.errors import PartitionOfflineError, StorageFailedError
from tpc_broker.model import CoreId, PartitionIndex, TopicId, TopicPartition
from tpc_broker.storage.recovery.recovery import recover_core

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tpc_broker.broker.ports import AppendResult
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

REFUSALS: Final = (PartitionOfflineError, StorageFailedError, OSError)
"""What an operation may end with while something fails."""
ANYWHERE: Final = 1 << 60


@dataclasses.dataclass
class Promised:
    """One partition. `asked` may be there or not; `acknowledged` has to be, from `log_start` on."""

    topic: str
    key: TopicPartition
    files: PartitionStorage | None = None
    handle: int = 0
    acknowledged: dict[int, bytes] = dataclasses.field(default_factory=dict)
    asked: dict[int, list[bytes]] = dataclasses.field(default_factory=dict)
    log_start: int = 0
    log_start_asked: int = 0
    is_deleted: bool = False


class Actors(Bench):
    """The bench, with partitions of its own; `main` is never deleted, `other` is, and comes again."""

    async def open(self) -> None:
        self.config = self.make_config()
        self._numbers = itertools.count(1000)
        self.parts: list[Promised] = []
        self.main = await self.create("main")
        self.other = await self.create("other")

    # -- what the broker asks ---------------------------------------------------------------------------------------

    async def create(self, topic: str) -> Promised:
        key = TopicPartition(TopicId(uuid.UUID(int=next(self._numbers))), PartitionIndex(0))
        one = Promised(topic, key)
        self.parts.append(one)
        await self.open_part(one)
        return one

    async def open_part(self, one: Promised) -> None:
        files = await self.storage.open(one.key, one.topic, self.config)
        await self.storage.begin_epoch(files)
        one.handle = self.storage.register(files, self.config, is_internal=False)
        one.files = files

    def append_nowait(self, one: Promised, value_bytes: int) -> tuple[AppendResult, bytes] | None:
        """With its bytes; None: there is no room, or the journal does not work."""
        data = batch(0, [self.chooser.randbytes(value_bytes)], epoch=one.files.leader_epoch)
        try:
            result = self.plane.append(one.handle, data)
        except PartitionOfflineError:
            return None
        if result is None:
            return None
        one.asked.setdefault(result.base_offset, []).append(data[21:])
        return result, data[21:]

    async def append_to(self, one: Promised, value_bytes: int, count: int = 1) -> None:
        for _ in range(count):
            await self.storage.make_room(one.files, one.handle, value_bytes + 200)
            appended = self.append_nowait(one, value_bytes)
            if appended is None:
                raise PartitionOfflineError("not taken")
            result, data = appended
            await self.plane.wait_committed(one.handle, result.end_offset, result.leader_epoch)
            one.acknowledged[result.base_offset] = data

    async def trim(self, one: Promised, offset: int) -> None:
        one.log_start_asked = max(one.log_start_asked, offset)
        await self.storage.set_log_start(one.handle, offset)
        one.log_start = max(one.log_start, offset)

    async def delete(self, one: Promised) -> None:
        one.is_deleted = True
        await self.storage.delete(one.files, one.handle)

    # -- after trouble ----------------------------------------------------------------------------------------------

    async def mend(self) -> None:
        """As the maintenance does, until all is well; it has to become so."""
        with trio.fail_after(PATIENCE_S):
            while not (await self.storage.mend_once() and await self.storage.checkpoint()):
                await trio.sleep(0.01)
            for one in self.parts:
                while one.files is None and not one.is_deleted:
                    try:
                        await self.open_part(one)
                    except REFUSALS:
                        await trio.sleep(0.01)

    def settled(self) -> None:
        """The cuts of what failed are durable: what was not acknowledged is not there any more."""
        for one in self.parts:
            one.asked = {offset: [data] for offset, data in one.acknowledged.items()}
            if one.files is not None and not one.is_deleted:
                one.log_start = one.log_start_asked = self.plane.bounds(one.handle).log_start_offset

    # -- what was promised ------------------------------------------------------------------------------------------

    async def check_crash(self) -> None:
        """A crash now loses nothing, invents nothing, and takes nothing offline."""
        data = self.main.files.folder.path.parents[1]
        copy = data.with_name(f"crashed-{next(self._numbers)}")
        copy_as_crashed(data, copy)
        recovered = await recover_core(self.core.disk, copy, CoreId(0), new_journal_id=bytes(16))
        try:
            for one in self.parts:
                await self._check(one, recovered)
        finally:
            await recovered.close()
            shutil.rmtree(copy)

    async def _check(self, one: Promised, recovered: Any) -> None:
        if one.is_deleted:
            return
        assert one.key not in recovered.offline, recovered.offline[one.key].reason
        storage = recovered.storages.get(one.key)
        if storage is None:
            assert not one.acknowledged, f"{one.topic} is gone"
            return
        assert one.log_start <= storage.log_start_offset <= max(one.log_start, one.log_start_asked)
        found = await held(storage)
        wanted = {offset: data for offset, data in one.acknowledged.items() if offset >= storage.log_start_offset}
        lost = [offset for offset, data in wanted.items() if found.get(offset) != data]
        assert not lost, f"{one.topic}: lost {lost}"
        invented = [
            offset for offset, data in found.items()
            if offset >= storage.log_start_offset and data not in one.asked.get(offset, [])
        ]  # fmt: skip
        assert not invented, f"{one.topic}: {invented} were never appended"


# -- operations -------------------------------------------------------------------------------------------------------


async def _create(actors: Actors) -> None:
    await actors.create(f"made-{len(actors.parts)}")


async def _delete(actors: Actors) -> None:
    one = actors.other
    await actors.append_to(one, 500)
    await actors.delete(one)


async def _delete_records(actors: Actors) -> None:
    await actors.trim(actors.main, max(actors.main.acknowledged))


async def _delete_all_records(actors: Actors) -> None:
    await actors.trim(actors.other, actors.plane.bounds(actors.other.handle).high_watermark)


async def _retention(actors: Actors) -> None:
    files = actors.main.files
    files.settings = dataclasses.replace(files.settings, retention_bytes=1)
    try:
        await files.roll()
        await actors.append_to(actors.main, 300)
        actors.main.log_start_asked = ANYWHERE
        await actors.storage.retain(files, actors.main.handle, 0)
    finally:
        files.settings = dataclasses.replace(files.settings, retention_bytes=-1)


async def _roll(actors: Actors) -> None:
    await actors.append_to(actors.main, 300, 2)
    await actors.main.files.roll()
    await actors.append_to(actors.main, 300)


async def _checkpoint(actors: Actors) -> None:
    await actors.append_to(actors.main, 2000, 2)
    await actors.append_to(actors.other, 2000)
    await actors.storage.checkpoint()


async def _write_behind(actors: Actors) -> None:
    await actors.append_to(actors.main, 300_000, 2)
    await actors.storage.write_behind(all_of_it=False)
    await actors.storage.write_behind()


async def _group_commit(actors: Actors) -> None:
    async with trio.open_nursery() as nursery:
        for one in (actors.main, actors.other):
            nursery.start_soon(actors.append_to, one, 700, 3)


async def _alter(actors: Actors) -> None:
    actors.storage.alter(actors.main.files, actors.main.handle, actors.config, is_internal=False)
    await actors.append_to(actors.main, 100)


async def _mend(actors: Actors) -> None:
    await actors.append_to(actors.main, 3000, 2)
    await actors.storage.write_behind()
    await actors.append_to(actors.main, 3000)
    actors.main.files.fail("for a test")
    await actors.storage.mend_once()


OPERATIONS: Final[dict[str, Callable[[Actors], Awaitable[None]]]] = {
    "create": _create, "delete": _delete, "delete records": _delete_records, "delete all records": _delete_all_records,
    "retention": _retention, "roll": _roll, "checkpoint": _checkpoint, "write behind": _write_behind,
    "group commit": _group_commit, "alter": _alter, "mend": _mend,
}  # fmt: skip
