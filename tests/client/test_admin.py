"""What operators ask through the asynchronous client, on both loops."""

from __future__ import annotations

from contextlib import asynccontextmanager

import anyio
import pytest

from tests.support.both_loops import on_both_loops
from tpc_broker.client import connect
from tpc_broker.client.acls import Acl, AclFilter
from tpc_broker.client.admin import asking
from tpc_broker.client.admin.asking import gathered, raise_worst
from tpc_broker.client.admin.cluster import Downgrade, to_update_features
from tpc_broker.client.admin.groups import Lag
from tpc_broker.client.admin.topics import TO_THE_END, NewTopic
from tpc_broker.client.configs import Resource
from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.errors import (
    ClientError,
    RefusedError,
    UnknownTopicError,
    UnreachableError,
    UnsupportedError,
)
from tpc_broker.client.quotas import USER, ClientQuota
from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition
from tpc_broker.client.users import User
from tpc_broker.kafka import ApiKey, ErrorCode, messages, protocol


@pytest.fixture
def broker(shared_broker):
    """Another module runs these against Kafka."""
    return shared_broker


@asynccontextmanager
async def admin_of(broker):
    async with connect(broker.bootstrap) as client:
        yield client.admin


async def until(ask, is_so):
    """Not every broker has heard of a change when it is answered."""
    while not is_so(found := await ask()):
        await anyio.sleep(0.01)
    return found


@asynccontextmanager
async def topic_of(admin, name, partitions=1):
    """Deleted at the end, so that the other loop finds none."""
    await admin.topics.create(name, partitions=partitions)
    try:
        yield name
    finally:
        await admin.topics.delete(name)


@on_both_loops
async def test_a_topic_is_made_described_grown_and_deleted(broker):
    async with admin_of(broker) as admin:
        topics = admin.topics
        settings = {"retention.ms": "86400000"}
        assert await topics.create("admin-life", partitions=2, configs=settings, validate_only=True)
        made = await topics.create("admin-life", partitions=2, replication=1, configs=settings)
        assert (made.name, made.partitions, made.replication) == ("admin-life", 2, 1)
        assert made.configs["retention.ms"] == "86400000"
        assert await topics.create("admin-life", exist_ok=True) is None
        with pytest.raises(RefusedError, match=r"admin-life.*TOPIC_ALREADY_EXISTS") as caught:
            await topics.create("admin-life")
        assert caught.value.code == ErrorCode.TOPIC_ALREADY_EXISTS
        await topics.add_partitions("admin-life", 3)
        (told,) = await until(lambda: topics.describe("admin-life"), lambda told: len(told[0].partitions) == 3)
        assert told.topic_id == made.topic_id
        assert [one.partition for one in told.partitions] == [0, 1, 2]
        assert all(one.leader in one.isr and not one.is_under_replicated for one in told.partitions)
        assert ("admin-life", made.topic_id, False, 3) in await topics.list()
        await topics.delete("admin-life")
        await topics.delete("admin-life", missing_ok=True)
        await until(topics.list, lambda listed: "admin-life" not in {one.name for one in listed})


@on_both_loops
async def test_several_topics_are_made_each_by_itself(broker, monkeypatch):
    monkeypatch.setattr(asking, "MISSING_TOPIC_SECONDS", 0.1)
    async with admin_of(broker) as admin:
        wanted = [NewTopic("admin-many-a"), NewTopic("not/a/name"), NewTopic("admin-many-b", configs={"x": "y"})]
        with pytest.raises(RefusedError, match="not/a/name") as caught:
            await admin.topics.create_all(wanted)
        assert any("admin-many-b" in note and "INVALID_CONFIG" in note for note in caught.value.__notes__)
        with pytest.raises(UnknownTopicError, match="admin-many-b"):
            await admin.topics.delete("admin-many-a", "admin-many-b")
        await until(admin.topics.list, lambda listed: "admin-many-a" not in {one.name for one in listed})


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        (NewTopic("t", partitions=0), "topic t: 0 partitions; allowed are 1 and more"),
        (NewTopic("t", replication=0), "topic t: 0 replicas"),
        (NewTopic("t", partitions=1, assignments=[[1]]), "either assignments"),
    ],
)
@on_both_loops
async def test_what_no_broker_needs_to_refuse(topic, says):
    async with connect("localhost:1") as client:
        with pytest.raises(ValueError, match=says):
            await client.admin.topics.create_all([topic])


