"""What pytest reads only from this place: options of single tests, what is skipped without io_uring, and
fixtures for tests in several folders."""

import shutil
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.support.kafka_peer import PeerUnavailable, kafka_jars
from tests.support.tls_proxy import make_certificates
from tpc_broker.cli.connection import leave_interrupts_alone
from tpc_broker.runtime.ring import Ring, RingUnavailable

# How long an example takes, or is made, is the machine's matter: it is shared.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

pytest_plugins = ["tests.support.kept_files", "tests.support.mutants"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=25, help="how often the crash test kills the broker (default 25)")
    parser.addoption("--kill-seconds", type=float, default=1e9, help="kill no more after so long (default: no end)")
    parser.addoption("--stops", type=int, default=0, help="how often brokers are stopped (default 50, bounded)")
    parser.addoption("--failures", type=int, default=2, help="how often a node of a cluster fails (default 2)")
    parser.addoption("--moved-partitions", type=int, default=8, help="partitions that move between nodes (default 8)")
    parser.addoption("--crash-seed", type=int, default=None, help="seed of the crash tests (default: a new one)")
    parser.addoption("--all-points", action="store_true", help="disturb storage at every point, not at a few")


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


SHARED_BUILD = ("tests/durability/test_crash_images.py", "tests/runtime/test_journal_mutants.py")
"""Modules that want `built_with_mutants`."""


def one_process_for(nodeid: str) -> str:
    """What shares costly fixtures with this test: its module, all of Spark, or what runs one build of the C part."""
    module = nodeid.partition("::")[0]
    if module in SHARED_BUILD:
        return "tests/support/mutants.py"
    return "tests/spark" if module.startswith("tests/spark/") else module


class FixturesTogether(LoadFileScheduling):
    """``-n 2 --dist loadfile``: what shares costly fixtures runs in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return one_process_for(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return FixturesTogether(config, log) if config.getvalue("dist") == "loadfile" else None


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
