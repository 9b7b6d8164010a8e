"""Replicas that are on their way to other nodes: which may go on, and who tells when they are there.

Everything that is to be done is in the image (`metadata.replica_moves`). Each core looks, of what it leads, which moves
may go on; its replication has the replicas learn and vote. When a group has committed the voters that are wanted, and a
quorum says that nobody else leads it, the controller hears of it and ends the move. Whatever ends in between, the next
leader looks at the same image and goes on.

How far they are is told to all nodes, so that any of them can show it; it is of this moment, and nobody's decision.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Final

import trio

from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.errors import MailboxError
from tpc_broker.metadata.cluster_core_moves import core_moves
from tpc_broker.metadata.records import CANCELLED
from tpc_broker.metadata.replica_moves import active_moves, all_moves, coming, move_done
from tpc_broker.model import PartitionIndex, TopicId, TopicPartition
from tpc_broker.rounds import next_round

if TYPE_CHECKING:
    from tpc_broker.broker.core_ground import CoreGround
    from tpc_broker.broker.payloads import Answer, Payload, Row
    from tpc_broker.broker.replication_port import Leaderships, Voters
    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.records import MetadataRecord, MoveBegun, ReplicasMoving
    from tpc_broker.model import CoreId

log = logging.getLogger(__name__)

LOOK_S: Final = 0.5
CONFIRM_S: Final = 2.0
SETTLED_TOGETHER_S: Final = 0.4
"""The end of a move waits for those of others for so long: each change of the metadata is work of some milliseconds for
every core, and nobody waits for the end.
"""
TOLD_S: Final = 10.0
"""So long what was told of a move's progress is shown."""

BETWEEN_CORES: Final = "cores"
"""Why a replica goes to another core of its node is not known."""

Progress = tuple[int, int, int]
"""Offsets: where the log starts, what the replica that is farthest behind has, where the log ends."""


