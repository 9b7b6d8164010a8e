"""Types of what is made at run time are those of what is there."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "generate_stubs.py"))
STUBS = TOOL["stubs"]()


@pytest.mark.parametrize("path", STUBS, ids=lambda path: path.name)
def test_a_stub_says_what_is_there(path):
    assert path.read_text() == STUBS[path], "run: .venv/bin/python tools/generate_stubs.py"