@on_both_loops
async def test_settings_are_altered_and_told(broker):
    async with admin_of(broker) as admin, topic_of(admin, "admin-configs") as name:
        await admin.configs.alter(Resource.TOPIC, name, {"retention.ms": "1000"})
        await until(lambda: admin.configs.topic(name), lambda told: told["retention.ms"] == "1000")
        await admin.configs.alter(Resource.TOPIC, name, {"retention.ms": None})
        await until(lambda: admin.configs.topic(name), lambda told: told["retention.ms"] != "1000")
        (found,) = (one for one in await admin.configs.describe(Resource.TOPIC, name) if one.name == "retention.ms")
        assert (found.value, found.source) == ("604800000", "default")
        assert found.documentation
        with pytest.raises(RefusedError, match=r"INVALID_CONFIG"):
            await admin.configs.alter(Resource.TOPIC, name, {"retention.ms": "soon"})
        (broker, *_others) = (await admin.cluster.describe()).brokers
        assert await admin.configs.describe(Resource.BROKER, str(broker.broker_id))
        with pytest.raises(RefusedError, match="4711"):
            await admin.configs.describe(Resource.BROKER, "4711")


@on_both_loops
async def test_offsets_of_a_group_are_set_told_and_deleted(broker):
    async with admin_of(broker) as admin, topic_of(admin, "admin-offsets", 2):
        groups, (first, second) = admin.groups, await admin.topics.partitions("admin-offsets")
        await groups.set_offsets("admin-offsets", {first: 0, second: Position(0, metadata="by hand")})
        assert await groups.offsets("admin-offsets") == {first: Position(0), second: Position(0, -1, "by hand")}
        assert await groups.offsets("admin-offsets", [first]) == {first: Position(0)}
        assert await groups.lag("admin-offsets") == {first: Lag(0, 0, 0), second: Lag(0, 0, 0)}
        assert (await groups.describe("admin-offsets")).state == "Empty"
        assert "admin-offsets" in {one.group for one in await groups.list(states=["empty"], kinds=["classic"])}
        assert "admin-offsets" not in {one.group for one in await groups.list(kinds=["consumer"])}
        await groups.delete_offsets("admin-offsets", [first])
        assert await groups.offsets("admin-offsets") == {second: Position(0, -1, "by hand")}
        assert await groups.lag("admin-offsets", [first]) == {first: Lag(None, 0, 0)}
        await groups.delete("admin-offsets")
        await groups.delete("admin-offsets", missing_ok=True)
        with pytest.raises(RefusedError, match=r"admin-offsets.*GROUP_ID_NOT_FOUND"):
            await groups.delete("admin-offsets")
        assert (await groups.describe("admin-offsets")).state == "Dead"


@on_both_loops
async def test_records_are_deleted_and_offsets_told(broker):
    async with admin_of(broker) as admin, topic_of(admin, "admin-records", 2) as name:
        where = TopicPartition(name, 0)
        assert await admin.topics.delete_records({where: TO_THE_END}) == {where: 0}
        both = await admin.topics.partitions(name)
        assert await admin.topics.offsets(dict.fromkeys(both, LATEST)) == dict.fromkeys(both, 0)
        assert await admin.topics.offsets({where: EARLIEST}) == {where: 0}
        with pytest.raises(RefusedError, match=rf"{where}.*OFFSET_OUT_OF_RANGE"):
            await admin.topics.delete_records({where: 7, TopicPartition(name, 1): 0})
        with pytest.raises(UnknownTopicError, match="no partition 9"):
            await admin.topics.offsets({TopicPartition(name, 9): LATEST})


@on_both_loops
async def test_users_quotas_and_rules(broker):
    async with admin_of(broker) as admin:
        await admin.users.set("admin-user", "secret", iterations=4096)
        made = [User("admin-user", {"SCRAM-SHA-512": 4096})]
        await until(lambda: admin.users.describe("admin-user"), lambda told: told == made)
        with pytest.raises(RefusedError, match="admin-user"):
            await admin.users.set("admin-user", "secret", iterations=1)
        with pytest.raises(ValueError, match="'MD5'; allowed are SCRAM-SHA-256, SCRAM-SHA-512"):
            await admin.users.set("admin-user", "secret", mechanism="MD5")
        assert await admin.users.delete("admin-user")
        assert not await admin.users.delete("admin-user")
        entity = {USER: "admin-user"}
        await admin.quotas.alter(entity, {"producer_byte_rate": 1000.0})
        limited = [ClientQuota(entity, {"producer_byte_rate": 1000.0})]
        await until(lambda: admin.quotas.describe(entity), lambda told: told == limited)
        await admin.quotas.alter(entity, {"producer_byte_rate": None})
        await until(lambda: admin.quotas.describe(entity), lambda told: told == [])
        with pytest.raises(ValueError, match=r"operation 'LOOK'; allowed are ALL, ALTER"):
            await admin.acls.list(AclFilter(operation="LOOK"))
        rule = Acl("topic", "t", "literal", "User:admin-user", "*", "READ", "ALLOW")
        with pytest.raises(RefusedError, match="SECURITY_DISABLED"):
            await admin.acls.add(rule)


