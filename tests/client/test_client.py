"""The synchronous client against a running broker, and its machines without one."""

import random

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.broker_process import TpcBroker
from tests.support.today import BASE_MS
from tests.support.waiting import PATIENCE_S
from tpc_broker.client import requests
from tpc_broker.client.batches import ProducerIdentity, RecordsPart, make_batch, next_sequence
from tpc_broker.client.cluster import Cluster, ClusterSettings, parse_bootstrap
from tpc_broker.client.connection import Connection
from tpc_broker.client.conversation import Conversation
from tpc_broker.client.errors import (
    ClientError,
    DamagedDataError,
    OffsetsMissingError,
    RefusedError,
    UnknownTopicError,
    UnreachableError,
)
from tpc_broker.client.isolation import AbortedTransactions, Isolation
from tpc_broker.client.producing import Producer
from tpc_broker.client.reading import RangeReader, ReadSettings
from tpc_broker.client.requests import Node, TopicPartition
from tpc_broker.kafka import ApiKey, messages
from tpc_broker.kafka import records as codec
from tpc_broker.kafka.compression import Compression


@pytest.fixture
def broker(shared_broker):
    return shared_broker


@pytest.fixture(scope="module")
def own_broker(module_tmp_path):
    """For what restarts it."""
    peer = TpcBroker(module_tmp_path / "broker", cores_count=1)
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture
def topic(broker, request):
    name = f"client-{request.node.name}".replace("[", "-").replace("]", "")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 3)])[name].result(PATIENCE_S)
    return name


@pytest.fixture
def cluster(broker):
    with Cluster(ClusterSettings(broker.bootstrap, retry_seconds=PATIENCE_S)) as made:
        yield made


def part(values, first_ms=BASE_MS):
    """Records with rising times, as `RecordsPart`."""
    records = [codec.Record(value, b"k", first_ms + number) for number, value in enumerate(values)]
    whole = codec.build_batch(records)
    return RecordsPart(whole[61:], len(records), first_ms, first_ms + len(records) - 1)


def values_between(cluster, where, first, end, **settings):
    chunks = RangeReader(cluster, where, first, end, ReadSettings(**settings)).chunks()
    return [
        record.value
        for chunk in chunks
        for record in codec.read_records(chunk.records)
        if first <= record.offset < end
    ]  # fmt: skip


@pytest.mark.parametrize("compression", list(Compression))
def test_what_is_produced_comes_back_from_every_partition(cluster, topic, compression):
    producer = Producer(cluster, compression)
    places = cluster.partitions(topic)
    assert len(places) == 3
    for turn in range(4):
        sent = producer.send({where: part([b"%d-%d" % (where.partition, turn)] * 5) for where in places})
        assert sent == dict.fromkeys(places, 5 * turn)
    ends = cluster.list_offsets(dict.fromkeys(places, requests.LATEST))
    assert ends == dict.fromkeys(places, 20)
    for where in places:
        expected = [b"%d-%d" % (where.partition, turn) for turn in range(4) for _ in range(5)]
        assert values_between(cluster, where, 0, 20) == expected
        assert values_between(cluster, where, 7, 12) == expected[7:12]
        assert values_between(cluster, where, 0, 20, fetch_bytes_max=1) == expected


def test_offsets_by_time(cluster, topic):
    where = TopicPartition(topic, 1)
    producer = Producer(cluster)
    producer.send({where: part([b"a"] * 10)})
    producer.send({where: part([b"b"] * 10, BASE_MS + 1000)})
    for time_ms, offset in ((0, 0), (BASE_MS + 3, 3), (BASE_MS + 500, 10), (BASE_MS + 1009, 19), (BASE_MS + 1010, -1)):
        assert cluster.list_offsets({where: time_ms}) == {where: offset}
    assert cluster.list_offsets({where: requests.EARLIEST}) == {where: 0}


def test_how_large_partitions_are(cluster, topic):
    producer, [first, second, _empty] = Producer(cluster), cluster.partitions(topic)
    producer.send({first: part([bytes(1000)] * 20), second: part([b"x"])})
    sizes = cluster.partition_bytes(cluster.partitions(topic))
    assert len(sizes) == 3
    assert 20_000 < sizes[first] < 30_000
    assert 0 < sizes[second] < 1000
    assert cluster.partition_bytes([]) == {}


def test_a_restarted_broker_goes_on_where_it_was(own_broker):
    with Cluster(ClusterSettings(own_broker.bootstrap, retry_seconds=PATIENCE_S)) as cluster:
        cluster.create_topic("restarted", 3)
        where = TopicPartition("restarted", 0)
        producer = Producer(cluster)
        producer.send({where: part([b"before"])})
        reader = RangeReader(cluster, where, 0, 3, ReadSettings(fetch_bytes_max=1)).chunks()
        assert next(reader).next_offset == 1
        own_broker.restart()
        assert producer.send({where: part([b"after"] * 2)}) == {where: 1}
        assert [chunk.next_offset for chunk in reader][-1] == 3
        assert values_between(cluster, where, 0, 3) == [b"before", b"after", b"after"]


