"""One small Spark and one broker for all tests of the data source; skipped where PySpark 4.2 or Java is missing."""

import os
import shutil
import sys
import time

import pytest

from tests.support.broker_process import TpcBroker

NOW_MS = int(time.time()) * 1000 - 600_000


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    pyspark = pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    if tuple(int(number) for number in pyspark.__version__.split(".")[:2]) < (4, 2):
        pytest.skip(f"PySpark {pyspark.__version__} is older than 4.2")
    if shutil.which("java") is None:
        pytest.skip("no Java, which Spark runs on")
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
    admin.create_topics([NewTopic(name, 2)])[name].result(15)
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
        assert producer.flush(30) == 0

    return send
