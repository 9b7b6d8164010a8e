"""Requests of every API that needs rights, with the rights that each needs, and rules that say who has which.

`REQUESTS` is what `tests/broker/test_rights.py` goes through: each with the code that it is refused with.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.log.log_batches import batch
from tests.support.memory_clients import fetch_request, produce_request, produce_request_of
from tpc_broker.auth.operations import CLUSTER_NAME, Operation, Resource
from tpc_broker.error_codes import ErrorCode
from tpc_broker.kafka import messages as m
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.kafka.message import Message

READ, WRITE, CREATE, DELETE, ALTER = (
    Operation.READ,
    Operation.WRITE,
    Operation.CREATE,
    Operation.DELETE,
    Operation.ALTER,
)
DESCRIBE, CONFIGS, ALTER_CONFIGS = Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS

OF_TOPIC, OF_GROUP = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
OF_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
OF_TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
REFUSALS = frozenset({OF_TOPIC, OF_GROUP, OF_CLUSTER, OF_TRANSACTION})


def on_topic(operation, name="t"):
    return operation, Resource.TOPIC, name


def on_group(operation, name="g"):
    return operation, Resource.GROUP, name


def on_transaction(operation, name="x"):
    return operation, Resource.TRANSACTIONAL_ID, name


def on_cluster(operation):
    return operation, Resource.CLUSTER, CLUSTER_NAME


def codes(answer):
    """All error codes in an answer."""
    found = []
    for name in answer.__slots__:
        value = getattr(answer, name)
        if name.endswith("error_code"):
            found.append(ErrorCode(value))
        for each in value if isinstance(value, list) else [value]:
            found += codes(each) if isinstance(each, Message) else []
    return found


class OnlyThese:
    """`Authorizer`: these rights and no others, whoever asks; one implies no other. `asked`: what was asked for."""

    def __init__(self, *rights):
        self.rights, self.asked, self.subjects = set(rights), set(), set()

    def allows(self, subject, operation, resource, name):
        self.subjects.add(subject)
        self.asked.add((operation, resource, name))
        return (operation, resource, name) in self.rights

    def allows_some(self, subject, operation, resource):
        self.asked.add((operation, resource, None))
        return any(right[:2] == (operation, resource) for right in self.rights)


def allow_only(core, *rights):
    """On a core in memory, also when its image changes."""
    core.access._rules = core.view.image.acls
    core.access.authorizer = OnlyThese(*rights)


@dataclass(frozen=True)
class Asked:
    """A request, in the newest version unless another is named. Each of `needs` is needed, or all of `instead`."""

    name: str
    key: ApiKey
    message: object
    """Or a function of the topic's id."""
    refused: ErrorCode
    needs: tuple
    instead: tuple = ()
    version: int | None = None

    def made(self, topic_id) -> Message:
        return self.message(topic_id) if callable(self.message) else self.message


def _transactional(name):
    batches = {0: batch(0, [b"a"], producer=(7, 0, 0), transactional=True)}
    return produce_request_of(name, batches, transactional_id="x")


def _fetch_by_id(topic_id, **fields):
    kind = m.FetchRequest
    part = kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    return kind(
        max_wait_ms=0, max_bytes=1 << 20, topics=[kind.FetchTopic(topic_id=topic_id, partitions=[part])], **fields
    )


def _fetch_of_follower():
    message = fetch_request("t", 0, 0, wait_ms=0)
    message.replica_id = 1
    return message


def _list_offsets(name):
    kind = m.ListOffsetsRequest
    part = kind.ListOffsetsPartition(partition_index=0, timestamp=-1, current_leader_epoch=-1)
    return kind(replica_id=-1, topics=[kind.ListOffsetsTopic(name=name, partitions=[part])])


def _metadata(name=None, topic_id=bytes(16), *, creates=False):
    kind = m.MetadataRequest
    return kind(topics=[kind.MetadataRequestTopic(name=name, topic_id=topic_id)], allow_auto_topic_creation=creates)


def _commit(name="t", **named):
    kind = m.OffsetCommitRequest
    part = kind.OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = kind.OffsetCommitRequestTopic(partitions=[part], **(named or {"name": name}))
    return kind(group_id="g", generation_id_or_member_epoch=-1, member_id="", topics=[topic])


