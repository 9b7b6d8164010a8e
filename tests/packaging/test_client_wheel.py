"""The client from a wheel that was built without liburing, alone in environments with nothing else: ours and newer
Pythons'. It sends and reads; the commands say what they lack.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.packaging.test_distributions import bare_environment, run, source  # noqa: F401 - a fixture
from tests.support.broker_process import TpcBroker
from tests.support.debian_python import RELEASES, DebianPython, NoPythonError

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parents[2]
BROUGHT = {"anyio", "cffi", "cramjam", "idna", "pycparser", "tpc-broker", "typing-extensions"}
BLIND_COMPILER = """#!/bin/sh
# gcc, on a machine without liburing's headers
for word in "$@"; do
    if [ "$word" = - ]; then
        program=$(cat)
        case "$program" in *liburing.h*) exit 1;; esac
        printf '%s\\n' "$program" | exec gcc "$@"
        exit
    fi
done
exec gcc "$@"
"""
TRIAL = """
import json, sys
import anyio
import tpc_broker
from tpc_broker.client import connect

async def main(loop):
    topic = f"wheel-{sys.argv[2]}-{loop}"
    async with connect(sys.argv[1], compression="zstd") as client:
        await client.admin.topics.create(topic, partitions=2)
        slips = [await client.post(topic, b"%d" % number, key=b"k%d" % (number % 7)) for number in range(1000)]
        for slip in slips:
            await slip
        found = []
        async with client.read(topic, group=topic) as stream:
            async for record in stream:
                found.append(int(record.value))
                if len(found) == len(slips):
                    break
    assert sorted(found) == list(range(len(slips)))
    return len(found)

told = {"version": sys.version_info[:2], "asyncio": anyio.run(main, "asyncio")}
told["place"] = tpc_broker.__file__
loaded = {name.partition(".")[0] for name in sys.modules}
told["wrong"] = sorted({"trio", "click", "confluent_kafka", "google", "re2"} & loaded)
print(json.dumps(told))
"""

IN_MEMORY = """
import sys
import anyio
from tpc_broker.client import connect
from tpc_broker.testing import MemoryBroker

async def main():
    async with MemoryBroker(topics={"orders": 3}) as broker, connect(broker) as client:
        await client.send("orders", b"one", key=b"k")
        async with client.read("orders", group="tested") as stream:
            print((await anext(stream)).value)

