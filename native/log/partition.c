/*
 * The table of partitions led by this core: by handle, by topic name, by topic id; and what is asked of one: offsets,
 * use, producers. How one comes and goes is in partition_life.c.
 */
#include "plane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS_MIN 64u
#define SLOTS_MIN 64u
#define SLOT_NONE UINT32_MAX

/* ---- look-up ---- */

tpc_partition *tpc_partition_of(const tpc_plane *plane, uint64_t handle) {
    uint32_t slot = (uint32_t)handle;
    if (slot >= plane->slots_count || plane->slots[slot].generation != (uint32_t)(handle >> 32)) return NULL;
    return plane->slots[slot].partition;
}

enum { WORD_BYTES = sizeof(uint64_t) };

static inline uint64_t mix(uint64_t hash, const uint8_t *bytes, uint32_t count) {
    uint64_t word = 0;
    memcpy(&word, bytes, count);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 32;
}

static uint64_t hash_bytes(const uint8_t *bytes, uint32_t count, int32_t index) {
    uint64_t hash = 0xcbf29ce484222325ull ^ (uint64_t)(uint32_t)index << 32 ^ count;
    const uint8_t *end = bytes + count;
    for (; end - bytes >= WORD_BYTES; bytes += WORD_BYTES) hash = mix(hash, bytes, WORD_BYTES);
    if (bytes == end) return hash;
    return count >= WORD_BYTES ? mix(hash, end - WORD_BYTES, WORD_BYTES) : mix(hash, bytes, count);
}

static bool is_named(const tpc_partition *partition, const uint8_t *name, uint32_t name_bytes, int32_t index) {
    return partition->index == index && partition->topic_name_bytes == name_bytes &&
           memcmp(partition->topic_name, name, name_bytes) == 0;
}

tpc_partition *tpc_partition_named(tpc_plane *plane, const uint8_t *name, uint32_t name_bytes, int32_t index) {
    if (plane->named_last && is_named(plane->named_last, name, name_bytes, index)) return plane->named_last;
    uint64_t hash = hash_bytes(name, name_bytes, index);
    tpc_partition *at = plane->by_name[hash & (plane->buckets - 1)];
    while (at && (at->name_hash != hash || !is_named(at, name, name_bytes, index))) at = at->name_next;
    if (at) plane->named_last = at;
    return at;
}

tpc_partition *tpc_partition_identified(const tpc_plane *plane, const uint8_t *topic_id, int32_t index) {
    uint64_t hash = hash_bytes(topic_id, 16, index);
    tpc_partition *at = plane->by_id[hash & (plane->buckets - 1)];
    for (; at; at = at->id_next)
        if (at->id_hash == hash && at->index == index && memcmp(at->topic_id, topic_id, 16) == 0) return at;
    return NULL;
}

uint64_t tpc_partition_find_name(tpc_plane *plane, const uint8_t *name, uint32_t name_bytes, int32_t partition) {
    const tpc_partition *found = tpc_partition_named(plane, name, name_bytes, partition);
    return found ? found->handle : 0;
}

uint64_t tpc_partition_find_id(const tpc_plane *plane, const uint8_t *topic_id, int32_t partition) {
    const tpc_partition *found = tpc_partition_identified(plane, topic_id, partition);
    return found ? found->handle : 0;
}

/* ---- offsets ---- */

int64_t tpc_partition_last_stable_offset(const tpc_partition *partition) {
    const tpc_open_transaction *oldest = partition->producers.transactions.first;
    if (!oldest || oldest->first_offset > partition->high_watermark) return partition->high_watermark;
    return oldest->first_offset > partition->log_start_offset ? oldest->first_offset : partition->log_start_offset;
}

/* Rule: log_start_offset <= last_stable_offset <= high_watermark <= commit_offset <= durable_offset <=
 * log_end_offset, and written_offset <= durable_offset. None of them falls. A core in which this is broken ends, and
 * logs the numbers. See also native/log/commit.c, native/journal/journal_queue.c, native/io/invariant.h. Held by
 * tests/engine/test_invariants.py. */
