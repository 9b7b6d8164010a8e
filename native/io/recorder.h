/* Calls of the recorder cost one predictable branch while it is off: guard them with tpc_recorder_on. */
#ifndef TPC_RECORDER_H
#define TPC_RECORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cdef/45_recorder.h"

extern bool tpc_recorder_on;

/* One record of what a gathered write writes. */
uint64_t tpc_disk_record_writev(int descriptor, void *const *parts, const size_t *lengths, unsigned count,
                                int64_t offset, uint32_t flags);

#endif
