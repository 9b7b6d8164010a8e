"""What is said where a loader is missing: the reason and the command that mends it, in one line."""

from __future__ import annotations

import errno
import os
import runpy
from pathlib import Path

import pytest

from tpc_broker.ebpf import build, kernel, loaders, steering
from tpc_broker.ebpf.loaders import LoaderUnavailableError
from tpc_broker.ebpf.steering import Select, Steering


@pytest.fixture
def maps(monkeypatch) -> None:
    """Of a host where maps can be made: descriptors of nothing."""
    monkeypatch.setattr(kernel, "create_map", lambda *_what: os.open("/dev/null", os.O_RDONLY))
    monkeypatch.setattr(kernel, "update", lambda *_what: None)


@pytest.mark.parametrize(("asked", "tried"), [("auto", ["bcc", "libbpf"]), ("bcc", ["bcc"]), ("libbpf", ["libbpf"])])
def test_loaders_are_tried_in_order(asked, tried):
    assert [loader.name for loader in loaders.loaders(asked)] == tried


def test_switched_off(maps):
    with pytest.raises(LoaderUnavailableError, match=r"eBPF is switched off; mend: ebpf\.loader=auto"):
        Steering("off", 2, Select.LOAD)


def test_nothing_is_installed(maps, monkeypatch, tmp_path):
    monkeypatch.setattr(loaders, "_SYSTEM_PACKAGES", tmp_path)
    monkeypatch.setattr(loaders.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(loaders.load_by_libbpf, "__kwdefaults__", {"object_file": tmp_path / "steer.o"})
    with pytest.raises(LoaderUnavailableError) as raised:
        Steering("auto", 2, Select.LOAD)
    text = str(raised.value)
    assert "bcc is not installed; libbpf has no object" in text
    assert "apt-get install -y --no-install-recommends python3-bpfcc linux-headers-" in text
    assert build.INSTALL_CLANG in text
    assert "\n" not in text


def test_no_kernel_headers(maps, monkeypatch, tmp_path):
    (tmp_path / "bcc").mkdir()
    monkeypatch.delenv("BCC_KERNEL_SOURCE", raising=False)
    monkeypatch.setattr(loaders, "_SYSTEM_PACKAGES", tmp_path)
    monkeypatch.setattr(loaders, "_MODULES", tmp_path)
    monkeypatch.setattr(loaders, "_KERNEL_HEADERS_IN_KERNEL", tmp_path / "none")
    with pytest.raises(LoaderUnavailableError, match=r"bcc finds no headers of the kernel in .*; mend: apt-get inst"):
        Steering("bcc", 2, Select.LOAD)


def test_what_is_not_permitted_names_the_capabilities(monkeypatch):
    def refused(*_what) -> int:
        raise PermissionError(errno.EPERM, "bpf: Operation not permitted")

    monkeypatch.setattr(kernel, "create_map", refused)
    with pytest.raises(LoaderUnavailableError, match=r"Operation not permitted; mend: .*CAP_BPF and CAP_NET_ADMIN"):
        Steering("auto", 2, Select.LOAD)


def test_a_source_that_does_not_compile_is_named_in_one_line(monkeypatch, tmp_path):
    (tmp_path / "clang").write_text("#!/bin/sh\necho 'steer.c:1: error: no' >&2\necho more >&2\nexit 1\n")
    (tmp_path / "clang").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NotBuiltError, match=r"clang cannot compile .*steer\.c: steer\.c:1: error: no$"):
        build.build_object(tmp_path / "steer.o")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(build.NotBuiltError, match="clang is not installed"):
        build.build_object(tmp_path / "steer.o")


def test_an_object_of_another_source_is_not_loaded(monkeypatch, tmp_path):
    """Its maps could look otherwise."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "build.py").write_text(Path(build.__file__).read_text())
    (programs / "steer.c").write_text(build.SOURCE.read_text())
    assert runpy.run_path(str(tmp_path / "build.py"))["OBJECT"].name == build.OBJECT.name
    (programs / "steer.c").write_text(build.SOURCE.read_text() + "\n")
    assert runpy.run_path(str(tmp_path / "build.py"))["OBJECT"].name != build.OBJECT.name


def test_the_sizes_are_those_of_the_program():
    """A constant here, a struct there."""
    source = build.SOURCE.read_text()
    counts = source.split("enum count {")[1].split("}")[0].split(",")
    assert [name.strip() for name in counts][-1] == "COUNTS"
    assert len(counts) - 1 == steering._FIXED_COUNTS
    selects = dict(part.split("=") for part in source.split("enum select {")[1].split("}")[0].split(","))
    assert {name.strip(): int(value) for name, value in selects.items()} == {
        f"BY_{each.name}": each.value for each in Select
    }
