"""How rows become batches and requests: the sink without Spark and without a broker."""

import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")
pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tpc_broker.client.errors import RefusedError
from tpc_broker.client.requests import TopicPartition
from tpc_broker.kafka import ErrorCode
from tpc_broker.spark import sink
from tpc_broker.spark.options import OptionError, write_options
from tpc_broker.spark.pace import Rate


class Producer:
    """Keeps what it is to send: of each request, records and bytes by partition."""

    def __init__(self, _cluster, _compression, _transaction):
        self.requests = []

    def begin(self, parts):
        self.requests.append({where.partition: (part.records_count, len(part.data)) for where, part in parts.items()})

    def finish(self):
        pass


class Cluster:
    def __init__(self, partitions_count=1):
        self.partitions_count = partitions_count

    def partitions(self, topic):
        return [TopicPartition(topic, number) for number in range(self.partitions_count)]


@pytest.fixture
def sent(monkeypatch):
    """What rows of these sizes (and partitions) become."""

    def send(sizes, partitions=None, *, taken=1_048_588, batch_bytes=900_000):
        monkeypatch.setattr(sink, "Producer", Producer)
        monkeypatch.setattr(sink, "_bytes_taken", lambda _cluster, _topic: taken - 61)
        options = write_options({"bootstrap": "h:1", "topic": "t", "batchBytes": str(batch_bytes)})
        producer = sink.RowsProducer(Cluster(1 + max(partitions or [0])), options)
        columns = {"value": pa.array([bytes(size) for size in sizes])}
        columns |= {"partition": pa.array(partitions, pa.int32())} if partitions else {}
        producer.write(pa.RecordBatch.from_pydict(columns))
        return producer._producer.requests

    return send


def test_rows_are_written_no_faster_than_the_task_may(monkeypatch):
    """In the sink, as Spark's functions on Arrow need pandas for it."""
    paced = []
    monkeypatch.setattr(sink, "cluster_of", lambda _settings: Cluster())
    monkeypatch.setattr(sink, "Producer", Producer)
    monkeypatch.setattr(sink, "_bytes_taken", lambda _cluster, _topic: 10_000)
    monkeypatch.setattr(sink, "paced_batches", lambda rate, batches: paced.append(rate) or batches)
    rows = pa.RecordBatch.from_pydict({"value": pa.array([b"a", b"b"])})
    given = {"bootstrap": "h:1", "topic": "t"}
    for more in ({}, {"taskRecordsPerSecond": "0.5"}, {"taskBytesPerSecond": "1e3"}):
        assert sink._write_rows(write_options({**given, **more}), [rows], lambda: None) == (2, None)
    assert paced == [Rate(0.5), Rate(bytes_per_second=1000.0)]
    for more, said in (
        ({"taskRecordsPerSecond": "1", "taskBytesPerSecond": "1"}, "say the same thing in two ways"),
        ({"taskRecordsPerSecond": "fast"}, "are numbers"),
        ({"taskBytesPerSecond": "-1"}, "are above 0"),
    ):
        with pytest.raises(OptionError, match=said):
            write_options({**given, **more})


def test_a_row_that_is_larger_than_a_batch_goes_alone_and_in_its_turn(sent):
    requests = sent([10, 10, 1_000_000, 10, 5_000_000, 10])
    assert [request[0][0] for request in requests] == [2, 1, 1, 1, 1]
    assert [request[0][1] > 900_000 for request in requests] == [False, True, False, True, False]


def test_batches_of_several_rows_are_no_larger_than_the_topic_takes(sent):
    requests = sent([200] * 100, taken=5000)
    assert sum(request[0][0] for request in requests) == 100
    assert all(request[0][1] + 61 <= 5000 for request in requests)
    assert len(requests) == 5
    assert [request[0][0] for request in sent([200] * 9, taken=100)] == [1] * 9, "the broker refuses each, if it does"


def test_a_request_has_not_the_batches_of_all_partitions(sent, monkeypatch):
    monkeypatch.setattr(sink, "REQUEST_BYTES_MAX", 10_000)
    requests = sent([3000] * 40, [number % 20 for number in range(40)], batch_bytes=4000)
    assert all(sum(size for _count, size in request.values()) < 10_000 + 4000 for request in requests)
    assert [len(request) for request in requests] == [4] * 10
    rows = {partition: sum(request.get(partition, (0, 0))[0] for request in requests) for partition in range(20)}
    assert rows == dict.fromkeys(range(20), 2)


def test_what_no_request_can_carry_is_refused_here(sent, monkeypatch):
    monkeypatch.setattr(sink, "ROW_BYTES_MAX", 2_000_000)
    assert len(sent([1_900_000])) == 1
    with pytest.raises(OptionError, match="t-0: row 1 is larger than 2000000 bytes, more than a request may have"):
        sent([10, 2_100_000])


def test_where_the_broker_does_not_say_its_limit_it_is_left_to_it(monkeypatch):
    def refused(_cluster, _kind, _name):
        raise RefusedError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "settings of t")

    monkeypatch.setattr(sink.configs, "describe", refused)
    assert sink._bytes_taken(Cluster(), "t") == sink.ROW_BYTES_MAX
