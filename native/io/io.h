/* What the parts of a core ask of the system beside their ring's entries; see cdef/12_io.h. */
#ifndef TPC_IO_H
#define TPC_IO_H

#include <stdbool.h>
#include <stdint.h>

#include "cdef/12_io.h"

extern tpc_io_calls tpc_io;

static inline int64_t tpc_monotonic_ns(void) { return tpc_io.monotonic_ns(); }

#endif
