"""The broker's settings: one table for the file, `--override`, DescribeConfigs and the code that reads them.

Settings that Kafka has carry Kafka's names, types, ranges, and defaults but where the documentation says so; ours are
marked there. Names
that are in neither are refused, with close matches, and those of Kafka that cannot mean anything here with the reason.
`Settings` is the table and the record of values; `tpc_broker.metadata.settings` reads it from text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tpc_broker import limits
from tpc_broker.metadata.config_types import (
    INT_MAX,
    LONG_MAX,
    ConfigDefinition,
    ConfigError,
    ConfigStatus,
    ConfigType,
    definitions_of,
    setting,
    unknown_name,
)
from tpc_broker.metadata.quota_settings import QuotaSettings
from tpc_broker.metadata.topic_config import (
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    DURABILITIES,
    NO_COMPRESSION,
    TIMESTAMP_TYPES,
    TopicConfig,
)
from tpc_broker.model import NODE_ID_MAX
from tpc_broker.task_queue import SHARES_DEFAULT, SHARES_MAX, SHARES_MIN, TaskQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

_STORED: Final = ConfigStatus.STORED_ONLY
_HOUR_MS: Final = 60 * 60 * 1000
_MINUTE_MS: Final = 60 * 1000
_FALL_BACK: Final = "What a topic has that does not set its own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(QuotaSettings):
    """Values of every broker setting, by their Python names."""

    # The node and how it is reached.
    node_id: int = setting(
        "node.id",
        ConfigType.INT,
        0,
        "Number of this machine in the cluster; its cores show as node.id*1024+core.",
        minimum=0,
        maximum=NODE_ID_MAX,
    )
    broker_rack: str | None = setting(
        "broker.rack", ConfigType.STRING, None, "Rack of this node, the same for all its cores."
    )
    cluster_links_encryption: str = setting(
        "cluster.links.encryption",
        ConfigType.STRING,
        "auto",
        "Ours. TLS on links between nodes, by keys that the cluster's secret gives: `auto` (with every node that can), "
        "`required` (others are refused), or `off`.",
        valid=("auto", "required", "off"),
    )
    node_draining: bool = setting(
        "node.draining",
        ConfigType.BOOLEAN,
        False,
        "Ours. Of a node's first broker (`tpc node drain`): the node gets nothing new, and hands over what it leads.",
        dynamic=True,
    )
    listeners: tuple[str, ...] = setting(
        "listeners",
        ConfigType.LIST,
        ("PLAINTEXT://:9092",),
        "Where clients are awaited, as NAME://HOST:PORT; shown is where this core answers.",
    )
    advertised_listeners: tuple[str, ...] | None = setting(
        "advertised.listeners",
        ConfigType.LIST,
        None,
        "What clients of each listener are told; shown is what they are told of this core.",
    )
    ebpf_loader: str = setting(
        "ebpf.loader",
        ConfigType.STRING,
        "auto",
        "Ours. What loads the kernel's programs: `bcc`, `libbpf`, `auto` (the first that works), or `off`.",
        valid=("auto", "bcc", "libbpf", "off"),
    )
    ring_backend: str = setting(
        "ring.backend",
        ConfigType.STRING,
        "auto",
        "Ours. `io_uring` (refused where there is none), `plain` (without it), or `auto` (io_uring where it is there).",
        valid=("auto", "io_uring", "plain"),
    )
    cpu_shares_clients: int = setting(
        "cpu.shares.clients",
        ConfigType.INT,
        SHARES_DEFAULT[TaskQueue.CLIENTS],
        "Ours. Of a core's CPU time while others want it too: requests and all that C does.",
        minimum=SHARES_MIN,
        maximum=SHARES_MAX,
        dynamic=True,
    )
    cpu_shares_replication: int = setting(
        "cpu.shares.replication",
        ConfigType.INT,
        SHARES_DEFAULT[TaskQueue.REPLICATION],
        "Ours. Of a core's CPU time while others want it too: replication.",
        minimum=SHARES_MIN,
        maximum=SHARES_MAX,
        dynamic=True,
    )
    cpu_shares_coordinators: int = setting(
        "cpu.shares.coordinators",
        ConfigType.INT,
        SHARES_DEFAULT[TaskQueue.COORDINATORS],
        "Ours. Of a core's CPU time while others want it too: groups.",
        minimum=SHARES_MIN,
        maximum=SHARES_MAX,
        dynamic=True,
    )
    cpu_shares_maintenance: int = setting(
        "cpu.shares.maintenance",
        ConfigType.INT,
        SHARES_DEFAULT[TaskQueue.MAINTENANCE],
        "Ours. Of a core's CPU time while others want it too: write-behind, checkpoints and disk space.",
        minimum=SHARES_MIN,
        maximum=SHARES_MAX,
        dynamic=True,
    )
    cpu_shares_background: int = setting(
        "cpu.shares.background",
        ConfigType.INT,
        SHARES_DEFAULT[TaskQueue.BACKGROUND],
        "Ours. Of a core's CPU time while others want it too: retention and other work that nobody waits for.",
        minimum=SHARES_MIN,
        maximum=SHARES_MAX,
        dynamic=True,
    )
    core_rebalance_enable: bool = setting(
        "core.rebalance.enable",
        ConfigType.BOOLEAN,
        False,
        "Ours. Whether a node moves partitions by itself, so that its cores have about the same to do.",
        dynamic=True,
    )
    core_rebalance_interval_ms: int = setting(
        "core.rebalance.interval.ms",
        ConfigType.LONG,
        _MINUTE_MS,
        "Ours. For how long it is measured what partitions cost their cores, again and again.",
        minimum=1000,
        dynamic=True,
    )
    core_rebalance_cooldown_ms: int = setting(
        "core.rebalance.cooldown.ms",
        ConfigType.LONG,
        10 * _MINUTE_MS,
        "Ours. After partitions were moved to even the cores out, no others are for so long.",
        minimum=0,
        dynamic=True,
    )
    datagram_acknowledge: bool = setting(
        "datagram.acknowledge",
        ConfigType.BOOLEAN,
        True,
        "Ours. Whether who sends a datagram and asks for an answer gets one; anybody can write a sender's address.",
        dynamic=True,
    )
    max_connections: int = setting(
        "max.connections",
        ConfigType.INT,
        INT_MAX,
        "Connections a core holds at most; never more than its descriptors allow.",
        minimum=0,
        settable_from=limits.CONNECTIONS_MIN,
        dynamic=True,
    )
    max_connections_per_ip: int = setting(
        "max.connections.per.ip",
        ConfigType.INT,
        INT_MAX,
        "Connections of one address a core holds at most.",
        minimum=0,
        settable_from=limits.CONNECTIONS_PER_IP_MIN,
        dynamic=True,
    )
    connections_max_idle_ms: int = setting(
        "connections.max.idle.ms",
        ConfigType.LONG,
        600_000,
        "Time after which a silent connection is closed; -1: never.",
        minimum=-1,
    )
    socket_request_max_bytes: int = setting(
        "socket.request.max.bytes",
        ConfigType.INT,
        limits.REQUEST_BYTES_MAX,
        "Largest request, in bytes after its length field.",
        minimum=1,
    )
    socket_listen_backlog_size: int = setting(
        "socket.listen.backlog.size",
        ConfigType.INT,
        50,
        "Connections the kernel holds until they are accepted.",
        minimum=1,
    )
    socket_receive_buffer_bytes: int = setting(
        "socket.receive.buffer.bytes",
        ConfigType.INT,
        102_400,
        "Kernel buffer for receiving; -1: the kernel's default.",
        minimum=-1,
    )
    socket_send_buffer_bytes: int = setting(
        "socket.send.buffer.bytes",
        ConfigType.INT,
        102_400,
        "Kernel buffer for sending; -1: the kernel's default.",
        minimum=-1,
    )
    fetch_max_bytes: int = setting(
        "fetch.max.bytes",
        ConfigType.INT,
        55 << 20,
        "Most bytes a fetch response carries, whatever is asked.",
        minimum=1024,
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        "max.incremental.fetch.session.cache.slots", ConfigType.INT, 1000, "Fetch sessions a core remembers.", minimum=0
    )

    # Topics.
    num_partitions: int = setting(
        "num.partitions", ConfigType.INT, 1, "Partitions of a topic that is made without naming a number.", minimum=1
    )
    replication_factor_excess: str = setting(
        "replication_factor_excess",
        ConfigType.STRING,
        "refuse",
        "Ours. With more replicas asked for than there are nodes: `refuse`, or `clamp` to the nodes there are.",
        valid=("refuse", "clamp"),
        dynamic=True,
    )
    auto_create_topics_enable: bool = setting(
        "auto.create.topics.enable",
        ConfigType.BOOLEAN,
        True,
        "Whether asking for a topic that does not exist makes it.",
    )
    delete_topic_enable: bool = setting(
        "delete.topic.enable", ConfigType.BOOLEAN, True, "Whether topics can be deleted."
    )
    partitions_max: int = setting(
        "partitions.max",
        ConfigType.INT,
        100_000,
        "Ours. Partitions of all topics together, at most.",
        minimum=1,
        dynamic=True,
    )

    # What topics fall back to.
    compression_type: str = setting(
        "compression.type",
        ConfigType.STRING,
        "producer",
        NO_COMPRESSION,
        status=ConfigStatus.REFUSED,
        valid=COMPRESSION_TYPES,
        dynamic=True,
    )
    compression_gzip_level: int = setting(
        "compression.gzip.level",
        ConfigType.INT,
        -1,
        f"{_FALL_BACK} level.",
        status=_STORED,
        minimum=1,
        maximum=9,
        exception=-1,
        dynamic=True,
    )
    compression_lz4_level: int = setting(
        "compression.lz4.level",
        ConfigType.INT,
        9,
        f"{_FALL_BACK} level.",
        status=_STORED,
        minimum=1,
        maximum=17,
        dynamic=True,
    )
    compression_zstd_level: int = setting(
        "compression.zstd.level",
        ConfigType.INT,
        3,
        f"{_FALL_BACK} level.",
        status=_STORED,
        minimum=-131072,
        maximum=22,
        dynamic=True,
    )
    durability_default: str = setting(
        "durability.default",
        ConfigType.STRING,
        "durable",
        f"Ours. {_FALL_BACK} durability; internal topics are always durable.",
        valid=DURABILITIES,
        dynamic=True,
    )
    log_cleaner_delete_retention_ms: int = setting(
        "log.cleaner.delete.retention.ms",
        ConfigType.LONG,
        24 * _HOUR_MS,
        f"{_FALL_BACK} delete.retention.ms.",
        minimum=0,
        dynamic=True,
    )
    log_cleaner_max_compaction_lag_ms: int = setting(
        "log.cleaner.max.compaction.lag.ms",
        ConfigType.LONG,
        LONG_MAX,
        f"{_FALL_BACK} max.compaction.lag.ms.",
        minimum=1,
        dynamic=True,
    )
    log_cleaner_min_cleanable_ratio: float = setting(
        "log.cleaner.min.cleanable.ratio",
        ConfigType.DOUBLE,
        0.5,
        f"{_FALL_BACK} min.cleanable.dirty.ratio.",
        minimum=0,
        maximum=1,
        dynamic=True,
    )
    log_cleaner_min_compaction_lag_ms: int = setting(
        "log.cleaner.min.compaction.lag.ms",
        ConfigType.LONG,
        0,
        f"{_FALL_BACK} min.compaction.lag.ms.",
        minimum=0,
        dynamic=True,
    )
    log_cleanup_policy: tuple[str, ...] = setting(
        "log.cleanup.policy",
        ConfigType.LIST,
        ("delete",),
        f"{_FALL_BACK} cleanup.policy.",
        valid=CLEANUP_POLICIES,
        dynamic=True,
    )
    log_flush_interval_messages: int = setting(
        "log.flush.interval.messages",
        ConfigType.LONG,
        LONG_MAX,
        f"{_FALL_BACK} flush.messages.",
        status=_STORED,
        minimum=1,
        dynamic=True,
    )
    log_flush_interval_ms: int | None = setting(
        "log.flush.interval.ms",
        ConfigType.LONG,
        None,
        f"{_FALL_BACK} flush.ms.",
        status=_STORED,
        dynamic=True,
    )
    log_flush_scheduler_interval_ms: int = setting(
        "log.flush.scheduler.interval.ms", ConfigType.LONG, LONG_MAX, f"{_FALL_BACK} flush.ms.", status=_STORED
    )
    log_index_interval_bytes: int = setting(
        "log.index.interval.bytes", ConfigType.INT, 4096, f"{_FALL_BACK} index.interval.bytes.", minimum=0, dynamic=True
    )
    log_index_size_max_bytes: int = setting(
        "log.index.size.max.bytes",
        ConfigType.INT,
        10 << 20,
        f"{_FALL_BACK} segment.index.bytes.",
        minimum=4,
        dynamic=True,
    )
    log_local_retention_bytes: int = setting(
        "log.local.retention.bytes",
        ConfigType.LONG,
        -2,
        f"{_FALL_BACK} local.retention.bytes.",
        status=_STORED,
        minimum=-2,
        dynamic=True,
    )
    log_local_retention_ms: int = setting(
        "log.local.retention.ms",
        ConfigType.LONG,
        -2,
        f"{_FALL_BACK} local.retention.ms.",
        status=_STORED,
        minimum=-2,
        dynamic=True,
    )
    log_message_timestamp_after_max_ms: int = setting(
        "log.message.timestamp.after.max.ms",
        ConfigType.LONG,
        _HOUR_MS,
        f"{_FALL_BACK} message.timestamp.after.max.ms.",
        minimum=0,
        dynamic=True,
    )
    log_message_timestamp_before_max_ms: int = setting(
        "log.message.timestamp.before.max.ms",
        ConfigType.LONG,
        LONG_MAX,
        f"{_FALL_BACK} message.timestamp.before.max.ms.",
        minimum=0,
        dynamic=True,
    )
    log_message_timestamp_type: str = setting(
        "log.message.timestamp.type",
        ConfigType.STRING,
        "CreateTime",
        f"{_FALL_BACK} message.timestamp.type.",
        valid=TIMESTAMP_TYPES,
        dynamic=True,
    )
    log_preallocate: bool = setting(
        "log.preallocate", ConfigType.BOOLEAN, False, f"{_FALL_BACK} preallocate.", status=_STORED, dynamic=True
    )
    log_retention_bytes: int = setting(
        "log.retention.bytes", ConfigType.LONG, -1, f"{_FALL_BACK} retention.bytes.", dynamic=True
    )
    log_retention_hours: int = setting(
        "log.retention.hours", ConfigType.INT, 168, f"{_FALL_BACK} retention.ms, in hours; -1: no limit.", minimum=-1
    )
    log_retention_minutes: int | None = setting(
        "log.retention.minutes",
        ConfigType.INT,
        None,
        f"{_FALL_BACK} retention.ms, in minutes; wins over hours.",
        minimum=-1,
    )
    log_retention_ms: int | None = setting(
        "log.retention.ms",
        ConfigType.LONG,
        None,
        f"{_FALL_BACK} retention.ms; wins over minutes and hours.",
        minimum=-1,
        dynamic=True,
    )
    log_retention_check_interval_ms: int = setting(
        "log.retention.check.interval.ms",
        ConfigType.LONG,
        300_000,
        "Time between two looks for segments to delete.",
        minimum=1,
    )
    log_roll_hours: int = setting(
        "log.roll.hours", ConfigType.INT, 168, f"{_FALL_BACK} segment.ms, in hours.", minimum=1
    )
    log_roll_ms: int | None = setting(
        "log.roll.ms",
        ConfigType.LONG,
        None,
        f"{_FALL_BACK} segment.ms; wins over hours.",
        minimum=1,
        dynamic=True,
    )
    log_roll_jitter_hours: int = setting(
        "log.roll.jitter.hours",
        ConfigType.INT,
        0,
        f"{_FALL_BACK} segment.jitter.ms, in hours.",
        status=_STORED,
        minimum=0,
    )
    log_roll_jitter_ms: int | None = setting(
        "log.roll.jitter.ms",
        ConfigType.LONG,
        None,
        f"{_FALL_BACK} segment.jitter.ms.",
        status=_STORED,
        minimum=0,
        dynamic=True,
    )
    log_segment_bytes: int = setting(
        "log.segment.bytes", ConfigType.INT, 1 << 30, f"{_FALL_BACK} segment.bytes.", minimum=1 << 20, dynamic=True
    )
    log_segment_delete_delay_ms: int = setting(
        "log.segment.delete.delay.ms",
        ConfigType.LONG,
        60_000,
        f"{_FALL_BACK} file.delete.delay.ms.",
        minimum=0,
        dynamic=True,
    )
    message_max_bytes: int = setting(
        "message.max.bytes", ConfigType.INT, 1_048_588, f"{_FALL_BACK} max.message.bytes.", minimum=0, dynamic=True
    )
    min_insync_replicas: int = setting(
        "min.insync.replicas", ConfigType.INT, 1, f"{_FALL_BACK} min.insync.replicas.", minimum=1, dynamic=True
    )
    unclean_leader_election_enable: bool = setting(
        "unclean.leader.election.enable",
        ConfigType.BOOLEAN,
        False,
        "A replica that lacks acknowledged records never leads: they would be lost.",
        status=ConfigStatus.REFUSED,
        dynamic=True,
    )

    # Groups and their offsets.
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        ConfigType.INT,
        50,
        "Partitions of __consumer_offsets; not to be changed once the topic exists.",
        minimum=1,
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        ConfigType.INT,
        16 << 20,
        "segment.bytes of __consumer_offsets, when it is made. Kafka has 104857600; what is in the last segment is not "
        "compacted, and each load reads it.",
        minimum=1 << 20,
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        ConfigType.INT,
        10_080,
        "Time after which an offset is forgotten, from when its group became empty or stopped using the topic.",
        minimum=1,
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        ConfigType.LONG,
        600_000,
        "Time between two looks for expired offsets.",
        minimum=1,
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        ConfigType.INT,
        4096,
        "Longest text that may be committed with an offset.",
        minimum=0,
    )
    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        ConfigType.INT,
        6000,
        "Shortest session time-out a member may ask for.",
        minimum=0,
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        ConfigType.INT,
        1_800_000,
        "Longest session time-out a member may ask for.",
        minimum=0,
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        ConfigType.INT,
        3000,
        "Wait for more members when a group starts empty.",
        minimum=0,
    )
    group_max_size: int = setting("group.max.size", ConfigType.INT, INT_MAX, "Members of a group, at most.", minimum=1)

    # Producers.
    producer_id_expiration_ms: int = setting(
        "producer.id.expiration.ms",
        ConfigType.INT,
        86_400_000,
        "Time after which a silent producer's sequences are forgotten.",
        minimum=1,
        dynamic=True,
    )

    telemetry_max_bytes: int = setting(
        "telemetry.max.bytes",
        ConfigType.INT,
        1 << 20,
        "Largest push of metrics by a client, in bytes as it was sent, and decompressed, then of 16 MiB at most.",
        minimum=1,
    )

    log_cache_max_bytes: int = setting(
        "log.cache.max.bytes",
        ConfigType.LONG,
        -1,
        "Ours. Memory of the node for records that are in segments already, so that readers who come a little late "
        "find them there; never more than half of what the machine has to spare. -1: that half.",
        minimum=-1,
    )

    # The journal.
    journal_bytes_max: int = setting(
        "journal.bytes.max",
        ConfigType.LONG,
        256 << 20,
        "Ours. What one core's journal may grow to from 8 MiB; all together at most 5 % of the file system.",
        minimum=4 << 20,
    )

    # Its end.
    drain_deadline_ms: int = setting(
        "drain.deadline.ms",
        ConfigType.LONG,
        limits.DRAIN_DEADLINE_MS,
        "Ours. How long an orderly stop may take; what is not done then is replayed at the next start.",
        minimum=limits.DRAIN_HURRIED_MS,
        maximum=limits.DRAIN_DEADLINE_MS_MAX,
    )


BROKER_CONFIGS: Final[Mapping[str, ConfigDefinition]] = definitions_of(Settings)

WITHOUT_MEANING: Final[Mapping[str, str]] = {
    "broker.id": "use node.id",
    "log.dir": "use --data",
    "log.dirs": "use --data",
    "port": "use --listen",
    "host.name": "use --listen",
    "process.roles": "a node is always both broker and controller",
    "controller.quorum.voters": "one node needs no quorum",
    "controller.quorum.bootstrap.servers": "one node needs no quorum",
    "controller.listener.names": "the controller has no listener of its own",
    "zookeeper.connect": "there is no ZooKeeper",
    "ssl.keystore.password": "the key store is PEM; the password of the key in it is ssl.key.password",
    "ssl.truststore.password": "the trust store is PEM, which has none",
    "inter.broker.listener.name": "nodes speak to each other at --cluster HOST:PORT",
    "security.inter.broker.protocol": "links between nodes are under TLS by --cluster-secret; cluster.links.encryption",
    "sasl.mechanism.inter.broker.protocol": "nodes prove --cluster-secret to each other",
    "offsets.topic.replication.factor": "the offsets topic has one replica per node",
}
"""Settings of Kafka's that many files contain and that cannot act here; refused with the reason."""


def broker_definition(name: str) -> ConfigDefinition:
    """The row of a broker setting; ConfigError for a name that is unknown or without meaning here."""
    definition = BROKER_CONFIGS.get(name)
    if definition is not None:
        return definition
    if name in WITHOUT_MEANING:
        raise ConfigError(f"Broker config {name} is not supported: {WITHOUT_MEANING[name]}")
    raise unknown_name("broker", name, BROKER_CONFIGS)


_TOPIC_FALL_BACKS = {s.name for row in definitions_of(TopicConfig).values() for s in row.synonyms}
assert BROKER_CONFIGS.keys() >= _TOPIC_FALL_BACKS, _TOPIC_FALL_BACKS - BROKER_CONFIGS.keys()
