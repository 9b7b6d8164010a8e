"""What a host refuses is found and told by name, one by one."""

from __future__ import annotations

import errno
import logging
import re
from pathlib import Path

import pytest

from tests.support.seccomp import WAYS, called_under, refusing
from tpc_broker.engine.ring import Backend, unavailable
from tpc_broker.engine.trio_ring import RingOptions
from tpc_broker.options import CoreOptions
from tpc_broker.process import core, fallbacks
from tpc_broker.process.fallbacks import find_fallbacks, without_pins

KEPT_FOR_A_TIME = re.compile(r"--data is on ")
DOCUMENT = Path(__file__).parents[2] / "docs" / "deployment.md"


def found_in(data: Path) -> list[str]:
    """Names of what is refused."""
    found = [*find_fallbacks(data), *filter(None, [without_pins()])]
    return [each.refused.partition(" is refused")[0] for each in found if not KEPT_FOR_A_TIME.match(each.refused)]


@pytest.mark.usefixtures("system_call_filters")
@pytest.mark.parametrize("name", WAYS)
def test_each_is_found_where_it_is_refused(name: str, tmp_path: Path) -> None:
    before = found_in(tmp_path)
    assert set(called_under(WAYS[name], lambda: found_in(tmp_path))) == {*before, name}
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("system_call_filters")
def test_a_line_says_what_is_done_what_it_costs_and_what_mends_it(tmp_path: Path) -> None:
    found = called_under(WAYS["sendfile"], lambda: find_fallbacks(tmp_path))
    (line,) = [str(each) for each in found if each.refused.startswith("sendfile")]
    assert line == (
        "sendfile is refused here (Invalid argument): what consumers fetch from files is read into memory and sent "
        "from there; one copy more of each byte; mend: a filter or a sandbox that allows sendfile; --data on a local "
        "disk with ext4 or xfs; in a container a volume"
    )


@pytest.mark.usefixtures("system_call_filters")
@pytest.mark.parametrize("reason", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_is_full_or_fails_refuses_nothing(reason: int, tmp_path: Path) -> None:
    before = found_in(tmp_path)
    names = ("pwritev2", "fallocate")
    assert called_under(refusing(reason, *names), lambda: found_in(tmp_path)) == before


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("tmpfs", "--data is on a tmpfs: records are kept in memory"),
        ("overlay", "--data is on an overlay: records are kept in the container's own layer"),
        ("ext4", ""),
        ("", ""),
    ],
)
def test_a_folder_that_does_not_last_is_told(
    kind: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallbacks, "file_system_of", lambda _path: kind)
    told = [str(each) for each in find_fallbacks(tmp_path) if KEPT_FOR_A_TIME.match(each.refused)]
    assert len(told) == bool(says)
    assert all(each.startswith(f"{says}; ") for each in told)


def test_the_kind_of_a_file_system_is_read_of_its_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fallbacks.file_system_of(Path("/proc")) == "proc"
    monkeypatch.setattr(fallbacks, "MOUNTS", tmp_path / "none")
    assert fallbacks.file_system_of(Path("/proc")) == ""


def test_a_core_whose_cpu_was_taken_away_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        core._pin(1 << 20)
    assert "CPU 1048576 is refused (Invalid argument): the kernel moves this core" in caplog.text


def options_of_core(tmp_path: Path) -> CoreOptions:
    given = {"core": 0, "cores": 1, "data": str(tmp_path), "listeners": (), "listen_fds": (), "mailbox_fd": -1}
    unused = {"control_fd": -1, "mailbox_names": (), "cpu": None, "settings": "", "overrides": (), "log_style": ""}
    return CoreOptions(**given, **unused, log_level="", supervisor_pid=1, backend="io_uring")


@pytest.mark.parametrize("may_be_plain", [True, False], ids=["auto", "io_uring"])
def test_a_core_for_whose_ring_no_locked_memory_is_left_runs_without(
    *, may_be_plain: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Backend | None] = []

    def run(_main: object, _options: object, *, options: RingOptions) -> int:
        tried.append(options.backend)
        if options.backend is Backend.IO_URING:
            raise unavailable(errno.ENOMEM)
        return core.EXIT_OK

    monkeypatch.setattr(core, "run_on_ring", run)
    code = core._run_on_backend(options_of_core(tmp_path), may_be_plain=may_be_plain)
    wanted = [Backend.IO_URING, Backend.PLAIN] if may_be_plain else [Backend.IO_URING]
    assert (code, tried) == (core.EXIT_OK if may_be_plain else core.EXIT_FAILED, wanted)
    assert "locked-memory limit" in caplog.text
    assert ("the backend is plain, without io_uring" in caplog.text) == may_be_plain


def test_the_document_lists_each() -> None:
    text = DOCUMENT.read_text()
    assert [name for name in WAYS if f"\n| `{name}` |" not in text and f"\n| {name} |" not in text] == []
