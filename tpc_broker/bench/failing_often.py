"""Nodes of one cluster fail, one after the other, under load: after how long all partitions are acknowledged again.

A *kill* is SIGKILL, and the node starts again once the others serve. A *pause* is SIGSTOP, a node that is *isolated*
hears nobody and nobody hears it, clients neither; both for `AWAY_S`. It is always the node that leads most partitions,
and the next fault waits until every node says that all replicas are in sync. What is told of each fault: how long it
took until records that were handed to the client afterwards were acknowledged in all partitions, and until another
node said of all partitions who leads them, which is the broker's part of it.

Kills close connections. A node that says nothing keeps them open, and then it is the client that has to give up what it
has sent there: by default librdkafka waits a minute. `CLIENT` has it wait a second, as the nodes do.
"""

from __future__ import annotations

import signal
import statistics
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from tpc_broker.bench.bars import FAULTS, after_fault
from tpc_broker.bench.histogram import Histogram
from tpc_broker.bench.kafka_requests import PartitionState, topic_state
from tpc_broker.bench.load import LoadFailed, until
from tpc_broker.bench.measured import CountsDiffer, Round, Stage, Workload, check_stored
from tpc_broker.bench.peers.clusters import NODES, TpcHostsPeer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tpc_broker.bench.peers import Shape
    from tpc_broker.bench.peers.kafka_like import Address

AWAY_S: Final = 8.0
CLIENT: Final = {
    "enable.idempotence": True, "linger.ms": 0, "socket.timeout.ms": 1_000, "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 200,
    "topic.metadata.refresh.fast.interval.ms": 50, "log_level": 0,
}  # fmt: skip
"""Of the producer, beside its addresses."""
_CALM_S: Final = 1.0
"""Between two faults, after all is as before."""
_DEADLINE_S: Final = 120.0
_LOOK_S: Final = 0.01
_until = partial(until, within_s=_DEADLINE_S, look_s=_LOOK_S)
_LOOK_FOR_REPLICAS_S: Final = 0.1
_ANSWER_S: Final = 1.0
_POLL_S: Final = 0.001
_FLUSH_S: Final = 60.0
_SLOT_NS: Final = 10**8
_NUMBER_BYTES: Final = 8
_READ_AT_ONCE: Final = 10_000


@dataclass
class Silence:
    """From a fault on: after how many seconds each partition acknowledged a record that was handed over later."""

    began_ns: int
    again_s: dict[int, float] = field(default_factory=dict)

    def acknowledged(self, partition: int, handed_over_ns: int, now_ns: int) -> None:
        if handed_over_ns >= self.began_ns and partition not in self.again_s:
            self.again_s[partition] = (now_ns - self.began_ns) / 1e9


@dataclass(frozen=True)
class Outcome:
    """Of one fault, in seconds."""

    fault: str
    again_s: float
    led_s: float
    """Until another node named a leader of every partition that is not the one that failed."""


