"""The client runs where only it is installed: it imports nothing of the broker's, and no package that it does not need.

A fresh interpreter refuses every other package, as an environment that lacks it does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
BROUGHT: Final = {"anyio", "cffi", "cramjam"}
"""By pyproject.toml, and looked up there below."""
THEIRS: Final = {"_cffi_backend", "idna", "sniffio", "typing_extensions", "exceptiongroup"}
"""What those import in their turn."""
OWN: Final = {"client", "kafka", "native_bytes", "_bytes", "error_codes", "errors", "host_port", "limits", "model"}
"""Parts of the package."""
WITH_EXTRAS: Final = {
    "columns": "pyarrow", "net.trio_wire": "trio", "codecs.avro": "fastavro", "codecs.json_schema": "jsonschema_rs",
    "codecs.protobuf": "google",
}  # fmt: skip
"""Modules that need a package of an extra, which is asked for by whoever imports them, or runs on trio."""

LOOK = """
import importlib, json, pkgutil, sys
from importlib.machinery import PathFinder

allowed, extras = set(json.loads(sys.argv[1])), set(json.loads(sys.argv[2]))

class Only:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed and PathFinder.find_spec(name, path) is not None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Only())

def loaded():
    return sorted(sys.modules)

async def nothing():
    async with connect("127.0.0.1:1"):
        pass

from tpc_broker.client import connect
told = {"connect": loaded()}
import anyio
anyio.run(nothing, backend="asyncio")
told["asyncio"] = loaded()
import tpc_broker.client
failed = {}
for module in pkgutil.walk_packages(tpc_broker.client.__path__, "tpc_broker.client."):
    if module.name.removeprefix("tpc_broker.client.") in extras:
        continue
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        failed[module.name] = str(error)
told["failed"], told["all"] = failed, loaded()
print(json.dumps(told))
"""


@cache
def told() -> dict[str, Any]:
    allowed = {*sys.stdlib_module_names, *BROUGHT, *THEIRS, "tpc_broker"}
    arguments = [json.dumps(sorted(each)) for each in (allowed, WITH_EXTRAS)]
    done = subprocess.run(
        [sys.executable, "-S", "-W", "error", "-c", LOOK, *arguments], capture_output=True, text=True, check=False,
        cwd=ROOT, env={"PYTHONPATH": ":".join([str(ROOT), *(path for path in sys.path if "site-packages" in path)])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_without_an_extra_these_are_brought() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {each.partition(">")[0] for each in project["dependencies"]} == BROUGHT
    assert project["optional-dependencies"]["client"] == []


@pytest.mark.parametrize("when", ["connect", "asyncio", "all"])
def test_nothing_of_the_broker_is_imported(when: str) -> None:
    names = told()[when]
    assert {name.split(".")[1] for name in names if name.startswith("tpc_broker.")} <= OWN
    assert [name for name in names if name.partition(".")[0] in ("trio", "confluent_kafka", "click", "rich")] == []


def test_every_module_of_the_client_is_imported_without_an_extra() -> None:
    assert told()["failed"] == {}


def test_connecting_loads_little() -> None:
    """Whoever has one question starts fast: what is asked of TLS, JSON or other processes is loaded when it is used."""
    heavy = {"ssl", "asyncio", "multiprocessing", "http", "email", "unittest", "xml", "sqlite3", "tempfile"}
    assert sorted({name.partition(".")[0] for name in told()["connect"]} & heavy) == []
