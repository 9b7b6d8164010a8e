"""Reading settings from a file and overrides, and describing where values come from."""
# ruff: noqa: E501 - the words are kept whole

import pytest

from tpc_broker.metadata.config_types import ConfigError, ConfigSource
from tpc_broker.metadata.describe import describe_broker, describe_topic
from tpc_broker.metadata.settings import load_settings, validate_dynamic, without_comments

FILE = """
# a comment
! another
num.partitions = 3
log.retention.hours=2
log.cleanup.policy = delete,\\
    compact
"""


def one(entries, name):
    return next(entry for entry in entries if entry.name == name)


def places(entry):
    return [(s.name, s.value, s.source.value) for s in entry.synonyms]


def test_a_file_is_read_like_server_properties():
    settings = load_settings(FILE).settings
    assert settings.num_partitions == 3
    assert settings.log_retention_hours == 2
    assert settings.log_cleanup_policy == ("delete", "compact")


def test_comments_are_left_out_and_nothing_else():
    bare = without_comments(FILE + "#num.partitions=9\n")
    assert "#" not in bare
    assert "!" not in bare
    assert load_settings(bare) == load_settings(FILE)
    assert without_comments("# nothing\n\n") == ""


def test_an_override_wins_over_the_file():
    assert load_settings(FILE, ["num.partitions=7"]).settings.num_partitions == 7


@pytest.mark.parametrize(
    ("file", "overrides", "words"),
    [
        ("\nnum.partition=1", [], "line 2: Unknown broker config name: num.partition (did you mean num.partitions"),
        (
            "",
            ["num.partitions=zero"],
            "--override num.partitions=zero: Invalid value zero for configuration num.partitions: Not a number of type INT",
        ),
        ("num.partitions", [], "line 1: expected NAME=VALUE, got 'num.partitions'"),
        ("log.dirs=/x", [], "use --data"),
        ("group.min.session.timeout.ms=9000000", [], "must not be above group.max.session.timeout.ms"),
        ("message.max.bytes=200000000", [], "could never arrive"),
        ("replication_factor_excess=ignore", [], "String must be one of: refuse, clamp"),
    ],
)
def test_errors_name_place_setting_given_and_allowed(file, overrides, words):
    with pytest.raises(ConfigError) as caught:
        load_settings(file, overrides)
    assert words in str(caught.value)


def test_milliseconds_win_over_minutes_over_hours():
    for given, retention_ms in (
        (["log.retention.hours=1"], 3_600_000),
        (["log.retention.hours=1", "log.retention.minutes=2"], 120_000),
        (["log.retention.hours=1", "log.retention.minutes=2", "log.retention.ms=3"], 3),
        (["log.retention.hours=-1"], -1),
        ([], 604_800_000),
    ):
        assert load_settings("", given).topic_config({}).retention_ms == retention_ms


def test_a_topic_override_wins_over_the_broker():
    broker = load_settings("", ["log.retention.ms=5", "durability.default=relaxed"])
    assert broker.topic_config({"retention.ms": "9"}).retention_ms == 9
    assert broker.topic_config({}).durability == "relaxed"


def test_an_internal_topic_is_durable_whatever_the_default_is():
    broker = load_settings("", ["durability.default=relaxed"])
    assert broker.topic_config({}, is_internal=True).durability == "durable"
    entry = one(describe_topic({}, broker, is_internal=True), "durability")
    assert (entry.value, entry.source) == ("durable", ConfigSource.DEFAULT_CONFIG)
    assert one(describe_topic({}, broker), "durability").value == "relaxed"


def test_describe_names_the_source_and_every_place_looked_at():
    broker = load_settings("", ["log.retention.hours=2"]).altered(
        {"log.retention.ms": "70"}, {"log.retention.ms": "60"}
    )
    entry = one(describe_topic({"retention.ms": "50"}, broker), "retention.ms")
    assert (entry.value, entry.source) == ("50", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert places(entry) == [
        ("retention.ms", "50", 1),
        ("log.retention.ms", "60", 2),
        ("log.retention.ms", "70", 3),
        ("log.retention.hours", "2", 4),
    ]
    assert one(describe_topic({}, broker), "retention.ms").value == "60"


def test_a_default_is_marked_as_one():
    entry = one(describe_topic({}, load_settings()), "segment.bytes")
    assert (entry.value, entry.source, entry.read_only) == ("1073741824", ConfigSource.DEFAULT_CONFIG, False)
    assert places(entry) == [("log.segment.bytes", "1073741824", 5)]


def test_the_broker_shows_its_listeners_and_rack():
    broker = load_settings("", ["broker.rack=r1"], shown={"advertised.listeners": "PLAINTEXT://h:9092"})
    entries = describe_broker(broker)
    assert one(entries, "advertised.listeners").value == "PLAINTEXT://h:9092"
    assert one(entries, "broker.rack").value == "r1"
    assert one(entries, "advertised.listeners").read_only


def test_the_broker_shows_each_setting_by_itself():
    entries = describe_broker(load_settings("", ["log.retention.hours=2"]))
    assert (one(entries, "log.retention.ms").value, places(one(entries, "log.retention.ms"))) == (None, [])
    assert places(one(entries, "log.retention.hours")) == [
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ]


def test_only_the_names_asked_for_are_described():
    assert [e.name for e in describe_topic({}, load_settings(), ["retention.ms", "nope"])] == ["retention.ms"]


def test_a_dynamic_alteration_reaches_the_settings():
    broker = load_settings("", ["message.max.bytes=1000"])
    assert broker.altered({"message.max.bytes": "2000"}, {}).settings.message_max_bytes == 2000
    assert broker.altered({}, {}).settings.message_max_bytes == 1000


def test_what_cannot_change_while_running_is_refused():
    with pytest.raises(ConfigError, match=r"Cannot update these configs dynamically: \[node.id\]"):
        validate_dynamic("node.id", "3")
