"""franz-go's own tests of its consumer groups, transactions and logins, of the version that tests/franz_go names, run
against a running broker.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker_process import TpcBroker
from tests.support.sasl_brokers import USERS, SaslBroker, make_users

pytestmark = pytest.mark.clients
MODULE: Final = Path(__file__).parents[1] / "franz_go"
PACKAGE: Final = "github.com/twmb/franz-go/pkg/kgo"
ENVIRONMENT: Final = {**os.environ, "GOFLAGS": "-buildvcs=false", "GOTOOLCHAIN": "local"}
SECONDS: Final = 300
RECORDS: Final = 20_000


@pytest.fixture(scope="module")
def its_tests(module_tmp_path: Path) -> Path:
    """The program that they are."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")
    fetched = subprocess.run(
        [go, "mod", "download"], cwd=MODULE, env=ENVIRONMENT, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    if fetched.returncode:
        pytest.skip(f"franz-go could not be fetched: {fetched.stderr.strip()[-300:]}")
    target = module_tmp_path / "kgo.test"
    built = subprocess.run(
        [go, "test", "-c", "-o", str(target), PACKAGE], cwd=MODULE, env=ENVIRONMENT, capture_output=True, text=True,
        timeout=SECONDS, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return target


def passed(program: Path, broker: TpcBroker, folder: Path, wanted: str, **more: str) -> set[str]:
    """The names of its tests that passed; none may fail or be skipped."""
    settings = {"KGO_SEEDS": broker.bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(RECORDS), **more}
    done = subprocess.run(
        [program, "-test.v", "-test.run", wanted, "-test.timeout", f"{SECONDS}s"],
        cwd=folder, env={**ENVIRONMENT, **settings}, capture_output=True, text=True, timeout=2 * SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    assert "--- SKIP" not in done.stdout
    return set(re.findall(r"^ *--- PASS: (\S+)", done.stdout, re.MULTILINE))


@pytest.mark.parametrize("is_disturbed", [False, True], ids=["undisturbed", "connections that fail"])
def test_groups_of_both_protocols(its_tests, brisk_broker, tmp_path, is_disturbed):
    """Chains of groups that hand records on, whose members come and go; by name, by pattern and static."""
    more = {"KGO_TEST_CHAOS": "1"} if is_disturbed else {}
    wanted = "^(TestGroupETL|TestGroupSimple|Test848RegexBrokerResolves)$"
    groups = {f"TestGroupETL/{name}" for name in ("range/848", "sticky/848", "sticky/848/static", "range")}
    expected = groups | {"TestGroupSimple/848", "Test848RegexBrokerResolves"}
    assert passed(its_tests, brisk_broker, tmp_path, wanted, **more) >= expected


@pytest.mark.parametrize("is_disturbed", [False, True], ids=["undisturbed", "connections that fail"])
def test_transactions(its_tests, brisk_broker, tmp_path, is_disturbed):
    """The same chains, exactly once: each member's records and offsets are one transaction."""
    more = {"KGO_TEST_CHAOS": "1"} if is_disturbed else {}
    kinds = ("range", "cooperative-sticky", "cooperative-sticky/static", "range/848", "sticky/848", "sticky/848/static")
    assert passed(its_tests, brisk_broker, tmp_path, "^TestTxnEtl$", **more) >= {f"TestTxnEtl/{one}" for one in kinds}


@pytest.mark.parametrize("bits", [256, 512])
def test_scram(its_tests, module_tmp_path, tmp_path, bits):
    broker = SaslBroker(module_tmp_path / f"sasl-{bits}")
    broker.start()
    try:
        make_users(broker.bootstrap)
        more = {"KGO_TEST_SCRAM_SEEDS": broker.sasl_bootstrap, "KGO_TEST_SCRAM": f"bob:{USERS['bob']}:{bits}"}
        wanted = {"TestSCRAMAuth", "TestSCRAMAuthBadCredentials"}
        assert passed(its_tests, broker, tmp_path, f"^({'|'.join(sorted(wanted))})$", **more) == wanted
    finally:
        broker.stop()
