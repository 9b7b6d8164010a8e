/* Between batch.c and batch_records.c: the two ways to judge the records of a batch whose header is in the report.
 * Both return an enum tpc_batch_reason and fill bad_records, records_max_timestamp and flags. */
#ifndef TPC_BATCH_H
#define TPC_BATCH_H

#include "bytes.h"

int batch_walk(const uint8_t *records, size_t records_bytes, const tpc_batch_limits *limits, tpc_batch_report *report);
int batch_judge_by_header(const tpc_batch_limits *limits, tpc_batch_report *report);

#endif
