"""The log of a replica: raft-rules 0-2. What a position says, what a cut takes and what it leaves."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from tpc_broker.raft.items import START, Batch, Config, Marker, Position, Voter, is_majority, simple
from tpc_broker.raft.journal import (
    EMPTY_CHECKPOINT,
    AdoptEntry,
    AppendEntry,
    CutEntry,
    JournalEntry,
    MarkerEntry,
    ReplayError,
    VoteEntry,
    replay,
)
from tpc_broker.raft.log import ReplicaLog
from tpc_broker.raft.messages import Message
from tpc_broker.raft.output import Event
from tpc_broker.raft.settings import Settings

A, B, C, D, E = (Voter(node, 0) for node in range(5))
ABC = simple([A, B, C])


def batch(epoch: int, base: int, count: int = 1) -> Batch:
    return Batch(epoch, base + count, base, 10 * count)


def log_of(*parts: tuple[int, int]) -> ReplicaLog:
    """A log from (epoch, records) in order, each with its marker and one batch per record."""
    log = ReplicaLog(ABC)
    for epoch, records in parts:
        log.append_marker(Marker(epoch, log.end_offset, ABC))
        log.append_batches([batch(epoch, log.end_offset + number) for number in range(records)])
    return log


def positions(log: ReplicaLog) -> list[Position]:
    return [START, *(item.position for item in log.items)]


def test_positions_rise_strictly_also_over_markers_at_one_offset() -> None:
    log = log_of((1, 2), (4, 0), (5, 0), (7, 1))
    found = positions(log)
    assert found == [(0, 0), (1, 0), (1, 1), (1, 2), (4, 2), (5, 2), (7, 2), (7, 3)]
    assert found == sorted(set(found))
    assert log.last == (7, 3)


def test_a_log_contains_a_position_by_its_own_markers_only() -> None:
    log = log_of((1, 2), (4, 0), (7, 1))
    contained = {Position(e, o) for e in range(9) for o in range(5) if log.contains(Position(e, o))}
    assert contained == set(positions(log))
    assert not log.contains(Position(5, 2)), "an epoch without a marker, at an offset that exists"
    assert not log.contains(Position(1, 3)), "epoch 1 ended at 2 in this log"
    assert log_of((1, 3)).contains(Position(1, 3))


def test_contains_needs_no_items_in_memory() -> None:
    log = log_of((1, 3), (4, 3))
    before = {Position(e, o) for e in range(6) for o in range(8) if log.contains(Position(e, o))}
    log.release(Position(4, 5))
    assert [item.position for item in log.items] == [(4, 6)]
    assert before == {Position(e, o) for e in range(6) for o in range(8) if log.contains(Position(e, o))}
    assert log.items_after(Position(4, 4), 9, 999) is None
    assert log.items_after(Position(4, 5), 9, 999) == log.items


def test_a_cut_keeps_markers_by_their_epoch_not_by_their_offset() -> None:
    """raft-rules 4: what was acknowledged is the marker (7, 2); a cut at 2 for a batch behind it must not eat it."""
    log = log_of((1, 2), (4, 0), (7, 2))
    log.cut(2, 7)
    assert log.last == (7, 2)
    assert log.markers[-1].epoch == 7
    log.cut(2, 4)
    assert log.last == (4, 2)
    log.cut(1, 1)
    assert log.last == (1, 1)
    assert [item.position for item in log.items] == [(1, 0), (1, 1)]


def test_a_cut_below_what_is_in_memory_moves_the_start_back() -> None:
    log = log_of((1, 4), (3, 2))
    log.release(Position(3, 5))
    log.cut(3, 1)
    assert (log.last, log.start, log.items) == ((1, 3), (1, 3), [])
    log.append_marker(Marker(5, 3, ABC))
    assert log.items_after(Position(1, 3), 9, 999) == [Marker(5, 3, ABC)]


def test_a_cut_of_the_last_marker_brings_the_configuration_below_back() -> None:
    log = ReplicaLog(ABC)
    assert log.config == ABC
    log.append_marker(Marker(1, 0, simple([A])))
    log.append_marker(Marker(2, 0, Config(frozenset([A]), frozenset([B]))))
    log.append_marker(Marker(3, 0, simple([B])))
    log.cut(0, 2)
    assert log.config == Config(frozenset([A]), frozenset([B]))
    log.cut(0, 1)
    assert log.config == simple([A])
    assert ReplicaLog(None).config is None, "a learner that was not in the creation record has none"


def test_the_start_may_be_truncated_but_the_last_committed_marker_stays() -> None:
    log = log_of((1, 2), (2, 2), (3, 2), (4, 2))
    log.truncate_start(7, committed=Position(2, 4))
    assert [marker.epoch for marker in log.markers] == [2, 3, 4]
    log.truncate_start(7, committed=Position(4, 8))
    assert [marker.epoch for marker in log.markers] == [4]
    assert log.log_start_offset == 7
    assert log.largest_end_upto(3) == (0, 7)


def test_items_go_out_by_count_and_bytes_but_at_least_one() -> None:
    log = log_of((1, 5))
    assert len(log.items_after(Position(1, 0), 3, 1000) or []) == 3
    assert len(log.items_after(Position(1, 0), 9, 25) or []) == 2
    assert len(log.items_after(Position(1, 0), 9, 1) or []) == 1
    assert log.items_after(log.last, 9, 1000) == []
    assert log.bytes_after(Position(1, 2), 1000) == 30
    assert log.bytes_after(Position(1, 2), 20) == 20


def test_what_breaks_the_order_of_a_log_is_refused() -> None:
    log = log_of((3, 1))
    for wrong in (Marker(3, 1, ABC), Marker(2, 1, ABC), Marker(4, 2, ABC)):
        with pytest.raises(AssertionError):
            log.append_marker(wrong)
    for batches in ([batch(2, 1)], [batch(3, 2)], [batch(3, 1), batch(3, 3)]):
        with pytest.raises(AssertionError):
            log.append_batches(batches)


def test_joint_quorum_needs_both_majorities() -> None:
    joint = Config(frozenset([A, B, C]), frozenset([C, D, E]))
    assert joint.is_joint
    assert joint.voters == {A, B, C, D, E}
    assert not joint.has_quorum({A, B})
    assert not joint.has_quorum({D, E, A})
    assert joint.has_quorum({A, C, D})
    assert simple([A, B, C]).has_quorum({A, C})
    assert not simple([A, B, C]).has_quorum({A, Voter(2, 1)}), "another incarnation of C's node is not C"
    assert not is_majority(frozenset([A, B]), {A}), "half is not a majority"


def random_pair(chance: random.Random) -> tuple[ReplicaLog, ReplicaLog]:
    """Two logs as leaders of rising terms can have left them: a common prefix, then epochs that are disjoint."""
    left, right = log_of(), log_of()
    epoch = 0
    for _ in range(chance.randrange(4)):
        epoch += chance.randrange(1, 3)
        records = chance.randrange(3)
        for log in (left, right):
            log.append_marker(Marker(epoch, log.end_offset, ABC))
            log.append_batches([batch(epoch, log.end_offset + number) for number in range(records)])
    if left.markers:
        for log in (left, right):
            log.append_batches([batch(epoch, log.end_offset + number) for number in range(chance.randrange(3))])
    for _ in range(chance.randrange(6)):
        epoch += chance.randrange(1, 3)
        log = chance.choice([left, right])
        log.append_marker(Marker(epoch, log.end_offset, ABC))
        log.append_batches([batch(epoch, log.end_offset + number) for number in range(chance.randrange(3))])
    return left, right


def true_common(left: ReplicaLog, right: ReplicaLog) -> Position:
    common = START
    for mine, other in zip(left.items, right.items, strict=False):
        if mine != other:
            break
        common = mine.position
    return common


def test_search_for_the_common_prefix_always_ends_on_it() -> None:
    """raft-rules 3.2: at most 1 + 2 x differing epochs rounds, never forward, and what results is the *true* prefix."""
    chance = random.Random(13)
    worst = 0
    for _ in range(3_000):
        leader, follower = random_pair(chance)
        prev, rounds = leader.last, 1
        while not follower.contains(prev):
            after = leader.common_with(*follower.largest_end_upto(prev.epoch))
            assert after < prev, "never forward"
            prev, rounds = after, rounds + 1
        common = true_common(leader, follower)
        assert prev <= common
        differing = {m.epoch for m in leader.markers} ^ {m.epoch for m in follower.markers}
        assert rounds <= 1 + 2 * max(1, len(differing))
        same = [item for item in leader.items_after(prev, 999, 9_999) or [] if follower.contains(item.position)]
        assert (same[-1].position if same else prev) == common
        worst = max(worst, rounds)
    assert worst <= 4


def entries_of(log: ReplicaLog) -> list[JournalEntry]:
    found: list[JournalEntry] = []
    for item in log.items:
        found.append(MarkerEntry("g", item) if isinstance(item, Marker) else AppendEntry("g", (item,)))
    return found


def test_replay_gives_the_log_with_all_markers_and_the_last_term() -> None:
    log = log_of((1, 2), (4, 0), (7, 0))
    entries = [VoteEntry("g", 1, A), *entries_of(log), VoteEntry("g", 9, B)]
    found = replay(EMPTY_CHECKPOINT, entries, ABC)
    assert (found.term, found.voted_for) == (9, B)
    assert found.log == log.image()
    again = replay(found, [CutEntry("g", 2, 4)], ABC)
    assert [marker.epoch for marker in again.log.markers] == [1, 4]


def test_a_marker_raises_the_term_in_replay_and_forgets_the_older_vote() -> None:
    found = replay(EMPTY_CHECKPOINT, [VoteEntry("g", 1, A), MarkerEntry("g", Marker(2, 0, ABC))], ABC)
    assert (found.term, found.voted_for) == (2, None)
    found = replay(EMPTY_CHECKPOINT, [VoteEntry("g", 2, A), MarkerEntry("g", Marker(2, 0, ABC))], ABC)
    assert (found.term, found.voted_for) == (2, A)


def test_replay_refuses_a_batch_without_its_marker_and_a_gap() -> None:
    with pytest.raises(ReplayError):
        replay(EMPTY_CHECKPOINT, [AppendEntry("g", (batch(1, 0),))], ABC)
    marker = MarkerEntry("g", Marker(2, 0, ABC))
    for wrong in (AppendEntry("g", (batch(1, 0),)), AppendEntry("g", (batch(2, 1),)), marker):
        with pytest.raises(ReplayError):
            replay(EMPTY_CHECKPOINT, [marker, wrong], ABC)


def test_replay_of_what_was_adopted() -> None:
    shipped = log_of((1, 2), (4, 3))
    entry = AdoptEntry("g", Position(4, 4), shipped.markers_upto(Position(4, 4)), 1, 5, C, Position(4, 4))
    found = replay(EMPTY_CHECKPOINT, [*entries_of(log_of((2, 1))), entry], None)
    assert (found.term, found.voted_for, found.commit_hint) == (5, C, (4, 4))
    assert (found.log.start, found.log.end_offset, found.log.log_start_offset) == ((4, 4), 4, 1)


def test_the_hint_after_a_restart_is_within_the_log_and_not_below_its_start() -> None:
    log = log_of((1, 5))
    checkpoint = EMPTY_CHECKPOINT._replace(term=1, commit_hint=Position(1, 9), log=log.image())
    assert replay(checkpoint, [], ABC).commit_hint == (1, 5)
    log.log_start_offset = 3
    checkpoint = EMPTY_CHECKPOINT._replace(term=1, commit_hint=Position(1, 1), log=log.image())
    assert replay(checkpoint, [], ABC).commit_hint == (1, 3)
    assert replay(checkpoint, [], ABC, cleaned_upto_offset=4).commit_hint == (1, 4)


def test_settings_hold_their_relations() -> None:
    with pytest.raises(AssertionError):
        Settings(link_silent_ms=200)
    assert Settings().peers_max == 6


@pytest.mark.parametrize("kind", [*get_args(Event), *get_args(Message), *get_args(JournalEntry)])
def test_all_that_goes_in_and_out_says_what_it_is(kind: type) -> None:
    assert kind.__doc__ is not None
    assert not kind.__doc__.startswith(kind.__name__ + "("), "NamedTuple's own text"
