"""Every state that a small group can reach, explored breadth first on the real machine.

    python -m tests.raft.explore --terms 2 --batches 1 --crashes 1 [--failures 0] [--voters 3] [--mutant NAME]
    python -m tests.raft.explore --terms 4 --batches 1 --crashes 1 --old 0 --new 1 --changes 2
    python -m tests.raft.explore --terms 2 --batches 1 --crashes 1 --failures 1 --checkpoints 1 --snapshots 1

What is real: `Group` with all of its layers, its journal entries and their replay after a crash. What is replaced is
what surrounds it (`Host`): a network that keeps all that was ever sent, a disk that makes entries durable one by
one. As raft-rules 8 says, pre-vote, links and freshness are left out, because they only delay elections, and
whatever a leader has in its log of a term may reach a follower at any later time, in any slice: the leader's own
choice of what to send is left out too, being one of those. So lost, doubled, reordered and late messages are all there.

Actions: stand; one entry becomes durable; a vote request with its answer, a slice of a leader's log, a commit frame,
an order to stand, shipped segments or an ack arrives; a proposal; a crash and restart; a failed and reopened journal;
a checkpoint; a leader begins a change of voters, or goes back from one. When a change may begin is left to the
explorer, as anything that only waits.

Checked after each: one leader per term, leaders hold what is committed, log matching, nothing committed differs, no cut
below commit (asserted by the machine), acks name what is durable and in the leader's log.

Theory of operation
-------------------
What makes it fast is that almost nothing is done twice. A state is a tuple of small numbers: one for each replica's own
state (`Local`), one for the set of messages, one for the leaderships and their logs, one for what is committed, and
what of the bounds was used. An action is carried out by the machine once for each state of the *replica* that it
is about, and looked up from then on; so are the checks, which compare two logs, or a log with what is committed.

Who may crash, and whose journal may fail, is chosen at the beginning, in every way (`Budget`): a run with a crash is
one in which just this replica may crash. The journal of a replica that can lose nothing any more is durable at
once. That leaves nothing out. Without a loss, durability decides only when a message may leave, when an ack may
rise and when a commit may move; all of these only wait, messages may arrive as late as one likes, and a slice or a
commit frame can be sent at any later time. So whatever happens with a slow journal happens, with the same logs, votes
and commits, with a fast one and messages that are late.

States that differ only in the names of the replicas count as one: the least tuple over all namings that map the sets of
voters to themselves stands for them. The replicas are first put in the order of their own states with the names left
out, so that there is only one naming to try unless two of them are alike. A state is known by a 64-bit hash of that
tuple.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from tests.raft.explore_mutants import MUTANTS
from tests.raft.explore_replica import (
    GROUP,
    NEVER,
    Bounds,
    Budget,
    Explored,
    Host,
    Led,
    Local,
    Names,
    Outcome,
    Shipped,
    ask,
    fail_journal,
    fork,
    normalise,
    persist,
    restart,
    take_checkpoint,
)
from tpc_broker.model import CoreId, NodeId
from tpc_broker.raft.items import START, Config, Item, Marker, Proposal, Voter, simple
from tpc_broker.raft.messages import Ack, AppendEntries, GroupMessage, Install, Reason, RequestVote, Vote
from tpc_broker.raft.output import Role

BATCH, CHANGE, CHECKPOINT = range(3)
"""What a state counts."""
FREE = -1

State = tuple[int, ...]
"""Numbers of: each replica's state, the set of messages, the leaderships, what is committed; then how much of each
bound was used.
"""


class ViolationError(Exception):
    """An invariant does not hold; the actions that led there."""


class Table:
    """Gives each value a number, from 0."""

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.values: list[Any] = []

    def number(self, value: Hashable) -> int:
        found = self.numbers.get(value)
        if found is None:
            found = self.numbers[value] = len(self.values)
            self.values.append(value)
        return found


class Explorer:
    """Breadth first, with the bounds given."""

    def __init__(self, bounds: Bounds, machine: type[Explored] = Explored) -> None:
        self.bounds = bounds
        self.machine = machine
        self.used_max = bounds.used_max
        nodes = sorted({*bounds.first_voters, *bounds.new})
        self.voters = [Voter(NodeId(number), 0) for number in nodes]
        self.old, self.new = (
            frozenset(voter for voter in self.voters if voter.node in some)
            for some in (bounds.first_voters, bounds.new)
        )
        self.count = len(self.voters)
        self.namings = list(self._namings())
        self.orders = [sorted(range(self.count), key=[n.of[v] for v in self.voters].__getitem__) for n in self.namings]
        self.nameless = [Names({v: int(v != me) for v in self.voters}) for me in self.voters]
        self.locals: list[Local] = []
        self.local_numbers: dict[tuple[Any, ...], int] = {}
        self.keys, self.shapes, self.logs, self.leds, self.profiles = Table(), Table(), Table(), Table(), Table()
        self.messages, self.sets, self.terms = Table(), Table(), Table()
        self.renamed: list[tuple[dict[int, int], ...]] = [({}, {}, {}) for _ in self.namings]
        self.inboxes: dict[int, tuple[tuple[int, ...], ...]] = {}
        self.asked: dict[tuple[int, int], Outcome | None] = {}
        self.led_terms: dict[tuple[int, int], int] = {}
        self.committed: dict[tuple[int, int], int] = {}
        self.fine: set[tuple[int, ...]] = set()
        self.useful: dict[tuple[Any, ...], int] = {}
        self.few: dict[tuple[int, ...], list[int]] = {}
        self.parents, self.labels = array("I", [0]), array("I", [0])
        self.label_table = Table()
        self.label_table.number("the beginning")
        self.states = 0
        self.transitions = 0
        self.depth = 0

    def _namings(self) -> Iterator[Names]:
        """Those that map both sets of voters to themselves; the first changes nothing."""
        for places in itertools.permutations(range(self.count)):
            names = dict(zip(self.voters, places, strict=True))
            by_place = {place: voter for voter, place in names.items()}
            moved = {voter: self.voters[place] for voter, place in names.items()}
            assert len(by_place) == self.count
            if all({moved[voter] for voter in some} == some for some in (self.old, self.new)):
                yield Names(names)

    def first(self) -> Iterator[State]:
        tables = (self.sets.number(frozenset()), self.terms.number(()), self.logs.number(()))
        for budgets in sorted(self.bounds.budgets(self.count)):
            machines = [
                self.machine(Host(), GROUP, voter, self._creation(voter), None, {}, CoreId(0)) for voter in self.voters
            ]
            places = [self._local(*both).number for both in zip(machines, budgets, strict=True)]
            yield (*places, *tables, *(0 for _ in self.used_max))

    def _creation(self, voter: Voter) -> Config | None:
        """Who is not named in the creation record knows nothing."""
        return simple(self.old) if voter in self.old else None

    def run(self, states_max: int | None = None) -> None:
        """Raises ViolationError with the shortest trace."""
        first = {self._hash(state): state for state in self.first()}
        seen = set(first)
        layer = list(first.values())
        numbers = [0] * len(layer)
        self.states = len(layer)
        self.parents.extend(numbers[1:])
        self.labels.extend(numbers[1:])
        while layer and (states_max is None or self.states < states_max):
            following: list[State] = []
            raw = set(layer)
            base = self.states
            for state, number in zip(layer, numbers, strict=True):
                for label, after in self._checked(state, number):
                    self.transitions += 1
                    if after in raw:
                        continue
                    raw.add(after)
                    known = self._hash(after)
                    if known in seen:
                        continue
                    seen.add(known)
                    following.append(after)
                    self.parents.append(number)
                    self.labels.append(self.label_table.number(label))
                    self.states += 1
                if states_max is not None and self.states >= states_max:
                    break
            layer, numbers = following, list(range(base, self.states))
            self.depth += 1
        self._check_late_acks()

    def _checked(self, state: State, number: int) -> Iterator[tuple[Any, State]]:
        found = self.successors(state)
        while True:
            try:
                step = next(found, None)
            except ViolationError as wrong:
                steps = [self._told(wrong.args[1]), *self._way_to(number)]
                lines = "\n".join(reversed(steps))
                raise ViolationError(f"{wrong.args[0]}\nafter {len(steps)} steps:\n{lines}") from wrong
            if step is None:
                return
            yield step

    def _way_to(self, number: int) -> Iterator[str]:
        while number:
            yield self._told(self.label_table.values[self.labels[number]])
            number = self.parents[number]

    def _told(self, label: tuple[Any, ...]) -> str:
        what, of = label
        return f"{what} {self.messages.values[of]}" if what in ("receive", "ask") else f"{what} {of}"

    # Names.

    def _hash(self, state: State) -> int:
        """Of the least tuple over all namings of the replicas."""
        if len(self.namings) == 1:
            return hash(state)
        count = self.count
        known = self.locals
        shapes = [known[number].shape for number in state[:count]]
        ranks = sorted(shapes)
        pattern = tuple([ranks.index(shape) for shape in shapes])
        few = self.few.get(pattern)
        if few is None:
            few = self._few(pattern)
        if len(few) == 1:
            return hash((self._named(state, few[0]), state[count + 3 :]))
        return hash((min([self._named(state, naming) for naming in few]), state[count + 3 :]))

    def _few(self, ranks: tuple[int, ...]) -> list[int]:
        """The namings that put the replicas in the order of their shapes, which have these ranks."""
        orders = [tuple(ranks[place] for place in order) for order in self.orders]
        least = min(orders)
        found = self.few[ranks] = [number for number, order in enumerate(orders) if order == least]
        return found

    def _named(self, state: State, naming: int) -> tuple[int, ...]:
        known, count = self.locals, self.count
        sets, terms, logs = self.renamed[naming]
        a, b, c = state[count : count + 3]
        if a not in sets:
            sets[a] = self._rename_set(a, naming)
        if b not in terms:
            terms[b] = self._rename_terms(b, naming)
        if c not in logs:
            logs[c] = self.keys.number(self.namings[naming].items(self.logs.values[c]))
        replicas = [known[state[place]].named[naming] for place in self.orders[naming]]
        return (*replicas, sets[a], terms[b], logs[c])

    def _rename_set(self, number: int, naming: int) -> int:
        names = self.namings[naming]
        return self.keys.number(frozenset([names.message(self.messages.values[m]) for m in self.sets.values[number]]))

    def _rename_terms(self, number: int, naming: int) -> int:
        names = self.namings[naming]
        leds: list[Led] = [self.leds.values[led] for led in self.terms.values[number]]
        return self.keys.number(
            tuple([(led.term, names.of[self.voters[led.leader]], names.items(led.items), led.commit) for led in leds])
        )

    def _local(self, group: Explored, budget: Budget) -> Local:
        """The state of a replica, kept once."""
        key = (budget, self.namings[0].replica(group))
        known = self.local_numbers.get(key)
        if known is not None:
            return self.locals[known]
        index = self.voters.index(group.me)
        local = Local(len(self.locals), index, group, budget)
        self.local_numbers[key] = local.number
        self.locals.append(local)
        local.named = [self.keys.number((budget, names.replica(group))) for names in self.namings]
        local.shape = self.shapes.number((budget, self.nameless[index].replica(group)))
        items = group.all_items
        local.log = self.logs.number(items)
        local.committed = self.logs.number(tuple(item for item in items if item.position <= group.commit))
        local.profile = self.profiles.number((group.term, group.host.disk.term, group.is_leader))
        if group.is_leader:
            local.led = self.leds.number(Led(group.term, index, items, group.commit))
        return local

    # Actions of one replica.

    def successors(self, state: State) -> Iterator[tuple[Any, State]]:
        count = self.count
        messages, terms = state[count : count + 2]
        used = state[count + 3 :]
        inboxes = self.inboxes.get(messages) or self._inboxes(messages)
        for place in range(count):
            local = self.locals[state[place]]
            moves = local.moves
            if moves is None:
                moves = local.moves = list(self._moves(local))
            for label, kind, outcome in moves:
                if kind == FREE:
                    yield label, self._after(state, place, outcome, label)
                elif used[kind] < self.used_max[kind]:
                    at = count + 3 + kind
                    counted = (*state[:at], state[at] + 1, *state[at + 1 :])
                    yield label, self._after(counted, place, outcome, label)
            for message in inboxes[place]:
                yield from self._delivered(state, place, local, message)
            for led in self.terms.values[terms]:
                taken = local.taken.get(led)
                if taken is None:
                    taken = local.taken[led] = self._taken(local, self.leds.values[led])
                for label, outcome in taken:
                    yield label, self._after(state, place, outcome, label)

    def _inboxes(self, messages: int) -> tuple[tuple[int, ...], ...]:
        """The messages of a set, for each replica."""
        inboxes: list[list[int]] = [[] for _ in self.voters]
        for number in sorted(self.sets.values[messages]):
            inboxes[self.voters.index(self.messages.values[number].target)].append(number)
        found = self.inboxes[messages] = tuple(tuple(inbox) for inbox in inboxes)
        return found

    def _perform(
        self, local: Local, act: Callable[[Explored], Any], budget: Budget | None = None
    ) -> Outcome | None:
        """None where nothing comes of it."""
        group = fork(local.group)
        budget = budget or local.budget
        try:
            found = act(group)
            vote = -1
            if isinstance(found, Explored):
                group = found
            elif isinstance(found, Vote):
                vote = self.messages.number(found)
            group.answer()
            while budget == NEVER and group.host.pending:
                persist(group)
                group.answer()
        except AssertionError as wrong:
            return Outcome(local.number, (), wrong=f"{type(wrong).__name__}: {wrong}")
        return self._settled(local, group, budget, vote)

    def _settled(self, local: Local, group: Explored, budget: Budget, vote: int) -> Outcome | None:
        normalise(group)
        sent = group.host.leaving()
        for message in sent:
            if isinstance(message, Ack) and not group.host.has_durable(message.position):
                return Outcome(local.number, (), wrong=f"I7: {message} is not durable")
        after = self._local(group, budget).number
        numbers = tuple([self.messages.number(message) for message in sent])
        return Outcome(after, numbers, vote) if after != local.number or numbers or vote >= 0 else None

    def _moves(self, local: Local) -> Iterator[tuple[Any, int, Outcome]]:
        """What needs nobody else."""
        group, me = local.group, local.index
        crashes, failures = local.budget
        acts: list[tuple[str, int, Callable[[Explored], Any]]] = []
        may_stand = group.term < self.bounds.terms and group._may_campaign()
        if may_stand and group.role is not Role.CANDIDATE:
            acts.append(("stand", FREE, lambda g: g.campaign(Reason.TIMEOUT, 0)))
        if group.host.pending:
            acts.append(("durable", FREE, persist))
        if group.is_leader:
            acts.append(("propose", BATCH, lambda g: g.propose([Proposal(1, 1)])))
        if crashes and group.commit > group.host.disk.commit_hint:
            acts.append(("checkpoint", CHECKPOINT, take_checkpoint))
        if may_stand and self.used_max[CHANGE]:
            if group.is_leader and group.config in (simple(self.old), simple(self.new)):
                acts.append(("change", CHANGE, self._change))
            if group.log.markers and group._may_abort():
                acts.append(("abort", FREE, lambda g: g.campaign(Reason.OWN_NEXT_TERM, 0, aborting=True)))
        for name, kind, act in acts:
            outcome = self._perform(local, act)
            if outcome is not None:
                yield (name, me), kind, outcome
        faults: list[tuple[str, Callable[[Explored], Any], Budget]] = []
        if crashes and (group.term or group.log.items):
            faults.append(("crash", lambda g: restart(g, self._creation(g.me)), Budget(crashes - 1, failures)))
        if failures and group.host.pending:
            faults.append(("fail", fail_journal, Budget(crashes, failures - 1)))
        for name, act, budget in faults:
            outcome = self._perform(local, act, budget)
            if outcome is not None:
                yield (name, me), FREE, outcome

    def _change(self, group: Explored) -> None:
        """The administrator wants the other set of voters, and the leader stands for the joint term."""
        group.target = self.new if group.config == simple(self.old) else self.old
        group.campaign(Reason.OWN_NEXT_TERM, 0)

    def _delivered(self, state: State, place: int, local: Local, number: int) -> Iterator[tuple[Any, State]]:
        message = self.messages.values[number]
        if isinstance(message, RequestVote):
            yield from self._asked(state, place, local, number, message)
            return
        outcome = self._received(local, number)
        if outcome is not None:
            label = ("receive", number)
            yield label, self._after(state, place, outcome, label)

    def _received(self, local: Local, number: int) -> Outcome | None:
        if number not in local.received:
            message = self.messages.values[number]
            local.received[number] = self._perform(local, lambda group: group.receive(message, 1, 0))
        return local.received[number]

    def _asked(
        self, state: State, place: int, local: Local, number: int, request: RequestVote
    ) -> Iterator[tuple[Any, State]]:
        """A request and its answer in one action, as section 8 has it."""
        key = (local.number, number)
        if key not in self.asked:
            self.asked[key] = self._perform(local, lambda group: ask(group, request))
        outcome = self.asked[key]
        if outcome is None:
            return
        label = ("ask", number)
        after = self._after(state, place, outcome, label)
        if outcome.vote >= 0:
            standing = self.voters.index(request.source)
            candidate = self.locals[after[standing]]
            if candidate.group.role is Role.CANDIDATE and candidate.term == request.term:
                for _label, voted in self._delivered(after, standing, candidate, outcome.vote):
                    yield label, voted
                return
        yield label, after

    def _taken(self, local: Local, led: Led) -> list[tuple[Any, Outcome]]:
        """Everything that this leadership can have sent to a follower; outcomes that are the same count once."""
        if local.index == led.leader or local.term > led.term:
            return []
        leader, me = self.voters[led.leader], self.voters[local.index]
        found: dict[Outcome, Any] = {}
        for message in self._sent_by(local.group, led, leader, me):
            if isinstance(message, AppendEntries | Shipped) or local.group.term < self.bounds.terms:
                number = self.messages.number(message)
                outcome = self._received(local, number)
                if outcome is not None:
                    found.setdefault(outcome, ("receive", number))
        return [(label, outcome) for outcome, label in found.items()]

    def _sent_by(self, group: Explored, led: Led, leader: Voter, me: Voter) -> Iterator[GroupMessage | Shipped]:
        positions = [START, *(item.position for item in led.items)]
        for begin, prev in enumerate(positions):
            for end in range(begin + 1, len(positions)):
                yield AppendEntries(GROUP, leader, me, led.term, prev, led.items[begin:end], START)
        if led.commit.epoch == led.term and group.steady is not None and group.term == led.term:
            if group.commit < led.commit:
                prev = max(position for position in positions if group.log.contains(position))
                yield AppendEntries(GROUP, leader, me, led.term, prev, (), led.commit)
            if self.used_max[CHANGE]:
                yield led.timeout_now(self.voters, me)
        if self.bounds.snapshots:
            for end, position in enumerate(positions[1:], 1):
                if position <= led.commit:
                    items = led.items[:end]
                    markers = tuple(item for item in items if isinstance(item, Marker))
                    yield Shipped(Install(GROUP, leader, me, led.term, position, markers, 0), items)

    # Invariants.

    def _after(self, state: State, place: int, outcome: Outcome, label: Any) -> State:
        """The state with one replica replaced, checked."""
        if outcome.wrong:
            raise ViolationError(outcome.wrong, label)
        count = self.count
        before, new = self.locals[state[place]], self.locals[outcome.after]
        messages, terms, committed = state[count : count + 3]
        try:
            if new.led >= 0:
                terms = self._leads(terms, new.led)
                if (new.led, committed) not in self.fine:
                    self._check_leader(new.led, committed)
            if new.committed != before.committed:
                committed = self._commits(committed, new.committed)
            if new.log != before.log or terms != state[count + 1]:
                self._check_matching(state, place, new.log, terms)
            for message in outcome.sent:
                if (-1, message, terms) not in self.fine:
                    self._check_ack(message, terms)
        except ViolationError as wrong:
            raise ViolationError(wrong.args[0], label) from wrong
        nodes = (*state[:place], outcome.after, *state[place + 1 : count])
        if outcome.sent or new.profile != before.profile:
            messages = self._kept(messages, outcome.sent, nodes)
        return (*nodes, messages, terms, committed, *state[count + 3 :])

    def _leads(self, terms: int, led: int) -> int:
        found = self.led_terms.get((terms, led))
        if found is None:
            new: Led = self.leds.values[led]
            others = []
            for number in self.terms.values[terms]:
                old: Led = self.leds.values[number]
                if old.term != new.term:
                    others.append(number)
                elif old.leader != new.leader:
                    raise ViolationError(f"I1: two leaders of term {new.term}")
                elif new.items[: len(old.items)] != old.items:
                    raise ViolationError(f"I1: {self.voters[new.leader]} leads term {new.term} twice")
            ordered = sorted([*others, led], key=lambda number: self.leds.values[number].term)
            found = self.led_terms[terms, led] = self.terms.number(tuple(ordered))
        return found

    def _check_leader(self, led: int, committed: int) -> None:
        new: Led = self.leds.values[led]
        missing = [item for item in self.logs.values[committed] if item.epoch < new.term and item not in new.items]
        if missing:
            raise ViolationError(f"I2: the leader of {new.term} lacks {missing[0]}")
        self.fine.add((led, committed))

    def _commits(self, committed: int, own: int) -> int:
        found = self.committed.get((committed, own))
        if found is None:
            mine, others = self.logs.values[own], self.logs.values[committed]
            common = min(len(mine), len(others))
            if mine[:common] != others[:common]:
                raise ViolationError(f"I4: committed is {mine}, elsewhere {others}")
            found = self.committed[committed, own] = own if len(mine) > len(others) else committed
        return found

    def _check_matching(self, state: State, place: int, log: int, terms: int) -> None:
        others = [self.locals[number].log for at, number in enumerate(state[: self.count]) if at != place]
        for other in others:
            if (other, log, -1) not in self.fine:
                self._match(self.logs.values[log], self.logs.values[other])
                self.fine.add((other, log, -1))
        if (terms, log, -2) not in self.fine:
            for led in self.terms.values[terms]:
                self._match(self.logs.values[log], self.leds.values[led].items)
            self.fine.add((terms, log, -2))

    def _match(self, mine: tuple[Item, ...], other: tuple[Item, ...]) -> None:
        index_of = {item[:2]: index for index, item in enumerate(mine)}
        for index in range(len(other) - 1, -1, -1):
            at = index_of.get(other[index][:2])
            if at is not None:
                if other[: index + 1] != mine[: at + 1]:
                    raise ViolationError(f"I3: {mine} and {other}")
                return

    def _check_ack(self, number: int, terms: int) -> None:
        ack = self.messages.values[number]
        leds = [self.leds.values[led] for led in self.terms.values[terms]]
        if isinstance(ack, Ack) and ack.position != START:
            for led in leds:
                if led.term == ack.term and all(item.position != ack.position for item in led.items):
                    raise ViolationError(f"I7: {ack} is not in the leader's log")
        self.fine.add((-1, number, terms))

    def _check_late_acks(self) -> None:
        """An ack of an earlier term is not kept (`_useful`), because it changes nothing: here is whether that is so."""
        acks = [message for message in self.messages.values if isinstance(message, Ack)]
        for local in self.locals:
            if local.led >= 0:
                for ack in acks:
                    late = ack.target == local.group.me and ack.term < local.term
                    if late and self._perform(local, lambda group, ack=ack: group.receive(ack, 1, 0)) is not None:
                        raise ViolationError(f"3.3: {ack} changes the leader of term {local.term}")

    # Messages.

    def _kept(self, messages: int, sent: tuple[int, ...], nodes: Iterable[int]) -> int:
        key = (messages, sent, *[self.locals[number].profile for number in nodes])
        found = self.useful.get(key)
        if found is None:
            terms = [self.profiles.values[profile] for profile in key[2:]]
            some = self._useful({*self.sets.values[messages], *sent}, terms)
            found = self.useful[key] = self.sets.number(frozenset(some))
        return found

    def _useful(self, numbers: set[int], terms: list[tuple[int, int, bool]]) -> Iterator[int]:
        """Without those that cannot change anything any more.

        Soundness: terms never fall but by a crash, which is to what was durable; so only a *durable* term makes an
        older request useless. An ack counts at the leader of its term, who never leads that term again
        (`_check_late_acks`); a larger one of the same term does all that a smaller one can.
        """
        best: dict[tuple[Voter, Voter, int], tuple[Any, int]] = {}
        for number in sorted(numbers):
            message = self.messages.values[number]
            term, durable_term, leads = terms[self.voters.index(message.target)]
            if isinstance(message, Ack):
                if term > message.term or (term == message.term and not leads):
                    continue
                if message.position.epoch != message.term and term == message.term:
                    continue  # it never counts; where to send next is no part of the state
                place = (message.source, message.target, message.term)
                if place not in best or best[place][0] < message.position:
                    best[place] = (message.position, number)
            elif isinstance(message, RequestVote) and durable_term <= message.term:
                yield number
        yield from (number for _position, number in best.values())


def main(arguments: list[str] | None = None) -> int:
    """1 when something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in Bounds()._asdict().items():
        if isinstance(default, tuple):
            parser.add_argument(f"--{name}", type=int, nargs="*", default=default, help="numbers of voters")
        else:
            parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--states", type=int, default=None, help="stop after so many")
    parser.add_argument("--mutant", choices=MUTANTS)
    given = vars(parser.parse_args(arguments))
    states, mutant = given.pop("states"), given.pop("mutant")
    bounds = Bounds(**{name: tuple(value) if isinstance(value, list) else value for name, value in given.items()})
    explorer = Explorer(bounds, MUTANTS[mutant][0] if mutant else Explored)
    began, how = time.process_time(), "all of"
    try:
        explorer.run(states)
        if states is not None and explorer.states >= states:
            how = "stopped at"
    except ViolationError as violation:
        how = "wrong after"
        print(violation)
    took = time.process_time() - began
    counts = f"{explorer.states:,} states, {explorer.transitions:,} transitions, depth {explorer.depth}"
    print(f"{bounds}: {how} {counts}, {len(explorer.locals):,} states of a replica, {took:.1f} s of CPU", flush=True)
    return 1 if how == "wrong after" else 0


if __name__ == "__main__":
    sys.exit(main())
