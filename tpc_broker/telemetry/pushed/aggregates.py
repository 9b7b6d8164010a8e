"""What all instances together have pushed, and how often anything was refused."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypedDict

from tpc_broker.telemetry.pushed.standard import STANDARD, Kind, Over

if TYPE_CHECKING:
    import uuid

    from tpc_broker.telemetry.pushed.payload import Pushed


class Gauge(TypedDict):
    """Of the instances that have told a metric. Of Over.SUM and Over.AVERAGE the sum, of Over.MAX the largest."""

    instances: int
    value: float


class Aggregates:
    """Of instances, the newest value of each gauge; of counters, all that they ever grew by."""

    def __init__(self) -> None:
        self._gauges: dict[int, dict[uuid.UUID, float]] = {
            place: {} for place, one in enumerate(STANDARD) if one.over is not Over.GROWTH
        }
        self._growths = {place: 0.0 for place, one in enumerate(STANDARD) if one.over is Over.GROWTH}
        self._kinds: dict[uuid.UUID, Kind] = {}
        self._counts = Counter(dict.fromkeys(Kind, 0))

    def take(self, instance_id: uuid.UUID, pushed: Pushed, *, is_here: bool) -> None:
        """What it does not say any more is forgotten: a client that was asked for less leaves it out. Of an instance
        that has gone meanwhile only growth counts.
        """
        for place, growth in pushed.growths.items():
            self._growths[place] += growth
        if not is_here:
            return
        self._note_kind(instance_id, pushed.kind)
        for place, told in self._gauges.items():
            if place in pushed.gauges:
                told[instance_id] = pushed.gauges[place]
            else:
                told.pop(instance_id, None)

    def came(self, instance_id: uuid.UUID) -> None:
        if instance_id not in self._kinds:
            self._note_kind(instance_id, Kind.SILENT)

    def went(self, instance_id: uuid.UUID) -> None:
        self._counts[self._kinds.pop(instance_id)] -= 1
        for told in self._gauges.values():
            told.pop(instance_id, None)

    def _note_kind(self, instance_id: uuid.UUID, kind: Kind) -> None:
        before = self._kinds.get(instance_id)
        if before is not None:
            self._counts[before] -= 1
        self._kinds[instance_id] = kind
        self._counts[kind] += 1

    def kinds(self) -> dict[str, int]:
        return {kind.value: self._counts[kind] for kind in Kind}

    def gauges(self) -> dict[str, Gauge]:
        """By the name of ours; without those that nobody tells."""
        found = {}
        for place, told in self._gauges.items():
            if told:
                one, values = STANDARD[place], told.values()
                value = max(values) if one.over is Over.MAX else sum(values)
                found[one.metric] = Gauge(instances=len(told), value=value * one.scale)
        return found

    def growths(self) -> dict[str, float]:
        return {STANDARD[place].metric: growth * STANDARD[place].scale for place, growth in self._growths.items()}
