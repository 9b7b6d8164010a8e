"""The ledger of committed epochs: what it says, and how much of it is read for that."""

import pytest
from confluent_kafka.admin import ConfigResource

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.errors import DamagedDataError
from tpc_broker.spark import epochs
from tpc_broker.spark.epochs import EpochLedger


@pytest.fixture
def ledger(broker, monkeypatch, admin, topic):
    """An empty one."""
    monkeypatch.setattr(epochs, "LEDGER_TOPIC", topic)
    monkeypatch.setattr(epochs, "_WHERE", epochs.TopicPartition(topic, 0))
    with Cluster(ClusterSettings(broker.bootstrap)) as cluster:
        yield EpochLedger(cluster)


def test_the_last_epoch_of_each_query_counts_wherever_it_stands(ledger, monkeypatch):
    monkeypatch.setattr(epochs, "RECORDS_READ_FIRST", 2)
    assert not ledger.is_committed("a", 0)
    ledger.commit("a", 0)
    ledger.commit("a", 1)
    for epoch in range(12):
        ledger.commit("b", epoch)
    assert [ledger.is_committed("a", epoch) for epoch in range(3)] == [True, True, False]
    assert [ledger.is_committed("b", epoch) for epoch in (0, 11, 12)] == [True, True, False]
    assert not ledger.is_committed("c", 0)
    ledger.commit("b", 3)
    assert ledger.is_committed("b", 11), "replaying an old epoch forgets the later ones"


def test_a_running_query_reads_the_end_of_the_ledger_alone(ledger, monkeypatch):
    monkeypatch.setattr(epochs, "RECORDS_READ_FIRST", 4)
    for epoch in range(30):
        ledger.commit("a", epoch)
    ledger.commit("b", 0)
    read = []
    real = epochs.RangeReader

    def reader(cluster, where, begin, end, settings):
        read.append((begin, end))
        return real(cluster, where, begin, end, settings)

    monkeypatch.setattr(epochs, "RangeReader", reader)
    assert not ledger.is_committed("a", 30)
    assert read == [(27, 31)]


def test_what_is_no_epoch_is_named(ledger, topic, produce):
    produce(topic, 0, ["rubbish"], keys=[b"a"])
    with pytest.raises(DamagedDataError, match=rf"{topic}-0, offset 0: no epoch"):
        ledger.is_committed("a", 0)
    assert not ledger.is_committed("b", 0)


def test_nothing_of_it_is_compacted_at_once(ledger, admin, topic, monkeypatch):
    """What an unfinished decision names stays, whatever is written behind it under the same key."""
    monkeypatch.setattr(epochs, "LEDGER_TOPIC", f"{topic}-made")
    ledger.make_topic()
    [asked] = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, f"{topic}-made")]).values()
    found = {name: entry.value for name, entry in asked.result().items()}
    assert found["cleanup.policy"] == "compact"
    assert int(found["min.compaction.lag.ms"]) == epochs.KEPT_MS
