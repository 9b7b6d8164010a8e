"""The journal's built-in faults do what they say, so that crash tests which run with them must fail.

They exist only in an extension built with -DTPC_MUTANTS, which `tests/support/mutants.py` makes.
"""

import errno
import os
import subprocess
import sys

import pytest

from tests.support.journal_harness import Core, Journal, JournalFile
from tests.support.waiting import PATIENCE_S
from tpc_broker._ring import lib

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
from tests.support.plane_bench import StalledBench, records_of
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


@pytest.mark.crash
@pytest.mark.parametrize("script", [NO_DSYNC, EARLY], ids=["no-dsync", "early-acknowledge"])
def test_a_faulty_build_has_them(built_with_mutants, tmp_path, script):
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=built_with_mutants,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
