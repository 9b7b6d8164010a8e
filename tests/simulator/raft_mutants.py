"""Planted bugs: each breaks one rule of replication, and each must be found.

A mutant replaces one method of the machine (or of the driver's duties) by a wrong one. Most are found by random
schedules; `shape` says what those need in order to find it soon. What random walks find too seldom is found by a test
of `tests/raft` (`killed_by`), where the run-up is written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.simulator import raft_node
from tests.simulator.raft_run import Shape
from tpc_broker.raft import group as group_module
from tpc_broker.raft import journal, replica, steady
from tpc_broker.raft.elections import Elections
from tpc_broker.raft.followers import Followers
from tpc_broker.raft.group import Group
from tpc_broker.raft.items import START, Batch, Config, Position, simple
from tpc_broker.raft.journal import CutEntry, MarkerEntry, replay
from tpc_broker.raft.leaders import Leaders
from tpc_broker.raft.links import Link
from tpc_broker.raft.log import ReplicaLog
from tpc_broker.raft.membership import Membership
from tpc_broker.raft.messages import Reason
from tpc_broker.raft.output import ReadReady, Role
from tpc_broker.raft.steady import OWN_BIT, Steady

THREE = Shape(3, 1, 1, 3, loses_disks=False, changes_voters=False)
MOVING = Shape(4, 1, 1, 3, loses_disks=False, changes_voters=True)
FEW = Shape(3, 1, 1, 1, loses_disks=False, changes_voters=True)
LOSING = Shape(4, 1, 1, 3, loses_disks=True, changes_voters=True)

# What the wrong ones stand in for.
_request_votes = Elections._request_votes
_quorum_config = Elections._quorum_config
_peer_init = replica.Peer.__init__
_on_append = Followers.on_append
_undo = Group.undo
_reopen = Group.reopen
_append_marker = ReplicaLog.append_marker
_checkpoint_of = journal.checkpoint_of
_checkpointed = raft_node.CoreDriver._checkpointed
_hear = Link.hear
_begin_named = Elections.begin_named
_create_replica = raft_node.CoreDriver.create_replica

ELECTING = Shape(3, 1, 1, 3, False, False, often=("crash_core", "isolate", "transfer"), mean_ms=150)
TEARING = Shape(3, 1, 1, 3, False, False, often=("crash_core", "crash_all", "slow_disk", "transfer"), mean_ms=60)
FAILING = Shape(3, 1, 1, 3, False, False, often=("fail_disk", "produce_at_leaders"), mean_ms=30)
PAUSING = Shape(3, 1, 1, 3, False, False, often=("pause", "read"), mean_ms=300)
SWAPPING = Shape(4, 1, 1, 1, False, True, often=("change_voters", "crash_core", "isolate"), mean_ms=300)
SHIPPING = Shape(3, 1, 1, 3, False, False, often=("checkpoint", "retain", "isolate", "crash_core"), mean_ms=300)

NAMED = Shape(3, 1, 1, 3, False, False, often=("crash_core", "isolate"), mean_ms=100, names_first=True)
CLEANING = Shape(
    3, 1, 1, 3, False, False, often=("checkpoint", "isolate", "crash_core", "transfer"), mean_ms=200, cleans=True
)

Change = tuple[object, str, object]


@dataclass(frozen=True)
class Mutant:
    """One planted bug. `rule` is what it breaks (section of docs/raft-rules.md)."""

    name: str
    rule: str
    changes: tuple[Change, ...]
    shape: Shape = THREE
    from_seed: int = 1
    """Where the search begins: a run that finds it, if that takes more than ten from the first seed on."""
    killed_by: str = ""
    """Random schedules find it too seldom: the script (``module.test`` of `tests/raft`) that leads up to it."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While the bug is there."""
        with ExitStack() as stack:
            for owner, attribute, replacement in self.changes:
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield


def _last_batch(log: ReplicaLog) -> Position:
    return next((item.position for item in reversed(log.items) if isinstance(item, Batch)), START)


def _request_without_markers(self: Any, *arguments: Any, pre_vote: bool) -> None:
    with patch.object(ReplicaLog, "last", property(_last_batch)):
        _request_votes(self, *arguments, pre_vote=pre_vote)


def _match_from_zero(self: Any, voter: Any, prev: Position) -> None:
    _peer_init(self, voter, prev)
    self.match = 0


def _unmatched_commit(self: Any, message: Any, boot_id: int, now_ms: int) -> None:
    _on_append(self, message, boot_id, now_ms)
    if self.term == message.term and not self.is_leader:
        offset = min(message.commit.offset, self.durable.offset)
        self.raise_commit(self.log.position_at(offset) if offset else START)