class SteadyLoad:
    """Records in open loop, each partition in turn, numbered in each: from a thread of its own, as an idempotent
    producer.
    """

    def __init__(self, bootstrap: str, topic: str, shape: Shape) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, **CLIENT})
        self._topic, self._shape = topic, shape
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._start_ns = time.monotonic_ns()
        self._silence = Silence(self._start_ns)
        self.numbers = [0] * shape.partitions
        """How many records of each partition were handed over."""
        self.histogram = Histogram()
        self.slots: list[int] = []
        """How many were acknowledged in each 100 ms."""
        self.failed = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> int:
        """How many were never acknowledged."""
        self._over.set()
        self._thread.join()
        return self._producer.flush(_FLUSH_S)

    def begin_silence(self) -> Silence:
        """Of records that are handed over from now on."""
        self._silence = Silence(time.monotonic_ns())
        return self._silence

    def wait_all(self, silence: Silence) -> float:
        """Until all partitions are acknowledged: how long it took."""
        _until(lambda: len(silence.again_s) == self._shape.partitions or bool(self.failed), "all are acknowledged")
        if self.failed:
            raise LoadFailed(f"a record was not acknowledged: {self.failed}")
        return max(silence.again_s.values())

    def _run(self) -> None:
        sent, began = 0, time.monotonic()
        while not self._over.is_set():
            while sent < (time.monotonic() - began) * self._shape.rate:
                self._send(sent % self._shape.partitions)
                sent += 1
            self._producer.poll(_POLL_S)

    def _send(self, partition: int) -> None:
        number, handed_over_ns = self.numbers[partition], time.monotonic_ns()

        def delivered(error: KafkaError | None, _message: Message) -> None:
            self._seen(error, partition, handed_over_ns)

        value = number.to_bytes(_NUMBER_BYTES, "big") + bytes(self._shape.value_bytes - _NUMBER_BYTES)
        self._producer.produce(self._topic, value, partition=partition, on_delivery=delivered)
        self.numbers[partition] = number + 1

    def _seen(self, error: KafkaError | None, partition: int, handed_over_ns: int) -> None:
        if error is not None:
            self.failed = str(error)
            return
        now_ns = time.monotonic_ns()
        self._silence.acknowledged(partition, handed_over_ns, now_ns)
        self.histogram.add(now_ns - handed_over_ns)
        place = (now_ns - self._start_ns) // _SLOT_NS
        self.slots.extend([0] * (place + 1 - len(self.slots)))
        self.slots[place] += 1


class _Faults:
    """What is done to the nodes of a cluster that is under load; `node` counts from 1, as their ids do."""

    def __init__(self, peer: TpcHostsPeer, topic: str, partitions: int, load: SteadyLoad) -> None:
        self._peer, self._topic, self._partitions, self._load = peer, topic, partitions, load
        self._nodes = list(peer.nodes.values())
        self._addresses: list[Address] = [(node.host, port) for port, node in peer.nodes.items()]

    def _state(self, node: int) -> dict[int, PartitionState]:
        return topic_state(self._addresses[node - 1], self._topic, _ANSWER_S)

    def wait_whole(self) -> None:
        """Until every node says that all replicas are in sync, and all partitions are acknowledged."""

        def is_whole(node: int) -> bool:
            found = self._state(node)
            in_sync = sum(one.in_sync_count for one in found.values() if one.leader >= 0)
            return in_sync == NODES * self._partitions

        nodes = range(1, NODES + 1)
        _until(lambda: all(map(is_whole, nodes)), "all replicas are in sync", look_s=_LOOK_FOR_REPLICAS_S)
        self._load.wait_all(self._load.begin_silence())

    def _leads_most(self) -> int:
        led = [_node_of(one.leader) for one in self._state(1).values()]
        return max(range(1, NODES + 1), key=led.count)

    def one(self, fault: str) -> Outcome:
        """One after another node leads, and all is as before in the end."""
        self.wait_whole()
        time.sleep(_CALM_S)
        node = self._leads_most()
        asked = node % NODES + 1
        self._begin(fault, node)
        silence = self._load.begin_silence()
        _until(lambda: self._is_led_without(node, self._state(asked)), "others lead")
        led_s = (time.monotonic_ns() - silence.began_ns) / 1e9
        again_s = self._load.wait_all(silence)
        if fault != "kill":
            time.sleep(max(0.0, AWAY_S - (time.monotonic_ns() - silence.began_ns) / 1e9))
        self._end(fault, node)
        return Outcome(fault, again_s, led_s)

    def _is_led_without(self, node: int, found: dict[int, PartitionState]) -> bool:
        leaders = {_node_of(one.leader) for one in found.values() if one.leader >= 0}
        return len(found) == self._partitions and node not in leaders and all(one.leader >= 0 for one in found.values())

    def _begin(self, fault: str, node: int) -> None:
        if fault == "kill":
            self._nodes[node - 1].begin_kill()
        elif fault == "pause":
            self._nodes[node - 1].send_signal(signal.SIGSTOP)
        else:
            self._peer.hosts.cut_off(node)

    def _end(self, fault: str, node: int) -> None:
        if fault == "kill":
            self._nodes[node - 1].kill()
            self._nodes[node - 1].launch()
        elif fault == "pause":
            self._nodes[node - 1].send_signal(signal.SIGCONT)
        else:
            self._peer.hosts.reconnect(node)