def _commit_in_transaction():
    kind = m.TxnOffsetCommitRequest
    part = kind.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="")
    topic = kind.TxnOffsetCommitRequestTopic(name="t", partitions=[part])
    return kind(transactional_id="x", group_id="g", producer_id=7, producer_epoch=0, topics=[topic])


def _offset_fetch(**named):
    kind = m.OffsetFetchRequest
    topic = kind.OffsetFetchRequestTopics(partition_indexes=[0], **(named or {"name": "t"}))
    return kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", member_epoch=-1, topics=[topic])])


def _offset_fetch_of_one(topics=("t",)):
    kind = m.OffsetFetchRequest
    asked = (
        None if topics is None else [kind.OffsetFetchRequestTopic(name=name, partition_indexes=[0]) for name in topics]
    )
    return kind(group_id="g", topics=asked)


def _join():
    kind = m.JoinGroupRequest
    protocol = kind.JoinGroupRequestProtocol(name="range", metadata=b"m")
    return kind(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=5_000,
        protocol_type="consumer",
        protocols=[protocol],
    )


def _create(name="new"):
    kind = m.CreateTopicsRequest
    return kind(topics=[kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1)], timeout_ms=1000)


def _delete(**named):
    return m.DeleteTopicsRequest(topics=[m.DeleteTopicsRequest.DeleteTopicState(**named)], timeout_ms=1000)


def _delete_records(name):
    kind = m.DeleteRecordsRequest
    part = kind.DeleteRecordsPartition(partition_index=0, offset=1)
    return kind(topics=[kind.DeleteRecordsTopic(name=name, partitions=[part])], timeout_ms=1000)


def _epochs(name="t"):
    kind = m.OffsetForLeaderEpochRequest
    part = kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=1)
    return kind(replica_id=-1, topics=[kind.OffsetForLeaderTopic(topic=name, partitions=[part])])


def _add_partitions(version):
    kind = m.AddPartitionsToTxnRequest
    topics = [kind.AddPartitionsToTxnTopic(name="t", partitions=[0])]
    if version < 4:
        return kind(
            v3_and_below_transactional_id="x",
            v3_and_below_producer_id=7,
            v3_and_below_producer_epoch=0,
            v3_and_below_topics=topics,
        )
    one = kind.AddPartitionsToTxnTransaction(transactional_id="x", producer_id=7, producer_epoch=0, topics=topics)
    return kind(transactions=[one])


def _markers():
    kind = m.WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name="t", partition_indexes=[0])
    return kind(markers=[kind.WritableTxnMarker(producer_id=7, producer_epoch=0, topics=[topic])])


def _filter():
    return m.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1)


def _new_acl():
    kind = m.CreateAclsRequest
    fields = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3}
    return kind(creations=[kind.AclCreation(principal="User:a", host="*", operation=3, permission_type=3, **fields)])


def _deleted_acl():
    kind = m.DeleteAclsRequest
    fields = {"resource_type_filter": 1, "pattern_type_filter": 1}
    return kind(filters=[kind.DeleteAclsFilter(operation=1, permission_type=1, **fields)])


def _configs(resource_type, name):
    kind = m.DescribeConfigsRequest
    return kind(resources=[kind.DescribeConfigsResource(resource_type=resource_type, resource_name=name)])


def _alter(resource_type, name, key, value):
    kind = m.AlterConfigsRequest
    change = kind.AlterableConfig(name=key, value=value)
    return kind(
        resources=[kind.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=[change])]
    )


def _alter_one(resource_type, name, key, value):
    kind = m.IncrementalAlterConfigsRequest
    change = kind.AlterableConfig(name=key, config_operation=0, value=value)
    return kind(
        resources=[kind.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=[change])]
    )


def _move_log():
    kind = m.AlterReplicaLogDirsRequest
    topic = kind.AlterReplicaLogDirTopic(name="t", partitions=[0])
    return kind(dirs=[kind.AlterReplicaLogDir(path="/data", topics=[topic])])


def _grow():
    kind = m.CreatePartitionsRequest
    return kind(topics=[kind.CreatePartitionsTopic(name="t", count=9, assignments=None)], timeout_ms=1000)


