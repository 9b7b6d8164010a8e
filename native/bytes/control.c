/*
 * Markers of transactions: control batches of one record.
 *
 *   key:   version i16 | kind i16: 0 abort, 1 commit
 *   value: version i16 | coordinator_epoch i32
 */
#include <string.h>

#include "bytes.h"
#include "wire.h"

enum { KEY_BYTES = 4, VALUE_BYTES = 6, RECORD_BYTES = 17 };

_Static_assert(TPC_CONTROL_BATCH_BYTES == TPC_BATCH_HEADER_BYTES + RECORD_BYTES, "one record");

bool tpc_control_read(const uint8_t *batch, const tpc_batch_header *header, tpc_control_marker *out) {
    size_t records_bytes = (size_t)header->batch_bytes - TPC_BATCH_HEADER_BYTES, position = 0;
    tpc_record record;
    if (!(header->attributes & TPC_BATCH_IS_CONTROL) || header->records_count < 1) return false;
    if (tpc_record_read(batch + TPC_BATCH_HEADER_BYTES, records_bytes, &position, &record) < 0) return false;
    if (record.key_bytes < KEY_BYTES) return false;
    out->kind = wire_u16(record.key + 2);
    out->coordinator_epoch = record.value_bytes < VALUE_BYTES ? -1 : (int32_t)wire_u32(record.value + 2);
    return out->kind == TPC_CONTROL_ABORT || out->kind == TPC_CONTROL_COMMIT;
}

void tpc_control_build(uint8_t *batch, const tpc_control_marker *marker, int64_t producer_id, int16_t producer_epoch,
                       int64_t timestamp_ms) {
    uint8_t record[RECORD_BYTES] = {2 * (RECORD_BYTES - 1), [4] = 2 * KEY_BYTES, [8] = (uint8_t)marker->kind,
                                    [9] = 2 * VALUE_BYTES};
    wire_set_u32(record + 12, (uint32_t)marker->coordinator_epoch);
    memset(batch, 0, TPC_BATCH_HEADER_BYTES);
    wire_set_u32(batch + 8, TPC_CONTROL_BATCH_BYTES - TPC_BATCH_LENGTH_OVERHEAD_BYTES);
    wire_set_u32(batch + 12, UINT32_MAX); /* partition_leader_epoch */
    batch[16] = 2;                        /* magic */
    wire_set_u16(batch + 21, TPC_BATCH_TRANSACTIONAL | TPC_BATCH_IS_CONTROL);
    wire_set_u64(batch + 27, (uint64_t)timestamp_ms);
    wire_set_u64(batch + 35, (uint64_t)timestamp_ms);
    wire_set_u64(batch + 43, (uint64_t)producer_id);
    wire_set_u16(batch + 51, (uint16_t)producer_epoch);
    wire_set_u32(batch + 53, UINT32_MAX); /* base_sequence */
    wire_set_u32(batch + 57, 1);          /* records_count */
    memcpy(batch + TPC_BATCH_HEADER_BYTES, record, RECORD_BYTES);
    tpc_batch_seal(batch, TPC_CONTROL_BATCH_BYTES);
}
