"""The second load source: librdkafka, the client most users have, through confluent-kafka.

What it measures is client and broker together: Python's part of the client is often the limit, and the round says so by
the share of a CPU that the client used. Idempotence is off, as with the raw generator.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message, Producer

from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.load import LoadFailed, LoadResult

_POLL_EVERY = 64
_FLUSH_S = 60


@dataclass
class _Deliveries:
    """Counts acknowledgements; each record's time counts from the call that handed it to the client."""

    measure_from_ns: int
    histogram: Histogram = field(default_factory=Histogram)
    acknowledged: int = 0
    measured: int = 0
    failed: str = ""

    def seen(self, error: KafkaError | None, began_ns: int) -> None:
        if error is not None:
            self.failed = str(error)
            return
        now_ns = time.monotonic_ns()
        self.acknowledged += 1
        if began_ns >= self.measure_from_ns:
            self.measured += 1
            self.histogram.add(now_ns - began_ns)


def _send(producer: Producer, topic: str, key: bytes, value: bytes, deliveries: _Deliveries) -> None:
    began_ns = time.monotonic_ns()

    def delivered(error: KafkaError | None, _message: Message) -> None:
        deliveries.seen(error, began_ns)

    while True:
        try:
            producer.produce(topic, value, key, on_delivery=delivered)
        except BufferError:
            producer.poll(0.01)
        else:
            return


def run_librdkafka(  # noqa: PLR0913 - what a producer chooses
    bootstrap: str, topic: str, *, producers: int, value_bytes: int, keys: int, linger_ms: float,
    seconds: tuple[float, float], waiting_max: int,
) -> LoadResult:  # fmt: skip
    """`producers` clients in this process send records in turn for warm-up and measured seconds, then flush.

    Each holds at most `waiting_max` records that are not acknowledged, so that the times are not those of the
    client's own queue; with 1 each record is awaited before the next one. `LoadFailed` when any was not acknowledged.
    """
    settings = {
        "bootstrap.servers": bootstrap, "linger.ms": linger_ms, "acks": "all", "log_level": 0,
        "queue.buffering.max.messages": waiting_max,
    }  # fmt: skip
    clients = [Producer(settings) for _ in range(producers)]
    began_ns = time.monotonic_ns()
    deliveries = _Deliveries(began_ns + int(seconds[0] * 1e9))
    until_ns = deliveries.measure_from_ns + int(seconds[1] * 1e9)
    value, sent, cpu_before = b"x" * value_bytes, 0, time.process_time()
    while time.monotonic_ns() < until_ns and not deliveries.failed:
        client = clients[sent % producers]
        _send(client, topic, b"%d" % (sent % keys), value, deliveries)
        sent += 1
        if waiting_max == 1:
            client.flush(_FLUSH_S)
        elif sent % _POLL_EVERY == 0:
            for one in clients:
                one.poll(0)
    unsent = sum(client.flush(_FLUSH_S) for client in clients)
    ended_ns = time.monotonic_ns()
    if deliveries.failed or unsent or deliveries.acknowledged != sent:
        raise LoadFailed(f"{deliveries.acknowledged} of {sent} records were acknowledged: {deliveries.failed}")
    return LoadResult(
        requests=deliveries.measured,
        requests_all=sent,
        elapsed_s=(ended_ns - deliveries.measure_from_ns) / 1e9,
        generator_cpu_share=round((time.process_time() - cpu_before) / ((ended_ns - began_ns) / 1e9), 3),
        histogram=deliveries.histogram,
    )
