"""Bugs planted into the membership protocol. Each must be caught, by a scenario or within a few seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from tests.simulator import swim_scenarios
from tests.simulator.swim_run import SwimRun, plan_of
from tpc_broker.swim import machine, members, rumours
from tpc_broker.swim.lifeguard import LocalHealth, Suspicion
from tpc_broker.swim.machine import Swim
from tpc_broker.swim.model import State, Update

SEEDS_MAX = 12
STEPS = 25


def by_seeds() -> None:
    """The random runs, until one fails."""
    for seed in range(1, SEEDS_MAX + 1):
        plan = plan_of(seed, STEPS)
        SwimRun(seed, plan, plan.schedule).run()


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug, how to plant it, what catches it, and what that says."""

    name: str
    plant: Callable[[pytest.MonkeyPatch], None]
    caught_by: Callable[[], None]
    said: str


def _without(owner: type, name: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, lambda *_arguments, **_named: None)


def _no_suspicion_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "Suspicion", _EndlessSuspicion)


class _EndlessSuspicion(Suspicion):
    def confirm(self, accuser, settings):
        is_new = super().confirm(accuser, settings)
        self.deadline_ms = 10**15
        return is_new


def _unbounded_piggyback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "retransmissions_max", lambda _lambda, _count: 10**9)


def _no_piggyback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rumours.Rumours, "take", lambda _self, _room, _times: [])


def _dead_overrides_newer_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank(update: Update) -> tuple[int, int]:
        return (update.incarnation + 1_000 * (update.state is State.DEAD), update.state)

    monkeypatch.setattr(Update, "rank", property(rank))


def _refutes_with_the_same_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Swim._answer_claim

    def same(self: Swim, update: Update) -> None:
        before = self.incarnation
        answer(self, update)
        self.incarnation = max(before, update.incarnation)
        self._announce()

    monkeypatch.setattr(Swim, "_answer_claim", same)


def _boot_id_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A former life's claim to be alive is taken for an echo."""
    answer = Swim._answer_claim

    def deaf(self: Swim, update: Update) -> None:
        if update.state is not State.ALIVE:
            answer(self, update)

    monkeypatch.setattr(Swim, "_answer_claim", deaf)


def _raises_anothers_incarnation(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Swim._end_probe

    def meddle(self: Swim, now_ms: int) -> None:
        probe = self._probe
        end(self, now_ms)
        member = None if probe is None else self.members.get(probe.node)
        if member is not None and member.state is State.SUSPECT:
            self._apply(Update(member.node, member.incarnation + 1, State.ALIVE, member.node, member.info), now_ms)

    monkeypatch.setattr(Swim, "_end_probe", meddle)


def _suspects_at_once_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpc_broker.swim.lifeguard.suspicion_timeout_ms", lambda *_arguments: 1)


def _health_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "Suspicion", lambda now_ms, members_count, _health: Suspicion(now_ms, members_count))


def _random_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    def anyone(self: members.Members):
        return (self.some_present(1, suspects=True) or [None])[0]

    monkeypatch.setattr(members.Members, "next_to_probe", anyone)


def _new_members_never_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_first(self: members.Members):
        return next((member for member in self if member.state is State.ALIVE), None)

    monkeypatch.setattr(members.Members, "next_to_probe", only_first)


def _dead_by_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(self: Swim, updates, now_ms: int, *, is_answer: bool = False) -> None:
        for update in updates:
            self._apply(update, now_ms, is_news=True)

    monkeypatch.setattr(Swim, "merge", merge)


def _left_below_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    def burial(self: Swim, now_ms: int) -> None:
        self._leave_ends_ms = now_ms
        self.has_left = True

    monkeypatch.setattr(Swim, "_say_farewell", burial)


def _ack_for_others_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledged = Swim._on_ack

    def forgetful(self: Swim, source, message, now_ms: int) -> None:
        if message.sequence in self._relays:
            del self._relays[message.sequence]
            return
        acknowledged(self, source, message, now_ms)

    monkeypatch.setattr(Swim, "_on_ack", forgetful)


def _helpers_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_self: Swim, probe, _now_ms: int) -> None:
        probe.are_helpers_asked = True

    monkeypatch.setattr(Swim, "_ask_helpers", nobody)


def _no_joining(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_begin_exchange", "_reconnect"):
        monkeypatch.setattr(Swim, name, lambda *_arguments: None)


def _ends_told_as_new(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = Swim.merge

    def afresh(self: Swim, updates, now_ms: int, *, is_answer: bool = False) -> None:
        merge(self, [replace(update, gone_for_ms=0) for update in updates], now_ms, is_answer=is_answer)

    monkeypatch.setattr(Swim, "merge", afresh)


MUTANTS = (
    Mutant("no refutation", _without(Swim, "_answer_claim"), swim_scenarios.quiet, "buried under loss|without faults"),
    Mutant("refutes with the same incarnation", _refutes_with_the_same_incarnation, swim_scenarios.quiet, "buried"),
    Mutant("suspicion without a time-out", _no_suspicion_timeout, swim_scenarios.crash, "suspects 3 for"),
    Mutant("suspicion without time", _suspects_at_once_dead, swim_scenarios.quiet, "buried under loss"),
    Mutant("a pair's suspicion not stretched", _health_left_out, swim_scenarios.pair, "buried in a pair"),
    Mutant("unbounded piggyback", _unbounded_piggyback, swim_scenarios.crash, "still has .* rumours"),
    Mutant("no piggyback", _no_piggyback, swim_scenarios.crash, "without faults"),
    Mutant("dead overrides newer alive", _dead_overrides_newer_alive, by_seeds, "after"),
    Mutant("boot id ignored", _boot_id_ignored, swim_scenarios.restart, "without faults"),
    Mutant("somebody else's incarnation raised", _raises_anothers_incarnation, swim_scenarios.crash, "never had"),
    Mutant("ping-req ignored", _without(Swim, "_on_ping_req"), swim_scenarios.bad_path, "bad path"),
    Mutant("acks for others dropped", _ack_for_others_dropped, swim_scenarios.bad_path, "bad path"),
    Mutant("helpers never asked", _helpers_never_asked, swim_scenarios.bad_path, "bad path"),
    Mutant("probes at random", _random_probes, swim_scenarios.many_crashes, "within 2n - 1"),
    Mutant("only the first member probed", _new_members_never_probed, swim_scenarios.many_crashes, "within 2n - 1"),
    Mutant("dead taken from an exchange", _dead_by_exchange, swim_scenarios.partition, "healed partition"),
    Mutant("the lost side never looked for", _without(Swim, "_reconnect"), swim_scenarios.partition, "without faults"),
    Mutant("own pause not forgiven", _without(Swim, "_forgive_own_pause"), swim_scenarios.pause, "paused member"),
    Mutant("health never gets better", _without(LocalHealth, "better"), swim_scenarios.quiet, "bad health"),
    Mutant("no farewell", _left_below_dead, swim_scenarios.farewell, "held to be|taken for dead"),
    Mutant("no joining", _no_joining, swim_scenarios.join, "without faults"),
    Mutant("the dead brought back by exchanges", _ends_told_as_new, swim_scenarios.forgotten, "not forgotten"),
    Mutant("the dead brought back, by chance", _ends_told_as_new, by_seeds, "not forgotten in"),
)
