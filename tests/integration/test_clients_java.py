"""Apache Kafka's own command-line tools, in Java, against a running broker."""

from __future__ import annotations

import json
import re
import threading

import pytest

from tests.integration.matrix import owned_exactly_once
from tests.support.kafka_peer import run_tool, start_tool
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.feature_levels import SPOKEN

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]


def tool(broker, name: str, *arguments: str, **options) -> str:
    """Run a tool against the broker; it must succeed and complain about nothing."""
    done = run_tool(name, "--bootstrap-server", broker.bootstrap, *arguments, **options)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "ERROR" not in done.stderr, done.stderr
    return done.stdout


def make_topic(broker, name: str, partitions_count: int = 1, *more: str) -> None:
    sizes = ["--partitions", str(partitions_count), "--replication-factor", "1"]
    tool(broker, "topics", "--create", "--topic", name, *sizes, *more)


def consume(broker, topic: str, count: int, *arguments: str) -> list[str]:
    bounds = ["--max-messages", str(count), "--timeout-ms", "60000"]
    return tool(broker, "console-consumer", "--topic", topic, *bounds, *arguments).splitlines()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed(broker, topic, codec):
    """The console producer is idempotent unless told otherwise."""
    make_topic(broker, topic)
    lines = [f"line {number}" for number in range(200)]
    send = ["--topic", topic, "--compression-codec", codec]
    tool(broker, "console-producer", *send, standard_input="\n".join(lines) + "\n")
    assert consume(broker, topic, 200, "--from-beginning") == lines


