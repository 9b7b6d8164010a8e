/* Everything the byte helpers offer, for C callers. The declarations are those that Python sees (cdef/). */
#ifndef TPC_BYTES_H
#define TPC_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "facts.h"

#include "cdef/20_crc32c.h"
#include "cdef/30_batch.h"
#include "cdef/32_key_values.h"
#include "cdef/34_clean.h"
#include "cdef/40_request.h"
#include "cdef/50_response.h"
#include "cdef/60_journal.h"
#include "cdef/65_journal_runs.h"
#include "cdef/70_segment.h"
#include "cdef/70_arrow_columns.h"
#include "cdef/72_record_rows.h"
#include "cdef/75_packed_batch.h"
#include "cdef/80_link.h"
#include "cdef/82_steady_frame.h"
#include "cdef/85_forwarded.h"
#include "cdef/90_datagram.h"

#endif
