"""The manual pages say what the commands' help says, and are what man takes."""

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "generate_manual.py"))
PAGES = TOOL["manual"]()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_page_says_what_the_help_says(path):
    assert path.read_text(encoding="utf-8") == PAGES[path], "run: .venv/bin/python tools/generate_manual.py"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("program", TOOL["PROGRAMS"], ids=lambda program: program.name)
def test_man_shows_every_command_option_and_example(program):
    path = ROOT / "packaging" / "man" / f"{program.name}.1"
    command = ["groff", "-man", "-Tutf8", "-Kutf8", "-ww", "-rLL=400n", "-P-cbou", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    shown = " ".join(done.stdout.split())
    for name, each in TOOL["commands"](program.name, program.command):
        assert name == program.name or f" {name} " in shown
        for names, _meaning in TOOL["records"](name, each):
            assert names in shown, (name, names)
        for line in (each.epilog or "").splitlines():
            assert " ".join(line.strip("\b ").split()) in shown, (name, line)


def test_the_exit_codes_are_those_of_the_documentation():
    told = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert all(f"| {code} | {meaning} |" in told for code, meaning in TOOL["TPC_EXITS"])
