"""Frameworks that are exactly once by transactions, as they come: killed and started again, and so is the broker.

What a reader of committed records finds is counted: nothing is missing, nothing is there twice.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.counted_words import CountedWords
from tests.support.environments import NotInstalledError, quix_streams
from tests.support.kafka_peer import JAVA_FLAGS, PeerUnavailable, kafka_jars
from tests.support.server_process import ServerProcess
from tpc_broker.bench.kafka_jars import flink_jars, framework_jars, java_command

pytestmark = pytest.mark.clients

HERE: Final = Path(__file__).parent
OPENED: Final = [f"--add-opens=java.base/{one}=ALL-UNNAMED" for one in ("java.lang", "java.util", "java.time")]
"""Packages that Flink's serializers look into."""
SOME: Final = 150
"""Words that are counted before somebody is killed."""
SOON: Final = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
"""Of members, so that who is killed is soon out of the group."""


@pytest.fixture(scope="module")
def plain_broker(module_tmp_path) -> Iterator[TpcBroker]:
    """Of this module, to be killed; it is as it comes."""
    made = TpcBroker(module_tmp_path / "broker")
    made.start()
    yield made
    made.stop()


@contextmanager
def running(command: list[str], log: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(command, log)
    process.launch()
    try:
        yield process
    finally:
        process.kill()


def count_under_kills(broker: TpcBroker, topic: str, command: list[str], log: Path, *, gives_up: bool = False) -> None:
    """A program that counts is killed, its broker is, and both at once. `gives_up`: it ends by itself when its broker
    is away, and is started again.
    """
    with CountedWords(broker.bootstrap, topic) as words, running(command, log) as process:

        def is_well() -> bool:
            if gives_up and not process.is_running:
                process.kill()
                process.launch()
            return process.is_running

        try:
            words.wait_more(SOME, is_well)
            for kills_program, kills_broker in ((True, False), (False, True), (True, True), (True, False)):
                if kills_program:
                    process.kill()
                if kills_broker:
                    broker.kill()
                    broker.start()
                if kills_program:
                    process.launch()
                words.wait_more(SOME, is_well)
            words.check(is_well)
        except AssertionError as failure:
            failure.add_note(process.log_text()[-5000:])
            raise


def test_streams(plain_broker, topic, tmp_path):
    try:
        jars = f"{kafka_jars()}/*:{framework_jars()}/*"
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    words = [topic, "exactly_once_v2", topic, f"{topic}-counts", str(10**9), str(tmp_path / "state")]
    settings = [f"{key}={value}" for key, value in {**SOON, "transaction.timeout.ms": "5000"}.items()]
    command = [
        java_command(), "-Xmx256m", *JAVA_FLAGS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", jars,
        str(HERE / "StreamsCounts.java"), plain_broker.bootstrap, *words, *settings,
    ]  # fmt: skip
    count_under_kills(plain_broker, topic, command, tmp_path / "streams.log")


def test_quix_streams(plain_broker, topic, tmp_path):
    try:
        python = quix_streams()
    except NotInstalledError as reason:
        pytest.skip(f"Quix Streams is not there: {reason}")
    given = [plain_broker.bootstrap, topic, topic, f"{topic}-counts", str(tmp_path / "state")]
    command = [str(python), str(HERE / "quix_counts.py"), *given]
    count_under_kills(plain_broker, topic, command, tmp_path / "quix.log", gives_up=True)


def test_flink(plain_broker, topic, tmp_path):
    """Its sink commits with its checkpoints; what it had committed itself to before it was killed it commits later."""
    try:
        jars = flink_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    java, classes = java_command(), tmp_path / "classes"  # Flink looks for them where it finds its own
    path = ":".join(str(jar) for jar in jars.iterdir())
    compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", path, "-d", str(classes)]
    subprocess.run([*compiler, str(HERE / "FlinkCounts.java")], check=True)
    given = [plain_broker.bootstrap, topic, topic, f"{topic}-counts", str(tmp_path / "checkpoints")]
    command = [
        java, "-Xmx512m", *JAVA_FLAGS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *OPENED,
        "-cp", f"{classes}:{jars}/*", "FlinkCounts", *given,
    ]  # fmt: skip
    count_under_kills(plain_broker, topic, command, tmp_path / "flink.log")
