"""Nodes of a cluster as child processes on loopback, each started with its real command line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support import waiting
from tests.support.broker_process import TpcBroker
from tests.support.ports import free_port_range
from tests.support.raw_client import RawConnection
from tests.support.server_process import ServerFailed
from tests.support.waiting import LOOK_S, PATIENCE_S
from tpc_broker.cli import connection
from tpc_broker.cli.main import main as tpc

T = TypeVar("T")
REFUSED_S = 4
"""To a request that nobody may grant: it is to time out."""


def eventually(look: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """What `look` gives as soon as that is true; errors of clients count as not yet."""
    return waiting.eventually(
        look, what, not_yet=(KafkaException, AssertionError, ServerFailed), pause_s=0.05, patience_s=patience_s
    )


def answered(ask: Callable[[], T]) -> T:
    """The first answer, whatever it is: a call that came to nothing is made again."""
    return eventually(lambda: (ask(),), "somebody answers")[0]


def asked_of(host: str, port: int, api: str, version: int, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """What is answered there. What may have been done when the metadata's leader changed is asked for again: a node
    closes the connection of who asked.
    """

    def ask() -> dict[str, Any]:
        try:
            with RawConnection(host, port) as client:
                return client.ask(api, version, body)
        except OSError as error:
            raise AssertionError(str(error)) from error

    return answered(ask)


class Node(TpcBroker):
    """One node; `number` is its id."""

    def __init__(self, folder: Path, number: int, port: int, seeds: list[int], cores: int = 1) -> None:
        super().__init__(folder, cores)
        self.number = number
        self.port = port
        self.seeds = seeds
        self.secret: Path | None = None
        self.rack = ""
        self._first_port = port + 10

    def command(self) -> list[str]:
        seeds = ",".join(f"127.0.0.1:{port}" for port in self.seeds)
        more = ["--cluster", f"127.0.0.1:{self.port}", "--seeds", seeds, "--node-id", str(self.number)]
        more += ["--cluster-secret", str(self.secret)] if self.secret is not None else []
        more += ["--rack", self.rack] if self.rack else []
        return [*super().command(), *more]

    @property
    def broker_id(self) -> int:
        """Of its first core."""
        return self.number * 1024

    def wait_ready(self) -> None:
        self.process.wait_answering(self.host, self.ports, 120)

    def wait_ended(self) -> int:
        """The exit code of a node that ends by itself."""
        eventually(lambda: not self.process.is_running, f"node {self.number} ends")
        code = self.process.exit_code
        assert code is not None
        self.kill()  # closes its log
        return code

    def log_messages(self) -> list[str]:
        """What it has logged, without times."""
        found = []
        for line in self.log_text().splitlines():
            try:
                found.append(json.loads(line)["message"])
            except (ValueError, KeyError, TypeError):
                found.append(line)
        return found


class Cluster:
    """Several nodes; started and stopped one by one or all."""

    def __init__(self, folder: Path, count: int = 3, cores: int = 1, founders: int | None = None) -> None:
        self.folder = folder
        self.first_port = free_port_range(40 * (count + 1))
        ports = [self.first_port + 40 * number for number in range(count + 1)]
        self.seeds = ports[: founders or count]
        self.nodes = [self._node(number, ports[number - 1], cores) for number in range(1, count + 1)]
        self.spare_port = ports[count]

    def _node(self, number: int, port: int, cores: int) -> Node:
        return Node(self.folder / f"node{number}", number, port, self.seeds, cores)

    def launch(self, *numbers: int) -> None:
        """All, or these; does not wait for anything."""
        for node in self.nodes:
            if not numbers or node.number in numbers:
                node.launch()

    def start(self, *numbers: int) -> None:
        self.launch(*numbers)
        for node in self.nodes:
            if not numbers or node.number in numbers:
                node.wait_ready()

    def __getitem__(self, number: int) -> Node:
        return self.nodes[number - 1]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def controller(self) -> int:
        """The node that leads the metadata, by what the running nodes' logs said last; 0: none."""
        terms: dict[int, tuple[int, int]] = {}
        for node in self.nodes:
            if node.process.is_running:
                for line in node.log_messages():
                    if line.startswith("metadata: leader in term "):
                        term = int(line.split()[4].rstrip(","))
                        terms[term] = term, node.number
        return terms[max(terms)][1] if terms else 0

    def kill_all(self) -> None:
        self.kill(*(node.number for node in self.nodes))

    def kill(self, *numbers: int) -> None:
        """At once: none has time to act on the end of another."""
        nodes = [self[number] for number in numbers]
        for node in nodes:
            with contextlib.suppress(AssertionError, ProcessLookupError):
                os.killpg(node.process.pid, signal.SIGKILL)
        for node in nodes:
            with contextlib.suppress(AssertionError):
                node.kill()


