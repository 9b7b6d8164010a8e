"""One partition of a source as a source of its own, so that what handles many partitions handles one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from tpc_broker.client.consumer.ports import Source, Watcher
    from tpc_broker.client.requests import TopicPartition
    from tpc_broker.client.values import Batch


class OnePartition:
    """A `Source` with one `Watcher` at most, which hears of this partition alone: of others it would say what it does
    not know.
    """

    def __init__(self, source: Source, where: TopicPartition) -> None:
        self._source = source
        self._where = where
        self._watcher: Watcher | None = None

    # -- `Source` -----------------------------------------------------------------------------------------------------

    def held(self) -> Collection[TopicPartition]:
        return [self._where] if self._source.is_held(self._where) else []

    def watch(self, watcher: Watcher) -> None:
        assert self._watcher is None, "one part is watched by one front"
        self._watcher = watcher
        self._source.watch(self)

    def unwatch(self, watcher: Watcher) -> None:
        del watcher
        self._watcher = None
        self._source.unwatch(self)

    def keep(self, where: TopicPartition) -> None:
        self._source.keep(where)

    def let_go(self, where: TopicPartition) -> None:
        self._source.let_go(where)

    async def take(self, records_max: int | None = None, among: Collection[TopicPartition] | None = None) -> Batch:
        assert among is None or self._where in among, "taken among others"
        return await self._source.take(records_max, (self._where,))

    def finish(self, where: TopicPartition, next_offset: int) -> None:
        self._source.finish(where, next_offset)

    def give_back(self, where: TopicPartition, offset: int) -> None:
        self._source.give_back(where, offset)

    def is_held(self, where: TopicPartition) -> bool:
        return self._source.is_held(where)

    async def commit(self) -> None:
        await self._source.commit()

    # -- `Watcher` ----------------------------------------------------------------------------------------------------

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """When it comes again it is another part's."""

    def revoking(self, partitions: Collection[TopicPartition]) -> None:
        if self._watcher is not None and self._where in partitions:
            self._watcher.revoking([self._where])

    def gone(self, partitions: Collection[TopicPartition]) -> None:
        if self._watcher is not None and self._where in partitions:
            self._watcher.gone([self._where])

    def taken_back(self, where: TopicPartition, offset: int) -> bool:
        return self._watcher is not None and where == self._where and self._watcher.taken_back(where, offset)

    def under_way(self) -> dict[TopicPartition, tuple[int, float]]:
        return {} if self._watcher is None else self._watcher.under_way()
