"""What the journal does next (native/journal/journal_policy.c): every state there is, and whole lives of commits."""

import itertools
import random

import pytest

from tpc_broker._ring import ffi, lib

OPEN, CLOSED, IN_PLACE, PROVEN, SUBMITTED, WRITTEN, FAILED = range(lib.TPC_COMMIT_STATES_COUNT)
CLOSE, ASK, IN_PLACE_ENDED, SUBMIT, WRITE_ENDED, FAIL = range(lib.TPC_COMMIT_EVENTS_COUNT)
NOTHING = lib.TPC_JOURNAL_NOTHING
WRITE_IN_PLACE, WRITE_COMMIT = lib.TPC_JOURNAL_WRITE_IN_PLACE, lib.TPC_JOURNAL_WRITE_COMMIT
ABANDON, DROP = lib.TPC_JOURNAL_ABANDON_IN_PLACE, lib.TPC_JOURNAL_DROP_FAILED


def next_action(**fields):
    view = ffi.new("tpc_journal_view *", {"commits_in_flight_max": 1} | fields)
    return lib.tpc_journal_next_action(view)


def views():
    flags = [0, 1]
    for in_flight, in_flight_max, placing, failed, told, paced in itertools.product(
        range(3), [1, 2], flags, flags, flags, flags
    ):
        fields = {
            "commits_in_flight": in_flight, "commits_in_flight_max": in_flight_max, "in_place_in_flight": placing,
            "has_failed": failed, "failure_told": told, "is_paced": paced,
        }  # fmt: skip
        yield fields
        for state, has_in_place, asked in itertools.product([OPEN, CLOSED, IN_PLACE, PROVEN], flags, flags):
            if (state in (IN_PLACE, PROVEN) and not has_in_place) or (state == IN_PLACE and not placing):
                continue
            yield fields | {"is_waiting": 1, "state": state, "has_in_place": has_in_place, "in_place_asked": asked}


def test_a_commit_moves_only_forward():
    moves = {
        (state, event): lib.tpc_commit_next_state(state, event)
        for state in range(-1, lib.TPC_COMMIT_STATES_COUNT + 1)
        for event in range(-1, lib.TPC_COMMIT_EVENTS_COUNT + 1)
    }
    assert {at: to for at, to in moves.items() if to >= 0} == {
        (OPEN, CLOSE): CLOSED,
        (OPEN, ASK): IN_PLACE,
        (OPEN, SUBMIT): SUBMITTED,
        (CLOSED, ASK): IN_PLACE,
        (CLOSED, SUBMIT): SUBMITTED,
        (IN_PLACE, IN_PLACE_ENDED): PROVEN,
        (IN_PLACE, FAIL): FAILED,
        (PROVEN, SUBMIT): SUBMITTED,
        (SUBMITTED, WRITE_ENDED): WRITTEN,
        (SUBMITTED, FAIL): FAILED,
    }


def test_every_state_of_the_journal_has_the_right_next_action():
    seen = set()
    for fields in views():
        action = next_action(**fields)
        seen.add(action)
        waiting, state = fields.get("is_waiting", 0), fields.get("state")
        half_asked = waiting and state == IN_PLACE and not fields["in_place_asked"]
        has_place = fields["commits_in_flight"] < fields["commits_in_flight_max"] and not fields["is_paced"]
        settled = not fields["commits_in_flight"] and not fields["in_place_in_flight"]
        if fields["has_failed"]:
            dropped = settled and not fields["failure_told"]
            expected = ABANDON if half_asked else DROP if dropped else NOTHING
        elif not waiting:
            expected = NOTHING
        elif fields["has_in_place"] and (state in (OPEN, CLOSED) or half_asked):
            expected = WRITE_IN_PLACE
        else:
            expected = WRITE_COMMIT if has_place and state != IN_PLACE else NOTHING
        assert action == expected, fields
    assert seen == {NOTHING, WRITE_IN_PLACE, WRITE_COMMIT, ABANDON, DROP}


class Commit:
    def __init__(self, in_place):
        self.state, self.in_place, self.asked, self.proven = OPEN, in_place, 0, 0

    def moves(self, event):
        self.state = lib.tpc_commit_next_state(self.state, event)
        assert self.state >= 0


