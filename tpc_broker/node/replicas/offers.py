"""What a leader offers to fill a replica with, and whether what comes is that (`shipping`, `filling`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tpc_broker import limits
from tpc_broker.log.batch import LENGTH_PREFIX_BYTES
from tpc_broker.log.checkpoint import VOTE_NOTE, PartitionCheckpoint
from tpc_broker.log.files import CLEANED_SUFFIXES, LOG_SUFFIX, SEAL_SUFFIX, EpochStart, parse_segment_file_name
from tpc_broker.log.seals import SEAL_BYTES_MAX, SealedFile, cleaned_state
from tpc_broker.model import LeaderEpoch, Offset
from tpc_broker.native_bytes import find_batches_end
from tpc_broker.raft.items import Position
from tpc_broker.storage.segments.batch_ranges import missing
from tpc_broker.storage.segments.segments import Segment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpc_broker.log.seals import Seal
    from tpc_broker.native_bytes import Buffer
    from tpc_broker.storage.segments.partition_storage import PartitionStorage


class FillingFailedError(Exception):
    """What was fetched cannot be used, or not be fetched; the leader asks again."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the leader ships: a log that ends at `position`, which is committed, with the terms that belong to it."""

    shipment: str
    term: int
    position: Position
    starts: int
    epochs: tuple[EpochStart, ...]
    notes: dict[int, bytes]
    files: tuple[tuple[str, int], ...]
    removed_upto: int = 0
    """1 + the offset of the newest tombstone or marker that the leader has removed by cleaning."""
    lost: tuple[tuple[int, int], ...] | None = None
    """Where offsets are missing outside of cleaned segments, because a repair could not bring them back; None: it is
    not said.
    """

    @property
    def size_bytes(self) -> int:
        return sum(size for _name, size in self.files)

    @property
    def logs(self) -> list[int]:
        """Where its segments begin."""
        parsed = [parse_segment_file_name(name) for name, _size in self.files]
        return sorted(one[0] for one in parsed if one is not None and one[1] == LOG_SUFFIX)

    @property
    def seals(self) -> dict[int, str]:
        """Of those of its segments that were cleaned, by where these begin: the names of their files."""
        parsed = [(parse_segment_file_name(name), name) for name, _size in self.files]
        return {one[0]: name for one, name in sorted(parsed) if one is not None and one[1] == SEAL_SUFFIX}

    @property
    def in_order(self) -> list[tuple[str, int]]:
        """Its files but for seals: what lies beside the segments first, then their logs as they follow each other."""
        others = [file for file in self.files if not file[0].endswith(SEAL_SUFFIX)]
        return sorted(others, key=lambda file: (file[0].endswith(LOG_SUFFIX), file))

    @property
    def last_segment(self) -> Segment | None:
        """None: no segment is shipped."""
        *_before, (name, size) = self.in_order or [("", 0)]
        return Segment(self.logs[-1], size) if name.endswith(LOG_SUFFIX) else None

    @property
    def first_offset(self) -> int:
        """Of what is shipped."""
        return self.logs[0] if self.logs else self.position.offset

    # Rule: A replica that is filled keeps the front of its own log only if nothing was removed from what is shipped
    # behind it: a deletion that its leader has forgotten would not be there, and what it deleted would come back. What
    # counts is where the first shipped segment begins, and not how far the replica had come. Held by
    # tests/cluster/test_filling.py, tests/simulator/test_cleaned_replicas.py.
    def continues(self, first_own_offset: int, own_offset: int) -> bool:
        """Whether a log that begins at an offset, and ends at or behind another one, may keep what it has in front of
        what is shipped.
        """
        return first_own_offset < self.first_offset <= own_offset and self.first_offset >= self.removed_upto

    @classmethod
    def decode(cls, payload: dict[str, Any]) -> Offer:
        """FillingFailedError: that is none."""
        try:
            epoch, offset = payload["position"]
            markers = [(int(term), int(begins), bytes.fromhex(note)) for term, begins, note in payload["markers"]]
            files = tuple((str(name), int(size)) for name, size in payload["files"])
            offer = cls(
                str(payload["shipment"]), int(payload["term"]), Position(int(epoch), int(offset)),
                int(payload["starts"]),
                tuple(EpochStart(LeaderEpoch(term), Offset(begins)) for term, begins, _note in markers),
                {term: note for term, _begins, note in markers}, files,
                int(payload.get("removed_upto", 0)), _ranges(payload.get("lost")),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError) as error:
            raise FillingFailedError(f"the offer cannot be read: {error}") from error
        offer._check()
        return offer

    def _check(self) -> None:
        names = [name for name, _size in self.files]
        if len(names) > limits.SHIPPED_FILES_MAX or len(set(names)) != len(names):
            raise FillingFailedError(f"an offer of {len(names)} files")
        if any(parse_segment_file_name(name) is None or size < 0 for name, size in self.files):
            raise FillingFailedError("an offer of files that are no segment's")
        sizes = dict(self.files)
        if any(sizes[name] > SEAL_BYTES_MAX for name in self.seals.values()) or not set(self.seals) <= set(self.logs):
            raise FillingFailedError("an offer of seals that are none")
        if not 0 <= self.removed_upto <= self.position.offset:
            raise FillingFailedError(f"an offer up to {self.position} of what was cleaned up to {self.removed_upto}")
        last = self.epochs[-1].epoch if self.epochs else 0
        if not 0 < last == self.position.epoch or not 0 <= self.starts <= self.position.offset:
            raise FillingFailedError(f"an offer up to {self.position} with the epochs {self.epochs}")
        if self.term < self.position.epoch:
            raise FillingFailedError(f"term {self.term} offers what epoch {self.position.epoch} has written")

    def check_seals(self, seals: Mapping[int, Seal]) -> None:
        """FillingFailedError: they are not those of the segments that are offered."""
        ends = dict(zip(self.logs, [*self.logs[1:], self.position.offset], strict=True)) if self.logs else {}
        sizes = dict(self.files)
        for base, seal in seals.items():
            is_it = seal.base_offset == base and seal.end_offset == ends[base]
            if not is_it or seal.log.size_bytes != sizes[Segment(base).log_name]:
                raise FillingFailedError(f"the seal of segment {base} is of another one: {seal}")
        removed_upto = cleaned_state(seals.values()).removed_upto
        if removed_upto > self.removed_upto:
            raise FillingFailedError(f"it was cleaned up to {removed_upto} since it was offered")

    def gaps_in(self, base_offset: int, seals: Mapping[int, Seal]) -> tuple[tuple[int, int], ...] | None:
        """Where offsets may be missing in one of its logs; None: anywhere. Nobody vouches for what was there before the
        group was.
        """
        if base_offset in seals or self.lost is None:
            return None
        return (0, self.epochs[0].start_offset), *self.lost

    def state(self, settled: PartitionCheckpoint, own: PartitionStorage) -> PartitionCheckpoint:
        """The partition with these files, and the replica's own term and vote. What was deleted here since the offer
        was made stays so: the leader has been told (`log_starts`). That is committed, so it lies below `position`.
        """
        term = max(own.leader_epoch, self.term)
        notes = dict(self.notes)
        if term == own.leader_epoch and VOTE_NOTE in own.notes:
            notes[VOTE_NOTE] = own.notes[VOTE_NOTE]
        return replace(
            settled, leader_epoch=LeaderEpoch(term), epochs=self.epochs, notes=tuple(sorted(notes.items())),
            moves=own.moves + 1, log_start_offset=Offset(max(self.starts, own.log_start_offset)),
            commit_offset=Offset(self.position.offset),
        )  # fmt: skip


