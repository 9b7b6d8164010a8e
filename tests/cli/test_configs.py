"""``tpc config``, ``topic alter``, ``topic trim`` and ``info`` against a running broker."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.conftest import OURS_ONLY, Tpc
from tests.support.waiting import eventually
from tpc_broker import __version__


def settings(command: Tpc, *arguments: str) -> dict[str, Any]:
    told = json.loads(command("config", "get", *arguments, "--json"))
    return {one["name"]: one for one in told["settings"]}


def make_plain(command: Tpc) -> str:
    command("topic", "create", "plain", "--partitions", "1")
    return "plain"


@pytest.fixture
def plain(command: Tpc) -> str:
    return command.once(make_plain)


def test_a_setting_of_a_topic_from_set_to_unset(command: Tpc) -> None:
    command("topic", "create", "set", "--partitions", "1")
    assert "retention.ms" not in settings(command, "topic", "set")
    said = command("config", "set", "topic", "set", "retention.ms=86400000", "segment.bytes=2097152")
    assert said == "Changed topic set: retention.ms, segment.bytes.\n"
    found = settings(command, "topic", "set")
    assert {name: found[name]["value"] for name in ("retention.ms", "segment.bytes")} == {
        "retention.ms": "86400000", "segment.bytes": "2097152",
    }  # fmt: skip
    assert (found["segment.bytes"]["source"], found["segment.bytes"]["default"]) == ("topic", "1073741824")
    lines = command("config", "get", "topic", "set").splitlines()
    assert "segment.bytes\t2097152\ttopic\t1073741824" in lines
    command("config", "set", "topic", "set", "retention.ms=1", "--dry-run")
    assert settings(command, "topic", "set")["retention.ms"]["value"] == "86400000"
    command("config", "unset", "topic", "set", "retention.ms")
    found = settings(command, "topic", "set", "--all")
    assert (found["retention.ms"]["value"], found["retention.ms"]["source"]) == ("604800000", "default")
    assert found["segment.bytes"]["value"] == "2097152"


@pytest.mark.parametrize(
    ("kind", "key", "value", "default"),
    [
        ("group", "consumer.session.timeout.ms", "60000", "45000"),
        ("client-metrics", "interval.ms", "1000", "300000"),
    ],
)
def test_a_setting_of_a_group_or_of_client_metrics_from_set_to_unset(
    command: Tpc, kind: str, key: str, value: str, default: str
) -> None:
    assert settings(command, kind, "one") == {}
    assert command("config", "set", kind, "one", f"{key}={value}") == f"Changed {kind} one: {key}.\n"
    found = settings(command, kind, "one")
    assert {name: (one["value"], one["source"]) for name, one in found.items()} == {
        key: (value, kind.replace("-", " ")),
    }  # fmt: skip
    assert settings(command, kind, "two") == {}
    assert key in command.error("config", "set", kind, "one", f"{key}=1")
    command("config", "unset", kind, "one", key)
    found = settings(command, kind, "one", "--all")
    assert (found[key]["value"], found[key]["source"]) == (default, "default")


def test_every_setting_is_explained(command: Tpc, plain: str) -> None:
    for place in (("topic", plain), ("broker", "0")):
        found = settings(command, *place, "--all")
        assert len(found) > 30
        assert [name for name, one in found.items() if len(one["documentation"]) < 10] == []
    _names, line = command("config", "get", "topic", plain, "retention.ms").splitlines()
    assert len(line.split("\t")[-1]) > 20


def heard(command: Tpc, broker: str, name: str) -> dict[str, str]:
    """A setting as a broker has it, which Kafka's hear of a little after it was acknowledged."""
    found: dict[str, str] = eventually(lambda: settings(command, "broker", broker).get(name), f"{name} is heard")
    return found


def wait_forgotten(command: Tpc, broker: str, name: str) -> None:
    eventually(lambda: name not in settings(command, "broker", broker), f"{name} is forgotten")


def test_a_setting_of_all_brokers(command: Tpc) -> None:
    command("config", "set", "broker", "all", "log.retention.ms=123456789")
    try:
        assert heard(command, "all", "log.retention.ms")["value"] == "123456789"
        found = heard(command, "0", "log.retention.ms")
        assert (found["value"], found["source"]) == ("123456789", "all brokers, altered")
    finally:
        command("config", "unset", "broker", "all", "log.retention.ms")
    wait_forgotten(command, "all", "log.retention.ms")


@OURS_ONLY
def test_each_core_answers_for_itself(command: Tpc) -> None:
    told = [settings(command, "broker", core, "listeners")["listeners"]["value"] for core in "01"]
    ports = [listeners.split(",")[0].rpartition(":")[2] for listeners in told]
    assert ports == [str(port) for port in command.broker.ports]


