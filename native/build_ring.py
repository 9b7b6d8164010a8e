"""cffi build of ``tpc_broker._ring``: the ring, connections, the journal and the partition table of one core.

Sources are every ``native/ring/*.c`` and, linked in once more, every ``native/bytes/*.c`` (the hot path calls them
without leaving C); the Python face is every ``native/ring/cdef/*.h``.
"""

import sys
from pathlib import Path

from cffi import FFI

sys.path.insert(0, str(Path(__file__).parent.parent))
from native.build_bytes import ROOT, cdef_text, extension_flags, include_text, link_flags

FOLDER = Path(__file__).resolve().parent / "ring"
BYTES = Path(__file__).resolve().parent / "bytes"

ffibuilder = FFI()
ffibuilder.cdef(cdef_text(FOLDER))
ffibuilder.set_source(
    "tpc_broker._ring",
    "#include <stdint.h>\n#include <stddef.h>\n#include <stdbool.h>\n" + include_text(FOLDER),
    sources=[str(path.relative_to(ROOT)) for folder in (FOLDER, BYTES) for path in sorted(folder.glob("*.c"))],
    include_dirs=[str(FOLDER.relative_to(ROOT)), str(BYTES.relative_to(ROOT))],
    depends=[str(path.relative_to(ROOT)) for folder in (FOLDER, BYTES) for path in sorted(folder.rglob("*.h"))],
    libraries=["uring"],
    extra_compile_args=extension_flags(),
    extra_link_args=link_flags(),
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
