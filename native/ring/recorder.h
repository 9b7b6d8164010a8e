/* Calls of the recorder cost one predictable branch while it is off: guard them with tpc_recorder_on. */
#ifndef TPC_RECORDER_H
#define TPC_RECORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "cdef/45_recorder.h"

extern bool tpc_recorder_on;

#endif