def _elect(*, everything=False):
    kind = m.ElectLeadersRequest
    return kind(
        topic_partitions=None if everything else [kind.TopicPartitions(topic="t", partitions=[0])], timeout_ms=1
    )


def _reassign():
    kind = m.AlterPartitionReassignmentsRequest
    part = kind.ReassignablePartition(partition_index=0, replicas=[0])
    return kind(topics=[kind.ReassignableTopic(name="t", partitions=[part])], timeout_ms=1000)


def _delete_offsets():
    kind = m.OffsetDeleteRequest
    topic = kind.OffsetDeleteRequestTopic(name="t", partitions=[kind.OffsetDeleteRequestPartition(partition_index=0)])
    return kind(group_id="g", topics=[topic])


def _alter_quota():
    kind = m.AlterClientQuotasRequest
    entry = kind.EntryData(
        entity=[kind.EntityData(entity_type="user", entity_name="a")],
        ops=[kind.OpData(key="producer_byte_rate", value=1.0)],
    )
    return kind(entries=[entry])


def _new_user():
    kind = m.AlterUserScramCredentialsRequest
    one = kind.ScramCredentialUpsertion(name="a", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p")
    return kind(upsertions=[one])


def _describe_producers(name):
    kind = m.DescribeProducersRequest
    return kind(topics=[kind.TopicRequest(name=name, partition_indexes=[0])])


def _feature():
    kind = m.UpdateFeaturesRequest
    return kind(feature_updates=[kind.FeatureUpdateKey(feature="tpc.version", max_version_level=1, upgrade_type=3)])


def _beat(**fields):
    return m.ConsumerGroupHeartbeatRequest(
        group_id="k", member_id="m", member_epoch=0, rebalance_timeout_ms=5000, topic_partitions=[], **fields
    )


def _pages(name):
    kind = m.DescribeTopicPartitionsRequest
    return kind(topics=[kind.TopicRequest(name=name)], response_partition_limit=10)


def _find(kind, key):
    return m.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])


def _same_of_cluster():
    """Requests about the whole cluster."""
    k = ApiKey
    rows = [
        (k.DESCRIBE_ACLS, _filter(), DESCRIBE),
        (k.CREATE_ACLS, _new_acl(), ALTER),
        (k.DELETE_ACLS, _deleted_acl(), ALTER),
        (k.ALTER_REPLICA_LOG_DIRS, _move_log(), ALTER),
        (k.DESCRIBE_LOG_DIRS, m.DescribeLogDirsRequest(topics=None), DESCRIBE),
        (k.ELECT_LEADERS, _elect(), ALTER),
        (k.ALTER_PARTITION_REASSIGNMENTS, _reassign(), ALTER),
        (k.LIST_PARTITION_REASSIGNMENTS, m.ListPartitionReassignmentsRequest(topics=None), DESCRIBE),
        (k.DESCRIBE_CLIENT_QUOTAS, m.DescribeClientQuotasRequest(), CONFIGS),
        (k.ALTER_CLIENT_QUOTAS, _alter_quota(), ALTER_CONFIGS),
        (k.DESCRIBE_USER_SCRAM_CREDENTIALS, m.DescribeUserScramCredentialsRequest(users=None), DESCRIBE),
        (k.ALTER_USER_SCRAM_CREDENTIALS, _new_user(), ALTER),
        (k.UPDATE_FEATURES, _feature(), ALTER),
        (k.DESCRIBE_QUORUM, m.DescribeQuorumRequest(topics=[]), DESCRIBE),
        (k.UNREGISTER_BROKER, m.UnregisterBrokerRequest(broker_id=7), ALTER),
        (k.LIST_CONFIG_RESOURCES, m.ListConfigResourcesRequest(), CONFIGS),
    ]
    return [Asked("", key, message, OF_CLUSTER, (on_cluster(operation),)) for key, message, operation in rows]


