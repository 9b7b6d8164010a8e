"""Settings of a cluster's replicas: how many there are, where they go by themselves, and who leads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tpc_broker.metadata.cleaner_settings import CleanerSettings
from tpc_broker.metadata.config_types import ConfigType, setting

LEADER_SELECTOR: Final = "org.apache.kafka.common.replica.LeaderSelector"
RACK_AWARE_SELECTOR: Final = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
REPLICA_SELECTORS: Final = (LEADER_SELECTOR, RACK_AWARE_SELECTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings(CleanerSettings):
    """As `broker_config.Settings`."""

    auto_leader_rebalance_enable: bool = setting(
        "auto.leader.rebalance.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether leaderships go back to the preferred replicas by themselves.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        "leader.imbalance.check.interval.seconds",
        ConfigType.LONG,
        300,
        "Between two looks at whether leaders are those that are preferred.",
        minimum=1,
    )
    leader_imbalance_per_broker_percentage: int = setting(
        "leader.imbalance.per.broker.percentage",
        ConfigType.INT,
        10,
        "Share of the partitions that a node should lead that others may; with more they are handed over.",
        minimum=0,
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether a node that is stopped has others lead first what it leads.",
    )
    default_replication_factor: int = setting(
        "default.replication.factor",
        ConfigType.INT,
        1,
        "Replicas of a topic that is made without naming a number.",
        minimum=1,
    )
    replica_selector_class: str | None = setting(
        "replica.selector.class",
        ConfigType.STRING,
        None,
        "Whether consumers with a client.rack read from a replica in their rack (RackAwareReplicaSelector).",
        valid=REPLICA_SELECTORS,
    )
    replica_move_bytes_per_second: int = setting(
        "replica.move.bytes.per.second",
        ConfigType.LONG,
        1 << 30,
        "Ours. Bytes a second that a broker fetches of segments to fill its replicas, on the average.",
        minimum=1 << 20,
        dynamic=True,
    )
    replica_moves_per_node: int = setting(
        "replica.moves.per.node",
        ConfigType.INT,
        8,
        "Ours. Replicas that a node gets from others at a time, while partitions move.",
        minimum=1,
        dynamic=True,
    )
    replica_moves_paused: bool = setting(
        "replica.moves.paused",
        ConfigType.BOOLEAN,
        False,
        "Ours. Whether no replica is moved to another node; what is in its last steps is finished.",
        dynamic=True,
    )
    replica_balance_enable: bool = setting(
        "replica.balance.enable",
        ConfigType.BOOLEAN,
        True,
        "Ours. Whether replicas move to nodes that hold fewer, as to one that joins.",
        dynamic=True,
    )
    replica_replace_delay_ms: int = setting(
        "replica.replace.delay.ms",
        ConfigType.LONG,
        600_000,
        "Ours. A node that is silent for so long gets its replicas replaced by others, on other nodes.",
        minimum=1000,
        dynamic=True,
    )
