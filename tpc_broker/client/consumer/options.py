"""What `Client.read` is told, checked and put together: a reader, a membership, a stream."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from tpc_broker.client.consumer.everything import LOOK_SECONDS, Everything
from tpc_broker.client.consumer.fetching import FetchSettings
from tpc_broker.client.consumer.reader import StreamReader
from tpc_broker.client.consumer.starts import StartLike, start_of
from tpc_broker.client.consumer.stock import Limits
from tpc_broker.client.consumer.stream import streaming
from tpc_broker.client.isolation import Isolation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from tpc_broker.client.consumer.stream import Stream
    from tpc_broker.client.net.fleet import Fleet

TopicsLike: TypeAlias = "str | Iterable[str] | re.Pattern[str]"
OnMissing: TypeAlias = Literal["raise", "earliest", "latest"]
IsolationLike: TypeAlias = Literal["read_committed", "read_uncommitted"]
_ISOLATIONS: Final = {
    "read_committed": Isolation.READ_COMMITTED,
    "read_uncommitted": Isolation.READ_UNCOMMITTED,
}
_POSITIVE: Final = (
    "fetch_bytes", "partition_bytes", "wait_seconds", "commit_seconds", "leave_seconds", "topics_seconds",
)  # fmt: skip
_UNITS: Final = {"": 1, "B": 1, "KIB": 1024, "MIB": 1024**2, "GIB": 1024**3, "KB": 1000, "MB": 1000**2, "GB": 1000**3}


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """As `Client.read` explains them."""

    start: StartLike = "earliest"
    isolation: IsolationLike = "read_committed"
    on_missing: OnMissing = "raise"
    memory: int | str = "64MiB"
    fetch_bytes: int = 16 * 1024 * 1024
    partition_bytes: int = 1024 * 1024
    wait_seconds: float = 0.5
    rack: str = ""
    commit_seconds: float = 5.0
    leave_seconds: float = 10.0
    topics_seconds: float = LOOK_SECONDS

    def __post_init__(self) -> None:
        if self.isolation not in _ISOLATIONS:
            raise ValueError(f"isolation is {self.isolation!r}: one of {', '.join(map(repr, _ISOLATIONS))}")
        if self.on_missing not in {"raise", "earliest", "latest"}:
            raise ValueError(f"on_missing is {self.on_missing!r}: one of 'raise', 'earliest', 'latest'")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: more than 0")
        start_of(self.start)
        bytes_of(self.memory)

    def fetch_settings(self) -> FetchSettings:
        limits = Limits(bytes_of(self.memory), self.fetch_bytes, self.partition_bytes)
        isolation = _ISOLATIONS[self.isolation]
        return FetchSettings(isolation, self.wait_seconds, self.on_missing, self.rack, limits)


def bytes_of(said: int | str) -> int:
    """``"64MiB"``, ``"1GB"`` or a number of bytes. `ValueError` for what is none, or less than 64 KiB."""
    if isinstance(said, str):
        found = re.fullmatch(r"\s*(\d+)\s*([A-Za-z]*)\s*", said)
        if found is None or found[2].upper() not in _UNITS:
            raise ValueError(f"memory is {said!r}: a number of bytes, or one with KiB, MiB, GiB behind it")
        said = int(found[1]) * _UNITS[found[2].upper()]
    if said < 64 * 1024:
        raise ValueError(f"memory is {said} bytes: at least 64 KiB")
    return said


@asynccontextmanager
async def reading(fleet: Fleet, topics: TopicsLike, options: ReadOptions) -> AsyncIterator[Stream]:
    reader = StreamReader(fleet, options.fetch_settings(), start_of(options.start))
    named = [topics] if isinstance(topics, str) else topics
    chosen = named if isinstance(named, re.Pattern) else list(dict.fromkeys(named))
    membership = Everything(fleet, reader, chosen, options.topics_seconds)
    await membership.begin()
    seconds = {"commit_seconds": options.commit_seconds, "leave_seconds": options.leave_seconds}
    async with streaming(reader, membership, **seconds) as stream:
        yield stream
