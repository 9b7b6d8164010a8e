"""Replicas whose files are damaged are given up, and begin anew from another one.

What is damaged: partitions that could not be opened at the start, or be mended, and those in whose segments a scrub has
found what this core finds too when it looks. A replica with damage is not what its group counts it for, so it does not
go on under the same identity: its leader is asked to do without it. The leader does, when those that are left are a
majority that lacks nothing, by a record of the metadata: the node's replica has another *life* from then on
(`metadata.replica_moves`). The node then removes the files, learns from the leader, with segments or items, and votes
as somebody else; what the one before had promised, and had held, is counted for nothing.

One that leads hands its leadership over first. With two replicas there is no majority without one of them, and nothing
happens by itself.
"""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import trio

from tpc_broker import limits
from tpc_broker.engine.direct_file import SegmentFile, pieces
from tpc_broker.engine.sealed_files import read_seal, unlike_its_seal
from tpc_broker.errors import CallFailedError, MailboxError
from tpc_broker.log.files import (
    LOG_SUFFIX,
    LOSSES_FILE,
    SEAL_SUFFIX,
    decode_losses,
    parse_segment_file_name,
    segment_file_name,
)
from tpc_broker.log.seals import SealError
from tpc_broker.native_bytes import find_batches_end
from tpc_broker.raft.items import Address, Voter
from tpc_broker.rounds import next_round
from tpc_broker.storage.recovery.scrub_report import note_rebuilt, read_report
from tpc_broker.storage.segments.batch_ranges import missing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from pathlib import Path

    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.log.files import EpochStart
    from tpc_broker.model import NodeId, TopicPartition
    from tpc_broker.node.replicas.core_replicas import CoreReplicas
    from tpc_broker.node.replicas.hand_overs import ReplicaHandOvers
    from tpc_broker.raft.group import Group
    from tpc_broker.storage.ports import Clock
    from tpc_broker.storage.recovery.scrub_report import Damage
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

DAMAGED: Final = "replicas.damaged"
LOOK_S: Final = 2.0
LOST_ERRNOS: Final = frozenset({
    errno.ENOENT, errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA, errno.EILSEQ, errno.EREMOTEIO,
})  # fmt: skip
"""What is so of the file, and not of who opens it: it is not there, the disk cannot, or the file system finds it wrong.
Past the page cache a bad sector is ENODATA, one whose checksum does not fit EILSEQ, and a disk that fails EREMOTEIO
(Linux, `block/blk-core.c`).
"""


class _Renewed(NamedTuple):
    """`incarnation`: of the voter that it was."""

    label: str
    incarnation: int


class _Finding(NamedTuple):
    """`files`: in which it was found."""

    files: PartitionStorage
    reason: str


