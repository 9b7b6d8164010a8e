"""cffi build of ``tpc_broker._ring``: the ring, connections, the journal and the partition table of one core.

Sources are every ``*.c`` of the rooms (`ROOMS`) and, linked in once more, every ``native/bytes/*.c`` (the hot path
calls them without leaving C); the Python face is every ``cdef/*.h`` of the rooms.

TLS is the system's OpenSSL, 3.0 or later, the same library that Python's own ``ssl`` is linked to. Without its headers
everything is built all the same, and listeners with TLS are refused; ``TPC_TLS=off`` builds so on purpose. Without
liburing's headers ``setup.py`` leaves this extension out (`native.headers`): the client needs none of it.
"""

import sys
from pathlib import Path

from cffi import FFI

sys.path.insert(0, str(Path(__file__).parent.parent))
from native.build_bytes import ROOT, cdef_text, extension_flags, include_text, link_flags
from native.headers import has_openssl

NATIVE = Path(__file__).resolve().parent
ROOMS = tuple(NATIVE / name for name in ("io", "net", "journal", "log", "replication", "requests", "tls"))
FOLDERS = (*ROOMS, NATIVE / "bytes")

WITH_TLS = has_openssl()

ffibuilder = FFI()
ffibuilder.cdef(cdef_text(*ROOMS))
ffibuilder.set_source(
    "tpc_broker._ring",
    "#include <stdint.h>\n#include <stddef.h>\n#include <stdbool.h>\n" + include_text(*ROOMS),
    sources=[str(path.relative_to(ROOT)) for folder in FOLDERS for path in sorted(folder.glob("*.c"))],
    include_dirs=[str(folder.relative_to(ROOT)) for folder in FOLDERS],
    depends=[str(path.relative_to(ROOT)) for folder in FOLDERS for path in sorted(folder.rglob("*.h"))],
    libraries=["uring", "ssl", "crypto"] if WITH_TLS else ["uring"],
    define_macros=[("TPC_WITH_TLS", "1")] if WITH_TLS else [],
    extra_compile_args=extension_flags(),
    extra_link_args=link_flags(),
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
