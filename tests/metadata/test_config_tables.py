"""The tables of settings: Kafka's types, defaults, ranges and words."""
# ruff: noqa: E501 - the words are kept whole

import sys

import pytest

from tpc_broker.metadata.broker_config import BROKER_CONFIGS, Settings, broker_definition
from tpc_broker.metadata.config_types import (
    ConfigError,
    ConfigStatus,
    ConfigType,
    definitions_of,
    python_name,
    to_text,
)
from tpc_broker.metadata.ignored_settings import IgnoredSettings
from tpc_broker.metadata.settings import load_settings, validate_dynamic, without_effect
from tpc_broker.metadata.topic_config import (
    TOPIC_CONFIGS,
    TopicConfig,
    effective_topic_config,
    topic_definition,
    validate_topic_configs,
)

# Printed by Kafka 4.3.1: name, type, default of every topic setting.
KAFKA_TOPIC_CONFIGS = """
cleanup.policy LIST delete
compression.gzip.level INT -1
compression.lz4.level INT 9
compression.type STRING producer
compression.zstd.level INT 3
delete.retention.ms LONG 86400000
file.delete.delay.ms LONG 60000
flush.messages LONG 9223372036854775807
flush.ms LONG 9223372036854775807
follower.replication.throttled.replicas LIST
index.interval.bytes INT 4096
leader.replication.throttled.replicas LIST
local.retention.bytes LONG -2
local.retention.ms LONG -2
max.compaction.lag.ms LONG 9223372036854775807
max.message.bytes INT 1048588
message.timestamp.after.max.ms LONG 3600000
message.timestamp.before.max.ms LONG 9223372036854775807
message.timestamp.type STRING CreateTime
min.cleanable.dirty.ratio DOUBLE 0.5
min.compaction.lag.ms LONG 0
min.insync.replicas INT 1
preallocate BOOLEAN false
remote.log.copy.disable BOOLEAN false
remote.log.delete.on.disable BOOLEAN false
remote.storage.enable BOOLEAN false
retention.bytes LONG -1
retention.ms LONG 604800000
segment.bytes INT 1073741824
segment.index.bytes INT 10485760
segment.jitter.ms LONG 0
segment.ms LONG 604800000
unclean.leader.election.enable BOOLEAN false
"""


def test_the_topic_table_is_kafkas_and_two_of_ours():
    rows = [line.split() for line in KAFKA_TOPIC_CONFIGS.strip().splitlines()]
    theirs = {row[0]: (row[1], row[2] if len(row) > 2 else "") for row in rows}
    table = {name: (d.type.name, to_text(d.default)) for name, d in TOPIC_CONFIGS.items()}
    assert table == theirs | {"durability": ("STRING", "durable"), "segment.age.ms": ("LONG", "-1")}


@pytest.mark.parametrize(
    ("name", "kind", "default"),
    [
        ("num.partitions", "INT", "1"),
        ("auto.create.topics.enable", "BOOLEAN", "true"),
        ("message.max.bytes", "INT", "1048588"),
        ("socket.request.max.bytes", "INT", "104857600"),
        ("fetch.max.bytes", "INT", "57671680"),
        ("offsets.topic.num.partitions", "INT", "50"),
        ("offsets.retention.minutes", "INT", "10080"),
        ("group.min.session.timeout.ms", "INT", "6000"),
        ("group.max.session.timeout.ms", "INT", "1800000"),
        ("group.initial.rebalance.delay.ms", "INT", "3000"),
        ("group.max.size", "INT", "2147483647"),
        ("connections.max.idle.ms", "LONG", "600000"),
        ("log.retention.hours", "INT", "168"),
        ("log.retention.ms", "LONG", None),
        ("max.incremental.fetch.session.cache.slots", "INT", "1000"),
        ("producer.id.expiration.ms", "INT", "86400000"),
    ],
)
def test_broker_settings_have_kafkas_types_and_defaults(name, kind, default):
    assert (BROKER_CONFIGS[name].type.name, to_text(BROKER_CONFIGS[name].default)) == (kind, default)


@pytest.mark.parametrize("table", [TOPIC_CONFIGS, BROKER_CONFIGS])
def test_every_row_is_documented_and_its_default_is_a_value_it_takes(table):
    for name, definition in table.items():
        assert definition.doc.rstrip().endswith("."), name
        assert definition.parse(to_text(definition.default)) == definition.default, name


def test_attributes_are_the_names_with_underscores():
    for record, table in ((TopicConfig(), TOPIC_CONFIGS), (Settings(), BROKER_CONFIGS)):
        assert all(getattr(record, python_name(name)) == row.default for name, row in table.items())


def test_what_does_not_act_says_so():
    stored = [row for row in TOPIC_CONFIGS.values() if row.status is ConfigStatus.STORED_ONLY]
    assert len(stored) > 5
    assert all("no effect" in row.documentation() for row in stored)


