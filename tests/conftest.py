"""Options that belong to single tests, here because pytest reads options only from this place."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", type=int, default=25, help="how often the crash test kills the broker (default 25)")
    parser.addoption("--kill-seconds", type=float, default=1e9, help="kill no more after so long (default: no end)")
    parser.addoption("--crash-seed", type=int, default=None, help="seed of the crash tests (default: a new one)")
