/*
 * Sequence numbers of idempotent producers, judged as Kafka 4.3 judges batches of clients outside of transactions:
 *
 * - a batch of the known epoch whose first and last sequence equal those of one of the last five is a duplicate, and is
 *   answered with the offset it got then;
 * - an epoch below the known one is fenced; one above must begin with sequence 0;
 * - within an epoch the first sequence follows the last one, 0 after 2^31-1;
 * - a producer that is not known here may begin anywhere: its state may have been lost with old segments. What refuses one
 *   where no record has ever been is with those who produce (produce.c): a replica takes what its leader took.
 *
 * One addition: a state marked sequence_lost (its last acknowledged-early batches went with a crash) takes the next batch
 * of its epoch whatever its sequence, once.
 */
#include "producer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "keyed_hash.h"

#define CAPACITY_MIN 4u
#define SEQUENCE_MAX INT32_MAX

static uint32_t slot_of(int64_t producer_id, uint32_t capacity) {
    return (uint32_t)tpc_keyed_hash((uint64_t)producer_id, NULL, 0) & (capacity - 1);
}

tpc_producer_state *tpc_producers_find(const tpc_producers *producers, int64_t producer_id) {
    if (!producers->count) return NULL;
    uint32_t slot = slot_of(producer_id, producers->capacity);
    for (; producers->states[slot].producer_id >= 0; slot = (slot + 1) & (producers->capacity - 1))
        if (producers->states[slot].producer_id == producer_id) return &producers->states[slot];
    return NULL;
}

static int32_t last_sequence_of(const tpc_batch_header *header) {
    int64_t last = (int64_t)header->base_sequence + header->last_offset_delta;
    return (int32_t)(last > SEQUENCE_MAX ? last - SEQUENCE_MAX - 1 : last);
}

static bool follows(int32_t last, int32_t next) {
    return next == 0 ? last == SEQUENCE_MAX || last == -1 : next - 1 == last;
}

enum tpc_sequence_verdict tpc_producers_check(const tpc_producers *producers, const tpc_batch_header *header,
                                              tpc_producer_batch *duplicate) {
    const tpc_producer_state *known = tpc_producers_find(producers, header->producer_id);
    if (!known) return TPC_SEQUENCE_NEXT;
    if (header->producer_epoch < known->producer_epoch) return TPC_SEQUENCE_FENCED;
    if (header->producer_epoch > known->producer_epoch)
        return header->base_sequence == 0 ? TPC_SEQUENCE_NEXT : TPC_SEQUENCE_OUT_OF_ORDER;
    for (uint32_t i = 0; i < known->batches_count; i++) {
        const tpc_producer_batch *batch = &known->batches[i];
        if (batch->base_sequence == header->base_sequence && batch->last_sequence == last_sequence_of(header)) {
            *duplicate = *batch;
            return TPC_SEQUENCE_DUPLICATE;
        }
    }
    int32_t last = known->batches_count ? known->batches[known->batches_count - 1].last_sequence : -1;
    return known->sequence_lost || follows(last, header->base_sequence) ? TPC_SEQUENCE_NEXT : TPC_SEQUENCE_OUT_OF_ORDER;
}

bool tpc_producers_lack(const tpc_producers *producers, const tpc_batch_header *header) {
    tpc_producer_batch duplicate;
    if (tpc_producers_check(producers, header, &duplicate) != TPC_SEQUENCE_OUT_OF_ORDER) return false;
    const tpc_producer_state *known = tpc_producers_find(producers, header->producer_id);
    if (!known->batches_count || header->producer_epoch > known->producer_epoch) return true;
    uint32_t next = (uint32_t)known->batches[known->batches_count - 1].last_sequence + 1;
    return (((uint32_t)header->base_sequence - next) & SEQUENCE_MAX) <= SEQUENCE_MAX / 2;
}

static void insert(tpc_producers *producers, const tpc_producer_state *state) {
    uint32_t slot = slot_of(state->producer_id, producers->capacity);
    while (producers->states[slot].producer_id >= 0) slot = (slot + 1) & (producers->capacity - 1);
    producers->states[slot] = *state;
    producers->count++;
}

