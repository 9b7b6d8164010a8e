"""What neither peer has set up: ACLs, tokens, quotas, settings of groups and of client metrics, transactions."""

from __future__ import annotations

from tests.integration.differential.dialogue import BASE_MS, Dialogue, scenario, stable_versions
from tests.integration.differential.scenarios_admin import APPEND, DELETE, SET, SUBTRACT, alter, change, describe
from tests.integration.differential.scenarios_data import a_batch, produce
from tests.integration.differential.scenarios_transactions import Id

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
EXACT, DEFAULT, SPECIFIED = range(3)


@scenario
def acls_without_an_authorizer(d: Dialogue) -> None:
    every = {
        "ResourceTypeFilter": 1, "ResourceNameFilter": None, "PatternTypeFilter": 1, "PrincipalFilter": None,
        "HostFilter": None, "Operation": 1, "PermissionType": 1,
    }  # fmt: skip
    one = {
        "ResourceType": 2, "ResourceName": "x", "ResourcePatternType": 3, "Principal": "User:a", "Host": "*",
        "Operation": 3, "PermissionType": 3,
    }  # fmt: skip
    odd_ones = ({"Principal": "no colon"}, {"ResourceName": ""}, {"Host": ""}, {"Operation": 1})
    for version in stable_versions("DescribeAcls"):
        for more in ({}, {"PatternTypeFilter": 3, "ResourceNameFilter": "x"}, {"ResourceTypeFilter": 99}):
            d.anywhere.ask("DescribeAcls", version, {**every, **more})
            d.anywhere.ask("DeleteAcls", version, {"Filters": [{**every, **more}, every]})
        d.anywhere.ask("DeleteAcls", version, {"Filters": []})
        d.anywhere.ask("CreateAcls", version, {"Creations": []})
        for more in odd_ones:
            d.anywhere.ask("CreateAcls", version, {"Creations": [one, {**one, **more}]})
    for key in ("ResourceTypeFilter", "PatternTypeFilter", "Operation", "PermissionType"):
        d.anywhere.ask("DescribeAcls", 3, {**every, key: 0})
        d.anywhere.ask("DeleteAcls", 3, {"Filters": [every, {**every, key: 0}]})
    for key in ("ResourceType", "ResourcePatternType", "Operation", "PermissionType"):
        d.anywhere.ask("CreateAcls", 3, {"Creations": [one, {**one, key: 0}]})


@scenario
def delegation_tokens_over_plain_text(d: Dialogue) -> None:
    renewers = [{"PrincipalType": "User", "PrincipalName": "a"}]
    for version in stable_versions("CreateDelegationToken"):
        d.anywhere.ask("CreateDelegationToken", version, {"Renewers": renewers, "MaxLifetimeMs": -1})
        d.anywhere.ask("CreateDelegationToken", version, {"Renewers": [], "MaxLifetimeMs": 5})
    for name in ("b", "", None):
        owner = {"OwnerPrincipalType": "User", "OwnerPrincipalName": name}
        d.anywhere.ask("CreateDelegationToken", 3, {**owner, "Renewers": renewers, "MaxLifetimeMs": 5})
    for version in stable_versions("RenewDelegationToken"):
        d.anywhere.ask("RenewDelegationToken", version, {"Hmac": b"x", "RenewPeriodMs": 1})
        d.anywhere.ask("ExpireDelegationToken", version, {"Hmac": b"x", "ExpiryTimePeriodMs": -1})
    for version in stable_versions("DescribeDelegationToken"):
        for owners in (None, [], renewers):
            d.anywhere.ask("DescribeDelegationToken", version, {"Owners": owners})


@scenario
def client_quotas_of_nobody(d: Dialogue) -> None:
    def component(kind: str, match_type: int, match: str | None = None) -> dict[str, object]:
        return {"EntityType": kind, "MatchType": match_type, "Match": match}

    for version in stable_versions("DescribeClientQuotas"):
        for is_strict in (False, True):
            d.anywhere.ask("DescribeClientQuotas", version, {"Components": [], "Strict": is_strict})
        for kind in ("user", "client-id", "ip", "group", ""):
            for match_type in (EXACT, DEFAULT, SPECIFIED, 3, -1):
                for match in (None, "", "x"):
                    asked = [component(kind, match_type, match)]
                    d.anywhere.ask("DescribeClientQuotas", version, {"Components": asked})
        for asked in (
            [component("user", SPECIFIED), component("client-id", EXACT, "x")],
            [component("user", SPECIFIED), component("user", SPECIFIED)],
            [component("user", SPECIFIED), component("ip", SPECIFIED)],
            [component("ip", EXACT, "127.0.0.1"), component("group", EXACT, "x")],
            [component("user", 9), component("group", EXACT, "x")],
            [component("group", EXACT, "x"), component("user", 9)],
            [component("user", SPECIFIED), component("user", 9)],
        ):
            d.anywhere.ask("DescribeClientQuotas", version, {"Components": asked, "Strict": True})


