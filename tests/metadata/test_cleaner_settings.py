"""Settings of the cleaner: Kafka's bounds where they are said, and what jobs get of them."""

from __future__ import annotations

import pytest

from tpc_broker import limits
from tpc_broker.metadata.broker_config import BROKER_CONFIGS
from tpc_broker.metadata.cleaner_settings import DEDUPE_BYTES_MIN, NO_CLEANING, cleaning_bounds
from tpc_broker.metadata.config_types import ConfigError, to_text
from tpc_broker.metadata.settings import load_settings, validate_dynamic, without_effect

# Printed by Kafka 4.3.1, but for the last, which its 4.4 has: name, type, default, whether it can be altered.
KAFKA = """
log.cleaner.backoff.ms LONG 15000 cluster-wide
log.cleaner.dedupe.buffer.size LONG 134217728 cluster-wide
log.cleaner.enable BOOLEAN true read-only
log.cleaner.io.buffer.load.factor DOUBLE 0.9 cluster-wide
log.cleaner.io.buffer.size INT 524288 cluster-wide
log.cleaner.io.max.bytes.per.second DOUBLE 1.7976931348623157E308 cluster-wide
log.cleaner.threads INT 1 cluster-wide
max.decompressed.message.bytes INT 2147483639 cluster-wide
"""
NO_EFFECT = ["log.cleaner.io.buffer.load.factor", "log.cleaner.io.buffer.size"]


@pytest.mark.parametrize("row", KAFKA.strip().splitlines())
def test_types_defaults_and_what_can_be_altered_are_kafkas(row):
    name, kind, default, mode = row.split()
    found = BROKER_CONFIGS[name]
    assert (found.type.name, to_text(found.default).replace("+", "").lower()) == (kind, default.lower())
    assert found.dynamic == (mode != "read-only")
    assert without_effect([name]) == ([name] if name in NO_EFFECT else [])


def test_what_topics_fall_back_to_acts():
    names = [f"log.cleaner.{name}" for name in ("delete.retention.ms", "min.cleanable.ratio")]
    names += [f"log.cleaner.{end}.compaction.lag.ms" for end in ("min", "max")]
    assert without_effect(names) == []


@pytest.mark.parametrize(
    ("overrides", "threads", "dedupe_bytes"),
    [
        ([], 1, 128 << 20),
        (["log.cleaner.threads=4"], 4, 32 << 20),
        (["log.cleaner.dedupe.buffer.size=1073741824", "log.cleaner.threads=3"], 3, (1 << 30) // 3),
        (["log.cleaner.dedupe.buffer.size=9223372036854775807"], 1, limits.CLEANER_MAP_BYTES_MAX),
        (["log.cleaner.threads=0"], 0, 128 << 20),
        (["log.cleaner.enable=false", "log.cleaner.threads=4"], 0, 128 << 20),
    ],
)
def test_cleaners_share_the_memory_for_keys(overrides, threads, dedupe_bytes):
    bounds = cleaning_bounds(load_settings("", overrides).settings)
    assert (bounds.threads, bounds.is_on, bounds.dedupe_bytes) == (threads, threads > 0, dedupe_bytes)


def test_what_a_batch_may_unpack_to_has_a_bound_of_ours():
    assert cleaning_bounds(load_settings().settings).decompressed_bytes_max == limits.CLEANER_DECOMPRESSED_BYTES_MAX
    small = load_settings("", ["max.decompressed.message.bytes=5000"]).settings
    assert cleaning_bounds(small).decompressed_bytes_max == 5000


def test_nothing_is_compacted_before_the_settings_are_known():
    assert not NO_CLEANING.is_on


def test_a_mebibyte_for_each_cleaner_is_too_little_where_it_is_said():
    words = "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread."
    for given in (["log.cleaner.dedupe.buffer.size=1048576"], ["log.cleaner.threads=128"]):
        with pytest.raises(ConfigError, match=words):
            load_settings("", given)
    load_settings("", ["log.cleaner.dedupe.buffer.size=1048577"])
    load_settings("", ["log.cleaner.dedupe.buffer.size=1", "log.cleaner.threads=0"])
    broker = load_settings()
    with pytest.raises(ConfigError, match=words):
        broker.check_altered({"log.cleaner.dedupe.buffer.size": "5"}, {}, ["log.cleaner.dedupe.buffer.size"])


def test_what_was_stored_while_it_had_no_effect_ends_no_start():
    stored = load_settings().altered({"log.cleaner.dedupe.buffer.size": "-5", "log.cleaner.threads": "1000"}, {})
    assert cleaning_bounds(stored.settings).dedupe_bytes == DEDUPE_BYTES_MIN
    stored.check_altered(stored.altered_default | {"log.retention.ms": "5"}, {}, ["log.retention.ms"])


@pytest.mark.parametrize(
    ("now", "wanted", "words"),
    [
        (4, 0, "Log cleaner threads should be at least 1"),
        (4, 1, "Log cleaner threads cannot be reduced to less than half the current value 4"),
        (4, 9, "Log cleaner threads cannot be increased to more than double the current value 4"),
        (4, 2, None), (4, 8, None), (1, 2, None), (1, 1, None), (0, 5, None),
    ],
)  # fmt: skip
def test_cleaners_are_doubled_or_halved_at_a_time(now, wanted, words):
    broker = load_settings("", [f"log.cleaner.threads={now}"])
    text = validate_dynamic("log.cleaner.threads", str(wanted))
    for places in (({"log.cleaner.threads": text}, {}), ({}, {"log.cleaner.threads": text})):
        if words is None:
            broker.check_altered(*places, ["log.cleaner.threads"])
            continue
        with pytest.raises(ConfigError, match=words):
            broker.check_altered(*places, ["log.cleaner.threads"])
