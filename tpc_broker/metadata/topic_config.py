"""Every topic setting of Kafka 4.3, and ours: what it may be and what it does here.

`TopicConfig` is the table (its fields are the rows, `TOPIC_CONFIGS` by name) and the record of effective values that
the log and the broker read. A value comes from the topic, else from the broker setting it falls back to, else it is the
default.

Lists such as `cleanup.policy` may be empty: an empty policy deletes nothing and compacts nothing, as in Kafka.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from tpc_broker.metadata.config_types import (
    LONG_MAX,
    ConfigDefinition,
    ConfigError,
    ConfigStatus,
    ConfigType,
    ConfigValue,
    ServerSynonym,
    definitions_of,
    python_name,
    setting,
    to_text,
    unknown_name,
)
from tpc_broker.model import INTERNAL_TOPICS

if TYPE_CHECKING:
    from collections.abc import Mapping

_DAY_MS: Final = 24 * 60 * 60 * 1000
_HOUR_MS: Final = 60 * 60 * 1000
_MINUTE_MS: Final = 60 * 1000
_STORED: Final = ConfigStatus.STORED_ONLY
_THROTTLED_REPLICA: Final = re.compile(r"\d+:\d+")

COMPRESSION_TYPES: Final = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
NO_COMPRESSION: Final = (
    "This broker keeps batches byte for byte as their producers sent them and compresses none; set compression.type of "
    "the producers."
)
CLEANUP_POLICIES: Final = ("compact", "delete")
TIMESTAMP_TYPES: Final = ("CreateTime", "LogAppendTime")
DURABILITIES: Final = ("durable", "relaxed")


def _same(name: str) -> tuple[ServerSynonym, ...]:
    return (ServerSynonym(name),)


def _check_throttled(definition: ConfigDefinition, value: ConfigValue) -> None:
    assert isinstance(value, tuple)
    if value != ("*",) and not all(_THROTTLED_REPLICA.fullmatch(part) for part in value):
        reason = f"{definition.name} must be the literal '*' or a list of [partitionId]:[brokerId]"
        raise definition.refusal(f"[{', '.join(value)}]", reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Effective settings of one topic."""

    cleanup_policy: tuple[str, ...] = setting(
        "cleanup.policy",
        ConfigType.LIST,
        ("delete",),
        "What happens to old records: `delete` drops whole segments by age and size, `compact` keeps the last record "
        "of every key. With `compact`, records without a key are refused; with `compact` alone nothing goes by age or "
        "size.",
        valid=CLEANUP_POLICIES,
        synonyms=_same("log.cleanup.policy"),
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level",
        ConfigType.INT,
        -1,
        "Level for gzip, where the broker compresses.",
        status=_STORED,
        minimum=1,
        maximum=9,
        exception=-1,
        synonyms=_same("compression.gzip.level"),
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level",
        ConfigType.INT,
        9,
        "Level for lz4, where the broker compresses.",
        status=_STORED,
        minimum=1,
        maximum=17,
        synonyms=_same("compression.lz4.level"),
    )
    compression_type: str = setting(
        "compression.type",
        ConfigType.STRING,
        "producer",
        NO_COMPRESSION,
        status=ConfigStatus.REFUSED,
        valid=COMPRESSION_TYPES,
        synonyms=_same("compression.type"),
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level",
        ConfigType.INT,
        3,
        "Level for zstd, where the broker compresses.",
        status=_STORED,
        minimum=-131072,
        maximum=22,
        synonyms=_same("compression.zstd.level"),
    )
    delete_retention_ms: int = setting(
        "delete.retention.ms",
        ConfigType.LONG,
        _DAY_MS,
        "How long compaction keeps the marker of a deleted key.",
        minimum=0,
        synonyms=_same("log.cleaner.delete.retention.ms"),
    )
    durability: str = setting(
        "durability",
        ConfigType.STRING,
        "durable",
        "When a produce request is answered. `durable`: after the records are on the disk. `relaxed`: when they are "
        "in memory; the write follows at once, and readers see only what is on the disk. With `relaxed`, records that "
        "were acknowledged are lost when the process or the power dies before their write ends: the commits in "
        "flight, usually a few milliseconds' worth. Internal topics are always durable.",
        valid=DURABILITIES,
        synonyms=_same("durability.default"),
    )
    file_delete_delay_ms: int = setting(
        "file.delete.delay.ms",
        ConfigType.LONG,
        60_000,
        "Time between the removal of a segment and the removal of its files.",
        minimum=0,
        synonyms=_same("log.segment.delete.delay.ms"),
    )
    flush_messages: int = setting(
        "flush.messages",
        ConfigType.LONG,
        LONG_MAX,
        "Records between forced writes to the disk; `durability` decides that here.",
        status=_STORED,
        minimum=1,
        synonyms=_same("log.flush.interval.messages"),
    )
    flush_ms: int = setting(
        "flush.ms",
        ConfigType.LONG,
        LONG_MAX,
        "Time between forced writes to the disk; `durability` decides that here.",
        status=_STORED,
        minimum=0,
        synonyms=(ServerSynonym("log.flush.interval.ms"), ServerSynonym("log.flush.scheduler.interval.ms")),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        "follower.replication.throttled.replicas",
        ConfigType.LIST,
        (),
        "Replicas whose fetching is throttled.",
        status=_STORED,
        check=_check_throttled,
    )
    index_interval_bytes: int = setting(
        "index.interval.bytes",
        ConfigType.INT,
        4096,
        "Bytes of log between two entries of the offset index.",
        minimum=0,
        synonyms=_same("log.index.interval.bytes"),
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        "leader.replication.throttled.replicas",
        ConfigType.LIST,
        (),
        "Replicas whose feeding is throttled.",
        status=_STORED,
        check=_check_throttled,
    )
    local_retention_bytes: int = setting(
        "local.retention.bytes",
        ConfigType.LONG,
        -2,
        "Size kept locally when segments are tiered; -2 means retention.bytes.",
        status=_STORED,
        minimum=-2,
        synonyms=_same("log.local.retention.bytes"),
    )
    local_retention_ms: int = setting(
        "local.retention.ms",
        ConfigType.LONG,
        -2,
        "Age kept locally when segments are tiered; -2 means retention.ms.",
        status=_STORED,
        minimum=-2,
        synonyms=_same("log.local.retention.ms"),
    )
    max_compaction_lag_ms: int = setting(
        "max.compaction.lag.ms",
        ConfigType.LONG,
        LONG_MAX,
        "Longest time a record may stay uncompacted.",
        minimum=1,
        synonyms=_same("log.cleaner.max.compaction.lag.ms"),
    )
    max_message_bytes: int = setting(
        "max.message.bytes",
        ConfigType.INT,
        1_048_588,
        "Largest record batch that is accepted, in bytes as sent.",
        minimum=0,
        synonyms=_same("message.max.bytes"),
    )
    message_timestamp_after_max_ms: int = setting(
        "message.timestamp.after.max.ms",
        ConfigType.LONG,
        _HOUR_MS,
        "How far a record's time stamp may lie ahead of the broker's clock. Unused with LogAppendTime.",
        minimum=0,
        synonyms=_same("log.message.timestamp.after.max.ms"),
    )
    message_timestamp_before_max_ms: int = setting(
        "message.timestamp.before.max.ms",
        ConfigType.LONG,
        LONG_MAX,
        "How far a record's time stamp may lie behind the broker's clock. Unused with LogAppendTime.",
        minimum=0,
        synonyms=_same("log.message.timestamp.before.max.ms"),
    )
    message_timestamp_type: str = setting(
        "message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        "Whose time a record carries: the producer's, or the broker's at the append.",
        valid=TIMESTAMP_TYPES,
        synonyms=_same("log.message.timestamp.type"),
    )
    min_cleanable_dirty_ratio: float = setting(
        "min.cleanable.dirty.ratio",
        ConfigType.DOUBLE,
        0.5,
        "Share of uncompacted log above which compaction is worth it.",
        minimum=0,
        maximum=1,
        synonyms=_same("log.cleaner.min.cleanable.ratio"),
    )
    min_compaction_lag_ms: int = setting(
        "min.compaction.lag.ms",
        ConfigType.LONG,
        0,
        "Shortest time a record stays uncompacted.",
        minimum=0,
        synonyms=_same("log.cleaner.min.compaction.lag.ms"),
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas",
        ConfigType.INT,
        1,
        "Replicas that must be in sync for acks=all; with fewer a produce is refused with NOT_ENOUGH_REPLICAS.",
        minimum=1,
        synonyms=_same("min.insync.replicas"),
    )
    preallocate: bool = setting(
        "preallocate",
        ConfigType.BOOLEAN,
        False,
        "Whether a segment's file is made at its full size; space is reserved anyway.",
        status=_STORED,
        synonyms=_same("log.preallocate"),
    )
    remote_log_copy_disable: bool = setting(
        "remote.log.copy.disable", ConfigType.BOOLEAN, False, "Whether tiering stops copying segments.", status=_STORED
    )
    remote_log_delete_on_disable: bool = setting(
        "remote.log.delete.on.disable",
        ConfigType.BOOLEAN,
        False,
        "Whether tiered data goes when tiering is switched off.",
        status=_STORED,
    )
    remote_storage_enable: bool = setting(
        "remote.storage.enable",
        ConfigType.BOOLEAN,
        False,
        "Tiered storage is not part of this broker yet.",
        status=ConfigStatus.REFUSED,
    )
    retention_bytes: int = setting(
        "retention.bytes",
        ConfigType.LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted; -1: no limit.",
        synonyms=_same("log.retention.bytes"),
    )
    retention_ms: int = setting(
        "retention.ms",
        ConfigType.LONG,
        7 * _DAY_MS,
        "Age above which a segment is deleted, counted from its latest record time stamp; -1: no limit.",
        minimum=-1,
        synonyms=(
            ServerSynonym("log.retention.ms"),
            ServerSynonym("log.retention.minutes", _MINUTE_MS),
            ServerSynonym("log.retention.hours", _HOUR_MS),
        ),
    )
    segment_age_ms: int = setting(
        "segment.age.ms",
        ConfigType.LONG,
        -1,
        "Age above which a segment is deleted, counted by the wall clock from the last append to it; -1: no limit.",
        minimum=-1,
    )
    segment_bytes: int = setting(
        "segment.bytes",
        ConfigType.INT,
        1 << 30,
        "Size at which a segment is closed and a new one begun.",
        minimum=1 << 20,
        synonyms=_same("log.segment.bytes"),
    )
    segment_index_bytes: int = setting(
        "segment.index.bytes",
        ConfigType.INT,
        10 << 20,
        "Size of an offset index at which its segment is closed.",
        minimum=4,
        synonyms=_same("log.index.size.max.bytes"),
    )
    segment_jitter_ms: int = setting(
        "segment.jitter.ms",
        ConfigType.LONG,
        0,
        "Random part taken off segment.ms, against rolling all at once.",
        status=_STORED,
        minimum=0,
        synonyms=(ServerSynonym("log.roll.jitter.ms"), ServerSynonym("log.roll.jitter.hours", _HOUR_MS)),
    )
    segment_ms: int = setting(
        "segment.ms",
        ConfigType.LONG,
        7 * _DAY_MS,
        "Age at which a segment is closed and a new one begun.",
        minimum=1,
        synonyms=(ServerSynonym("log.roll.ms"), ServerSynonym("log.roll.hours", _HOUR_MS)),
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        "A replica that lacks acknowledged records never leads: they would be lost.",
        status=ConfigStatus.REFUSED,
        synonyms=_same("unclean.leader.election.enable"),
    )