void tpc_partition_verify(const tpc_partition *partition) {
    int64_t last_stable_offset = tpc_partition_last_stable_offset(partition);
    TPC_PARTITION_INVARIANT(partition, partition->log_start_offset <= last_stable_offset);
    TPC_PARTITION_INVARIANT(partition, last_stable_offset <= partition->high_watermark);
    TPC_PARTITION_INVARIANT(partition, partition->high_watermark <= partition->commit_offset);
    TPC_PARTITION_INVARIANT(partition, partition->commit_offset <= partition->durable_offset);
    TPC_PARTITION_INVARIANT(partition, partition->durable_offset <= partition->log_end_offset);
    TPC_PARTITION_INVARIANT(partition, partition->written_offset <= partition->durable_offset);
    TPC_PARTITION_INVARIANT(partition, (partition->durable_offset == partition->log_end_offset) ==
                                           (partition->appends_undurable == 0));
    TPC_PARTITION_INVARIANT(partition, partition->dirty_bytes >= 0);
    TPC_PARTITION_INVARIANT(partition, partition->dirty_bytes <= partition->unwritten_bytes);
    TPC_PARTITION_INVARIANT(partition, partition->unwritten_bytes <= partition->tail_bytes);
    TPC_PARTITION_INVARIANT(partition, partition->tail_clean <= partition->tail_count);
    TPC_PARTITION_INVARIANT(partition,
                            (partition->dirty_bytes == 0) == (partition->written_offset == partition->durable_offset));
    TPC_PARTITION_INVARIANT(partition, (partition->unwritten_bytes == 0) ==
                                           (partition->written_offset == partition->log_end_offset));
    TPC_PARTITION_INVARIANT(partition,
                            partition->dirty == (partition->dirty_bytes > 0)); /* write-behind looks for it */
}

void tpc_partition_broken(const tpc_partition *partition, const char *condition, const char *file, int line) {
    tpc_invariant_broken(
        condition, file, line,
        "%s-%d in leader epoch %d: log_start_offset %lld, last_stable_offset %lld, high_watermark %lld, "
        "commit_offset %lld, durable_offset %lld, log_end_offset %lld, written_offset %lld, %u appends not durable, "
        "bytes in memory %lld, of these not written %lld, of these durable %lld",
        (const char *)partition->topic_name, partition->index, partition->leader_epoch,
        (long long)partition->log_start_offset, (long long)tpc_partition_last_stable_offset(partition),
        (long long)partition->high_watermark, (long long)partition->commit_offset, (long long)partition->durable_offset,
        (long long)partition->log_end_offset, (long long)partition->written_offset, partition->appends_undurable,
        (long long)partition->tail_bytes, (long long)partition->unwritten_bytes, (long long)partition->dirty_bytes);
}

int tpc_partition_admit(tpc_plane *plane, uint64_t handle, int64_t bytes_more) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (bytes_more < 0 && (partition->bytes_admitted == INT64_MAX || partition->bytes_admitted < -bytes_more))
        return -EINVAL;
    bool unlimited = bytes_more == INT64_MAX || (bytes_more > 0 && partition->bytes_admitted > INT64_MAX - bytes_more);
    partition->bytes_admitted = unlimited ? INT64_MAX : partition->bytes_admitted + bytes_more;
    TPC_PARTITION_INVARIANT(partition, partition->bytes_admitted >= 0);
    partition->room_low_bytes = unlimited ? 0 : partition->bytes_admitted / 2;
    return 0;
}

int tpc_partition_watch(tpc_plane *plane, uint64_t handle) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    partition->watched = true;
    return 0;
}

