"""Which function answers which API. What is not here is not advertised, and closes the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpc_broker.broker.handlers import (
    configs,
    elections,
    features,
    fetch,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    nodes,
    offsets,
    produce,
    producers,
    quorum,
    quotas,
    reassignments,
    security,
    topics,
    transactions,
)
from tpc_broker.broker.handlers.forward import on_core
from tpc_broker.broker.handlers.shared import for_shared
from tpc_broker.broker.metadata_service import METADATA_CORE
from tpc_broker.kafka.api_keys import ApiKey

if TYPE_CHECKING:
    from tpc_broker.broker.dispatch import Handler

_ON_THIS_CORE: dict[ApiKey, Handler] = {
    ApiKey.PRODUCE: produce.handle_produce,
    ApiKey.FETCH: fetch.handle_fetch,
    ApiKey.LIST_OFFSETS: offsets.handle_list_offsets,
    ApiKey.METADATA: metadata.handle_metadata,
    ApiKey.OFFSET_COMMIT: group_offsets.handle_offset_commit,
    ApiKey.OFFSET_FETCH: group_offsets.handle_offset_fetch,
    ApiKey.FIND_COORDINATOR: metadata.handle_find_coordinator,
    ApiKey.JOIN_GROUP: groups.handle_join_group,
    ApiKey.HEARTBEAT: groups.handle_heartbeat,
    ApiKey.LEAVE_GROUP: groups.handle_leave_group,
    ApiKey.SYNC_GROUP: groups.handle_sync_group,
    ApiKey.DESCRIBE_GROUPS: groups.handle_describe_groups,
    ApiKey.LIST_GROUPS: groups.handle_list_groups,
    ApiKey.API_VERSIONS: metadata.handle_api_versions,
    ApiKey.CREATE_TOPICS: on_core(METADATA_CORE, topics.handle_create_topics),
    ApiKey.DELETE_TOPICS: on_core(METADATA_CORE, topics.handle_delete_topics),
    ApiKey.DELETE_RECORDS: offsets.handle_delete_records,
    ApiKey.INIT_PRODUCER_ID: producers.handle_init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.handle_offset_for_leader_epoch,
    ApiKey.DESCRIBE_ACLS: security.handle_describe_acls,
    ApiKey.CREATE_ACLS: security.handle_create_acls,
    ApiKey.DELETE_ACLS: security.handle_delete_acls,
    ApiKey.DESCRIBE_CONFIGS: configs.handle_describe_configs,
    ApiKey.ALTER_CONFIGS: on_core(METADATA_CORE, topics.handle_alter_configs),
    ApiKey.DESCRIBE_LOG_DIRS: log_dirs.handle_describe_log_dirs,
    ApiKey.CREATE_PARTITIONS: on_core(METADATA_CORE, topics.handle_create_partitions),
    ApiKey.CREATE_DELEGATION_TOKEN: security.handle_create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: security.handle_renew_delegation_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: security.handle_expire_delegation_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: security.handle_describe_delegation_token,
    ApiKey.DELETE_GROUPS: groups.handle_delete_groups,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: on_core(METADATA_CORE, topics.handle_incremental_alter_configs),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: on_core(
        METADATA_CORE, reassignments.handle_alter_partition_reassignments
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: on_core(METADATA_CORE, reassignments.handle_list_partition_reassignments),
    ApiKey.OFFSET_DELETE: group_offsets.handle_offset_delete,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: quotas.handle_describe_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: security.handle_describe_user_scram_credentials,
    ApiKey.DESCRIBE_QUORUM: on_core(METADATA_CORE, quorum.handle_describe_quorum),
    ApiKey.ELECT_LEADERS: on_core(METADATA_CORE, elections.handle_elect_leaders),
    ApiKey.UPDATE_FEATURES: on_core(METADATA_CORE, features.handle_update_features),
    ApiKey.UNREGISTER_BROKER: on_core(METADATA_CORE, nodes.handle_unregister_broker),
    ApiKey.DESCRIBE_CLUSTER: metadata.handle_describe_cluster,
    ApiKey.DESCRIBE_PRODUCERS: transactions.handle_describe_producers,
    ApiKey.LIST_TRANSACTIONS: transactions.handle_list_transactions,
    ApiKey.LIST_CONFIG_RESOURCES: configs.handle_list_config_resources,
}

# Rule: Answers are Kafka's. Held by tests/integration/differential (Kafka 4.3.1 beside us, intended differences
# listed).
HANDLERS: dict[ApiKey, Handler] = {key: for_shared(key, handler) for key, handler in _ON_THIS_CORE.items()}

OFFERED_APIS: tuple[ApiKey, ...] = tuple(sorted(HANDLERS))
