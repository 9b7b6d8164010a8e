"""What one scenario got from two peers, side by side."""

from __future__ import annotations

import pprint
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from tests.integration.differential.dialogue import Dialogue, Exchange, Scenario, differences
from tests.integration.differential.intended import Intended
from tests.support.server_process import Broker

DIFFERENCES_SHOWN_MAX = 12


@dataclass
class Run:
    trace: list[Exchange]
    failure: str | None


@dataclass
class Side:
    """One peer, which runs each scenario once."""

    peer: Broker
    first_epoch: int
    scenarios: Mapping[str, Scenario]
    dialogue: Callable[[Broker, str, int], Dialogue] = Dialogue
    runs: dict[str, Run] = field(default_factory=dict)

    def run(self, name: str) -> Run:
        if name not in self.runs:
            dialogue = self.dialogue(self.peer, name, self.first_epoch)
            failure = None
            try:
                self.scenarios[name](dialogue)
            except Exception:
                failure = traceback.format_exc(limit=-4)
            finally:
                dialogue.close()
            self.runs[name] = Run(dialogue.trace, failure)
        return self.runs[name]


@dataclass
class Referee:
    """`intended`: what may differ. None: nothing may, because the other side is a Kafka, too."""

    intended: Sequence[Intended] | None
    seen: set[str] = field(default_factory=set)
    """Names of those that did."""
    completed: set[Hashable] = field(default_factory=set)
    """Scenarios that were judged."""

    def judge(self, name: str, kafka: Side, ours: Side, key: Hashable = None) -> None:
        """Run a scenario on both, and fail with what differs and should not. `key`: what is completed then, if not the
        scenario's name.
        """
        expected, got = kafka.run(name), ours.run(name)
        assert expected.failure is None, f"the scenario is wrong about Kafka:\n{expected.failure}"
        assert expected.trace, "the scenario sent nothing"
        complaints = self.complaints(name, expected, got)
        self.completed.add(name if key is None else key)
        if complaints:
            shown = "\n".join(complaints[:DIFFERENCES_SHOWN_MAX])
            pytest.fail(f"{len(complaints)} of {len(expected.trace)} answers differ\n{shown}", pytrace=False)

    def complaints(self, name: str, expected: Run, got: Run) -> list[str]:
        """What differs in a scenario and should not."""
        found = []
        for place, (of_kafka, of_ours) in enumerate(zip(expected.trace, got.trace, strict=False)):
            if (of_kafka.api, of_kafka.version) != (of_ours.api, of_ours.version):
                found.append(f"--- step {place}: the dialogues went apart: {of_kafka}\n{of_ours}")
                break
            lines = self._unintended(name, of_ours, differences(of_kafka.answer, of_ours.answer))
            if lines:
                found.append(_describe(place, of_kafka, of_ours, lines))
        if got.failure is not None:
            found.append(
                f"after {len(got.trace)} of {len(expected.trace)} steps ours broke the scenario:\n{got.failure}"
            )
        elif len(got.trace) != len(expected.trace):
            found.append(f"kafka had {len(expected.trace)} steps, ours {len(got.trace)}")
        return found

    def _unintended(self, name: str, exchange: Exchange, pairs: list[tuple[str, object, object]]) -> list[str]:
        lines = []
        for path, of_kafka, of_ours in pairs:
            known = [one for one in self.intended or () if one.matches(name, exchange.api, path, of_kafka, of_ours)]
            self.seen.update(one.name for one in known)
            if not known:
                lines.append(f"  {path}: kafka {of_kafka!r}, ours {of_ours!r}")
        return lines


def _describe(place: int, of_kafka: Exchange, of_ours: Exchange, lines: list[str]) -> str:
    return "\n".join(
        [
            f"--- step {place}: {of_kafka.api} version {of_kafka.version}",
            *lines,
            f"request: {pprint.pformat(of_ours.request, width=150, compact=True)}",
            f"kafka:   {pprint.pformat(of_kafka.answer, width=150, compact=True)[:3000]}",
            f"ours:    {pprint.pformat(of_ours.answer, width=150, compact=True)[:3000]}",
        ]
    )