bool tpc_producers_full(const tpc_producers *producers) { return producers->count + 1 > producers->capacity / 4 * 3; }

int tpc_producers_reserve(tpc_producers *producers) {
    if (!tpc_producers_full(producers)) return 0;
    uint32_t capacity = producers->capacity ? producers->capacity * 2 : CAPACITY_MIN;
    tpc_producers grown = {.states = malloc(capacity * sizeof *grown.states), .capacity = capacity};
    if (!grown.states) return -ENOMEM;
    for (uint32_t slot = 0; slot < capacity; slot++) grown.states[slot].producer_id = -1;
    for (uint32_t slot = 0; slot < producers->capacity; slot++)
        if (producers->states[slot].producer_id >= 0) insert(&grown, &producers->states[slot]);
    free(producers->states);
    *producers = grown;
    return 0;
}

void tpc_producers_accept(tpc_producers *producers, const tpc_batch_header *header, int64_t base_offset,
                          int64_t now_ms) {
    tpc_producer_state *known = tpc_producers_find(producers, header->producer_id);
    if (!known) {
        tpc_producer_state fresh = {.producer_id = header->producer_id,
                                    .producer_epoch = header->producer_epoch,
                                    .coordinator_epoch = -1,
                                    .transaction_first_offset = -1};
        insert(producers, &fresh);
        known = tpc_producers_find(producers, header->producer_id);
    }
    if (known->producer_epoch != header->producer_epoch) {
        known->producer_epoch = header->producer_epoch;
        known->batches_count = 0;
    }
    known->sequence_lost = 0;
    known->last_append_ms = now_ms;
    if (known->batches_count == TPC_PRODUCER_BATCHES_MAX)
        memmove(known->batches, known->batches + 1, --known->batches_count * sizeof *known->batches);
    known->batches[known->batches_count++] =
        (tpc_producer_batch){.base_offset = base_offset,
                             .last_offset = base_offset + header->last_offset_delta,
                             .timestamp_ms = header->max_timestamp,
                             .base_sequence = header->base_sequence,
                             .last_sequence = last_sequence_of(header)};
}

int tpc_producers_put(tpc_producers *producers, const tpc_producer_state *state) {
    tpc_producer_state *known = tpc_producers_find(producers, state->producer_id);
    if (known) {
        *known = *state;
        return 0;
    }
    int result = tpc_producers_reserve(producers);
    if (result == 0) insert(producers, state);
    return result;
}

/* Closes the gap by moving back whatever a search would no longer find. */
void tpc_producers_remove(tpc_producers *producers, int64_t producer_id) {
    tpc_producer_state *known = tpc_producers_find(producers, producer_id);
    if (!known) return;
    uint32_t mask = producers->capacity - 1;
    uint32_t gap = (uint32_t)(known - producers->states);
    for (uint32_t slot = (gap + 1) & mask; producers->states[slot].producer_id >= 0; slot = (slot + 1) & mask) {
        uint32_t home = slot_of(producers->states[slot].producer_id, producers->capacity);
        if (((slot - home) & mask) >= ((slot - gap) & mask)) {
            producers->states[gap] = producers->states[slot];
            gap = slot;
        }
    }
    producers->states[gap].producer_id = -1;
    producers->count--;
}

uint32_t tpc_producers_longest_search(const tpc_producers *producers) {
    uint32_t longest = 0, mask = producers->capacity - 1;
    for (uint32_t slot = 0; slot < producers->capacity; slot++) {
        if (producers->states[slot].producer_id < 0) continue;
        uint32_t looked_at = ((slot - slot_of(producers->states[slot].producer_id, producers->capacity)) & mask) + 1;
        if (looked_at > longest) longest = looked_at;
    }
    return longest;
}

void tpc_producers_free(tpc_producers *producers) {
    free(producers->states);
    *producers = (tpc_producers){0};
}

/* ---- the encoding of checkpoints: ProducerState.encode_full() in tpc_broker/log/producer_state.py ---- */

