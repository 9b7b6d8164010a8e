"""Decides changes of settings: AlterConfigs and IncrementalAlterConfigs, of topics, brokers, groups, client metrics.

Like `Controller`: `(records, response)` from an image and a request, one result per resource, Kafka's codes and words.
A resource changes as a whole or not at all. Records are written only for what really changes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from tpc_broker import limits
from tpc_broker.error_codes import ErrorCode
from tpc_broker.feature_levels import FIRST_WITH_GROUPS, kept_from
from tpc_broker.metadata.assignment_requests import Refusal, check_min_insync_replicas
from tpc_broker.metadata.broker_config import BROKER_CONFIGS
from tpc_broker.metadata.client_metrics_config import validate_client_metrics
from tpc_broker.metadata.config_types import ConfigDefinition, ConfigError, ConfigType, to_text
from tpc_broker.metadata.group_config import validate_group_configs
from tpc_broker.metadata.image import NODE_DRAINING
from tpc_broker.metadata.records import (
    CLIENT_METRICS,
    GROUP,
    BrokerConfigChanged,
    MetadataRecord,
    ResourceConfigChanged,
    TopicConfigChanged,
)
from tpc_broker.metadata.settings import validate_dynamic
from tpc_broker.metadata.topic_config import TOPIC_CONFIGS, validate_topic_configs
from tpc_broker.metadata.topic_names import topic_name_fault
from tpc_broker.model import BrokerId, CoreId, NodeId, broker_id_of, core_of, node_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tpc_broker.metadata.image import ClusterImage, TopicImage
    from tpc_broker.metadata.settings import BrokerConfiguration


class ResourceType(IntEnum):
    """Kinds of resources with settings, as the protocol numbers them."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlterOperation(IntEnum):
    """What IncrementalAlterConfigs does with one setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class AlterableConfig:
    """One setting to be changed; `operation` is a number of the protocol, which may be one that does not exist."""

    name: str
    value: str | None
    operation: int = AlterOperation.SET


@dataclass(frozen=True, slots=True)
class AlterableResource:
    """A topic, group or subscription (by name) or a broker (by id, or all with an empty name), and the changes."""

    resource_type: int
    resource_name: str
    configs: tuple[AlterableConfig, ...]


@dataclass(frozen=True, slots=True)
class AlteredResource:
    """Result for one resource."""

    resource_type: int
    resource_name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class ConfigController:
    """Decisions about settings for the cluster of which `image` is the state."""

    def __init__(self, image: ClusterImage, configuration: BrokerConfiguration) -> None:
        self._image = image
        self._configuration = configuration
        self._resource_bytes = 0
        """By which the settings of groups and of client metrics grow by what was decided already."""
        self._subscriptions = len(image.client_metrics_configs)
        """To client metrics, with what was decided already."""

    def incremental_alter_configs(
        self, resources: Sequence[AlterableResource], *, validate_only: bool = False
    ) -> tuple[list[MetadataRecord], list[AlteredResource]]:
        """IncrementalAlterConfigs: changes what is named and leaves the rest."""
        return self._alter(resources, replace_all=False, validate_only=validate_only)

    def alter_configs(
        self, resources: Sequence[AlterableResource], *, validate_only: bool = False
    ) -> tuple[list[MetadataRecord], list[AlteredResource]]:
        """AlterConfigs: what is named becomes all there is; operations are ignored."""
        return self._alter(resources, replace_all=True, validate_only=validate_only)

    def _alter(
        self, resources: Sequence[AlterableResource], *, replace_all: bool, validate_only: bool
    ) -> tuple[list[MetadataRecord], list[AlteredResource]]:
        records: list[MetadataRecord] = []
        results: list[AlteredResource] = []
        keys = [(resource.resource_type, resource.resource_name) for resource in resources]
        counts = Counter(keys)
        for resource, key in zip(resources, keys, strict=True):
            try:
                if counts[key] > 1:
                    raise Refusal(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
                _check_names(resource)
                changes = self._changes_of(resource, replace_all=replace_all)
            except Refusal as refusal:
                result = AlteredResource(*key, refusal.code, refusal.message)
                if result not in results:
                    results.append(result)
                continue
            records.extend(changes)
            results.append(AlteredResource(*key))
        return ([] if validate_only else records), results

    def _changes_of(self, resource: AlterableResource, *, replace_all: bool) -> Sequence[MetadataRecord]:
        if resource.resource_type == ResourceType.TOPIC:
            return self._topic_changes(resource, replace_all=replace_all)
        if resource.resource_type == ResourceType.BROKER:
            return self._broker_changes(resource, replace_all=replace_all)
        if resource.resource_type == ResourceType.GROUP:
            present: Mapping[str, str] = self._image.group_configs.get(resource.resource_name, {})
            wanted = _wanted(resource, present, {}, {}, replace_all=replace_all)
            _check_size(resource.resource_name, wanted)
            return self._resource_changes(GROUP, resource.resource_name, present, self._group_stored(resource, wanted))
        if resource.resource_type == ResourceType.CLIENT_METRICS:
            present = self._image.client_metrics_configs.get(resource.resource_name, {})
            wanted = _wanted(resource, present, {}, {}, replace_all=replace_all)
            _check_size(resource.resource_name, wanted)
            stored = validate_client_metrics(resource.resource_name, wanted)
            return self._resource_changes(CLIENT_METRICS, resource.resource_name, present, stored)
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")

    def _topic_changes(self, resource: AlterableResource, *, replace_all: bool) -> Sequence[MetadataRecord]:
        if not resource.resource_name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
        fault = topic_name_fault(resource.resource_name)
        if fault is not None:
            raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        topic = self._image.topic(resource.resource_name)
        if topic is None:
            raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.resource_name}' does not exist.")
        wanted = _wanted(resource, topic.configs, TOPIC_CONFIGS, self._topic_defaults(topic), replace_all=replace_all)
        try:
            stored = validate_topic_configs(topic.name, wanted, topic.configs)
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from None
        if topic.replicas:
            check_min_insync_replicas(stored, len(topic.replicas[0]))
        return [TopicConfigChanged(topic.topic_id, name, value) for name, value in _difference(topic.configs, stored)]

    def _broker_changes(self, resource: AlterableResource, *, replace_all: bool) -> Sequence[MetadataRecord]:
        broker = self._broker_named(resource.resource_name)
        self._check_draining(resource, broker)
        present = self._image.configs_of_broker(broker)
        defaults = {name: to_text(row.default) or "" for name, row in BROKER_CONFIGS.items()}
        wanted = _wanted(resource, present, BROKER_CONFIGS, defaults, replace_all=replace_all)
        fixed = [name for name in wanted if name in BROKER_CONFIGS and not BROKER_CONFIGS[name].dynamic]
        if fixed:
            message = f"Cannot update these configs dynamically: [{', '.join(fixed)}]"
            raise Refusal(ErrorCode.INVALID_REQUEST, message)
        try:
            asked = {config.name for config in resource.configs}
            stored = {
                name: validate_dynamic(name, text) if name in asked or name not in present else present[name]
                for name, text in wanted.items()
            }
            everywhere = self._image.configs_of_broker(None)
            default = everywhere if broker is not None else stored
            self._configuration.check_altered(default, stored, asked)
        except ConfigError as error:  # Kafka's code for a broker's settings, and INVALID_CONFIG for all others'
            raise Refusal(ErrorCode.INVALID_REQUEST, str(error)) from None
        return [BrokerConfigChanged(broker, name, value) for name, value in _difference(present, stored)]

    def _group_stored(self, resource: AlterableResource, wanted: Mapping[str, str]) -> dict[str, str]:
        if not resource.resource_name:
            raise Refusal(ErrorCode.INVALID_REQUEST, "Default group resources are not allowed.")
        try:
            return validate_group_configs(wanted, self._configuration.settings)
        except ConfigError as error:
            raise Refusal(ErrorCode.INVALID_CONFIG, str(error)) from None

    def _resource_changes(
        self, kind: str, name: str, present: Mapping[str, str], stored: Mapping[str, str]
    ) -> Sequence[MetadataRecord]:
        changes = dict(_difference(present, stored))
        if not changes:
            return ()
        if self._image.level < FIRST_WITH_GROUPS:
            why = kept_from("Settings of groups and of client metrics", FIRST_WITH_GROUPS, self._image.level)
            raise Refusal(ErrorCode.UNSUPPORTED_VERSION, why)
        grows = _bytes_of(name, stored) - _bytes_of(name, present)
        if grows > 0 and self._resource_bytes_before + self._resource_bytes + grows > limits.RESOURCE_CONFIGS_BYTES_MAX:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"Settings of all groups and of client metrics together have at most "
                f"{limits.RESOURCE_CONFIGS_BYTES_MAX} bytes; remove some that nobody needs any more.",
            )
        more = bool(stored) - bool(present) if kind == CLIENT_METRICS else 0
        if more > 0 and self._subscriptions >= limits.CLIENT_METRICS_SUBSCRIPTIONS_MAX:
            raise Refusal(
                ErrorCode.POLICY_VIOLATION,
                f"There are at most {limits.CLIENT_METRICS_SUBSCRIPTIONS_MAX} subscriptions to client metrics; remove "
                "one that nobody needs any more.",
            )
        self._subscriptions += more
        self._resource_bytes += grows
        return [ResourceConfigChanged(kind, name, changes)]

    @cached_property
    def _resource_bytes_before(self) -> int:
        tables = (self._image.group_configs, self._image.client_metrics_configs)
        return sum(_bytes_of(*each) for table in tables for each in table.items())

    def _check_draining(self, resource: AlterableResource, broker: BrokerId | None) -> None:
        """It is a node that is drained, and its first broker stands for it."""
        if all(config.name != NODE_DRAINING for config in resource.configs):
            return
        if not self._image.nodes:
            raise Refusal(ErrorCode.INVALID_CONFIG, f"{NODE_DRAINING}: this broker is no node of a cluster.")
        if broker is None or core_of(broker) != 0:
            first = "its first broker" if broker is None else f"broker {broker_id_of(node_of(broker), CoreId(0))}"
            raise Refusal(ErrorCode.INVALID_CONFIG, f"{NODE_DRAINING} is set for a node by {first}.")

    def _broker_named(self, name: str) -> BrokerId | None:
        if not name:
            return None
        node = NodeId(self._configuration.settings.node_id)
        nodes = {each.node: each.cores for each in self._image.nodes.values()} or {node: self._image.cores_count}
        known = {broker_id_of(each, CoreId(core)) for each, cores in nodes.items() for core in range(cores)}
        if not name.isascii() or not name.isdecimal():
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
        if int(name) not in known:
            raise Refusal(
                ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected one of {sorted(known)}, but received {name}"
            )
        return BrokerId(int(name))

    def _topic_defaults(self, topic: TopicImage) -> dict[str, str]:
        effective = self._configuration.topic_config(topic.configs)
        return {
            name: to_text(getattr(effective, name.replace(".", "_"))) or ""
            for name, row in TOPIC_CONFIGS.items()
            if row.type is ConfigType.LIST
        }


def _check_size(name: str, wanted: Mapping[str, str]) -> None:
    if _bytes_of(name, wanted) > limits.RESOURCE_CONFIG_BYTES_MAX:
        raise Refusal(
            ErrorCode.INVALID_CONFIG, f"A name and its settings have at most {limits.RESOURCE_CONFIG_BYTES_MAX} bytes."
        )


def _bytes_of(name: str, configs: Mapping[str, str]) -> int:
    if not configs:
        return 0
    return len(name.encode()) + sum(len(key) + len(text.encode()) for key, text in configs.items())


def _check_names(resource: AlterableResource) -> None:
    names = [config.name for config in resource.configs]
    if len(set(names)) != len(names):
        raise Refusal(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    nulls = sorted(
        config.name for config in resource.configs if config.value is None and config.operation != AlterOperation.DELETE
    )
    if nulls:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(nulls)}")


def _wanted(
    resource: AlterableResource,
    present: Mapping[str, str],
    table: Mapping[str, ConfigDefinition],
    defaults: Mapping[str, str],
    *,
    replace_all: bool,
) -> dict[str, str]:
    """The settings the resource would have; values not checked yet."""
    if replace_all:
        return {config.name: config.value or "" for config in resource.configs}
    wanted = dict(present)
    for config in resource.configs:
        if config.operation == AlterOperation.DELETE:
            wanted.pop(config.name, None)
        elif config.operation == AlterOperation.SET:
            wanted[config.name] = config.value or ""
        elif config.operation in {AlterOperation.APPEND, AlterOperation.SUBTRACT}:
            base = present.get(config.name, defaults.get(config.name, ""))
            wanted[config.name] = _list_changed(config, table.get(config.name), base)
        else:
            raise Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operation type {config.operation}")
    return wanted


def _list_changed(config: AlterableConfig, definition: ConfigDefinition | None, base: str) -> str:
    operation = AlterOperation(config.operation)
    if definition is None or definition.type is not ConfigType.LIST:
        raise Refusal(
            ErrorCode.INVALID_CONFIG, f"Can't {operation.name} to key {config.name} because its type is not LIST."
        )
    items = [item.strip() for item in base.split(",") if item.strip()]
    named = [item.strip() for item in (config.value or "").split(",") if item.strip()]
    if operation is AlterOperation.APPEND:
        return ",".join(dict.fromkeys([*items, *named]))
    return ",".join(item for item in items if item not in named)


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """What to write to get from one to the other: (name, new value or None for removed), in order of the names."""
    names = sorted(before.keys() | after.keys())
    return [(name, after.get(name)) for name in names if before.get(name) != after.get(name)]
