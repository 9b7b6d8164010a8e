"""Transactions that this client begins and ends, as librdkafka and the broker see them."""

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer
from confluent_kafka import TopicPartition as Place

from tests.support.today import BASE_MS
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker import limits
from tpc_broker.client import transacting, transactions
from tpc_broker.client.batches import RecordsPart
from tpc_broker.client.cluster import Cluster, ClusterSettings
from tpc_broker.client.conversation import VERSION_MAX
from tpc_broker.client.coordinators import CoordinatorKind, find_coordinators
from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.client.groups import describe_group
from tpc_broker.client.producing import Producer
from tpc_broker.client.requests import EARLIEST, LATEST, TopicPartition
from tpc_broker.kafka import ApiKey, ErrorCode
from tpc_broker.kafka.records import HEADER_BYTES, Record, build_batch

MINUTE_MS = 60_000


@pytest.fixture
def broker(shared_broker):
    return shared_broker


@pytest.fixture
def cluster(broker):
    with Cluster(ClusterSettings(broker.bootstrap, retry_seconds=PATIENCE_S)) as made:
        yield made


@pytest.fixture
def name(request):
    return f"transacting-{request.node.name}".replace("[", "-").replace("]", "")


@pytest.fixture
def place(cluster, name):
    cluster.create_topic(name, 2)
    return TopicPartition(name, 1)


def part(*values):
    data = build_batch([Record(value, None, BASE_MS) for value in values])[HEADER_BYTES:]
    return RecordsPart(data, len(values), BASE_MS, BASE_MS)


def read(broker, place, count):
    """The first committed values."""
    settings = {"group.id": "-", "isolation.level": "read_committed"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, **settings})
    consumer.assign([Place(*place, OFFSET_BEGINNING)])
    try:
        found = []
        while len(found) < count:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, found
            assert message.error() is None, message.error()
            found.append(message.value())
        return found
    finally:
        consumer.close()


def described(cluster, name):
    return transactions.describe_transactions(cluster, [name]).get(name)


def test_what_was_committed_is_read_and_what_was_aborted_is_not(broker, cluster, place, name):
    assert transacting.level_spoken_by(cluster) == 2
    for number, commits in enumerate((True, False, True)):
        transaction = transacting.begin(cluster, name, MINUTE_MS)
        producer = Producer(cluster, transaction=transaction)
        for letter in (b"a", b"b"):
            producer.send({place: part(letter + b"%d" % number, b"-")})
        assert transaction.is_open(described(cluster, name))
        assert transacting.end_all(cluster, [transaction], commits=commits) == {}
        assert not transaction.is_open(described(cluster, name))
        assert transacting.end_all(cluster, [transaction], commits=commits) == {}, "it may be said twice"
        (refusal,) = transacting.end_all(cluster, [transaction], commits=not commits).values()
        assert refusal.code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.PRODUCER_FENCED)
    assert read(broker, place, 8) == [b"a0", b"-", b"b0", b"-", b"a2", b"-", b"b2", b"-"]


def test_who_begins_an_id_anew_ends_what_another_began(cluster, place, name):
    first = transacting.begin(cluster, name, MINUTE_MS)
    producer = Producer(cluster, transaction=first)
    producer.send({place: part(b"a")})
    assert cluster.list_offsets({place: LATEST})[place] == 0, "it is open"
    second = transacting.begin(cluster, name, MINUTE_MS)
    assert second.producer_epoch > first.producer_epoch
    assert not first.is_open(described(cluster, name))
    eventually(lambda: cluster.list_offsets({place: LATEST})[place] == 2, "record and marker")
    with pytest.raises(RefusedError, match="INVALID_PRODUCER_EPOCH"):
        producer.send({place: part(b"b")})
    with pytest.raises(ClientError, match="can only be aborted"):
        producer.send({place: part(b"c")})
    (refusal,) = transacting.end_all(cluster, [first], commits=True).values()
    assert refusal.code == ErrorCode.PRODUCER_FENCED
    assert described(cluster, name) is not None
    Producer(cluster, transaction=second).send({place: part(b"d")})
    assert second.is_open(described(cluster, name))
    assert not first.is_open(described(cluster, name)), "the open one is another"
    assert transacting.end_all(cluster, [second], commits=False) == {}
    assert described(cluster, "nobody") is None


def test_of_many_no_more_are_asked_for_than_a_broker_tells(cluster, monkeypatch):
    asked, many = [], list(map(str, range(2 * limits.TRANSACTIONS_DESCRIBED_MAX + 1)))

    def told(_cluster, some):
        asked.append(len(some))
        return dict.fromkeys(some)

    monkeypatch.setattr(transactions, "_describe_once", told)
    assert list(transactions.describe_transactions(cluster, many)) == many
    assert max(asked) <= limits.TRANSACTIONS_DESCRIBED_MAX


def test_an_offset_within_a_transaction_is_there_when_that_is_committed(cluster, place, name):
    group = f"{name}-group"
    assert transacting.stable_offset(cluster, group, place) is None
    for offset, commits in ((5, True), (6, False)):
        transaction = transacting.begin(cluster, name, MINUTE_MS)
        transacting.commit_offset(cluster, transaction, group, place, offset, f"of {offset}")
        with pytest.raises(RefusedError, match="UNSTABLE_OFFSET_COMMIT"):
            transacting.stable_offset(cluster, group, place, 0.2)
        assert transacting.end_all(cluster, [transaction], commits=commits) == {}
        assert transacting.stable_offset(cluster, group, place) == (5, "of 5")
    with pytest.raises(RefusedError, match="the offset 7 of group"):
        transacting.commit_offset(cluster, transaction, group, place, 7, "")


def test_many_end_together_and_one_of_them_is_too_late(cluster, place, name):
    both = [place, TopicPartition(place.topic, 0)]
    begun = [transacting.begin(cluster, f"{name}-{number}", MINUTE_MS) for number in range(20)]
    for transaction in begun:
        Producer(cluster, transaction=transaction).send({where: part(b"a") for where in both})
    transacting.begin(cluster, begun[7].transactional_id, MINUTE_MS)
    assert list(transacting.end_all(cluster, begun, commits=True)) == [begun[7]]
    ends = dict.fromkeys(both, 40)
    eventually(lambda: cluster.list_offsets(dict.fromkeys(both, LATEST)) == ends, "records and markers")
    assert cluster.list_offsets(dict.fromkeys(both, EARLIEST)) == dict.fromkeys(both, 0)


@pytest.mark.parametrize("version", [3, VERSION_MAX[ApiKey.FIND_COORDINATOR]])
def test_coordinators_are_found_one_at_a_time_too(cluster, name, monkeypatch, version):
    monkeypatch.setitem(VERSION_MAX, ApiKey.FIND_COORDINATOR, version)
    found = find_coordinators(cluster, CoordinatorKind.GROUP, [name])
    assert found[name].broker_id in cluster.broker_ids()
    assert describe_group(cluster, name).state == "Dead"