def test_a_batch_that_is_sent_again_as_its_answer_was_lost_is_stored_once(broker, cluster, topic):
    where = TopicPartition(topic, 0)
    producer = Producer(cluster)
    for turn in range(3):
        producer.begin({where: part([b"once"])})
        with Cluster(ClusterSettings(broker.bootstrap)) as other:
            while other.list_offsets({where: requests.LATEST}) != {where: turn + 1}:
                pass
        cluster.close()
        assert producer.finish() == {where: turn}
    assert cluster.list_offsets({where: requests.LATEST}) == {where: 3}


def test_what_was_begun_is_acknowledged_when_the_next_is_sent(cluster, topic):
    places = cluster.partitions(topic)
    producer = Producer(cluster)
    for turn in range(20):
        producer.begin({where: part([b"%d" % turn]) for where in places})
    assert producer.finish() == dict.fromkeys(places, 19)
    assert producer.finish() == {}
    expected = [b"%d" % turn for turn in range(20)]
    assert values_between(cluster, places[1], 0, 20) == expected


def test_after_a_refusal_the_producer_goes_on_and_nothing_is_taken_for_a_repetition(cluster, topic):
    good, bad = TopicPartition(topic, 0), TopicPartition(topic, 1)
    producer = Producer(cluster)
    with pytest.raises(RefusedError, match=f"records for {bad}.*: MESSAGE_TOO_LARGE"):
        producer.send({good: part([b"first"]), bad: part([bytes(2_000_000)])})
    producer.send({good: part([b"second"]), bad: part([b"small"])})
    end = cluster.list_offsets({good: requests.LATEST})[good]
    assert values_between(cluster, good, 0, end) in ([b"first", b"second"], [b"second"])
    assert values_between(cluster, bad, 0, 1) == [b"small"]


def test_unknown_topics_and_partitions_are_named(cluster, topic):
    with pytest.raises(UnknownTopicError, match="no-such-topic"):
        cluster.topic("no-such-topic")
    with pytest.raises(UnknownTopicError, match=f"{topic} has no partition 7; it has 3"):
        cluster.connection_to_leader(TopicPartition(topic, 7))
    assert topic in cluster.topic_names()
    assert "no-such-topic" not in cluster.topic_names()


def test_missing_offsets_are_an_error_or_are_skipped(cluster, topic):
    where = TopicPartition(topic, 2)
    producer = Producer(cluster)
    for number in range(6):
        producer.send({where: part([b"%d" % number])})
    admin = AdminClient({"bootstrap.servers": cluster.settings.bootstrap})
    next(iter(admin.delete_records([Place(topic, 2, 4)]).values())).result(PATIENCE_S)
    said = rf"{topic}-2: offsets \[1, 4\) are not in the log, which holds \[4, 6\)"
    with pytest.raises(OffsetsMissingError, match=said):
        values_between(cluster, where, 1, 6)
    assert values_between(cluster, where, 1, 6, skips_missing=True) == [b"4", b"5"]
    assert values_between(cluster, where, 1, 3, skips_missing=True) == []


def test_a_record_that_is_too_large_is_refused_at_once(cluster, topic):
    with pytest.raises(RefusedError, match=f"records for {topic}-0.*: MESSAGE_TOO_LARGE"):
        Producer(cluster).send({TopicPartition(topic, 0): part([bytes(2_000_000)])})


def test_nobody_there():
    with (
        pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"),
        Cluster(ClusterSettings("127.0.0.1:1", retry_seconds=0.2)) as cluster,
    ):
        cluster.topic_names()
    with pytest.raises(ValueError, match="no host:port: 'here'"):
        parse_bootstrap("127.0.0.1:9092, here")
    with pytest.raises(ValueError, match="'http://here:9092': no host has such a name"):
        parse_bootstrap("http://here:9092")
    with pytest.raises(ValueError, match="no host has such a name"):
        parse_bootstrap("127.0.0.1:9092, a..b:9092")


def test_a_node_whose_name_no_host_can_have_is_not_reached():
    with pytest.raises(UnreachableError, match=r"no connection to a\.\.b:9092"):
        Connection(Node("a..b", 9092), "test", 1)


def test_columns_of_compressed_and_plain_batches(cluster, topic):
    pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    from tpc_broker.client.columns import ColumnReader

    where = TopicPartition(topic, 0)
    expected = []
    for compression in Compression:
        values = [random.Random(compression).randbytes(50) for _ in range(200)]
        Producer(cluster, compression).send({where: part(values)})
        expected += values
    chunks = RangeReader(cluster, where, 150, 950, ReadSettings()).chunks()
    batches = list(ColumnReader(where, ("offset", "value"), 150, 950).read(chunks))
    assert [offset for batch in batches for offset in batch.column(0).to_pylist()] == list(range(150, 950))
    assert [value for batch in batches for value in batch.column(1).to_pylist()] == expected[150:950]