@contextlib.contextmanager
def cluster(folder: Path, count: int = 3, cores: int = 1, founders: int | None = None) -> Iterator[Cluster]:
    """Not started yet; killed at the end."""
    made = Cluster(folder, count, cores, founders)
    try:
        yield made
    finally:
        made.kill_all()


# -- clients -----------------------------------------------------------------------------------------------------------


def admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 5_000, "log_level": 0})


def create_topic(
    bootstrap: str, name: str, partitions: int = 1, timeout_s: float = PATIENCE_S, replicas: int = -1
) -> None:
    """KafkaException when it was not made. `replicas`: -1 leaves their number to the cluster."""
    client = admin(bootstrap)  # kept until the answer is there
    asked = [NewTopic(name, partitions, replicas)]
    made = client.create_topics(asked, operation_timeout=timeout_s, request_timeout=timeout_s)
    made[name].result(timeout_s + 5)
    del client


def create_assigned(bootstrap: str, name: str, replicas: list[list[int]]) -> None:
    """KafkaException when it was not made. `replicas`: the broker ids of each partition, who is preferred first."""
    client = admin(bootstrap)  # kept until the answer is there
    asked = [NewTopic(name, len(replicas), replica_assignment=replicas)]
    client.create_topics(asked, operation_timeout=PATIENCE_S, request_timeout=PATIENCE_S)[name].result(PATIENCE_S + 5)
    del client


def is_created(bootstrap: str, name: str) -> bool:
    """Make a topic, soon; KafkaException when it was not made. An attempt that was not answered may have made it."""
    try:
        create_topic(bootstrap, name, timeout_s=LOOK_S)
    except KafkaException as refused:
        if refused.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
    return True


def leaders(bootstrap: str, topic: str) -> dict[int, int]:
    """Broker id of each partition's leader, as that broker says."""
    found = admin(bootstrap).list_topics(topic, timeout=LOOK_S).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return {index: partition.leader for index, partition in found.partitions.items()}


def topics(bootstrap: str) -> set[str]:
    return set(admin(bootstrap).list_topics(timeout=LOOK_S).topics)


def brokers(bootstrap: str) -> set[int]:
    return set(admin(bootstrap).list_topics(timeout=LOOK_S).brokers)


def run_tpc(*arguments: str) -> tuple[int, str]:
    """Exit code, and what it has said."""
    connection.leave_interrupts_alone()
    done = CliRunner().invoke(tpc, list(arguments), catch_exceptions=False)
    return done.exit_code, done.output


def cluster_told(bootstrap: str) -> dict[str, Any]:
    """What `tpc cluster --json` says."""
    connection.leave_interrupts_alone()  # the command runs in this process, and so does trio in other tests
    done = CliRunner().invoke(tpc, ["cluster", "--json", "--bootstrap", bootstrap], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def metadata_voters(bootstrap: str) -> list[int]:
    """The nodes whose present disks vote on the metadata: with one of them another one may go."""
    return [row["node"] for row in cluster_told(bootstrap)["nodes"] if row["metadata"] != "observer"]


def produce(bootstrap: str, topic: str, values: list[str], partitions: int) -> None:
    """Round robin; every record must be acknowledged."""
    errors = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(
            topic, value, partition=number % partitions, on_delivery=lambda error, _m: errors.append(error)
        )
    assert producer.flush(PATIENCE_S) == 0
    assert not [error for error in errors if error is not None], errors
    assert len(errors) == len(values)


def consume(
    bootstrap: str,
    topic: str,
    count: int,
    group: str = "readers",
    until: Callable[[list[str]], bool] = lambda _found: False,
) -> list[str]:
    """So many records of a topic from its beginning, by a group, or as many as are enough."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0,
    })  # fmt: skip
    consumer.subscribe([topic])
    found: list[str] = []
    give_up_at = time.monotonic() + PATIENCE_S
    try:
        while len(found) < count and not until(found) and time.monotonic() < give_up_at:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append((message.value() or b"").decode())
    finally:
        consumer.close()
    return sorted(found)
