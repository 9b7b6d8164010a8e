"""Kafka and our broker get the same requests in the same order; their decoded answers are compared field by field.

One Kafka runs for the session, and one broker of ours per number of cores. A failure shows the request, the paths
that differ and both whole answers. With TPC_TEST_BROKER=kafka a second Kafka takes the place of ours: then nothing
may differ at all, which is the proof that the normaliser hides what differs by nature and that scenarios are
deterministic.
"""

from __future__ import annotations

import os
import pprint
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.integration.differential import (
    scenarios_admin,
    scenarios_data,
    scenarios_groups,
    scenarios_protocol,
    scenarios_topics,
)
from tests.integration.differential.dialogue import (
    SCENARIOS,
    Dialogue,
    Exchange,
    differences,
    first_epoch_of,
    warm_up,
)
from tests.integration.differential.intended import INTENDED
from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import KafkaPeer
from tests.support.server_process import Broker

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]

assert scenarios_admin
assert scenarios_data
assert scenarios_groups
assert scenarios_protocol
assert scenarios_topics

_AGAINST_KAFKA = os.environ.get("TPC_TEST_BROKER") == "kafka"
_CORES = [1] if _AGAINST_KAFKA else [1, 2]
_DIFFERENCES_SHOWN_MAX = 12


@dataclass
class Run:
    trace: list[Exchange]
    failure: str | None


@dataclass
class Side:
    peer: Broker
    first_epoch: int
    runs: dict[str, Run] = field(default_factory=dict)

    def run(self, name: str) -> Run:
        if name not in self.runs:
            dialogue = Dialogue(self.peer, name, self.first_epoch)
            failure = None
            try:
                SCENARIOS[name](dialogue)
            except Exception:
                failure = traceback.format_exc(limit=-4)
            finally:
                dialogue.close()
            self.runs[name] = Run(dialogue.trace, failure)
        return self.runs[name]


def _started(peer: Broker) -> Side:
    peer.start()
    warm_up(peer)
    return Side(peer, first_epoch_of(peer))


@pytest.fixture(scope="session")
def kafka(kafka_tools, tmp_path_factory) -> Iterator[Side]:
    side = _started(KafkaPeer(tmp_path_factory.mktemp("kafka")))
    yield side
    side.peer.stop()


@pytest.fixture(scope="session")
def ours_by_cores(tmp_path_factory) -> Iterator[dict[int, Side]]:
    sides: dict[int, Side] = {}
    yield sides
    for side in sides.values():
        side.peer.stop()


@pytest.fixture
def ours(ours_by_cores, cores_count, tmp_path_factory) -> Side:
    if cores_count not in ours_by_cores:
        folder = tmp_path_factory.mktemp(f"ours-{cores_count}")
        ours = TpcBroker(folder, cores_count, {"group.initial.rebalance.delay.ms": "0"})
        peer = KafkaPeer(folder) if _AGAINST_KAFKA else ours
        ours_by_cores[cores_count] = _started(peer)
    return ours_by_cores[cores_count]


_seen: set[str] = set()
_completed: set[tuple[str, int]] = set()


def _unintended(name: str, exchange: Exchange, pairs: list[tuple[str, object, object]]) -> list[str]:
    lines = []
    for path, of_kafka, of_ours in pairs:
        known = [one for one in INTENDED if one.matches(name, exchange.api, path, of_kafka, of_ours)]
        _seen.update(one.name for one in known)
        if not known or _AGAINST_KAFKA:
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


@pytest.mark.parametrize("name", sorted(SCENARIOS))
@pytest.mark.parametrize("cores_count", _CORES)
def test_same_answers(kafka, ours, name, cores_count):
    expected, got = kafka.run(name), ours.run(name)
    assert expected.failure is None, f"the scenario is wrong about Kafka:\n{expected.failure}"
    assert expected.trace, "the scenario sent nothing"
    complaints = []
    for place, (of_kafka, of_ours) in enumerate(zip(expected.trace, got.trace, strict=False)):
        if (of_kafka.api, of_kafka.version) != (of_ours.api, of_ours.version):
            complaints.append(f"--- step {place}: the dialogues went apart: {of_kafka}\n{of_ours}")
            break
        lines = _unintended(name, of_ours, differences(of_kafka.answer, of_ours.answer))
        if lines:
            complaints.append(_describe(place, of_kafka, of_ours, lines))
    if got.failure is not None:
        complaints.append(
            f"after {len(got.trace)} of {len(expected.trace)} steps ours broke the scenario:\n{got.failure}"
        )
    elif len(got.trace) != len(expected.trace):
        complaints.append(f"kafka had {len(expected.trace)} steps, ours {len(got.trace)}")
    _completed.add((name, cores_count))
    if complaints:
        shown = "\n".join(complaints[:_DIFFERENCES_SHOWN_MAX])
        pytest.fail(f"{len(complaints)} of {len(expected.trace)} answers differ\n{shown}", pytrace=False)


def test_every_intended_difference_still_occurs():
    if _AGAINST_KAFKA or len(_completed) < len(SCENARIOS) * len(_CORES):
        pytest.skip("only after a complete run against our broker")
    gone = {one.name for one in INTENDED if one.occurs} - _seen
    assert not gone, f"these differences are listed, but no longer there: {sorted(gone)}"
