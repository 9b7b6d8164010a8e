"""Settings of groups: the broker's by Kafka's names, and how they relate."""

from __future__ import annotations

import pytest

from tpc_broker.metadata.broker_config import BROKER_CONFIGS
from tpc_broker.metadata.config_control import AlterableConfig, AlterableResource, ConfigController, ResourceType
from tpc_broker.metadata.config_types import ConfigError, to_text
from tpc_broker.metadata.group_config import (
    ConsumerGroupSettings,
    consumer_group_settings,
    serves_consumer_groups,
)
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import (
    BrokerConfigChanged,
    FeatureLevelChanged,
    NodeAddress,
    NodeRegistered,
    ResourceConfigChanged,
)
from tpc_broker.metadata.settings import load_settings
from tpc_broker.model import MetadataVersion, NodeId

# Of Kafka 4.3.1: name, type, default, the least that is taken. The last one is not in its documentation.
KAFKA = """
group.consumer.assignment.interval.ms INT 1000 0
group.consumer.assignors LIST uniform,range None
group.consumer.heartbeat.interval.ms INT 5000 1
group.consumer.max.assignment.interval.ms INT 15000 0
group.consumer.max.heartbeat.interval.ms INT 15000 1
group.consumer.max.session.timeout.ms INT 60000 1
group.consumer.max.size INT 2147483647 1
group.consumer.migration.policy STRING bidirectional None
group.consumer.min.assignment.interval.ms INT 0 0
group.consumer.min.heartbeat.interval.ms INT 5000 1
group.consumer.min.session.timeout.ms INT 45000 1
group.consumer.session.timeout.ms INT 45000 1
telemetry.max.bytes INT 1048576 1
group.consumer.regex.refresh.interval.ms INT 600000 10000
"""
INTERVAL = "group.consumer.assignment.interval.ms"


def test_the_brokers_settings_are_kafkas():
    rows = [line.split() for line in KAFKA.strip().splitlines()]
    ours = {name: row for name, row in BROKER_CONFIGS.items() if name.startswith(("group.consumer.", "telemetry."))}
    assert sorted(ours) == sorted(row[0] for row in rows)
    for name, kind, default, minimum in rows:
        row = ours[name]
        assert (row.type.name, to_text(row.default), str(row.minimum)) == (kind, default, minimum), name
        assert row.dynamic == (name == INTERVAL), name


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["session.timeout.ms=44999"], "session.timeout.ms (44999) must not be below group.consumer.min.session.timeo"),
        (["session.timeout.ms=60001"], "session.timeout.ms (60001) must not be above group.consumer.max.session.timeo"),
        (["heartbeat.interval.ms=4999"], "heartbeat.interval.ms (4999) must not be below group.consumer.min.heartbeat"),
        (["heartbeat.interval.ms=15001"], "heartbeat.interval.ms (15001) must not be above group.consumer.max.heartb"),
        (["assignment.interval.ms=15001"], "assignment.interval.ms (15001) must not be above group.consumer.max.assi"),
        (["min.assignment.interval.ms=2000"], "assignment.interval.ms (1000) must not be below group.consumer.min.as"),
        (["min.session.timeout.ms=60001"], "min.session.timeout.ms (60001) must not be above group.consumer.max.sess"),
        (
            ["min.assignment.interval.ms=9", "max.assignment.interval.ms=8"],
            "min.assignment.interval.ms (9) must not be above group.consumer.max.assignment.interval.ms (8)",
        ),
        (
            ["min.session.timeout.ms=5000", "session.timeout.ms=5000"],
            "heartbeat.interval.ms (5000) must be below group.consumer.session.timeout.ms (5000)",
        ),
    ],
)
def test_bounds_and_defaults_have_to_fit_together(overrides, said):
    with pytest.raises(ConfigError) as caught:
        load_settings("", [f"group.consumer.{each}" for each in overrides])
    assert str(caught.value).startswith(f"group.consumer.{said}")


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("group.consumer.assignors=uniform,own.Assignor", "String must be one of: uniform, range"),
        ("group.consumer.assignors=", "'group.consumer.assignors' must not be empty"),
        ("group.consumer.migration.policy=both", "String must be one of: bidirectional, upgrade, downgrade, disabled"),
        ("group.coordinator.rebalance.protocols=consumer", "disabling the 'classic' protocol is not supported"),
        ("group.coordinator.rebalance.protocols=", "must not be empty"),
        ("group.coordinator.rebalance.protocols=classic,none", "String must be one of: classic, consumer, share, str"),
        ("group.consumer.regex.refresh.interval.ms=9999", "Value must be at least 10000"),
    ],
)
def test_words_that_are_not_known_are_refused_with_those_that_are(override, said):
    with pytest.raises(ConfigError) as caught:
        load_settings("", [override])
    assert said in str(caught.value)


def test_words_are_taken_as_kafka_takes_them():
    settings = load_settings(
        "group.consumer.migration.policy = UPGRADE\ngroup.consumer.assignors= range , uniform\n"
        "group.coordinator.rebalance.protocols=classic,consumer,streams"
    ).settings
    assert settings.group_consumer_migration_policy == "upgrade"
    assert settings.group_consumer_assignors == ("range", "uniform")
    assert settings.group_coordinator_rebalance_protocols == ("classic", "consumer", "streams")
    assert load_settings().settings.group_coordinator_rebalance_protocols == ("classic", "consumer")


