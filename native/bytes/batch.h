/* Between batch.c and its neighbours. All three return an enum tpc_batch_reason. */
#ifndef TPC_BATCH_H
#define TPC_BATCH_H

#include "bytes.h"

/* The two ways to judge the records of a batch whose header is in the report: they fill bad_records,
 * records_max_timestamp and flags. */
int batch_walk(const uint8_t *records, size_t records_bytes, const tpc_batch_limits *limits, tpc_batch_report *report);
int batch_judge_by_header(const tpc_batch_limits *limits, tpc_batch_report *report);

/* Reads the header of a stored batch and checks everything but its checksum and its place among others. */
int batch_check_stored(const uint8_t *at, size_t left, tpc_batch_header *header);

#endif
