"""cffi build of ``tpc_broker._bytes``: checksums, batches, the hot codec, journal scanning.

Sources are every ``native/bytes/*.c``; the Python face is every ``native/bytes/cdef/*.h``, which the C sources
include as well, so that a signature is written once. No liburing here: clients and Spark workers build this alone.
"""

import os
from pathlib import Path

from cffi import FFI

FOLDER = Path(__file__).resolve().parent / "bytes"
ROOT = FOLDER.parent.parent


def extension_flags() -> list[str]:
    """Compiler flags; assertions stay on, though Python's own flags switch them off; ``TPC_CFLAGS`` adds more.

    Nobody puts a function of his own in place of one of ours, so calls between them need no table and may be inlined,
    across files too: the hot path goes through a dozen of them. See "The C of a core is compiled as one unit" in
    docs/decisions.
    """
    linked = ["-flto=auto", "-fno-semantic-interposition"]
    ours = ["-O3", "-g", *linked, "-std=gnu11", "-Wall", "-Wextra", "-UNDEBUG"]
    return [*ours, *os.environ.get("TPC_CFLAGS", "").split()]


def link_flags() -> list[str]:
    return ["-O3", "-flto=auto", "-Wl,-Bsymbolic-functions", *os.environ.get("TPC_LDFLAGS", "").split()]


def _faces(folders: tuple[Path, ...]) -> list[Path]:
    """What Python sees of them, in the order of the numbers that their names begin with."""
    return sorted((path for folder in folders for path in (folder / "cdef").glob("*.h")), key=lambda path: path.name)


def cdef_text(*folders: Path) -> str:
    return "\n".join(path.read_text() for path in _faces(folders))


def include_text(*folders: Path) -> str:
    return "\n".join(f'#include "cdef/{path.name}"' for path in _faces(folders))


ffibuilder = FFI()
ffibuilder.cdef(cdef_text(FOLDER))
ffibuilder.set_source(
    "tpc_broker._bytes",
    "#include <stdint.h>\n#include <stddef.h>\n#include <stdbool.h>\n" + include_text(FOLDER),
    sources=[str(path.relative_to(ROOT)) for path in sorted(FOLDER.glob("*.c"))],
    depends=[str(path.relative_to(ROOT)) for path in sorted(FOLDER.rglob("*.h"))],
    include_dirs=[str(FOLDER.relative_to(ROOT))],
    extra_compile_args=extension_flags(),
    extra_link_args=link_flags(),
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
