"""cffi's interface to native/ring; the signatures are in native/ring/cdef."""

from typing import Any

ffi: Any
lib: Any
