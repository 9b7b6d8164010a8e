"""The coordinators of a core's internal topics as the partitions know them, on whose leadership they depend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.model import TopicPartition


class CoordinatorsOfTopic(Protocol):
    """Of one internal topic (`coordinators.Coordinators`)."""

    @property
    def is_loading(self) -> bool: ...

    def begin_if_coordinates(self, key: TopicPartition) -> None:
        """A partition is led here."""

    def end(self, key: TopicPartition) -> None:
        """A partition is served here no more."""

    async def follow(self, before: ClusterImage, after: ClusterImage) -> None: ...

    async def prepare_drain(self) -> None:
        """Answer everybody who waits."""


class CoordinatorsOfCore:
    """Of all internal topics."""

    def __init__(self, *services: CoordinatorsOfTopic) -> None:
        self._services = services

    @property
    def is_loading(self) -> bool:
        return any(each.is_loading for each in self._services)

    def begin_if_coordinates(self, key: TopicPartition) -> None:
        for each in self._services:
            each.begin_if_coordinates(key)

    def end(self, key: TopicPartition) -> None:
        for each in self._services:
            each.end(key)

    async def follow(self, before: ClusterImage, after: ClusterImage) -> None:
        for each in self._services:
            await each.follow(before, after)

    async def prepare_drain(self) -> None:
        for each in self._services:
            await each.prepare_drain()
