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

#include "invariant.h"
#include "keyed_hash.h"

#define CAPACITY_MIN 4u
#define SEQUENCE_MAX INT32_MAX

static uint32_t hash_of(int64_t producer_id) { return (uint32_t)tpc_keyed_hash((uint64_t)producer_id, NULL, 0); }

/* Chunk 0 has the first CAPACITY_MIN states; each one behind it as many as there are in front of it. */
static uint32_t chunk_of(uint32_t number) {
    return number < CAPACITY_MIN ? 0 : (uint32_t)__builtin_clz(CAPACITY_MIN) - (uint32_t)__builtin_clz(number) + 1;
}

static tpc_producer_state *state_at(const tpc_producers *producers, uint32_t number) {
    uint32_t chunk = chunk_of(number);
    TPC_HOLDS(number < producers->states_used);
    return &producers->chunks[chunk][chunk ? number - (CAPACITY_MIN << (chunk - 1)) : number];
}

tpc_producer_state *tpc_producers_at(const tpc_producers *producers, uint32_t number) {
    tpc_producer_state *state = state_at(producers, number);
    return state->producer_id < 0 ? NULL : state;
}

/* Its slot; UINT32_MAX: it is not known. */
static uint32_t find_slot(const tpc_producers *producers, int64_t producer_id) {
    if (!producers->count) return UINT32_MAX;
    TPC_HOLDS(producers->count < producers->capacity); /* so a search ends */
    uint32_t hash = hash_of(producer_id), mask = producers->capacity - 1;
    const tpc_producer_slot *slots = producers->slots;
    for (uint32_t slot = hash & mask; slots[slot].state; slot = (slot + 1) & mask)
        if (slots[slot].hash == hash && state_at(producers, slots[slot].state - 1)->producer_id == producer_id)
            return slot;
    return UINT32_MAX;
}