def altered(image, configuration, name, value):
    resource = AlterableResource(ResourceType.BROKER, "", (AlterableConfig(name, value),))
    records, (result,) = ConfigController(image, configuration).incremental_alter_configs([resource])
    return records, result.error_message


def test_the_interval_between_assignments_is_altered_within_its_bounds():
    records, said = altered(ClusterImage(), load_settings(), INTERVAL, "15000")
    assert (records, said) == ([BrokerConfigChanged(None, INTERVAL, "15000")], None)
    records, said = altered(ClusterImage(), load_settings(), INTERVAL, "15001")
    assert (records, said[:60]) == ([], f"{INTERVAL} (15001) must not be ab")
    _records, said = altered(ClusterImage(), load_settings(), "group.consumer.session.timeout.ms", "50000")
    assert said == "Cannot update these configs dynamically: [group.consumer.session.timeout.ms]"


def test_an_interval_that_was_stored_under_other_bounds_ends_nobody():
    """They are fixed at each node's start, and may be different there."""
    stored = ClusterImage().apply([BrokerConfigChanged(None, INTERVAL, "9000")], MetadataVersion(1))
    narrow = load_settings("", ["group.consumer.max.assignment.interval.ms=5000"])
    assert narrow.altered(stored.configs_of_broker(None), {}).settings.group_consumer_assignment_interval_ms == 9000
    assert altered(stored, narrow, "message.max.bytes", "2000")[1] is None
    assert "must not be above" in altered(stored, narrow, INTERVAL, "8000")[1]


def of_group(own=None, overrides=(), altered_to=None):
    """(session time-out, heartbeat interval, assignment interval) of a group that has set `own`."""
    records = [ResourceConfigChanged("group", "g", {f"consumer.{name}": text for name, text in (own or {}).items()})]
    image = ClusterImage().apply(records, MetadataVersion(1))
    broker = load_settings("", [f"group.consumer.{each}" for each in overrides])
    if altered_to is not None:
        broker = broker.altered({INTERVAL: altered_to}, {})
    found = consumer_group_settings(broker.settings, image, "g")
    return found.session_timeout_ms, found.heartbeat_interval_ms, found.assignment_interval_ms


def test_a_group_has_the_brokers_settings_and_its_own_before_them():
    assert of_group() == (45_000, 5000, 1000)
    assert of_group({"session.timeout.ms": "50000"}) == (50_000, 5000, 1000)
    own = {"session.timeout.ms": "60000", "heartbeat.interval.ms": "15000", "assignment.interval.ms": "0"}
    assert of_group(own) == (60_000, 15_000, 0)
    broker = ["session.timeout.ms=50000", "heartbeat.interval.ms=6000", "assignment.interval.ms=7"]
    assert of_group({}, broker) == (50_000, 6000, 7)
    assert of_group({"heartbeat.interval.ms": "5000"}, broker, "8") == (50_000, 5000, 8)


def test_a_group_is_held_within_the_bounds_of_now():
    own = {"session.timeout.ms": "60000", "heartbeat.interval.ms": "15000", "assignment.interval.ms": "0"}
    narrow = [
        "min.session.timeout.ms=40000", "session.timeout.ms=41000", "max.session.timeout.ms=42000",
        "max.heartbeat.interval.ms=14000", "min.assignment.interval.ms=500",
    ]  # fmt: skip
    assert of_group(own, narrow) == (42_000, 14_000, 500)
    low = {"session.timeout.ms": "10", "heartbeat.interval.ms": "10", "assignment.interval.ms": "99999"}
    assert of_group(low, narrow) == (40_000, 5000, 15_000)
    assert of_group({}, narrow, "20000") == (41_000, 5000, 15_000), "the broker's own, which was stored, as well"


def test_heartbeats_are_more_often_than_sessions_end_whatever_the_bounds_are_now():
    own = {"heartbeat.interval.ms": "15000"}
    short = ["min.session.timeout.ms=6000", "session.timeout.ms=12000"]
    assert of_group(own, short) == (12_000, 5000, 1000), "the broker's own pair"
    assert of_group(own) == (45_000, 15_000, 1000)


def test_a_text_that_is_none_here_counts_for_nothing():
    assert of_group({"session.timeout.ms": "PT50S", "heartbeat.interval.ms": "0"}) == (45_000, 5000, 1000)


def test_the_rest_of_a_groups_settings_is_the_brokers():
    given = ["regex.refresh.interval.ms=20000", "max.size=7", "assignors=range", "migration.policy=Disabled"]
    settings = load_settings("", [f"group.consumer.{each}" for each in given]).settings
    assert consumer_group_settings(settings, ClusterImage(), "g") == ConsumerGroupSettings(
        session_timeout_ms=45_000, heartbeat_interval_ms=5000, assignment_interval_ms=1000,
        regex_refresh_interval_ms=20_000, members_max=7, assignors=("range",), migration_policy="disabled",
    )  # fmt: skip


@pytest.mark.parametrize("level", [3, 4])
def test_consumer_groups_are_served_by_the_level_and_the_setting(level):
    node = NodeRegistered(NodeId(1), 1, 1, "", "1", NodeAddress("h", 1), ())
    image = ClusterImage().apply([node, FeatureLevelChanged(level, 1)], MetadataVersion(2))
    classic_alone = load_settings("", ["group.coordinator.rebalance.protocols=classic"]).settings
    assert serves_consumer_groups(load_settings().settings, image) == (level >= 4)
    assert not serves_consumer_groups(classic_alone, image)
    assert serves_consumer_groups(load_settings().settings, ClusterImage()), "a broker alone is at the newest level"