typedef struct __attribute__((packed)) {
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t coordinator_epoch;
    int64_t transaction_first_offset, last_timestamp_ms;
    uint8_t batches_count;
} encoded_producer;

typedef struct __attribute__((packed)) {
    int32_t last_sequence;
    int64_t last_offset;
    int32_t offset_delta;
    int64_t timestamp_ms;
} encoded_batch;

_Static_assert(sizeof(encoded_producer) + TPC_PRODUCER_BATCHES_MAX * sizeof(encoded_batch) == TPC_PRODUCER_ENCODED_MAX,
               "what it takes at most");

uint32_t tpc_producer_encode(const tpc_producer_state *state, uint8_t *encoded) {
    encoded_producer one = {.producer_id = state->producer_id,
                            .producer_epoch = state->producer_epoch,
                            .coordinator_epoch = state->coordinator_epoch,
                            .transaction_first_offset = state->transaction_first_offset,
                            .last_timestamp_ms = state->last_append_ms,
                            .batches_count = state->batches_count};
    memcpy(encoded, &one, sizeof one);
    uint32_t bytes = sizeof one;
    for (uint32_t i = 0; i < state->batches_count; i++) {
        const tpc_producer_batch *of = &state->batches[i];
        encoded_batch batch = {of->last_sequence, of->last_offset, (int32_t)(of->last_offset - of->base_offset),
                               of->timestamp_ms};
        memcpy(encoded + bytes, &batch, sizeof batch);
        bytes += sizeof batch;
    }
    return bytes;
}

/* One producer at encoded[*place]; false: there is none. */
static bool decode_one(const uint8_t *encoded, uint32_t bytes, uint32_t *place, tpc_producer_state *state) {
    encoded_producer one;
    if (bytes - *place < sizeof one) return false;
    memcpy(&one, encoded + *place, sizeof one);
    *place += sizeof one;
    if (one.producer_id < 0 || one.batches_count > TPC_PRODUCER_BATCHES_MAX) return false;
    if ((bytes - *place) / sizeof(encoded_batch) < one.batches_count) return false;
    *state = (tpc_producer_state){.producer_id = one.producer_id,
                                  .producer_epoch = one.producer_epoch,
                                  .coordinator_epoch = one.coordinator_epoch,
                                  .transaction_first_offset = one.transaction_first_offset,
                                  .last_append_ms = one.last_timestamp_ms,
                                  .batches_count = one.batches_count};
    for (uint32_t i = 0; i < one.batches_count; i++, *place += sizeof(encoded_batch)) {
        encoded_batch batch;
        memcpy(&batch, encoded + *place, sizeof batch);
        if (batch.offset_delta < 0 || batch.last_offset < batch.offset_delta) return false;
        state->batches[i] = (tpc_producer_batch){
            .base_offset = batch.last_offset - batch.offset_delta,
            .last_offset = batch.last_offset,
            .timestamp_ms = batch.timestamp_ms,
            .base_sequence = (int32_t)(((int64_t)batch.last_sequence - batch.offset_delta) & INT32_MAX),
            .last_sequence = batch.last_sequence};
    }
    return true;
}

int tpc_producers_decode(tpc_producers *producers, const uint8_t *encoded, uint32_t bytes, bool sequence_lost,
                         int64_t now_ms, int64_t expiry_ms) {
    uint32_t count, place = sizeof count;
    tpc_producer_state state;
    if (bytes < place) return -EINVAL;
    memcpy(&count, encoded, sizeof count);
    for (uint32_t i = 0; i < count; i++)
        if (!decode_one(encoded, bytes, &place, &state)) return -EINVAL;
    if (place != bytes) return -EINVAL;
    place = sizeof count;
    for (uint32_t i = 0; i < count; i++) {
        decode_one(encoded, bytes, &place, &state);
        state.sequence_lost = sequence_lost;
        /* Stored may be the time of its last records, by its client's clock: one that cannot be says nothing. */
        if (state.last_append_ms > now_ms || state.last_append_ms <= now_ms - expiry_ms) state.last_append_ms = now_ms;
        int result = tpc_producers_put(producers, &state);
        if (result < 0) return result;
    }
    return 0;
}
