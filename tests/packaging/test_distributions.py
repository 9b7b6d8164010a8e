"""Sdist and wheel: what is in them, and that each, alone in a bare virtual environment, is a working broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.ports import free_port_range
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.packaging

ROOT = Path(__file__).parent.parent.parent
IMPORT_ALL = """
import importlib, pathlib, pkgutil, sys
import tpc_broker
assert pathlib.Path(sys.argv[1]) not in pathlib.Path(tpc_broker.__file__).parents, tpc_broker.__file__
names = [module.name for module in pkgutil.walk_packages(tpc_broker.__path__, "tpc_broker.")]
EXTRAS = {"pyspark", "pyarrow", "matplotlib", "jwt", "fastavro", "jsonschema_rs", "httpx2", "msgspec", "faststream"}
# optional dependencies; nothing else may be missing
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        assert error.name.partition(".")[0] in EXTRAS, (name, error)
assert "tpc_broker.routing.assignment" in names
print(len(names))
"""


def run(*command: str | Path, cwd: Path | None = None) -> str:
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=own, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def source(module_tmp_path: Path) -> Path:
    """What git has (and would have) of this tree, and nothing that was built in it."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    target = module_tmp_path / "tpc-broker"
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in listed:
        if (ROOT / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name, follow_symlinks=False)
    return target


@pytest.fixture(scope="module")
def sdist(source: Path, module_tmp_path: Path) -> Path:
    target = module_tmp_path / "sdist"
    run(sys.executable, "-m", "build", "--sdist", "--outdir", target, source)
    (found,) = target.iterdir()
    return found


@pytest.fixture(scope="module")
def wheel(sdist: Path, module_tmp_path: Path) -> Path:
    """Built from the sdist, so that what the sdist lacks is missed here."""
    target = module_tmp_path / "wheel"
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", target, sdist)
    (found,) = target.iterdir()
    return found


def bare_environment(folder: Path) -> Path:
    """A virtual environment with nothing but pip; the folder of its commands."""
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin"


def installed(folder: Path, what: str | Path) -> Path:
    commands = bare_environment(folder)
    run(commands / "pip", "install", "--quiet", "--disable-pip-version-check", what, cwd=folder)
    return commands


def check_broker(commands: Path, folder: Path) -> None:
    """The commands of an installation do their work with nothing of the source tree on the path."""
    assert run(commands / "tpc-broker", "--version", cwd=folder).startswith("tpc-broker, version ")
    assert "consume" in run(commands / "tpc", "--help", cwd=folder)
    assert (commands.parent / "share" / "man" / "man1" / "tpc.1").read_text().startswith('.\\" Made by')
    assert int(run(commands / "python", "-c", IMPORT_ALL, ROOT, cwd=folder)) > 80
    port = free_port_range(2)
    address = f"127.0.0.1:{port}"
    place = ["--data", str(folder / "data"), "--listen", address, "--cores", "2", "--oversubscribe"]
    serve = [str(commands / "tpc-broker"), "serve", *place]
    server = ServerProcess(serve, folder / "broker.log")
    server.launch()
    try:
        server.wait_answering("127.0.0.1", [port, port + 1], 120)
        lines = folder / "lines"
        lines.write_text("one\ntwo\nthree\n")
        run(commands / "tpc", "produce", "hello", lines, "--bootstrap", address, cwd=folder)
        command = [commands / "tpc", "consume", "hello", "--from", "earliest", "--count", "3", "--bootstrap", address]
        assert run(*command, cwd=folder) == "one\ntwo\nthree\n"
        assert server.terminate() == 0
    finally:
        server.kill()


def test_the_sdist_has_what_a_build_needs(sdist: Path, source: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = [*(source / "native").rglob("*"), *(source / "tpc_broker").rglob("*.py*")]
    needed = {path.relative_to(source).as_posix() for path in files if path.is_file() and path.suffix != ".pyc"}
    needed |= {"setup.py", "pyproject.toml", "README.md", "LICENSE", "tpc_broker/kafka/schema.jsonl"}
    linked = [*(source / "routing").glob("*.py"), *(source / "ebpf").rglob("*.[pc]*")]
    needed |= {f"tpc_broker/{path.relative_to(source).as_posix()}" for path in linked}
    assert needed - names == set()
    assert [name for name in names if name.endswith((".so", ".o", ".pyc"))] == []


def test_one_wheel_serves_every_python_from_3_11_on(wheel: Path) -> None:
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"]


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path, source: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    data = next(top for top in tops if top.endswith(".data"))
    assert tops == {"tpc_broker", "pyspark_tpc.py", data}
    shared = {"share/man/man1/tpc.1", "share/man/man1/tpc-broker.1", "share/tpc-broker/container/seccomp.json"}
    for folder in ("systemd", "prometheus", "grafana"):
        shared |= {f"share/tpc-broker/{folder}/{path.name}" for path in (source / "packaging" / folder).iterdir()}
    assert {name for name in names if name.startswith(data)} == {f"{data}/data/{name}" for name in shared}
    for part in ("_bytes", "_ring"):
        assert any(name.startswith(f"tpc_broker/{part}.") and name.endswith(".so") for name in names), part
    assert {"tpc_broker/kafka/schema.jsonl", "tpc_broker/routing/assignment.py", "tpc_broker/py.typed"} <= names
    assert {"tpc_broker/ebpf/programs/steer.c", "tpc_broker/ebpf/loaders.py"} <= names
    if shutil.which("clang"):
        assert any(name.startswith("tpc_broker/ebpf/programs/steer-") and name.endswith(".o") for name in names)


def test_the_wheel_is_a_working_broker(wheel: Path, tmp_path: Path) -> None:
    check_broker(installed(tmp_path, f"{wheel}[broker]"), tmp_path)


def test_pip_install_of_the_source_tree_is_a_working_broker(source: Path, tmp_path: Path) -> None:
    check_broker(installed(tmp_path, f"{source}[broker]"), tmp_path)
