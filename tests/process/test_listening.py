"""The supervisor's sockets: what it does for those that cores share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

AMBIENT = "import subprocess; subprocess.run(['grep', 'CapAmb', '/proc/self/status'])"
OURS = "from tpc_broker.process.listening import drop_capabilities as drop, lend_capabilities as lend"
DROPPED = f"{OURS}; drop(); {AMBIENT}"
LENT_AGAIN = f"{OURS}; lend(drop()); {AMBIENT}"


@pytest.mark.parametrize(("program", "is_lent"), [(AMBIENT, True), (DROPPED, False), (LENT_AGAIN, True)])
def test_capabilities_that_were_lent_for_the_program_are_not_passed_on(program, is_lent):
    """To cores, which are started as processes of their own; but to the next life of the supervisor."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can lend them (by setpriv, of Debian's util-linux)")
    lend = ["setpriv", "--inh-caps=+net_admin", "--ambient-caps=+net_admin"]
    done = subprocess.run([*lend, sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if "setpriv" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert (int(done.stdout.split()[1], 16) != 0) is is_lent, done.stderr
