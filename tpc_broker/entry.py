"""The commands `tpc-broker` and `tpc` of an installation, which may be the client's alone.

What such a one lacks is said in one line each, with what brings it, and the exit code is 2, as for any host where the
broker cannot run.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Final, NoReturn

EXIT_CANNOT_RUN: Final = 2
_RING: Final = "tpc_broker._ring"
NO_RING: Final = (
    "this installation was built without the broker's ring (tpc_broker._ring), as liburing's headers were missing. On "
    "Debian: apt-get install gcc python3-dev liburing-dev libssl-dev, then TPC_RING=on pip install --force-reinstall "
    "--no-cache-dir --no-deps of the source"
)


def broker() -> None:
    """``tpc-broker``."""
    _run("tpc-broker", "tpc_broker.process.main", [NO_RING] if find_spec(_RING) is None else [])


def tool() -> None:
    """``tpc``, which talks to any broker and needs no ring."""
    _run("tpc", "tpc_broker.cli.main", [])


def _run(program: str, module: str, missing: list[str]) -> None:
    try:
        main = importlib.import_module(module).main
    except ModuleNotFoundError as error:
        if error.name is None or (error.name.startswith("tpc_broker") and error.name != _RING):
            raise
        if error.name != _RING:
            missing = [f"there is no module {error.name}: pip install 'tpc-broker[broker]'", *missing]
        _refuse(program, missing)
    except ImportError as error:
        if "cannot open shared object file" not in str(error):
            raise
        _refuse(program, [f"{error}; on Debian: apt-get install liburing2 libssl3"])
    main()


def _refuse(program: str, reasons: list[str]) -> NoReturn:
    sys.stderr.write("".join(f"{program}: {reason}\n" for reason in reasons))
    sys.exit(EXIT_CANNOT_RUN)
