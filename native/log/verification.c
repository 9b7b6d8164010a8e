/*
 * Produces of transactions: which batches may begin one in a partition. Their coordinator is asked by Python; what it says counts
 * while the verification stands that began before (transaction.h).
 */
#include <errno.h>

#include "plane.h"

enum { BATCH_ATTRIBUTES_POSITION = 21, BATCH_MAGIC_POSITION = 16, VERSION_THAT_ADDS = 12 };

bool tpc_records_transactional(const uint8_t *records, int32_t bytes) {
    return bytes > BATCH_ATTRIBUTES_POSITION + 1 && records[BATCH_MAGIC_POSITION] == 2 &&
           (records[BATCH_ATTRIBUTES_POSITION + 1] & TPC_BATCH_TRANSACTIONAL);
}

/* Rule: What is in a transaction is acknowledged when it is committed, whatever the topic and the request's acks say: else its
 * end could be committed, and it not. Held by tests/engine/test_verification.py. */
bool tpc_produce_relaxed(const tpc_partition *partition, const tpc_produce_records *records) {
    return partition->flags & TPC_PARTITION_RELAXED &&
           !tpc_records_transactional(records->records, (int32_t)records->bytes);
}

bool tpc_produce_is_of_open(const tpc_partition *partition, const tpc_batch_header *header) {
    const tpc_producer_state *known = tpc_producers_find(&partition->producers, header->producer_id);
    return known && known->transaction && known->producer_epoch == header->producer_epoch;
}

static const tpc_verification *standing(const tpc_partition *partition, const tpc_batch_header *header,
                                        uint32_t guard) {
    const tpc_verification *asked = tpc_verification_of(&partition->producers.transactions, header->producer_id);
    TPC_PARTITION_INVARIANT(partition, !asked || (asked->guard && asked->asking > 0)); /* 0 is nobody's */
    return asked && guard && asked->guard == guard && asked->producer_epoch == header->producer_epoch ? asked : NULL;
}

/*
 * Whether the marker of its producer's last transaction has ended the verification that began before it came: from
 * transaction.version 2 on a producer goes on before its markers are written, in the epoch that they have. A marker of the batch's
 * own transaction has a later one.
 */
static bool is_overtaken(const tpc_partition *partition, const tpc_batch_header *header, uint32_t guard) {
    const tpc_producer_state *known = tpc_producers_find(&partition->producers, header->producer_id);
    return known && known->producer_epoch == header->producer_epoch && !known->batches_count &&
           !standing(partition, header, guard);
}

bool tpc_produce_lacks_verification(const tpc_partition *partition, const tpc_produce_part *part, int16_t version,
                                    uint32_t guard) {
    tpc_batch_header header;
    if (!tpc_records_transactional(part->records, part->records_bytes) ||
        tpc_batch_header_read(part->records, (size_t)part->records_bytes, &header) != 0 || header.producer_id < 0 ||
        tpc_produce_is_of_open(partition, &header))
        return false;
    return !guard || (version >= VERSION_THAT_ADDS && is_overtaken(partition, &header, guard));
}

/*
 * Rule: A batch begins a transaction in a partition only behind its coordinator's word, and only if nothing has ended that
 * transaction since the coordinator was asked: the verification that began before still stands. So a late batch never lands in
 * a later transaction, and none hangs that its coordinator does not know. See also native/log/transaction.h. Held by
 * tests/engine/test_verification.py.
 */
int16_t tpc_produce_transaction_refusal(const tpc_partition *partition, const tpc_produce_records *records,
                                        const tpc_batch_header *header) {
    if (!(header->attributes & TPC_BATCH_TRANSACTIONAL) || tpc_produce_is_of_open(partition, header)) return 0;
    const tpc_verification *asked = standing(partition, header, records->guard);
    if (!asked) return TPC_ERROR_INVALID_TXN_STATE;
    const tpc_producer_state *known = tpc_producers_find(&partition->producers, header->producer_id);
    if (known && known->batches_count) return 0;
    bool is_too_high = header->base_sequence > asked->lowest_sequence || (asked->begins_anew && header->base_sequence);
    return is_too_high ? TPC_ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER : 0;
}

void tpc_plane_take_transactions(tpc_plane *plane, int on) { plane->takes_transactions = on; }

int tpc_plane_begin_verification(tpc_plane *plane, uint64_t handle, int64_t producer_id, int16_t producer_epoch,
                                 int32_t sequence, int begins_anew, uint32_t *guard) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (partition->role != TPC_ROLE_LEADER) return -EPERM;
    const tpc_producer_state *known = tpc_producers_find(&partition->producers, producer_id);
    if (known && producer_epoch < known->producer_epoch) return TPC_ERROR_INVALID_PRODUCER_EPOCH;
    if (++plane->guards == 0) plane->guards = 1;
    tpc_verification asked = {.producer_id = producer_id,
                              .lowest_sequence = sequence,
                              .guard = plane->guards,
                              .producer_epoch = producer_epoch,
                              .begins_anew = begins_anew};
    int result = tpc_verification_begin(&partition->producers.transactions, &asked, guard);
    TPC_PARTITION_INVARIANT(partition, result || *guard);
    return result == -EINVAL ? TPC_ERROR_INVALID_PRODUCER_EPOCH : result;
}

void tpc_plane_end_verification(tpc_plane *plane, uint64_t handle, int64_t producer_id, uint32_t guard) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return;
    tpc_verification_leave(&partition->producers.transactions, producer_id, guard);
}
