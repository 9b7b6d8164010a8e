"""A replica fetches segments from the one that leads, and begins anew with them.

Theory of operation
-------------------
What the leader offers (`shipping`) is fetched over a connection of its own, so that records and acknowledgements of
other partitions are not held up, at no more than `replica.move.bytes.per.second`. Each byte of a log is checked as it
comes: batches with right checksums, one behind the other, up to the position that was promised. Then the files take the
place of the replica's own (`storage.replicas.installation`), and it begins as after a start: with the markers that came
along, its own term and vote, and as committed what was.

Why that is safe: the position P that a shipment ends at is committed, so every later leader has it, and everything in
front of it. A replica gives its log up only for a P that lies behind the last position of its log. If that one's epoch
is lower than P's, then what of the log is not in front of P was never committed and never will be, since the leader of
P's epoch did not have it; if it is the same, P contains it all (log matching). So nothing that was acknowledged and
counts is forgotten. Term and vote are never taken from anybody: a vote stands as long as its term does. All of this is
judged in the moment in which the journal's entry is written, and until the replica begins anew it says nothing.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker import limits
from tpc_broker.errors import CallFailedError, MailboxError, PartitionOfflineError, StorageFailedError
from tpc_broker.feature_levels import FIRST_WITH_MOVES
from tpc_broker.log.files import LOG_SUFFIX, LOSSES_FILE, decode_losses, encode_losses, parse_segment_file_name
from tpc_broker.log.seals import Seal, SealedFile, SealError, cleaned_state
from tpc_broker.native_bytes import crc32c
from tpc_broker.node.links.part_buffers import is_of_buffer
from tpc_broker.node.replicas.offers import FillingFailedError, LogCheck, Offer, sealed_file
from tpc_broker.node.replicas.shipping import END, FILLED, OFFER, READ
from tpc_broker.raft.items import Address, Position
from tpc_broker.storage.recovery.filled_folders import make_filling_folder
from tpc_broker.storage.replicas.filled_files import FilledFile, write_seal
from tpc_broker.storage.replicas.filled_logs import FilledLog, bring_own
from tpc_broker.storage.segments.folders import remove_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tpc_broker.cluster.founding import SeedAddress
    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.log.checkpoint import PartitionCheckpoint
    from tpc_broker.model import CoreId, TopicPartition
    from tpc_broker.native_bytes import Buffer
    from tpc_broker.node.links.links import Links, Peer
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver
    from tpc_broker.node.replicas.replica_links import ReplicaLinks
    from tpc_broker.storage.journalled_storage import JournalledStorage
    from tpc_broker.storage.replicas.installation import Install
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

AT_ONCE: Final = 6
"""Replicas that a core fills at the same time."""
FETCHED_AT_ONCE: Final = 3
"""Of them, those whose segments are on their way: the others begin, or wait for the disk and the journal to end."""
CHUNKS_AHEAD: Final = 3
CONNECT_S: Final = 5.0
END_S: Final = 1.0
"""To say that a shipment is not wanted any more; the leader gives it up by itself, too."""
REMOVE_S: Final = 1.0
"""To remove what was fetched in vain, while the core may be ending; what takes longer is left for later."""
AGAIN_S_MIN: Final = 0.5
AGAIN_S_MAX: Final = 60.0
"""Before what has failed is tried again: everything is fetched anew."""
LOOK_S: Final = 0.02
JUDGED_AGAIN_S: Final = 0.05
JUDGED_TIMES_MAX: Final = 100
"""Looks at whether a replica may give way: what is on its way to its journal is waited for."""
SPARE_BYTES: Final = 64 * limits.MIB
"""Of the disk, that a replica that is filled leaves to others."""


class Pace:
    """Bytes a second on the average; what was slow for other reasons is not made up for."""

    def __init__(self) -> None:
        self._free_at_s = 0.0

    async def spend(self, count: int, bytes_per_s: int) -> None:
        """Wait for the turn of so many bytes."""
        begins_s = max(self._free_at_s, trio.current_time())
        self._free_at_s = begins_s + count / bytes_per_s
        await trio.sleep_until(begins_s)


@dataclass(frozen=True, slots=True)
class _Filling:
    """What comes into a folder, for which replica."""

    group: str
    key: TopicPartition
    own: PartitionStorage
    offer: Offer
    path: Path
    keeps_front: bool
    """What it has in front of what is shipped becomes part of it."""
    seals: dict[int, Seal] = field(default_factory=dict)
    """Of the segments that are shipped and were cleaned, by where these begin."""


@dataclass(slots=True)
class _Chunk:
    position: int
    length: int
    done: trio.Event = field(default_factory=trio.Event)
    data: Buffer = b""


class ReplicaFilling:
    """Of one core; touched by its thread only."""

    def __init__(self, storage: JournalledStorage, data: Path, core: CoreId) -> None:
        self._files, self._remove_later = storage.files, storage.remove_later
        self._data = data
        self._core = core
        self._pace = Pace()
        self.bytes_per_s: Callable[[], int] = lambda: 1 << 30
        self.is_allowed = False
        """By the cluster's feature level."""
        self._driver: ReplicaDriver | None = None
        self._links: ReplicaLinks
        self._bulk: Links
        self._nursery: trio.Nursery
        self._keys: dict[str, TopicPartition]
        self._filling: dict[str, int] = {}
        self._filled: dict[str, Position] = {}
        self._failed: dict[str, tuple[float, float]] = {}
        """When those that could not be filled are tried again, and after which delay."""
        self._limit, self._fetches = trio.CapacityLimiter(AT_ONCE), trio.CapacityLimiter(FETCHED_AT_ONCE)
        self._connections: dict[SeedAddress, int] = {}
        self.install: Install
        self.received_bytes = 0

    def begin(
        self, driver: ReplicaDriver, links: ReplicaLinks, bulk: Links, keys: dict[str, TopicPartition],
        nursery: trio.Nursery,
    ) -> None:  # fmt: skip
        """The core has replicas now. `keys`: of its groups."""
        self._driver, self._links, self._bulk, self._keys, self._nursery = driver, links, bulk, keys, nursery

    @property
    def filling(self) -> dict[str, int]:
        """Groups whose replicas are being filled, with the bytes that they have."""
        return self._filling

    async def serve_fill(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        """The leader asks to fetch segments from it, up to "position" at least: "filled", the position up to which that
        was done, or "had" was it before; else it is under way.
        """
        group, driver = str(payload["group"]), self._driver
        machine = None if driver is None else driver.core.find(group)
        if group in self._filling:
            return {"bytes": self._filling[group]}, ()
        if machine is None:
            raise CallFailedError("it is not here")
        if not self.is_allowed:
            raise CallFailedError(f"the cluster's feature level is below {FIRST_WITH_MOVES}; kafka-features raises it")
        epoch, offset = payload["position"]
        filled, wanted = self._filled.pop(group, None), Position(int(epoch), int(offset))
        if filled is not None and machine.log.contains(filled):
            return {"filled": filled, "had": False}, ()
        if machine.log.contains(wanted):
            return {"filled": wanted, "had": True}, ()
        if trio.current_time() < self._failed.get(group, (0.0, 0.0))[0]:
            return {}, ()
        self._filling[group] = 0
        self._nursery.start_soon(self._fill, group, Address(hello.node, hello.core))
        return {}, ()

    # -- one replica ---------------------------------------------------------------------------------------------------

    async def _fill(self, group: str, source: Address) -> None:
        try:
            async with self._limit:
                await self._fetch_and_install(group, source)
        except* (FillingFailedError, MailboxError, StorageFailedError, PartitionOfflineError, OSError) as errors:
            assert self._driver is not None
            label = self._driver.label_of(group)
            log.warning("%s could not be filled from node %d: %s", label, source.node, _first(errors))
            _not_before_s, delay_s = self._failed.get(group, (0.0, AGAIN_S_MIN / 2))
            delay_s = min(2 * delay_s, AGAIN_S_MAX)
            self._failed[group] = trio.current_time() + delay_s, delay_s
        finally:
            del self._filling[group]
        if group in self._filled:
            await self._tell_filled(group, source)

    async def _tell_filled(self, group: str, source: Address) -> None:
        try:
            await self._links.ask(source, FILLED, {"group": group})
        except MailboxError as error:
            log.debug("%s: node %d was not told that it was filled: %s", group, source.node, error)

    async def _fetch_and_install(self, group: str, source: Address) -> None:
        driver, key, place = self._driver, self._keys.get(group), self._links.place_of(source)
        assert driver is not None
        files = driver.files_of(group)
        if key is None or files is None or place is None:
            return
        begun_s, disk = time.monotonic(), self._files.disk
        own_offset = min(driver.core.look(group).high_watermark, files.written_end_offset)
        offer, keeps_front = await self._ask_offer(group, source, files.segments[0].base_offset, own_offset)
        path = None
        try:
            path = await make_filling_folder(disk, self._data, self._core, os.urandom(8).hex())
            await self._check_room(offer)
            if keeps_front:
                offer = replace(offer, starts=max(offer.starts, files.log_start_offset))
            settled = await self._fetch_all(_Filling(group, key, files, offer, path, keeps_front), place)
            fetched_s = time.monotonic() - begun_s
            if not await self._install(group, key, offer, settled):
                machine = driver.core.find(group)
                now = "gone" if machine is None else f"{machine.role.value} at {machine.log.last}"
                raise FillingFailedError(f"it is {now}, and cannot give way to a log that ends at {offer.position}")
        finally:
            await self._end(source, offer.shipment)
            if path is not None:
                await self._remove(path)
        self._filled[group] = offer.position
        self._failed.pop(group, None)
        log.info("%s-%d was filled from node %d up to offset %d: %d bytes fetched in %.1f s, all of it took %.1f s",
                 files.topic, key.partition, source.node, offer.position.offset, offer.size_bytes, fetched_s,
                 time.monotonic() - begun_s)  # fmt: skip

    async def _ask_offer(self, group: str, source: Address, first_own: int, own_offset: int) -> tuple[Offer, bool]:
        """What the replica lacks, and whether it keeps what it has in front of that; else all that the leader has."""
        question = {"group": group, "from_offset": own_offset}
        offer = Offer.decode(await self._links.ask(source, OFFER, question))
        keeps_front = offer.continues(first_own, own_offset)
        if not keeps_front and replace(offer, removed_upto=0).continues(first_own, own_offset):
            await self._end(source, offer.shipment)
            offer = Offer.decode(await self._links.ask(source, OFFER, {**question, "from_offset": 0}))
        return offer, keeps_front

    async def _end(self, source: Address, shipment: str) -> None:
        with trio.move_on_after(END_S) as scope:
            scope.shield = True
            try:
                await self._links.ask(source, END, {"shipment": shipment})
            except MailboxError as error:
                log.debug("node %d was not told of the end of a shipment: %s", source.node, error)

    async def _remove(self, path: Path) -> None:
        """What was being filled, now or later; it is gone when it was installed."""
        with trio.move_on_after(REMOVE_S) as scope:
            scope.shield = True
            try:
                await remove_folder(self._files.disk, path)
            except OSError as error:
                log.warning("%s cannot be removed now: %s", path, error)
            else:
                return
        self._remove_later(path)

    async def _check_room(self, offer: Offer) -> None:
        available = (await self._files.disk.statvfs(self._data)).available_bytes
        if offer.size_bytes + SPARE_BYTES > available:
            raise FillingFailedError(f"{offer.size_bytes} bytes are shipped, and {available} are left on the disk")

    async def _install(self, group: str, key: TopicPartition, offer: Offer, settled: PartitionCheckpoint) -> bool:
        driver = self._driver
        assert driver is not None

        def judge(own: PartitionStorage | None) -> PartitionCheckpoint | None:
            if own is None or not driver.may_replace(group, offer.position):
                return None
            return offer.state(settled, own)

        for _look in range(JUDGED_TIMES_MAX):
            machine = driver.core.find(group)
            if machine is None or not (offer.position > machine.log.last and offer.position > machine.commit):
                return False
            if await self.install(key, judge):
                return True
            await trio.sleep(JUDGED_AGAIN_S)
        return False

    # -- bytes ---------------------------------------------------------------------------------------------------------

    async def _fetch_all(self, filling: _Filling, place: SeedAddress) -> PartitionCheckpoint:
        """The partition as it is with what was fetched."""
        peer = self._bulk.peer(place)
        self._connections[place] = self._connections.get(place, 0) + 1
        try:
            with trio.move_on_after(CONNECT_S):
                while not peer.is_up:
                    await trio.sleep(LOOK_S)
            return await self._fetch_log(filling, peer)
        finally:
            self._connections[place] -= 1
            if not self._connections[place]:
                del self._connections[place]
                self._bulk.peers.pop(place, None)
                peer.close()
            if not self._connections:
                self._bulk.parts.clear()

    async def _fetch_log(self, filling: _Filling, peer: Peer) -> PartitionCheckpoint:
        """The last segment comes last, and is looked through as it comes: what that needs is there by then. One that
        was cleaned is no different from others, and nothing is behind it.
        """
        offer, own, last = filling.offer, filling.own, filling.offer.last_segment
        await self._fetch_seals(filling, peer)
        await self._keep_losses(filling)
        if last is not None and last.base_offset in filling.seals:
            last = None
        for name, size in offer.in_order:
            if last is None or name != last.log_name:
                await self._fetch(filling, peer, name, size)
        filled = await FilledLog.begin(
            self._files, filling.path, own.topic, filling.key, own.settings,
            starts=offer.starts, ends=offer.position.offset, coming=last,
        )  # fmt: skip
        try:
            if last is not None:
                await self._fetch(filling, peer, last.log_name, last.size_bytes, filled)
            await self._files.disk.fsync_directory(filling.path)
            return await filled.settle()
        finally:
            await filled.close()

    async def _fetch_seals(self, filling: _Filling, peer: Peer) -> None:
        """What the log's cleaned segments are, and what the replica has itself in front of them, go into the folder.

        In a log of two replicas nobody has looked for what is newer in the other one's part: keys are collected from
        where the first of the two would begin.
        """
        offer, seals, sizes = filling.offer, filling.seals, dict(filling.offer.files)
        for base_offset, name in offer.seals.items():
            chunk = _Chunk(0, sizes[name])
            await self._read(peer, offer.shipment, name, chunk)
            try:
                seals[base_offset] = Seal.decode(bytes(chunk.data))
            except SealError as error:
                raise FillingFailedError(f"{name} is damaged where it comes from: {error}") from error
            finally:
                self._bulk.parts.give(chunk.data)
        offer.check_seals(seals)
        first_dirty_offset = cleaned_state(seals.values()).first_dirty_offset
        if filling.keeps_front:
            shared = max(first_dirty_offset, offer.first_offset)
            first_dirty_offset = await bring_own(filling.own, filling.path, offer.first_offset, shared)
        for base_offset, name in offer.seals.items():
            await write_seal(self._files.disk, filling.path / name, seals[base_offset], first_dirty_offset)

    # Rule: Who is filled knows what a repair could not bring back, or a scrub would take it for damage, and the replica
    # would begin anew, with the same gap, for ever. Held by tests/simulator/test_cleaned_replicas.py.
    async def _keep_losses(self, filling: _Filling) -> None:
        """Of what is shipped as the leader says, of the own front as is known here."""
        losses, first = set(filling.offer.lost or ()), filling.offer.first_offset
        if filling.keeps_front:
            known = decode_losses(await filling.own.folder.read_file(LOSSES_FILE) or b"")
            losses = {(max(begin, first), end) for begin, end in losses if end > first}
            losses |= {(begin, min(end, first)) for begin, end in known if begin < first}
        if losses:
            file = await FilledFile.make(self._files, filling.path / LOSSES_FILE)
            try:
                await file.write(encode_losses(sorted(losses)), 0, is_aligned=False)
                await file.sync()
            finally:
                await file.close()

    async def _fetch(
        self, filling: _Filling, peer: Peer, name: str, size: int, filled: FilledLog | None = None
    ) -> None:
        """One file. `filled`: of whose last segment it is the log."""
        offer, path = filling.offer, filling.path / name
        parsed = parse_segment_file_name(name)
        assert parsed is not None, path
        gaps, sealed = offer.gaps_in(parsed[0], filling.seals), sealed_file(name, filling.seals)
        check = LogCheck(parsed[0], offer.epochs, gaps) if parsed[1] == LOG_SUFFIX else None
        file = await FilledFile.make(self._files, path)
        try:
            async with nullcontext() if check is None else self._fetches:
                crc = await self._fetch_parts(filling, peer, (file, name, size), check, filled)
            if check is not None and not self._is_right_end(filling, parsed[0], check):
                raise FillingFailedError(f"{name} ends at offset {check.next_offset}, damaged where it comes from")
            is_it = sealed is None or SealedFile(size, crc) == sealed
            if check is not None and not is_it:
                raise FillingFailedError(f"{name} is not what its seal says, damaged where it comes from")
            await file.sync()
        finally:
            await file.close()
        if not is_it:  # an index, which is made anew when it is wanted
            await self._files.disk.unlink(path)

    async def _fetch_parts(
        self, filling: _Filling, peer: Peer, into: tuple[FilledFile, str, int], check: LogCheck | None,
        filled: FilledLog | None,
    ) -> int:  # fmt: skip
        """The CRC-32C of all of it, if its segment was cleaned."""
        file, name, size = into
        position = asked = crc = 0
        is_sealed = sealed_file(name, filling.seals) is not None
        async with trio.open_nursery() as nursery:
            ahead: deque[_Chunk] = deque()
            while position < size:
                while asked < size and len(ahead) < CHUNKS_AHEAD:
                    ahead.append(_Chunk(asked, min(limits.SHIPPED_CHUNK_BYTES, size - asked)))
                    await self._pace.spend(ahead[-1].length, self.bytes_per_s())
                    nursery.start_soon(self._read, peer, filling.offer.shipment, name, ahead[-1])
                    asked += ahead[-1].length
                chunk = ahead.popleft()
                await chunk.done.wait()
                if check is not None and not check.take(chunk.data):
                    raise FillingFailedError(f"{name} is damaged where it comes from, behind offset "
                                             f"{check.next_offset}")  # fmt: skip
                if check is not None and filled is not None:
                    for batches, next_offset in check.whole:
                        await filled.take(batches, next_offset)
                await file.write(chunk.data, position, is_aligned=is_of_buffer(chunk.data))
                crc = crc32c(chunk.data, crc) if is_sealed else 0
                length = len(chunk.data)
                self._bulk.parts.give(chunk.data)
                position += length
                self.received_bytes += length
                self._filling[filling.group] += length
        return crc

    def _is_right_end(self, filling: _Filling, base_offset: int, check: LogCheck) -> bool:
        """A log goes just to the next one; the last one to the position that was promised, or on: where it is cut must
        be the end of a batch (`FilledLog`). Where a batch begins is in no checksum: this sees what that does not. The
        last batches of one that was cleaned may be gone.
        """
        offer, seal = filling.offer, filling.seals.get(base_offset)
        if seal is not None:
            return check.is_whole and check.next_offset <= seal.end_offset
        following = min((base for base in offer.logs if base > base_offset), default=None)
        if following is None:
            return check.next_offset >= offer.position.offset
        return check.is_whole and check.next_offset == following

    async def _read(self, peer: Peer, shipment: str, name: str, chunk: _Chunk) -> None:
        payload = {"shipment": shipment, "name": name, "position": chunk.position, "length": chunk.length}
        _answer, blobs = await peer.call(READ, payload)
        if len(blobs) != 1 or len(blobs[0]) != chunk.length:
            raise FillingFailedError(f"{name}: another answer than {chunk.length} bytes")
        chunk.data = blobs[0]
        chunk.done.set()


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The cause, of however many."""
    found: BaseException = errors
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
