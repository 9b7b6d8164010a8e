"""Apache Kafka itself, as a second opinion beside our broker: its jars, one KRaft node, its command-line tools.

Maven fetches the jars once into a cache folder of the user, which clones of the repository share. Everything here
raises `PeerUnavailable` with a reason where Java or Maven is missing; fixtures turn that into a skip.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.ports import free_port_range
from tests.support.server_process import ServerFailed, ServerProcess
from tests.support.waiting import PATIENCE_S
from tpc_broker.bench.kafka_jars import KAFKA_VERSION, java_command, kafka_jars
from tpc_broker.bench.server import PeerUnavailable

__all__ = [
    "JAVA_FLAGS", "KAFKA_VERSION", "KafkaCluster", "KafkaPeer", "PeerUnavailable", "kafka_jars", "run_tool",
    "start_tool",
]  # fmt: skip

JAVA_FLAGS = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]
"""Of a JVM that lives for seconds: what the second compiler and its profiles cost is not won back."""

TOOLS = {
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "configs": "kafka.admin.ConfigCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "storage": "kafka.tools.StorageTool",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "acls": "org.apache.kafka.tools.AclCommand",
    "client-metrics": "org.apache.kafka.tools.ClientMetricsCommand",
    "delegation-tokens": "org.apache.kafka.tools.DelegationTokenCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
}
"""Names of the shell scripts that Kafka ships (without `kafka-` and `.sh`), and the class each one runs."""
_MOVED = {("4.4.0", "configs"): "org.apache.kafka.tools.ConfigCommand"}
"""By version and name, what has another class there."""


def message_definitions_jar() -> Path:
    """The jar that carries Kafka's message definitions."""
    return kafka_jars() / f"kafka-clients-{KAFKA_VERSION}.jar"


def _java(
    heap_mebibytes: int, class_name: str, arguments: Sequence[str], level: str, version: str = KAFKA_VERSION
) -> list[str]:
    return [
        java_command(), f"-Xmx{heap_mebibytes}m", *JAVA_FLAGS,
        f"-Dorg.slf4j.simpleLogger.defaultLogLevel={level}", "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-cp", f"{kafka_jars(version)}/*", class_name, *arguments,
    ]  # fmt: skip


def run_tool(
    tool: str,
    *arguments: str,
    standard_input: str | None = None,
    timeout_seconds: float = 300,
    level: str = "error",
    version: str = KAFKA_VERSION,
) -> subprocess.CompletedProcess[str]:
    """Run one of `TOOLS` to its end; its log lines of `level` and above go to standard error.

    The exit code is the caller's to judge: some of the tools exit with 0 whatever happened.
    """
    return subprocess.run(
        _java(256, _MOVED.get((version, tool), TOOLS[tool]), arguments, level, version),
        input=standard_input if standard_input is not None else "",
        capture_output=True, text=True, timeout=timeout_seconds, check=False,
    )  # fmt: skip


def start_tool(tool: str, *arguments: str, level: str = "error") -> subprocess.Popen[str]:
    """Run one of `TOOLS` beside the test, with pipes; the caller ends it."""
    return subprocess.Popen(
        _java(256, TOOLS[tool], arguments, level),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


class KafkaPeer:
    """One KRaft node, broker and controller in one process, on free loopback ports, with data under `folder`.

    Node id 0, replication factor 1 everywhere, no delay before the first rebalance, so that it answers as one node of
    ours would; every other setting is Kafka's own default. `overrides` adds or replaces properties.
    """

    name = "kafka"

    def __init__(self, folder: Path, overrides: dict[str, str] | None = None, version: str = KAFKA_VERSION) -> None:
        self.folder = folder
        self.host = "127.0.0.1"
        self.version = version
        self._overrides = overrides or {}
        self._process: ServerProcess | None = None
        self._port = 0
        self.cluster_id = uuid.uuid4().hex[:22]
        self.format_options = ["--standalone"]

    @property
    def ports(self) -> list[int]:
        return [self._port]

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self._port}"

    @property
    def data_folder(self) -> Path:
        return self.folder / "data"

    def _properties(self) -> dict[str, str]:
        controller = f"{self.host}:{self._port + 1}"
        return {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.bootstrap.servers": controller,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data_folder),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "num.io.threads": "2",
            "num.network.threads": "1",
            **self._overrides,
        }

    def start(self) -> None:
        """Format the storage the first time, start, and wait until it answers; tries other ports if one was taken."""
        for attempt in range(3):
            if self._port == 0:
                self._port = free_port_range(2)
            try:
                self._start_once()
            except ServerFailed as failure:
                if attempt == 2 or "Address already in use" not in str(failure) or self.data_folder.exists():
                    raise
                self._port = 0
            else:
                return

    def _start_once(self) -> None:
        self.format()
        self.launch()
        self.wait_ready()

    def format(self) -> None:
        """Write the properties, and the first time make the storage."""
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._properties().items()))
        if not (self.data_folder / "meta.properties").exists():
            options = [*self.format_options, "-t", self.cluster_id, "-c", str(properties)]
            formatted = run_tool("storage", "format", *options, version=self.version)
            if formatted.returncode != 0:
                raise ServerFailed(f"storage format: {formatted.stdout}{formatted.stderr}")

    def launch(self) -> None:
        command = _java(512, "kafka.Kafka", [str(self.folder / "server.properties")], "warn", self.version)
        self._process = ServerProcess(command, self.folder / "kafka.log")
        self._process.launch()

    def wait_ready(self, deadline_s: float = PATIENCE_S) -> None:
        self.process.wait_answering(self.host, self.ports, deadline_s)

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None
        return self._process

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def log_text(self) -> str:
        return self.process.log_text()

    def resident_bytes(self) -> int:
        return self.process.resident_bytes()


class KafkaCluster:
    """KRaft nodes on loopback, each broker and voter, in a rack of its own. `ids`: of the nodes."""

    name = "kafka"

    def __init__(self, folder: Path, ids: Sequence[int], overrides: dict[str, str]) -> None:
        first = free_port_range(2 * len(ids))
        places = {node: first + 2 * place for place, node in enumerate(ids)}
        controllers = ",".join(f"127.0.0.1:{port + 1}" for port in places.values())
        voters = ",".join(f"{node}@127.0.0.1:{port + 1}:{uuid.uuid4().hex[:22]}" for node, port in places.items())
        self.nodes = []
        for node, port in places.items():
            more = {"node.id": str(node), "broker.rack": f"rack {node}", **overrides}
            made = KafkaPeer(folder / f"kafka{node}", {"controller.quorum.bootstrap.servers": controllers, **more})
            made.cluster_id = self.nodes[0].cluster_id if self.nodes else made.cluster_id
            made.format_options, made._port = ["--initial-controllers", voters], port
            self.nodes.append(made)

    @property
    def ports(self) -> list[int]:
        return [port for node in self.nodes for port in node.ports]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def start(self) -> None:
        """All at once: one alone would wait for the others."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(KafkaPeer.format, self.nodes))
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_ready(PATIENCE_S * len(self.nodes))

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def stop(self) -> None:
        """In no order that would matter: nothing of it is used again."""
        self.kill()

    def restart(self) -> None:
        self.stop()
        self.start()

    def log_text(self) -> str:
        return "".join(node.log_text() for node in self.nodes)

    def resident_bytes(self) -> int:
        return sum(node.resident_bytes() for node in self.nodes)
