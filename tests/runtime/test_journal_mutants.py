"""The journal's built-in faults do what they say, so that crash tests which run with them must fail.

They exist only in an extension built with -DTPC_MUTANTS, which this test makes for itself.
"""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.journal_harness import Core, Journal, JournalFile
from tpc_broker._ring import lib

ROOT = Path(__file__).parents[2]

NO_DSYNC = """
import os, sys
from pathlib import Path
from tests.durability.crash_images import DSYNC, WRITE, read_record
from tests.support.journal_harness import Core, Journal, JournalFile
from tpc_broker._ring import lib

folder, flags = Path(sys.argv[1]), []
for mode in (lib.TPC_JOURNAL_BUFFERED_DSYNC, lib.TPC_JOURNAL_BUFFERED_FDATASYNC):
    core = Core()
    journal = Journal(core, JournalFile(folder / str(mode), mode=mode))
    assert lib.tpc_journal_set_mutants(journal.handle, lib.TPC_MUTANT_NO_DSYNC) == 0
    record = folder / f"record-{mode}"
    assert lib.tpc_recorder_start(bytes(record)) == 0
    journal.append(b"payload")
    journal.wait_durable(1)
    assert lib.tpc_recorder_stop() == 0
    first, *others = read_record(record)
    assert first.kind == WRITE and not first.flags & DSYNC and len(others) == 1, "no flush"
    journal.close()
    core.close()
"""

EARLY = """
import os, sys
from pathlib import Path
from tests.support.plane_bench import records_of
from tests.runtime.test_plane_produce import StalledBench
from tpc_broker._ring import lib

bench = StalledBench(Path(sys.argv[1]) / "journal")
assert lib.tpc_journal_set_mutants(bench.plane.journal, lib.TPC_MUTANT_EARLY_ACKNOWLEDGE) == 0
bench.lead("t")
assert bench.produce(bench.connect(), ("t", 0, records_of(1))) == [(0, 0)]
assert bench.plane.journal_statistics()["commits_in_flight"] == 1, "the write is still under way"
bench.let_go()
bench.shut()
"""


def test_an_ordinary_build_has_no_faults(tmp_path):
    core = Core()
    file = JournalFile(tmp_path / "j")
    journal = Journal(core, file)
    assert lib.tpc_journal_set_mutants(journal.handle, lib.TPC_MUTANT_NO_DSYNC) == -errno.ENOTSUP
    journal.close()
    core.close()
    os.close(file.descriptor)


@pytest.fixture(scope="module")
def faulty_build(tmp_path_factory):
    tree = tmp_path_factory.mktemp("mutants")
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "build")
    for name in ("tpc_broker", "native", "tests", "routing"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    shutil.copy(ROOT / "setup.py", tree)
    shutil.copy(ROOT / "pyproject.toml", tree)
    shutil.copy(ROOT / "README.md", tree)
    build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    environment = os.environ | {"TPC_CFLAGS": "-DTPC_MUTANTS -O0"}
    done = subprocess.run(build, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("script", [NO_DSYNC, EARLY], ids=["no-dsync", "early-acknowledge"])
def test_a_faulty_build_has_them(faulty_build, tmp_path, script):
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=faulty_build,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