int tpc_partition_get_state(const tpc_plane *plane, uint64_t handle, tpc_partition_state *state) {
    const tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    *state = (tpc_partition_state){
        .log_start_offset = partition->log_start_offset,
        .last_stable_offset = tpc_partition_last_stable_offset(partition),
        .high_watermark = partition->high_watermark,
        .durable_offset = partition->durable_offset,
        .log_end_offset = partition->log_end_offset,
        .tail_offset =
            partition->tail_count ? partition->tail[partition->tail_head].base_offset : partition->log_end_offset,
        .written_offset = partition->written_offset,
        .tail_bytes = partition->tail_bytes,
        .unwritten_bytes = partition->unwritten_bytes,
        .dirty_bytes = partition->dirty_bytes,
        .bytes_admitted = partition->bytes_admitted,
        .in_place_end_offset =
            partition->in_place_end_offset > partition->written_offset ? partition->in_place_end_offset : -1,
        .partition = partition->index,
        .leader_epoch = partition->leader_epoch,
        .flags = partition->flags,
        .role = partition->role,
        .producers_count = partition->producers.count,
        .appends_undurable = partition->appends_undurable,
        .watched = partition->watched,
        .is_replicated = partition->is_replicated};
    memcpy(state->topic_id, partition->topic_id, sizeof state->topic_id);
    return 0;
}

int tpc_partition_get_use(const tpc_plane *plane, uint64_t handle, tpc_partition_use *use) {
    const tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    *use = partition->use;
    return 0;
}

void tpc_partition_count_read(tpc_plane *plane, uint64_t handle, uint64_t bytes) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return;
    partition->use.reads++;
    partition->use.read_bytes += bytes;
}

/* ---- the table ---- */

static void chain(tpc_plane *plane, tpc_partition *partition) {
    tpc_partition **name = &plane->by_name[partition->name_hash & (plane->buckets - 1)];
    tpc_partition **id = &plane->by_id[partition->id_hash & (plane->buckets - 1)];
    partition->name_next = *name;
    *name = partition;
    partition->id_next = *id;
    *id = partition;
}

static void unchain(tpc_plane *plane, tpc_partition *partition) {
    tpc_partition **name = &plane->by_name[partition->name_hash & (plane->buckets - 1)];
    while (*name != partition) {
        TPC_PARTITION_INVARIANT(partition, *name); /* it is in the table */
        name = &(*name)->name_next;
    }
    *name = partition->name_next;
    tpc_partition **id = &plane->by_id[partition->id_hash & (plane->buckets - 1)];
    while (*id != partition) {
        TPC_PARTITION_INVARIANT(partition, *id);
        id = &(*id)->id_next;
    }
    *id = partition->id_next;
}

static int grow_buckets(tpc_plane *plane) {
    uint32_t buckets = plane->buckets * 2;
    tpc_partition **by_name = calloc(buckets, sizeof *by_name), **by_id = calloc(buckets, sizeof *by_id);
    if (!by_name || !by_id) {
        free(by_name), free(by_id);
        return -ENOMEM;
    }
    free(plane->by_name), free(plane->by_id);
    plane->by_name = by_name, plane->by_id = by_id, plane->buckets = buckets;
    for (uint32_t slot = 0; slot < plane->slots_count; slot++)
        if (plane->slots[slot].partition) chain(plane, plane->slots[slot].partition);
    return 0;
}

static int slot_take(tpc_plane *plane, uint32_t *slot) {
    if (plane->slot_free != SLOT_NONE) {
        *slot = plane->slot_free;
        TPC_HOLDS(*slot < plane->slots_count && !plane->slots[*slot].partition);
        plane->slot_free = plane->slots[*slot].free_next;
        return 0;
    }
    if (plane->slots_count == plane->slots_capacity) {
        uint32_t capacity = plane->slots_capacity ? plane->slots_capacity * 2 : SLOTS_MIN;
        tpc_partition_slot *grown = realloc(plane->slots, capacity * sizeof *grown);
        if (!grown) return -ENOMEM;
        plane->slots = grown;
        plane->slots_capacity = capacity;
    }
    *slot = plane->slots_count++;
    plane->slots[*slot] = (tpc_partition_slot){.generation = 1};
    return 0;
}

