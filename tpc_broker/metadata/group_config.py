"""Settings of groups: the broker's, for the consumer protocol of KIP-848, and those that a group sets for itself.

The broker's bounds (`group.consumer.min.*`, `group.consumer.max.*`) are fixed at its start, as most of them; the
interval between assignments alone can be altered while it runs. A group's settings have to be within the bounds when
they are set. They are shown as they were set, and obeyed within the bounds of whoever obeys them.

Settings of share groups and streams groups are shown with their defaults. None can be set, since nothing here would
obey it: there are no such groups.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from tpc_broker.metadata.config_types import (
    INT_MAX,
    ConfigDefinition,
    ConfigError,
    ConfigType,
    ConfigValue,
    ServerSynonym,
    setting,
    to_text,
)
from tpc_broker.metadata.replica_config import ReplicaSettings

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from tpc_broker.metadata.image import ClusterImage

_NOTHING: Mapping[str, str] = MappingProxyType({})
CONSUMER_ASSIGNORS: Final = ("uniform", "range")
MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")
CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"
REBALANCE_PROTOCOLS: Final = (CLASSIC, CONSUMER, "share", "streams")
"""Kafka's; `share` and `streams` are taken, and there is nothing yet that they would switch on."""
_BOUNDED: Final = ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
"""In the order in which Kafka looks at them."""


def _check_not_empty(definition: ConfigDefinition, value: ConfigValue) -> None:
    if not value:
        raise ConfigError(f"Configuration '{definition.name}' must not be empty.")


def _check_protocols(definition: ConfigDefinition, value: ConfigValue) -> None:
    _check_not_empty(definition, value)
    if isinstance(value, tuple) and CLASSIC not in value:
        raise ConfigError(f"{definition.name}: disabling the '{CLASSIC}' protocol is not supported.")


def _duration(name: str, default: int, doc: str, minimum: int = 1, **details: Any) -> Any:
    return setting(f"group.consumer.{name}", ConfigType.INT, default, doc, minimum=minimum, **details)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings(ReplicaSettings):
    """As `broker_config.Settings`."""

    group_coordinator_rebalance_protocols: tuple[str, ...] = setting(
        "group.coordinator.rebalance.protocols",
        ConfigType.LIST,
        (CLASSIC, CONSUMER),
        "Protocols by which groups are served: `classic` always, `consumer` (KIP-848) unless it is left out.",
        valid=REBALANCE_PROTOCOLS,
        check=_check_protocols,
    )
    group_consumer_session_timeout_ms: int = _duration(
        "session.timeout.ms", 45_000, "After it a silent member of a consumer group is out."
    )
    group_consumer_min_session_timeout_ms: int = _duration(
        "min.session.timeout.ms", 45_000, "Shortest session time-out of a consumer group that sets its own."
    )
    group_consumer_max_session_timeout_ms: int = _duration(
        "max.session.timeout.ms", 60_000, "Longest session time-out of a consumer group that sets its own."
    )
    group_consumer_heartbeat_interval_ms: int = _duration(
        "heartbeat.interval.ms", 5000, "What members of a consumer group are told to wait between heartbeats."
    )
    group_consumer_min_heartbeat_interval_ms: int = _duration(
        "min.heartbeat.interval.ms", 5000, "Shortest heartbeat interval of a consumer group that sets its own."
    )
    group_consumer_max_heartbeat_interval_ms: int = _duration(
        "max.heartbeat.interval.ms", 15_000, "Longest heartbeat interval of a consumer group that sets its own."
    )
    group_consumer_assignment_interval_ms: int = _duration(
        "assignment.interval.ms",
        1000,
        "Time between assignments of a consumer group; it is held within its bounds.",
        minimum=0,
        dynamic=True,
    )
    group_consumer_min_assignment_interval_ms: int = _duration(
        "min.assignment.interval.ms", 0, "Shortest time between assignments of a consumer group.", minimum=0
    )
    group_consumer_max_assignment_interval_ms: int = _duration(
        "max.assignment.interval.ms", 15_000, "Longest time between assignments of a consumer group.", minimum=0
    )
    group_consumer_regex_refresh_interval_ms: int = _duration(
        "regex.refresh.interval.ms",
        600_000,
        "How often the topics are looked up anew that regular expressions of a consumer group match.",
        minimum=10_000,
    )
    group_consumer_max_size: int = setting(
        "group.consumer.max.size", ConfigType.INT, INT_MAX, "Members of a consumer group, at most.", minimum=1
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        "group.consumer.assignors",
        ConfigType.LIST,
        CONSUMER_ASSIGNORS,
        "What assigns the partitions of consumer groups here; the first one is taken where a group names none.",
        valid=CONSUMER_ASSIGNORS,
        check=_check_not_empty,
    )
    group_consumer_migration_policy: str = setting(
        "group.consumer.migration.policy",
        ConfigType.STRING,
        "bidirectional",
        "Whether a group with members changes its protocol: from classic to consumer (`upgrade`), back (`downgrade`).",
        valid=MIGRATION_POLICIES,
        any_case=True,
    )


