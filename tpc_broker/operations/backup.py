"""``tpc-broker backup`` and ``restore``: what a crash at one moment would have left, of a broker that goes on serving.

Theory of operation
-------------------
A data directory as a crash leaves it is opened without loss: a checkpoint names what is certainly in the segments, and
the journal has everything since. So a backup makes such a state, of one moment for all cores, and recovery does the
rest when the copy is opened. What is acknowledged is in the journal; what was acknowledged before the moment is in the
copy, and nothing of what came after it.

1. *Links.* Every file of every partition gets a second name in `backup-staging` in the data directory. Segments that
   retention removes from here on are still there under that name.
2. *Hold* (`backup_hold`). Each core makes a checkpoint and then none: superblock and checkpoint file stay as they are,
   and no block of the journal behind them is used again. Links once more: what is new, or another file by now. So of
   everything that is removed behind the moment there is a link; what was removed in front of it is said by the journal.
3. *The moment.* All cores stand still at once for some milliseconds, and tell how far their journals are durable. No
   answer leaves any of them meanwhile, so that what happened on one core because of what was acknowledged by another
   is never in the copy without its cause (a group's offset without the record).
4. *Journals* up to the moment, then links once more: segments that were begun between 2 and 3. Then the cores are let
   go. They were held for as long as it takes to copy what the journals hold since the checkpoint.
5. *Copies.* A segment in front of the one that the checkpoint calls active never changes: its link is the backup's file
   where both are on one file system. Everything else is copied, the active segments with whatever was written to them
   meanwhile: recovery cuts them at the checkpoint's position and takes the rest from the journal. Batches that were
   written in place are in them since before the journal named them.

Segments that were cleaned take the place of others now and then (`storage.segments.segment_swap`): between 2 and the
release of the cores none does, so that the links of the last call are of one version each. What earlier calls have
linked of segments that gave way is taken out again. A swap that a crash has cut short is copied as it is: recovery
finishes it.

A core that is restarted between 2 and 5 cuts and writes its active segments anew, so then the backup is refused.

A node of a cluster
-------------------
In front of 1 its replicas catch up (`cluster/catching_up`): first those of topics whose records name others' (groups'
offsets), then the rest, so what the copy says of offsets is never beyond the records. How far each was committed then
is where its copy ends: never in front of what was acknowledged before the command. Records that others still might take
back are in the files, and are cut when it is restored (`backup_node`, `restored_node`). A replica whose log is cut
meanwhile has the backup refused, as a restart does.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tpc_broker import __version__, limits
from tpc_broker.engine.data_directory import (
    MANIFEST_FILE,
    PENDING_USERS_FILE,
    PROPERTIES_FILE,
    UNFINISHED_BACKUP_FILE,
    UNFINISHED_RESTORE_FILE,
    mark_of,
    read_properties,
)
from tpc_broker.engine.direct_file import SegmentFile
from tpc_broker.engine.sealed_files import view_of
from tpc_broker.log.checkpoint import CheckpointError, decode_checkpoint
from tpc_broker.log.files import (
    DELETED_FOLDER_SUFFIX,
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEAL_SUFFIX,
    SPARE_FILE,
    TEMPORARY_SUFFIX,
    checkpoint_file_name,
    handed_file_prefix,
    journal_file_name,
    parse_cleaned_file_name,
    parse_partition_folder_name,
    parse_segment_file_name,
    partition_folder_name,
)
from tpc_broker.log.journal import (
    BLOCK_BYTES,
    REGION_BLOCK_FIRST,
    JournalUnreadableError,
    Superblock,
    choose_superblock,
)
from tpc_broker.model import CoreId
from tpc_broker.node.membership.identity import IdentityFile
from tpc_broker.operations.backup_cores import HeldCores, JournalEnd, of_cores
from tpc_broker.operations.backup_files import (
    check_space,
    check_target,
    copy,
    copy_sparse,
    copy_written_to,
    link_or_copy,
    place_of,
    unfinished,
    write_json,
)
from tpc_broker.operations.backup_hold import abstract_name
from tpc_broker.operations.backup_node import NODE_FILE, NodeCopy, some
from tpc_broker.operations.backup_staging import staging_folder
from tpc_broker.operations.scrub import spend_nothing, stopped
from tpc_broker.options import StartError
from tpc_broker.telemetry.status import ask_control, read_status

if TYPE_CHECKING:
    from collections.abc import Callable

FORMAT: Final = 1
FORMAT_OF_NODE: Final = 2
"""Of a node of a cluster: a release that does not know it must not take the files for a broker's."""
FOLDER_ATTEMPTS: Final = 5
_COPIES: Final = {LOG_SUFFIX: copy_written_to, ".journal": copy_sparse}