def _same_of_absent_topics():
    """Of a topic that is not there the same is said, and in every version."""
    k, d = ApiKey, (DESCRIBE, "none")
    rows = [
        (k.PRODUCE, produce_request("none", 0, [b"a"]), (WRITE, "none"), 12),
        (k.FETCH, fetch_request("none", 0, 0, wait_ms=0), (READ, "none"), 12),
        (k.LIST_OFFSETS, _list_offsets("none"), d, None),
        (k.METADATA, _metadata("none"), d, None),
        (k.DELETE_TOPICS, _delete(name="none"), d, None),
        (k.DELETE_RECORDS, _delete_records("none"), (DELETE, "none"), None),
        (k.OFFSET_FOR_LEADER_EPOCH, _epochs("none"), d, None),
        (k.DESCRIBE_PRODUCERS, _describe_producers("none"), (READ, "none"), None),
        (k.DESCRIBE_TOPIC_PARTITIONS, _pages("none"), d, None),
        (k.DESCRIBE_CONFIGS, _configs(2, "none"), (CONFIGS, "none"), None),
    ]
    return [
        Asked("of none", key, message, OF_TOPIC, (on_topic(*right),), version=version)
        for key, message, right, version in rows
    ]


K = ApiKey
_OF_DATA = [
    Asked("", K.PRODUCE, produce_request("t", 0, [b"a"]), OF_TOPIC, (on_topic(WRITE),), version=12),
    Asked("by id", K.PRODUCE, lambda i: produce_request("", 0, [b"a"], topic_id=i), OF_TOPIC, (on_topic(WRITE),)),
    Asked(
        "transactional",
        K.PRODUCE,
        _transactional("t"),
        OF_TRANSACTION,
        (on_topic(WRITE), on_transaction(WRITE)),
        version=12,
    ),
    Asked("", K.FETCH, fetch_request("t", 0, 0, wait_ms=0), OF_TOPIC, (on_topic(READ),), version=12),
    Asked("by id", K.FETCH, _fetch_by_id, OF_TOPIC, (on_topic(READ),)),
    Asked(
        "of a follower", K.FETCH, _fetch_of_follower(), OF_TOPIC, (on_cluster(Operation.CLUSTER_ACTION),), version=12
    ),
    Asked("", K.LIST_OFFSETS, _list_offsets("t"), OF_TOPIC, (on_topic(DESCRIBE),)),
    Asked("", K.DELETE_RECORDS, _delete_records("t"), OF_TOPIC, (on_topic(DELETE),)),
    Asked(
        "",
        K.OFFSET_FOR_LEADER_EPOCH,
        _epochs(),
        OF_TOPIC,
        (on_topic(DESCRIBE),),
        (on_cluster(Operation.CLUSTER_ACTION),),
    ),
    Asked("", K.DESCRIBE_PRODUCERS, _describe_producers("t"), OF_TOPIC, (on_topic(READ),)),
]
_OF_TOPICS = [
    Asked("", K.METADATA, _metadata("t"), OF_TOPIC, (on_topic(DESCRIBE),)),
    Asked("by id", K.METADATA, lambda i: _metadata(None, i), OF_TOPIC, (on_topic(DESCRIBE),)),
    Asked(
        "that makes one",
        K.METADATA,
        _metadata("new", creates=True),
        OF_TOPIC,
        (on_topic(DESCRIBE, "new"), on_topic(CREATE, "new")),
    ),
    Asked(
        "that makes any",
        K.METADATA,
        _metadata("new", creates=True),
        OF_TOPIC,
        (on_topic(DESCRIBE, "new"), on_cluster(CREATE)),
    ),
    Asked("", K.CREATE_TOPICS, _create(), OF_TOPIC, (on_topic(CREATE, "new"), on_topic(CONFIGS, "new"))),
    Asked("any", K.CREATE_TOPICS, _create(), OF_TOPIC, (on_cluster(CREATE), on_topic(CONFIGS, "new"))),
    Asked(
        "", K.DELETE_TOPICS, _delete(name="t"), OF_TOPIC, (on_topic(DELETE), on_topic(DESCRIBE)), (on_cluster(DELETE),)
    ),
    Asked(
        "by id",
        K.DELETE_TOPICS,
        lambda i: _delete(name=None, topic_id=i),
        OF_TOPIC,
        (on_topic(DELETE),),
        (on_cluster(DELETE),),
    ),
    Asked("", K.CREATE_PARTITIONS, _grow(), OF_TOPIC, (on_topic(ALTER),)),
    Asked("", K.DESCRIBE_CONFIGS, _configs(2, "t"), OF_TOPIC, (on_topic(CONFIGS),)),
    Asked("of a group", K.DESCRIBE_CONFIGS, _configs(32, "g"), OF_GROUP, (on_group(CONFIGS),)),
    Asked("of a broker", K.DESCRIBE_CONFIGS, _configs(4, "0"), OF_CLUSTER, (on_cluster(CONFIGS),)),
    Asked("of metrics", K.DESCRIBE_CONFIGS, _configs(16, "a"), OF_CLUSTER, (on_cluster(CONFIGS),)),
    Asked("", K.DESCRIBE_TOPIC_PARTITIONS, _pages("t"), OF_TOPIC, (on_topic(DESCRIBE),)),
]
_OF_SETTINGS = [
    Asked(name, key, make(kind, on, setting, value), code, (right,))
    for key, make in ((K.ALTER_CONFIGS, _alter), (K.INCREMENTAL_ALTER_CONFIGS, _alter_one))
    for name, kind, on, setting, value, code, right in (
        ("", 2, "t", "retention.ms", "5000", OF_TOPIC, on_topic(ALTER_CONFIGS)),
        ("of a group", 32, "g", "consumer.session.timeout.ms", "50000", OF_GROUP, on_group(ALTER_CONFIGS)),
        ("of a broker", 4, "0", "log.retention.ms", "5000", OF_CLUSTER, on_cluster(ALTER_CONFIGS)),
        ("of all brokers", 4, "", "log.retention.ms", "5000", OF_CLUSTER, on_cluster(ALTER_CONFIGS)),
        ("of metrics", 16, "a", "interval.ms", "1000", OF_CLUSTER, on_cluster(ALTER_CONFIGS)),
    )
]
_OF_GROUPS = [
    Asked("", K.OFFSET_COMMIT, _commit(), OF_GROUP, (on_group(READ), on_topic(READ)), version=9),
    Asked("by id", K.OFFSET_COMMIT, lambda i: _commit(topic_id=i), OF_GROUP, (on_group(READ), on_topic(READ))),
    Asked("", K.OFFSET_FETCH, _offset_fetch(), OF_GROUP, (on_group(DESCRIBE), on_topic(DESCRIBE)), version=9),
    Asked(
        "by id", K.OFFSET_FETCH, lambda i: _offset_fetch(topic_id=i), OF_GROUP, (on_group(DESCRIBE), on_topic(DESCRIBE))
    ),
    Asked(
        "of one", K.OFFSET_FETCH, _offset_fetch_of_one(), OF_GROUP, (on_group(DESCRIBE), on_topic(DESCRIBE)), version=7
    ),
    Asked(
        "of old", K.OFFSET_FETCH, _offset_fetch_of_one(), OF_GROUP, (on_group(DESCRIBE), on_topic(DESCRIBE)), version=1
    ),
    Asked("of a group", K.FIND_COORDINATOR, _find(0, "g"), OF_GROUP, (on_group(DESCRIBE),)),
    Asked("of a transaction", K.FIND_COORDINATOR, _find(1, "x"), OF_TRANSACTION, (on_transaction(DESCRIBE),)),
    Asked("of one", K.FIND_COORDINATOR, m.FindCoordinatorRequest(key="g"), OF_GROUP, (on_group(DESCRIBE),), version=3),
    Asked("", K.JOIN_GROUP, _join(), OF_GROUP, (on_group(READ),)),
    Asked(
        "", K.HEARTBEAT, m.HeartbeatRequest(group_id="g", generation_id=1, member_id="a"), OF_GROUP, (on_group(READ),)
    ),
    Asked("", K.LEAVE_GROUP, m.LeaveGroupRequest(group_id="g"), OF_GROUP, (on_group(READ),)),
    Asked(
        "",
        K.SYNC_GROUP,
        m.SyncGroupRequest(
            group_id="g", generation_id=1, member_id="a", protocol_type="consumer", protocol_name="range"
        ),
        OF_GROUP,
        (on_group(READ),),
    ),
    Asked("", K.DESCRIBE_GROUPS, m.DescribeGroupsRequest(groups=["g"]), OF_GROUP, (on_group(DESCRIBE),)),
    Asked("", K.DELETE_GROUPS, m.DeleteGroupsRequest(groups_names=["g"]), OF_GROUP, (on_group(DELETE),)),
    Asked("", K.OFFSET_DELETE, _delete_offsets(), OF_GROUP, (on_group(DELETE), on_topic(READ))),
    Asked(
        "",
        K.CONSUMER_GROUP_HEARTBEAT,
        _beat(subscribed_topic_names=["t"]),
        OF_GROUP,
        (on_group(READ, "k"), on_topic(DESCRIBE)),
    ),
    Asked(
        "",
        K.CONSUMER_GROUP_DESCRIBE,
        m.ConsumerGroupDescribeRequest(group_ids=["c"]),
        OF_GROUP,
        (on_group(DESCRIBE, "c"), on_topic(DESCRIBE)),
    ),
]
_OF_TRANSACTIONS = [
    Asked(
        "",
        K.INIT_PRODUCER_ID,
        m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000),
        OF_TRANSACTION,
        (on_transaction(WRITE),),
    ),
    Asked(
        "idempotent",
        K.INIT_PRODUCER_ID,
        m.InitProducerIdRequest(transactional_id=None),
        OF_CLUSTER,
        (on_topic(WRITE, "any"),),
        (on_cluster(Operation.IDEMPOTENT_WRITE),),
    ),
    Asked(
        "of a client",
        K.ADD_PARTITIONS_TO_TXN,
        _add_partitions(3),
        OF_TRANSACTION,
        (on_transaction(WRITE), on_topic(WRITE)),
        version=3,
    ),
    Asked(
        "of a broker", K.ADD_PARTITIONS_TO_TXN, _add_partitions(5), OF_CLUSTER, (on_cluster(Operation.CLUSTER_ACTION),)
    ),
    Asked(
        "",
        K.ADD_OFFSETS_TO_TXN,
        m.AddOffsetsToTxnRequest(transactional_id="x", group_id="g", producer_id=7, producer_epoch=0),
        OF_TRANSACTION,
        (on_transaction(WRITE), on_group(READ)),
    ),
    Asked(
        "",
        K.END_TXN,
        m.EndTxnRequest(transactional_id="x", producer_id=7, producer_epoch=0),
        OF_TRANSACTION,
        (on_transaction(WRITE),),
    ),
    Asked(
        "", K.WRITE_TXN_MARKERS, _markers(), OF_CLUSTER, (on_cluster(ALTER),), (on_cluster(Operation.CLUSTER_ACTION),)
    ),
    Asked(
        "",
        K.TXN_OFFSET_COMMIT,
        _commit_in_transaction(),
        OF_TRANSACTION,
        (on_transaction(WRITE), on_group(READ), on_topic(READ)),
        version=5,
    ),
    Asked(
        "",
        K.DESCRIBE_TRANSACTIONS,
        m.DescribeTransactionsRequest(transactional_ids=["x"]),
        OF_TRANSACTION,
        (on_transaction(DESCRIBE),),
    ),
]
REQUESTS = [
    *_OF_DATA,
    *_OF_TOPICS,
    *_OF_SETTINGS,
    *_OF_GROUPS,
    *_OF_TRANSACTIONS,
    *_same_of_cluster(),
    Asked("of everything", K.ELECT_LEADERS, _elect(everything=True), OF_CLUSTER, (on_cluster(ALTER),)),
    Asked(
        "of one",
        K.DESCRIBE_USER_SCRAM_CREDENTIALS,
        m.DescribeUserScramCredentialsRequest(users=[m.DescribeUserScramCredentialsRequest.UserName(name="a")]),
        OF_CLUSTER,
        (on_cluster(DESCRIBE),),
    ),
]
OF_ABSENT_TOPICS = _same_of_absent_topics()
ANSWERED_IN_PART = frozenset({K.LIST_GROUPS, K.LIST_TRANSACTIONS, K.DESCRIBE_CLUSTER})
"""Never refused: there are tests of their own of what they leave out."""
OF_NOBODY = frozenset({K.CREATE_DELEGATION_TOKEN, K.DESCRIBE_DELEGATION_TOKEN})
"""Refused to everybody, by other codes."""