int tpc_partitions_enter(tpc_plane *plane, tpc_partition *partition) {
    uint32_t slot;
    if (plane->statistics.partitions >= plane->buckets && grow_buckets(plane) < 0) return -ENOMEM;
    if (slot_take(plane, &slot) < 0) return -ENOMEM;
    TPC_HOLDS(plane->slots[slot].generation); /* so that no handle is 0 */
    plane->slots[slot].partition = partition;
    partition->handle = (uint64_t)plane->slots[slot].generation << 32 | slot;
    partition->name_hash = hash_bytes(partition->topic_name, partition->topic_name_bytes, partition->index);
    partition->id_hash = hash_bytes(partition->topic_id, 16, partition->index);
    chain(plane, partition);
    plane->statistics.partitions++;
    return 0;
}

void tpc_partitions_leave(tpc_plane *plane, tpc_partition *partition) {
    uint32_t slot = (uint32_t)partition->handle;
    TPC_PARTITION_INVARIANT(partition, plane->statistics.partitions > 0);
    TPC_PARTITION_INVARIANT(partition, tpc_partition_of(plane, partition->handle) == partition);
    unchain(plane, partition);
    plane->named_last = NULL;
    plane->slots[slot].partition = NULL;
    plane->slots[slot].generation += plane->slots[slot].generation == UINT32_MAX ? 2 : 1; /* never 0 */
    plane->slots[slot].free_next = plane->slot_free;
    plane->slot_free = slot;
    plane->statistics.partitions--;
}

int tpc_partitions_init(tpc_plane *plane) {
    plane->slot_free = SLOT_NONE;
    plane->buckets = BUCKETS_MIN;
    plane->by_name = calloc(plane->buckets, sizeof *plane->by_name);
    plane->by_id = calloc(plane->buckets, sizeof *plane->by_id);
    return plane->by_name && plane->by_id ? 0 : -ENOMEM;
}

void tpc_partitions_free(tpc_plane *plane) { free(plane->slots), free(plane->by_name), free(plane->by_id); }

/* ---- producers, for snapshots ---- */

int tpc_partition_load_producers(tpc_plane *plane, uint64_t handle, const uint8_t *encoded, uint32_t bytes,
                                 bool sequence_lost) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (partition->appends_undurable) return -EBUSY;
    int result = tpc_producers_decode(&partition->producers, encoded, bytes, sequence_lost,
                                      tpc_plane_monotonic_ms(plane), plane->params.producer_expiry_ms);
    tpc_transactions_settle(&partition->producers.transactions, partition->high_watermark);
    return result;
}

static void keep_batches_below(tpc_producer_state *state, int64_t upto_offset) {
    if (state->transaction && state->transaction->first_offset >= upto_offset) state->transaction = NULL;
    while (state->batches_count && state->batches[state->batches_count - 1].base_offset >= upto_offset)
        state->batches_count--;
}

/* The producer as it was before the oldest append of this partition that is not durable. False: it was not there. */
static bool durable_state(const tpc_plane *plane, const tpc_partition *partition, tpc_producer_state *state) {
    for (const tpc_undo_record *at = plane->undo_first; at; at = at->next) {
        if (at->handle != partition->handle || at->producer_id != state->producer_id) continue;
        if (at->producer) *state = *at->producer;
        return at->producer != NULL;
    }
    return true;
}