@dataclass(slots=True)
class BackupReport:
    """What was copied."""

    files: dict[str, int] = field(default_factory=dict)
    """Names below the directory, with sizes in bytes."""
    cores: int = 0
    linked_bytes: int = 0
    copied_bytes: int = 0
    is_running: bool = False
    stood_still_ms: float = 0.0
    """How long no core answered."""
    held_ms: float = 0.0
    """How long no core made a checkpoint."""
    node: int | None = None
    """Of a cluster, as the next ones."""
    partitions: int = 0
    """Whose records are in the copy."""
    left_out: list[str] = field(default_factory=list)
    """Partitions that are on other nodes only, or are not here whole: restored, they begin empty."""
    behind: list[str] = field(default_factory=list)
    """Partitions that may lack what was acknowledged, because no leader could be asked (`accept_behind`)."""


def backup(
    data: Path,
    target: Path,
    on_progress: Callable[[int, int], None],
    *,
    with_links: bool,
    accept_behind: bool = False,
) -> BackupReport:
    """A copy of the data directory in `target`, which is missing or empty. StartError: one line; `target` then says
    that it is not whole, if it was begun. `accept_behind`: of a cluster's node, also when leaders cannot be asked.
    """
    if not (data / "journals").is_dir() or not (data / ".lock").exists():
        raise StartError(mark_of(data) or f"{data} is no data directory of a broker")
    identity = IdentityFile(data).read()
    node = NodeCopy.of(identity) if identity is not None and identity.founding is not None else None
    check_target(target, "the backup's directory")
    if target.resolve().is_relative_to(data):
        raise StartError(f"the backup's directory {target} lies in the data directory; give one elsewhere")
    with staging_folder(data) as staging:
        run = _Backup(data, staging, target, on_progress, with_links=with_links)
        run.node, run.accept_behind = node, accept_behind
        return run.run()


