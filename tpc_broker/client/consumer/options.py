"""What `Client.read` is told, checked and put together: a reader, a membership, a stream."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from tpc_broker.client.consumer.fetching import FetchSettings
from tpc_broker.client.consumer.reader import StreamReader
from tpc_broker.client.consumer.starts import StartLike, position_of, start_of
from tpc_broker.client.consumer.stock import Limits
from tpc_broker.client.consumer.stream import streaming
from tpc_broker.client.isolation import Isolation
from tpc_broker.client.membership.by_hand import HandMembership
from tpc_broker.client.membership.group import GroupMembership
from tpc_broker.client.membership.settings import GroupSettings, checked_subscription
from tpc_broker.client.producer.settings import bytes_of
from tpc_broker.client.requests import TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from tpc_broker.client.consumer.ports import Membership, Position
    from tpc_broker.client.consumer.stream import Stream
    from tpc_broker.client.membership.settings import Subscription
    from tpc_broker.client.net.fleet import Fleet
    from tpc_broker.client.work.policies import Send

AssignmentLike: TypeAlias = "Mapping[TopicPartition, Position | int | Literal['earliest', 'latest'] | None]"
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
MEMORY_BYTES_MIN: Final = 64 * 1024


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
    topics_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.isolation not in _ISOLATIONS:
            raise ValueError(f"isolation is {self.isolation!r}: one of {', '.join(map(repr, _ISOLATIONS))}")
        if self.on_missing not in {"raise", "earliest", "latest"}:
            raise ValueError(f"on_missing is {self.on_missing!r}: one of 'raise', 'earliest', 'latest'")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}: more than 0")
        start_of(self.start)
        if bytes_of(self.memory) < MEMORY_BYTES_MIN:
            raise ValueError(f"memory is {self.memory}: at least 64 KiB")

    def fetch_settings(self) -> FetchSettings:
        limits = Limits(bytes_of(self.memory), self.fetch_bytes, self.partition_bytes)
        isolation = _ISOLATIONS[self.isolation]
        return FetchSettings(isolation, self.wait_seconds, self.on_missing, self.rack, limits)


class Chosen(NamedTuple):
    """What is read: topics or an assignment, one of the two."""

    topics: TopicsLike | None
    assignment: AssignmentLike | None
    group: str | GroupSettings | None

    def subscription(self) -> Subscription:
        topics = self.topics
        if isinstance(topics, re.Pattern):
            return checked_subscription((), topics.pattern)
        return checked_subscription((topics,) if isinstance(topics, str) else tuple(topics or ()), None)

    def settings(self, options: ReadOptions) -> GroupSettings | None:
        group = self.group
        if isinstance(group, str):
            group = GroupSettings(group, topics_seconds=options.topics_seconds)
        return replace(group, rack=group.rack or options.rack) if group is not None else None

    def membership(self, fleet: Fleet, reader: StreamReader, options: ReadOptions) -> Membership:
        """`ValueError` for what cannot be read."""
        if (self.topics is None) == (self.assignment is None):
            raise ValueError("either topics or an assignment")
        settings = self.settings(options)
        if self.assignment is not None:
            positions = {_place(where): position_of(said) for where, said in _rows(self.assignment)}
            return HandMembership(fleet, reader, positions, settings)
        if settings is not None:
            return GroupMembership(fleet, reader, self.subscription(), settings)
        return HandMembership(fleet, reader, self.subscription(), None, options.topics_seconds)


def _rows(assignment: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(assignment, Mapping):
        kind = type(assignment).__name__
        raise TypeError(f"an assignment is a mapping of partitions to where each begins, not {kind}")
    return assignment.items()


def _place(where: Any) -> TopicPartition:
    """Pairs of a name and a number will do."""
    match where:
        case (str() as topic, int() as partition):
            return TopicPartition(topic, partition)
    raise TypeError(f"an assignment is of TopicPartition(name, number), not {where!r}")


@asynccontextmanager
async def reading(fleet: Fleet, chosen: Chosen, options: ReadOptions, send: Send) -> AsyncIterator[Stream]:
    """``send``: for dead letters."""
    reader = StreamReader(fleet, options.fetch_settings(), start_of(options.start))
    membership = chosen.membership(fleet, reader, options)
    seconds = {"commit_seconds": options.commit_seconds, "leave_seconds": options.leave_seconds}
    async with streaming(reader, membership, send, **seconds) as stream:
        yield stream
