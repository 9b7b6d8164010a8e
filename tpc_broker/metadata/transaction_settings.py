"""Settings of transactions, and of the ids under which producers have them. They act from the feature level on that has
transactions.
"""

from __future__ import annotations

from dataclasses import dataclass

from tpc_broker.metadata.access_settings import AccessSettings
from tpc_broker.metadata.config_types import ConfigType, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings(AccessSettings):
    """Kafka's, but for the last two, and the size of segments."""

    transaction_max_timeout_ms: int = setting(
        "transaction.max.timeout.ms", ConfigType.INT, 900_000, "Longest time-out of a transaction.", minimum=1
    )
    transaction_state_log_num_partitions: int = setting(
        "transaction.state.log.num.partitions",
        ConfigType.INT,
        50,
        "Partitions of __transaction_state; not to be changed once the topic exists.",
        minimum=1,
    )
    transaction_state_log_replication_factor: int = setting(
        "transaction.state.log.replication.factor",
        ConfigType.SHORT,
        3,
        "Replicas of __transaction_state, where there are so many nodes when it is made.",
        minimum=1,
    )
    transaction_state_log_min_isr: int = setting(
        "transaction.state.log.min.isr",
        ConfigType.INT,
        2,
        "min.insync.replicas of __transaction_state; a majority of its replicas at most.",
        minimum=1,
    )
    transaction_state_log_segment_bytes: int = setting(
        "transaction.state.log.segment.bytes",
        ConfigType.INT,
        16 << 20,
        "segment.bytes of __transaction_state, when it is made. Kafka has 104857600.",
        minimum=1 << 20,
    )
    transactional_id_expiration_ms: int = setting(
        "transactional.id.expiration.ms",
        ConfigType.INT,
        604_800_000,
        "Time after which a transactional id that nobody uses is forgotten.",
        minimum=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        ConfigType.INT,
        3_600_000,
        "Between two looks for such ids.",
        minimum=1,
    )
    transactional_ids_max: int = setting(
        "transactional.ids.max",
        ConfigType.INT,
        100_000,
        "Ours. Transactional ids of one partition of __transaction_state; above it no new ones are taken.",
        minimum=1,
    )
    producer_states_bytes_max: int = setting(
        "producer.states.bytes.max",
        ConfigType.LONG,
        64 << 20,
        "Ours. Memory of a core for what it knows of producers, 192 bytes for each, and three to eight times as much "
        "for what goes into files of them; above it those that were silent for longest are forgotten, but for those "
        "that have a transaction open.",
        minimum=1 << 20,
    )
