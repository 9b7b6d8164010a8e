"""Settings of Kafka's that tune what this broker does in another way or not at all: accepted, shown, without effect.

Files and tools set them on every broker, and refusing them would stop a start for nothing: none of them promises
anything about the data. Names, types, defaults and ranges are Kafka's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpc_broker.metadata.config_types import LONG_MAX, ConfigStatus, ConfigType, ConfigValue, setting

_ONE_PROCESS = "One process per core does everything (--cores)."
_NO_FOLLOWERS = "A partition has one replica on a node."
_OWN_BUDGET = "replica.move.bytes.per.second bounds what fills replicas, at all times."
_OWN_PAUSES = "After a failure the keys are asked for again after one second, later after one minute."
DOUBLE_MAX = 1.7976931348623157e308


def _ignored(name: str, kind: ConfigType, default: ConfigValue, why: str, **details: Any) -> Any:
    return setting(name, kind, default, why, status=ConfigStatus.STORED_ONLY, **details)


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredSettings:
    """Values that nobody reads."""

    background_threads: int = _ignored(
        "background.threads", ConfigType.INT, 10, _ONE_PROCESS, minimum=1, dynamic=True
    )
    num_io_threads: int = _ignored("num.io.threads", ConfigType.INT, 8, _ONE_PROCESS, minimum=1, dynamic=True)
    num_network_threads: int = _ignored("num.network.threads", ConfigType.INT, 3, _ONE_PROCESS, minimum=1, dynamic=True)
    num_recovery_threads_per_data_dir: int = _ignored(
        "num.recovery.threads.per.data.dir",
        ConfigType.INT,
        2,
        "Recovery replays a journal and scans no segments.",
        minimum=1,
        dynamic=True,
    )
    num_replica_fetchers: int = _ignored("num.replica.fetchers", ConfigType.INT, 1, _NO_FOLLOWERS, dynamic=True)
    queued_max_requests: int = _ignored(
        "queued.max.requests", ConfigType.INT, 500, "Requests wait in their connections.", minimum=1
    )

    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = _ignored(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms", ConfigType.LONG, 100, _OWN_PAUSES
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = _ignored(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms", ConfigType.LONG, 10_000, _OWN_PAUSES
    )
    sasl_oauthbearer_scope_claim_name: str = _ignored(
        "sasl.oauthbearer.scope.claim.name", ConfigType.STRING, "scope", "What a token may do is said by rules alone."
    )

    log_cleaner_io_buffer_load_factor: float = _ignored(
        "log.cleaner.io.buffer.load.factor",
        ConfigType.DOUBLE,
        0.9,
        "The cleaner's table of keys is as full as it is fast with.",
        dynamic=True,
    )
    log_cleaner_io_buffer_size: int = _ignored(
        "log.cleaner.io.buffer.size",
        ConfigType.INT,
        512 << 10,
        "A cleaner reads pieces of 4 MiB.",
        minimum=0,
        dynamic=True,
    )
    log_flush_scheduler_interval_ms: int = _ignored(
        "log.flush.scheduler.interval.ms", ConfigType.LONG, LONG_MAX, "The journal makes records durable at once."
    )
    log_flush_offset_checkpoint_interval_ms: int = _ignored(
        "log.flush.offset.checkpoint.interval.ms", ConfigType.INT, 60_000, "Checkpoints follow the journal.", minimum=0
    )
    log_flush_start_offset_checkpoint_interval_ms: int = _ignored(
        "log.flush.start.offset.checkpoint.interval.ms", ConfigType.INT, 60_000, "It is journalled.", minimum=0
    )

    leader_replication_throttled_rate: int = _ignored(
        "leader.replication.throttled.rate", ConfigType.LONG, LONG_MAX, _OWN_BUDGET, minimum=0, dynamic=True
    )
    follower_replication_throttled_rate: int = _ignored(
        "follower.replication.throttled.rate", ConfigType.LONG, LONG_MAX, _OWN_BUDGET, minimum=0, dynamic=True
    )
    replica_fetch_max_bytes: int = _ignored("replica.fetch.max.bytes", ConfigType.INT, 1 << 20, _NO_FOLLOWERS)
    replica_lag_time_max_ms: int = _ignored("replica.lag.time.max.ms", ConfigType.LONG, 30_000, _NO_FOLLOWERS)
    replica_socket_timeout_ms: int = _ignored("replica.socket.timeout.ms", ConfigType.INT, 30_000, _NO_FOLLOWERS)

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = _ignored(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        ConfigType.INT,
        10_000,
        "A transaction is aborted when its time is over, and not at the next look.",
        minimum=1,
    )
    transaction_partition_verification_enable: bool = _ignored(
        "transaction.partition.verification.enable",
        ConfigType.BOOLEAN,
        default=True,
        why="What a batch is part of is always verified: a transaction without its coordinator would hang.",
        dynamic=True,
    )
    transaction_state_log_load_buffer_size: int = _ignored(
        "transaction.state.log.load.buffer.size",
        ConfigType.INT,
        5 << 20,
        "It is read by mebibytes.",
        minimum=1,
    )
