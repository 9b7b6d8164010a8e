"""A node is killed under load: after how long its partitions are acknowledged again, to a stock client."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, Message, Producer

from tpc_broker.bench.bars import AGAIN
from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.load import LoadFailed
from tpc_broker.bench.measured import Round, Stage, Workload, check_stored
from tpc_broker.bench.peers.clusters import KafkaLikeCluster
from tpc_broker.bench.plots import KILLED_AT

if TYPE_CHECKING:
    from tpc_broker.bench.peers import Shape

MEASURED_S_MIN: Final = 20.0
_KILLED_AT: Final = 0.25
"""Of the measured time."""
_POLL_S: Final = 0.001
_FLUSH_S: Final = 60.0
_SLOT_NS: Final = 10**8


@dataclass
class Acknowledged:
    """Of all records: when they were handed to the client and acknowledged, by partition."""

    times_ns: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    failed: str = ""

    def seen(self, error: KafkaError | None, partition: int, began_ns: int) -> None:
        if error is not None:
            self.failed = str(error)
        else:
            self.times_ns.setdefault(partition, []).append((began_ns, time.monotonic_ns()))

    def all(self) -> list[tuple[int, int]]:
        return [times for of_one in self.times_ns.values() for times in of_one]

    def again_after_s(self, killed_ns: int) -> dict[int, float]:
        """Seconds from the kill to the first acknowledgement of a record that was handed over afterwards."""
        found = {}
        for partition, times in self.times_ns.items():
            ends = [ended for began, ended in times if began >= killed_ns]
            if ends:
                found[partition] = (min(ends) - killed_ns) / 1e9
        return found

    def slots(self, start_ns: int, count: int) -> list[int]:
        """How many were acknowledged in each 100 ms."""
        made = [0] * count
        for _began, ended in self.all():
            place = (ended - start_ns) // _SLOT_NS
            if 0 <= place < count:
                made[place] += 1
        return made


@dataclass
class _Load:
    producer: Producer
    topic: str
    shape: Shape
    acknowledged: Acknowledged
    sent: int = 0

    def send(self) -> None:
        partition, began_ns = self.sent % self.shape.partitions, time.monotonic_ns()

        def delivered(error: KafkaError | None, _message: Message) -> None:
            self.acknowledged.seen(error, partition, began_ns)

        self.producer.produce(self.topic, bytes(self.shape.value_bytes), partition=partition, on_delivery=delivered)
        self.sent += 1

    def run(self, seconds: float) -> None:
        """At the shape's rate, however late the answers."""
        start, before = time.monotonic(), self.sent
        while (passed := time.monotonic() - start) < seconds:
            while self.sent - before < passed * self.shape.rate:
                self.send()
            self.producer.poll(_POLL_S)


def failover(workload: Workload, stage: Stage) -> Round:
    """Every record has to be acknowledged in the end, and to be there once."""
    peer, shape, topic = stage.peer, workload.shape, f"load-{workload.key}"
    assert isinstance(peer, KafkaLikeCluster)
    peer.create_topic(topic, shape.partitions)
    settings = {"bootstrap.servers": peer.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 0}
    load = _Load(Producer(settings), topic, shape, Acknowledged())
    load.run(stage.extent.warm_up)
    measured_s = max(stage.extent.measured, MEASURED_S_MIN)
    start_ns = time.monotonic_ns()
    load.run(measured_s * _KILLED_AT)
    peer.begin_kill(topic)
    killed_ns = time.monotonic_ns()
    load.run(measured_s * (1 - _KILLED_AT))
    unsent = load.producer.flush(_FLUSH_S)
    found = load.acknowledged
    again = found.again_after_s(killed_ns)
    if found.failed or unsent or len(again) != shape.partitions:
        raise LoadFailed(f"{unsent} records were not acknowledged, {len(again)} partitions again: {found.failed}")
    check_stored(peer, topic, load.sent)
    return _round(found, stage, (start_ns, killed_ns, measured_s), again)


def _round(found: Acknowledged, stage: Stage, times: tuple[int, int, float], again: dict[int, float]) -> Round:
    start_ns, killed_ns, measured_s = times
    histogram = Histogram()
    for began, ended in found.all():
        if began >= start_ns:
            histogram.add(ended - began)
    slots = found.slots(start_ns, int(measured_s * 10))
    rate = sum(slots) / measured_s
    extra = {
        AGAIN: max(again.values()),
        KILLED_AT: (killed_ns - start_ns) / 1e9,
    }
    resident_mib = stage.server.resident_bytes() / 2**20
    return Round(
        requests_per_s=round(rate, 1), records_per_s=round(rate, 1), latency_us=histogram.percentiles_us(),
        resident_mib=round(resident_mib, 1), per_100ms=slots, buckets=histogram.buckets(), extra=extra,
    )  # fmt: skip
