"""What DescribeConfigs answers for a topic or a broker: every setting, its value, and where the value comes from.

A setting's synonyms are the places looked at, the winner first: the topic's own override, then for each broker setting
it falls back to: altered on this broker, altered for all, given at the start; and the default of the first of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpc_broker.metadata.broker_config import BROKER_CONFIGS
from tpc_broker.metadata.config_types import ConfigDefinition, ConfigSource, ConfigType, python_name, to_text
from tpc_broker.metadata.topic_config import TOPIC_CONFIGS
from tpc_broker.metadata.unset_configs import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tpc_broker.metadata.settings import BrokerConfiguration


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One place a value may come from, and the value there."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting as DescribeConfigs shows it; `synonyms` are to be left out where the request did not ask for them."""

    name: str
    value: str | None
    read_only: bool
    source: ConfigSource
    sensitive: bool
    type: ConfigType
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]


def describe_topic(
    overrides: Mapping[str, str],
    broker: BrokerConfiguration,
    names: Collection[str] | None = None,
    *,
    is_internal: bool = False,
) -> list[ConfigEntry]:
    """All settings of a topic, or those in `names` (unknown ones are left out, as Kafka does)."""
    effective = broker.topic_config(overrides, is_internal=is_internal)
    entries = []
    for name, definition in TOPIC_CONFIGS.items():
        if names is not None and name not in names:
            continue
        places = [s.name for s in definition.synonyms if not (is_internal and s.name == "durability.default")]
        synonyms = list(_server_synonyms(broker, places))
        if name in overrides:
            synonyms.insert(0, ConfigSynonym(name, overrides[name], ConfigSource.DYNAMIC_TOPIC_CONFIG))
        value = to_text(getattr(effective, python_name(name)))
        entries.append(_entry(definition, value, synonyms, read_only=False))
    return entries


def describe_broker(broker: BrokerConfiguration, names: Collection[str] | None = None) -> list[ConfigEntry]:
    """All settings of the broker, or those in `names`."""
    entries = []
    for name, definition in BROKER_CONFIGS.items():
        if names is not None and name not in names:
            continue
        value = to_text(getattr(broker.settings, python_name(name)))
        synonyms = list(_server_synonyms(broker, [name]))
        entries.append(_entry(definition, value, synonyms, read_only=not definition.dynamic))
    return entries


def describe_group(names: Collection[str] | None = None) -> list[ConfigEntry]:
    """All settings of any group, or those in `names`: nothing but defaults."""
    entries = []
    for name, definition in GROUP_CONFIGS.items():
        if names is None or name in names:
            place = definition.synonyms[0].name
            default = ConfigSynonym(place, to_text(definition.default), ConfigSource.DEFAULT_CONFIG)
            entries.append(_entry(definition, default.value, [default], read_only=False))
    return entries


def describe_client_metrics(names: Collection[str] | None = None) -> list[ConfigEntry]:
    """The same of any subscription of client metrics, of which there are none."""
    return [
        _entry(definition, to_text(definition.default), [], read_only=False)
        for name, definition in CLIENT_METRICS_CONFIGS.items()
        if names is None or name in names
    ]


def _server_synonyms(broker: BrokerConfiguration, names: list[str]) -> Iterator[ConfigSynonym]:
    for name in names:
        places = (
            (broker.altered_here, ConfigSource.DYNAMIC_BROKER_CONFIG),
            (broker.altered_default, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG),
            (broker.given, ConfigSource.STATIC_BROKER_CONFIG),
        )
        for texts, source in places:
            if name in texts:
                yield ConfigSynonym(name, texts[name], source)
        default = to_text(BROKER_CONFIGS[name].default)
        if default is not None and name == names[0]:
            yield ConfigSynonym(name, default, ConfigSource.DEFAULT_CONFIG)


def _entry(
    definition: ConfigDefinition, value: str | None, synonyms: list[ConfigSynonym], *, read_only: bool
) -> ConfigEntry:
    hidden = [ConfigSynonym(s.name, None, s.source) for s in synonyms] if definition.sensitive else synonyms
    return ConfigEntry(
        name=definition.name,
        value=None if definition.sensitive else value,
        read_only=read_only,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        sensitive=definition.sensitive,
        type=definition.type,
        documentation=definition.documentation(),
        synonyms=tuple(hidden),
    )