# Rule: A backup is what a crash at one moment would have left. Journals end where they were durable while all cores
# stood still. Checkpoints and their journals' blocks stay until they are copied. Of each segment that retention removes
# there was a link. Segments are of one version each. See also tpc_broker/operations/backup_hold.py,
# tpc_broker/operations/backup_staging.py. Held by tests/durability/test_backup.py,
# tests/operations/test_backup_staging.py, tests/storage/test_backup_cleaned.py.
class _Backup:
    """One backup, in the order of the module's theory."""

    def __init__(
        self, data: Path, staging: Path, target: Path, on_progress: Callable[[int, int], None], *, with_links: bool
    ) -> None:
        self._data = data
        self._staging = staging
        self._target = target
        self._on_progress = on_progress
        self._with_links = with_links
        self._report = BackupReport()
        self._total_bytes = self._done_bytes = 0
        self.node: NodeCopy | None = None
        """Where it is a cluster's."""
        self.accept_behind = False

    def run(self) -> BackupReport:
        with stopped(self._data) as is_stopped, ExitStack() as opened:
            self._opened = opened
            if is_stopped and self.node is not None:
                raise StartError(
                    f"{self._data} is node {self.node.node}'s of cluster {self.node.cluster_id}, and does not run: the "
                    "cluster's metadata are not in it. Start it first; nothing was copied"
                )
            if is_stopped and (self._data / PENDING_USERS_FILE).exists():
                problem = "has users that no start has taken yet; start it first. Nothing was copied"
                raise StartError(f"{self._data} {problem}")
            pids = {} if is_stopped else self._take_moment()
            if is_stopped:
                self._link_partitions()
                for core in self._journal_cores():
                    self._copy_journal(core, None)
            properties = read_properties(self._data / PROPERTIES_FILE)
            copy(self._data / PROPERTIES_FILE, self._staging / PROPERTIES_FILE, spend_nothing)
            if self.node is not None:
                self.node.write(self._staging / NODE_FILE)
                self._tell_of(self.node)
            self._write_target(properties, pids)
        return self._report

    # -- the moment --------------------------------------------------------------------------------------------------

    def _take_moment(self) -> dict[str, int]:
        """Links and journals of one moment, in the staging folder; the cores' processes."""
        self._link_partitions(is_first=True)
        token = secrets.token_hex(16)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as listening:
            listening.bind(abstract_name(token))
            listening.listen(limits.STATUS_BACKLOG)
            pids: dict[str, int] = ask_control(self._data, {"command": "backup", "token": token})["cores"]
            cores = self._cores = HeldCores(listening, len(pids))
            self._opened.callback(cores.close)
            with of_cores():
                cores.connect()
                if self.node is not None:
                    cores.catch_up(self.node)
                    self._refuse_behind(self.node)
                cores.wait_held()
                held_s = time.monotonic()
                self._link_partitions()
                ends = cores.fix_moment()
                for core, end in ends.items():
                    self._copy_journal(core, end)
                self._link_partitions()
                if self.node is not None:
                    self.node.image = cores.take_image()
                cores.release()
            if self.node is None:
                cores.close()
        self._report.is_running = True
        self._report.stood_still_ms = cores.stood_still_ms
        self._report.held_ms = (time.monotonic() - held_s) * 1000
        return pids

    def _refuse_behind(self, node: NodeCopy) -> None:
        if node.behind and not self.accept_behind:
            labels = sorted(node.behind.values())
            raise StartError(
                f"no leader of {some(labels)} could be asked what is acknowledged, for "
                f"{limits.BACKUP_CATCH_UP_MS // 1000} s; see: tpc partition list --leaderless. To copy all the same "
                "what is here: --accept-behind"
            )

    def _journal_cores(self) -> list[CoreId]:
        return sorted(CoreId(int(path.stem)) for path in (self._data / "journals").glob("[0-9]*.journal"))

    def _copy_journal(self, core: CoreId, end: JournalEnd | None) -> None:
        """The journal behind its checkpoint, up to an end or whole, and the checkpoint that it names."""
        folder = self._staging / "journals"
        folder.mkdir(exist_ok=True)
        checkpoint = self._data / "journals" / checkpoint_file_name(core)
        if checkpoint.exists():
            copy(checkpoint, folder / checkpoint.name, spend_nothing)
        for handed in (self._data / "journals").glob(handed_file_prefix(core) + "*"):  # none goes while it is held
            copy(handed, folder / handed.name, spend_nothing)
        source = self._data / "journals" / journal_file_name(core)
        file = SegmentFile(source)
        try:
            superblock = choose_superblock(bytes(file.read(0, REGION_BLOCK_FIRST * BLOCK_BYTES)))
            with (folder / source.name).open("xb", buffering=0) as copied:
                copied.truncate(superblock.end_block * BLOCK_BYTES)
                os.pwrite(copied.fileno(), superblock.encode(), superblock.slot * BLOCK_BYTES)
                for first, last in stretches(superblock, end):
                    _copy_blocks(file, copied.fileno(), first, last)
        except JournalUnreadableError as error:
            raise StartError(f"{source}: {error}; see: tpc-broker repair --data {self._data}") from error
        finally:
            file.close()

    # -- links -------------------------------------------------------------------------------------------------------

    def _link_partitions(self, *, is_first: bool = False) -> None:
        """Every file that is there now has its link; those of earlier calls stay, unless their name is another file.
        `is_first`: another call follows, so what goes meanwhile need not be caught.
        """
        topics = self._staging / "topics"
        topics.mkdir(exist_ok=True)
        with os.scandir(self._data / "topics") as entries:
            for entry in entries:
                if parse_partition_folder_name(entry.name) is None or entry.name.endswith(DELETED_FOLDER_SUFFIX):
                    continue
                is_whole = any(_link_folder(entry.path, topics / entry.name) for _attempt in range(FOLDER_ATTEMPTS))
                if not is_whole and not is_first:
                    raise StartError(f"{entry.path}: its segments go faster than they can be kept; begin again")

    # -- copies ------------------------------------------------------------------------------------------------------

    def _write_target(self, properties: dict[str, str], pids: dict[str, int]) -> None:
        names = sorted(path.relative_to(self._staging) for path in self._staging.rglob("*") if path.is_file())
        sealed_below = self._sealed_below(names)
        to_link = {name for name in names if self._with_links and _is_sealed(name, sealed_below)}
        place = place_of(self._target)
        links_work = place.stat().st_dev == self._staging.stat().st_dev
        sizes = {name: (self._staging / name).stat() for name in names}
        self._total_bytes = sum(status.st_size for status in sizes.values())
        check_space(
            place,
            sum(min(status.st_size, status.st_blocks * 512) for name, status in sizes.items()
                if not (links_work and name in to_link)),
        )  # fmt: skip
        with unfinished(self._target, UNFINISHED_BACKUP_FILE):
            for folder in sorted(path.relative_to(self._staging) for path in self._staging.rglob("*") if path.is_dir()):
                (self._target / folder).mkdir()
            for name in names:
                source, copied = self._staging / name, self._target / name
                take = link_or_copy if name in to_link else _COPIES.get(name.suffix, copy)
                self._report.files[str(name)] = take(source, copied, self._spend)
                if copied.stat().st_nlink > 1 and name in to_link:
                    self._report.linked_bytes += self._report.files[str(name)]
            self._check_unchanged(pids)
            self._report.copied_bytes = sum(self._report.files.values()) - self._report.linked_bytes
            self._report.cores = int(properties.get("cores", "0"))
            manifest_format = FORMAT if self.node is None else FORMAT_OF_NODE
            manifest = {
                "format": manifest_format, "release": __version__, "taken_ms": time.time_ns() // 1_000_000,
                "cluster_id": properties.get("cluster.id"), "cores": self._report.cores, "files": self._report.files,
            }  # fmt: skip
            write_json(self._target / MANIFEST_FILE, manifest)

    def _sealed_below(self, names: list[Path]) -> dict[str, int]:
        """By partition folder: segments that begin below this offset are written no more, and not cut either."""
        found = {}
        for path in (self._staging / "journals").glob("[0-9]*.checkpoint"):
            try:
                _generation, partitions = decode_checkpoint(path.read_bytes())
            except CheckpointError as error:
                raise StartError(f"{self._data / 'journals' / path.name}: {error}") from error
            for one in partitions.values():
                found[partition_folder_name(one.topic, one.partition)] = int(one.segment_base)
        bases: dict[str, list[int]] = {}
        for name in names:
            parsed = parse_segment_file_name(name.name)
            if parsed is not None:
                bases.setdefault(name.parent.name, []).append(parsed[0])
        for folder, committed in ({} if self.node is None else self.node.committed_by_folder()).items():
            uncut = max((base for base in bases.get(folder, ()) if base <= committed), default=0)
            found[folder] = min(found.get(folder, 0), uncut)
        return found

    def _tell_of(self, node: NodeCopy) -> None:
        self._report.node, self._report.partitions = int(node.node), len(node.copied())
        self._report.left_out, self._report.behind = node.left_out(), sorted(node.behind.values())

    def _check_unchanged(self, pids: dict[str, int]) -> None:
        if not pids:
            return
        if self.node is not None:
            with of_cores():
                cuts = self._cores.cuts()
            if cuts:
                raise StartError("a replica's log was cut meanwhile, so the copies may be neither; begin again")
        now = {str(core["core"]): core["pid"] for core in read_status(self._data)["cores"]}
        if now != pids:
            raise StartError("a core was restarted meanwhile, so the copies may be of two lives; begin again")

    def _spend(self, count: int) -> None:
        self._done_bytes += count
        self._on_progress(self._done_bytes, self._total_bytes)


