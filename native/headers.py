"""What this machine can compile: whether the headers and libraries of the ring are there."""

import os
import subprocess
import sysconfig
import tempfile

_LIBURING = "#include <liburing.h>\nint main(void) { struct io_uring ring; return io_uring_queue_init(1, &ring, 0); }\n"
_OPENSSL_3 = "#include <openssl/ssl.h>\n#if OPENSSL_VERSION_MAJOR < 3\n#error\n#endif\nint main(void) { return 0; }\n"
WHAT_THE_RING_NEEDS = "liburing's headers (Debian: apt-get install liburing-dev libssl-dev)"


class HeadersMissingError(Exception):
    """``TPC_RING=on`` asks for what cannot be compiled here."""


def compiles(program: str, *libraries: str) -> bool:
    """Whether the compiler finds what the program includes, and the linker these libraries."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()
    with tempfile.TemporaryDirectory() as folder:
        command = [*compiler, "-x", "c", "-", *(f"-l{name}" for name in libraries), "-o", f"{folder}/a"]
        try:
            done = subprocess.run(command, input=program.encode(), capture_output=True, check=False)  # noqa: S603 (ours)
        except OSError:
            return False
    return done.returncode == 0


def has_openssl() -> bool:
    """Whether the compiler finds OpenSSL 3.0 or later; ``TPC_TLS=off``: as if not."""
    return os.environ.get("TPC_TLS") != "off" and compiles(_OPENSSL_3, "ssl", "crypto")


def reason_without_ring() -> str:
    """Why the ring is left out of this build; empty: it is in it.

    ``TPC_RING=off`` leaves it out, ``on`` insists on it (`HeadersMissingError`), anything else looks for what it needs.
    """
    wanted = os.environ.get("TPC_RING", "auto")
    if wanted == "off":
        return "TPC_RING=off"
    if compiles(_LIBURING, "uring"):
        return ""
    if wanted == "on":
        raise HeadersMissingError(f"TPC_RING=on, and the compiler does not find {WHAT_THE_RING_NEEDS}")
    return f"the compiler does not find {WHAT_THE_RING_NEEDS}"
