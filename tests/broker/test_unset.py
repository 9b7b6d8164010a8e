"""What is not set up is answered as Kafka answers it with nothing set; tests/integration/differential compares it."""

from __future__ import annotations

from unittest.mock import ANY

import pytest

from tests.support.memory_clients import create_topic, leaders, produce
from tests.support.memory_node import running_node
from tpc_broker import limits
from tpc_broker.auth.principals import Principal, Subject
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import LeadershipLostError, PartitionOfflineError
from tpc_broker.feature_levels import FIRST_OF_CLUSTERS, FIRST_WITH_TRANSACTIONS, Levels
from tpc_broker.kafka import messages

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
NO_AUTHORIZER = "No Authorizer is configured."
IP_WITH_OTHERS = (
    "Invalid entity filter component combination. IP filter component should not be used with user or clientId filter "
    "component."
)
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
TOKENS_REFUSED = int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
TOKENS_DISABLED = int(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
INVALID_PRINCIPAL_TYPE = int(ErrorCode.INVALID_PRINCIPAL_TYPE)


def every_acl(kind, **more):
    fields = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1, **more}
    return kind(resource_name_filter=None, principal_filter=None, host_filter=None, **fields)


async def test_without_an_authorizer_there_are_no_acls(autojump_clock):
    async with running_node() as node:
        for version in (1, 2, 3):
            found = await node.ask(1, every_acl(messages.DescribeAclsRequest), version)
            assert (found.error_code, found.error_message) == (54, "No Authorizer is configured on the broker")
            assert found.resources == []
            creation = messages.CreateAclsRequest.AclCreation(
                resource_type=2, resource_name="t", principal="User:a", host="*", operation=3, permission_type=3
            )
            made = await node.ask(1, messages.CreateAclsRequest(creations=[creation, creation]), version)
            assert [(one.error_code, one.error_message) for one in made.results] == [(54, NO_AUTHORIZER)] * 2
            filters = [every_acl(messages.DeleteAclsRequest.DeleteAclsFilter)]
            gone = await node.ask(1, messages.DeleteAclsRequest(filters=filters), version)
            assert [(one.error_code, one.error_message, one.matching_acls) for one in gone.filter_results] == [
                (54, NO_AUTHORIZER, [])
            ]
        assert await node.ask(1, every_acl(messages.DescribeAclsRequest, operation=0), 3) is None, "closed, as in Kafka"


async def test_delegation_tokens_are_refused_and_say_for_whom(autojump_clock):
    async with running_node() as node:
        asked = messages.CreateDelegationTokenRequest(max_lifetime_ms=-1)
        for version in (1, 2):
            made = await node.ask(0, asked, version)
            assert (made.error_code, made.principal_type, made.principal_name) == (TOKENS_REFUSED, "User", "ANONYMOUS")
            assert (made.issue_timestamp_ms, made.expiry_timestamp_ms, made.max_timestamp_ms) == (-1, -1, -1)
        asked.owner_principal_type, asked.owner_principal_name = "User", "b"
        made = await node.ask(0, asked, 3)
        assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (
            TOKENS_REFUSED, "b", "ANONYMOUS",
        )  # fmt: skip
        for kind in (messages.RenewDelegationTokenRequest, messages.ExpireDelegationTokenRequest):
            changed = await node.ask(0, kind(hmac=b"x"), 2)
            assert (changed.error_code, changed.expiry_timestamp_ms) == (TOKENS_REFUSED, -1)
        told = await node.ask(0, messages.DescribeDelegationTokenRequest(owners=None), 3)
        assert (told.error_code, told.tokens) == (TOKENS_REFUSED, [])


async def test_who_is_known_hears_that_there_are_no_delegation_tokens(autojump_clock):
    """As Kafka 4.3.1 without a key for them."""
    async with running_node() as node:
        await node.ask(0, messages.ApiVersionsRequest(), 0, connection=7)
        node[0].dispatcher._connections[7].subject = Subject(Principal("User", "alice"), "127.0.0.1")
        kind = messages.CreateDelegationTokenRequest
        for renewer, code, time_ms in (("User", TOKENS_DISABLED, 0), ("Group", INVALID_PRINCIPAL_TYPE, -1)):
            renewers = [kind.CreatableRenewers(principal_type=renewer, principal_name="b")]
            made = await node.ask(0, kind(renewers=renewers, max_lifetime_ms=-1), 3, connection=7)
            assert (made.error_code, made.principal_name, made.token_requester_principal_name) == (code, *["alice"] * 2)
            assert {made.issue_timestamp_ms, made.expiry_timestamp_ms, made.max_timestamp_ms} == {time_ms}
        for changes in (messages.RenewDelegationTokenRequest, messages.ExpireDelegationTokenRequest):
            changed = await node.ask(0, changes(hmac=b"x"), 2, connection=7)
            assert (changed.error_code, changed.expiry_timestamp_ms) == (TOKENS_DISABLED, 0)


