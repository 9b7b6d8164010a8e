"""Names of files and folders under the data folder, and the two small text files of a partition.

    topics/<topic>-<partition>/   00000000000000000000.log .index .timeindex .txnindex .snapshot .seal
                                  leader-epoch-checkpoint   partition.metadata
    journals/                     <core, 4 digits>.journal .checkpoint

Segment names and the text files are Kafka's (Kafka 4.3), so its own tools read a partition folder; the seal of a
cleaned segment is ours (`log.seals`). A name that is not exactly of this form is not ours and is left alone.
"""

from __future__ import annotations

import base64
import re
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.model import CoreId, LeaderEpoch, Offset, PartitionIndex, TopicId

if TYPE_CHECKING:
    from collections.abc import Sequence

LOG_SUFFIX: Final = ".log"
INDEX_SUFFIX: Final = ".index"
TIME_INDEX_SUFFIX: Final = ".timeindex"
TRANSACTION_INDEX_SUFFIX: Final = ".txnindex"
SNAPSHOT_SUFFIX: Final = ".snapshot"
SEAL_SUFFIX: Final = ".seal"
"""Of a segment that was cleaned (`log.seals`)."""
SEGMENT_SUFFIXES: Final = (
    LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, SNAPSHOT_SUFFIX, SEAL_SUFFIX,
)  # fmt: skip
CLEANED_SUFFIXES: Final = SEGMENT_SUFFIXES[:4]
"""Of the files that the cleaner makes anew."""

DELETED_SUFFIX: Final = ".deleted"
"""A file that is to be removed once readers are done with it."""

TEMPORARY_SUFFIX: Final = ".tmp"
"""A file that is being written and has no meaning until it is renamed."""

HANDOVER_FILE: Final = "handover"
"""Beside the journals: partitions were being handed to other cores."""
SPARE_FILE: Final = "next-segment.spare"
"""Disk space that is reserved for a partition's next segment; the roll gives it its name."""

EPOCHS_FILE: Final = "leader-epoch-checkpoint"
LOSSES_FILE: Final = "lost-records"
"""In a partition's folder: ranges of offsets that a repair could not bring back: nobody looks for them again."""
PARTITION_METADATA_FILE: Final = "partition.metadata"
DELETED_FOLDER_SUFFIX: Final = "-delete"

_SEGMENT_NAME: Final = re.compile(r"(\d{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot|\.seal)")
_CLEANED_NAME: Final = re.compile(r"(\d{20}\.(?:log|index|timeindex|txnindex))\.cleaned-([0-9a-f]{16})")
_FOLDER_NAME: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9]\d{0,9})")
_JOURNAL_NAME: Final = re.compile(r"(\d{4})\.journal")
_CHECKPOINT_NAME: Final = re.compile(r"(\d{4})\.checkpoint")


class TextFileError(ValueError):
    """One of the small text files does not say what it should; the message names the line."""


class EpochStart(NamedTuple):
    """The first offset that was (or would be) written under a leader epoch."""

    epoch: LeaderEpoch
    start_offset: Offset


def segment_file_name(base_offset: int, suffix: str) -> str:
    """`00000000000000000042.log`."""
    assert 0 <= base_offset < 2**63, base_offset
    return f"{base_offset:020d}{suffix}"


def parse_segment_file_name(name: str) -> tuple[Offset, str] | None:
    """Base offset and suffix, None when the name is something else."""
    match = _SEGMENT_NAME.fullmatch(name)
    if match is None or int(match[1]) >= 2**63:
        return None
    return Offset(int(match[1])), match[2]


def cleaned_file_name(name: str, generation: str) -> str:
    """Under which the cleaner writes what is to replace a segment's file: `00000000000000000042.log.cleaned-<hex>`."""
    return f"{name}.cleaned-{generation}"


def parse_cleaned_file_name(name: str) -> tuple[str, str] | None:
    """The file that is to be replaced, and the generation; None when the name is something else."""
    match = _CLEANED_NAME.fullmatch(name)
    return (match[1], match[2]) if match else None


