"""What pytest reads only from this place: options of single tests, what is skipped without io_uring, and
fixtures for tests in several folders."""

import shutil
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.kafka_peer import PeerUnavailable, kafka_jars
from tests.support.tls_proxy import make_certificates
from tpc_broker.cli.connection import leave_interrupts_alone
from tpc_broker.runtime.ring import Ring, RingUnavailable

PLUGINS = ("tiers", "workers", "skips", "kept_files", "mutants", "shared_servers")
pytest_plugins = [f"tests.support.{name}" for name in PLUGINS]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=25, help="how often the crash test kills the broker (default 25)")
    parser.addoption("--kill-seconds", type=float, default=1e9, help="kill no more after so long (default: no end)")
    parser.addoption("--stops", type=int, default=0, help="how often brokers are stopped (default 50, bounded)")
    parser.addoption("--failures", type=int, default=2, help="how often a node of a cluster fails (default 2)")
    parser.addoption("--freezes", type=int, default=10, help="how often a node's disk stands still (default 10)")
    parser.addoption("--moved-partitions", type=int, default=8, help="partitions that move between nodes (default 8)")


def why_no_ring() -> str | None:
    """Why there is no io_uring on this host, in the broker's words; None where there is one."""
    try:
        Ring(8).close()
    except RingUnavailable as reason:
        return str(reason)
    return None


WHY_NO_RING = why_no_ring()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: processes of tests would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
leave_interrupts_alone()  # commands run in this process, and so does trio, which wants the signals' descriptor


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where the host has no io_uring, a test that failed for that reason, and says so, counts as skipped."""
    report = yield
    if report.failed and WHY_NO_RING is not None and WHY_NO_RING in report.longreprtext:
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {WHY_NO_RING}")
    return report


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and what it signed (`make_certificates`)."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    folder: Path = make_certificates(tmp_path_factory.mktemp("certificates"))
    return folder


@pytest.fixture(scope="session")
def kafka_tools() -> None:
    """Kafka's command-line tools are there; otherwise the test is skipped."""
    try:
        kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