async def quotas(node, *components):
    kind = messages.DescribeClientQuotasRequest
    asked = [kind.ComponentData(entity_type=a, match_type=b, match=c) for a, b, c in components]
    found = await node.ask(0, kind(components=asked, strict=True), 1)
    return found.error_code, found.error_message, found.entries


@pytest.mark.parametrize(
    ("components", "code", "said"),
    [
        ([("", 9, None)], 42, "Invalid empty entity type."),
        ([("group", 9, None)], 35, "Unsupported entity type group"),
        ([("user", 9, None), ("group", 0, "x")], 42, "Unknown match type 9"),
        ([("user", 0, None)], 42, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
        ([("ip", 1, "x")], 42, "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
        ([("ip", 2, "")], 42, "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
        ([("user", 2, None)] * 2, 42, "Entity type user cannot appear more than once in the filter."),
        ([("user", 2, None), ("ip", 2, None)], 42, IP_WITH_OTHERS),
    ],
)
async def test_what_is_asked_of_quotas_is_checked(autojump_clock, components, code, said):
    async with running_node(cores=1) as node:
        assert await quotas(node, *components) == (code, said, None)


async def test_there_are_no_quotas(autojump_clock):
    async with running_node(cores=1) as node:
        assert await quotas(node) == (0, "", [])
        assert await quotas(node, ("user", 2, None), ("client-id", 0, "x")) == (0, "", [])
        assert await quotas(node, ("ip", 1, None)) == (0, "", [])


USER, CLIENT, ADDRESS = ("user", "u"), ("client-id", None), ("ip", "127.0.0.1")
BYTES, PERCENT, CONNECTIONS = "producer_byte_rate", "request_percentage", "connection_creation_rate"
IP_BESIDE_OTHERS = "Invalid quota entity combination, IP entity should not be combined with User or ClientId"


async def altered_quotas(node, *changes):
    kind = messages.AlterClientQuotasRequest
    entries = [
        kind.EntryData(
            entity=[kind.EntityData(entity_type=of_type, entity_name=name) for of_type, name in entity],
            ops=[kind.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
        )
        for entity, ops in changes
    ]
    answers = [await node.ask(0, kind(entries=entries, validate_only=only), 1) for only in (True, False)]
    assert answers[0].entries == answers[1].entries
    return [
        ([(each.entity_type, each.entity_name) for each in one.entity], one.error_code, one.error_message)
        for one in answers[0].entries
    ]


@pytest.mark.parametrize(
    ("entity", "ops", "code", "said"),
    [
        ([USER], [(BYTES, None), ("absent", None)], 0, None),
        ([USER], [], 0, None),
        ([], [(BYTES, 1.0)], 42, "Invalid empty client quota entity"),
        ([("group", "g")], [(BYTES, 1.0)], 42, "Unhandled client quota entity type: group"),
        ([("user", "")], [(BYTES, None)], 42, "Empty user not supported"),
        ([USER, ADDRESS], [], 42, IP_BESIDE_OTHERS),
        ([("ip", "no host")], [], 42, "no host is not a valid IP or resolvable host."),
        ([USER], [(CONNECTIONS, 1.0)], 42, f"Invalid configuration key {CONNECTIONS}"),
        ([ADDRESS], [(BYTES, 1.0)], 42, f"Invalid configuration key {BYTES}"),
        ([USER], [(PERCENT, -1.0)], 42, f"Quota {PERCENT} must be greater than 0"),
        ([USER], [(BYTES, 1.5)], 42, f"{BYTES} cannot be a fractional value."),
        ([ADDRESS], [(CONNECTIONS, 2.0**31)], 42, f"Proposed value for {CONNECTIONS} is too large."),
        ([USER], [(BYTES, 1.0), (BYTES, 2.0)], 42, "Duplicate quota key"),
    ],
)  # fmt: skip
async def test_quotas_that_change_nothing_and_those_that_are_refused(autojump_clock, entity, ops, code, said):
    async with running_node(cores=1) as node:
        assert await altered_quotas(node, (entity, ops)) == [(sorted(entity), code, said)]
        assert await quotas(node) == (0, "", [])


async def test_each_entity_is_answered_once(autojump_clock):
    async with running_node(cores=1) as node:
        twice = [USER, ("user", "v")]
        assert await altered_quotas(node, (twice, []), ([USER], []), ([("user", "v")], []), ([CLIENT, USER], [])) == [
            ([("user", "v")], 42, "Ignoring duplicate entity"), ([USER], 0, None), ([CLIENT, USER], 0, None),
        ]  # fmt: skip


async def described(node, kind, name, keys=None, core=0):
    request = messages.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (found,) = (await node.ask(core, request(resources=[resource], include_synonyms=True), 4)).results
    configs = {
        one.name: (one.value, one.config_type, one.config_source, [(each.name, each.value) for each in one.synonyms])
        for one in found.configs
    }
    return found.error_code, found.error_message, configs


async def test_groups_and_client_metrics_are_at_their_defaults(autojump_clock):
    async with running_node(cores=1) as node:
        code, message, configs = await described(node, GROUP, "any")
        assert (code, message, len(configs)) == (0, "", 17)
        key = "consumer.session.timeout.ms"
        assert configs[key] == ("45000", 3, 5, [("group.consumer.session.timeout.ms", "45000")])
        key = "share.isolation.level"
        assert configs[key] == ("read_uncommitted", 2, 5, [(key, "read_uncommitted")])
        assert (await described(node, GROUP, "any", [key, "absent"]))[2] == {key: configs[key]}
        assert await described(node, CLIENT_METRICS, "any") == (0, "", {
            "interval.ms": ("300000", 3, 5, []), "match": ("", 7, 5, []), "metrics": ("", 7, 5, []),
        })  # fmt: skip
        assert await described(node, GROUP, "") == (42, "Group name must not be empty", {})
        unnamed = (42, "Client metrics subscription name must not be empty", {})
        assert await described(node, CLIENT_METRICS, "") == unnamed
        assert (await described(node, LOGGER, "0"))[0] == 42


SET, DELETE, APPEND = 0, 1, 2
NOT_SETTABLE = "it cannot be set, because this broker has no such groups, which would obey it."


@pytest.mark.parametrize(
    ("kind", "name", "key", "operation", "answer"),
    [
        (GROUP, "g", "consumer.session.timeout.ms", DELETE, (0, None)),
        (CLIENT_METRICS, "m", "absent", DELETE, (0, None)),
        (GROUP, "g", "interval.ms", SET, (40, "Unknown group config name: interval.ms")),
        (CLIENT_METRICS, "m", "absent", SET, (42, "Unknown client metrics configuration: absent")),
        (GROUP, "", "absent", SET, (42, "Default group resources are not allowed.")),
        (CLIENT_METRICS, "", "metrics", DELETE, (42, "Subscription name can't be empty")),
        (CLIENT_METRICS, "", "metrics", APPEND, (40, "Can't APPEND to key metrics because its type is not LIST.")),
        (GROUP, "g", "share.isolation.level", SET, (40, f"share.isolation.level: {NOT_SETTABLE}")),
        (CLIENT_METRICS, "m", "match", SET, (40, "Illegal client matching pattern: 1")),
    ],
)
async def test_what_groups_and_client_metrics_cannot_have(autojump_clock, kind, name, key, operation, answer):
    async with running_node() as node:
        request = messages.IncrementalAlterConfigsRequest
        value = None if operation == DELETE else "1"
        change = request.AlterableConfig(name=key, config_operation=operation, value=value)
        resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
        (found,) = (await node.ask(1, request(resources=[resource]))).responses
        assert (found.error_code, found.error_message) == answer


async def altered(node, kind, name, **values):
    request = messages.IncrementalAlterConfigsRequest
    changes = [
        request.AlterableConfig(name=key.replace("_", "."), config_operation=operation, value=value)
        for key, value in values.items()
        for operation in [DELETE if value is None else SET]
    ]
    resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    (found,) = (await node.ask(1, request(resources=[resource]))).responses
    return found.error_code, found.error_message


async def test_what_is_set_of_groups_and_client_metrics_is_shown_and_listed_on_all_cores(autojump_clock):
    session = "consumer.session.timeout.ms"
    async with running_node() as node:
        assert await altered(node, GROUP, "g", consumer_session_timeout_ms="50000") == (0, None)
        assert await altered(node, CLIENT_METRICS, "m", metrics="*", interval_ms="1000") == (0, None)
        await node.restart(1)
        for core in range(2):
            _code, _message, configs = await described(node, GROUP, "g", core=core)
            assert configs[session] == ("50000", 3, 8, [(session, "50000"), (f"group.{session}", "45000")])
            assert (await described(node, GROUP, "other", core=core))[2][session][0] == "45000"
            _code, _message, configs = await described(node, CLIENT_METRICS, "m", core=core)
            assert configs == {
                "interval.ms": ("1000", 3, 7, [("interval.ms", "1000")]), "match": ("", 7, 5, []),
                "metrics": ("*", 7, 7, [("metrics", "*")]),
            }  # fmt: skip
        listed = messages.ListConfigResourcesRequest
        for kinds, version, names in (([GROUP], 1, ["g"]), ([CLIENT_METRICS], 1, ["m"]), ([], 0, ["m"])):
            found = await node.ask(1, listed(resource_types=kinds), version)
            assert [one.resource_name for one in found.config_resources] == names
        assert await altered(node, GROUP, "g", consumer_session_timeout_ms=None) == (0, None)
        assert (await node.ask(0, listed(resource_types=[GROUP]), 1)).config_resources == []


async def test_topics_and_brokers_are_listed_as_what_has_settings(autojump_clock):
    async with running_node() as node:
        for name in ("two", "one"):
            await create_topic(node, 0, name, 1)

        async def listed(*kinds, version=1):
            found = await node.ask(1, messages.ListConfigResourcesRequest(resource_types=list(kinds)), version)
            return found.error_code, [(one.resource_type, one.resource_name) for one in found.config_resources]

        topics, brokers = [(TOPIC, "one"), (TOPIC, "two")], [(BROKER, "0"), (BROKER, "1")]
        assert await listed() == (0, brokers + topics)
        assert await listed(TOPIC, TOPIC) == (0, topics)
        assert await listed(BROKER, GROUP) == (0, brokers)
        assert await listed(CLIENT_METRICS) == await listed(GROUP) == await listed(version=0) == (0, [])
        assert await listed(TOPIC, 3) == (int(ErrorCode.UNSUPPORTED_VERSION), [])


async def test_there_are_no_transactions(autojump_clock):
    async with running_node() as node:
        kind = messages.ListTransactionsRequest
        for version in (0, 1, 2):
            found = await node.ask(1, kind(state_filters=["ongoing", "Ongoing", "absent", "absent"]), version)
            assert (found.error_code, found.unknown_state_filters, found.transaction_states) == (
                0, ["absent", "ongoing"], [],
            )  # fmt: skip
        for pattern, code in (("a.*", 0), ("", 0), ("(?<name>a)", 0), ("\\pL\\Q[\\E", 0), ("[", 128), ("a**", 128),
                              ("a{99999999999999}", 128), ("(" * 3000 + ")" * 3000, 128)):
            found = await node.ask(1, kind(transactional_id_pattern=pattern), 2)
            assert found.error_code == code, pattern


@pytest.mark.parametrize(
    ("level", "absent"),
    [(FIRST_WITH_TRANSACTIONS - 1, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND), (FIRST_WITH_TRANSACTIONS, NOT_COORDINATOR)],
)
async def test_no_transactional_id_is_found(autojump_clock, monkeypatch, level, absent):
    """Nobody has looked for a coordinator yet, so that there is none."""
    monkeypatch.setattr("tpc_broker.metadata.image.SPOKEN", Levels(FIRST_OF_CLUSTERS, level))
    async with running_node() as node:
        asked = messages.DescribeTransactionsRequest(transactional_ids=["a", "", "a"])
        for core in range(2):
            found = (await node.ask(core, asked, 0)).transaction_states
            told = [(one.transactional_id, one.error_code, one.transaction_state, one.topics) for one in found]
            assert told == [("a", absent, "", []), ("", 42, "", []), ("a", absent, "", [])]


async def producers_told(node, core, name, *indexes):
    kind = messages.DescribeProducersRequest
    asked = kind(topics=[kind.TopicRequest(name=name, partition_indexes=list(indexes))])
    (topic,) = (await node.ask(core, asked)).topics
    assert topic.name == name
    return topic.partitions


async def test_producers_are_told_where_a_partition_is(autojump_clock):
    async with running_node() as node:
        await create_topic(node, 0, "t", 8)

        async def told(core, name, *indexes):
            found = await producers_told(node, core, name, *indexes)
            assert all(one.active_producers == [] for one in found)
            return [(one.partition_index, one.error_code, one.error_message) for one in found]

        leader_of = {index: leader for index, (leader, _epoch) in (await leaders(node, 0, "t")).items()}
        assert set(leader_of.values()) == {0, 1}
        for core in range(2):
            codes = [0 if leader_of[index] == core else int(ErrorCode.NOT_LEADER_OR_FOLLOWER) for index in range(8)]
            assert await told(core, "t", *range(8)) == [(index, codes[index], None) for index in range(8)]
        assert await told(0, "t", 8, -1) == [(8, 3, None), (-1, 3, None)]
        assert await told(0, "absent", 0) == [(0, 3, "This server does not host this topic-partition.")]
        assert await told(0, "", 0) == [(0, 17, "Topic name is invalid: the empty string is not allowed")]


def fields_of(producer):
    return (
        producer.producer_id, producer.producer_epoch, producer.last_sequence, producer.last_timestamp,
        producer.coordinator_epoch, producer.current_txn_start_offset,
    )  # fmt: skip


async def test_idempotent_producers_are_told_with_their_last_batch(autojump_clock):
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 2)
        for producer, values in (((9, 1, 0), [b"a", b"b"]), ((7, 0, 0), [b"c"]), ((9, 1, 2), [b"d"])):
            assert await produce(node, 0, "t", 1, values, producer=producer, timestamp=1000) == (0, ANY)
        assert await produce(node, 0, "t", 0, [b"of nobody"]) == (0, 0)
        none, both = await producers_told(node, 0, "t", 0, 1)
        assert none.active_producers == []
        assert [fields_of(one) for one in both.active_producers] == [(7, 0, 0, 1000, -1, -1), (9, 1, 2, 1000, -1, -1)]
        partition = node[0].partitions.find("t", 1)
        partition.is_replicated, partition.followed_epoch = True, 1
        assert not partition.is_led
        assert await producers_told(node, 0, "t", 1) == [both], "a follower tells as a leader does, as in Kafka"
        partition.followed_epoch = None
        (left,) = await producers_told(node, 0, "t", 1)
        assert (left.error_code, left.active_producers) == (int(ErrorCode.NOT_LEADER_OR_FOLLOWER), [])


async def test_an_answer_tells_of_so_many_producers_and_no_more(autojump_clock, monkeypatch):
    monkeypatch.setattr(limits, "PRODUCERS_TOLD_MAX", 3)
    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 2)
        for producer_id in range(2):
            for index in range(2):
                await produce(node, 0, "t", index, [b"a"], producer=(producer_id, 0, 0))
        first, second, again = await producers_told(node, 0, "t", 0, 1, 0)
        assert [len(one.active_producers) for one in (first, second, again)] == [2, 1, 0]
        assert (first.error_code, second.error_code, again.error_code) == (0, 0, 0)
        assert first.error_message is None
        for each in (second, again):
            assert each.error_message.endswith("Ask for fewer partitions at once.")
        monkeypatch.setattr(node.lives[0].plane, "producers", lambda _handle, _count_max: None)
        (refused,) = await producers_told(node, 0, "t", 0)
        assert (refused.error_code, refused.active_producers) == (int(ErrorCode.INVALID_REQUEST), [])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PartitionOfflineError("withdrawn"), ErrorCode.KAFKA_STORAGE_ERROR),
        (LeadershipLostError("cut"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_producers_that_cannot_be_told_are_an_error(autojump_clock, error, code):
    def refuse(_handle, _count_max):
        raise error

    async with running_node(cores=1) as node:
        await create_topic(node, 0, "t", 1)
        node.lives[0].plane.producers = refuse
        (found,) = await producers_told(node, 0, "t", 0)
        assert (found.error_code, found.active_producers) == (code, [])


async def test_features_have_kafkas_names_too(autojump_clock):
    async with running_node(cores=1) as node:

        async def told(version):
            asked = messages.ApiVersionsRequest(client_software_name="a", client_software_version="1")
            found = await node.ask(0, asked, version)
            return (
                {one.name: (one.min_version, one.max_version) for one in found.supported_features},
                {one.name: (one.min_version_level, one.max_version_level) for one in found.finalized_features},
            )

        of_kafka = ["eligible.leader.replicas", "kraft", "share", "streams"]
        zero = {f"{name}.version": (0, 0) for name in of_kafka}
        supported = {"metadata.version": (30, 30), "tpc.version": (2, 7)}
        kafkas = {"metadata.version": (30, 30), "group.version": (1, 1), "transaction.version": (2, 2)}
        finalized = {**kafkas, "tpc.version": (7, 7)}
        assert await told(3) == (supported, finalized), "a lowest level of 0 ends earlier clients"
        from_zero = {**zero, "group.version": (0, 1), "transaction.version": (0, 2)}
        assert await told(4) == ({**supported, **from_zero}, finalized)