@on_both_loops
async def test_the_cluster_its_features_and_its_leaders(broker):
    async with admin_of(broker) as admin, topic_of(admin, "admin-cluster") as name:
        told = await admin.cluster.describe(with_fenced=True)
        assert told.controller in {one.broker_id for one in told.brokers}
        levels = {one.name: one for one in await admin.cluster.features()}
        assert 1 <= levels["transaction.version"].level <= levels["transaction.version"].level_max
        where = TopicPartition(name, 0)
        assert await admin.cluster.elect_leaders([where]) == {where: False}
        assert await admin.cluster.reassignments([where]) == {}
        with pytest.raises(RefusedError, match=str(where)):
            await admin.cluster.reassign({where: None})


@on_both_loops
async def test_features_are_brought_to_levels(broker):
    async with admin_of(broker) as admin:
        levels = {one.name: one for one in await admin.cluster.features()}
        here = levels["transaction.version"]
        await admin.cluster.update_features({here.name: here.level})
        await admin.cluster.update_features({here.name: here.level}, validate_only=True)
        for level, downgrade in ((here.level_max + 1, None), (here.level - 1, None), (-1, Downgrade.SAFE)):
            with pytest.raises(RefusedError) as told:
                await admin.cluster.update_features({here.name: level}, downgrade=downgrade, validate_only=True)
            assert not told.value.is_retriable
        with pytest.raises(RefusedError):
            await admin.cluster.update_features({"no.such.feature": 1})
        after = {one.name: one for one in await admin.cluster.features()}
        assert after[here.name] == here


def test_what_is_asked_of_old_brokers_for_features():
    def asked(version, downgrade, *, validate_only=False):
        exchange = to_update_features({"f": 3, "g": 0}, downgrade, validate_only=validate_only)
        made = exchange.make(version)
        protocol.encode_request(ApiKey.UPDATE_FEATURES, version, made)
        rows = [(row.feature, row.max_version_level, row.allow_downgrade, row.upgrade_type)
                for row in made.feature_updates]  # fmt: skip
        return rows, made.validate_only

    assert asked(0, None) == ([("f", 3, False, 1), ("g", 0, False, 1)], False)
    assert asked(0, Downgrade.SAFE) == ([("f", 3, True, 1), ("g", 0, True, 1)], False)
    assert asked(1, None, validate_only=True) == ([("f", 3, False, 1), ("g", 0, False, 1)], True)
    assert asked(1, Downgrade.UNSAFE) == ([("f", 3, False, 3), ("g", 0, False, 3)], False)
    for downgrade, validate_only in ((Downgrade.UNSAFE, False), (None, True)):
        with pytest.raises(UnsupportedError, match=r"Kafka 3\.3"):
            asked(0, downgrade, validate_only=validate_only)
    row = messages.UpdateFeaturesResponse.UpdatableFeatureResult
    told = [row(feature="f"), row(feature="g", error_code=ErrorCode.INVALID_UPDATE_VERSION, error_message="too high")]
    with pytest.raises(RefusedError, match=r"feature g.*too high"):
        to_update_features({}, None, validate_only=False).read(messages.UpdateFeaturesResponse(results=told))


@on_both_loops
async def test_worst_errors_come_first():
    async def fails(error):
        raise error

    async def succeeds():
        return 1

    errors = [UnreachableError("away"), RefusedError(ErrorCode.INVALID_CONFIG, "a setting")]
    found = await gathered([lambda: fails(errors[0]), succeeds, lambda: fails(errors[1])])
    assert found == [errors[0], 1, errors[1]]
    with pytest.raises(RefusedError, match="a setting") as caught:
        raise_worst(each for each in found if isinstance(each, ClientError))
    assert caught.value.__notes__ == ["and: away"]
    raise_worst([])
