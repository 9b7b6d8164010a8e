"""franz-go's own tests of its consumer groups, of the version that tests/franz_go names, against a running broker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

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


@pytest.mark.parametrize("is_disturbed", [False, True], ids=["undisturbed", "connections that fail"])
def test_groups_of_both_protocols(its_tests, brisk_broker, tmp_path, is_disturbed):
    """Chains of groups that hand records on, whose members come and go; by name, by pattern and static."""
    settings = {"KGO_SEEDS": brisk_broker.bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(RECORDS)}
    settings |= {"KGO_TEST_CHAOS": "1"} if is_disturbed else {}
    wanted = "^(TestGroupETL|TestGroupSimple|Test848RegexBrokerResolves)$"
    done = subprocess.run(
        [its_tests, "-test.v", "-test.run", wanted, "-test.timeout", f"{SECONDS}s"],
        cwd=tmp_path, env={**ENVIRONMENT, **settings}, capture_output=True, text=True, timeout=2 * SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:]
    passed = set(re.findall(r"^ *--- PASS: (\S+)", done.stdout, re.MULTILINE))
    groups = {f"TestGroupETL/{name}" for name in ("range/848", "sticky/848", "sticky/848/static", "range")}
    assert passed >= groups | {"TestGroupSimple/848", "Test848RegexBrokerResolves"}, done.stdout[-5000:]
    assert "--- SKIP" not in done.stdout