# Rule: A replica with damage is counted for nothing. Its group goes on without it when a majority in sync is left, and
# it comes back as another voter. See also tpc_broker/metadata/replica_moves.py. Held by tests/cluster/test_shipping.py,
# tests/node/test_damaged_replicas.py, tests/metadata/test_replica_moves.py.
class DamagedReplicas:
    """Of one core; touched by its thread only."""

    def __init__(self, replicas: CoreReplicas, hand_overs: ReplicaHandOvers, data: Path, clock: Clock) -> None:
        self._clock = clock
        self._replicas = replicas
        self._hand_overs = hand_overs
        self._data = data
        self.renew: Callable[[TopicPartition, NodeId, int, int], Awaitable[None]]
        """Have the controller begin another life of a node's replica: of a partition, on a node, in place of that life,
        in the term of the leader that goes on without it.
        """
        self.offline: Callable[[], Iterable[TopicPartition]] = tuple
        """Replicas of this core that could not be opened, or were given up."""
        self._seen: tuple[int, int] | None = None
        """Of the report whose findings were looked at; None: they are to be looked at."""
        self._not_here: frozenset[str] = frozenset()
        """Partitions of which it has findings, and no replica was open here when they were looked at."""
        self._found: dict[TopicPartition, _Finding] = {}
        self._unsure: dict[TopicPartition, str] = {}
        """Those that could not be looked at, for a reason that is none of the files': they are looked at again."""
        self._told: dict[TopicPartition, str] = {}
        self._coming: dict[TopicPartition, _Renewed] = {}
        """Those that begin anew and do not vote yet."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await next_round(LOOK_S)
            await self._look_at_scrub()
            damaged = await self._give_up_damaged()
            for key in [key for key, before in self._coming.items() if self._votes_again(key, before)]:
                label = self._coming.pop(key).label
                log.warning("%s votes again, as another replica", label)
                await self._note_rebuilt(label)
            for key, reason in self._unsure.items():
                if key not in damaged:
                    self._tell(key, reason)
            self._told = {key: told for key, told in self._told.items() if key in damaged or key in self._unsure}

    async def _note_rebuilt(self, label: str) -> None:
        """So that nobody is alarmed any more by what a scrub has found in it."""
        try:
            core_id, now_ms = self._replicas.core_id, self._clock.wall_ms()
            await trio.to_thread.run_sync(note_rebuilt, self._data, core_id, label, now_ms)
        except OSError as error:
            log.info("what a scrub has found in %s is told until the next scrub: %s", label, error)

    def opened(self, label: str) -> None:
        """A replica here takes part from now on: TOPIC-N. What a scrub found in it before is looked at."""
        if label in self._not_here:
            self._seen = None

    # -- what is damaged -----------------------------------------------------------------------------------------------

    async def _look_at_scrub(self) -> None:
        """What the last scrub has found, and is so."""
        try:
            status = (self._data / "scrub.json").stat()
        except OSError:
            return
        seen = status.st_mtime_ns, status.st_ino
        if seen == self._seen and not self._found and not self._unsure:
            return
        report = await trio.to_thread.run_sync(read_report, self._data)  # none: a descriptor may have been lacking
        self._seen, self._found, self._unsure = None if report is None else seen, {}, {}
        damaged = () if report is None else tuple(report.damaged)
        by_label = {files.folder.path.name: (key, files) for key, files in self._replicas.open_files()}
        self._not_here = frozenset({damage.partition for damage in damaged} - by_label.keys())
        for damage in damaged:
            key, files = by_label.get(damage.partition, (None, None))
            if key is None or files is None or key in self._found:
                continue
            if damage.topic_id not in ("", key.topic_id.hex):  # of one with that name that was deleted since
                continue
            try:
                is_so = await self._is_so(files, damage)
            except OSError as error:
                self._unsure[key] = f"{damage.file} cannot be looked at, whether it is damaged: {error.strerror}"
                continue
            if is_so is None or self._replicas.files_of(key) is not files:
                self._seen = None
            elif is_so:
                self._found[key] = _Finding(files, str(damage))

    async def _is_so(self, files: PartitionStorage, damage: Damage) -> bool | None:
        """None: the log was changed meanwhile, and it is to be looked at again. OSError: it cannot be said now."""
        path = self._data / damage.file
        parsed = parse_segment_file_name(path.name)
        if parsed is None or parsed[1] not in (LOG_SUFFIX, SEAL_SUFFIX):
            return False  # indexes are made anew
        segment = next((each for each in files.segments if each.base_offset == parsed[0]), None)

        def is_kept() -> bool:
            if 0 <= damage.end_offset <= files.log_start_offset:
                return False
            if damage.is_gap:
                return damage.offset < files.written_end_offset
            if segment is None or segment not in files.segments:
                return False
            return segment.seal is not None or damage.position < segment.size_bytes

        if not is_kept():
            return False
        before = files.segments, files.log_start_offset, files.epochs.entries
        if damage.is_gap:
            is_so = await trio.to_thread.run_sync(is_missing, path.parent, damage, before[1])
        else:
            is_so = await trio.to_thread.run_sync(is_damaged, path, damage, before[2])
        if not (is_so and is_kept()):
            return False
        # what goes is not in its place any more; a leader of another epoch may have had other records written there
        return True if before == (files.segments, files.log_start_offset, files.epochs.entries) else None

    # -- what is done --------------------------------------------------------------------------------------------------

    async def _give_up_damaged(self) -> list[TopicPartition]:
        """As far as others can do without; all that are damaged. Others are asked meanwhile, for seconds: what was
        found in files of before is no reason.
        """
        reasons = dict.fromkeys(self.offline(), "it could not be opened")
        damaged = [*reasons, *(key for key in self._found if key not in reasons)]
        for key in damaged:
            found = self._found.get(key)
            if found is not None and self._replicas.files_of(key) is found.files:
                reasons[key] = found.reason
            if key in reasons:
                await self._give_up(key, reasons[key])
        return damaged

    async def _give_up(self, key: TopicPartition, reason: str) -> None:
        topic = self._replicas.image.topic_by_id(key.topic_id)
        if topic is None or not topic.is_replicated(key.partition):
            return
        machine, node = self._replicas.look_at(key), self._replicas.node
        label = f"{topic.name}-{key.partition}"
        if machine is not None and machine.votes_alone:
            return  # nobody has what it would begin anew from: that is the operator's to accept (`tpc-broker repair`)
        if machine is not None and machine.is_leader:
            self._tell(key, f"{label} is damaged here ({reason}); another node is to lead it")
            self._hand_overs.transfer_to_best(key)
            return
        life = topic.life_of(key.partition, node)
        payload = {"group": self._replicas.group_name(key), "life": life}
        others = [Address(*place) for place in topic.replicas[key.partition] if place.node != node]
        self._replicas.want_links(others)
        for address in others:
            try:
                answer = await self._replicas.links.ask(address, DAMAGED, payload)
            except MailboxError as error:
                self._tell(key, f"{label} is damaged here ({reason}), and is not begun anew yet: {error}")
                continue
            if answer.get("renewed"):
                log.warning("%s is damaged here (%s); it begins anew, from node %d", label, reason, address.node)
                self._found.pop(key, None)
                self._coming[key] = _Renewed(label, life + self._replicas.incarnation)
                return

    def _votes_again(self, key: TopicPartition, before: _Renewed) -> bool:
        """Its group has committed a configuration in which it votes, and its former self does not."""
        machine = self._replicas.look_at(key)
        if machine is None or machine.me.incarnation == before.incarnation or machine.config is None:
            return False
        is_committed = bool(machine.log.markers) and machine.log.markers[-1].position <= machine.commit
        return is_committed and machine.is_voter and not machine.config.is_joint

    def _tell(self, key: TopicPartition, text: str) -> None:
        if self._told.get(key) != text:
            self._told[key] = text
            log.error("%s", text)

    async def serve(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        """A node says that its replica is damaged: "renewed" by the leader; nothing by others. CallFailedError: the
        replica is needed as it is.
        """
        key, life = self._replicas.key_of(str(payload["group"])), int(payload["life"])
        machine = None if key is None else self._replicas.look_at(key)
        if key is None or machine is None or not (machine.is_leader and machine.is_ready):
            return {}, ()
        known = self._replicas.image.nodes.get(hello.node)
        if known is None:
            return {}, ()
        needed = self._why_needed(machine, Voter(hello.node, known.incarnation + life))
        if needed:
            raise CallFailedError(needed)
        await self.renew(key, hello.node, life, machine.term)
        return {"renewed": True}, ()

    def _why_needed(self, machine: Group, voter: Voter) -> str:
        """Empty: the group can do without that voter."""
        config = machine.config
        if config is None or config.is_joint or machine.target is not None:
            return "the voters are being changed"
        if voter not in config.voters:
            return "it is another voter by now"
        behind = {peer.voter for peer in machine.peers.values() if peer.match < machine.high_watermark}
        rest = set(machine.in_touch()) - {voter} - behind
        if not config.has_quorum(rest):
            return f"without it only {len(rest)} of {len(config.voters)} replicas are in sync, which is no majority"
        return ""


def is_damaged(path: Path, damage: Damage, epochs: Sequence[EpochStart]) -> bool:
    """Whether no sound batch with the offset and the leader epoch of its place begins where a scrub found none, read
    past the page cache; of a file that the scrub could not open, whether it still cannot be; of a cleaned segment,
    whether its log is not what its seal says, or its seal says nothing. Blocking. OSError: it cannot be said now, for
    want of memory, say.
    """
    base_offset, suffix = parse_segment_file_name(path.name) or (-1, "")
    try:
        seal = read_seal(path.parent, base_offset) if base_offset >= 0 else None
        if suffix == SEAL_SUFFIX:
            return False
        if seal is not None:
            return bool(unlike_its_seal(path.parent, seal, pieces, (LOG_SUFFIX,)))
        file = SegmentFile(path)
        try:
            if damage.damaged_bytes == 0:
                return False
            data = file.read(damage.position, min(damage.damaged_bytes, limits.LINK_FRAME_BYTES_MAX))
            return find_batches_end(data, damage.offset, epochs, allow_gaps=False)[0] == 0
        finally:
            file.close()
    except SealError:
        return True
    except OSError as error:
        if error.errno in LOST_ERRNOS:
            return True
        raise


def is_missing(folder: Path, gap: Damage, log_start_offset: int) -> bool:
    """Whether the first record of a gap that a scrub found, at or behind the log's start, is in no segment, and no
    repair has given it up. The segment in front of it ends where it did when it has the size that it had: another one
    that reaches further has another size. Blocking. OSError: it cannot be said now.
    """
    try:
        return _is_missing(folder, gap, max(gap.offset, log_start_offset))
    except OSError as error:
        if error.errno in LOST_ERRNOS:
            return True
        raise


def _is_missing(folder: Path, gap: Damage, first: int) -> bool:
    names = [path.name for path in folder.iterdir()]
    if LOSSES_FILE in names:
        losses = sorted(decode_losses((folder / LOSSES_FILE).read_bytes()))
        if not missing(first, gap.end_offset, losses):
            return False
    parsed = [one for one in map(parse_segment_file_name, names) if one is not None and one[1] == LOG_SUFFIX]
    before = max((base for base, _suffix in parsed if base <= first), default=-1)
    if before < 0:
        return True
    size = (folder / segment_file_name(before, LOG_SUFFIX)).stat().st_size
    return size == (0 if before >= gap.offset else gap.position)
