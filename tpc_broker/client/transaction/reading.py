"""What was read and is done within a transaction, and the streams that it came from.

What is done is *held*: the stream goes on, but its position stays before it, and nothing behind that is committed by
the stream itself. When the transaction is committed the position moves; when it is aborted the stream hands out again
what was held.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.requests import TopicPartition
from tpc_broker.client.values import Batch, Record
from tpc_broker.client.work.batches import WorkBatch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tpc_broker.client.consumer.partitions import Partition
    from tpc_broker.client.consumer.ports import GroupIdentity

Doable: TypeAlias = "Batch | WorkBatch | Record | Mapping[TopicPartition, int | Position]"


class Ledger(Protocol):
    """Of a stream's reader."""

    def is_held(self, where: TopicPartition) -> bool: ...

    def hold(self, where: TopicPartition, first_offset: int | None, after: int | None) -> Partition:
        """Let a transaction have what was handed out from this offset on (None: from the oldest on). ``after``: up to
        where it has it already. `ValueError`: that is not what comes next, or not under way.
        """

    def is_held_still(self, held: Partition) -> bool:
        """Whether it is read without a break since."""

    def commit_held(self, held: Partition, next_offset: int) -> None: ...

    def take_back_held(self, held: Partition) -> None: ...


class Readable(Protocol):
    """A stream."""

    @property
    def identity(self) -> GroupIdentity | None: ...

    @property
    def ledger(self) -> Ledger: ...


class Held(NamedTuple):
    partition: Partition
    position: Position


class Readings:
    """Of one transaction. ``streams``: all of the client, as they are at any moment."""

    def __init__(self, streams: Collection[Readable]) -> None:
        self._streams = streams
        self._held: dict[int, tuple[Readable, dict[TopicPartition, Held]]] = {}

    def done(self, what: Doable, stream: Readable | None) -> None:
        for where, first_offset, position in _extents(what):
            found = self._stream_of(where) if stream is None else stream
            if found.identity is None:
                raise ValueError(f"{where} is read without a group: there is nothing to commit its offset in")
            _stream, held = self._held.setdefault(id(found), (found, {}))
            before = held.get(where)
            if before is not None and not found.ledger.is_held_still(before.partition):
                raise ValueError(f"{where} went to another member of the group since: the transaction cannot have it")
            after = None if before is None else before.position.offset
            held[where] = Held(found.ledger.hold(where, first_offset, after), position)

    def _stream_of(self, where: TopicPartition) -> Readable:
        found = [stream for stream in self._streams if stream.ledger.is_held(where)]
        if len(found) != 1:
            several = f"{len(found)} streams of this client read" if found else "no stream of this client reads"
            raise ValueError(f"{several} {where}: say which one is meant by stream=")
        return found[0]

    def parts(self) -> Iterator[tuple[Readable, dict[TopicPartition, Held]]]:
        """By stream, of which two may be of one group."""
        yield from self._held.values()

    def committed(self) -> None:
        for stream, held in self._held.values():
            for one in held.values():
                stream.ledger.commit_held(one.partition, one.position.offset)
        self._held.clear()

    def aborted(self) -> None:
        for stream, held in self._held.values():
            for one in held.values():
                stream.ledger.take_back_held(one.partition)
        self._held.clear()


def _extents(what: Doable) -> Iterator[tuple[TopicPartition, int | None, Position]]:
    """Of each partition the first offset, where it is known, and where to read on."""
    if isinstance(what, Batch | WorkBatch):
        last = what.records[-1]
        yield what.where, what.records[0].offset, Position(what.next_offset, last.leader_epoch)
    elif isinstance(what, Record):
        yield TopicPartition(what.topic, what.partition), what.offset, Position(what.offset + 1, what.leader_epoch)
    elif isinstance(what, Mapping):
        for where, position in what.items():
            yield where, None, Position(position) if isinstance(position, int) else position
    else:
        raise TypeError(f"a Batch, a Record or positions by partition are expected, not {type(what).__name__}")
