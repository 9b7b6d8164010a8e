"""The settings of groups and of subscriptions to client metrics, as Kafka 4.3 has them: shown with their defaults.

None can be set, since nothing here would obey it: the groups that they are for (KIP-848, share groups, streams groups)
and client metrics (KIP-714) are not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.metadata.config_types import ConfigDefinition, ConfigType, ConfigValue, ServerSynonym

if TYPE_CHECKING:
    from collections.abc import Mapping

NOT_SETTABLE: Final = "it cannot be set, because this broker has nothing that would obey it yet."

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
    return ConfigDefinition(name=name, type=type_, default=default, doc=doc, synonyms=(ServerSynonym(place),))


GROUP_CONFIGS: Final[Mapping[str, ConfigDefinition]] = {row[0]: _of_group(*row) for row in _GROUP_ROWS}
CLIENT_METRICS_CONFIGS: Final[Mapping[str, ConfigDefinition]] = {
    row.name: row
    for row in (
        ConfigDefinition(
            name="interval.ms", type=ConfigType.INT, default=300_000, doc="Time between two pushes of a client."
        ),
        ConfigDefinition(name="match", type=ConfigType.LIST, default=(), doc="Which clients are asked."),
        ConfigDefinition(name="metrics", type=ConfigType.LIST, default=(), doc="Beginnings of the names of metrics."),
    )
}