TOPIC_CONFIGS: Final[Mapping[str, ConfigDefinition]] = definitions_of(TopicConfig)

INTERNAL_TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact", "compression.type": "producer",
}  # fmt: skip
"""Set on topics of coordinators when they are made, as Kafka does, beside the `segment.bytes` of the broker's settings.
"""


def topic_definition(name: str) -> ConfigDefinition:
    """The row of a topic setting; ConfigError names the unknown."""
    definition = TOPIC_CONFIGS.get(name)
    if definition is None:
        raise unknown_name("topic", name, TOPIC_CONFIGS)
    return definition


def validate_topic_configs(
    topic: str, texts: Mapping[str, str | None], present: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """The overrides as they are stored (canonical text); ConfigError for the first that cannot be taken. What is
    `present` may stay, also when an earlier release took it and this one would not.

    Null values were taken out by the caller: for CreateTopics and AlterConfigs they are an error of their own.
    """
    stored = {}
    for name, text in texts.items():
        definition = topic_definition(name)
        value = definition.read(text) if text == present.get(name) else definition.parse_altered(text)
        if name == "durability" and value == "relaxed" and topic in INTERNAL_TOPICS:
            raise definition.refusal(value, f"internal topic {topic} is always durable")
        canonical = to_text(value)
        assert canonical is not None, name
        stored[name] = canonical
    _check_relations(stored)
    return stored


def _check_relations(stored: Mapping[str, str]) -> None:
    lags = [TOPIC_CONFIGS[name].parse(stored[name]) if name in stored else TOPIC_CONFIGS[name].default
            for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")]  # fmt: skip
    assert isinstance(lags[0], int)
    assert isinstance(lags[1], int)
    if lags[0] > lags[1]:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({lags[0]}) > max.compaction.lag.ms ({lags[1]})"
        )


def effective_topic_config(overrides: Mapping[str, str], server: Mapping[str, ConfigValue]) -> TopicConfig:
    """What holds for a topic: its `overrides`, else the broker's `server` values by name, else the defaults.

    `server` holds the broker settings that were given or altered; what is left at its default may be absent.
    """
    values: dict[str, ConfigValue] = {}
    for name, definition in TOPIC_CONFIGS.items():
        if name in overrides:
            values[python_name(name)] = definition.read(overrides[name])
            continue
        for synonym in definition.synonyms:
            value = server.get(synonym.name)
            if value is not None:
                values[python_name(name)] = scaled(value, synonym.scale)
                break
    return TopicConfig(**values)  # type: ignore[arg-type]  # each value was parsed by its own definition


def scaled(value: ConfigValue, scale: int) -> ConfigValue:
    """A broker's value in the topic's unit. Negative means no limit in every unit."""
    if scale == 1 or not isinstance(value, int):
        return value
    return -1 if value < 0 else value * scale
