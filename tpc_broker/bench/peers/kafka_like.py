"""What all peers that speak Kafka's protocol share: topics, leaders, plans, counts; all through a stock client."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, ClassVar, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from tpc_broker.bench.kafka_requests import fetch_requests, produce_request, record_batch
from tpc_broker.bench.load import KAFKA_PRODUCE, OFFSET_LAST, Connection, FetchConnection, Plan
from tpc_broker.bench.peers.peer import Peer, Shape
from tpc_broker.bench.server import ServerFailed

if TYPE_CHECKING:
    from pathlib import Path

Address = tuple[str, int]
_BROKERS_S: Final = 60.0
FETCH_WAIT_MS: Final = 500
"""As stock consumers wait."""


class KafkaLikePeer(Peer):
    speaks_kafka: ClassVar[bool] = True
    replicas: ClassVar[int] = 1
    """Of each topic."""
    port: int = 0

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __init__(self, folder: Path, mode: str) -> None:
        super().__init__(folder, mode)
        self.topic_extras: dict[str, str] = {}
        """Configurations that a workload wants for the topics it makes."""

    def topic_settings(self) -> dict[str, str]:
        """Configurations of each topic in this mode."""
        return {}

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create_topic(self, topic: str, partitions: int) -> dict[int, Address]:
        """Make a topic; the address of each partition's leader once all have one."""
        self.ask_for_topic(topic, partitions)
        give_up_at = time.monotonic() + 60
        while time.monotonic() < give_up_at:
            leaders = self.leaders(topic)
            if len(leaders) == partitions and self._answers_for(topic, partitions):
                return leaders
            time.sleep(0.05)
        raise ServerFailed(f"{self.label}: not all of the {partitions} partitions got a leader")

    def ask_for_topic(self, topic: str, partitions: int) -> None:
        """Make a topic; wait for no leaders."""
        admin = self._admin()
        settings = self.topic_settings() | self.topic_extras
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=self.replicas, config=settings)
        for future in admin.create_topics([wanted], operation_timeout=60).values():
            try:
                future.result()
            except KafkaException as error:
                raise ServerFailed(f"{self.label}: {topic} was not made: {error.args[0].str()}") from error

    def _answers_for(self, topic: str, partitions: int) -> bool:
        """Whether the leaders know that they lead: Kafka's metadata is ahead of its logs."""
        try:
            return len(self.end_offsets(topic, partitions)) == partitions
        except KafkaException:
            return False

    def leaders(self, topic: str) -> dict[int, Address]:
        """By partition; those without a leader are left out."""
        metadata = self._admin().list_topics(topic, timeout=30)
        addresses = {node: (str(broker.host), broker.port) for node, broker in metadata.brokers.items()}
        partitions = metadata.topics[topic].partitions.values()
        return {one.id: addresses[one.leader] for one in partitions if one.leader in addresses}

    def wait_for_brokers(self, count: int) -> None:
        """Until Metadata names so many."""
        give_up_at = time.monotonic() + _BROKERS_S
        while time.monotonic() < give_up_at:
            with contextlib.suppress(KafkaException):
                if len(self.broker_addresses()) == count:
                    return
            time.sleep(0.1)
        raise ServerFailed(f"{self.label}: there are no {count} brokers after {_BROKERS_S:g} s")

    def broker_addresses(self) -> list[Address]:
        """Of all brokers that Metadata names."""
        found = self._admin().list_topics(timeout=30).brokers.values()
        return [(str(broker.host), broker.port) for broker in found]

    def end_offsets(self, topic: str, partitions: int) -> dict[int, int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(topic, partition): latest for partition in range(partitions)}
        admin = self._admin()  # its futures never come when it is collected before
        found = admin.list_offsets(wanted, request_timeout=30)
        return {place.partition: future.result().offset for place, future in found.items()}

    def stored_count(self, topic: str) -> int | None:
        return sum(self.end_offsets(topic, len(self.leaders(topic))).values())

    def produce_plan(self, topic: str, shape: Shape, seconds: tuple[float, float]) -> Plan:
        return self.plan_to(self.create_topic(topic, shape.partitions), topic, shape, seconds)

    @staticmethod
    def plan_to(leaders: dict[int, Address], topic: str, shape: Shape, seconds: tuple[float, float]) -> Plan:
        """A load on a topic that is there."""
        batch = record_batch(shape.records_per_request, shape.value_bytes)
        requests = {partition: produce_request(topic, partition, batch) for partition in leaders}
        connections = [
            Connection(*address, [requests[partition] for partition in partitions])
            for address, partitions in spread(leaders, shape.connections)
        ]
        return Plan(
            KAFKA_PRODUCE, connections, depth=shape.depth, records_per_request=shape.records_per_request,
            rate=shape.rate, warm_up_s=seconds[0], measure_s=seconds[1],
        )  # fmt: skip

    def fetches(  # noqa: PLR0913 - what a consumer chooses
        self, topic: str, partitions: int, count: int, *, bytes_max: int, ends: dict[int, int] | None = None,
        is_paired: bool = False, is_committed_only: bool = False,
    ) -> list[FetchConnection]:  # fmt: skip
        """Connection i reads partition i % `partitions` from the start to `ends`, or to the time's end.

        Paired ones are those of a plan whose sender i is the only one that writes partition i.
        """
        leaders = self.leaders(topic)
        made = []
        for index in range(count):
            partition = index % partitions
            request = fetch_requests(
                topic, partition, bytes_max=bytes_max, wait_ms=FETCH_WAIT_MS, is_committed_only=is_committed_only
            )
            one = FetchConnection(
                *leaders[partition], (request.whole, request.unchanged),
                request.offset_position, request.session_position,
                offset_end=ends[partition] if ends else OFFSET_LAST, pair=partition if is_paired else None,
            )  # fmt: skip
            made.append(one)
        return made


def spread(leaders: dict[int, Address], connections: int) -> list[tuple[Address, list[int]]]:
    """Where each connection goes and which partitions it writes.

    Every partition has a connection, all partitions of a connection have the same leader, and loads differ as little
    as that allows.
    """
    if len(leaders) <= connections:
        return [(leaders[index % len(leaders)], [index % len(leaders)]) for index in range(connections)]
    addresses = sorted(set(leaders.values()))
    assert connections >= len(addresses), "fewer connections than leaders"
    placed = []
    for index in range(connections):
        address = addresses[index % len(addresses)]
        mine = sorted(partition for partition, leader in leaders.items() if leader == address)
        sharing = len(range(index % len(addresses), connections, len(addresses)))
        placed.append((address, mine[index // len(addresses) :: sharing]))
    return placed
