"""The leader's part of filling a replica with segments: it says that there is something to fetch, and gives it.

A replica whose next records are not there as items any more, or that lacks so many that reading them one by one takes
too long, gets segments (`raft.leaders`, INSTALL). The leader asks the replica's core again and again to fetch them,
until it says up to which position it has them (`FILL`); the replica fetches them (`filling`): `OFFER` makes a shipment,
a copy of names that retention does not touch, and says what is in it, `READ` gives parts of its files, `END` drops it.
When it has them it says so (`FILLED`), and is asked at once. So a leader remembers nothing that it could not ask for
again, and any of the two may end at any moment.

A shipment ends at a committed position: what is behind it, and what comes meanwhile, is sent as items.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import trio

from tpc_broker import limits
from tpc_broker.cluster.raft_codec import encode_entry
from tpc_broker.errors import CallFailedError, MailboxError, PartitionOfflineError, StorageFailedError
from tpc_broker.log.files import LOSSES_FILE, decode_losses
from tpc_broker.node.links.links import FilePart
from tpc_broker.node.links.part_buffers import PartBuffers
from tpc_broker.raft.items import Position
from tpc_broker.raft.journal import MarkerEntry

if TYPE_CHECKING:
    from tpc_broker.cluster.link_codec import Hello
    from tpc_broker.engine.data_plane import RingDataPlane
    from tpc_broker.node.links.links import Handler
    from tpc_broker.node.replicas.replica_driver import ReplicaDriver
    from tpc_broker.node.replicas.replica_links import ReplicaLinks
    from tpc_broker.raft.items import Voter
    from tpc_broker.storage.ports import Clock
    from tpc_broker.storage.replicas.shipments import Shipments
    from tpc_broker.storage.segments.partition_storage import PartitionStorage

log = logging.getLogger(__name__)

FILL: Final = "segments.fill"
OFFER: Final = "segments.offer"
READ: Final = "segments.read"
END: Final = "segments.end"
FILLED: Final = "segments.filled"
ASK_EVERY_S: Final = 0.3
UNUSED_MS: Final = 60_000
SHIPPED_BYTES_MIN: Final = 8 * limits.MIB
"""A replica that lacks less gets items: so much they bring in the time that it takes to install segments."""
AGAIN_MS: Final = 60_000
AGAIN_BYTES_MIN: Final = 64 * limits.MIB
"""For so long after a replica was filled it gets segments only if it lacks so much: of what is written quickly it lacks
more than the least whenever it has got some, and would never come to items.
"""


def is_worth_shipping(files: PartitionStorage, offset: int, bytes_min: int = SHIPPED_BYTES_MIN) -> bool:
    """Whether what segments hold behind an offset is so much that a replica had better fetch them as they are: whole
    ones, from the one on in which the offset is. With less than `bytes_min` it had not.
    """
    missing, shipped, end_offset = 0, 0, files.written_end_offset
    for segment in reversed(files.segments):
        shipped += segment.size_bytes
        if segment.base_offset < offset:  # about as much of its bytes as of its offsets
            span = max(end_offset - segment.base_offset, 1)
            missing += segment.size_bytes * max(end_offset - offset, 0) // span
            break
        missing += segment.size_bytes
        end_offset = segment.base_offset
    return missing >= bytes_min and 2 * missing >= shipped


class SegmentSource:
    """Of one core; touched by its thread only."""

    def __init__(self, shipments: Shipments, plane: RingDataPlane, clock: Clock) -> None:
        self._shipments = shipments
        self._plane = plane
        self._clock = clock
        self._driver: ReplicaDriver | None = None
        self._links: ReplicaLinks
        self._wanting: dict[tuple[str, Voter], None] = {}
        self._asking: set[tuple[str, Voter]] = set()
        self._filled_ms: dict[tuple[str, Voter], int] = {}
        """When replicas were filled."""
        self._declined_ms: dict[tuple[str, Voter], int] = {}
        """When replicas had what could have been shipped to them: they get items for some time."""
        self.tells_gaps = False
        """By the cluster's feature level."""
        self._more = trio.Event()
        self._parts = PartBuffers()
        self.sent_bytes = 0
        self.handlers: dict[str, Handler] = {
            OFFER: self.serve_offer,
            READ: self.serve_read,
            END: self.serve_end,
            FILLED: self.serve_filled,
        }

    def begin(self, driver: ReplicaDriver, links: ReplicaLinks) -> None:
        """The core has replicas now."""
        self._driver, self._links = driver, links
        driver.on_ship, driver.item_reads.ships_instead = self._ship, self._ships_instead

    def _ships_instead(self, group: str, target: Voter, offset: int) -> bool:
        """Whether a replica that lacks what is behind an offset gets segments, and not items as it could."""
        driver, replica = self._driver, (group, target)
        assert driver is not None
        files = driver.files_of(group)
        if group not in driver.core.groups or files is None or self._is_recent(self._declined_ms, replica):
            return False
        again = self._is_recent(self._filled_ms, replica)
        return is_worth_shipping(files, offset, AGAIN_BYTES_MIN if again else SHIPPED_BYTES_MIN)

    def _is_recent(self, when_ms: dict[tuple[str, Voter], int], replica: tuple[str, Voter]) -> bool:
        since_ms = when_ms.get(replica)
        if since_ms is None or self._clock.monotonic_ms() - since_ms < AGAIN_MS:
            return since_ms is not None
        del when_ms[replica]
        return False

    def _ship(self, group: str, target: Voter) -> None:
        self._wanting[group, target] = None
        self._more.set()

    async def run(self) -> None:
        """Ask those that need segments to fetch them, until cancelled."""
        while True:
            if not self._wanting:
                self._more = trio.Event()
                await self._more.wait()
            async with trio.open_nursery() as nursery:
                for group, target in list(self._wanting):
                    nursery.start_soon(self._ask, group, target)
            await trio.sleep(ASK_EVERY_S)
            await self._shipments.end_unused(self._clock.monotonic_ms() - UNUSED_MS)
            self._free_parts()

    async def _ask(self, group: str, target: Voter) -> None:
        """One question at a time: of two, the answer to the later one would be that the replica had it all."""
        if (group, target) not in self._asking:
            self._asking.add((group, target))
            try:
                await self._ask_once(group, target)
            finally:
                self._asking.remove((group, target))

    async def _ask_once(self, group: str, target: Voter) -> None:
        driver = self._driver
        assert driver is not None
        machine, files = driver.core.find(group), driver.files_of(group)
        if machine is None or files is None or not machine.awaits_segments(target):
            self._wanting.pop((group, target), None)
            return
        position = committed_in_files(machine.commit, machine.log.position_at, files.written_end_offset)
        try:
            answer = await self._links.ask(machine.address_of(target), FILL, {"group": group, "position": position})
        except MailboxError as error:
            log.debug("%s: node %d was not asked to fetch segments: %s", group, target.node, error)
            return
        if "filled" in answer and group in driver.core.groups:
            epoch, offset = answer["filled"]
            now_ms = self._clock.monotonic_ms()
            (self._declined_ms if answer.get("had") else self._filled_ms)[group, target] = now_ms
            driver.core.shipped(group, target, Position(int(epoch), int(offset)), now_ms)
            driver.wake()

    async def serve_filled(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> None:
        """A replica has what it was to fetch: it is asked at once up to where, and not when its turn comes."""
        for group, target in list(self._wanting):
            if group == payload["group"] and target.node == hello.node:
                await self._ask(group, target)

    # -- what replicas ask for -----------------------------------------------------------------------------------------

    async def serve_offer(self, hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> Any:
        """A shipment of what is committed from an offset on; CallFailedError: it is not led here."""
        group, driver = str(payload["group"]), self._driver
        machine = None if driver is None else driver.core.find(group)
        files = None if driver is None else driver.files_of(group)
        if driver is None or machine is None or files is None or not (machine.is_leader and machine.is_ready):
            raise CallFailedError("it is not led here")
        position = committed_in_files(machine.commit, machine.log.position_at, files.written_end_offset)
        term, markers = machine.term, machine.log.markers_upto(position)
        try:
            starts = self._plane.bounds(driver.handle_of(group)).log_start_offset
            if starts > position.offset:
                raise CallFailedError(f"{files.label} begins behind what its segments hold")
            from_offset = max(starts, min(int(payload["from_offset"]), position.offset))
            removed_upto = files.cleaned.removed_upto
            shipment = await self._shipments.begin(files, from_offset, position.offset, self._clock.monotonic_ms())
            removed_upto = max(removed_upto, files.cleaned.removed_upto)  # by what was swapped meanwhile, too
            lost = await files.folder.read_file(LOSSES_FILE) or b""
        except (StorageFailedError, PartitionOfflineError, OSError) as error:
            raise CallFailedError(f"{files.label} cannot be shipped now: {error}") from error
        log.info("%s: %d bytes are shipped to node %d", files.label, shipment.size_bytes, hello.node)
        gaps = {"removed_upto": removed_upto, "lost": decode_losses(lost)} if self.tells_gaps or removed_upto else {}
        return {
            **gaps,
            "shipment": shipment.name,
            "term": term,
            "position": position,
            "starts": starts,
            "markers": [[one.epoch, one.start_offset, encode_entry(MarkerEntry(group, one)).hex()] for one in markers],
            "files": shipment.files,
        }, ()

    async def serve_read(self, _hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> FilePart:
        shipment = self._shipments.get(str(payload["shipment"]), self._clock.monotonic_ms())
        name, position, length = str(payload["name"]), int(payload["position"]), int(payload["length"])
        size = next((file.size_bytes for file in shipment.files if file.name == name), -1) if shipment else -1
        if shipment is None or not 0 <= position <= position + length <= size or length > limits.SHIPPED_CHUNK_BYTES:
            raise CallFailedError("there is no such part of a shipment")
        buffer = self._parts.take()
        try:
            data = await self._shipments.read(shipment, name, position, length, buffer)
        except OSError as error:
            raise CallFailedError(f"{name} cannot be read: {error}") from error
        if len(data) != length:
            raise CallFailedError(f"{name} is shorter than it was")
        self.sent_bytes += length
        return FilePart(data, lambda: self._sent(buffer))

    def _sent(self, buffer: memoryview) -> None:
        self._parts.give(buffer)
        self._free_parts()

    def _free_parts(self) -> None:
        if not len(self._shipments):
            self._parts.clear()

    async def serve_end(self, _hello: Hello, payload: dict[str, Any], _blobs: list[bytes]) -> None:
        await self._shipments.end(str(payload["shipment"]))
        self._free_parts()


def committed_in_files(commit: Position, position_at: Any, written_offset: int) -> Position:
    """The last position that is committed and in segments."""
    found: Position = commit if commit.offset <= written_offset else position_at(written_offset)
    return found
