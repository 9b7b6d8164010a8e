"""Live moves of partitions between the cores of a node: core 0 conducts, the two cores act, the metadata fence.

In a cluster it is a replica that moves, leading or following, and its group goes on with the others; the metadata are
the cluster's, so the node's core 0 has their leader write the end.

The life of a move, each step durable before the next begins:

1. core 0: MoveBegun in the metadata;
2. the core that has the partition lets it go: all of it in its segments, RELEASED in its journal
   (`storage.core_moves`);
3. the target, if the metadata name it for this very move: ADOPTED in its journal, a new leader epoch, the partition is
   led there;
4. core 0: MoveDone in the metadata. Now clients hear of it, and the first core forgets what it let go.

Every step may be asked for again, and answers as the first time; so whatever ends, core 0 goes on from the metadata
with step 2. A partition that was released is nowhere until it is adopted. If the target refuses it, the metadata give
it back (MoveDone names the old owner), and that core takes it again once every other one, on metadata no older, has
said that it has not got it: nobody may adopt it after that, because an adoption is for a move that is under way.

In a cluster a move may be cancelled at any step. The record that says so ends the releases and adoptions of this move
on every core that has read it, and core 0 asks both: the one that has the partition keeps it. If neither has, it was
released, and MoveDone gives it back as above.
"""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.broker.reassignments import Check, Ongoing, Outcome, WantedBrokers, new_move_id, nothing_to_check
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import JournalStoppedError, MailboxError, PartitionOfflineError
from tpc_broker.log.checkpoint import CheckpointError, decode_entry_in_parts
from tpc_broker.metadata.assignment_requests import Refusal
from tpc_broker.metadata.cluster_core_moves import CoreShift, begin_core_moves, end_core_move
from tpc_broker.metadata.records import ONLY_NODE
from tpc_broker.model import NOT_HERE, CoreId, NodeId, PartitionIndex, TopicId, TopicPartition, broker_id_of
from tpc_broker.storage.segments.short_steps import PRODUCERS_AT_ONCE, in_short_steps

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tpc_broker.broker.payloads import Answer, Payload
    from tpc_broker.broker.ports import CoreStorage
    from tpc_broker.broker.replicated import CoreWithPartitions
    from tpc_broker.metadata.image import ClusterImage
    from tpc_broker.metadata.records import MetadataRecord, MoveBegun

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Moves under way at the same time: each takes a share of the disk. Those that wait for a core, or are taken back, take
none.
"""
RETRY_S: Final = 0.1
RELEASE_TIMEOUT_MS: Final = 60_000
ADOPT_TIMEOUT_MS: Final = 30_000
KEEP_TIMEOUT_MS: Final = 10_000


class MoveRefusedError(Exception):
    """The partition stays, or cannot come, and asking again does not help."""


@dataclass(slots=True)
class MoveStatistics:
    """Moves that this core has conducted, since its start."""

    done: int = 0
    given_up: int = 0
    taken_back: int = 0


class CoreMoves:
    """Of one core; on core 0 `Reassignments` too."""

    def __init__(self, core: CoreWithPartitions, storage: CoreStorage) -> None:
        self._core = core
        self._storage = storage
        self._running: set[tuple[TopicPartition, bool]] = set()
        """True: it is being taken back, beside what may still be asked of a core that does not answer."""
        self._waiting: dict[TopicPartition, MoveBegun] = {}
        """For a core that is not up."""
        self._changed = trio.Event()
        self.statistics = MoveStatistics()
        core.mailboxes.serve("moves.release", self._serve_release)
        core.mailboxes.serve("moves.adopt", self._serve_adopt)
        core.mailboxes.serve("moves.keep", self._serve_keep)
        core.metadata.serve_at_controller("moves.core_begin", self._serve_begin)
        core.metadata.serve_at_controller("moves.core_done", self._serve_done)

    # -- what clients ask for (core 0) ---------------------------------------------------------------------------------

    async def alter(
        self, wanted: Sequence[WantedBrokers], *, allow_factor_change: bool, check: Check = nothing_to_check
    ) -> list[Outcome]:
        outcomes: list[Outcome] = []

        def decide(image: ClusterImage) -> tuple[list[MetadataRecord], None]:
            check(image)
            outcomes.clear()
            records: list[MetadataRecord] = []
            for one in wanted:
                try:
                    records += self._decide(image, one, allow_factor_change=allow_factor_change)
                except Refusal as refusal:
                    outcomes.append(Outcome(refusal.code, refusal.message))
                else:
                    outcomes.append(Outcome())
            return records, None

        await self._core.metadata.change(decide)
        self._changed.set()
        return outcomes

    def _decide(self, image: ClusterImage, one: WantedBrokers, *, allow_factor_change: bool) -> list[MetadataRecord]:
        controller, now_ms = self._core.controller(image), self._core.clock.wall_ms()
        if one.brokers is not None and len(one.brokers) > 1 and not allow_factor_change:
            text = f"The replication factor is changed from 1 to {len(one.brokers)}"
            raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, text)
        if one.brokers is not None:
            move_id = self._core.chance.uuid().int >> 66
            return controller.begin_move(one.topic, one.partition, one.brokers, move_id=move_id, now_ms=now_ms)
        move = controller.move_of(one.topic, one.partition)
        owner = image.owner_of(TopicPartition(move.topic_id, move.partition))
        assert owner is not None, move
        return controller.end_move(move, owner)

    def ongoing(self) -> Sequence[Ongoing]:
        view, found = self._core.view, []
        for key, move in view.image.moving.items():
            topic = view.image.topics[key.topic_id]
            target = broker_id_of(view.node, move.target)
            source = broker_id_of(view.node, topic.assignment.owners[key.partition])
            found.append(Ongoing(topic.name, key.partition, (target, source), (target,), (source,)))
        return found

    # -- what a node of a cluster does by itself (core 0) --------------------------------------------------------------

    async def begin_own(self, shifts: Sequence[CoreShift]) -> int:
        """Of replicas of this node; how many of them can go now. MailboxError: what was begun is not known."""
        rows = [[one.key.topic_id.hex, one.key.partition, one.source, one.target] for one in shifts]
        payload = {"node": self._core.view.node, "moves": rows}
        answer, _blobs = await self._core.mailboxes.call(METADATA_CORE, "moves.core_begin", payload)
        return int(answer["begun"])

    async def _serve_begin(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        """Where the metadata of a cluster are led."""
        node, now_ms = NodeId(int(payload["node"])), self._core.clock.wall_ms()
        wanted = [
            CoreShift(_key_of({"partition": row[:2]}), CoreId(int(row[2])), CoreId(int(row[3])))
            for row in payload["moves"]
        ]

        def decide(image: ClusterImage) -> tuple[list[MetadataRecord], int]:
            new_id = partial(new_move_id, self._core)
            begun = begin_core_moves(image, node, wanted, new_id=new_id, now_ms=now_ms)
            return begun, len(begun)

        return {"begun": await self._core.metadata.change(decide)}, []

    # -- core 0 conducts -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Carry out what the metadata say is under way, until cancelled. Core 0 only."""
        async with trio.open_nursery() as nursery:
            while True:
                ours = [(key, move) for key, move in self._core.view.image.moving.items()
                        if move.is_on(self._core.view.node)]  # fmt: skip
                self._tell_waiting({key: move for key, move in ours if not self._may_go_on(key, move)})
                for key, move in ours:
                    if (key, move.is_cancelled) in self._running or key in self._waiting:
                        continue
                    if move.is_cancelled or sum(not is_back for _key, is_back in self._running) < AT_ONCE:
                        self._running.add((key, move.is_cancelled))
                        nursery.start_soon(self._conduct, key, move)
                await self._changed.wait()
                self._changed = trio.Event()

    def look(self) -> None:
        """The metadata say something else of what is under way, or a core has come up."""
        self._changed.set()

    def _may_go_on(self, key: TopicPartition, move: MoveBegun) -> bool:
        """Whether both cores are up, unless it is being taken back: one of them may do then."""
        cores = {move.target, self._core_of(key)} - {NOT_HERE}
        return move.is_cancelled or all(self._core.is_up(core) for core in cores)

    def _tell_waiting(self, waiting: dict[TopicPartition, MoveBegun]) -> None:
        before, self._waiting = self._waiting, waiting
        for key, move in waiting.items():
            if before.get(key) != move:
                log.warning("move of %s to core %d: it waits for a core that is not up", self._label(key), move.target)

    async def _conduct(self, key: TopicPartition, move: MoveBegun) -> None:
        told = None
        while self._core.view.image.moving.get(key) == move and self._may_go_on(key, move):
            try:
                await (self._take_back(key, move) if move.is_cancelled else self._carry_out(key, move))
                break
            except (MailboxError, PartitionOfflineError) as error:
                if str(error) != told:
                    told = str(error)
                    what = "taking the move back" if move.is_cancelled else "move"
                    log.warning("%s of %s to core %d: %s; it is tried again",
                                what, self._label(key), move.target, error)  # fmt: skip
            await trio.sleep(RETRY_S)
        self._running.discard((key, move.is_cancelled))
        self._changed.set()

    def _core_of(self, key: TopicPartition) -> CoreId:
        topic = self._core.view.image.topics.get(key.topic_id)
        return NOT_HERE if topic is None else topic.core_on(self._core.view.node, key.partition)

    def _source_of(self, key: TopicPartition) -> CoreId:
        source = self._core_of(key)
        if source == NOT_HERE:
            raise PartitionOfflineError("this node has no replica of it")
        return source

    def _about(self, key: TopicPartition, move: MoveBegun) -> Payload:
        return {"partition": [key.topic_id.hex, key.partition], "target": move.target, "move_id": move.move_id,
                "version": self._core.view.image.version}  # fmt: skip

    async def _carry_out(self, key: TopicPartition, move: MoveBegun) -> None:
        source = self._source_of(key)
        call = self._core.mailboxes.call
        payload = self._about(key, move)
        begun_ns = self._core.clock.monotonic_ns()
        answer, blobs = await call(source, "moves.release", payload, timeout_ms=RELEASE_TIMEOUT_MS)
        if "refused" not in answer:
            _check_again(answer)
            if self._core.view.image.moving.get(key) != move:
                return  # it was cancelled
            answer, _blobs = await call(move.target, "moves.adopt", payload, blobs, timeout_ms=ADOPT_TIMEOUT_MS)
            _check_again(answer)
        refused = answer.get("refused")
        owner = move.target if refused is None else source
        label = self._label(key)
        await self._end(move, owner)
        if refused is None:
            self.statistics.done += 1
            took_ms = (self._core.clock.monotonic_ns() - begun_ns) / 1e6
            log.info("%s was moved from core %d to core %d in %.0f ms", label, source, move.target, took_ms)
        else:
            self.statistics.given_up += 1
            log.error("%s stays on core %d, its move to core %d was given up: %s", label, source, move.target, refused)

    # Rule: A move that was cancelled ends where the partition is. No core that has read of the cancellation adopts, and
    # one that has not read of it is not asked. See also tpc_broker/metadata/cluster_core_moves.py. Held by
    # tests/broker/test_cancelled_core_moves.py (a crash of each core at each step),
    # tests/cluster/test_cancelled_moves.py (of the processes, under load).
    async def _take_back(self, key: TopicPartition, move: MoveBegun) -> None:
        """It was cancelled. What a core that knows this has not got now, it does not get by this move any more."""
        source, payload = self._source_of(key), self._about(key, move)
        owner = source
        if not await self._is_kept(source, payload):
            is_there = await self._is_kept(move.target, payload)
            if is_there is None:
                text = f"neither core {source} has it, nor is it known whether core {move.target} has"
                raise PartitionOfflineError(text)
            owner = move.target if is_there else source
        await self._end(move, owner)
        label = self._label(key)
        if owner == source:
            self.statistics.taken_back += 1
            log.info("%s stays on core %d, its move to core %d was cancelled", label, source, move.target)
        else:
            self.statistics.done += 1
            log.info("%s is on core %d: it came from core %d before that was cancelled", label, owner, source)

    async def _is_kept(self, core: CoreId, payload: Payload) -> bool | None:
        """Whether a core has the partition; None: it does not say."""
        if not self._core.is_up(core):
            return None
        try:
            answer, _blobs = await self._core.mailboxes.call(core, "moves.keep", payload, timeout_ms=KEEP_TIMEOUT_MS)
        except MailboxError as error:
            log.debug("whether core %d has a partition is not known: %s", core, error)
            return None
        return answer.get("has")

    async def _end(self, move: MoveBegun, owner: CoreId) -> None:
        """MailboxError: the metadata may not say it yet."""
        if move.node == ONLY_NODE:
            await self._core.metadata.change(lambda image: (self._core.controller(image).end_move(move, owner), None))
            return
        done = {"partition": [move.topic_id.hex, move.partition], "move_id": move.move_id, "owner": owner}
        await self._core.mailboxes.call(METADATA_CORE, "moves.core_done", done)

    async def _serve_done(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        """Where the metadata of a cluster are led."""
        key, move_id, owner = _key_of(payload), int(payload["move_id"]), CoreId(int(payload["owner"]))
        await self._core.metadata.change(lambda image: (end_core_move(image, key, move_id, owner), None))
        return {}, []

    def _label(self, key: TopicPartition) -> str:
        topic = self._core.view.image.topics.get(key.topic_id)
        return f"{topic.name if topic is not None else key.topic_id}-{key.partition}"

    # -- the two cores -------------------------------------------------------------------------------------------------

    async def _serve_release(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        """What goes over; "refused": why it stays here; "again": why it is to be asked again."""
        await self._core.partitions.step_aside(_key_of(payload))
        return await self._between_changes(payload, self._release)

    async def _serve_adopt(self, _caller: CoreId, payload: Payload, blobs: list[bytes]) -> Answer:
        """Nothing: done; else as `_serve_release`."""
        return await self._between_changes(payload, partial(self._adopt, blobs))

    async def _serve_keep(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        """Of a move that was cancelled: "has": whether this core has the partition; else as `_serve_release`."""

        async def look() -> Answer:
            self._check(payload, is_cancelled=True)
            return {"has": self._storage.has(_key_of(payload))}, []

        try:
            return await self._core.metadata.between_changes(look)
        except PartitionOfflineError as error:
            return {"again": str(error)}, []

    def _check(self, payload: Payload, *, is_cancelled: bool = False) -> None:
        """PartitionOfflineError: the metadata here are older, or know of no such move."""
        if self._core.view.image.version < payload["version"]:
            self._core.metadata.behind.set()
            raise PartitionOfflineError(f"core {self._core.core_id} has older metadata")
        move = self._core.view.image.moving.get(_key_of(payload))
        asked = payload["move_id"], payload["target"], is_cancelled
        if move is None or (move.move_id, move.target, move.is_cancelled) != asked:
            raise PartitionOfflineError("the metadata know of no such move")

    async def _between_changes(
        self, payload: Payload, act: Callable[[TopicPartition, CoreId, int], Awaitable[list[bytes]]]
    ) -> Answer:
        async def act_then() -> list[bytes]:
            self._check(payload)
            return await act(_key_of(payload), CoreId(payload["target"]), payload["move_id"])

        try:
            return {}, await self._core.metadata.between_changes(act_then)
        except MoveRefusedError as error:
            return {"refused": str(error)}, []
        except PartitionOfflineError as error:
            return {"again": str(error)}, []

    async def _release(self, key: TopicPartition, target: CoreId, move_id: int) -> list[bytes]:
        released = self._storage.released(key)
        if released is None:
            if not self._core.partitions.is_led(key):
                if self._storage.has(key):
                    raise MoveRefusedError("it is offline")
                return []  # the target has it already, or says that it has not
            try:
                released = await self._core.partitions.release(key, target, move_id)
            except JournalStoppedError:
                raise
            except PartitionOfflineError as error:
                raise MoveRefusedError(str(error)) from error
        if released.released is None or released.released.move_id != move_id:
            raise PartitionOfflineError("an earlier release of it is being taken back")
        return [released.encode()]

    async def _adopt(self, blobs: list[bytes], key: TopicPartition, target: CoreId, move_id: int) -> list[bytes]:
        assert target == self._core.core_id, (target, move_id)
        if not self._storage.has(key):
            if not blobs:
                raise MoveRefusedError("neither of the two cores has it")
            try:
                released = await in_short_steps(decode_entry_in_parts(blobs[0], PRODUCERS_AT_ONCE))
                await self._core.partitions.adopt(key, released)
            except (CheckpointError, PartitionOfflineError) as error:
                if not self._storage.has(key):
                    raise MoveRefusedError(str(error)) from error
                raise
        await self._core.partitions.open_adopted(key)
        return []


def _key_of(payload: Payload) -> TopicPartition:
    topic_id, index = payload["partition"]
    return TopicPartition(TopicId(uuid.UUID(hex=topic_id)), PartitionIndex(int(index)))


def _check_again(answer: Payload) -> None:
    if "again" in answer:
        raise PartitionOfflineError(answer["again"])
