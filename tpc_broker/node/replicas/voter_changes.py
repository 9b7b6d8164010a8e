"""Of what a core leads: the replicas that the metadata want vote, on the disks that nodes have now.

Who comes learns first, and votes when nothing is left to catch up with; so what a group has while it changes is never
less than it had. A change that the metadata do not want any more is given up, where the machine can, or finished and
then gone back from. A few groups at once, since each learner has everything to learn.

A replica is a voter under the incarnation of its node's data directory plus the number of its life there
(`metadata.replica_moves`): one that was given up and came back is another voter.

A change is begun only by a leader that knows the metadata as they were after its election, or newer. The end of a move
has files removed, by the word of a leader that was confirmed in its term; a later leader that had not yet read that the
move was cancelled would go on with it, and bring in voters whose files nobody keeps: with two of those the partition
has no majority any more, for good.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from tpc_broker.broker.pace import rest_after
from tpc_broker.broker.replication_port import ReplicaProgress
from tpc_broker.metadata.image import ClusterImage, changed_partitions
from tpc_broker.metadata.replica_moves import CAN_WAIT, next_voters
from tpc_broker.raft.items import Voter, simple
from tpc_broker.raft.steady import REPLICATE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tpc_broker.model import TopicPartition
    from tpc_broker.raft.core import RaftCore
    from tpc_broker.raft.group import Group

log = logging.getLogger(__name__)

CHANGES_MAX: Final = 8
"""Groups whose replicas a core changes at once: who comes to them learns. Those that wait for a core that is not heard
are not counted.
"""
ELECTING_MAX: Final = 2
"""Of these, groups in the two terms that make learners voters. What is produced to them waits meanwhile, and what came
behind it on the same connections; with many at once for as long as all of their elections take.

