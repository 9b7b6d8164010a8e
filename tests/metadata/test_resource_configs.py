"""Settings of groups and of subscriptions to metrics of clients: what is taken and refused, and from which level on."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tpc_broker import limits
from tpc_broker.error_codes import ErrorCode
from tpc_broker.metadata.client_metrics_config import match_patterns
from tpc_broker.metadata.config_control import AlterableConfig, AlterableResource, ConfigController, ResourceType
from tpc_broker.metadata.config_types import ConfigSource
from tpc_broker.metadata.describe import describe_client_metrics, describe_group
from tpc_broker.metadata.group_config import GROUP_CONFIGS
from tpc_broker.metadata.image import ClusterImage
from tpc_broker.metadata.records import (
    FeatureLevelChanged,
    NodeAddress,
    NodeRegistered,
    ResourceConfigChanged,
    decode_record,
    encode_record,
)
from tpc_broker.metadata.settings import BrokerConfiguration, load_settings
from tpc_broker.model import MetadataVersion, NodeId

SET, DELETE, APPEND = 0, 1, 2
SESSION, HEARTBEAT, INTERVAL = (
    "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms", "consumer.assignment.interval.ms",
)  # fmt: skip
GROUP, METRICS = ResourceType.GROUP, ResourceType.CLIENT_METRICS


@dataclass
class Metadata:
    """Replays through bytes what is decided."""

    image: ClusterImage = field(default_factory=ClusterImage)
    configuration: BrokerConfiguration = field(default_factory=load_settings)

    def apply(self, *records):
        replayed = [decode_record(encode_record(record)) for record in records]
        self.image = self.image.apply(replayed, MetadataVersion(self.image.version + len(replayed)))

    def alter(self, kind, name, *configs, replace=False, validate_only=False):
        resource = AlterableResource(kind, name, tuple(AlterableConfig(*each) for each in configs))
        controller = ConfigController(self.image, self.configuration)
        decide = controller.alter_configs if replace else controller.incremental_alter_configs
        records, (result,) = decide([resource], validate_only=validate_only)
        self.apply(*records)
        return result.error_code, result.error_message


def test_a_groups_settings_are_kept_until_they_are_removed():
    metadata = Metadata()
    assert metadata.alter(GROUP, "g", (SESSION, " 50000 "), (INTERVAL, "0")) == (0, None)
    assert metadata.image.group_configs == {"g": {SESSION: "50000", INTERVAL: "0"}}
    version = metadata.image.version
    assert metadata.alter(GROUP, "g", (SESSION, "50000")) == (0, None)
    assert metadata.alter(GROUP, "g", (SESSION, "60000"), validate_only=True) == (0, None)
    assert metadata.image.version == version, "nothing changes, and nothing is written"
    assert metadata.alter(GROUP, "g", (INTERVAL, None, DELETE), (HEARTBEAT, "6000")) == (0, None)
    assert metadata.alter(GROUP, "other", (HEARTBEAT, "7000")) == (0, None)
    assert metadata.image.group_configs == {"g": {SESSION: "50000", HEARTBEAT: "6000"}, "other": {HEARTBEAT: "7000"}}
    assert metadata.alter(GROUP, "g", (SESSION, "45000"), replace=True) == (0, None)
    assert metadata.image.group_configs["g"] == {SESSION: "45000"}
    assert metadata.alter(GROUP, "g", (SESSION, None, DELETE)) == (0, None)
    assert metadata.image.group_configs == {"other": {HEARTBEAT: "7000"}}
    assert metadata.alter(GROUP, "other", replace=True) == (0, None)
    assert metadata.image.group_configs == {}


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ([(SESSION, "44999")], f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms"),
        ([(SESSION, "60001")], f"{SESSION} must be less than or equal to group.consumer.max.session.timeout.ms"),
        ([(HEARTBEAT, "4999")], f"{HEARTBEAT} must be greater than or equal to group.consumer.min.heartbeat.inter"),
        ([(HEARTBEAT, "15001")], f"{HEARTBEAT} must be less than or equal to group.consumer.max.heartbeat.interval.ms"),
        ([(INTERVAL, "15001")], f"{INTERVAL} must be less than or equal to group.consumer.max.assignment.interval.ms"),
        ([(SESSION, "1"), (HEARTBEAT, "1")], f"{HEARTBEAT} must be greater than or equal to group.consumer.min.heartb"),
        ([(INTERVAL, "-1")], f"Invalid value -1 for configuration {INTERVAL}: Value must be at least 0"),
        ([(SESSION, "x")], f"Invalid value x for configuration {SESSION}: Not a number of type INT"),
        ([(SESSION, "")], f"Invalid value  for configuration {SESSION}: Not a number of type INT"),
        ([("absent", "1"), (SESSION, "x")], "Unknown group config name: absent"),
        ([("consumer.assignor.offload.enable", "true")], "Unknown group config name: consumer.assignor.offload.ena"),
        ([("share.delivery.count.limit", "5")], "share.delivery.count.limit: it cannot be set"),
        ([("streams.num.standby.replicas", "1")], "streams.num.standby.replicas: it cannot be set"),
        ([(SESSION, "50000", APPEND)], f"Can't APPEND to key {SESSION} because its type is not LIST."),
    ],
)
def test_what_a_group_may_not_set_is_refused_in_kafkas_words(configs, said):
    metadata = Metadata()
    code, message = metadata.alter(GROUP, "g", *configs)
    assert (code, message[: len(said)], metadata.image.group_configs) == (ErrorCode.INVALID_CONFIG, said, {})


def test_a_groups_session_has_to_be_longer_than_its_heartbeats():
    wide = ["min.session.timeout.ms=1", "max.heartbeat.interval.ms=90000", "min.heartbeat.interval.ms=1"]
    metadata = Metadata(configuration=load_settings("", [f"group.consumer.{each}" for each in wide]))
    refused = (ErrorCode.INVALID_CONFIG, f"{SESSION} must be greater than {HEARTBEAT}")
    assert metadata.alter(GROUP, "g", (SESSION, "5000")) == refused, "the broker's heartbeats are every 5 s"
    assert metadata.alter(GROUP, "g", (HEARTBEAT, "45000")) == refused, "the broker's session is as long"
    assert metadata.alter(GROUP, "g", (HEARTBEAT, "4999"), (SESSION, "5000")) == (0, None)
    assert metadata.alter(GROUP, "g", (HEARTBEAT, "5000")) == refused
    assert metadata.alter(GROUP, "g", (HEARTBEAT, None, DELETE)) == refused


def test_a_subscriptions_settings_are_kept_until_they_are_removed():
    metadata = Metadata()
    configs = [("metrics", " a. , b., a."), ("interval.ms", "100"), ("match", "client_id=a.*, client_software_name=J")]
    assert metadata.alter(METRICS, "m", *configs) == (0, None)
    kept = {"metrics": "a.,b.", "interval.ms": "100", "match": "client_id=a.*,client_software_name=J"}
    assert metadata.image.client_metrics_configs == {"m": kept}
    assert metadata.image.group_configs == {}
    assert metadata.alter(METRICS, "m", ("metrics", "*"), ("match", ""), ("interval.ms", None, DELETE)) == (0, None)
    assert metadata.image.client_metrics_configs == {"m": {"metrics": "*", "match": ""}}
    assert metadata.alter(METRICS, "m", ("metrics", None, DELETE), ("match", None, DELETE)) == (0, None)
    assert metadata.image.client_metrics_configs == {}


@pytest.mark.parametrize(
    ("key", "value", "code", "said"),
    [
        ("interval.ms", "99", 42, "Invalid value 99 for interval.ms, interval must be between 100 and 3600000 (1 h"),
        ("interval.ms", "3600001", 42, "Invalid value 3600001 for interval.ms, interval must be between 100 and 36"),
        ("interval.ms", "x", 40, "Invalid value x for configuration interval.ms: Not a number of type INT"),
        ("absent", "1", 42, "Unknown client metrics configuration: absent"),
        ("metrics", "a,,b", 40, "Configuration 'metrics' values must not be empty."),
        ("match", "client_id=a,", 40, "Configuration 'match' values must not be empty."),
        ("match", "client_id", 40, "Illegal client matching pattern: client_id"),
        ("match", "client_id=", 40, "Illegal client matching pattern: client_id="),
        ("match", "client_id=a=b", 40, "Illegal client matching pattern: client_id=a=b"),
        ("match", "host=a", 40, "Illegal client matching pattern: host=a"),
        ("match", "client_id=a,client_id=(", 40, "Illegal client matching pattern: client_id=("),
        ("match", "client_id=[a&&b]", 40, "Illegal client matching pattern: client_id=[a&&b]"),
        ("match", "client_id=\\p{Alpha}", 40, "Illegal client matching pattern: client_id=\\p{Alpha}"),
        ("match", "client_id=[a[b]]", 40, "Illegal client matching pattern: client_id=[a[b]]"),
        ("match", "client_id=(?!a).*", 40, "Illegal client matching pattern: client_id=(?!a).*"),
        ("match", "client_id=(a)\\1", 40, "Illegal client matching pattern: client_id=(a)\\1"),
        ("match", f"client_id={'a' * 4097}", 40, "Illegal client matching pattern: client_id=aaa"),
        ("match", "client_id=(a|b)*a(a|b){500}", 40, "Illegal client matching pattern: client_id=(a|b)*a(a|b){500}: "),
        ("match", "client_id=.*[ab].{1000}c.*", 40, "Illegal client matching pattern: client_id=.*[ab].{1000}c.*: it"),
        ("match", "client_id=((a{1000}){1000}){9}", 40, "Illegal client matching pattern: client_id=((a{1000}){1000}"),
    ],
)
def test_what_a_subscription_may_not_set_is_refused_in_kafkas_words(key, value, code, said):
    metadata = Metadata()
    found, message = metadata.alter(METRICS, "m", (key, value))
    assert (found, message[: len(said)], metadata.image.client_metrics_configs) == (code, said, {})


def test_patterns_are_by_key_and_the_last_one_counts():
    found = match_patterns(["client_id = a.*", "client_source_port=90+", "client_id=b=="])
    assert {key: pattern.pattern for key, pattern in found.items()} == {"client_id": "b", "client_source_port": "90+"}


@pytest.mark.parametrize(
    "pattern", ["\\p{L}+", "a&&b", "[a&b]", "\\[a[b]", "[]a]", "[^]a]x", "[\\[]", "[a][b]", "(?i)a", "\\Qa.b\\E"]
)
def test_what_means_the_same_everywhere_is_taken(pattern):
    assert match_patterns([f"client_id={pattern}"])["client_id"].pattern == pattern


def test_classes_in_patterns_are_those_of_ascii():
    found = match_patterns(["client_id=\\w+", "client_source_port=\\d+"])
    assert found["client_id"].fullmatch("größe") is None
    assert found["client_source_port"].fullmatch("٣") is None
    assert found["client_id"].fullmatch("Client_7")


def test_one_resource_and_all_together_have_a_bound(monkeypatch):
    metadata = Metadata()
    most = "a" * (limits.RESOURCE_CONFIG_BYTES_MAX - len("m" + "metrics"))
    said = f"A name and its settings have at most {limits.RESOURCE_CONFIG_BYTES_MAX} bytes."
    assert metadata.alter(METRICS, "m", ("metrics", f"{most}a")) == (ErrorCode.INVALID_CONFIG, said)
    assert metadata.alter(METRICS, "m", ("match", f"client_id={'(' * 20_000}")) == (ErrorCode.INVALID_CONFIG, said)
    assert metadata.alter(GROUP, most + "metricsm", (SESSION, "50000")) == (ErrorCode.INVALID_CONFIG, said)
    assert metadata.alter(METRICS, "m", ("metrics", most)) == (0, None)
    one = len("g" + SESSION + "50000")
    monkeypatch.setattr(limits, "RESOURCE_CONFIGS_BYTES_MAX", limits.RESOURCE_CONFIG_BYTES_MAX + 2 * one)
    resources = [AlterableResource(GROUP, name, (AlterableConfig(SESSION, "50000"),)) for name in "ghi"]
    records, results = ConfigController(metadata.image, load_settings()).incremental_alter_configs(resources)
    assert [result.error_code for result in results] == [0, 0, ErrorCode.POLICY_VIOLATION], "what it decided counts"
    metadata.apply(*records)
    code, message = metadata.alter(GROUP, "i", (SESSION, "50000"))
    assert (code, "together have at most" in message) == (ErrorCode.POLICY_VIOLATION, True)
    assert metadata.alter(GROUP, "g", (SESSION, "60000")) == (0, None), "it does not grow"
    assert metadata.alter(GROUP, "g", (SESSION, None, DELETE)) == (0, None)
    assert metadata.alter(GROUP, "i", (SESSION, "50000")) == (0, None)


def test_subscriptions_have_a_bound_in_number(monkeypatch):
    monkeypatch.setattr(limits, "CLIENT_METRICS_SUBSCRIPTIONS_MAX", 2)
    metadata = Metadata()
    assert metadata.alter(GROUP, "g", (SESSION, "50000")) == (0, None), "a group is none"
    assert metadata.alter(METRICS, "a", ("metrics", "x")) == (0, None)
    resources = [AlterableResource(METRICS, name, (AlterableConfig("metrics", "x"),)) for name in "bc"]
    records, results = ConfigController(metadata.image, load_settings()).incremental_alter_configs(resources)
    assert [result.error_code for result in results] == [0, ErrorCode.POLICY_VIOLATION], "what it decided counts"
    metadata.apply(*records)
    code, message = metadata.alter(METRICS, "c", ("metrics", "x"))
    assert (code, message[:40]) == (ErrorCode.POLICY_VIOLATION, "There are at most 2 subscriptions to cli")
    assert metadata.alter(METRICS, "b", ("metrics", "y")) == (0, None), "it is there already"
    assert metadata.alter(METRICS, "a", ("metrics", None, DELETE)) == (0, None)
    assert metadata.alter(METRICS, "c", ("metrics", "x")) == (0, None)


def test_nothing_without_a_name():
    for name, key in ((SESSION, GROUP), ("metrics", METRICS)):
        said = "Default group resources are not allowed." if key == GROUP else "Subscription name can't be empty"
        assert Metadata().alter(key, "", (name, "50000")) == (ErrorCode.INVALID_REQUEST, said)


def test_they_are_written_only_when_all_nodes_can_read_them():
    node = NodeRegistered(NodeId(1), 1, 1, "", "1", NodeAddress("h", 1), ())
    metadata = Metadata()
    metadata.apply(node, FeatureLevelChanged(3, 1))
    assert not metadata.image.knows_consumer_groups
    said = (
        "Settings of groups and of client metrics are kept from tpc.version=4 on; the level is 3 "
        "(tpc cluster level --raise 4)."
    )
    for validate_only in (False, True):
        for kind, config in ((GROUP, (SESSION, "50000")), (METRICS, ("metrics", "*"))):
            found = metadata.alter(kind, "x", config, validate_only=validate_only)
            assert found == (ErrorCode.UNSUPPORTED_VERSION, said)
    assert metadata.alter(GROUP, "x", (SESSION, None, DELETE)) == (0, None), "it changes nothing"
    metadata.apply(FeatureLevelChanged(4, 2))
    assert metadata.image.knows_consumer_groups
    assert metadata.alter(GROUP, "x", (SESSION, "50000")) == (0, None)
    assert metadata.image.group_configs == {"x": {SESSION: "50000"}}


def test_a_groups_settings_are_shown_with_every_place_looked_at():
    broker = load_settings("", ["group.consumer.assignment.interval.ms=7"]).altered(
        {"group.consumer.assignment.interval.ms": "8"}, {}
    )
    entries = {entry.name: entry for entry in describe_group({SESSION: "50000", INTERVAL: "9"}, broker)}
    assert entries.keys() == GROUP_CONFIGS.keys()
    places = {
        name: (entry.value, [(one.name, one.value, one.source) for one in entry.synonyms])
        for name, entry in entries.items()
    }
    assert places[INTERVAL] == ("9", [
        (INTERVAL, "9", 8), (f"group.{INTERVAL}", "8", 3), (f"group.{INTERVAL}", "7", 4),
        (f"group.{INTERVAL}", "1000", 5),
    ])  # fmt: skip
    assert places[SESSION] == ("50000", [(SESSION, "50000", 8), (f"group.{SESSION}", "45000", 5)])
    assert places[HEARTBEAT] == ("5000", [(f"group.{HEARTBEAT}", "5000", 5)])
    key = "share.delivery.count.limit"
    assert places[key] == ("5", [(f"group.{key}", "5", 5)])
    assert (entries[SESSION].source, entries[HEARTBEAT].source) == (
        ConfigSource.DYNAMIC_GROUP_CONFIG, ConfigSource.DEFAULT_CONFIG,
    )  # fmt: skip
    (only,) = describe_group({}, broker, [INTERVAL, "absent"])
    assert (only.value, only.source) == ("8", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)


def test_a_subscriptions_settings_are_shown_with_their_source():
    entries = {entry.name: entry for entry in describe_client_metrics({"metrics": "a,b"})}
    metrics, interval = entries["metrics"], entries["interval.ms"]
    assert (metrics.value, metrics.source) == ("a,b", ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG)
    assert [(one.name, one.value, one.source) for one in metrics.synonyms] == [("metrics", "a,b", 7)]
    assert (interval.value, interval.source, interval.synonyms) == ("300000", ConfigSource.DEFAULT_CONFIG, ())


def test_the_record_is_what_the_change_was():
    resource = AlterableResource(GROUP, "g", (AlterableConfig(SESSION, "50000"), AlterableConfig(HEARTBEAT, "6000")))
    records, _results = ConfigController(ClusterImage(), load_settings()).incremental_alter_configs([resource])
    assert records == [ResourceConfigChanged("group", "g", {SESSION: "50000", HEARTBEAT: "6000"})]
