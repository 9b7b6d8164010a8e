"""Groups of KIP-848 with Kafka's own client in Java and its tools, of two versions; and classic groups that become such
groups and classic ones again, a member at a time, while records flow.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.group_story import committed, epochs, make_topic, producing, story, wait_settled
from tests.support.kafka_peer import JAVA_FLAGS, KAFKA_VERSION, PeerUnavailable, kafka_jars, run_tool
from tests.support.waiting import eventually
from tools import extract_schema
from tpc_broker.bench.kafka_jars import java_command

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("kafka_tools")]
VERSIONS = (KAFKA_VERSION, extract_schema.KAFKA_VERSION)
PROGRAM = Path(__file__).parent / "GroupMember.java"
CLASSIC = {"group_protocol": "classic", "session_timeout_ms": "8000", "heartbeat_interval_ms": "300"}


@pytest.fixture(params=VERSIONS)
def version(request) -> str:
    try:
        kafka_jars(request.param)
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    return request.param


def member(version: str) -> list[str]:
    """The command of one."""
    logging = ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    place = ["-cp", f"{kafka_jars(version)}/*", str(PROGRAM)]
    return [java_command(), "-Xmx128m", *JAVA_FLAGS, *logging, *place]


def tool(broker, version: str, name: str, *arguments: str) -> str:
    """Run a tool against the broker; it must succeed and complain about nothing."""
    done = run_tool(name, "--bootstrap-server", broker.bootstrap, *arguments, version=version)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "ERROR" not in done.stderr, done.stderr
    return done.stdout


def rows(told: str) -> list[list[str]]:
    """A table's, in words."""
    return [line.split() for line in told.splitlines() if line.strip()]


def test_members_come_go_and_are_killed(brisk_broker, topic, tmp_path, version):
    broker, program = brisk_broker, member(version)
    make_topic(broker, topic)
    with story(broker, topic, tmp_path) as told:
        with producing(broker, topic) as places:
            told.comes("a", topic, program)
            told.comes("b", f"^{topic}$", program)
            told.share("a", "b")
            told.comes("c", topic)  # librdkafka
            told.share("a", "b", "c")
            told.handle_more()
            told.leaves("a")
            told.share("b", "c")
            told.is_killed("b")
            told.comes("d", topic, program, group_instance_id="d")
            told.share("c", "d")
            before = epochs(broker, topic)[0]
            broker.kill()
            broker.start()
            told.handle_more()
            assert epochs(broker, topic)[0] == before
            told.leaves("c")
            told.share("d")
        told.all_handled(places)
        told.leaves("d")


def test_tools(brisk_broker, topic, tmp_path, version):
    broker, group = brisk_broker, ["--group", topic]
    make_topic(broker, topic, 2)

    def groups(*arguments: str) -> str:
        return tool(broker, version, "consumer-groups", *arguments)

    with story(broker, topic, tmp_path) as told:
        told.comes("a", topic, client_id="one")
        told.share("a", count=2)
        with producing(broker, topic, partitions_count=2) as places:
            told.handle_more()
        told.all_handled(places)
        ends = {place: 1 + max(offset for *other, offset in places if tuple(other) == place) for place in told.places()}
        eventually(lambda: committed(broker, topic) == ends, "all is committed")
        (name,) = map(re.escape, epochs(broker, topic)[1])
        assert [topic, "Consumer"] in rows(groups("--list", "--type", "consumer"))
        assert topic not in groups("--list", "--type", "classic")
        assert [topic, "Stable"] in rows(groups("--list", "--state", "stable"))
        state = groups("--describe", *group, "--state", "--verbose")
        assert re.search(rf"{topic}\s+\S+:\d+\s+\(\d+\)\s+uniform\s+Stable\s+\d+\s+\d+\s+1\b", state), state
        members = groups("--describe", *group, "--members", "--verbose")
        assert re.search(rf"{topic}\s+{name}\s+\S+\s+one\s+2\s+\d+\s+{topic}:0,1\s+\d+\s+{topic}:0,1", members), members
        offsets = groups("--describe", *group, "--offsets", "--verbose")
        for (_topic, partition), end in ends.items():
            row = rf"{topic}\s+{topic}\s+{partition}\s+\S+\s+{end}\s+\S*\s*{end}\s+0\s+{name}\s"
            assert re.search(row, offsets), offsets
        refused = run_tool(
            "consumer-groups", "--bootstrap-server", broker.bootstrap, "--delete", *group, version=version
        )
        assert "GroupNotEmptyException" in refused.stdout + refused.stderr, refused
        told.leaves("a")
    reset = ["--reset-offsets", "--to-offset", "1", "--topic", topic, "--execute"]
    groups(*group, *reset)
    assert set(committed(broker, topic).values()) == {1}
    entity = ["--entity-type", "groups", "--entity-name", topic]
    tool(broker, version, "configs", "--alter", *entity, "--add-config", "consumer.session.timeout.ms=9000")
    assert "consumer.session.timeout.ms=9000" in tool(broker, version, "configs", "--describe", *entity)
    tool(broker, version, "configs", "--alter", *entity, "--delete-config", "consumer.session.timeout.ms")
    assert re.search(r"group\.version\s.*FinalizedVersionLevel: 1\b", tool(broker, version, "features", "describe"))
    groups("--delete", *group)
    assert topic not in groups("--list")


@pytest.mark.parametrize("kind", ["librdkafka", "java"])
def test_a_group_is_rolled_to_the_new_protocol_and_back(brisk_broker, topic, tmp_path, kind):
    """The members of both protocols share the partitions meanwhile."""
    broker = brisk_broker
    make_topic(broker, topic)
    strategy = {
        "librdkafka": "range",
        "java": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
    }[kind]
    classic = {**CLASSIC, "partition_assignment_strategy": strategy}
    program = {"program": member(KAFKA_VERSION)} if kind == "java" else {}

    def type_of_group() -> str:
        listed = tool(broker, KAFKA_VERSION, "consumer-groups", "--list", "--type")
        (told,) = [row[1] for row in rows(listed) if row[0] == topic]
        return told

    with story(broker, topic, tmp_path) as told:
        with producing(broker, topic) as places:
            there = ["a0", "b0", "c0"]
            for name in there:
                told.comes(name, topic, **program, **classic)
            told.share(*there)
            assert type_of_group() == "Classic"
            for turn, settings in ((1, {}), (2, classic)):
                for place, letter in enumerate("abc"):
                    if turn == 2:  # a classic member that is behind when the group becomes classic loses its generation
                        wait_settled(broker, topic)
                    told.leaves(there[place])
                    there[place] = f"{letter}{turn}"
                    told.comes(there[place], topic, **program, **settings)
                    told.share(*there)
                    told.handle_more(50)
                assert type_of_group() == ("Consumer" if turn == 1 else "Classic")
        told.all_handled(places)
        told.check_once()


def test_librdkafkas_cooperative_assignor_keeps_a_group_classic_as_with_kafka(brisk_broker, topic, tmp_path):
    """What it writes into assignments counts as a custom assignor's data, which would be lost."""
    make_topic(brisk_broker, topic)
    classic = {**CLASSIC, "partition_assignment_strategy": "cooperative-sticky"}
    with story(brisk_broker, topic, tmp_path) as told:
        for name in ("a", "b"):  # the data is there from the second round on
            told.comes(name, topic, **classic)
            told.share(*"ab"[: "ab".index(name) + 1])
        told.comes("c", topic)
        eventually(lambda: ["c", "error", "_FATAL"] in told.lines_so_far(), "it is refused")
        said = told.has_ended("c")
        assert "The group id does not exist" in said, said
        told.share("a", "b")
