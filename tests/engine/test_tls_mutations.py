"""The TLS filter under AddressSanitizer and UBSan, with clients whose bytes are changed on their way."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.asan

ROOT = Path(__file__).parents[2]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
FLAGS = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-DTPC_WITH_TLS=1", *SANITIZERS]
ROUNDS = 10_000


@pytest.fixture(scope="module")
def driver(module_tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    sources = [*sorted((ROOT / "native/tls").glob("*.c")), ROOT / "native/tests/tls_mutations.c"]
    program = module_tmp_path / "tls_mutations"
    command = [compiler, *FLAGS, f"-I{ROOT / 'native/tls'}", *map(str, sources), "-o", str(program)]
    subprocess.run([*command, "-lssl", "-lcrypto"], check=True)
    return program


def run(driver, certificates, *arguments):
    command = [driver, certificates / "server.pem", certificates / "server.key", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_no_client_leads_the_filter_astray(driver, certificates, seed):
    result = run(driver, certificates, seed, ROUNDS)
    assert result.returncode == 0, result.stderr
    whole, failed = map(int, result.stdout.split())
    assert whole > ROUNDS / 2, "half of the clients are left alone"
    assert failed > ROUNDS / 20


def test_the_canary_dies(driver, certificates):
    result = run(driver, certificates, 1, 1, "canary")
    assert result.returncode != 0
    assert "heap-buffer-overflow" in result.stderr