@scenario
def alter_quotas_that_are_not_there(d: Dialogue) -> None:
    """What takes nothing away, and what is refused."""

    def change(entity: list[tuple[str, str | None]], *ops: tuple[str, float | None]) -> dict[str, object]:
        return {
            "Entity": [{"EntityType": kind, "EntityName": name} for kind, name in entity],
            "Ops": [{"Key": key, "Value": value or 0.0, "Remove": value is None} for key, value in ops],
        }

    user, client, address = ("user", "u"), ("client-id", None), ("ip", "127.0.0.1")
    removal = ("producer_byte_rate", None)
    changes = [
        change([user], removal), change([user, client], ("absent", None)), change([address], removal),
        change([("ip", None)]), change([]), change([], removal), change([("group", "g")], removal),
        change([("user", "")], removal), change([("client-id", "")], removal), change([("ip", "")], removal),
        change([user, address], removal), change([("ip", "no host")], removal), change([("ip", "::1")], removal),
        change([user], ("connection_creation_rate", 1.0)), change([address], ("producer_byte_rate", 1.0)),
        change([user], ("absent", 1.0)), change([user], ("request_percentage", 0.0)),
        change([user], ("consumer_byte_rate", -1.0)), change([user], ("producer_byte_rate", 1.5)),
        change([user], ("consumer_byte_rate", 2.0**64)), change([address], ("connection_creation_rate", 2.0**31)),
        change([user], removal, removal), change([user], removal, ("producer_byte_rate", -1.0)),
        change([user], removal, ("absent", 1.0)), change([user, ("user", "v")], removal),
        change([user, ("user", "")], removal),
    ]  # fmt: skip
    for version in stable_versions("AlterClientQuotas"):
        for only in (False, True):
            d.anywhere.ask("AlterClientQuotas", version, {"Entries": [], "ValidateOnly": only})
            for each in changes:
                d.anywhere.ask("AlterClientQuotas", version, {"Entries": [each], "ValidateOnly": only})
        d.anywhere.ask("AlterClientQuotas", version, {"Entries": changes[:2] + changes[:1]})


@scenario
def set_quotas(d: Dialogue) -> None:
    """Of a user that nobody is, and to look at; all are taken away at the end."""
    user: tuple[str, str | None] = ("user", "u")
    other, nobody, client = ("user", "v"), ("user", None), ("client-id", None)

    def alter(entity: tuple[tuple[str, str | None], ...], *, only: bool = False, **values: float | None) -> None:
        entry = {
            "Entity": [{"EntityType": kind, "EntityName": name} for kind, name in entity],
            "Ops": [{"Key": key, "Value": value or 0.0, "Remove": value is None} for key, value in values.items()],
        }
        d.anywhere.ask("AlterClientQuotas", 1, {"Entries": [entry], "ValidateOnly": only})

    def describe(*components: tuple[str, int, str | None]) -> None:
        asked = [{"EntityType": kind, "MatchType": how, "Match": match} for kind, how, match in components]
        for is_strict in (False, True):
            d.anywhere.ask("DescribeClientQuotas", 1, {"Components": asked, "Strict": is_strict})

    filters = [
        (), (("user", EXACT, "u"),), (("user", EXACT, "v"),), (("user", DEFAULT, None),), (("user", SPECIFIED, None),),
        (("client-id", DEFAULT, None),), (("client-id", EXACT, "c"),), (("ip", SPECIFIED, None),),
        (("user", EXACT, "u"), ("client-id", DEFAULT, None)),
        (("user", SPECIFIED, None), ("client-id", SPECIFIED, None)),
    ]  # fmt: skip
    entities = [(user,), (user, client), (other, ("client-id", "c")), (("ip", "10.1.2.3"),)]
    quotas: list[dict[str, float | None]] = [
        {"producer_byte_rate": 1e9, "request_percentage": 12.5}, {"consumer_byte_rate": 1e10},
        {"controller_mutation_rate": 0.5}, {"connection_creation_rate": 1000.0},
    ]  # fmt: skip
    alter((nobody,), only=True, request_percentage=500.0)
    describe()
    for entity, values in zip(entities, quotas, strict=True):
        alter(entity, **values)
        alter(entity, **values)
    for each in filters:
        describe(*each)
    alter((user,), producer_byte_rate=2e9, request_percentage=None, consumer_byte_rate=None)
    describe(("user", EXACT, "u"))
    for entity in entities:
        alter(entity, **{key: None for values in quotas for key in values})
    describe()


