"""The C decoders under AddressSanitizer and UndefinedBehaviorSanitizer, over a corpus and its mutations."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.native_bytes.corpus import corpus_file

pytestmark = pytest.mark.asan

ROOT = Path(__file__).parent.parent.parent
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", *SANITIZERS]
ROUNDS = 1_000_000


@pytest.fixture(scope="module")
def driver(module_tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = module_tmp_path
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    built = subprocess.run(
        [compiler, *FLAGS, str(probe), "-o", str(folder / "probe")], capture_output=True, check=False
    )
    if built.returncode or subprocess.run([str(folder / "probe")], capture_output=True, check=False).returncode:
        pytest.skip(f"{compiler} has no working sanitizers: {built.stderr.decode()[-200:]}")
    sources = [*sorted((ROOT / "native/bytes").glob("*.c")), ROOT / "native/tests/bytes_mutations.c"]
    program = folder / "bytes_mutations"
    command = [compiler, *FLAGS, f"-I{ROOT / 'native/bytes'}", *map(str, sources), "-o", str(program)]
    subprocess.run(command, check=True)
    (folder / "corpus").write_bytes(corpus_file())
    return program


def run(driver, seed, rounds, *arguments):
    corpus = driver.parent / "corpus"
    command = [str(driver), str(corpus), str(seed), str(rounds), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_input_leads_astray(driver, seed):
    result = run(driver, seed, ROUNDS)
    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        target, accepted, refused = map(int, line.split())
        assert accepted > 50, f"target {target}: mutations reach nothing behind the first check"
        assert refused > 50, f"target {target}: nothing is refused"


def test_the_canary_dies(driver):
    result = run(driver, 1, 0, "canary")
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr
