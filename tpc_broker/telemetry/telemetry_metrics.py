"""What clients push (KIP-714), as Prometheus metrics.

Every name is of a list of ours (`telemetry.pushed.standard`), and so is every label: no client makes a series.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from tpc_broker.telemetry.pushed.standard import STANDARD, Over

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.core import Metric

    from tpc_broker.telemetry.counters import TelemetryCounters
    from tpc_broker.telemetry.pushed.aggregates import Gauge

PREFIX: Final = "tpc_client_"
INSTANCES: Final = "tpc_telemetry_instances"
REFUSED: Final = "tpc_telemetry_refused"
COUNTS: Final = (
    ("tpc_telemetry_subscriptions", "subscriptions", "Subscriptions to clients' metrics that are in force."),
    ("tpc_telemetry_asked_total", "asked", "Times that clients were told what to push."),
    ("tpc_telemetry_pushes_total", "pushes", "Pushes of clients' metrics that were taken."),
    ("tpc_telemetry_pushed_bytes_total", "pushed_bytes", "Bytes of them, as they came."),
    ("tpc_telemetry_evicted_total", "evicted", "Instances of clients that were forgotten to make room for others."),
)


def telemetry_metrics(told: Sequence[tuple[str, TelemetryCounters]]) -> Iterator[Metric]:
    """Of each core, by its name. A gauge that nobody tells has no samples."""
    for name, field, explanation in COUNTS:
        family = _family(name, explanation)
        for core, counters in told:
            family.add_metric([core], counters["counts"][field])
        yield family
    instances = GaugeMetricFamily(INSTANCES, "Instances of clients that push, by kind.", labels=["core", "kind"])
    refused = CounterMetricFamily(REFUSED, "Pushes and questions refused, by reason.", labels=["core", "reason"])
    for core, counters in told:
        for kind, count in counters["instances"].items():
            instances.add_metric([core, kind], count)
        for reason, count in counters["refused"].items():
            refused.add_metric([core, reason], count)
    yield from (instances, refused)
    for one in STANDARD:
        family = _family(PREFIX + one.metric, f"{one.explanation} As clients have pushed it: {one.over.value}.")
        for core, counters in told:
            if one.over is Over.GROWTH:
                family.add_metric([core], counters["growths"][one.metric])
            elif one.metric in counters["gauges"]:
                family.add_metric([core], _of_all(one.over, counters["gauges"][one.metric]))
        yield family


def _of_all(over: Over, gauge: Gauge) -> float:
    return gauge["value"] / gauge["instances"] if over is Over.AVERAGE else gauge["value"]


def _family(name: str, explanation: str) -> Any:
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), explanation, labels=["core"])
    return GaugeMetricFamily(name, explanation, labels=["core"])