@scenario
def describe_configs_of_groups_and_client_metrics(d: Dialogue) -> None:
    for version in stable_versions("DescribeConfigs"):
        for kind in (GROUP, CLIENT_METRICS):
            for name in (d.prefix, "", "bad name"):
                describe(d, version, kind, name)
            describe(d, version, kind, d.prefix, IncludeSynonyms=True, IncludeDocumentation=True)
            describe(d, version, kind, d.prefix, ["interval.ms", "consumer.session.timeout.ms", "absent"])


@scenario
def change_configs_of_groups_and_client_metrics(d: Dialogue) -> None:
    """What changes nothing, and what is refused."""
    changes: list[tuple[tuple[str, int, str | None], ...]] = [
        (),
        (("interval.ms", DELETE, None),),
        (("consumer.session.timeout.ms", DELETE, None),),
        (("absent", DELETE, None),),
        (("absent", SET, "1"),),
        (("interval.ms", SET, None),),
        (("metrics", APPEND, "a"),),
        (("absent", SUBTRACT, "a"),),
        (("absent", DELETE, None), ("absent", SET, "1")),
    ]
    for version in stable_versions("IncrementalAlterConfigs"):
        for kind in (GROUP, CLIENT_METRICS):
            for name in (d.prefix, ""):
                for each in changes:
                    change(d, version, kind, name, *each)
    for version in stable_versions("AlterConfigs"):
        for kind in (GROUP, CLIENT_METRICS, BROKER_LOGGER):
            for name in (d.prefix, ""):
                alter(d, version, kind, name, ("absent", "1"))
    describe(d, 4, GROUP, d.prefix)
    describe(d, 4, CLIENT_METRICS, d.prefix)


@scenario
def set_configs_of_groups_and_client_metrics(d: Dialogue) -> None:
    """Only to look at it: what is taken and what is refused."""
    for key, *values in (
        ("consumer.session.timeout.ms", "45000", "60000", "44999", "60001", "x", ""),
        ("consumer.heartbeat.interval.ms", "5000", "15000", "4999", "15001", "1.5"),
        ("consumer.assignment.interval.ms", "0", "15000", "-1", "15001"),
        ("consumer.assignor.offload.enable", "true"),
    ):
        for value in values:
            change(d, 1, GROUP, d.prefix, (key, SET, value), ValidateOnly=True)
    for key, *values in (
        ("interval.ms", "100", "3600000", "99", "3600001", "x"),
        ("metrics", "*", "a,b", "a,a", "", "a,,b", ","),
        ("match", "client_id=a.*", "client_id=a,client_source_port=9[0-9]", "", "client_id", "client_id=",
         "client_id=a=", "client_id=a=b", "host=a", "client_id=(", "client_id=a,", " client_id = a ",
         "client_instance_id=a"),
    ):  # fmt: skip
        for value in values:
            change(d, 1, CLIENT_METRICS, d.prefix, (key, SET, value), ValidateOnly=True)
    alter(d, 2, GROUP, d.prefix, ("consumer.session.timeout.ms", "50000"), ValidateOnly=True)
    alter(d, 2, CLIENT_METRICS, d.prefix, ("metrics", "a"), ("interval.ms", "1000"), ValidateOnly=True)


@scenario
def set_configs_of_share_and_streams_groups(d: Dialogue) -> None:
    """Only to look at it: we have no such groups."""
    change(d, 1, GROUP, d.prefix, ("share.session.timeout.ms", SET, "50000"), ValidateOnly=True)
    change(d, 1, GROUP, d.prefix, ("streams.num.standby.replicas", SET, "1"), ValidateOnly=True)