class ReplicaMoves:
    """Of one core of a node of a cluster."""

    def __init__(self, core: CoreGround, leaderships: Leaderships, voters: Voters) -> None:
        self._core = core
        self._leaderships = leaderships
        self._voters = voters
        self._progress: dict[TopicPartition, tuple[float, Progress]] = {}
        self._settled: list[Row] = []
        """Told, and to be written with what comes meanwhile."""
        core.metadata.serve_at_controller("moves.settled", self._serve_settled)
        core.metadata.serve_at_controller("moves.newest", self._serve_newest)
        core.mailboxes.serve("moves.progress", self._serve_progress)
        if core.cluster is not None:
            core.cluster.serve("moves.progress", self._serve_progress_of_node)

    async def run(self) -> None:
        while True:
            await next_round(LOOK_S)
            moves = {_key(move): move for _topic, move in all_moves(self._core.view.image)}
            self._voters.allow_moves(self._allowed() if moves else frozenset())
            await self._confirm_changes()
            if moves:
                await self._tell_settled(moves)
                await self._tell_progress(moves)

    def _allowed(self) -> frozenset[TopicPartition]:
        settings = self._core.settings
        if settings.replica_moves_paused:
            return frozenset()
        return active_moves(self._core.view.image, settings.replica_moves_per_node, self._core.view.absent)

    # -- their beginning -----------------------------------------------------------------------------------------------

    async def _confirm_changes(self) -> None:
        """Leaders here begin no change of voters by metadata that may be older than their election."""
        terms = self._voters.changes_to_confirm()
        if not terms:
            return
        try:
            answer, _blobs = await self._core.mailboxes.call(METADATA_CORE, "moves.newest", {})
        except MailboxError as error:
            log.debug("whether the metadata here are the newest is not known: %s", error)
            return
        self._voters.confirm_changes(terms, int(answer["newest"]))

    async def _serve_newest(self, _caller: CoreId, _payload: Payload, _blobs: list[bytes]) -> Answer:
        return {"newest": await self._core.metadata.change(lambda image: ([], int(image.version)))}, []

    # -- the end of moves ----------------------------------------------------------------------------------------------

    async def _tell_settled(self, moves: dict[TopicPartition, ReplicasMoving]) -> None:
        rows = []
        for key, move in moves.items():
            term = self._voters.settled_term(key)
            if term is not None and await self._is_confirmed(key, move, term):
                rows.append([key.topic_id.hex, int(key.partition), move.move_id, term])
        if not rows:
            return
        try:
            await self._core.mailboxes.call(METADATA_CORE, "moves.settled", {"moves": rows})
        except MailboxError as error:
            log.debug("moves that are done could not be told: %s", error)

    async def _is_confirmed(self, key: TopicPartition, move: ReplicasMoving, term: int) -> bool:
        """That the group has gone no further, under another leader, and that the metadata here want nothing else."""
        with trio.move_on_after(CONFIRM_S):
            if not await self._leaderships.confirm(key):
                return False
            topic = self._core.view.image.topic_by_id(key.topic_id)
            wanted = None if topic is None else topic.moves.get(key.partition)
            return wanted == move and self._voters.settled_term(key) == term
        return False

    async def _serve_settled(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        """What several nodes tell at about the same time is one change."""
        if not self._settled:
            self._core.start_soon(self._end_settled)
        self._settled += payload["moves"]
        return {}, []

    async def _end_settled(self) -> None:
        """What comes to nothing is told again."""
        await trio.sleep(SETTLED_TOGETHER_S)
        rows, self._settled = self._settled, []

        def decide(image: ClusterImage) -> tuple[list[MetadataRecord], None]:
            records: list[MetadataRecord] = []
            for topic_id, index, move_id, term in {tuple(row): None for row in rows}:
                records += move_done(image, _named(topic_id, index), int(move_id), int(term))
            return records, None

        try:
            await self._core.metadata.change(decide)
        except MailboxError as error:
            log.debug("ends of moves could not be written: %s", error)

    # -- progress ------------------------------------------------------------------------------------------------------

    async def _tell_progress(self, moves: dict[TopicPartition, ReplicasMoving]) -> None:
        rows = [
            [key.topic_id.hex, int(key.partition), *progress]
            for key in moves
            if (progress := self._voters.progress(key)) is not None
        ]
        if rows:
            await self._core.mailboxes.notify(METADATA_CORE, "moves.progress", {"moves": rows})

    async def _serve_progress(self, _caller: CoreId, payload: Payload, _blobs: list[bytes]) -> Answer:
        self._note_progress(payload)
        if self._core.cluster is not None:
            self._core.cluster.tell(None, "moves.progress", payload)
        return {}, []

    async def _serve_progress_of_node(self, payload: Payload, _blobs: list[bytes]) -> Answer:
        self._note_progress(payload)
        return {}, []

    def _note_progress(self, payload: Payload) -> None:
        now_s = self._now_s()
        self._progress = {key: told for key, told in self._progress.items() if now_s - told[0] < TOLD_S}
        for topic_id, index, *offsets in payload["moves"]:
            first, held, end = map(int, offsets)
            self._progress[_named(topic_id, index)] = now_s, (first, held, end)

    def _now_s(self) -> float:
        return self._core.clock.monotonic_ms() / 1000

    def rows(self) -> list[Payload]:
        """What is under way, for people; of core 0."""
        image, allowed = self._core.view.image, self._allowed()
        between_nodes = [self._row(topic, move, allowed) for topic, move in all_moves(image)]
        return between_nodes + [self._row_of_cores(*one) for one in core_moves(image)]

    def _row_of_cores(self, topic: TopicImage, move: MoveBegun, source: CoreId) -> Payload:
        """Nothing is copied. What its node waits for it knows alone."""
        is_away = move.node in self._core.view.absent
        return {
            "topic": topic.name,
            "partition": int(move.partition),
            "replicas": [int(place.node) for place in topic.replicas[move.partition]],
            "adding": [],
            "removing": [],
            "between_cores": {"node": int(move.node), "from": int(source), "to": int(move.target)},
            "reason": CANCELLED if move.is_cancelled else BETWEEN_CORES,
            "state": "waiting" if is_away else "going back" if move.is_cancelled else "handing over",
            "records": None,
            "records_total": None,
            "begun_ms": move.begun_ms,
        }

    def _row(self, topic: TopicImage, move: ReplicasMoving, allowed: frozenset[TopicPartition]) -> Payload:
        told_s, offsets = self._progress.get(_key(move), (0.0, None))
        is_told = offsets is not None and self._now_s() - told_s < TOLD_S
        paused = self._core.settings.replica_moves_paused
        state = "paused" if paused else "waiting" if _key(move) not in allowed else "copying" if is_told else "joining"
        first, held, end = offsets if is_told and offsets is not None else (0, 0, 0)
        return {
            "topic": topic.name,
            "partition": int(move.partition),
            "replicas": [int(place.node) for place in move.wanted],
            "adding": [int(node) for node in coming(topic, move)],
            "removing": [int(place.node) for place in move.places if place not in move.wanted],
            "between_cores": None,
            "reason": move.reason,
            "state": state,
            "records": max(0, min(held, end) - first) if is_told else None,
            "records_total": end - first if is_told else None,
            "begun_ms": move.begun_ms,
        }


def _key(move: ReplicasMoving) -> TopicPartition:
    return TopicPartition(move.topic_id, move.partition)


def _named(topic_id: str, index: int) -> TopicPartition:
    return TopicPartition(TopicId(uuid.UUID(hex=topic_id)), PartitionIndex(int(index)))