def test_what_is_refused_names_the_setting(command: Tpc, plain: str) -> None:
    line = command.error("config", "get", "topic", plain, "retention.m", code=4)
    assert "topic plain has no setting retention.m (did you mean retention.ms" in line
    assert "no.such" in command.error("config", "set", "topic", plain, "no.such=1")
    assert "Invalid value x for configuration retention.ms" in command.error(
        "config", "set", "topic", plain, "retention.ms=x", "segment.bytes=2097152"
    )
    assert "segment.bytes" not in settings(command, "topic", plain)
    assert "nowhere" in command.error("config", "set", "topic", "nowhere", "retention.ms=1", code=4)
    assert "77" in command.error("config", "get", "broker", "77")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["get", "user", "x"], "'user' is not one of 'topic', 'broker', 'group', 'client-metrics'"),
        (["set", "topic", "t", "retention.ms"], "SETTING=VALUE retention.ms: expected NAME=VALUE, for example"),
        (["unset", "topic", "t", "retention.ms=1"], "retention.ms=1: only the name of a setting"),
        (["set", "broker", "first", "a=b"], "broker first: expected a broker's id"),
        (["get", "topic", "t", "-X", "security.protocol=tls"], "expected one of plaintext, ssl"),
        (["get", "topic", "t", "-X", "security.protocol=sasl_plaintext"], "expected one of PLAIN, SCRAM"),
        (["set", "topic", "t"], "Missing argument"),
    ],
)
def test_bad_input_is_one_line(command: Tpc, arguments: list[str], said: str) -> None:
    assert said in command.error("config", *arguments, code=2)


# -- topics -----------------------------------------------------------------------------------------------------------


def test_altering_partitions_and_settings(command: Tpc) -> None:
    command("topic", "create", "grows", "--partitions", "1", "--config", "segment.bytes=2097152")
    arguments = ("--partitions", "3", "--config", "retention.ms=1000000", "--unset", "segment.bytes")
    assert command("topic", "alter", "grows", *arguments, "--dry-run") == "Would alter topic grows.\n"
    assert len(json.loads(command("topic", "describe", "grows", "--json"))["partitions"]) == 1
    assert command("topic", "alter", "grows", *arguments) == "Altered topic grows.\n"
    told = json.loads(command("topic", "describe", "grows", "--json"))
    assert (len(told["partitions"]), told["configs"]) == (3, {"retention.ms": "1000000"})


def test_an_alteration_is_whole_or_not_at_all(command: Tpc) -> None:
    command("topic", "create", "whole", "--partitions", "2")
    assert command.error("topic", "alter", "whole", "--partitions", "1", "--config", "retention.ms=5")
    assert "retention.ms" in command.error("topic", "alter", "whole", "--partitions", "3", "--config", "retention.ms=x")
    told = json.loads(command("topic", "describe", "whole", "--json"))
    assert (len(told["partitions"]), told["configs"]) == (2, {})
    assert "give --partitions N, --config" in command.error("topic", "alter", "whole", code=2)
    assert "both name retention.ms" in command.error(
        "topic", "alter", "whole", "--config", "retention.ms=1", "--unset", "retention.ms", code=2
    )
    assert "nowhere" in command.error("topic", "alter", "nowhere", "--partitions", "3", code=4)


def test_trimming_removes_the_oldest_records(command: Tpc) -> None:
    command("topic", "create", "trimmed", "--partitions", "2")
    for partition in "01":
        command("produce", "trimmed", "--partition", partition, stdin="a\nb\nc\n")
    out, said = command.run("topic", "trim", "trimmed", "--before", "2")
    names, *rows = out.splitlines()
    assert names.split("\t")[0] == "Partition"
    assert (rows, said) == (["0\t0\t2\t2", "1\t0\t2\t2"], "tpc: nothing was removed; --execute does it\n")
    assert command.values("trimmed", "--from", "earliest", "--exit-at-end").count("a") == 2
    command("topic", "trim", "trimmed", "--partition", "1", "--before", "2", "--execute")
    assert sorted(command.values("trimmed", "--from", "earliest", "--exit-at-end")) == ["a", "b", "c", "c"]
    told = json.loads(command("topic", "trim", "trimmed", "--before", "2100-01-01", "--execute", "--json"))
    assert [row["new_log_start_offset"] for row in told["partitions"]] == [3, 3]
    assert command.values("trimmed", "--from", "earliest", "--exit-at-end") == []
    assert "--before 9: trimmed-0 ends at 3" in command.error("topic", "trim", "trimmed", "--before", "9", code=2)
    assert "expected latest, an offset" in command.error("topic", "trim", "trimmed", "--before", "soon", code=2)
    assert "trimmed has no partition 5; it has 0 to 1" in command.error(
        "topic", "trim", "trimmed", "--before", "1", "--partition", "5", code=4
    )


# -- the cluster ------------------------------------------------------------------------------------------------------


@OURS_ONLY
def test_nodes_and_cores(command: Tpc) -> None:

    def without_leaderless() -> Any:  # an earlier test may have made a topic a moment ago
        told = json.loads(command("info", "--json"))
        return told if told["partitions_without_leader"] == 0 else None

    told = eventually(without_leaderless, "all partitions are led")
    assert [(one["node"], one["core"], one["controller"]) for one in told["brokers"]] == [(0, 0, True), (0, 1, False)]
    assert [one["address"] for one in told["brokers"]] == [f"127.0.0.1:{port}" for port in command.broker.ports]
    assert told["software"] == "tpc-broker"
    assert sum(one["leads"] for one in told["brokers"]) == told["partitions"]
    assert {one["release"] for one in told["brokers"]} == {__version__}


def test_apis_and_their_versions(command: Tpc) -> None:
    names, *lines = command("info", "--apis").splitlines()
    assert names == "API\tVersions"
    assert "Produce\t0-13" in lines or "Produce\t3-13" in lines
    assert f"APIs\t{len(lines)}" in command("info").splitlines()