tpc_producer_state *tpc_producers_find(const tpc_producers *producers, int64_t producer_id) {
    uint32_t slot = find_slot(producers, producer_id);
    return slot == UINT32_MAX ? NULL : state_at(producers, producers->slots[slot].state - 1);
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
    if (known->transaction && !(header->attributes & TPC_BATCH_TRANSACTIONAL)) return TPC_SEQUENCE_NOT_IN_TRANSACTION;
    if (header->producer_epoch > known->producer_epoch)
        return header->base_sequence == 0 ? TPC_SEQUENCE_NEXT : TPC_SEQUENCE_OUT_OF_ORDER;
    TPC_HOLDS(known->batches_count <= TPC_PRODUCER_BATCHES_MAX);
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

static void put_slot(tpc_producer_slot *slots, uint32_t capacity, tpc_producer_slot added) {
    uint32_t slot = added.hash & (capacity - 1);
    while (slots[slot].state) slot = (slot + 1) & (capacity - 1);
    slots[slot] = added;
}

/* grow() came before. */
static void insert(tpc_producers *producers, const tpc_producer_state *state) {
    TPC_HOLDS(state->producer_id >= 0);
    TPC_HOLDS(!tpc_producers_full(producers));
    TPC_HOLDS(producers->free_first || producers->states_used < producers->states_max);
    uint32_t number = producers->free_first ? producers->free_first - 1 : producers->states_used++;
    tpc_producer_state *at = state_at(producers, number);
    TPC_HOLDS(!producers->free_first || at->producer_id < 0); /* nobody has it */
    if (producers->free_first) producers->free_first = (uint32_t)at->coordinator_epoch;
    *at = *state;
    put_slot(producers->slots, producers->capacity, (tpc_producer_slot){hash_of(state->producer_id), number + 1});
    producers->count++;
    if (producers->all_count) ++*producers->all_count;
}

bool tpc_producers_full(const tpc_producers *producers) { return producers->count + 1 > producers->capacity / 4 * 3; }

static int grow_slots(tpc_producers *producers) {
    if (!tpc_producers_full(producers)) return 0;
    uint32_t capacity = producers->capacity ? producers->capacity * 2 : CAPACITY_MIN;
    tpc_producer_slot *slots = calloc(capacity, sizeof *slots);
    if (!slots) return -ENOMEM;
    for (uint32_t slot = 0; slot < producers->capacity; slot++)
        if (producers->slots[slot].state) put_slot(slots, capacity, producers->slots[slot]);
    free(producers->slots);
    producers->slots = slots;
    producers->capacity = capacity;
    return 0;
}

/* The memory of a chunk that is not used yet costs nothing. */
static int grow_states(tpc_producers *producers) {
    if (producers->free_first || producers->states_used < producers->states_max) return 0;
    uint32_t chunk = chunk_of(producers->states_max), more = chunk ? producers->states_max : CAPACITY_MIN;
    tpc_producer_state **chunks = realloc(producers->chunks, (chunk + 1) * sizeof *chunks);
    if (!chunks) return -ENOMEM;
    producers->chunks = chunks;
    if (!(chunks[chunk] = malloc(more * sizeof **chunks))) return -ENOMEM;
    producers->states_max += more;
    return 0;
}

/* So that one more can be put in without failing. */
static int grow(tpc_producers *producers) {
    int result = grow_slots(producers);
    return result < 0 ? result : grow_states(producers);
}

int tpc_producers_reserve(tpc_producers *producers, const tpc_batch_header *header) {
    bool is_of_one = header->attributes & (TPC_BATCH_TRANSACTIONAL | TPC_BATCH_IS_CONTROL);
    int result = is_of_one ? tpc_transactions_reserve(&producers->transactions) : 0;
    return result < 0 ? result : grow(producers);
}

static void end_transaction(tpc_producers *producers, tpc_producer_state *state, const tpc_control_marker *marker,
                            int64_t marker_end) {
    tpc_open_transaction *ended = state->transaction;
    tpc_verification_end(&producers->transactions, state->producer_id, state->producer_epoch);
    state->transaction = NULL;
    state->coordinator_epoch = marker->coordinator_epoch;
    if (!ended) return;
    TPC_HOLDS(ended->producer_id == state->producer_id);
    tpc_transactions_end(&producers->transactions, ended, marker_end);
    /* Those that have ended and are not seen yet are in the list too: it is no later than it might be. */
    tpc_aborted aborted = {state->producer_id, ended->first_offset, marker_end,
                           producers->transactions.first->first_offset};
    if (marker->kind == TPC_CONTROL_ABORT) tpc_transactions_abort(&producers->transactions, &aborted);
}

/* Rule: A batch changes what is known of its producer in C exactly as in Python: an epoch that changes forgets the batches, not
 * the open transaction; a marker ends that, and is none of the batches. See also tpc_broker/log/producer_state.py. Held by
 * tests/engine/test_transactions_random.py. */
void tpc_producers_accept(tpc_producers *producers, const tpc_batch_header *header, const tpc_control_marker *marker,
                          int64_t base_offset, int64_t now_ms) {
    tpc_producer_state *known = tpc_producers_find(producers, header->producer_id);
    if (!known) {
        tpc_producer_state fresh = {
            .producer_id = header->producer_id, .producer_epoch = header->producer_epoch, .coordinator_epoch = -1};
        insert(producers, &fresh);
        known = tpc_producers_find(producers, header->producer_id);
    }
    if (known->producer_epoch != header->producer_epoch) {
        known->producer_epoch = header->producer_epoch;
        known->batches_count = 0;
    }
    known->sequence_lost = 0;
    known->last_append_ms = now_ms;
    if (marker) {
        end_transaction(producers, known, marker, base_offset + header->last_offset_delta + 1);
        return;
    }
    if (header->attributes & TPC_BATCH_TRANSACTIONAL && !known->transaction) {
        known->transaction = tpc_transactions_begin(&producers->transactions, header->producer_id, base_offset);
        tpc_verification_end(&producers->transactions, header->producer_id, header->producer_epoch);
    }
    if (known->batches_count == TPC_PRODUCER_BATCHES_MAX)
        memmove(known->batches, known->batches + 1, --known->batches_count * sizeof *known->batches);
    TPC_HOLDS(known->batches_count < TPC_PRODUCER_BATCHES_MAX && header->last_offset_delta >= 0);
    known->batches[known->batches_count++] =
        (tpc_producer_batch){.base_offset = base_offset,
                             .last_offset = base_offset + header->last_offset_delta,
                             .timestamp_ms = header->max_timestamp,
                             .base_sequence = header->base_sequence,
                             .last_sequence = last_sequence_of(header)};
}

/* Puts a state in place of the one with its id, or as a new one. */
static int put(tpc_producers *producers, const tpc_producer_state *state) {
    tpc_producer_state *known = tpc_producers_find(producers, state->producer_id);
    if (known) {
        *known = *state;
        return 0;
    }
    int result = grow(producers);
    if (result == 0) insert(producers, state);
    return result;
}

/* Rule: What an append that is undone began or ended is as before: its transaction is forgotten, or open again. Both are told
 * from the states before and after. Held by tests/engine/test_transactions_random.py. */
void tpc_producers_undo(tpc_producers *producers, int64_t producer_id, const tpc_producer_state *before) {
    tpc_producer_state *now = tpc_producers_find(producers, producer_id);
    tpc_open_transaction *open = now ? now->transaction : NULL, *was = before ? before->transaction : NULL;
    TPC_HOLDS(!before || before->producer_id == producer_id);
    TPC_HOLDS(!was || was->producer_id == producer_id);
    if (open && open != was) {
        TPC_HOLDS(open->producer_id == producer_id && open->marker_end < 0);
        tpc_transactions_forget(&producers->transactions, open);
        now->transaction = NULL;
    }
    if (was && open != was) tpc_transactions_reopen(&producers->transactions, was);
    if (before)
        put(producers, before); /* there, unless the clock jumped and it expired */
    else
        tpc_producers_remove(producers, producer_id);
}

/* Closes the gap by moving back whatever a search would no longer find. */
void tpc_producers_remove(tpc_producers *producers, int64_t producer_id) {
    uint32_t gap = find_slot(producers, producer_id), mask = producers->capacity - 1;
    if (gap == UINT32_MAX) return;
    tpc_producer_slot *slots = producers->slots;
    tpc_producer_state *known = state_at(producers, slots[gap].state - 1);
    TPC_HOLDS(known->producer_id == producer_id && !known->transaction);
    known->producer_id = -1;
    known->coordinator_epoch = (int32_t)producers->free_first; /* of a free one the next free one */
    producers->free_first = slots[gap].state;
    for (uint32_t slot = (gap + 1) & mask; slots[slot].state; slot = (slot + 1) & mask) {
        if (((slot - slots[slot].hash) & mask) >= ((slot - gap) & mask)) {
            slots[gap] = slots[slot];
            gap = slot;
        }
    }
    slots[gap].state = 0;
    producers->count--;
    TPC_HOLDS(!producers->all_count || *producers->all_count > producers->count);
    if (producers->all_count) --*producers->all_count;
}

uint32_t tpc_producers_longest_search(const tpc_producers *producers) {
    uint32_t longest = 0, mask = producers->capacity - 1;
    for (uint32_t slot = 0; slot < producers->capacity; slot++) {
        if (!producers->slots[slot].state) continue;
        uint32_t looked_at = ((slot - producers->slots[slot].hash) & mask) + 1;
        if (looked_at > longest) longest = looked_at;
    }
    return longest;
}

void tpc_producers_cut(tpc_producers *producers, int64_t end_offset) {
    for (const tpc_open_transaction *at = producers->transactions.last; at && at->first_offset >= end_offset;
         at = at->previous) {
        tpc_producer_state *state = tpc_producers_find(producers, at->producer_id);
        if (state && state->transaction == at) state->transaction = NULL;
    }
    tpc_transactions_cut(&producers->transactions, end_offset);
    tpc_transactions_cut_aborted(&producers->transactions, end_offset);
}

void tpc_producers_free(tpc_producers *producers) {
    for (uint32_t start = 0; start < producers->states_max; start = start ? 2 * start : CAPACITY_MIN)
        free(producers->chunks[chunk_of(start)]);
    free(producers->chunks);
    free(producers->slots);
    tpc_transactions_free(&producers->transactions);
    TPC_HOLDS(!producers->all_count || *producers->all_count >= producers->count);
    if (producers->all_count) *producers->all_count -= producers->count;
    *producers = (tpc_producers){.all_count = producers->all_count};
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

typedef struct __attribute__((packed)) {
    int64_t producer_id, first_offset, marker_end;
} encoded_ended;

_Static_assert(sizeof(encoded_producer) + TPC_PRODUCER_BATCHES_MAX * sizeof(encoded_batch) == TPC_PRODUCER_ENCODED_MAX,
               "what it takes at most");

uint32_t tpc_producer_encode(const tpc_producer_state *state, uint8_t *encoded) {
    TPC_HOLDS(state->producer_id >= 0 && state->batches_count <= TPC_PRODUCER_BATCHES_MAX);
    encoded_producer one = {.producer_id = state->producer_id,
                            .producer_epoch = state->producer_epoch,
                            .coordinator_epoch = state->coordinator_epoch,
                            .transaction_first_offset = state->transaction ? state->transaction->first_offset : -1,
                            .last_timestamp_ms = state->last_append_ms,
                            .batches_count = state->batches_count};
    memcpy(encoded, &one, sizeof one);
    uint32_t bytes = sizeof one;
    for (uint32_t i = 0; i < state->batches_count; i++) {
        const tpc_producer_batch *of = &state->batches[i];
        TPC_HOLDS(of->base_offset >= 0 && of->base_offset <= of->last_offset); /* else it would not be read */
        encoded_batch batch = {of->last_sequence, of->last_offset, (int32_t)(of->last_offset - of->base_offset),
                               of->timestamp_ms};
        memcpy(encoded + bytes, &batch, sizeof batch);
        bytes += sizeof batch;
    }
    TPC_HOLDS(bytes <= TPC_PRODUCER_ENCODED_MAX);
    return bytes;
}

/* One producer at encoded[*place], and the first offset of its open transaction; false: there is none. */
static bool decode_one(const uint8_t *encoded, uint32_t bytes, uint32_t *place, tpc_producer_state *state,
                       int64_t *transaction_first_offset) {
    encoded_producer one;
    if (bytes - *place < sizeof one) return false;
    memcpy(&one, encoded + *place, sizeof one);
    *place += sizeof one;
    if (one.producer_id < 0 || one.batches_count > TPC_PRODUCER_BATCHES_MAX) return false;
    if ((bytes - *place) / sizeof(encoded_batch) < one.batches_count) return false;
    *state = (tpc_producer_state){.producer_id = one.producer_id,
                                  .producer_epoch = one.producer_epoch,
                                  .coordinator_epoch = one.coordinator_epoch,
                                  .last_append_ms = one.last_timestamp_ms,
                                  .batches_count = one.batches_count};
    *transaction_first_offset = one.transaction_first_offset;
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

/* Whether the bytes are an encoding, and where its ended transactions begin. */
static bool is_encoding(const uint8_t *encoded, uint32_t bytes, uint32_t *ended_place) {
    uint32_t count, place = sizeof count;
    int64_t first_offset;
    tpc_producer_state state;
    if (bytes < place) return false;
    memcpy(&count, encoded, sizeof count);
    for (uint32_t i = 0; i < count; i++)
        if (!decode_one(encoded, bytes, &place, &state, &first_offset)) return false;
    *ended_place = place;
    for (encoded_ended ended; place < bytes; place += sizeof ended) {
        if (bytes - place < sizeof ended) return false;
        memcpy(&ended, encoded + place, sizeof ended);
        if (ended.first_offset < 0 || ended.marker_end <= ended.first_offset) return false;
    }
    return true;
}

/* In place of what is known of it, with the transaction that it has open. */
static int load(tpc_producers *producers, tpc_producer_state *state, int64_t transaction_first_offset) {
    int result = tpc_transactions_reserve(&producers->transactions);
    if (result == 0) result = grow(producers);
    if (result < 0) return result;
    const tpc_producer_state *known = tpc_producers_find(producers, state->producer_id);
    if (known && known->transaction) tpc_transactions_forget(&producers->transactions, known->transaction);
    if (transaction_first_offset >= 0)
        state->transaction =
            tpc_transactions_begin(&producers->transactions, state->producer_id, transaction_first_offset);
    return put(producers, state);
}

static int load_ended(tpc_producers *producers, const encoded_ended *ended) {
    int result = tpc_transactions_reserve(&producers->transactions);
    if (result < 0) return result;
    tpc_transactions_end(&producers->transactions,
                         tpc_transactions_begin(&producers->transactions, ended->producer_id, ended->first_offset),
                         ended->marker_end);
    return 0;
}

int tpc_producers_decode(tpc_producers *producers, const uint8_t *encoded, uint32_t bytes, bool sequence_lost,
                         int64_t now_ms, int64_t expiry_ms) {
    uint32_t ended_place, place = sizeof(uint32_t);
    int64_t first_offset;
    tpc_producer_state state;
    encoded_ended ended;
    int result = is_encoding(encoded, bytes, &ended_place) ? 0 : -EINVAL;
    while (result == 0 && place < ended_place) {
        decode_one(encoded, bytes, &place, &state, &first_offset);
        state.sequence_lost = sequence_lost;
        /* Stored may be the time of its last records, by its client's clock: one that cannot be says nothing. */
        if (state.last_append_ms > now_ms || state.last_append_ms <= now_ms - expiry_ms) state.last_append_ms = now_ms;
        result = load(producers, &state, first_offset);
    }
    TPC_HOLDS(result < 0 || place == ended_place); /* all were read that were found to be there */
    for (; result == 0 && place < bytes; place += sizeof ended) {
        memcpy(&ended, encoded + place, sizeof ended);
        result = load_ended(producers, &ended);
    }
    return result;
}

uint32_t tpc_producers_encode_ended(const tpc_producers *producers, int64_t upto_offset, uint8_t *encoded,
                                    uint32_t bytes_max) {
    uint32_t bytes = 0;
    const tpc_open_transaction *at = producers->transactions.ended_first;
    for (; at && at->marker_end <= upto_offset && bytes + sizeof(encoded_ended) <= bytes_max; at = at->ended_next) {
        TPC_HOLDS(at->marker_end > at->first_offset);
        encoded_ended ended = {at->producer_id, at->first_offset, at->marker_end};
        memcpy(encoded + bytes, &ended, sizeof ended);
        bytes += sizeof ended;
    }
    return bytes;
}
