"""``tpc group`` against a running broker: lag is seen, offsets are reset, groups are deleted, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.cli.conftest import Tpc
from tests.support.waiting import PATIENCE_S, eventually, patiently


def commit(command: Tpc, group: str, topic: str, offsets: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": command.broker.bootstrap, "group.id": group})
    wanted = [TopicPartition(topic, *one) for one in offsets.items()]

    def committed() -> bool:
        try:
            consumer.commit(offsets=wanted, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.NOT_COORDINATOR:  # a Kafka that has just started loads them first
                return False
            raise
        return True

    eventually(committed, "the commit", not_yet=())
    consumer.close()


def make_topic(command: Tpc, topic: str, records: dict[int, int]) -> None:
    """With so many records in each partition."""
    command("topic", "create", topic, "--partitions", str(len(records)))
    for partition, count in records.items():
        command("produce", topic, "--partition", str(partition), stdin="".join(f"{n}\n" for n in range(count)))


def described(command: Tpc, group: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(command("group", "describe", group, "--json"))
    return told


def reset(command: Tpc, group: str, *arguments: str) -> list[tuple[int, int]]:
    told = json.loads(command("group", "reset-offsets", group, *arguments, "--json"))
    return [(row["partition"], row["new_offset"]) for row in told["partitions"]]


def make_ordered(command: Tpc) -> str:
    make_topic(command, "ordered", {0: 10, 1: 4, 2: 0})
    return "ordered"


@pytest.fixture
def ordered(command: Tpc) -> str:
    return command.once(make_ordered)


def test_lag_is_what_is_not_committed(command: Tpc, ordered: str) -> None:
    commit(command, "lagging", ordered, {0: 3, 1: 4})
    told = described(command, "lagging")
    rows = [(r["partition"], r["committed_offset"], r["log_end_offset"], r["lag"]) for r in told["partitions"]]
    assert rows == [(0, 3, 10, 7), (1, 4, 4, 0)]
    assert (told["state"], told["total_lag"], told["members"]) == ("Empty", 7, [])
    names, *lines = command("group", "describe", "lagging").splitlines()
    assert names.split("\t")[:3] == ["Group", "Topic", "Partition"]
    assert lines == ["lagging\tordered\t0\t3\t10\t7\t\t\t", "lagging\tordered\t1\t4\t4\t0\t\t\t"]
    assert ["lagging", "classic", "Empty"] in [line.split("\t") for line in command("group", "list").splitlines()]
    row = {"group": "lagging", "type": "classic", "state": "Empty"}
    assert row in json.loads(command("group", "list", "--state", "empty", "--json"))
    assert row in json.loads(command("group", "list", "--type", "Classic", "--json"))
    assert "lagging" not in command("group", "list", "--type", "consumer")
    assert "lagging" not in command("group", "list", "--state", "Stable")
    assert '"group": "lagging"' in command("group", "describe", "--all", "--json")


def test_members_and_what_they_are_assigned(command: Tpc, ordered: str) -> None:
    commit(command, "reading", ordered, {0: 1})
    reader = {"group.id": "reading", "client.id": "till", "session.timeout.ms": 1000 * PATIENCE_S}
    consumer = Consumer({"bootstrap.servers": command.broker.bootstrap, **reader})
    try:
        consumer.subscribe([ordered])
        for _ in patiently("its partitions"):
            if consumer.assignment():
                break
            consumer.poll(0.05)
        told = described(command, "reading")
        (member,) = told["members"]
        assert (told["state"], member["client_id"]) == ("Stable", "till")
        assert member["partitions"] == ["ordered-0", "ordered-1", "ordered-2"]
        assert [(r["partition"], r["committed_offset"], r["lag"], r["client_id"]) for r in told["partitions"]] == [
            (0, 1, 9, "till"), (1, None, None, "till"), (2, None, None, "till"),
        ]  # fmt: skip
        _names, line = command("group", "describe", "reading", "--members").splitlines()
        assert line.endswith("\tclassic\t\tordered-0 ordered-1 ordered-2\t"), "neither epoch nor target"
        assert "is Stable with 1 members: stop them first" in command.error(
            "group", "reset-offsets", "reading", "--topic", ordered, "--to-latest", "--execute", code=5
        )
        assert "group reading: it has members; stop them first" in command.error("group", "delete", "reading", code=5)
    finally:
        consumer.close()


def test_a_group_of_the_new_protocol_is_told_with_its_epochs(command: Tpc, ordered: str) -> None:
    reader = {"group.id": "modern", "client.id": "till", "group.protocol": "consumer"}
    consumer = Consumer({"bootstrap.servers": command.broker.bootstrap, **reader})
    try:
        consumer.subscribe([ordered])
        for _ in patiently("its partitions"):
            if consumer.assignment():
                break
            consumer.poll(0.05)
        told = described(command, "modern")
        (member,) = told["members"]
        names = ["ordered-0", "ordered-1", "ordered-2"]
        assert (told["type"], told["assignor"], member["protocol"]) == ("consumer", "uniform", "consumer")
        assert told["group_epoch"] == told["assignment_epoch"] == member["epoch"]
        assert (member["partitions"], member["target"]) == (names, names)
        assert [row["client_id"] for row in told["partitions"]] == ["till"] * 3
        assert "modern" in command("group", "list", "--type", "consumer")
        _names, line = command("group", "describe", "modern", "--members").splitlines()
        assert line.split("\t")[5:] == ["consumer", str(member["epoch"]), " ".join(names), " ".join(names)]
        assert "with 1 members: stop them first" in command.error(
            "group", "reset-offsets", "modern", "--topic", ordered, "--to-latest", "--execute", code=5
        )
        assert "group modern: it has members; stop them first" in command.error("group", "delete", "modern", code=5)
    finally:
        consumer.close()
    command("group", "reset-offsets", "modern", "--topic", ordered, "--to-earliest", "--execute")
    told = described(command, "modern")
    assert (told["type"], told["state"], told["total_lag"]) == ("consumer", "Empty", 14)
    command("group", "delete", "modern")
    assert "there is no group 'modern'" in command.error("group", "describe", "modern", code=4)


def test_watching_looks_again(command: Tpc, ordered: str) -> None:
    commit(command, "watched", ordered, {0: 10})
    looks = command("group", "describe", "watched", "--watch", "--interval", "0.1", "--count", "3", "--json")
    assert [json.loads(line)["total_lag"] for line in looks.splitlines()] == [0, 0, 0]


def test_nothing_is_reset_without_execute(command: Tpc, ordered: str) -> None:
    commit(command, "careful", ordered, {0: 5})
    out, said = command.run("group", "reset-offsets", "careful", "--topic", "ordered:0", "--to-earliest")
    names, row = out.splitlines()
    assert names.split("\t")[:2] == ["Topic", "Partition"]
    assert row == "ordered\t0\t5\t0\t"
    assert said == "tpc: nothing was changed; --execute does it\n"
    command("group", "reset-offsets", "careful", "--topic", "ordered:0", "--to-earliest", "--dry-run")
    assert described(command, "careful")["total_lag"] == 5
    command("group", "reset-offsets", "careful", "--topic", "ordered:0", "--to-earliest", "--execute")
    assert described(command, "careful")["total_lag"] == 10


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        (["--topic", "ordered", "--to-earliest"], [(0, 0), (1, 0), (2, 0)]),
        (["--topic", "ordered", "--to-latest"], [(0, 10), (1, 4), (2, 0)]),
        (["--topic", "ordered:1", "--to-offset", "2"], [(1, 2)]),
        (["--topic", "ordered:0,1", "--to-offset", "7"], [(0, 7), (1, 4)]),
        (["--all-topics", "--shift-by", "-2"], [(0, 4), (1, 0)]),
        (["--all-topics", "--shift-by", "3"], [(0, 9), (1, 4)]),
        (["--topic", "ordered", "--to-current"], [(0, 6), (1, 1), (2, 0)]),
        (["--topic", "ordered:0", "--by-duration", "1h"], [(0, 0)]),
        (["--topic", "ordered:0", "--by-duration", "PT0S"], [(0, 10)]),
        (["--topic", "ordered:0", "--to-datetime", "2001-01-01"], [(0, 0)]),
        (["--topic", "ordered:0", "--to-datetime", "2100-01-01T00:00:00Z"], [(0, 10)]),
    ],
)
def test_where_a_reset_leads(command: Tpc, ordered: str, arguments: list[str], places: list[tuple[int, int]]) -> None:
    commit(command, "moved", ordered, {0: 6, 1: 1})
    assert reset(command, "moved", *arguments) == places


def test_a_reset_is_where_the_group_goes_on(command: Tpc) -> None:
    make_topic(command, "again", {0: 5})
    commit(command, "rereads", "again", {0: 5})
    assert reset(command, "rereads", "--topic", "again", "--shift-by=-2", "--execute") == [(0, 3)]
    read = command("consume", "again", "--group", "rereads", "--count", "2", "--from", "earliest")
    assert read.splitlines() == ["3", "4"]
    assert reset(command, "never-seen", "--topic", "again", "--to-offset", "1", "--execute") == [(0, 1)]
    assert described(command, "never-seen")["total_lag"] == 4


def test_a_deleted_group_is_gone(command: Tpc, ordered: str) -> None:
    commit(command, "done", ordered, {0: 1})
    assert command("group", "delete", "done") == "Deleted group done.\n"
    assert command.error("group", "describe", "done", code=4) == (
        "tpc: there is no group 'done'; `tpc group list` shows those that are"
    )
    assert "group done: there is no such group" in command.error("group", "delete", "done", code=4)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["describe"], "give one GROUP or more, or --all"),
        (["reset-offsets", "g", "--to-latest"], "give --topic TOPIC (or TOPIC:0,1), once or more, or --all-topics"),
        (["reset-offsets", "g", "--all-topics", "--topic", "t", "--to-latest"], "give --topic TOPIC"),
        (["reset-offsets", "g", "--topic", "t"], "give one of --to-earliest, --to-latest"),
        (["reset-offsets", "g", "--topic", "t", "--to-latest", "--shift-by", "1"], "give one of --to-earliest"),
        (["reset-offsets", "g", "--topic", "t:x", "--to-latest"], "--topic t:x: expected TOPIC, or TOPIC:0,1"),
        (["reset-offsets", "g", "--topic", "t", "--by-duration", "soon"], "'soon' is no length of time, such as 90s"),
        (["reset-offsets", "g", "--topic", "t", "--to-datetime", "x"], "'x' is no ISO 8601 timestamp"),
        (["reset-offsets", "g", "--topic", "t", "--to-offset", "-1"], "-1 is not in the range x>=0"),
        (["reset-offsets", "g", "--topic", "t", "--to-latest", "--dry-run", "--execute"], "--dry-run only shows"),
        (["list", "--state", "busy"], "'busy' is not one of"),
        (["delete"], "Missing argument 'GROUP...'"),
    ],
)
def test_bad_input_is_one_line(command: Tpc, arguments: list[str], said: str) -> None:
    assert said in command.error("group", *arguments, code=2)


def test_what_is_not_there_is_named(command: Tpc, ordered: str) -> None:
    assert "there is no topic 'nowhere'" in command.error(
        "group", "reset-offsets", "g", "--topic", "nowhere", "--to-latest", code=4
    )
    assert "ordered has no partition 7; it has 0 to 2" in command.error(
        "group", "reset-offsets", "g", "--topic", "ordered:1,7", "--to-latest", code=4
    )
    assert "group 'g' has committed nothing" in command.error(
        "group", "reset-offsets", "g", "--all-topics", "--to-latest", code=4
    )
    assert "the group has committed nothing for ordered-0" in command.error(
        "group", "reset-offsets", "g", "--topic", ordered, "--shift-by", "1", code=4
    )