@scenario
def settings_of_groups_and_client_metrics_come_and_go(d: Dialogue) -> None:
    def look() -> None:
        d.settle()
        for kind in (GROUP, CLIENT_METRICS):
            describe(d, 4, kind, d.prefix, IncludeSynonyms=True)
            d.anywhere.ask("ListConfigResources", 1, {"ResourceTypes": [kind]})
        d.anywhere.ask("ListConfigResources", 0, {})

    session, heartbeat = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    change(d, 1, GROUP, d.prefix, (session, SET, "50000"), (heartbeat, SET, "6000"))
    change(d, 1, CLIENT_METRICS, d.prefix, ("metrics", SET, "a,b"), ("match", SET, "client_id=a.*"))
    look()
    change(d, 1, GROUP, d.prefix, (session, DELETE, None))
    change(d, 1, CLIENT_METRICS, d.prefix, ("interval.ms", SET, "2000"), ("match", DELETE, None))
    look()
    alter(d, 2, GROUP, d.prefix, (session, "55000"))
    alter(d, 2, CLIENT_METRICS, d.prefix, ("metrics", "*"))
    look()
    alter(d, 2, GROUP, d.prefix)
    change(d, 1, CLIENT_METRICS, d.prefix, ("metrics", DELETE, None))
    look()


@scenario
def list_config_resources(d: Dialogue) -> None:
    d.topic("one")
    d.topic("two", 2)
    d.anywhere.ask("ListConfigResources", 0, {})
    for kinds in ([], [TOPIC], [BROKER], [CLIENT_METRICS], [GROUP], [TOPIC, TOPIC, BROKER], [TOPIC, CLIENT_METRICS]):
        d.anywhere.ask("ListConfigResources", 1, {"ResourceTypes": kinds})
    for kinds in ([0], [1], [3], [-1], [99], [TOPIC, 99]):
        d.anywhere.ask("ListConfigResources", 1, {"ResourceTypes": kinds})


@scenario
def transactions_of_nobody(d: Dialogue) -> None:
    for version in stable_versions("ListTransactions"):
        d.anywhere.ask("ListTransactions", version, {})
        states = ["Ongoing", "absent", "Empty", "ongoing", "absent", "Dead", "PrepareEpochFence", "CompleteAbort", ""]
        d.anywhere.ask("ListTransactions", version, {"StateFilters": states, "ProducerIdFilters": [5]})
    for pattern in ("", "a.*", "[", "(", "(?<name>a)", "\\pL", "\\Qa\\E", "a**", None):
        d.anywhere.ask("ListTransactions", 2, {"TransactionalIdPattern": pattern})


@scenario
def describe_transactions_of_nobody(d: Dialogue) -> None:
    nobody = Id(d, "nobody")
    nobody.settle()
    for ids in ([], [nobody.name], [nobody.name, "", nobody.name]):
        nobody.line.ask("DescribeTransactions", 0, {"TransactionalIds": ids})


@scenario
def producers_of_nobody(d: Dialogue) -> None:
    one = d.topic("one")
    line = d.leader(one)
    for indexes in ([0], [0, 5, -1, 0], []):
        line.ask("DescribeProducers", 0, {"Topics": [{"Name": one, "PartitionIndexes": indexes}]})
    for name in (f"{d.prefix}-absent", "", "bad name"):
        line.ask("DescribeProducers", 0, {"Topics": [{"Name": name, "PartitionIndexes": [0, 7]}]})
    line.ask("DescribeProducers", 0, {"Topics": []})


@scenario
def idempotent_producers(d: Dialogue) -> None:
    topic, stamped = d.topic("one", 2), d.topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    one, other = [
        d.anywhere.ask("InitProducerId", 4, {"TransactionalId": None, "TransactionTimeoutMs": 1000})["ProducerId"]
        for _ in range(2)
    ]

    def told(name: str = topic) -> None:
        asked = [{"Name": name, "PartitionIndexes": [0]}]
        d.leader(name).ask("DescribeProducers", 0, {"Topics": asked})

    def send(producer: int, epoch: int, sequence: int, timestamp_ms: int = BASE_MS, name: str = topic) -> None:
        produce(d, name, a_batch(producer=(producer, epoch, sequence), base_timestamp_ms=timestamp_ms))
        told(name)

    send(one, 0, 0)
    send(one, 0, 0)
    produce(d, topic, a_batch())
    told()
    send(other, 3, 0, BASE_MS - 1000)
    send(one, 0, 3, BASE_MS - 500)
    for refused in ((one, 0, 100), (one, 1, 5), (other, 2, 0)):
        send(*refused)
    send(one, 1, 0, BASE_MS + 7)
    send(4711, 0, 2**31 - 2)
    send(one, 0, 0, name=stamped)
    records = [{"Name": topic, "Partitions": [{"PartitionIndex": 0, "Offset": -1}]}]
    d.leader(topic).ask("DeleteRecords", 2, {"Topics": records, "TimeoutMs": 5000})
    told()
    d.leader(topic, 1).ask("DescribeProducers", 0, {"Topics": [{"Name": topic, "PartitionIndexes": [1]}]})
