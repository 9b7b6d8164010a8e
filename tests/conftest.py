"""What pytest reads only from this place: options of single tests, and a fixture for tests in several folders."""

import shutil
from pathlib import Path

import pytest

from tests.support.tls_proxy import make_certificates


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=25, help="how often the crash test kills the broker (default 25)")
    parser.addoption("--kill-seconds", type=float, default=1e9, help="kill no more after so long (default: no end)")
    parser.addoption("--crash-seed", type=int, default=None, help="seed of the crash tests (default: a new one)")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority and what it signed (`make_certificates`)."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    folder: Path = make_certificates(tmp_path_factory.mktemp("certificates"))
    return folder