int tpc_partition_dump_producers(const tpc_plane *plane, uint64_t handle, int64_t upto_offset, uint8_t *encoded,
                                 uint32_t bytes_max) {
    const tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    uint32_t count = 0, bytes = sizeof count;
    if (bytes_max < bytes + partition->producers.count * TPC_PRODUCER_ENCODED_MAX) return -ENOBUFS;
    for (uint32_t number = 0; number < partition->producers.states_used; number++) {
        const tpc_producer_state *known = tpc_producers_at(&partition->producers, number);
        if (!known) continue;
        tpc_producer_state state = *known;
        if (partition->appends_undurable && !durable_state(plane, partition, &state)) continue;
        bool had_batches = state.batches_count > 0;
        keep_batches_below(&state, upto_offset);
        if (had_batches && !state.batches_count && !state.transaction) continue;
        bytes += tpc_producer_encode(&state, encoded + bytes);
        count++;
    }
    memcpy(encoded, &count, sizeof count);
    int64_t end_offset = upto_offset < partition->durable_offset ? upto_offset : partition->durable_offset;
    bytes += tpc_producers_encode_ended(&partition->producers, end_offset, encoded + bytes, bytes_max - bytes);
    TPC_PARTITION_INVARIANT(partition, bytes <= bytes_max);
    return (int)bytes;
}

static tpc_told_producer told_of(const tpc_producer_state *state) {
    const tpc_producer_batch *last = state->batches_count ? &state->batches[state->batches_count - 1] : NULL;
    return (tpc_told_producer){.producer_id = state->producer_id,
                               .last_timestamp_ms = last ? last->timestamp_ms : -1,
                               .transaction_first_offset = state->transaction ? state->transaction->first_offset : -1,
                               .last_sequence = last ? last->last_sequence : -1,
                               .coordinator_epoch = state->coordinator_epoch,
                               .producer_epoch = state->producer_epoch};
}

int tpc_partition_tell_producers(const tpc_plane *plane, uint64_t handle, tpc_told_producer *told, uint32_t told_max) {
    const tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (partition->producers_stale) return -EAGAIN;
    uint32_t count = 0;
    for (int round = 0; round < 2; round++) { /* those with an open transaction, then the others */
        for (uint32_t number = 0; number < partition->producers.states_used; number++) {
            const tpc_producer_state *state = tpc_producers_at(&partition->producers, number);
            if (!state || (state->transaction == NULL) != (round == 1)) continue;
            if (count == told_max) return round ? (int)count : -ENOBUFS;
            told[count++] = told_of(state);
        }
    }
    TPC_PARTITION_INVARIANT(partition, count == partition->producers.count);
    return (int)count;
}

int tpc_partition_longest_search(const tpc_plane *plane, uint64_t handle) {
    const tpc_partition *partition = tpc_partition_of(plane, handle);
    return partition ? (int)tpc_producers_longest_search(&partition->producers) : -ENOENT;
}

/* Rule: A producer with an open transaction is never forgotten, however long it is silent: its marker comes, and until then
 * readers must not pass. See also tpc_broker/log/producer_state.py. Held by tests/engine/test_plane_transactions.py,
 * tests/engine/test_transactions_random.py. */
static bool is_silent(const tpc_plane *plane, const tpc_producer_state *state, int64_t now_ms) {
    return !state->transaction && now_ms - state->last_append_ms >= plane->params.producer_expiry_ms;
}

int tpc_partition_expire_producers(tpc_plane *plane, uint64_t handle) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    int64_t now_ms = tpc_plane_monotonic_ms(plane);
    int expired = 0;
    for (uint32_t number = 0; number < partition->producers.states_used; number++) {
        const tpc_producer_state *state = tpc_producers_at(&partition->producers, number);
        if (!state || !is_silent(plane, state, now_ms)) continue;
        tpc_producers_remove(&partition->producers, state->producer_id);
        expired++;
    }
    const tpc_transactions *transactions = &partition->producers.transactions;
    if (!partition->producers.count && !transactions->first && !transactions->aborted_count &&
        !transactions->verifications_count)
        tpc_producers_free(&partition->producers);
    return expired;
}
