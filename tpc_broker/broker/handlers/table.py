"""A row for each API (`api_rows`). What has none is not advertised, and closes the connection.

What a client needs is Kafka's: "Operations and Resources on Protocols" of its documentation, and what 4.3.1 does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker.auth.operations import Operation, Resource
from tpc_broker.broker.core import Apis
from tpc_broker.broker.handlers import (
    acls,
    client_metrics,
    configs,
    consumer_groups,
    elections,
    features,
    fetch,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    no_controller,
    nodes,
    offsets,
    produce,
    producers,
    quorum,
    quotas,
    reassignments,
    refusals,
    sasl,
    scram_users,
    security,
    shared,
    topic_pages,
    topics,
    transactional,
    transactions,
)
from tpc_broker.broker.handlers.api_rows import LOCAL, SENT_ON_BY_C, ApiRow, Need, Throttle
from tpc_broker.broker.handlers.forward import AtController
from tpc_broker.feature_levels import FIRST_OF_CLUSTERS, FIRST_WITH_TRANSACTIONS
from tpc_broker.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    from tpc_broker.broker.core import Handler

_READ_TOPIC: Final = Need(Operation.READ, Resource.TOPIC)
_DESCRIBE_TOPIC: Final = Need(Operation.DESCRIBE, Resource.TOPIC)
_DELETE_TOPIC: Final = Need(Operation.DELETE, Resource.TOPIC)
_READ_GROUP: Final = Need(Operation.READ, Resource.GROUP)
_DESCRIBE_GROUP: Final = Need(Operation.DESCRIBE, Resource.GROUP)
_DELETE_GROUP: Final = Need(Operation.DELETE, Resource.GROUP)
_DESCRIBE_CLUSTER: Final = Need(Operation.DESCRIBE, Resource.CLUSTER)
_ALTER_CLUSTER: Final = Need(Operation.ALTER, Resource.CLUSTER)
_CLUSTERS_CONFIGS: Final = Need(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER)
_WRITE_TRANSACTIONAL_ID: Final = Need(Operation.WRITE, Resource.TRANSACTIONAL_ID)
_DESCRIBE_TRANSACTIONS: Final = Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID)


def _of_each_kind(operation: Operation) -> tuple[Need, ...]:
    """On settings."""
    return (
        Need(operation, Resource.TOPIC, "of a topic"),
        Need(operation, Resource.GROUP, "of a group"),
        Need(operation, Resource.CLUSTER, "of all else"),
    )


_BEFORE_IT_IS_KNOWN = "asked before it is known who asks"
_OF_ITSELF = "a client says it of itself, when it is asked to"
_OF_TOKENS_OWNER = "the token's owner and renewers may, nobody else"

ROWS: Final[dict[ApiKey, ApiRow]] = {
    ApiKey.PRODUCE: ApiRow(
        produce.handle_produce,
        SENT_ON_BY_C,
        (
            Need(Operation.WRITE, Resource.TOPIC),
            Need(Operation.WRITE, Resource.TRANSACTIONAL_ID, "of transactional records"),
        ),
        Throttle.PRODUCE,
    ),
    ApiKey.FETCH: ApiRow(
        fetch.handle_fetch,
        SENT_ON_BY_C,
        (_READ_TOPIC, Need(Operation.CLUSTER_ACTION, Resource.CLUSTER, "in its place, of a follower")),
        Throttle.FETCH,
        may_wait=True,
    ),
    ApiKey.LIST_OFFSETS: ApiRow(offsets.handle_list_offsets, shared.OF_PARTITIONS, (_DESCRIBE_TOPIC,)),
    ApiKey.METADATA: ApiRow(
        metadata.handle_metadata,
        LOCAL,
        (
            _DESCRIBE_TOPIC,
            Need(Operation.CREATE, Resource.TOPIC, "for one that is made"),
            Need(Operation.CREATE, Resource.CLUSTER, "in its place, for any"),
        ),
    ),
    ApiKey.OFFSET_COMMIT: ApiRow(
        group_offsets.handle_offset_commit, shared.OF_GROUP, (_READ_GROUP, _READ_TOPIC), is_prompt=True
    ),
    ApiKey.OFFSET_FETCH: ApiRow(
        group_offsets.handle_offset_fetch, shared.OF_OFFSETS_OF_GROUPS, (_DESCRIBE_GROUP, _DESCRIBE_TOPIC)
    ),
    ApiKey.FIND_COORDINATOR: ApiRow(
        metadata.handle_find_coordinator,
        LOCAL,
        (
            Need(Operation.DESCRIBE, Resource.GROUP, "for a group"),
            Need(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, "for a transactional id"),
        ),
        is_prompt=True,
    ),
    ApiKey.JOIN_GROUP: ApiRow(groups.handle_join_group, shared.OF_GROUP, (_READ_GROUP,), is_prompt=True, may_wait=True),
    ApiKey.HEARTBEAT: ApiRow(groups.handle_heartbeat, shared.OF_GROUP, (_READ_GROUP,), is_prompt=True),
    ApiKey.LEAVE_GROUP: ApiRow(groups.handle_leave_group, shared.OF_GROUP, (_READ_GROUP,), is_prompt=True),
    ApiKey.SYNC_GROUP: ApiRow(groups.handle_sync_group, shared.OF_GROUP, (_READ_GROUP,), is_prompt=True, may_wait=True),
    ApiKey.DESCRIBE_GROUPS: ApiRow(groups.handle_describe_groups, shared.OF_DESCRIBED_GROUPS, (_DESCRIBE_GROUP,)),
    ApiKey.LIST_GROUPS: ApiRow(
        groups.handle_list_groups,
        shared.OF_ALL_GROUPS,
        (
            Need(Operation.DESCRIBE, Resource.GROUP, "for each that is told"),
            Need(Operation.DESCRIBE, Resource.CLUSTER, "in its place, for all"),
        ),
    ),
    ApiKey.API_VERSIONS: ApiRow(metadata.handle_api_versions, LOCAL, (), free_because=_BEFORE_IT_IS_KNOWN),
    ApiKey.SASL_HANDSHAKE: ApiRow(
        sasl.handle_sasl_handshake, LOCAL, (), Throttle.NONE, free_because=_BEFORE_IT_IS_KNOWN
    ),
    ApiKey.CREATE_TOPICS: ApiRow(
        topics.handle_create_topics,
        AtController(no_controller.create_topics),
        (
            Need(Operation.CREATE, Resource.TOPIC),
            Need(Operation.CREATE, Resource.CLUSTER, "in its place, for any"),
            Need(Operation.DESCRIBE_CONFIGS, Resource.TOPIC, "to be told its settings"),
        ),
        Throttle.MUTATION,
    ),
    ApiKey.DELETE_TOPICS: ApiRow(
        topics.handle_delete_topics,
        AtController(no_controller.delete_topics),
        (
            _DELETE_TOPIC,
            Need(Operation.DELETE, Resource.CLUSTER, "in its place, for any"),
            Need(Operation.DESCRIBE, Resource.TOPIC, "to be told the name behind an id"),
        ),
        Throttle.MUTATION,
    ),
    ApiKey.DELETE_RECORDS: ApiRow(offsets.handle_delete_records, shared.OF_PARTITIONS, (_DELETE_TOPIC,)),
    ApiKey.INIT_PRODUCER_ID: ApiRow(
        producers.handle_init_producer_id,
        shared.OF_TRANSACTION,
        (
            Need(Operation.WRITE, Resource.TRANSACTIONAL_ID, "with a transactional id"),
            Need(Operation.WRITE, Resource.TOPIC, "without one, on whatever topic"),
            Need(Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, "in its place"),
        ),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiRow(
        offsets.handle_offset_for_leader_epoch,
        shared.OF_EPOCHS,
        (_DESCRIBE_TOPIC, Need(Operation.CLUSTER_ACTION, Resource.CLUSTER, "in its place, of a follower")),
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiRow(
        transactional.handle_add_partitions_to_txn,
        shared.OF_ADDED_PARTITIONS,
        (
            _WRITE_TRANSACTIONAL_ID,
            Need(Operation.WRITE, Resource.TOPIC, "of each partition, up to version 3"),
            Need(Operation.CLUSTER_ACTION, Resource.CLUSTER, "in their place from version 4 on, of a broker"),
        ),
        first_level=FIRST_WITH_TRANSACTIONS,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiRow(
        transactional.handle_add_offsets_to_txn,
        shared.OF_TRANSACTION,
        (_WRITE_TRANSACTIONAL_ID, _READ_GROUP),
        first_level=FIRST_WITH_TRANSACTIONS,
    ),
    ApiKey.END_TXN: ApiRow(
        transactional.handle_end_txn,
        shared.OF_TRANSACTION,
        (_WRITE_TRANSACTIONAL_ID,),
        first_level=FIRST_WITH_TRANSACTIONS,
    ),
    ApiKey.WRITE_TXN_MARKERS: ApiRow(
        transactional.handle_write_txn_markers,
        LOCAL,
        (_ALTER_CLUSTER, Need(Operation.CLUSTER_ACTION, Resource.CLUSTER, "in its place, of a broker")),
        Throttle.NONE,
        first_level=FIRST_WITH_TRANSACTIONS,
        refused=refusals.write_txn_markers,
    ),
    ApiKey.DESCRIBE_ACLS: ApiRow(
        acls.handle_describe_acls, LOCAL, (_DESCRIBE_CLUSTER,), refused=refusals.describe_acls
    ),
    ApiKey.CREATE_ACLS: ApiRow(
        acls.handle_create_acls,
        AtController(no_controller.create_acls),
        (_ALTER_CLUSTER,),
        refused=no_controller.create_acls,
    ),
    ApiKey.DELETE_ACLS: ApiRow(
        acls.handle_delete_acls,
        AtController(no_controller.delete_acls),
        (_ALTER_CLUSTER,),
        refused=no_controller.delete_acls,
    ),
    ApiKey.DESCRIBE_CONFIGS: ApiRow(configs.handle_describe_configs, LOCAL, _of_each_kind(Operation.DESCRIBE_CONFIGS)),
    ApiKey.ALTER_CONFIGS: ApiRow(
        topics.handle_alter_configs,
        AtController(no_controller.alter_configs),
        _of_each_kind(Operation.ALTER_CONFIGS),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: ApiRow(
        log_dirs.handle_alter_replica_log_dirs, LOCAL, (_ALTER_CLUSTER,), refused=refusals.alter_replica_log_dirs
    ),
    ApiKey.DESCRIBE_LOG_DIRS: ApiRow(
        log_dirs.handle_describe_log_dirs, shared.OF_LOG_DIRS, (_DESCRIBE_CLUSTER,), refused=refusals.describe_log_dirs
    ),
    ApiKey.SASL_AUTHENTICATE: ApiRow(
        sasl.handle_sasl_authenticate, LOCAL, (), Throttle.NONE, free_because=_BEFORE_IT_IS_KNOWN
    ),
    ApiKey.CREATE_PARTITIONS: ApiRow(
        topics.handle_create_partitions,
        AtController(no_controller.create_partitions),
        (Need(Operation.ALTER, Resource.TOPIC),),
        Throttle.MUTATION,
    ),
    ApiKey.CREATE_DELEGATION_TOKEN: ApiRow(
        security.handle_create_delegation_token,
        LOCAL,
        (Need(Operation.CREATE_TOKENS, Resource.USER, "for another user"),),
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: ApiRow(
        security.handle_renew_delegation_token, LOCAL, (), free_because=_OF_TOKENS_OWNER
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: ApiRow(
        security.handle_expire_delegation_token, LOCAL, (), free_because=_OF_TOKENS_OWNER
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: ApiRow(
        security.handle_describe_delegation_token,
        LOCAL,
        (
            Need(Operation.DESCRIBE, Resource.DELEGATION_TOKEN, "of another user"),
            Need(Operation.DESCRIBE_TOKENS, Resource.USER, "in its place"),
        ),
    ),
    ApiKey.DELETE_GROUPS: ApiRow(groups.handle_delete_groups, shared.OF_DELETED_GROUPS, (_DELETE_GROUP,)),
    ApiKey.ELECT_LEADERS: ApiRow(
        elections.handle_elect_leaders,
        AtController(no_controller.elect_leaders),
        (_ALTER_CLUSTER,),
        refused=refusals.elect_leaders,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiRow(
        topics.handle_incremental_alter_configs,
        AtController(no_controller.incremental_alter_configs),
        _of_each_kind(Operation.ALTER_CONFIGS),
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiRow(
        reassignments.handle_alter_partition_reassignments,
        AtController(no_controller.alter_reassignments),
        (_ALTER_CLUSTER,),
        refused=refusals.alter_reassignments,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiRow(
        reassignments.handle_list_partition_reassignments,
        AtController(no_controller.list_reassignments),
        (_DESCRIBE_CLUSTER,),
        refused=no_controller.list_reassignments,
    ),
    ApiKey.TXN_OFFSET_COMMIT: ApiRow(
        group_offsets.handle_txn_offset_commit,
        shared.OF_GROUP,
        (_READ_GROUP, _READ_TOPIC, Need(Operation.WRITE, Resource.TRANSACTIONAL_ID)),
        is_prompt=True,
        first_level=FIRST_WITH_TRANSACTIONS,
    ),
    ApiKey.OFFSET_DELETE: ApiRow(group_offsets.handle_offset_delete, shared.OF_GROUP, (_DELETE_GROUP, _READ_TOPIC)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiRow(
        quotas.handle_describe_client_quotas, LOCAL, (_CLUSTERS_CONFIGS,), refused=refusals.describe_client_quotas
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiRow(
        quotas.handle_alter_client_quotas,
        AtController(no_controller.alter_client_quotas),
        (Need(Operation.ALTER_CONFIGS, Resource.CLUSTER),),
        refused=no_controller.alter_client_quotas,
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiRow(
        scram_users.handle_describe_user_scram_credentials,
        LOCAL,
        (_DESCRIBE_CLUSTER,),
        refused=refusals.describe_user_scram_credentials,
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiRow(
        scram_users.handle_alter_user_scram_credentials,
        AtController(no_controller.alter_users),
        (_ALTER_CLUSTER,),
        refused=no_controller.alter_users,
    ),
    ApiKey.DESCRIBE_QUORUM: ApiRow(
        quorum.handle_describe_quorum,
        AtController(no_controller.describe_quorum),
        (_DESCRIBE_CLUSTER,),
        Throttle.NONE,
        refused=no_controller.describe_quorum,
    ),
    ApiKey.UPDATE_FEATURES: ApiRow(
        features.handle_update_features,
        AtController(no_controller.update_features),
        (_ALTER_CLUSTER,),
        refused=no_controller.update_features,
    ),
    ApiKey.DESCRIBE_CLUSTER: ApiRow(
        metadata.handle_describe_cluster,
        LOCAL,
        (Need(Operation.DESCRIBE, Resource.CLUSTER, "to be told more than which brokers there are"),),
    ),
    ApiKey.DESCRIBE_PRODUCERS: ApiRow(transactions.handle_describe_producers, shared.OF_PRODUCERS, (_READ_TOPIC,)),
    ApiKey.UNREGISTER_BROKER: ApiRow(
        nodes.handle_unregister_broker,
        AtController(no_controller.unregister_broker),
        (_ALTER_CLUSTER,),
        refused=no_controller.unregister_broker,
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiRow(
        transactions.handle_describe_transactions,
        shared.OF_DESCRIBED_TRANSACTIONS,
        (_DESCRIBE_TRANSACTIONS, Need(Operation.DESCRIBE, Resource.TOPIC, "for each topic that is told")),
    ),
    ApiKey.LIST_TRANSACTIONS: ApiRow(
        transactions.handle_list_transactions, shared.OF_ALL_TRANSACTIONS, (_DESCRIBE_TRANSACTIONS,)
    ),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiRow(
        consumer_groups.handle_consumer_group_heartbeat,
        shared.OF_GROUP,
        (_READ_GROUP, Need(Operation.DESCRIBE, Resource.TOPIC, "for each topic that is subscribed to")),
        is_prompt=True,
    ),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiRow(
        consumer_groups.handle_consumer_group_describe,
        shared.OF_DESCRIBED_CONSUMER_GROUPS,
        (_DESCRIBE_GROUP, Need(Operation.DESCRIBE, Resource.TOPIC, "for each topic that is told")),
    ),
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: ApiRow(
        client_metrics.handle_get_telemetry_subscriptions, LOCAL, (), free_because=_OF_ITSELF
    ),
    ApiKey.PUSH_TELEMETRY: ApiRow(client_metrics.handle_push_telemetry, LOCAL, (), free_because=_OF_ITSELF),
    ApiKey.LIST_CONFIG_RESOURCES: ApiRow(
        configs.handle_list_config_resources, LOCAL, (_CLUSTERS_CONFIGS,), refused=refusals.list_config_resources
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiRow(topic_pages.handle_describe_topic_partitions, LOCAL, (_DESCRIBE_TOPIC,)),
}

# Rule: Answers are Kafka's. Held by tests/integration/differential (Kafka 4.3.1 beside us, intended differences
# listed).
HANDLERS: dict[ApiKey, Handler] = {key: row.place.serving(refusals.only_allowed(row)) for key, row in ROWS.items()}

FIRST_LEVELS: Final = {key: row.first_level for key, row in ROWS.items() if row.first_level > FIRST_OF_CLUSTERS}
PROMPT_APIS: Final = frozenset(key for key, row in ROWS.items() if row.is_prompt)


def offered_at(level: int) -> tuple[ApiKey, ...]:
    """At a feature level of the cluster's, in the order of their keys."""
    return tuple(sorted(key for key, row in ROWS.items() if level >= row.first_level))


APIS: Final = Apis(HANDLERS, PROMPT_APIS, FIRST_LEVELS, offered_at)
