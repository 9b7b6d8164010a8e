"""What pytest reads only from this place: options of single tests, the backend where io_uring is refused, and
fixtures for tests in several folders."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.backends import OURS, WHY_NO_IO_URING
from tests.support.kafka_peer import PeerUnavailable, kafka_jars
from tests.support.seccomp import libseccomp
from tests.support.tls_proxy import make_certificates
from tools import extract_schema
from tpc_broker.cli.connection import leave_interrupts_alone
from tpc_broker.engine.ring import BACKEND_VARIABLE, Backend

PLUGINS = ("tiers", "workers", "skips", "kept_files", "mutants", "shared_servers")
pytest_plugins = [f"tests.support.{name}" for name in PLUGINS]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=25, help="how often the crash test kills the broker (default 25)")
    parser.addoption("--kill-seconds", type=float, default=1e9, help="kill no more after so long (default: no end)")
    parser.addoption("--stops", type=int, default=0, help="how often brokers are stopped (default 50, bounded)")
    parser.addoption("--failures", type=int, default=2, help="how often a node of a cluster fails (default 2)")
    parser.addoption("--freezes", type=int, default=10, help="how often a node's disk stands still (default 10)")
    parser.addoption("--moved-partitions", type=int, default=8, help="partitions that move between nodes (default 8)")


def pytest_report_header() -> list[str]:
    return [] if WHY_NO_IO_URING is None else [f"on the plain backend: {WHY_NO_IO_URING}"]


if OURS is Backend.PLAIN:
    os.environ[BACKEND_VARIABLE] = Backend.PLAIN
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: processes of tests would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
leave_interrupts_alone()  # commands run in this process, and so does trio, which wants the signals' descriptor


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and what it signed (`make_certificates`)."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    folder: Path = make_certificates(tmp_path_factory.mktemp("certificates"))
    return folder


@pytest.fixture(scope="session")
def system_call_filters() -> None:
    """`tests.support.seccomp` can make filters; otherwise the test is skipped."""
    try:
        libseccomp()
    except OSError as reason:
        pytest.skip(f"no libseccomp: {reason}")


@pytest.fixture(scope="session")
def kafka_tools() -> None:
    """Kafka's command-line tools are there; otherwise the test is skipped."""
    try:
        kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def newest_kafka() -> str:
    """The version of Kafka that the schema is made from, whose tools are there; otherwise the test is skipped."""
    try:
        kafka_jars(extract_schema.KAFKA_VERSION)
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    return extract_schema.KAFKA_VERSION