NOT_SETTABLE: Final = "it cannot be set, because this broker has no such groups, which would obey it."
_GROUP_ROWS: Final[tuple[tuple[str, ConfigType, ConfigValue, str], ...]] = (
    ("consumer.assignment.interval.ms", ConfigType.INT, 1000, "Time between assignments of a consumer group."),
    ("consumer.heartbeat.interval.ms", ConfigType.INT, 5000, "What members of a consumer group are told."),
    ("consumer.session.timeout.ms", ConfigType.INT, 45_000, "After it a silent member of a consumer group is out."),
    ("share.assignment.interval.ms", ConfigType.INT, 1000, "Time between assignments of a share group."),
    ("share.auto.offset.reset", ConfigType.STRING, "latest", "Where a share group begins in a partition."),
    ("share.delivery.count.limit", ConfigType.INT, 5, "How often a record is given to a share group."),
    ("share.heartbeat.interval.ms", ConfigType.INT, 5000, "What members of a share group are told."),
    ("share.isolation.level", ConfigType.STRING, "read_uncommitted", "What a share group reads of transactions."),
    ("share.partition.max.record.locks", ConfigType.INT, 2000, "Records of a partition under way in a share group."),
    ("share.record.lock.duration.ms", ConfigType.INT, 30_000, "How long a record is kept for one member."),
    ("share.renew.acknowledge.enable", ConfigType.BOOLEAN, True, "Whether members may keep a record for longer."),
    ("share.session.timeout.ms", ConfigType.INT, 45_000, "After it a silent member of a share group is out."),
    ("streams.assignment.interval.ms", ConfigType.INT, 1000, "Time between assignments of a streams group."),
    ("streams.heartbeat.interval.ms", ConfigType.INT, 5000, "What members of a streams group are told."),
    ("streams.initial.rebalance.delay.ms", ConfigType.INT, 3000, "How long a new streams group waits for members."),
    ("streams.num.standby.replicas", ConfigType.INT, 0, "Standby replicas of each task."),
    ("streams.session.timeout.ms", ConfigType.INT, 45_000, "After it a silent member of a streams group is out."),
)
_WITHOUT_BROKER_SETTING: Final = frozenset(
    ("share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable")
)


def _of_group(name: str, type_: ConfigType, default: ConfigValue, doc: str) -> ConfigDefinition:
    place = name if name in _WITHOUT_BROKER_SETTING else f"group.{name}"
    least = 0 if name == "consumer.assignment.interval.ms" else 1
    return ConfigDefinition(
        name=name, type=type_, default=default, doc=doc, synonyms=(ServerSynonym(place),),
        minimum=least if name.startswith("consumer.") else None,
    )  # fmt: skip


GROUP_CONFIGS: Final[Mapping[str, ConfigDefinition]] = {row[0]: _of_group(*row) for row in _GROUP_ROWS}


