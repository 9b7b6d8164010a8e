"""The C parts of a core under AddressSanitizer and UBSan: the extensions are built once more, and their tests run
with them, on the plain backend too."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1"
TESTED = {
    "ring": ["ring_wait", "ring_disk", "trio_ring", "plain_ring"],
    "journal and plane": ["journal", "plane_life", "plane_partitions", "plane_produce", "produce_decoded"],
    "fetch": ["plane_fetch", "plane_fetch_random", "plane_fetch_segments", "fetch_bounds"],
    "links": ["links", "links_fetch"],
    "replication": ["steady", "steady_lag", "replicated_partitions"],
    "transactions": ["plane_transactions", "transactions_random", "producer_encoding"],
    "datagrams": ["datagrams"],
    "connections": ["frames", "connections", "connections_large", "connections_per_ip", "connections_random"],
    "TLS": ["tls", "tls_attempts", "listener_tls"],
    "identity": ["strangers", "nobody_is_served", "link_subjects"],
    "rights and quotas": ["grants", "grants_in_place", "grants_random", "quota_counting", "quotas"],
}
CANARY = """
from tpc_broker._ring import ffi, lib
frame = lib.tpc_frame_new(lib.tpc_budget_new(1000), 10)
ffi.memmove(frame.data, bytes(100), 100)
"""

pytestmark = pytest.mark.asan


def sanitizer_libraries():
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip("no C compiler")
    found = []
    for name in ("libasan.so", "libubsan.so"):
        answer = subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
        if not Path(answer).is_absolute():
            pytest.skip(f"the compiler comes without {name}")
        found.append(str(Path(answer).resolve()))
    return ":".join(found)


class SanitizedPackage:
    """The package with sanitized extensions in a folder of its own."""

    def __init__(self, tree):
        self.tree = tree
        libraries = sanitizer_libraries()
        shutil.copytree(ROOT / "tpc_broker", tree / "tpc_broker", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        # Not in parallel: both extensions compile native/bytes into the same object files.
        build = [sys.executable, "setup.py", "-q", "build_ext", f"--build-lib={tree}", f"--build-temp={tree / 'build'}"]
        flags = {"TPC_CFLAGS": FLAGS, "TPC_LDFLAGS": FLAGS}
        subprocess.run(build, cwd=ROOT, env=os.environ | flags, check=True, capture_output=True)
        self._environment = os.environ | {
            "LD_PRELOAD": libraries,
            "PYTHONPATH": f"{tree}:{ROOT}",  # the tests' own processes are run from the tests
            "PYTHONMALLOC": "malloc",
            # Python itself leaves memory behind at its end
            "ASAN_OPTIONS": f"detect_leaks=0:exitcode=99:log_path={tree}/report",
            "UBSAN_OPTIONS": f"print_stacktrace=1:halt_on_error=1:log_path={tree}/report",
        }

    def run(self, *arguments):
        """Run Python: what it did, and what the sanitizers reported."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.tree, env=self._environment, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip
        reports = []
        for path in self.tree.glob("report.*"):
            reports.append(path.read_text())
            path.unlink()
        return done, "\n".join(reports)


@pytest.fixture(scope="module")
def sanitized(module_tmp_path):
    package = SanitizedPackage(module_tmp_path / "sanitized")
    where, _report = package.run("-c", "import tpc_broker._ring as built; print(built.__file__)")
    assert where.stdout.startswith(str(package.tree)), where.stderr
    return package


def test_the_canary_dies(sanitized):
    done, report = sanitized.run("-c", CANARY)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in report


@pytest.mark.parametrize("part", TESTED)
def test_nothing_is_touched_that_must_not_be(sanitized, part):
    tests = [str(ROOT / f"tests/engine/test_{name}.py") for name in TESTED[part]]
    parts = ("--part", "gate", "--part", "plain")
    options = (*parts, "-q", "-x", "-p", "no:cacheprovider", "-o", f"pythonpath={sanitized.tree}")
    done, report = sanitized.run("-m", "pytest", *options, *tests)
    assert not report
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