def _undo_but_lead(self: Any) -> None:
    led = self.role is Role.LEADER
    _undo(self)
    if led and self.log.last.epoch == self.term:
        self.host.led_when_it_failed = {*getattr(self.host, "led_when_it_failed", ()), self.group}


def _reopen_and_lead_on(self: Any) -> None:
    _reopen(self)
    if self.group in getattr(self.host, "led_when_it_failed", ()):
        self.host.led_when_it_failed.discard(self.group)
        self.role, self.leader = Role.LEADER, self.me
        self.begin_leading(self.log.last, self.host._now_ms)


def _reopen_without_cut(self: Any) -> None:
    _reopen(self)
    entries = self.host._entries
    if entries and isinstance(entries[-1][1], CutEntry):
        entries.pop()


def _cut_what_follows(self: Any, message: Any) -> tuple[Position, Any]:
    return message.prev, message.items


def _epoch_below(self: Any, position: Position) -> int:
    below = [marker.epoch for marker in self.log.markers if marker.start_offset < position.offset]
    return max([0, *below])


def _next_eats_marker(self: Any, marker: Any) -> None:
    if self.markers and self.markers[-1].start_offset == marker.start_offset:
        self.items = [item for item in self.items if item != self.markers[-1]]
        self.markers.pop()
    _append_marker(self, marker)


def _one_set(which: str) -> Callable[[Any], int]:
    def candidate(self: Any) -> int:
        return min(self.majority(getattr(self, which)), self.durable_offset)

    return candidate


