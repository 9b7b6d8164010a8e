"""One small Spark and one broker for all tests of the data source; skipped where PySpark 4.2 or Java 17 is missing."""

import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.kafka_peer import JAVA_FLAGS
from tests.support.waiting import PATIENCE_S, eventually
from tpc_broker.bench.kafka_jars import connector_jars
from tpc_broker.bench.server import PeerUnavailable

for launched in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):  # of all that a test starts; JVMs with short lives
    os.environ.setdefault(launched, " ".join(JAVA_FLAGS))

NOW_MS = int(time.time()) * 1000 - 600_000


def require_java():
    """Skip with the reason where there is none that Spark runs on."""
    if shutil.which("java") is None:
        pytest.skip("no Java, which Spark runs on")
    told = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < 17:
        pytest.skip(f"Spark needs Java 17 or newer; java -version says {told.splitlines()[:1]}")


@pytest.fixture(scope="session")
def kafka_connector():
    """Jars of Spark's own Kafka source and sink, or the reason why there are none."""
    try:
        return connector_jars()
    except PeerUnavailable as reason:
        return str(reason)


@pytest.fixture
def connector(kafka_connector, spark):
    """Spark's own ``kafka`` format works in the session."""
    if isinstance(kafka_connector, str):
        pytest.skip(kafka_connector)
    return "kafka"


@pytest.fixture(scope="session")
def spark(tmp_path_factory, kafka_connector):
    pyspark = pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    if tuple(int(number) for number in pyspark.__version__.split(".")[:2]) < (4, 2):
        pytest.skip(f"PySpark {pyspark.__version__} is older than 4.2")
    require_java()
    from pyspark.sql import SparkSession

    from tpc_broker.spark import register

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tpc tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.jars", ",".join(map(str, [] if isinstance(kafka_connector, str) else kafka_connector)))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    peer = TpcBroker(tmp_path_factory.mktemp("broker"), cores_count=2)
    peer.start()
    yield peer
    peer.stop()


@pytest.fixture(scope="session")
def admin(broker):
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": broker.bootstrap})


@pytest.fixture
def topic(admin, request):
    """A topic of two partitions for one test."""
    from confluent_kafka.admin import NewTopic

    name = f"{request.node.path.stem}-{request.node.name}".replace("[", "-").replace("]", "")
    admin.create_topics([NewTopic(name, 2)])[name].result(PATIENCE_S)
    return name


@pytest.fixture
def produce(broker):
    """produce(topic, partition, values, …): with librdkafka, so that reading is tested against another client."""
    from confluent_kafka import Producer

    def send(topic, partition, values, *, compression="none", first_ms=NOW_MS, keys=None, headers=None):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": compression, "linger.ms": 5})
        for number, value in enumerate(values):
            producer.produce(
                topic, value, None if keys is None else keys[number], partition,
                timestamp=first_ms + number, headers=headers or [],
            )  # fmt: skip
        assert producer.flush(PATIENCE_S) == 0

    return send


def committed_values(broker, topic):
    """Of all committed records, once nothing is open: with librdkafka, which knows nothing of how we read."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, TopicPartition
    from confluent_kafka.admin import AdminClient, OffsetSpec

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    places = [TopicPartition(topic, number) for number in admin.list_topics(topic).topics[topic].partitions]

    def ends(isolation):
        asked = dict.fromkeys(places, OffsetSpec.latest())
        told = admin.list_offsets(asked, isolation_level=isolation)
        return {place: told[place].result().offset for place in places}

    def settled():
        return ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED)

    eventually(settled, "an end of all transactions")
    settings = {"isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "error"}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "-", "log_level": 0, **settings})
    try:
        consumer.assign([TopicPartition(topic, place.partition, OFFSET_BEGINNING) for place in places])
        found, ended = [], set()
        while len(ended) < len(places):
            message = consumer.poll(PATIENCE_S)
            assert message is not None, "nothing more came"
            if message.error() is None:
                found.append(message.value())
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
    finally:
        consumer.close()
    return found