OFFSET_BYTES: Final = 8
"""With which a batch begins."""


def _ranges(said: Any) -> tuple[tuple[int, int], ...] | None:
    return None if said is None else tuple(sorted((int(first), int(end)) for first, end in said))


class LogCheck:
    """Whether bytes that come one after the other are whole batches of the right epochs, one behind the other.

    `whole`: of what came last the batches that are whole, one run behind the other, each with the offset behind it.
    They lie in the memory in which they came, but for one that came in pieces.
    """

    def __init__(
        self, base_offset: int, epochs: Sequence[EpochStart], gaps: Sequence[tuple[int, int]] | None = ()
    ) -> None:
        """`gaps`: ranges in which offsets may be missing, in order; None: anywhere."""
        self.next_offset = base_offset
        self.whole: list[tuple[Buffer, int]] = []
        self._epochs = epochs
        self._gaps = gaps
        self._rest = b""

    def take(self, data: Buffer) -> bool:
        """False: a batch is damaged, or they are none."""
        self.whole.clear()
        view = memoryview(data)
        view = view[self._end_begun(view) :]
        joined = self._rest + view if self._rest else view
        end, self.next_offset = self._batches_end(joined)
        self._rest = bytes(joined[end:])
        if end:
            self.whole.append((joined[:end], self.next_offset))
        return len(self._rest) <= limits.LINK_FRAME_BYTES_MAX

    def _end_begun(self, view: memoryview) -> int:
        """How many bytes belong to the batch that has begun before: only these are copied. 0: it goes on behind
        them, or is none.
        """
        prefix = self._rest[:LENGTH_PREFIX_BYTES]
        prefix += view[: LENGTH_PREFIX_BYTES - len(prefix)]
        if not self._rest or len(prefix) < LENGTH_PREFIX_BYTES:
            return 0
        lacking = LENGTH_PREFIX_BYTES + int.from_bytes(prefix[-4:], signed=True) - len(self._rest)
        if not 0 < lacking <= len(view):
            return 0
        batch = self._rest + view[:lacking]
        end, next_offset = self._batches_end(batch)
        if end < len(batch):
            return 0
        self._rest, self.next_offset = b"", next_offset
        self.whole.append((batch, next_offset))
        return lacking

    def _batches_end(self, data: Buffer) -> tuple[int, int]:
        """How many bytes are whole batches, and the offset behind the last one."""
        if self._gaps is None:
            return find_batches_end(data, self.next_offset, self._epochs)
        view, end, next_offset = memoryview(data), 0, self.next_offset
        while True:
            length, next_offset = find_batches_end(view[end:], next_offset, self._epochs, allow_gaps=False)
            end += length
            following = int.from_bytes(view[end : end + OFFSET_BYTES]) if len(view) - end >= OFFSET_BYTES else 0
            if following <= next_offset or missing(next_offset, following, self._gaps):
                return end, next_offset
            found, _offset = find_batches_end(view[end:], following, self._epochs, allow_gaps=False)
            if not found:
                return end, next_offset
            next_offset = following

    @property
    def is_whole(self) -> bool:
        return not self._rest


def sealed_file(name: str, seals: Mapping[int, Seal]) -> SealedFile | None:
    """What a file of a cleaned segment has to be; None: no seal says it."""
    parsed = parse_segment_file_name(name)
    seal = seals.get(parsed[0]) if parsed is not None else None
    if parsed is None or seal is None or parsed[1] not in CLEANED_SUFFIXES:
        return None
    return seal.files[CLEANED_SUFFIXES.index(parsed[1])]
