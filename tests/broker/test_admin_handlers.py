"""Administrative requests and questions, on cores in memory: who decides, who hears of it, and who answers alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio
import trio.testing

from tests.support.memory_clients import create_topic, delete_topic, leaders, metadata, owner_of, produce
from tests.support.memory_node import running_node
from tpc_broker.error_codes import ErrorCode
from tpc_broker.errors import JournalStoppedError, PartitionOfflineError
from tpc_broker.kafka import messages
from tpc_broker.kafka.api_keys import ApiKey
from tpc_broker.testing.node import answer_of

NONE = ErrorCode.NONE
TOPIC, BROKER = 2, 4


async def describe_configs(node, core, kind, name, keys=None):
    """Error, values by name."""
    request = messages.DescribeConfigsRequest
    resource = request.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
    (found,) = (await node.ask(core, request(resources=[resource]))).results
    return ErrorCode(found.error_code), {one.name: one.value for one in found.configs}


async def alter_config(node, core, kind, name, key, value):
    request = messages.IncrementalAlterConfigsRequest
    change = request.AlterableConfig(name=key, config_operation=0, value=value)
    resource = request.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
    (found,) = (await node.ask(core, request(resources=[resource]))).responses
    return ErrorCode(found.error_code)


async def test_topics_grow_on_every_core(autojump_clock):
    async with running_node(cores=3) as node:
        await create_topic(node, 0, "t", 2)
        kind = messages.CreatePartitionsRequest

        async def grow(count, *, validate_only=False):
            topic = kind.CreatePartitionsTopic(name="t", count=count, assignments=None)
            answer = await node.ask(2, kind(topics=[topic], timeout_ms=1000, validate_only=validate_only))
            return ErrorCode(answer.results[0].error_code)

        assert await grow(6, validate_only=True) is NONE
        assert len(await leaders(node, 1, "t")) == 2
        assert await grow(6) is NONE
        assert await grow(5) is ErrorCode.INVALID_PARTITIONS
        for core in range(3):
            assert await leaders(node, core, "t") == {index: (owner_of(node, "t", index), 1) for index in range(6)}
        assert [await produce(node, owner_of(node, "t", 5), "t", 5, [b"a"])] == [(NONE, 0)]


async def test_settings_of_a_topic_reach_its_partitions(autojump_clock):
    async with running_node() as node:
        await create_topic(node, 0, "t", 4, retention_ms="5000")
        assert await alter_config(node, 1, TOPIC, "t", "max.message.bytes", "2000") is NONE
        for core in range(2):
            assert {one.config.max_message_bytes for one in node[core].partitions.opened()} == {2000}
            keys = ["max.message.bytes", "retention.ms"]
            wanted = {"max.message.bytes": "2000", "retention.ms": "5000"}
            assert await describe_configs(node, core, TOPIC, "t", keys) == (NONE, wanted)
        assert await alter_config(node, 1, TOPIC, "t", "max.message.bytes", "many") is ErrorCode.INVALID_CONFIG
        assert (await describe_configs(node, 1, TOPIC, "none"))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await describe_configs(node, 1, BROKER, "0"))[0] is ErrorCode.INVALID_REQUEST, "another core's"
        assert (await describe_configs(node, 1, BROKER, "1"))[0] is NONE


async def test_what_is_validated_only_is_not_made(autojump_clock):
    async with running_node(cores=1) as node:
        kind = messages.CreateTopicsRequest
        topics = [kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in ("ok", "bad name")]
        answer = await node.ask(0, kind(topics=topics, timeout_ms=1000, validate_only=True))
        found = {one.name: ErrorCode(one.error_code) for one in answer.topics}
        assert found == {"ok": NONE, "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION}
        assert node[0].view.topic("ok") is None
        assert await delete_topic(node, 0, "ok") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_each_core_tells_the_sizes_of_its_own_partitions(autojump_clock):
    async with running_node() as node:
        await create_topic(node, 0, "t", 4)
        for index in range(4):
            await produce(node, owner_of(node, "t", index), "t", index, [b"a" * 100 * index])
        sizes = {}
        for core in range(2):
            (result,) = (await node.ask(core, messages.DescribeLogDirsRequest(topics=None))).results
            assert (result.log_dir, result.total_bytes, result.usable_bytes) == ("/data", 1000, 500)
            found = {one.partition_index: one.partition_size for topic in result.topics for one in topic.partitions}
            assert set(found) == {index for index in range(4) if owner_of(node, "t", index) == core}
            sizes |= found
        assert sorted(sizes, key=sizes.get) == [0, 1, 2, 3]


@pytest.mark.parametrize("shared", [False, True])
async def test_replicas_are_in_the_one_directory_and_go_to_no_other(autojump_clock, monkeypatch, shared):
    async with running_node() as node:
        await create_topic(node, 0, "t", 4)
        monkeypatch.setattr(type(node[0].view), "is_shared", lambda _view, _listener: shared)
        kind = messages.AlterReplicaLogDirsRequest
        topics = [
            kind.AlterReplicaLogDirTopic(name="t", partitions=[*range(5), -1]),
            kind.AlterReplicaLogDirTopic(name="none", partitions=[0]),
        ]

        async def moved(core, *paths):
            dirs = [kind.AlterReplicaLogDir(path=path, topics=topics) for path in paths]
            topics_told = (await node.ask(core, kind(dirs=dirs))).results
            told = [(topic.topic_name, part) for topic in topics_told for part in topic.partitions]
            return {(name, part.partition_index): part.error_code for name, part in told}

        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for core in range(2):
            found = await moved(core, "/data")
            assert [found.pop(key) for key in (("t", 4), ("t", -1), ("none", 0))] == [unknown] * 3
            for index in range(4):
                is_here = shared or owner_of(node, "t", index) == core
                assert found["t", index] == (NONE if is_here else ErrorCode.REPLICA_NOT_AVAILABLE)
            assert set((await moved(core, "/data", "/other")).values()) == {ErrorCode.LOG_DIR_NOT_FOUND}


async def test_who_means_another_cluster_or_broker_is_sent_back_to_where_it_began(autojump_clock):
    """The answers are those of Kafka 4.4.0."""
    async with running_node() as node:
        cluster_id = node[1].view.image.cluster_id
        assert cluster_id

        async def asked(version=5, **meant):
            named = {"client_software_name": "a", "client_software_version": "1"} | meant
            answer = await node.ask(1, messages.ApiVersionsRequest(**named), version)
            told = [one.api_key for one in answer.api_keys]
            assert bool(told) == (answer.error_code == NONE)
            return ErrorCode(answer.error_code)

        misrouted, invalid = ErrorCode.REBOOTSTRAP_REQUIRED, ErrorCode.INVALID_REQUEST
        for _ in range(2):  # also when the answer for everybody is there
            assert await asked() is NONE
            assert await asked(cluster_id=cluster_id, node_id=1) is NONE
            assert await asked(cluster_id=cluster_id, node_id=0) is misrouted, "core 0 is another broker"
            assert await asked(cluster_id="another", node_id=1) is misrouted
            assert await asked(cluster_id="", node_id=1) is misrouted
        assert await asked(cluster_id=cluster_id) is invalid, "both or neither"
        assert await asked(node_id=1) is invalid
        assert await asked(node_id=-2) is invalid
        assert await asked(cluster_id="another", node_id=1, client_software_name="-") is invalid
        assert await asked(4) is NONE
        known = node[1].view.image
        node[1].view.image = empty = replace(known, cluster_id="")
        assert await asked(cluster_id="another", node_id=1) is NONE, "it does not know its own yet"
        assert ApiKey.API_VERSIONS in {key for key, *_asked in node.lives[1].plane.prepared}
        await node[1]._apply_image(empty, known)
        assert ApiKey.API_VERSIONS not in {key for key, *_asked in node.lives[1].plane.prepared}
        assert await asked(cluster_id="another", node_id=1) is misrouted


async def test_answers_for_everybody_are_kept_until_anything_in_them_changes(autojump_clock):
    async with running_node() as node:
        await create_topic(node, 0, "t", 4)
        plane = node.lives[0].plane
        await node.ask(0, messages.MetadataRequest(topics=None), 12)
        await node.ask(0, messages.ApiVersionsRequest(client_software_name="a", client_software_version="1"))
        assert {asked[0] for asked in plane.prepared} == {ApiKey.METADATA, ApiKey.API_VERSIONS}
        await metadata(node, 0, "t")
        assert len(plane.prepared) == 2, "an answer about one topic is not kept"
        await node.crash(1)
        assert {asked[0] for asked in plane.prepared} == {ApiKey.API_VERSIONS}
        index = next(index for index in range(4) if owner_of(node, "t", index) == 1)
        assert (await leaders(node, 0, "t"))[index] is None
        await node.ask(0, messages.MetadataRequest(topics=None), 12)
        await node.start(1)
        assert {asked[0] for asked in plane.prepared} == {ApiKey.API_VERSIONS}
        assert (await leaders(node, 0, "t"))[index] == (1, 2)


async def test_the_cluster_is_described_by_every_core(autojump_clock):
    async with running_node(cores=3) as node:
        for core in range(3):
            found = await node.ask(core, messages.DescribeClusterRequest(endpoint_type=1), 1)
            assert [(one.broker_id, one.port) for one in found.brokers] == [(0, 9092), (1, 9093), (2, 9094)]
            assert (found.cluster_id, found.controller_id) == ("a-cluster", 0)


async def test_a_client_that_asks_for_what_is_not_offered_is_closed_and_nobody_else(autojump_clock):
    async with running_node(cores=1) as node:
        other = node.send(0, messages.MetadataRequest(topics=None), 12, connection=2)
        assert await node.ask(0, messages.StreamsGroupDescribeRequest(group_ids=["x"]), 0, connection=1) is None
        assert node.lives[0].connections.closed == {1: "refused"}
        await trio.testing.wait_all_tasks_blocked()
        assert answer_of(other).cluster_id == "a-cluster"
        assert node[0].dispatcher.statistics().refused == 1


async def test_a_topic_that_is_named_by_nothing_is_no_topic(autojump_clock):
    async with running_node() as node:
        kind = messages.MetadataRequest
        nothing = kind.MetadataRequestTopic(name=None)
        (told,) = (await node.ask(0, kind(topics=[nothing], allow_auto_topic_creation=True), 12)).topics
        assert (ErrorCode(told.error_code), told.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, None)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (PartitionOfflineError("the journal failed"), ErrorCode.KAFKA_STORAGE_ERROR),
        (JournalStoppedError("the core stops"), ErrorCode.REQUEST_TIMED_OUT),
    ],
)
async def test_a_change_that_the_journal_does_not_take_is_answered(autojump_clock, monkeypatch, failure, code):
    async with running_node(cores=2) as node:
        await create_topic(node, 0, "t", 2)

        async def fail(_batch):
            raise failure

        monkeypatch.setattr(node[0].metadata.log, "append_durably", fail)
        kind = messages.CreateTopicsRequest
        wanted = kind(topics=[kind.CreatableTopic(name="u", num_partitions=1, replication_factor=1)], timeout_ms=1000)
        for core in range(2):
            (told,) = (await node.ask(core, wanted)).topics
            assert (ErrorCode(told.error_code), told.error_message) == (code, str(failure))
        monkeypatch.undo()
        (told,) = (await node.ask(1, wanted)).topics
        assert ErrorCode(told.error_code) is NONE


async def test_a_snapshot_of_the_metadata_that_fails_does_not_undo_the_change(autojump_clock, monkeypatch, caplog):
    async with running_node(cores=1) as node:
        monkeypatch.setattr("tpc_broker.broker.metadata_service.SNAPSHOT_RECORDS", 1)

        async def fail(_offset):
            raise PartitionOfflineError("the journal failed")

        monkeypatch.setattr(node[0].metadata.log, "move_log_start", fail)
        await create_topic(node, 0, "t", 2)
        await create_topic(node, 0, "u", 2)
        assert "no snapshot could be written (the journal failed)" in caplog.text
        monkeypatch.undo()
        await create_topic(node, 0, "v", 2)
        assert sorted(topic.name for topic in node[0].view.image.topics.values()) == ["t", "u", "v"]


async def test_a_change_that_is_too_large_is_refused_to_who_asked_for_it(autojump_clock, monkeypatch):
    async with running_node(cores=2) as node:
        monkeypatch.setattr("tpc_broker.limits.REPLICATED_BATCH_BYTES_MAX", 10_000)
        kind = messages.CreateTopicsRequest
        wanted = kind(topics=[kind.CreatableTopic(name="wide", num_partitions=9_000, replication_factor=1)])
        for core in range(2):
            (told,) = (await node.ask(core, wanted)).topics
            assert ErrorCode(told.error_code) is ErrorCode.KAFKA_STORAGE_ERROR
            assert "at most 10000 are allowed" in told.error_message
        await create_topic(node, 0, "t", 2)
        assert [topic.name for topic in node[1].view.image.topics.values()] == ["t"]


async def test_a_snapshot_of_the_metadata_is_divided(autojump_clock, monkeypatch):
    async with running_node(cores=1) as node:
        monkeypatch.setattr("tpc_broker.limits.OWN_BATCH_BYTES_MAX", 2_000)
        monkeypatch.setattr("tpc_broker.broker.metadata_service.SNAPSHOT_RECORDS", 30)
        for number in range(40):
            await create_topic(node, 0, f"t{number}", 1)
        log = node[0].metadata.log
        assert log.bounds().log_start_offset > 0, "a snapshot was made"
        assert max(map(len, log.files.log.batches)) <= 2_000
        before = node[0].view.image
        await node.restart(0)
        assert node[0].view.image.topics.keys() == before.topics.keys()
