"""Apache Kafka 4: one KRaft node with Kafka's own settings."""

from __future__ import annotations

import subprocess
import uuid
from typing import TYPE_CHECKING, ClassVar

from tpc_broker.bench.kafka_jars import KAFKA_VERSION, java_command, kafka_jars
from tpc_broker.bench.peers.kafka_like import KafkaLikePeer
from tpc_broker.bench.server import Server, ServerFailed, free_ports

if TYPE_CHECKING:
    from pathlib import Path

_JVM = ("-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""As Kafka's start script gives them."""


class KafkaPeer(KafkaLikePeer):
    """`durable` flushes every message before it is acknowledged; `default` leaves that to the kernel."""

    name: ClassVar[str] = "kafka"
    modes: ClassVar[dict[str, bool]] = {"durable": True, "default": False}

    warm_up_s_min: ClassVar[float] = 6.0  # cold, the virtual machine gives a tenth of what it can

    def _properties(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self.port + 1}"
        return {
            **self._common(self.folder, self.port, controller),
            "node.id": "1",
            "controller.quorum.bootstrap.servers": controller,
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }

    def _common(self, folder: Path, port: int, controller: str) -> dict[str, str]:
        flush = {"log.flush.interval.messages": "1"} if self.mode == "durable" else {}
        return {
            "process.roles": "broker,controller",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(folder / "data"),
            **flush,
        }

    def _java(self, *arguments: str) -> list[str]:
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        return [java_command(), *_JVM, logging, "-cp", f"{kafka_jars()}/*", *arguments]

    def start(self) -> None:
        properties = self.folder / "server.properties"
        if not self.port:
            self.port = free_ports(2)
            self.format(properties, self._properties(), uuid.uuid4().hex[:22], "--standalone")
        self.server = self.node(properties, self.folder / "kafka.log")
        self.server.start([self.port], deadline_s=120)

    def format(self, file: Path, properties: dict[str, str], cluster_id: str, *more: str) -> None:
        """Write a node's properties and make its data folder."""
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        command = ["kafka.tools.StorageTool", "format", *more, "-t", cluster_id, "-c", str(file)]
        done = subprocess.run(self._java(*command), capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerFailed(f"Kafka's storage format: {done.stdout}{done.stderr}")

    def node(self, properties: Path, log: Path) -> Server:
        return Server(self._java("kafka.Kafka", str(properties)), log)

    def version(self) -> str:
        return KAFKA_VERSION