def transaction(base_offset, producer_id, values, **more):
    records = [codec.Record(value, None, BASE_MS) for value in values]
    return codec.build_batch(records, base_offset=base_offset, producer_id=producer_id, is_transactional=True, **more)


def end(base_offset, producer_id, control):
    whose = {"producer_id": producer_id, "producer_epoch": 0, "coordinator_epoch": 0}
    return codec.control_batch(control, **whose, timestamp_ms=BASE_MS, base_offset=base_offset)


def interleaved():
    """Two producers: 1 aborts [0, 2) and [9, 10), commits 7; 2 commits 2, 3."""
    abort, commit = codec.ControlType.ABORT, codec.ControlType.COMMIT
    plain = codec.build_batch([codec.Record(b"plain", None, BASE_MS)], base_offset=5)
    return (
        transaction(0, 1, [b"x", b"x"], compression=Compression.ZSTD) + transaction(2, 2, [b"two", b"two"])
        + end(4, 1, abort) + plain + end(6, 2, commit) + transaction(7, 1, [b"one"]) + end(8, 1, commit)
        + transaction(9, 1, [b"x"]) + end(10, 1, abort)
    )  # fmt: skip


def test_aborted_transactions_are_invisible():
    tracker = AbortedTransactions([(1, 9), (1, 0)])
    seen = []
    for batch in codec.read_batches(interleaved()):
        abort = batch.is_control and codec.read_control(next(batch.records()))[0] == codec.ControlType.ABORT
        if tracker.admits(batch, is_abort=abort):
            seen += [record.value for record in batch.records()]
    assert seen == [b"two", b"two", b"plain", b"one"]
    assert Isolation.READ_COMMITTED == 1


def test_an_aborted_transaction_ends_where_its_marker_was():
    """The list is older than the bytes, from which the marker was cleaned meanwhile."""
    without = b"".join(bytes(one.data) for one in codec.read_batches(interleaved()) if one.base_offset != 4)

    def seen(*aborted):
        tracker = AbortedTransactions(aborted)
        batches = [one for one in codec.read_batches(without) if tracker.admits(one, is_abort=False)]
        return [record.value for one in batches for record in one.records()]

    assert seen((1, 0, 4), (1, 9, 10)) == [b"two", b"two", b"plain", b"one"]
    assert b"one" not in seen((1, 0), (1, 9, 10)), "of which nobody knows"


@pytest.mark.parametrize(
    ("aborted", "expected"),
    [
        ([(1, 0), (1, 9)], [b"two", b"two", b"plain", b"one"]),
        ([], [b"x", b"x", b"two", b"two", b"plain", b"one", b"x"]),
    ],
)
def test_columns_leave_out_what_was_aborted_and_all_markers(aborted, expected):
    pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    from tpc_broker.client.columns import ColumnReader
    from tpc_broker.client.reading import Chunk

    chunk = Chunk(0, 11, memoryview(interleaved()), aborted)
    batches = list(ColumnReader(TopicPartition("t", 0), ("value",), 0, 11).read([chunk]))
    assert [value for batch in batches for value in batch.column(0).to_pylist()] == expected


@pytest.mark.parametrize("position", [20, 100, -1])
def test_damaged_batches_are_named_by_topic_partition_and_offset(position):
    pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
    from tpc_broker.client.columns import ColumnReader
    from tpc_broker.client.reading import Chunk

    good = codec.build_batch([codec.Record(b"good", None, BASE_MS)], base_offset=40)
    bad = bytearray(transaction(41, 1, [b"bad" * 20]))
    bad[position] ^= 1
    chunk = Chunk(40, 42, memoryview(good + bad), [])
    with pytest.raises(DamagedDataError, match="t-3, offset 41: the record batch cannot be read: its CRC is wrong"):
        list(ColumnReader(TopicPartition("t", 3), ("value",), 0, 99).read([chunk]))


def test_an_api_that_the_client_does_not_speak_is_one_line():
    conversation = Conversation("t")
    conversation.agree(messages.ApiVersionsResponse(error_code=0, api_keys=[]))
    for key, said in (
        (ApiKey.ALTER_REPLICA_LOG_DIRS, "this client does not speak AlterReplicaLogDirs"),
        (ApiKey.METADATA, "the broker and this client have no version of Metadata in common"),
    ):
        with pytest.raises(ClientError) as refused:
            conversation.version(key)
        assert str(refused.value) == said


def test_sequences_wrap_as_kafka_counts_them():
    assert next_sequence(2**31 - 2, 3) == 1
    batch = codec.read_batch(make_batch(part([b"v"]), Compression.GZIP, ProducerIdentity(7, 2), 2**31 - 1))
    batch.check_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 2, 2**31 - 1)
    assert [record.value for record in batch.records()] == [b"v"]
