"""Two ways to bring `programs/steer.c` into the kernel, and which of them this host has.

`bcc` compiles it on the host, against the headers of the running kernel. `libbpf` loads the object that `build` made
ahead of time. A loader takes descriptors of the maps by their names in the source, and gives one of the program.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tpc_broker.ebpf.build import INSTALL_CLANG, OBJECT, SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SYSTEM_PYTHON: Final = "/usr/bin/python3"
_SYSTEM_PACKAGES: Final = Path("/usr/lib/python3/dist-packages")
_MODULES: Final = Path("/lib/modules")
_BCC_SECONDS_MAX: Final = 60
_KERNEL_HEADERS_IN_KERNEL: Final = Path("/sys/kernel/kheaders.tar.xz")

GRANT: Final = "run as root, or grant CAP_BPF and CAP_NET_ADMIN (systemd: AmbientCapabilities=CAP_BPF CAP_NET_ADMIN)"


class LoaderUnavailableError(Exception):
    """Why a loader does not work here, in one line, and the command that mends it."""

    def __init__(self, reason: str, mend: str) -> None:
        super().__init__(f"{reason}; mend: {mend}")
        self.reason = reason
        self.mend = mend


class Loader(NamedTuple):
    name: str
    load: Callable[[Mapping[str, int]], int]
    """Map descriptors by name to the program's. Raises LoaderUnavailableError."""


def loaders(asked: str) -> tuple[Loader, ...]:
    """Those that are to be tried, in order, for a value of `ebpf.loader`."""
    every = (Loader("bcc", load_by_bcc), Loader("libbpf", load_by_libbpf))
    return tuple(each for each in every if asked in ("auto", each.name))


# -- bcc ---------------------------------------------------------------------------------------------------------------


def load_by_bcc(maps: Mapping[str, int]) -> int:
    """Takes seconds of CPU time, in a process of its own."""
    python = find_bcc()
    try:
        return _load_in_child(python, maps)
    except _ChildError as error:
        mend = GRANT if "not permitted" in str(error) else "ebpf.loader=libbpf"
        raise LoaderUnavailableError(f"bcc: {error}", mend) from None


def find_bcc() -> str:
    """The Python that has it (Debian installs it for the system's own). Raises LoaderUnavailableError."""
    if importlib.util.find_spec("bcc") is not None:
        python = sys.executable
    elif (_SYSTEM_PACKAGES / "bcc").is_dir():
        python = _SYSTEM_PYTHON
    else:
        raise LoaderUnavailableError("bcc is not installed", _install_bcc())
    _check_kernel_headers()
    return python


def _check_kernel_headers() -> None:
    """Where bcc looks; without them its error is many lines long."""
    if "BCC_KERNEL_SOURCE" in os.environ or _KERNEL_HEADERS_IN_KERNEL.exists():
        return
    folder = _MODULES / platform.release()
    if not (folder / "build").exists():
        raise LoaderUnavailableError(f"bcc finds no headers of the kernel in {folder}/build", _install_bcc())


def _install_bcc() -> str:
    return f"apt-get install -y --no-install-recommends python3-bpfcc linux-headers-{platform.release()}"


class _ChildError(Exception):
    """Its last line."""


def _load_in_child(python: str, maps: Mapping[str, int]) -> int:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours:
        arguments = [f"{name}={descriptor}" for name, descriptor in maps.items()]
        script = Path(__file__).with_name("bcc_child.py")
        with theirs:
            command = [python, str(script), str(theirs.fileno()), str(SOURCE), *arguments]
            try:
                done = subprocess.run(
                    command, pass_fds=(theirs.fileno(), *maps.values()), stdin=subprocess.DEVNULL,
                    capture_output=True, text=True, timeout=_BCC_SECONDS_MAX, check=False, cwd="/",
                )  # fmt: skip
            except (OSError, subprocess.TimeoutExpired) as error:
                raise _ChildError(str(error)) from error
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.strip()]
            denied = [line for line in said if "not permitted" in line]
            raise _ChildError((denied or said or [f"exit code {done.returncode}"])[-1])
        _data, descriptors, _flags, _address = socket.recv_fds(ours, 1, 1)
    (program,) = descriptors
    os.set_inheritable(program, False)  # noqa: FBT003 (its only argument)
    return program


# -- libbpf ------------------------------------------------------------------------------------------------------------


def load_by_libbpf(maps: Mapping[str, int], *, object_file: Path = OBJECT) -> int:
    if not object_file.exists():
        mend = f"{INSTALL_CLANG} && {sys.executable} {Path(__file__).with_name('build.py')}"
        raise LoaderUnavailableError(f"libbpf has no object {object_file}: it was not built of this source", mend)
    library = _libbpf()
    opened = library.bpf_object__open_file(str(object_file).encode(), None)
    if not opened:
        raise _libbpf_error("open", object_file)
    try:
        for name, descriptor in maps.items():
            found = library.bpf_object__find_map_by_name(opened, name.encode())
            if not found or library.bpf_map__reuse_fd(found, descriptor):
                raise _libbpf_error(f"use its map {name} of", object_file)
        if library.bpf_object__load(opened):
            raise _libbpf_error("load", object_file)
        program = library.bpf_object__find_program_by_name(opened, b"steer")
        return os.dup(library.bpf_program__fd(program))
    finally:
        library.bpf_object__close(opened)


def _libbpf() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError:
        raise LoaderUnavailableError("libbpf.so.1 is not installed", INSTALL_CLANG) from None
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("bpf_object__open_file", pointer, (text, pointer)),
        ("bpf_object__find_map_by_name", pointer, (pointer, text)),
        ("bpf_map__reuse_fd", ctypes.c_int, (pointer, ctypes.c_int)),
        ("bpf_object__load", ctypes.c_int, (pointer,)),
        ("bpf_object__find_program_by_name", pointer, (pointer, text)),
        ("bpf_program__fd", ctypes.c_int, (pointer,)),
        ("bpf_object__close", None, (pointer,)),
        ("libbpf_set_print", pointer, (pointer,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if "TPC_EBPF_VERBOSE" not in os.environ:
        library.libbpf_set_print(None)  # else it writes to standard error
    return library


def _libbpf_error(what: str, object_file: Path) -> LoaderUnavailableError:
    error = ctypes.get_errno()
    mend = GRANT if error in (1, 13) else "a kernel of 5.5 or newer; TPC_EBPF_VERBOSE=1 tells more"
    return LoaderUnavailableError(f"libbpf cannot {what} {object_file.name}: {os.strerror(error)}", mend)
