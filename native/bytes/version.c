#include <stdint.h>
#include <stddef.h>
#include <stdbool.h>
#include "cdef/10_version.h"

int tpc_bytes_abi(void) { return 1; }
