"""The data source ``tpc`` in a real Spark, once each way: all of it is in `test_source` and `test_sink`."""

import pytest
from confluent_kafka.admin import AdminClient


@pytest.fixture
def broker(shared_broker):
    return shared_broker


@pytest.fixture
def admin(broker):
    return AdminClient({"bootstrap.servers": broker.bootstrap})


def test_a_batch_is_read_and_written_back(spark, broker, admin, topic, produce):
    """What librdkafka wrote is read, changed by Spark, written to the same topic, and read again."""
    for partition in (0, 1):
        produce(topic, partition, [f"{partition}-{number}" for number in range(100)], compression="zstd")

    def stored():
        frame = spark.read.format("tpc").option("bootstrap", broker.bootstrap).option("subscribe", topic).load()
        return frame.selectExpr("cast(value as string) as value", "partition", "offset")

    first = stored().collect()
    wanted = {(f"{partition}-{number}", partition, number) for partition in (0, 1) for number in range(100)}
    assert len(first) == 200
    assert set(map(tuple, first)) == wanted
    changed = stored().selectExpr("cast(concat('again ', value) as binary) as value")
    changed.write.format("tpc").mode("append").option("bootstrap", broker.bootstrap).option("topic", topic).save()
    second = stored().collect()
    assert len(second) == 400
    assert {row.value for row in second if row.offset >= 100} == {f"again {value}" for value, *_ in wanted}