def stretches(superblock: Superblock, end: JournalEnd | None) -> list[tuple[int, int]]:
    """Blocks [first, end) of the file that hold the commits from the replay position to an end; None: all blocks."""
    first, last = REGION_BLOCK_FIRST, superblock.end_block
    if end is None:
        return [] if superblock.clean else [(first, last)]
    if end.sequence == superblock.replay_sequence:
        return []
    if superblock.replay_block < end.block:
        return [(superblock.replay_block, end.block)]
    return [(superblock.replay_block, last), (first, end.block)]


def _copy_blocks(file: SegmentFile, target_fd: int, first: int, last: int) -> None:
    position, end = first * BLOCK_BYTES, last * BLOCK_BYTES
    while position < end:
        data = file.read(position, min(2**20, end - position))
        if not len(data):
            return
        position += os.pwrite(target_fd, data, position)


def _link_folder(source: str, target: Path) -> bool:
    """All that stays; False: something went meanwhile (retention, a deletion), so what was there together has to be
    looked at again, or a segment gave way to a cleaned one. A folder that is gone has nothing.
    """
    target.mkdir(exist_ok=True)
    with os.scandir(target) as entries:
        linked = {entry.name: entry.inode() for entry in entries}
    try:
        found = _inodes(source)
    except FileNotFoundError:
        return True
    is_whole, view = True, view_of(Path(source), found).view
    unfinished = {seal.generation for seal in view.unfinished}
    for name, inode in found.items():
        made = parse_cleaned_file_name(name)
        if name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)) or name == SPARE_FILE:
            continue
        if made is not None and made[1] not in unfinished:
            continue  # a cleaner's, of a swap that has not begun
        if linked.get(name) == inode:
            continue
        if name in linked:
            (target / name).unlink()
        try:
            os.link(f"{source}/{name}", target / name)
        except FileNotFoundError:
            is_whole = False
    try:
        now = _inodes(source)
    except FileNotFoundError:
        return is_whole
    _take_out_replaced(Path(source), frozenset(now), target)
    return is_whole and _seals(found) == _seals(now)