def test_topics(broker, topic):
    make_topic(broker, topic, 3, "--config", "retention.ms=123456")
    described = tool(broker, "topics", "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "retention.ms=123456" in described
    assert topic in tool(broker, "topics", "--list").splitlines()
    tool(broker, "topics", "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in tool(broker, "topics", "--describe", "--topic", topic)
    tool(broker, "topics", "--delete", "--topic", topic)
    assert topic not in tool(broker, "topics", "--list").splitlines()


def test_what_is_not_set_up_is_told_as_by_kafka(broker, topic):
    make_topic(broker, topic)
    tool(broker, "console-producer", "--topic", topic, standard_input="a\n")
    consume(broker, topic, 1, "--from-beginning", "--group", topic)
    described = tool(broker, "configs", "--describe", "--entity-type", "groups")
    assert f"Dynamic configs for group {topic} are:\n" in described, "its settings are asked for"
    everything = tool(broker, "configs", "--describe", "--entity-type", "groups", "--entity-name", topic, "--all")
    assert "consumer.session.timeout.ms=45000" in everything
    for kind in ("client-metrics", "users", "clients", "ips"):
        assert not tool(broker, "configs", "--describe", "--entity-type", kind).strip()
    assert not tool(broker, "client-metrics", "--list").strip()


def test_idempotent_producers_are_described(broker, topic):
    make_topic(broker, topic)
    tool(broker, "console-producer", "--topic", topic, standard_input="a\nb\n")
    told = tool(broker, "transactions", "describe-producers", "--topic", topic, "--partition", "0")
    names, (_id, epoch, coordinator_epoch, sequence, timestamp, start) = map(str.split, told.splitlines())
    assert names[3:] == ["LastSequence", "LastTimestamp", "CurrentTransactionStartOffset"]
    assert (epoch, coordinator_epoch, sequence, start) == ("0", "-1", "1", "None")
    assert int(timestamp) > 0


@pytest.mark.parametrize(
    ("kind", "name", "setting"),
    [
        ("users", "a", "producer_byte_rate=1000"),
        ("clients", "a", "request_percentage=50"),
        ("ips", "10.9.8.7", "connection_creation_rate=10"),
    ],
)  # fmt: skip
def test_quotas_are_set_told_and_taken_away(broker, kind, name, setting):
    entity = ["--entity-type", kind, "--entity-name", name]
    tool(broker, "configs", "--alter", *entity, "--add-config", setting)
    described = tool(broker, "configs", "--describe", *entity)
    assert setting in described, described
    tool(broker, "configs", "--alter", *entity, "--delete-config", setting.partition("=")[0])
    assert "_rate=" not in (described := tool(broker, "configs", "--describe", *entity)), described
    assert "percentage=" not in described


def test_users_come_and_go_by_kafkas_tool(broker):
    entity = ["--entity-type", "users", "--entity-name", "java-user"]
    for wanted in ("SCRAM-SHA-256=[iterations=5000,password=secret]", "SCRAM-SHA-512=[password=secret]"):
        tool(broker, "configs", "--alter", *entity, "--add-config", wanted)
    told = tool(broker, "configs", "--describe", *entity)
    assert "SCRAM-SHA-256=iterations=5000, SCRAM-SHA-512=iterations=4096" in told
    assert "secret" not in told
    for name in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        tool(broker, "configs", "--alter", *entity, "--delete-config", name)
    assert "java-user" not in tool(broker, "configs", "--describe", "--entity-type", "users")


def test_acls_need_an_authorizer(broker):
    done = run_tool("acls", "--bootstrap-server", broker.bootstrap, "--list")
    assert "SecurityDisabledException: No Authorizer is configured on the broker" in done.stdout + done.stderr


def test_features_have_kafkas_names_beside_ours(broker):
    described = tool(broker, "features", "describe")
    levels = {words[1]: words[3::2] for words in map(str.split, described.splitlines())}
    assert levels["metadata.version"][:3] == ["4.3-IV0"] * 3
    assert levels["share.version"][:3] == ["0"] * 3
    assert levels["group.version"][:3] == ["0", "1", "1"]
    assert levels["transaction.version"][:3] == ["0", "2", "2"]
    assert levels["tpc.version"][:3] == ["2", str(SPOKEN.highest), str(SPOKEN.highest)]


def test_a_broker_alone_is_a_quorum_of_itself(broker, topic):
    make_topic(broker, topic)
    status = tool(broker, "metadata-quorum", "describe", "--status")
    assert re.search(r"LeaderId:\s+0\n", status)
    assert re.search(r"HighWatermark:\s+[1-9]\d*\n", status)
    assert re.search(r"MaxFollowerLag:\s+0\n", status)
    assert re.search(rf'CurrentVoters:.*"id": 0.*://{broker.host}:{broker.ports[0]}"', status)
    assert re.search(r"CurrentObservers:\s+\[\]\n", status)


def test_configs(broker, topic):
    make_topic(broker, topic)
    entity = ["--entity-type", "topics", "--entity-name", topic]
    tool(broker, "configs", "--alter", *entity, "--add-config", "retention.ms=777,cleanup.policy=[compact,delete]")
    described = tool(broker, "configs", "--describe", *entity)
    assert "retention.ms=777" in described
    assert "cleanup.policy=compact,delete" in described
    tool(broker, "configs", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms=777" not in tool(broker, "configs", "--describe", *entity)
    assert "retention.ms=604800000" in tool(broker, "configs", "--describe", *entity, "--all")


def test_offsets_and_trimming(broker, topic, tmp_path):
    make_topic(broker, topic)
    tool(broker, "console-producer", "--topic", topic, standard_input="".join(f"{n}\n" for n in range(10)))
    assert tool(broker, "get-offsets", "--topic", topic).strip() == f"{topic}:0:10"
    assert tool(broker, "get-offsets", "--topic", topic, "--time", "earliest").strip() == f"{topic}:0:0"
    assert tool(broker, "get-offsets", "--topic", topic, "--time", "max-timestamp").startswith(f"{topic}:0:")
    order = tmp_path / "trim.json"
    order.write_text('{"partitions":[{"topic":"%s","partition":0,"offset":4}],"version":1}' % topic)  # noqa: UP031
    assert "low_watermark: 4" in tool(broker, "delete-records", "--offset-json-file", str(order))
    assert consume(broker, topic, 6, "--from-beginning") == [str(n) for n in range(4, 10)]
    described = tool(broker, "log-dirs", "--describe", "--topic-list", topic)
    assert f'"partition":"{topic}-0"' in described


def test_a_group_of_three_rebalances(broker, topic):
    make_topic(broker, topic, 6)
    settings = ["--consumer-property", "session.timeout.ms=6000", "--consumer-property", "heartbeat.interval.ms=200"]
    place = ["--bootstrap-server", broker.bootstrap, "--topic", topic, "--group", topic, *settings]
    members = [start_tool("console-consumer", *place) for _ in range(3)]
    drains = [threading.Thread(target=member.stderr.read) for member in members]
    for drain in drains:
        drain.start()

    def shared_by(count: int) -> bool:
        done = run_tool("consumer-groups", "--bootstrap-server", broker.bootstrap, "--describe", "--group", topic)
        rows = re.findall(rf"{topic}\s+{topic}\s+(\d+)\s+\S+\s+\S+\s+\S+\s+(console-consumer-\S+)", done.stdout)
        owned: dict[str, list[int]] = {}
        for partition, member in rows:
            owned.setdefault(member, []).append(int(partition))
        return len(owned) == count and owned_exactly_once(owned.values(), 6)

    try:
        eventually(lambda: shared_by(3), "three members own all partitions once")
        members[0].terminate()
        members[0].wait(PATIENCE_S)
        eventually(lambda: shared_by(2), "two members own all partitions once after one left")
    finally:
        for member in members:
            member.terminate()
        for member, drain in zip(members, drains, strict=True):
            member.wait(PATIENCE_S)
            drain.join(PATIENCE_S)
            for stream in (member.stdin, member.stdout, member.stderr):
                stream.close()


def test_groups_and_a_restart(own_broker, topic):
    broker = own_broker
    make_topic(broker, topic)
    tool(broker, "console-producer", "--topic", topic, standard_input="".join(f"{n}\n" for n in range(10)))
    group = ["--group", topic]
    assert consume(broker, topic, 6, "--from-beginning", *group) == [str(n) for n in range(6)]
    broker.restart()
    assert consume(broker, topic, 4, *group) == [str(n) for n in range(6, 10)]
    assert topic in tool(broker, "consumer-groups", "--list").splitlines()
    reset = ["--reset-offsets", "--to-offset", "2", "--topic", topic, "--execute"]
    tool(broker, "consumer-groups", *group, *reset)
    described = tool(broker, "consumer-groups", "--describe", *group)
    assert re.search(rf"{topic}\s+{topic}\s+0\s+2\s+10\s+8", described), described
    tool(broker, "consumer-groups", "--delete", *group)
    assert topic not in tool(broker, "consumer-groups", "--list").splitlines()


def test_perf_tools(broker, topic):
    make_topic(broker, topic, 2)
    sizes = ["--num-records", "20000", "--record-size", "200", "--throughput", "-1"]
    produced = tool(broker, "producer-perf-test", "--topic", topic, *sizes)
    assert "20000 records sent" in produced
    consumed = tool(broker, "consumer-perf-test", "--topic", topic, "--num-records", "20000")
    figures = consumed.strip().splitlines()[-1].split(", ")
    assert float(figures[4]) >= 20000, consumed


def leaders_of(broker, topic: str) -> list[int]:
    described = tool(broker, "topics", "--describe", "--topic", topic)
    return [int(leader) for leader in re.findall(r"Partition: \d+\tLeader: (\d+)", described)]


def test_partitions_are_reassigned_while_java_writes_and_reads(broker, topic, tmp_path):
    """A broker id is a core, so this moves them between cores; an idempotent producer and a consumer follow."""
    make_topic(broker, topic, 2)
    count = 9000
    limits = ["--from-beginning", "--max-messages", str(count), "--timeout-ms", "60000"]
    consuming = start_tool("console-consumer", "--bootstrap-server", broker.bootstrap, "--topic", topic, *limits)
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(consuming.stdout))
    reader.start()
    producing = start_tool(
        "producer-perf-test", "--topic", topic, "--num-records", str(count), "--record-size", "50",
        "--throughput", "600",
        "--producer-props", f"bootstrap.servers={broker.bootstrap}", "acks=all",
    )  # fmt: skip
    try:
        before = leaders_of(broker, topic)
        plan = tmp_path / "moves.json"
        wanted = [1 - core for core in before]
        plan.write_text(json.dumps({
            "version": 1,
            "partitions": [{"topic": topic, "partition": n, "replicas": [core]} for n, core in enumerate(wanted)],
        }))  # fmt: skip
        file = ["--reassignment-json-file", str(plan)]
        assert "Successfully started" in tool(broker, "reassign-partitions", *file, "--execute")
        eventually(lambda: leaders_of(broker, topic) == wanted, "each partition is on the other core")
        said = tool(broker, "reassign-partitions", *file, "--verify", "--preserve-throttles")
        assert said.count("is completed.") == 2
        assert "No partition reassignments found." in tool(broker, "reassign-partitions", "--list")
        output, errors = producing.communicate(timeout=120)
        reader.join(120)
        errors += consuming.communicate(timeout=120)[1]
    finally:
        producing.kill()
        consuming.kill()
        reader.join()
    assert f"{count} records sent" in output, errors
    assert (len(lines), len(set(lines))) == (count, count), errors  # each is random
    assert "ERROR" not in errors
    offsets = tool(broker, "get-offsets", "--topic", topic)
    assert sum(int(line.rpartition(":")[2]) for line in offsets.splitlines()) == count
