"""Decides where the replicas of a partition are to be, and when a move of them is over.

A move is one record, `ReplicasMoving`: where the replicas are to be, and all places that may have one until then. The
nodes that come make room for a replica as soon as they read it; the partition's leader has them learn and vote
(`raft.membership`), and tells when its group has committed just the voters that are wanted. Then `ReplicasMoved` says
so, and whoever had a replica and is not among them gives it up. A move that is cancelled is a move back.

A node that gave a replica up and gets one again begins another *life*: it is another voter, because what the one before
has promised is gone with its files. `ReplicasMoved` names the next life, and the term in which the group has left the
node out: files that have heard of a later term are not given up by it, since that term's leader may count on them.

All that is under way is in the image, and everybody reckons from it which moves may go on (`active_moves`): the most
urgent ones, as many for each node that receives as `replica.moves.per.node` says. A partition without a majority has no
leader, so its move stands still until nodes come back: it is in nobody's way. Who is away each node learns by itself,
some sooner than others. So while nodes go or come back, leaders may count differently, and a node may receive more at a
time than that: the number spares it, and nothing is unsound without it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_WITH_MOVES
from tpc_broker.metadata.assignment_requests import Refusal, assigned_to, check_min_insync_replicas
from tpc_broker.metadata.cluster_core_moves import begin_core_move, cancel_core_move, changed_cores, check_on_its_core
from tpc_broker.metadata.node_assignment import grouped
from tpc_broker.metadata.records import ASKED, CANCELLED, ReplicasMoved, ReplicasMoving, TopicAssigned
from tpc_broker.model import PartitionIndex, TopicPartition, broker_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.records import MetadataRecord
    from tpc_broker.model import BrokerId, NodeId, Replica

PLACES_MAX: Final = 10
"""Of one partition, while its replicas move."""
PEERS_MAX: Final = 6
"""Voters before and after, and learners, without the leader itself: what a group has room for."""

REPLACED, RAISED, DRAINED, BALANCED = "replaced", "raised", "drained", "balance"
REASONS: Final = (REPLACED, CANCELLED, RAISED, ASKED, DRAINED, BALANCED)
"""The most urgent first."""
CAN_WAIT: Final = frozenset({DRAINED, BALANCED})
"""Nobody misses anything meanwhile: such moves go at a pace that spares producers (`broker.pace`)."""

Member = TypeVar("Member", bound=tuple[int, int])
"""A voter: a node, and the incarnation of its replica."""

Wanted = tuple[str, int, "tuple[BrokerId, ...] | None"]
"""Topic, partition, brokers in order; None: whatever is under way is cancelled."""


class Request(NamedTuple):
    """What AlterPartitionReassignments asks for. `new_id` gives a fresh random number."""

    wanted: Sequence[Wanted]
    allow_factor_change: bool
    now_ms: int
    new_id: Callable[[], int]


def alter_replicas(image: ClusterImage, request: Request) -> tuple[list[MetadataRecord], list[Refusal | None]]:
    """What to write, and what was refused of each."""
    reordered: dict[str, dict[int, tuple[Replica, ...]]] = {}
    alone: list[TopicPartition] = []
    records: list[MetadataRecord] = []
    outcomes: list[Refusal | None] = []
    for name, index, brokers in request.wanted:
        try:
            topic = _topic(image, name, index)
            if brokers is None:
                records.append(_cancelled(image, topic, index, request))
            else:
                asked = assigned_to(brokers, {node: known.cores for node, known in image.nodes.items()})
                if topic.moves.get(PartitionIndex(index)) is None and set(asked) == set(topic.replicas[index]):
                    reordered.setdefault(name, {})[index] = asked
                elif changed_cores(topic.places(index), asked):
                    records += _to_another_core(image, topic, index, asked, request)
                else:
                    records += _moving(image, topic, index, asked, request)
                    alone.append(TopicPartition(topic.topic_id, PartitionIndex(index)))
        except Refusal as refusal:
            outcomes.append(refusal)
        else:
            outcomes.append(None)
    groups = grouped(image, alone)
    with_groups = image.apply(groups, image.version)
    return [*groups, *records, *_reordered(with_groups, reordered)], outcomes


def _topic(image: ClusterImage, name: str, index: int) -> TopicImage:
    topic = image.topic(name)
    if topic is None or not 0 <= index < topic.partitions_count:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    return topic


def _reordered(image: ClusterImage, wanted: dict[str, dict[int, tuple[Replica, ...]]]) -> Iterator[MetadataRecord]:
    """Nothing moves; another replica is preferred."""
    for name, by_index in wanted.items():
        topic = image.topic(name)
        assert topic is not None
        replicas = tuple(by_index.get(index, before) for index, before in enumerate(topic.replicas))
        if replicas != topic.replicas:
            owners = tuple(each[0].core for each in replicas)
            manual = tuple(sorted(topic.assignment.manual))
            yield TopicAssigned(topic.topic_id, owners, manual, replicas, topic.voters)


def _to_another_core(
    image: ClusterImage, topic: TopicImage, index: int, asked: tuple[Replica, ...], request: Request
) -> list[MetadataRecord]:
    """Refusal."""
    changed = changed_cores(topic.places(index), asked)
    assert changed, asked
    if len(changed) > 1:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Replicas on {len(changed)} nodes are to go to other cores; one replica of a partition does at a time.",
        )
    if [place.node for place in asked] != [place.node for place in topic.places(index)]:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "A replica goes to another core, or the replicas get another order: one after the other.",
        )
    if not topic.is_replicated(index):
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The partition was made below tpc.version=3 and has no group; it gets one with its first move to another "
            "node.",
        )
    return begin_core_move(image, topic, index, changed[0], move_id=request.new_id(), now_ms=request.now_ms)


def _cancelled(image: ClusterImage, topic: TopicImage, index: int, request: Request) -> MetadataRecord:
    """Refusal."""
    between_cores = image.moving.get(TopicPartition(topic.topic_id, PartitionIndex(index)))
    if between_cores is not None:
        return cancel_core_move(between_cores)
    move = topic.moves.get(PartitionIndex(index))
    if move is None or move.reason == CANCELLED:
        raise Refusal(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "No reassignment is in progress.")
    back = topic.replicas[index]
    return ReplicasMoving(
        topic.topic_id, move.partition, back, move.places, CANCELLED, request.new_id(), request.now_ms
    )  # fmt: skip


def _moving(
    image: ClusterImage, topic: TopicImage, index: int, asked: tuple[Replica, ...], request: Request
) -> list[MetadataRecord]:
    """Refusal."""
    move = topic.moves.get(PartitionIndex(index))
    if move is not None and move.wanted == asked:
        return []
    check_on_its_core(image, topic, index)
    if image.feature_level < FIRST_WITH_MOVES:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"Replicas move between nodes from tpc.version={FIRST_WITH_MOVES} on; the cluster is at "
            f"{image.feature_level} (kafka-features.sh upgrade).",
        )
    present = topic.replicas[index]
    if len(asked) != len(present) and not request.allow_factor_change:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(present)} to {len(asked)}",
        )
    check_min_insync_replicas(topic.configs, len(asked))
    return [moving(topic, index, asked, ASKED, request.new_id(), request.now_ms)]


def moving(  # noqa: PLR0913 (a move with all that it is)
    topic: TopicImage, index: int, wanted: tuple[Replica, ...], reason: str, move_id: int, now_ms: int
) -> ReplicasMoving:
    """The record of a move to `wanted`, in place of the one that is under way if there is one. Refusal."""
    places = topic.places(index)
    cores = {place.node: place for place in places}
    for replica in wanted:
        if cores.get(replica.node, replica) != replica:
            raise Refusal(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The replica on node {replica.node} is on broker {broker_id_of(*cores[replica.node])}; it goes to "
                "another core of its node only while no other replica moves.",
            )
    more = tuple(replica for replica in wanted if replica not in places)
    if len(places) + len(more) > PLACES_MAX:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{len(places)} nodes may have a replica while the move goes on that is under way; at most {PLACES_MAX} "
            "can: cancel that first, or wait until it is done.",
        )
    return ReplicasMoving(
        topic.topic_id, PartitionIndex(index), wanted, (*places, *more), reason, move_id, now_ms
    )  # fmt: skip


def move_done(image: ClusterImage, key: TopicPartition, move_id: int, term: int) -> list[MetadataRecord]:
    """The group of a partition has committed, in a term, the voters that this move wants. Nothing where another move
    has taken its place, or it is done already.
    """
    topic = image.topic_by_id(key.topic_id)
    move = None if topic is None else topic.moves.get(key.partition)
    if topic is None or move is None or move.move_id != move_id:
        return []
    gone = [place.node for place in move.places if place not in move.wanted]
    lives = tuple((node, topic.life_of(key.partition, node) + 1, term) for node in gone)
    return [ReplicasMoved(key.topic_id, key.partition, move.wanted, lives)]


def renewed(image: ClusterImage, key: TopicPartition, node: NodeId, life: int, term: int) -> list[MetadataRecord]:
    """A node's replica is damaged, and its group does without it from a term on: it begins another life. Nothing where
    that has been done, or the replicas move.
    """
    topic = image.topic_by_id(key.topic_id)
    if key in image.moving:
        return []
    if topic is None or key.partition in topic.moves or image.feature_level < FIRST_WITH_MOVES:
        return []
    if not 0 <= key.partition < topic.partitions_count or not topic.is_replicated(key.partition):
        return []
    replicas = topic.replicas[key.partition]
    if all(replica.node != node for replica in replicas) or topic.life_of(key.partition, node) != life:
        return []
    return [ReplicasMoved(key.topic_id, key.partition, replicas, ((node, life + 1, term),))]


# Rule: A replica gives up its files when its group has committed voters without it, and not if it has heard of a later
# term. One that comes back to a node is another voter. See also tpc_broker/broker/replica_moves.py,
# tpc_broker/broker/partitions.py, tpc_broker/node/replicas/voter_changes.py, tpc_broker/node/replicas/left_out.py.
# Held by tests/metadata/test_replica_moves.py, tests/cluster/test_moves.py, tests/simulator/test_left_out.py.
def left_out(image: ClusterImage, key: TopicPartition, node: NodeId, life: int, term: int) -> list[MetadataRecord]:
    """A group goes on without a node in this term, too: the replica that is there may have heard of a later one than
    when it was left out. Nothing where the metadata say so already, or the replicas move.
    """
    topic = image.topic_by_id(key.topic_id)
    if topic is None or key in image.moving or key.partition in topic.moves:
        return []
    known = topic.lives.get((key.partition, node))
    if known is None or known.number != life or known.term >= term:
        return []
    replicas = topic.replicas[key.partition]
    if any(replica.node == node for replica in replicas):
        return []
    return [ReplicasMoved(key.topic_id, key.partition, replicas, ((node, life, term),))]


def all_moves(image: ClusterImage) -> Iterator[tuple[TopicImage, ReplicasMoving]]:
    """Under way, by topic."""
    return ((topic, move) for topic in image.topics.values() for move in topic.moves.values())


def coming(topic: TopicImage, move: ReplicasMoving) -> list[NodeId]:
    """Nodes that are to have a replica and were none of the partition's before."""
    before = {replica.node for replica in topic.replicas[move.partition]}
    return [replica.node for replica in move.wanted if replica.node not in before]