def validate_group_configs(wanted: Mapping[str, str], settings: GroupSettings) -> dict[str, str]:
    """The canonical texts of all that would be set of a group; ConfigError, in Kafka's order and words."""
    for name in wanted:
        if name not in GROUP_CONFIGS:
            raise ConfigError(f"Unknown group config name: {name}")
    for name in wanted:
        if not name.startswith("consumer."):
            raise ConfigError(f"{name}: {NOT_SETTABLE}")
    values = {name: GROUP_CONFIGS[name].read(text) for name, text in wanted.items()}
    for what in _BOUNDED:
        value, (low, high) = values.get(f"consumer.{what}"), bounds_of(settings, what)
        if isinstance(value, int) and value < low:
            raise ConfigError(f"consumer.{what} must be greater than or equal to group.consumer.min.{what}")
        if isinstance(value, int) and value > high:
            raise ConfigError(f"consumer.{what} must be less than or equal to group.consumer.max.{what}")
    session = values.get("consumer.session.timeout.ms", settings.group_consumer_session_timeout_ms)
    heartbeat = values.get("consumer.heartbeat.interval.ms", settings.group_consumer_heartbeat_interval_ms)
    if isinstance(session, int) and isinstance(heartbeat, int) and session <= heartbeat:
        raise ConfigError("consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms")
    return {name: to_text(value) or "" for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSettings:
    """What a coordinator obeys for one group: what the group sets itself, and for the rest what the broker has."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int
    regex_refresh_interval_ms: int
    members_max: int
    assignors: tuple[str, ...]
    """The first one is taken where no member names one."""
    migration_policy: str


def consumer_group_settings(settings: GroupSettings, image: ClusterImage, group_id: str) -> ConsumerGroupSettings:
    """Of a consumer group, whether it is there or not. Times are within the broker's bounds of now, whatever they were
    when the group's own were set.
    """
    own = image.group_configs.get(group_id, _NOTHING)
    session_ms = _effective(settings, own, "session.timeout.ms")
    heartbeat_ms = _effective(settings, own, "heartbeat.interval.ms")
    if heartbeat_ms >= session_ms:  # within the bounds of now each, and not beside each other
        session_ms = settings.group_consumer_session_timeout_ms
        heartbeat_ms = settings.group_consumer_heartbeat_interval_ms
    return ConsumerGroupSettings(
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=heartbeat_ms,
        assignment_interval_ms=_effective(settings, own, "assignment.interval.ms"),
        regex_refresh_interval_ms=settings.group_consumer_regex_refresh_interval_ms,
        members_max=settings.group_consumer_max_size,
        assignors=settings.group_consumer_assignors,
        migration_policy=settings.group_consumer_migration_policy,
    )


def serves_consumer_groups(settings: GroupSettings, image: ClusterImage) -> bool:
    """Whether groups of KIP-848 may be served now: by the level of what nodes write, and by the broker's setting."""
    return CONSUMER in settings.group_coordinator_rebalance_protocols and image.knows_consumer_groups


def _effective(settings: GroupSettings, own: Mapping[str, str], what: str) -> int:
    value: ConfigValue = _of_broker(settings, what)
    name = f"consumer.{what}"
    if name in own:
        with suppress(ConfigError):  # another release may have taken a text that is none here
            value = GROUP_CONFIGS[name].read(own[name])
    assert isinstance(value, int), (name, value)
    low, high = bounds_of(settings, what)
    return min(max(value, low), high)


def bounds_of(settings: GroupSettings, what: str) -> tuple[int, int]:
    """The least and the most that one of `_BOUNDED` may be, in a consumer group."""
    field = what.replace(".", "_")
    return getattr(settings, f"group_consumer_min_{field}"), getattr(settings, f"group_consumer_max_{field}")


def _of_broker(settings: GroupSettings, what: str) -> int:
    value: int = getattr(settings, f"group_consumer_{what.replace('.', '_')}")
    return value


def group_fault(settings: GroupSettings) -> str | None:
    """What is wrong with the settings of consumer groups together, of those that are fixed at the start."""
    return next(_faults(settings), None)


def altered_group_fault(settings: GroupSettings, asked: Collection[str]) -> str | None:
    """The same of what somebody asks for. What was stored under other bounds is only held within them."""
    names = [f"group.consumer.{bound}assignment.interval.ms" for bound in ("", "min.", "max.")]
    if not any(name in asked for name in names):
        return None
    return next(_outside(settings, "assignment.interval.ms"), None)


def _faults(settings: GroupSettings) -> Iterator[str]:
    for what in _BOUNDED:
        low, high = bounds_of(settings, what)
        if low > high:
            yield f"group.consumer.min.{what} ({low}) must not be above group.consumer.max.{what} ({high})"
    yield from _outside(settings, "session.timeout.ms")
    yield from _outside(settings, "heartbeat.interval.ms")
    heartbeat, session = settings.group_consumer_heartbeat_interval_ms, settings.group_consumer_session_timeout_ms
    if heartbeat >= session:
        yield (
            f"group.consumer.heartbeat.interval.ms ({heartbeat}) must be below "
            f"group.consumer.session.timeout.ms ({session})"
        )


def _outside(settings: GroupSettings, what: str) -> Iterator[str]:
    low, high = bounds_of(settings, what)
    value = _of_broker(settings, what)
    if value < low:
        yield f"group.consumer.{what} ({value}) must not be below group.consumer.min.{what} ({low})"
    if value > high:
        yield f"group.consumer.{what} ({value}) must not be above group.consumer.max.{what} ({high})"
