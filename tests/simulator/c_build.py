"""The extensions built once without haste, and again with one file changed: a fault in C, and what runs with it.

Nothing is optimised across files, so a mutant costs the compilation of one of them and a link. What is tested is this
folder's Python and tests; only the extensions are others (`Build.package`).
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from native import build_bytes, build_ring
from tests.simulator.c_mutant import ROOT, Mutant

FLAGS: Final = ("-O1", "-fPIC", "-std=gnu11", "-UNDEBUG", "-fno-semantic-interposition")
EXTENSIONS: Final = {"_bytes": build_bytes.ffibuilder, "_ring": build_ring.ffibuilder}
MUTANT_HANGS_S: Final = 10
"""Of a test that waits for what a mutant never does; on a loaded machine one that is sound waits for a second."""
JUDGED_S_MAX: Final = 900
_SAID: Final = re.compile(
    r"^(?:FAILED|ERROR) (?:\S*/)?tests/(?P<test>.+?)(?= - |$)|^\S*?(?P<invariant>[^\s/]+: broken invariant: [^;]*)"
    r"|^Fatal Python error: (?P<fatal>.*)"
    r'|^  File "\S*/tests/(?P<where>\S+", line \d+ in test_\w+)'
    r"|^(?P<seed>\w+ seed \d+): FAILED\n(?P<what>.*)",
    re.MULTILINE,
)  # fmt: skip


class Verdict(NamedTuple):
    """What a command made of a mutant; `how`: the test and what it said, or the broken invariant."""

    is_caught: bool
    how: str


def _told(found: re.Match[str]) -> str:
    if found["seed"]:
        return f"{found['seed']}: {found['what']}"
    return re.sub(r'", line \d+ in ', "::", found[found.lastgroup or 0])


class Build:
    """Objects of all sources, in a folder, and what is linked of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
        self._python = f"-I{sysconfig.get_path('include')}"
        made = {name: builder.distutils_extension(str(folder)) for name, builder in EXTENSIONS.items()}
        self._extensions: dict[str, Any] = made
        self._objects = {name: [self._object_of(ROOT / one) for one in of.sources] for name, of in made.items()}
        sources = {ROOT / one: of for of in made.values() for one in of.sources}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(self._compile, sources, map(self._object_of, sources), sources.values()))

    def _object_of(self, source: Path) -> Path:
        return self._folder / "objects" / ("_".join(source.parts[-2:]) + ".o")

    def _compile(self, source: Path, target: Path, extension: Any) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        macros = [f"-D{name}={value}" for name, value in extension.define_macros]
        included = [f"-I{ROOT / folder}" for folder in extension.include_dirs]
        self._run([*FLAGS, *macros, self._python, *included, "-c", str(source), "-o", str(target)])

    def _run(self, arguments: Sequence[str]) -> None:
        done = subprocess.run([*self._compiler, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{arguments[-3:]}: {done.stderr[-2000:]}")

    def package(self, name: str, mutant: Mutant | None = None) -> Path:
        """A folder with `tpc_broker` in it: our Python, and extensions with the fault, or with none."""
        tree = self._folder / "trees" / re.sub(r"\W+", "-", name)
        package = tree / "tpc_broker"
        package.mkdir(parents=True)
        for entry in (ROOT / "tpc_broker").iterdir():
            if entry.suffix != ".so" and entry.name != "__pycache__":
                (package / entry.name).symlink_to(entry.resolve())
        objects = self._changed(mutant, tree) if mutant else {}
        for extension, of in self._extensions.items():
            linked = [str(objects.get(one, one)) for one in self._objects[extension]]
            libraries = [f"-l{library}" for library in of.libraries]
            target = package / f"{extension}.abi3.so"
            self._run(["-shared", "-Wl,-Bsymbolic-functions", *linked, "-o", str(target), *libraries])
        return tree

    def _changed(self, mutant: Mutant, tree: Path) -> dict[Path, Path]:
        """Object of the sound file: that of the faulty one."""
        original = ROOT / "native" / mutant.file
        source = tree / original.name
        source.write_text(mutant.text())
        target = tree / f"{original.stem}.o"
        self._compile(source, target, self._extensions["_ring"])
        return {self._object_of(original): target}


def run_in(tree: Path, arguments: Iterable[str], more: Mapping[str, str] | None = None) -> Verdict:
    """Runs Python with a package's extensions. A command that says so by its exit code 1, that is ended by a signal, or
    that hangs has found the fault.
    """
    environment = {**os.environ, "PYTHONPATH": f"{tree}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1", **(more or {})}
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tree, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=JUDGED_S_MAX, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Verdict(is_caught=True, how=f"not over after {JUDGED_S_MAX} s")
    said = done.stdout + done.stderr
    if done.returncode > 1:  # nothing was judged: of pytest, what cannot be imported, or is not there
        raise RuntimeError(said[-3000:])
    found = dict.fromkeys(_told(one) for one in _SAID.finditer(said))
    how = "; ".join(list(found)[:3]) or said.strip()[-300:] or f"exit code {done.returncode}"
    return Verdict(done.returncode != 0, how if done.returncode else "")


def judged_by(tree: Path, tests: Iterable[str], hangs_s: int = MUTANT_HANGS_S) -> Verdict:
    """Runs tests of the gate, named below tests/, to the first failure. What comes later than that hangs."""
    named = [str(ROOT / "tests" / test) for test in tests]
    ours = ("-p", "no:cacheprovider", "-o", f"pythonpath={tree} {ROOT}")
    basetemp = f"--basetemp={tree / 'tmp'}"
    more = {"TPC_TEST_PATIENCE_S": str(hangs_s)}
    return run_in(tree, ["-m", "pytest", "-q", "-x", "--part=gate", *ours, basetemp, *named], more)