def partition_folder_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_partition_folder_name(name: str) -> tuple[str, PartitionIndex] | None:
    """Topic and partition, None when the name is something else (a deleted folder, a stranger's)."""
    match = _FOLDER_NAME.fullmatch(name)
    if match is None or int(match[2]) >= 2**31:
        return None
    return match[1], PartitionIndex(int(match[2]))


def deleted_folder_name(topic: str, partition: int, unique: str) -> str:
    """The name a deleted partition's folder waits under. `unique` keeps two deletions of one name apart.

    The result never parses as a partition's folder. Topic names may be as long as a file name, so the topic is cut.
    """
    tail = f"-{partition}.{unique}{DELETED_FOLDER_SUFFIX}"
    return topic[: 255 - len(tail)] + tail


def journal_file_name(core: CoreId) -> str:
    return f"{core:04d}.journal"


def journal_lock_name(core: CoreId) -> str:
    return f"{core:04d}.lock"


def checkpoint_file_name(core: CoreId) -> str:
    return f"{core:04d}.checkpoint"


def handed_file_prefix(core: CoreId) -> str:
    """Of the files beside a journal that its entries name (`storage.recovery.handed_producers`)."""
    return f"{core:04d}.handed-"


def handed_file_name(core: CoreId, unique: str) -> str:
    return handed_file_prefix(core) + unique


def parse_journal_file_name(name: str) -> CoreId | None:
    match = _JOURNAL_NAME.fullmatch(name)
    return CoreId(int(match[1])) if match else None


def parse_checkpoint_file_name(name: str) -> CoreId | None:
    match = _CHECKPOINT_NAME.fullmatch(name)
    return CoreId(int(match[1])) if match else None


def encode_topic_id(topic_id: TopicId) -> str:
    """Kafka's text form of an id: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def decode_topic_id(text: str) -> TopicId:
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
        return TopicId(uuid.UUID(bytes=raw))
    except ValueError as error:
        raise TextFileError(f"no topic id: {text!r}") from error


def encode_partition_metadata(topic_id: TopicId) -> bytes:
    """`partition.metadata`, version 0."""
    return f"version: 0\ntopic_id: {encode_topic_id(topic_id)}".encode()


def decode_partition_metadata(data: bytes) -> TopicId:
    lines = dict(line.split(": ", 1) for line in data.decode("utf-8", "replace").splitlines() if ": " in line)
    if lines.get("version") != "0":
        raise TextFileError(f"{PARTITION_METADATA_FILE}: version {lines.get('version')!r}, known is '0'")
    if "topic_id" not in lines:
        raise TextFileError(f"{PARTITION_METADATA_FILE}: no line topic_id")
    return decode_topic_id(lines["topic_id"])


def encode_losses(losses: Sequence[tuple[int, int]]) -> bytes:
    """`lost-records`: a line with the first offset and the one behind the last for each range."""
    return "".join(f"{first} {end}\n" for first, end in losses).encode()


def decode_losses(data: bytes) -> list[tuple[int, int]]:
    """The ranges; what cannot be read counts as nothing, because it only keeps a scrub from telling of them again."""
    found = []
    for line in data.decode("utf-8", "replace").splitlines():
        first, _, end = line.partition(" ")
        if first.isdecimal() and end.isdecimal():
            found.append((int(first), int(end)))
    return found


def encode_epochs(epochs: Sequence[EpochStart]) -> bytes:
    """`leader-epoch-checkpoint`, version 0: the version, the number of lines, `epoch start_offset` each. Of epochs that
    begin at the same offset Kafka knows only the last one.
    """
    entries = list({entry.start_offset: entry for entry in epochs}.values())
    lines = [f"{entry.epoch} {entry.start_offset}" for entry in entries]
    return "\n".join(["0", str(len(lines)), *lines, ""]).encode()
