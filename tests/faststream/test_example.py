"""The page about FastStream: its app and its tests run as they stand there."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import anyio
import pytest

from tests.support.waiting import PATIENCE_S

PAGE = Path(__file__).parents[2] / "docs" / "faststream.md"


@pytest.fixture
def example(tmp_path):
    """A module of all of its code, in a file: FastStream looks at the source of its tests."""
    path = tmp_path / "example_of_faststream.py"
    path.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[path.stem]


@pytest.mark.parametrize("name", ["test_bills", "test_bills_as_in_service"])
def test_the_page(example, name):
    async def main():
        with anyio.fail_after(PATIENCE_S):
            await getattr(example, name)()

    anyio.run(main, backend="asyncio")