# The words are those that Kafka 4.3.1 printed for the same input.
@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "cleanup.policy",
            "foo",
            "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        (
            "cleanup.policy",
            "delete,compact,foo",
            "Invalid value foo for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        ("retention.ms", "abc", "Invalid value abc for configuration retention.ms: Not a number of type LONG"),
        ("segment.bytes", "100", "Invalid value 100 for configuration segment.bytes: Value must be at least 1048576"),
        (
            "segment.bytes",
            "99999999999",
            "Invalid value 99999999999 for configuration segment.bytes: Not a number of type INT",
        ),
        (
            "preallocate",
            "yes",
            "Invalid value yes for configuration preallocate: Expected value to be either true or false",
        ),
        (
            "compression.type",
            "bzip",
            "Invalid value bzip for configuration compression.type: String must be one of: uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            "min.cleanable.dirty.ratio",
            "2",
            "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            "compression.gzip.level",
            "0",
            "Invalid value 0 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        ("nope", "1", "Unknown topic config name: nope"),
    ],
)
def test_refusals_are_kafkas(name, text, words):
    with pytest.raises(ConfigError) as caught:
        validate_topic_configs("t", {name: text})
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("name", "text", "stored"),
    [
        ("cleanup.policy", "", ""),
        ("cleanup.policy", " compact , delete ", "compact,delete"),
        ("cleanup.policy", "delete,delete", "delete"),
        ("retention.ms", " 5 ", "5"),
        ("preallocate", "TRUE", "true"),
        ("retention.bytes", "-7", "-7"),
        ("compression.gzip.level", "-1", "-1"),
        ("leader.replication.throttled.replicas", "*", "*"),
        ("leader.replication.throttled.replicas", "0:1,1:0", "0:1,1:0"),
    ],
)
def test_what_kafka_takes_is_taken_and_stored_in_one_spelling(name, text, stored):
    assert validate_topic_configs("t", {name: text}) == {name: stored}


def test_a_misspelt_name_is_answered_with_close_ones():
    with pytest.raises(ConfigError, match=r"Unknown topic config name: retenton.ms \(did you mean retention.ms"):
        topic_definition("retenton.ms")


def test_a_setting_of_kafkas_without_meaning_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match=r"log.dirs is not supported: use --data"):
        broker_definition("log.dirs")


COMPRESSIONS = ("uncompressed", "zstd", "lz4", "snappy", "gzip")


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_compression_that_is_not_done_is_refused_and_who_does_it_is_named(compression):
    said = f"Invalid value {compression} for configuration compression.type: Only producer is supported: .* producers"
    for attempt in (
        lambda: validate_topic_configs("t", {"compression.type": compression}),
        lambda: load_settings("", [f"compression.type={compression}"]),
        lambda: validate_dynamic("compression.type", compression),
    ):
        with pytest.raises(ConfigError, match=said):
            attempt()
    assert validate_topic_configs("t", {"compression.type": "producer"}) == {"compression.type": "producer"}


def test_a_compression_that_was_stored_before_is_no_obstacle():
    """It had no effect then either; a broker with such topics starts, and their other settings can be altered."""
    stored = {"compression.type": "zstd", "retention.ms": "1"}
    assert effective_topic_config(stored, {}).compression_type == "zstd"
    assert load_settings().altered({"compression.type": "zstd"}, {}).topic_config({}).compression_type == "zstd"
    assert validate_topic_configs("t", stored | {"retention.ms": "2"}, stored) == stored | {"retention.ms": "2"}
    with pytest.raises(ConfigError, match="Only producer"):
        validate_topic_configs("t", stored | {"compression.type": "lz4"}, stored)


@pytest.mark.parametrize("name", [row.name for row in definitions_of(IgnoredSettings).values()])
def test_a_setting_that_only_tunes_kafka_is_taken_and_named_as_without_effect(name):
    text = to_text(BROKER_CONFIGS[name].default)
    configuration = load_settings("", [f"{name}={text}", "num.partitions=3"])
    assert without_effect(configuration.given) == [name]
    assert "no effect" in BROKER_CONFIGS[name].documentation()
    if BROKER_CONFIGS[name].dynamic:
        assert validate_dynamic(name, text) == text


def test_a_setting_that_only_tunes_kafka_has_its_type_checked_all_the_same():
    with pytest.raises(ConfigError, match="Not a number of type INT"):
        load_settings("", ["background.threads=many"])


def test_tiered_storage_cannot_be_promised():
    with pytest.raises(ConfigError, match="Only false is supported"):
        validate_topic_configs("t", {"remote.storage.enable": "true"})
    assert validate_topic_configs("t", {"remote.storage.enable": "false"}) == {"remote.storage.enable": "false"}


def test_internal_topics_are_never_relaxed():
    assert validate_topic_configs("t", {"durability": "relaxed"}) == {"durability": "relaxed"}
    with pytest.raises(ConfigError, match="always durable"):
        validate_topic_configs("__consumer_offsets", {"durability": "relaxed"})


def test_the_documentation_of_durability_says_what_is_lost():
    assert "acknowledged are lost when the process or the power dies" in TOPIC_CONFIGS["durability"].documentation()


def test_lags_of_compaction_must_fit_together():
    with pytest.raises(ConfigError, match="conflict"):
        validate_topic_configs("t", {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})


def test_every_type_number_is_that_of_the_protocol():
    assert [kind.value for kind in ConfigType] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0"), (0.5, "0.5"), (9999999.0, "9999999.0"), (1e7, "1.0E7"), (-12345678.5, "-1.23456785E7"),
     (0.0001, "1.0E-4"), (1.5e-7, "1.5E-7"), (sys.float_info.max, "1.7976931348623157E308")],
)  # fmt: skip
def test_doubles_are_written_as_java_writes_them(value, text):
    assert to_text(value) == text
    assert float(text) == value