class Journal:
    """Commits with chance in place of a disk; what must never happen is asserted where it would."""

    def __init__(self, chance, in_flight_max):
        self.chance, self.in_flight_max = chance, in_flight_max
        self.commits, self.submitted, self.durable, self.failed, self.drops = [], 0, 0, False, 0

    def next_action(self):
        next_one = self.commits[self.submitted] if self.submitted < len(self.commits) else None
        placing = [commit for commit in self.commits if commit.state == IN_PLACE]
        assert len(placing) <= 1
        fields = {} if next_one is None else {
            "is_waiting": 1, "state": next_one.state, "has_in_place": next_one.in_place > 0,
            "in_place_asked": next_one.in_place > 0 and next_one.asked == next_one.in_place,
        }  # fmt: skip
        return next_action(
            commits_in_flight=sum(commit.state == SUBMITTED for commit in self.commits),
            commits_in_flight_max=self.in_flight_max, in_place_in_flight=len(placing),
            has_failed=self.failed, failure_told=self.drops, **fields,
        )  # fmt: skip

    def turn(self):
        while (action := self.next_action()) not in (NOTHING, ABANDON, DROP):
            commit = self.commits[self.submitted]
            assert not self.failed
            if action == WRITE_COMMIT:
                assert commit.proven == commit.in_place, "an entry says what is not on the disk"
                commit.moves(SUBMIT)
                self.submitted += 1
                continue
            if commit.state != IN_PLACE:
                commit.moves(ASK)
            commit.asked += self.chance.randrange(commit.in_place - commit.asked + 1)
            if commit.asked < commit.in_place:
                break  # the kernel took only some
        if action == ABANDON:
            commit = self.commits[self.submitted]
            commit.in_place = commit.asked
            if commit.proven == commit.asked:
                commit.moves(FAIL)
        elif action == DROP:
            assert not any(commit.state in (SUBMITTED, IN_PLACE) for commit in self.commits[self.durable :])
            self.commits, self.submitted, self.drops = self.commits[: self.durable], self.durable, self.drops + 1

    def completion(self, fails):
        under_way = [c for c in self.commits if c.state == SUBMITTED or (c.state == IN_PLACE and c.proven < c.asked)]
        if not under_way:
            return
        commit = self.chance.choice(under_way)
        self.failed |= fails
        if commit.state == SUBMITTED:
            commit.moves(FAIL if fails else WRITE_ENDED)
        else:
            commit.proven += 1
            if commit.proven == commit.in_place:
                commit.moves(FAIL if self.failed else IN_PLACE_ENDED)
        while self.durable < self.submitted and self.commits[self.durable].state == WRITTEN:
            self.durable += 1


@pytest.mark.parametrize("fails", [0.0, 0.02], ids=["a sound disk", "a failing disk"])
def test_whole_lives_of_commits(fails):
    for seed in range(300):
        chance = random.Random(seed)
        journal = Journal(chance, in_flight_max=chance.choice([1, 2, 4]))
        for _step in range(chance.randrange(1, 60)):
            if not journal.failed and chance.random() < 0.5:
                journal.commits.append(Commit(in_place=chance.choice([0, 0, 1, 3])))
            journal.turn()
            journal.completion(chance.random() < fails)
        left = 2_000
        while left and journal.durable < len(journal.commits):
            journal.turn()
            journal.completion(fails=False)
            left -= 1
        journal.turn()
        assert journal.durable == len(journal.commits), f"seed {seed}: something waits for ever"
        assert journal.drops == journal.failed, f"seed {seed}"


REGION_BLOCKS, COMMIT_BLOCKS, COMMIT_NS = 65536, 16, 1_000_000
"""256 MiB, filled with 64 KiB a millisecond."""
PACE_NS_MAX = lib.TPC_JOURNAL_PACE_NS_MAX


def filling(seconds):
    """The pauses between commits while nothing is recycled, from the moment on at which space is wanted."""
    now_ns, used = 0, 3 * REGION_BLOCKS // 8
    while now_ns < seconds * 1e9:
        used += COMMIT_BLOCKS
        pause_ns = lib.tpc_journal_pace_ns(COMMIT_BLOCKS, max(0, REGION_BLOCKS - used), now_ns)
        yield now_ns, used, pause_ns
        now_ns += max(COMMIT_NS, pause_ns)


def test_a_journal_that_fills_up_is_slowed_down_and_not_stopped():
    pauses = list(filling(6))
    assert max(used for _now, used, _pause in pauses) < REGION_BLOCKS
    assert max(pause for _now, _used, pause in pauses) <= PACE_NS_MAX
    assert all(later[2] >= earlier[2] for earlier, later in itertools.pairwise(pauses))
    assert all(pause <= COMMIT_NS for now_ns, _used, pause in pauses if now_ns < 1.5e9), "there is plenty"


def test_a_journal_is_slowed_down_only_when_space_is_wanted_and_never_for_long():
    assert lib.tpc_journal_pace_ns(16, 0, 0) == 0
    assert lib.tpc_journal_pace_ns(16, 0, -5) == 0
    for blocks, left, wanted_ns in itertools.product([1, 16, 1 << 32], [0, 1, 1000], [1, 10**9, (1 << 63) - 1]):
        assert 0 <= lib.tpc_journal_pace_ns(blocks, left, wanted_ns) <= PACE_NS_MAX