Those of moves that nobody waits for (nodes are made even, or drained) elect one at a time, with a rest in between
(`broker.pace`).
"""
ELECTING_MS_MAX: Final = 2_000
"""After so long one that has come to nothing holds up the others no more."""
TURN_S: Final = 0.02
"""Between two looks while any of these is under way."""


class VoterChanges:
    """Of one core, touched by its thread only."""

    def __init__(self, core: RaftCore) -> None:
        self._core = core
        self.image = ClusterImage()
        self.allowed: frozenset[TopicPartition] = frozenset()
        """Partitions whose moves may go on."""
        self._settled: dict[TopicPartition, tuple[object, object, object]] = {}
        self._unsettled: dict[TopicPartition, None] = {}
        """Looked at, and not found as they should be."""
        self._looked_at: ClusterImage | None = None
        self._electing: dict[TopicPartition, int] = {}
        """When the changes were begun whose terms are not over, as far as they count."""
        self.waits_for_turn = False
        """Some could begin these terms, and have to wait for others."""
        self._rests_until_ms = 0
        self._to_confirm: dict[TopicPartition, int] = {}
        self._confirmed: dict[TopicPartition, int] = {}
        """Terms in which the image was known to be no older than the leadership."""

    def due(self, led: Mapping[TopicPartition, object], awake: Iterable[TopicPartition]) -> list[TopicPartition]:
        """What of all that is led is to be looked at: what was not settled, whose machines were `awake` since the last
        call, and what is another in the metadata; everything when the nodes are others.
        """
        before, self._looked_at = self._looked_at, self.image
        if before is None or before.nodes != self.image.nodes:
            return list(led)
        changed = changed_partitions(before, self.image)
        return [key for key in dict.fromkeys((*changed, *self._unsettled, *awake)) if key in led]

    def look(self, led: Iterable[tuple[TopicPartition, Group]], now_ms: int) -> None:
        """Begin what is to be begun, go on with what is under way. `led`: those that are `due`, at least."""
        machines = []
        for key, machine in led:
            if self._is_settled(key, machine):
                self._unsettled.pop(key, None)
            else:
                machines.append((key, machine))
        electing = {key for key, machine in machines if not machine.carried and _is_electing(machine)}
        for key, since_ms in list(self._electing.items()):
            if key not in electing or now_ms - since_ms >= ELECTING_MS_MAX:
                del self._electing[key]
                self._rests_until_ms = now_ms + int(rest_after((now_ms - since_ms) / 1000) * 1000)
        self.waits_for_turn = False
        free = CHANGES_MAX - sum(self._takes_place(key, machine, now_ms) for key, machine in machines)
        for key, machine in machines:
            self._unsettled[key] = None
            wanted = self.wanted_voters(key)
            if wanted is None or machine.config is None:
                continue
            self._note(key, machine, wanted)
            if self._takes_place(key, machine, now_ms):
                self._go_on(key, machine, wanted, now_ms, has_place=True)
            elif machine.learners or (free > 0 and machine.config.new != wanted and self._may_begin(key)):
                free -= self._go_on(key, machine, wanted, now_ms, has_place=free > 0)

    def look_again_s(self, now_ms: int) -> float | None:
        """After how many seconds: some wait for their turn, or it is to be known how long one takes. None: neither."""
        if self._electing:
            return TURN_S
        return max((self._rests_until_ms - now_ms) / 1000, TURN_S) if self.waits_for_turn else None

    def begin_next_term(self, group: str, now_ms: int) -> None:
        """Of one that is led here: for the same voters."""
        self._core.take_back(group, now_ms)
        self._core.groups[group].begin_next_term(now_ms)

    def _is_settled(self, key: TopicPartition, machine: Group) -> bool:
        """Whether all was as it should be at the last look, and nothing that decides about it is another since."""
        known = self._settled.get(key)
        return (
            known is not None
            and known[2] is machine.config
            and not _is_changing(machine)
            and known[0] is self.image.topic_by_id(key.topic_id)
            and known[1] == self.image.nodes
        )

    def _note(self, key: TopicPartition, machine: Group, wanted: frozenset[Voter]) -> None:
        if machine.config == simple(wanted) and not _is_changing(machine):
            self._settled[key] = (self.image.topic_by_id(key.topic_id), self.image.nodes, machine.config)
            self._unsettled.pop(key, None)
        else:
            self._settled.pop(key, None)

    def _label(self, key: TopicPartition) -> str:
        topic = self.image.topics.get(key.topic_id)
        return f"{key.topic_id if topic is None else topic.name}-{key.partition}"

    def forget(self, key: TopicPartition) -> None:
        """It is not here any more, or not led."""
        for table in (self._settled, self._unsettled, self._to_confirm, self._confirmed):
            table.pop(key, None)

    def to_confirm(self) -> dict[TopicPartition, int]:
        """Whose voters are to change, with the terms of their leaderships here: `confirm` is waited for."""
        return dict(self._to_confirm)

    def confirm(self, terms: Mapping[TopicPartition, int], version: int) -> None:
        """The controller had this version of the metadata after these were led here in these terms."""
        if self.image.version < version:
            return
        for key, term in terms.items():
            if self._to_confirm.get(key) == term:
                del self._to_confirm[key]
                self._confirmed[key] = term

    def wanted_voters(self, key: TopicPartition) -> frozenset[Voter] | None:
        """Who is to vote; None: nobody knows now."""
        topic, nodes = self.image.topic_by_id(key.topic_id), self.image.nodes
        if topic is None or not topic.is_replicated(key.partition):
            return None
        replicas = topic.wanted(key.partition)
        if any(replica.node not in nodes for replica in replicas):
            return None
        return frozenset(
            Voter(replica.node, nodes[replica.node].incarnation + topic.life_of(key.partition, replica.node))
            for replica in replicas
        )

    def settled_term(self, key: TopicPartition, machine: Group) -> int | None:
        """The term in which the group of a partition that is led here has committed the voters that are wanted."""
        wanted = self.wanted_voters(key)
        if wanted is None or not machine.is_leader or not machine.is_ready or _is_changing(machine):
            return None
        return machine.term if machine.config == simple(wanted) else None

    def progress(self, key: TopicPartition, machine: Group) -> ReplicaProgress | None:
        """How far those are that come; None: nobody does."""
        wanted = self.wanted_voters(key)
        if wanted is None or machine.config is None or not machine.is_leader:
            return None
        come = [peer for peer in machine.peers.values() if peer.voter in wanted - machine.config.old]
        if not come:
            return None
        held = min(max(peer.match, peer.prev.offset) for peer in come)
        return ReplicaProgress(machine.log.log_start_offset, held, machine.log.end_offset)

    def _may_begin(self, key: TopicPartition) -> bool:
        topic = self.image.topic_by_id(key.topic_id)
        return topic is not None and (key.partition not in topic.moves or key in self.allowed)

    def _has_turn(self, key: TopicPartition, now_ms: int) -> bool:
        topic = self.image.topic_by_id(key.topic_id)
        move = None if topic is None else topic.moves.get(key.partition)
        if move is not None and move.reason in CAN_WAIT:
            return not self._electing and now_ms >= self._rests_until_ms
        return len(self._electing) < ELECTING_MAX

    def _takes_place(self, key: TopicPartition, machine: Group, now_ms: int) -> bool:
        """Of `CHANGES_MAX`: whether anything goes on, or could. A group with nothing to do but to wait for a core that
        is not heard keeps its learners, and no place.
        """
        if _is_electing(machine):
            return True
        heard = [voter for voter in machine.learners if machine.is_heard(voter, now_ms)]
        if not heard:
            return False
        if not _have_all(machine, heard):
            return True
        wanted = self.wanted_voters(key)
        following = frozenset() if wanted is None else self._following(key, machine, wanted)
        return all(machine.is_heard(voter, now_ms) for voter in following)

    def _following(self, key: TopicPartition, machine: Group, wanted: frozenset[Voter]) -> frozenset[Voter]:
        """Who is to vote next."""
        present = _present(machine)
        return next_voters(present, wanted) if self._may_begin(key) else present

    def _go_on(
        self, key: TopicPartition, machine: Group, wanted: frozenset[Voter], now_ms: int, *, has_place: bool
    ) -> bool:
        """Whether it takes a place then. Who comes and is not heard would take one for nothing."""
        present, following = _present(machine), self._following(key, machine, wanted)
        if _is_electing(machine):
            if machine.target is not None and machine.target != following:
                self._core.abort_change(machine.group, now_ms)
            return True
        come = following - present
        may_learn = has_place and any(machine.is_heard(voter, now_ms) for voter in come)
        learners = come if may_learn else come & machine.learners
        if machine.learners != learners:
            self._core.set_learners(machine.group, learners, now_ms)
        if following == present or not has_place or learners != come:
            return False
        all_heard = all(machine.is_heard(voter, now_ms) for voter in following)
        if self._confirmed.get(key) != machine.term:
            self._to_confirm[key] = machine.term
        elif not (all_heard and _have_all(machine, come)):
            pass
        elif not self._has_turn(key, now_ms):
            self.waits_for_turn = True
        else:
            self._electing[key] = now_ms
            refusal = self._core.change_voters(machine.group, following, now_ms)
            if refusal is None:
                nodes = ", ".join(str(voter.node) for voter in sorted(following))
                log.info("%s: the voters are to be nodes %s", self._label(key), nodes)
        return self._takes_place(key, machine, now_ms) or (all_heard and not come)


def _present(machine: Group) -> frozenset[Voter]:
    config = machine.config
    assert config is not None
    return config.old if config.is_joint else config.new


def _have_all(machine: Group, voters: Iterable[Voter]) -> bool:
    return all(voter in machine.peers and machine.peers[voter].state is REPLICATE for voter in voters)


def _is_electing(machine: Group) -> bool:
    return machine.target is not None or (machine.config is not None and machine.config.is_joint)


def _is_changing(machine: Group) -> bool:
    return _is_electing(machine) or bool(machine.learners)
