"""Which backend is taken, why, and what is said about it."""

from __future__ import annotations

import errno
from typing import NoReturn

import pytest

from tpc_broker.engine import backend as backend_module
from tpc_broker.engine.backend import choose_backend, described, insists_on_io_uring, why_refused
from tpc_broker.engine.ring import BACKEND_VARIABLE, HIDE_VARIABLE, Backend, RingUnavailable, unavailable


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BACKEND_VARIABLE, raising=False)


class _Opened:
    def close(self) -> None:
        pass


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise unavailable(errno.EPERM)

    monkeypatch.setattr(backend_module, "Ring", refuse)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "Ring", lambda *_, **__: _Opened())


@pytest.mark.usefixtures("offered")
def test_io_uring_is_taken_where_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module.platform, "release", lambda: "5.8.0")
    chosen = choose_backend()
    assert (chosen.name, described(chosen)) == (Backend.IO_URING, "io_uring")
    assert choose_backend("plain").name == Backend.PLAIN
    monkeypatch.setenv(BACKEND_VARIABLE, "plain")
    assert choose_backend().name == Backend.PLAIN
    assert choose_backend("io_uring").name == Backend.IO_URING


@pytest.mark.usefixtures("offered")
def test_a_kernel_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module.platform, "release", lambda: "5.6.19-amd64")
    chosen = choose_backend()
    assert chosen.name == Backend.PLAIN
    assert "Linux 5.6.19-amd64 is too old" in chosen.reason
    assert choose_backend("io_uring").name == Backend.IO_URING


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize("name", [BACKEND_VARIABLE, HIDE_VARIABLE])
@pytest.mark.parametrize("asked", ["auto", "plain"])
def test_a_variable_that_names_what_there_is_not_is_refused(
    name: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "warp")
    if (name, asked) == (BACKEND_VARIABLE, "plain"):
        assert choose_backend(asked).name == Backend.PLAIN, "what is asked for by option or setting has the last word"
    else:
        with pytest.raises(ValueError, match=rf"{name}: 'warp'.*(io_uring|multishot)"):
            choose_backend(asked)


@pytest.mark.parametrize(
    ("asked", "variable", "insists"),
    [("auto", "", False), ("auto", "plain", False), ("auto", "io_uring", True), ("plain", "io_uring", False),
     ("io_uring", "", True), ("io_uring", "plain", True)],
)  # fmt: skip
def test_who_insists_on_io_uring_by_the_setting_or_the_variable(
    asked: str, variable: str, insists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BACKEND_VARIABLE, variable)
    assert insists_on_io_uring(asked) == insists


@pytest.mark.usefixtures("refused")
def test_where_it_is_refused_the_plain_one_is_taken_unless_it_is_insisted_on() -> None:
    chosen = choose_backend()
    assert chosen.name == Backend.PLAIN
    text = described(chosen)
    assert chosen.reason in text
    assert f"mend: {chosen.mend}" in text
    with pytest.raises(RingUnavailable, match="io_uring is forbidden here"):
        choose_backend("io_uring")


@pytest.mark.parametrize(
    ("error", "sysctl", "filtered", "reason", "mend"),
    [
        (errno.EPERM, 2, True, "the sysctl kernel.io_uring_disabled is 2", "sysctl -w"),
        (errno.EPERM, 0, True, "a seccomp filter refuses", "--security-opt seccomp="),
        (errno.EPERM, None, False, "forbidden", "sysctl -w"),
        (errno.ENOSYS, None, True, "a seccomp filter or the kernel", "SystemCallFilter="),
        (errno.ENOSYS, None, False, "this kernel has no io_uring", "Linux 5.8"),
        (errno.ENOMEM, 0, False, "locked-memory limit", "ulimit -l"),
        (errno.EINVAL, 0, False, "Invalid argument", "Linux 5.8"),
    ],
)
def test_the_reason_is_told_with_what_mends_it(
    *, error: int, sysctl: int | None, filtered: bool, reason: str, mend: str
) -> None:
    found = why_refused(error, sysctl=sysctl, filtered=filtered)
    assert reason in found[0]
    assert mend in found[1]
