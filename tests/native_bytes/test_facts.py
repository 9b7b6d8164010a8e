"""Numbers that Python and C share have one source, from which the C header is made."""

import re
import runpy
from pathlib import Path

from tpc_broker.error_codes import ErrorCode

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "generate_facts.py"))
ERROR_DEFINED = re.compile(r"\b(?:TPC_)?ERROR_([A-Z_]+) = -?\d")


def test_the_header_is_what_the_tool_makes():
    assert TOOL["TARGET"].read_text() == TOOL["header_text"](), "run: .venv/bin/python tools/generate_facts.py"


def test_no_other_c_file_defines_an_error_code():
    names = set(ErrorCode.__members__)
    files = [path for path in (ROOT / "native").rglob("*.[ch]") if path != TOOL["TARGET"]]
    assert len(files) > 30
    defined = [(path.name, name) for path in files for name in ERROR_DEFINED.findall(path.read_text())]
    assert [(file, name) for file, name in defined if name in names] == []