anyio.run(main, backend=sys.argv[1])
"""


@pytest.fixture(scope="module")
def wheel(source: Path, module_tmp_path: Path) -> Path:  # noqa: F811
    compiler = module_tmp_path / "cc"
    compiler.write_text(BLIND_COMPILER)
    compiler.chmod(0o755)
    target = module_tmp_path / "wheel"
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--wheel-dir", str(target), str(source)]
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TPC_RING")}
    done = subprocess.run(command, env={**own, "CC": str(compiler)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "without the broker's ring: the compiler does not find liburing's headers" in done.stdout + done.stderr
    refused = {**own, "CC": str(compiler), "TPC_RING": "on"}
    insisted = subprocess.run(command, env=refused, capture_output=True, text=True, check=False)
    assert insisted.returncode
    assert "TPC_RING=on, and the compiler does not find" in insisted.stdout + insisted.stderr
    [found] = target.iterdir()
    return found


@pytest.fixture(scope="module")
def commands(wheel: Path, module_tmp_path: Path) -> Path:
    found = bare_environment(module_tmp_path / "environment")
    run(found / "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[client]", cwd=module_tmp_path)
    return found


def said(command: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([command, "serve"], capture_output=True, text=True, cwd=folder, env=own, check=False)


@pytest.fixture(scope="module")
def bootstrap(module_tmp_path: Path):
    broker = TpcBroker(module_tmp_path / "broker", 1)
    broker.start()
    yield broker.bootstrap
    broker.kill()


def test_it_has_no_ring_and_is_for_every_python(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith(".so")] == ["tpc_broker/_bytes.abi3.so"]
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]


def test_it_brings_what_the_client_needs_and_nothing_else(commands: Path) -> None:
    listed = json.loads(run(commands / "pip", "list", "--format", "json", "--disable-pip-version-check"))
    assert {each["name"].lower().replace("_", "-") for each in listed} - {"pip", "setuptools"} == BROUGHT


def test_it_sends_and_reads(commands: Path, bootstrap: str, tmp_path: Path) -> None:
    told = json.loads(run(commands / "python", "-c", TRIAL, bootstrap, "ours", cwd=tmp_path))
    assert told["asyncio"] == 1000
    assert told["wrong"] == []
    assert str(commands.parent) in told["place"]


def test_the_commands_say_what_they_lack(commands: Path, tmp_path: Path) -> None:
    broker = said(commands / "tpc-broker", tmp_path)
    assert broker.returncode == 2
    assert [line[:45] for line in broker.stderr.splitlines()] == [
        "tpc-broker: there is no module click: pip ins", "tpc-broker: this installation was built witho",
    ]  # fmt: skip
    tool = said(commands / "tpc", tmp_path)
    expected = "tpc: there is no module click: pip install 'tpc-broker[broker]'\n"
    assert (tool.returncode, tool.stdout, tool.stderr) == (2, "", expected)


def test_with_the_extra_only_the_ring_is_missing(wheel: Path, tmp_path: Path) -> None:
    found = bare_environment(tmp_path)
    run(found / "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[broker]", cwd=tmp_path)
    broker = said(found / "tpc-broker", tmp_path)
    assert broker.returncode == 2
    [line] = broker.stderr.splitlines()
    assert line.startswith("tpc-broker: this installation was built without the broker's ring (tpc_broker._ring)")
    assert "consume" in run(found / "tpc", "--help", cwd=tmp_path)


def test_with_the_extra_testing_there_is_a_broker_in_memory(wheel: Path, tmp_path: Path) -> None:
    found = bare_environment(tmp_path)
    run(found / "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[testing]", cwd=tmp_path)
    for loop in ("asyncio", "trio"):
        assert run(found / "python", "-c", IN_MEMORY, loop, cwd=tmp_path) == "b'one'\n"


def test_a_users_program_has_types(wheel: Path, tmp_path: Path) -> None:
    found = bare_environment(tmp_path)
    what = (f"{wheel}[msgspec,registry]", f"mypy=={version('mypy')}")
    run(found / "pip", "install", "--quiet", "--disable-pip-version-check", *what, cwd=tmp_path)
    shutil.copy2(ROOT / "tests/client/typed_program.py", tmp_path / "program.py")
    told = run(found / "python", "-m", "mypy", "--strict", "program.py", cwd=tmp_path)
    assert told == "Success: no issues found in 1 source file\n"


@pytest.mark.parametrize("version", RELEASES)
def test_the_same_wheel_on_a_newer_python(wheel: Path, bootstrap: str, tmp_path: Path, version: str) -> None:
    newer = DebianPython(tmp_path, version)
    try:
        newer.fetch()
    except NoPythonError as reason:
        pytest.skip(f"no Python {version}: {reason}")
    newer.install(wheel)
    done = newer.run("-W", "error", "-c", TRIAL, bootstrap, version)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert ".".join(map(str, told["version"])) == version
    assert told["asyncio"] == 1000
    assert told["wrong"] == []


def test_its_extension_keeps_to_the_stable_abi(wheel: Path, tmp_path: Path) -> None:
    """Then every CPython from 3.11 on loads it, also those that cannot be had here."""
    checker = bare_environment(tmp_path)
    run(checker / "pip", "install", "--quiet", "--disable-pip-version-check", "abi3audit==0.0.26", cwd=tmp_path)
    copied = shutil.copy2(wheel, tmp_path)
    report = json.loads(run(checker / "abi3audit", "--report", copied, cwd=tmp_path))
    assert [each["result"]["is_abi3"] for spec in report["specs"].values() for each in spec["wheel"]] == [True]