def _inodes(folder: str) -> dict[str, int]:
    with os.scandir(folder) as entries:
        return {entry.name: entry.inode() for entry in entries}


def _seals(inodes: dict[str, int]) -> dict[str, int]:
    return {name: inode for name, inode in inodes.items() if name.endswith(SEAL_SUFFIX)}


def _take_out_replaced(source: Path, names: frozenset[str], target: Path) -> None:
    """Of offsets that a cleaned segment holds nothing stays linked but its own files; and nothing that a cleaner has
    made for a swap that is over.
    """
    view = view_of(source, names).view
    unfinished = {seal.generation for seal in view.unfinished}
    ranges = [(one.base_offset, one.seal.end_offset) for one in view.segments if one.seal is not None]
    with os.scandir(target) as entries:
        linked = [entry.name for entry in entries]
    for name in linked:
        made, parsed = parse_cleaned_file_name(name), parse_segment_file_name(name)
        is_replaced = parsed is not None and any(first <= parsed[0] < end for first, end in ranges)
        if (made is not None and made[1] not in unfinished) or (is_replaced and name not in names):
            (target / name).unlink()


def _is_sealed(name: Path, sealed_below: dict[str, int]) -> bool:
    parsed = parse_segment_file_name(name.name)
    return parsed is not None and parsed[1] == LOG_SUFFIX and parsed[0] < sealed_below.get(name.parent.name, 0)


# -- restoring ---------------------------------------------------------------------------------------------------------


def restore(source: Path, data: Path, on_progress: Callable[[int, int], None]) -> dict[str, Any]:
    """Make a data directory of a backup; its manifest, for a cluster's node with what is told of it. StartError: one
    line.
    """
    manifest = _manifest(source)
    node = NodeCopy.read(source / NODE_FILE) if manifest["format"] == FORMAT_OF_NODE else None
    check_target(data, "the data directory")
    files = {name: size for name, size in manifest["files"].items() if name != NODE_FILE}
    total_bytes, done_bytes = sum(files.values()), 0
    check_space(place_of(data), total_bytes)

    def spend(count: int) -> None:
        nonlocal done_bytes
        done_bytes += count
        on_progress(done_bytes, total_bytes)

    with unfinished(data, UNFINISHED_RESTORE_FILE):
        for name in ("topics", "journals"):
            (data / name).mkdir()
        for folder in sorted({(data / name).parent for name in files} - {data, data / "topics", data / "journals"}):
            folder.mkdir()
        for name in files:
            copy(source / name, data / name, spend, is_sparse=not name.endswith(".journal"))
        if node is not None:
            from tpc_broker.operations.restored_node import make_alone  # noqa: PLC0415 (a broker alone needs none of it)

            manifest = {**manifest, **make_alone(data, node)}
    return manifest


def _manifest(source: Path) -> dict[str, Any]:
    """Of a backup all of whose files are there, as long as they were."""
    try:
        manifest: dict[str, Any] = json.loads((source / MANIFEST_FILE).read_text())
        files = {str(name): int(size) for name, size in manifest["files"].items()}
    except FileNotFoundError as error:
        raise StartError(mark_of(source) or f"{source} is no backup: it has no {MANIFEST_FILE}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartError(f"{source / MANIFEST_FILE} cannot be read: {error}") from error
    if manifest.get("format") not in (FORMAT, FORMAT_OF_NODE):
        known = f"{FORMAT} and {FORMAT_OF_NODE}"
        raise StartError(f"{source}: a backup of format {manifest.get('format')}; known are {known}")
    for name, size in files.items():
        if name.startswith("/") or ".." in name.split("/"):
            raise StartError(f"{source / MANIFEST_FILE}: {name!r} lies outside of a data directory")
        try:
            found = (source / name).stat().st_size
        except OSError as error:
            raise StartError(f"{source / name}: {error.strerror}; the backup is not whole") from error
        if found != size:
            raise StartError(f"{source / name} has {found:,} bytes, and {size:,} when it was made; it was changed")
    return {**manifest, "files": files}