def has_majority(image: ClusterImage, topic: TopicImage, index: int, away: Collection[NodeId] = ()) -> bool:
    """Whether so many nodes of a partition's replicas are there that its group can change its voters."""
    nodes = [replica.node for replica in topic.replicas[index]]
    present = sum(node in image.nodes and node not in away for node in nodes)
    return 2 * present > len(nodes)


def active_moves(image: ClusterImage, receiving_max: int, away: Collection[NodeId] = ()) -> frozenset[TopicPartition]:
    """Which may go on now: the most urgent, of these the oldest, and no more than so many for each node that receives.
    One that brings nothing to any node always may. `away`: nodes that are not there, as far as this one knows.
    """
    receiving: Counter[NodeId] = Counter()
    found = set()
    for topic, move in sorted(all_moves(image), key=_urgency):
        nodes = coming(topic, move)
        if all(receiving[node] < receiving_max for node in nodes):
            if has_majority(image, topic, move.partition, away):
                receiving.update(nodes)
            found.add(TopicPartition(topic.topic_id, move.partition))
    return frozenset(found)


def _urgency(one: tuple[TopicImage, ReplicasMoving]) -> tuple[int, int, str, int]:
    _topic, move = one
    rank = REASONS.index(move.reason) if move.reason in REASONS else len(REASONS)
    return rank, move.begun_ms, move.topic_id.hex, move.partition


def next_voters(present: frozenset[Member], wanted: Iterable[Member]) -> frozenset[Member]:
    """Who should vote next, on the way from who does: as many change at once as a group has room for.

    One comes for each that goes, so that there are never fewer than at the beginning or at the end.
    """
    target = frozenset(wanted)
    if len(present | target) - 1 <= PEERS_MAX:
        return target
    room = max(1, PEERS_MAX + 1 - len(present))
    comers, goers = sorted(target - present)[:room], sorted(present - target)
    staying = max(len(target), len(present)) - len(comers)
    return frozenset((*sorted(present & target), *goers)[:staying]) | frozenset(comers)