def _node_of(broker: int) -> int:
    return broker // 1024


def in_turn(counts: Sequence[int]) -> list[str]:
    """Kinds of fault, one after the other as long as there are any left."""
    return [fault for turn in range(max(counts)) for fault, count in zip(FAULTS, counts, strict=True) if turn < count]


def failovers(workload: Workload, stage: Stage) -> Round:
    """Every record has to be acknowledged in the end, and to be there once and in its partition's order."""
    peer, shape, topic = stage.peer, workload.shape, f"load-{workload.key}"
    assert isinstance(peer, TpcHostsPeer)
    kills, pauses, isolations = stage.extent.faults
    planned = in_turn((kills, pauses, 0 if peer.why_no_hosts else isolations))
    peer.create_topic(topic, shape.partitions)
    load = SteadyLoad(peer.bootstrap, topic, shape)
    faults = _Faults(peer, topic, shape.partitions, load)
    outcomes = []
    load.start()
    try:
        time.sleep(stage.extent.warm_up)
        outcomes = [faults.one(fault) for fault in planned]
        faults.wait_whole()
    finally:
        unsent = load.stop()
    if load.failed or unsent:
        raise LoadFailed(f"{unsent} records were not acknowledged: {load.failed}")
    check_stored(peer, topic, sum(load.numbers))
    check_order(peer.bootstrap, topic, load.numbers)
    return _round(stage, load, outcomes)


def check_order(bootstrap: str, topic: str, numbers: Sequence[int]) -> None:
    """Each partition has exactly the records 0, 1, 2, … up to its number, in this order."""
    found = [0] * len(numbers)
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "check.crcs": True,
        "log_level": 0,
    })  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(len(numbers))])
        give_up_at = time.monotonic() + _DEADLINE_S
        while sum(found) < sum(numbers):
            if time.monotonic() > give_up_at:
                raise CountsDiffer(f"{sum(found)} of {sum(numbers)} records of {topic} were read")
            for message in consumer.consume(_READ_AT_ONCE, timeout=1.0):
                if message.error() is None:
                    give_up_at = time.monotonic() + _DEADLINE_S
                    _check_next(message, found)
    finally:
        consumer.close()


def _check_next(message: Message, found: list[int]) -> None:
    value, partition = message.value(), message.partition()
    assert isinstance(value, bytes)
    assert partition is not None
    number = int.from_bytes(value[:_NUMBER_BYTES], "big")
    if number != found[partition]:
        place = f"{message.topic()}-{partition} at {message.offset()}"
        raise CountsDiffer(f"{place}: record {number} where {found[partition]} should be")
    found[partition] += 1


def _round(stage: Stage, load: SteadyLoad, outcomes: Sequence[Outcome]) -> Round:
    extra: dict[str, float] = {}
    silences: dict[str, list[float]] = {}
    for fault in FAULTS:
        mine = [outcome for outcome in outcomes if outcome.fault == fault]
        if mine:
            silences[fault] = [round(outcome.again_s, 3) for outcome in mine]
            extra |= _figures(fault, silences[fault])
            extra |= _figures(f"led after {fault}", [round(outcome.led_s, 3) for outcome in mine])
    whole = load.slots[:-1]
    rate = sum(whole) / (len(whole) / 10) if whole else 0.0
    return Round(
        requests_per_s=round(rate, 1), records_per_s=round(rate, 1), latency_us=load.histogram.percentiles_us(),
        resident_mib=round(stage.server.resident_bytes() / 2**20, 1), per_100ms=whole,
        buckets=load.histogram.buckets(), extra=extra, silences_s=silences,
    )  # fmt: skip


def _figures(what: str, values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        after_fault(what, "median"): statistics.median(ordered),
        after_fault(what, "p90"): ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))],
        after_fault(what, "worst"): ordered[-1],
    }