def _own_undurable(self: Any, voters: int) -> int:
    have = [peer.match for index, peer in enumerate(self.peers) if voters >> index & 1]
    have += [self.end_offset] if voters & OWN_BIT else []
    have.sort()
    return have[(len(have) - 1) // 2] if have else -1


def _new_voters_only(self: Any) -> Config:
    if self.target is not None and self.reason is Reason.OWN_NEXT_TERM:
        return simple(self.target)
    return _quorum_config(self)


def _replay_without_vote(*arguments: Any) -> Any:
    return replay(*arguments)._replace(voted_for=None)


def _checkpoint_with_one_config(*arguments: Any) -> Any:
    made = _checkpoint_of(*arguments)
    if not made.log.markers:
        return made
    last = made.log.markers[-1].config
    markers = tuple(marker._replace(config=last) for marker in made.log.markers)
    return made._replace(log=made.log._replace(markers=markers))


def _checkpoint_to_commit(self: Any, taken: Any, mirrors: Any, place: Any, release: bool) -> None:
    """The driver recycles the journal, and its files end at the high watermark."""
    for group, checkpoint in taken.items():
        image, commit = checkpoint.log, checkpoint.commit_hint
        items = tuple(item for item in image.items if item.position <= commit)
        markers = tuple(marker for marker in image.markers if marker.position <= commit)
        if image.start <= commit:
            cut = image._replace(items=items, markers=markers, end_offset=min(image.end_offset, commit.offset))
            taken[group] = checkpoint._replace(log=cut)
            mirror = mirrors[group][1]
            mirror.items = mirror.upto(commit) if commit != START else []
    _checkpointed(self, taken, mirrors, place, release)


def _config_of_target(self: Any, group: Any, me: Any, config: Any, *first: Any) -> None:
    """The driver takes the placement that is wanted for the configuration that is."""
    if config is None and group in self._ports.oracle.groups:
        config = simple([me])
    _create_replica(self, group, me, config, *first)


def _entries_without_markers(self: Any, group_id: Any) -> list[Any]:
    """raft-rules 4: epochs that nothing follows are forgotten."""
    entries = _of_group(self, group_id)
    return [
        entry for index, entry in enumerate(entries)
        if not isinstance(entry, MarkerEntry) or any(e for e in entries[index + 1 : index + 2])
    ]  # fmt: skip


_of_group = raft_node.Journal.of_group


def _forgets_given_vote(self: Any, first: Any) -> None:
    """A replica begins below the term in which its vote is given, and may be elected in it."""
    if first == self.me:
        _begin_named(self, first)


def _first_term_at_once(self: Any, now_ms: int) -> None:
    """Who is named leads before it is durable that it does: after a crash it leads the same term again."""
    self.is_named = False
    self.become_leader(now_ms)


def _reads_at_once(self: Any) -> None:
    while self.reads:
        read = self.reads.pop(0)
        self.host.tell(ReadReady(self.group, read.tokens, read.offset))


def _always(*_arguments: Any, **_named: Any) -> bool:
    return True


def _never(*_arguments: Any, **_named: Any) -> bool:
    return False


def _nothing(*_arguments: Any, **_named: Any) -> None:
    return None


def _ack_row_without_epoch(steady_state: Any, peer: int, term: int, _epoch: int, offset: int, _commit: int) -> bool:
    return term == steady_state.term and offset <= steady_state.end_offset


def _any_term(steady_state: Any, peer: int, _term: int, _epoch: int, offset: int, _commit: int) -> bool:
    return offset <= steady_state.end_offset


def _rows_with(holds: Callable[..., bool]) -> dict[Any, Any]:
    """The steady machine's index, with another condition for acks that count."""
    index = dict(steady._INDEX)
    key = (steady.SteadyRole.LEADER, steady.Input.ACK)
    index[key] = [row._replace(holds=holds) if row.holds is steady._is_of_this_epoch else row for row in index[key]
                  if row.holds is not steady._is_stale_ack]  # fmt: skip
    return index


def _rest_if_fresh(self: Any, now_ms: int) -> None:
    if self._leader_is_fresh(now_ms):
        self.deadline_ms = None


def _fresh_by_patience(self: Any, now_ms: int) -> bool:
    return self.heard_ms is not None and now_ms - self.heard_ms < self.silent_after_ms


def _hear_untold(self: Any, boot_id: int, now_ms: int) -> bool:
    was_fresh, anew = self.was_fresh, _hear(self, boot_id, now_ms)
    self.was_fresh = was_fresh or anew
    return anew


_M = Mutant
MUTANTS: tuple[Mutant, ...] = (
    _M("vote before it is durable", "1", ((Elections, "_vote_after", lambda _self, _sequence: 0),)),
    _M("a replica forgets the vote that it was made with", "2", ((Elections, "begin_named", _forgets_given_vote),),
        NAMED),
    _M("a named leader begins before its vote is durable", "2",
        ((Elections, "_begin_first_term", _first_term_at_once),), NAMED),
    _M("follower acks before durable", "3.3", ((Followers, "_acknowledged", lambda self: self.matched),)),
    _M("leader counts its own undurable end", "3.4", ((Steady, "majority", _own_undurable),
        (Steady, "commit_candidate", lambda self: self.majority(self.voters_old)))),
    _M("vote without markers", "2", ((Elections, "_request_votes", _request_without_markers),
        (Elections, "_last_to_compare", lambda self: _last_batch(self.log))), ELECTING),
    _M("ack without an epoch", "3.3", ((steady, "_INDEX", _rows_with(_ack_row_without_epoch)),
        (Leaders, "_counts", _always)), from_seed=92),
    _M("ack of another term counts", "3.3", ((steady, "_INDEX", _rows_with(_any_term)),
        (Leaders, "_is_of_own_term", _always), (Leaders, "_counts", _always)), from_seed=52),
    _M("match starts at 0", "3.1", ((replica.Peer, "__init__", _match_from_zero),)),
    _M("matches of older epochs counted (figure 8)", "3.4", ((Leaders, "_counts", _always),), from_seed=14),
    _M("commit of a leader whose marker is not here", "3.4", ((Followers, "on_append", _unmatched_commit),),
        from_seed=40),
    _M("leads on after its journal failed", "4", ((Group, "undo", _undo_but_lead),
        (Group, "reopen", _reopen_and_lead_on)), FAILING),
    _M("cut in place of a lost adoption", "4", ((Followers, "settle_on_disk", replica.Replica.settle_on_disk),),
        SHIPPING,
        killed_by="test_replication.test_an_adoption_that_the_journal_lost_is_made_again_for_it_may_be_on_the_disk"),
    _M("no cut when the journal reopens", "4", ((Group, "reopen", _reopen_without_cut),)),
    _M("a late message leaves a new voter asleep", "3.5", ((Followers, "_rests_or_stands", _rest_if_fresh),),
        SWAPPING,
        killed_by="test_elections.test_a_late_message_that_makes_a_voter_of_a_replica_makes_it_stand_too"),
    _M("patience ends a silence", "3.5", ((Link, "is_fresh", _fresh_by_patience), (Link, "hear", _hear_untold)),
        PAUSING,
        killed_by="test_patience.test_cores_that_stood_still_in_a_cut_stand_when_they_hear_each_other_again"),
    _M("boot id ignored", "3.5", ((Elections, "_same_boot", _always),),
        ELECTING,
        killed_by="test_elections.test_difference_a_core_that_restarts_within_the_timeout_has_lost_its_leaderships"),
    _M("checkpoint recycles what is not committed", "4",
        ((raft_node.CoreDriver, "_checkpointed", _checkpoint_to_commit),)),
    _M("grant compares the durable end", "2", ((Elections, "_last_to_compare", lambda self: self.durable),),
        TEARING,
        killed_by="test_elections.test_difference_a_vote_compares_with_undurable_items_too"),
    _M("append cuts what follows", "3.2", ((Followers, "_first_difference", _cut_what_follows),
        (replica.Replica, "_check_cut", _nothing))),
    _M("adopts blindly", "5", ((Followers, "_may_adopt", _always),),
        SHIPPING,
        killed_by="test_replication.test_difference_an_adoption_is_judged_when_it_is_journalled_and_keeps_term_and_vote"),
    _M("adopting overwrites term and vote", "5",
        ((Followers, "_hard_state_of_adopted", lambda _self, message: (message.position.epoch, None)),),
        SHIPPING, from_seed=16),
    _M("learned term not in front", "1", ((replica.Replica, "journal_term", _nothing),)),
    _M("cut eats the marker", "4", ((replica.Replica, "_last_epoch_kept", _epoch_below),)),
    _M("marker lost at a restart", "4", ((raft_node.Journal, "of_group", _entries_without_markers),)),
    _M("next marker eats the one at its offset", "4", ((ReplicaLog, "append_marker", _next_eats_marker),)),
    _M("next term elected by the new voters", "2", ((Elections, "_quorum_config", _new_voters_only),),
        SWAPPING,
        killed_by="test_membership.test_6_3_also_when_their_links_fall_silent"),
    _M("new voters written before the joint marker is committed", "2c",
        ((Membership, "_joint_is_committed", _always),),
        SWAPPING,
        killed_by="test_membership.test_6_2_without_the_position_the_joint_configuration_is_written_again"),
    _M("joint marker committed by offset", "2c",
        ((Membership, "_joint_is_committed", lambda self: self.commit.offset >= self.log.markers[-1].start_offset),),
        SWAPPING,
        killed_by="test_membership.test_6_2_without_the_position_the_joint_configuration_is_written_again"),
    _M("joint term committed by the new voters alone", "3.4",
        ((Steady, "commit_candidate", _one_set("voters_new")),), MOVING),
    _M("joint term committed by the old voters alone", "3.4",
        ((Steady, "commit_candidate", _one_set("voters_old")),), MOVING),
    _M("joint term elected by the old voters alone", "2",
        ((Config, "has_quorum", lambda self, voters: 2 * sum(v in voters for v in self.old) > len(self.old)),),
        SWAPPING,
        killed_by="test_elections.test_votes_under_a_joint_configuration_need_both_majorities"),
    _M("older batch accepted without its marker", "3.2",
        ((Followers, "_may_append_batches", lambda self, first: first.base_offset == self.log.end_offset),),
        ELECTING,
        killed_by="test_replication.test_difference_a_batch_needs_the_marker_of_its_epoch"),
    _M("checkpoint with one configuration", "4",
        ((group_module, "checkpoint_of", _checkpoint_with_one_config),), MOVING),
    _M("first configuration from the wanted placement", "5",
        ((raft_node.CoreDriver, "create_replica", _config_of_target),), MOVING),
    _M("going back by anybody", "6.3",
        ((Membership, "_may_abort", lambda self: self.config.is_joint),),
        SWAPPING,
        killed_by="test_membership.test_6_3_only_from_the_very_leadership_and_only_while_uncommitted"),
    _M("read without a round", "7.3", ((Leaders, "_answer_reads", _reads_at_once),), PAUSING, from_seed=44),
    _M("two votes in a term", "2", ((Elections, "_vote_is_free", _always),)),
    _M("vote forgotten at a restart", "1", ((raft_node, "replay", _replay_without_vote),), from_seed=35),
    _M("only who is known now is followed to another core", "5",
        ((Group, "_ever_reached", lambda self: self.known()),),
        killed_by="test_core_moves.test_a_replica_that_is_not_known_at_the_moment_is_followed_to_its_new_core_too"),
    _M("a leader does not know of what was cleaned", "3.6",
        ((Leaders, "compacted", _nothing), (Leaders, "contiguous_from_offset", property(lambda _self: 0, _nothing))),
        CLEANING, from_seed=12),
    _M("contains by offset alone", "0",
        ((Followers, "_contains", lambda self, position: position.offset <= self.log.end_offset),)),
)
