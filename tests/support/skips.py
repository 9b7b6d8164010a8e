"""With ``--no-skips``, as CI and the long tier run: a test that is skipped for a reason that is not listed here fails.

A download that came to nothing, or a tool that was not installed, must not make a run green that has compared nothing.
What a host may lack of its kernel, and what is skipped by design, is listed. Without the option every skip is a skip.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Final

import pytest

EXPECTED: Final = (
    r"about io_uring itself, which is refused here",  # all else runs on the plain backend there
    r"bcc",  # its headers are the running kernel's, which a container seldom has
    r"the file system takes no direct writes here",
    r"the file system keeps it, or this kernel does not say",
    r"there is one file system only",
    r"there is no tmpfs with \d+ bytes at",
    r"no overlay can be mounted here",
    r"this kernel has no schedstat",
    r"the hard limit of file descriptors is",
    r"no libseccomp",
    r"no systemd-analyze",
    r"systemd reads its units itself where it is installed",
    r"groff is not installed",
    r"only after a complete run against our (broker|nodes)",  # of one test by name
)
_EXPECTED: Final = re.compile("|".join(EXPECTED))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a skip that tests/support/skips.py does not list fails")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and item.config.option.no_skips:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if _EXPECTED.search(reason) is None:
            report.outcome = "failed"
            report.longrepr = f"{reason}\nThis run was to skip nothing but what tests/support/skips.py lists."
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A module that skips itself as a whole, as `pytest.importorskip` does."""
    report = yield
    if report.skipped and collector.config.option.no_skips:
        report.outcome = "failed"
    return report
