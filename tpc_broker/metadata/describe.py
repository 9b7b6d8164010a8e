"""What DescribeConfigs answers for a topic, broker, group or client metrics: every setting, its value, and where from.

A setting's synonyms are the places looked at, the winner first: the own override of the topic or group, then for each
broker setting it falls back to: altered on this broker, altered for all, given at the start; and the default of the
first of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpc_broker.metadata.broker_config import BROKER_CONFIGS
from tpc_broker.metadata.client_metrics_config import CLIENT_METRICS_CONFIGS
from tpc_broker.metadata.config_types import ConfigDefinition, ConfigSource, ConfigType, python_name, to_text
from tpc_broker.metadata.group_config import GROUP_CONFIGS
from tpc_broker.metadata.topic_config import TOPIC_CONFIGS

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


def describe_group(
    own: Mapping[str, str], broker: BrokerConfiguration, names: Collection[str] | None = None
) -> list[ConfigEntry]:
    """All settings of a group, which has set `own`, or those in `names`; as they were set, obeyed within bounds."""
    entries = []
    for name, definition in GROUP_CONFIGS.items():
        if names is not None and name not in names:
            continue
        place = definition.synonyms[0].name
        default = to_text(definition.default)
        if place in BROKER_CONFIGS:
            default = to_text(getattr(broker.settings, python_name(place)))
            synonyms = list(_server_synonyms(broker, [place]))
        else:
            synonyms = [ConfigSynonym(place, default, ConfigSource.DEFAULT_CONFIG)]
        if name in own:
            synonyms.insert(0, ConfigSynonym(name, own[name], ConfigSource.DYNAMIC_GROUP_CONFIG))
        entries.append(_entry(definition, own.get(name, default), synonyms, read_only=False))
    return entries


def describe_client_metrics(own: Mapping[str, str], names: Collection[str] | None = None) -> list[ConfigEntry]:
    """The same of a subscription to metrics of clients, of which `own` was set."""
    source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
    return [
        _entry(
            definition,
            own.get(name, to_text(definition.default)),
            [ConfigSynonym(name, own[name], source)] if name in own else [],
            read_only=False,
        )
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
