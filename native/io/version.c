#include <stdint.h>
#include <stddef.h>
#include <stdbool.h>
#include "cdef/10_version.h"

int tpc_ring_abi(void) { return 1; }
