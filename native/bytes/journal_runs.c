/* A journal's entries by partition, and their payloads brought together; see cdef/65_journal_runs.h. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "bytes.h"
#include "journal_format.h"

enum { CAPACITY_MIN = 64, SLOT_EMPTY = 0 };

/* Room for one more element. 0 or -ENOMEM. */
static int grow(void **array, uint32_t *capacity, uint32_t count, size_t element_bytes) {
    if (count < *capacity) return 0;
    uint32_t larger = *capacity ? *capacity * 2 : CAPACITY_MIN;
    void *grown = larger > count ? realloc(*array, larger * element_bytes) : NULL;
    if (!grown) return -ENOMEM;
    *array = grown;
    *capacity = larger;
    return 0;
}

static uint32_t hash_of(const uint8_t topic_id[16], int32_t partition) {
    uint64_t high, low;
    memcpy(&high, topic_id, 8);
    memcpy(&low, topic_id + 8, 8);
    uint64_t mixed = (high ^ (low * 0x9E3779B97F4A7C15u) ^ ((uint64_t)(uint32_t)partition << 17)) * 0xD6E8FEB86659FD93u;
    return (uint32_t)(mixed >> 32);
}

/* The slot of a partition, or the empty one where it belongs. The table is never full. */
static uint32_t *slot_of(const tpc_journal_runs *runs, const uint8_t topic_id[16], int32_t partition) {
    uint32_t mask = runs->slots_capacity - 1;
    for (uint32_t i = hash_of(topic_id, partition) & mask;; i = (i + 1) & mask) {
        uint32_t *slot = &runs->slots[i];
        if (*slot == SLOT_EMPTY) return slot;
        const tpc_journal_run *latest = &runs->runs[runs->latest_runs[*slot - 1]];
        if (latest->partition == partition && memcmp(latest->topic_id, topic_id, 16) == 0) return slot;
    }
}

/* A table twice as large, at most half full, with the same partitions. */
static int grow_slots(tpc_journal_runs *runs) {
    if (runs->partitions_count * 2 < runs->slots_capacity) return 0;
    uint32_t capacity = runs->slots_capacity ? runs->slots_capacity * 2 : CAPACITY_MIN;
    uint32_t *latest = realloc(runs->latest_runs, capacity / 2 * sizeof *latest);
    if (!latest) return -ENOMEM;
    runs->latest_runs = latest;
    uint32_t *slots = calloc(capacity, sizeof *slots);
    if (!slots) return -ENOMEM;
    free(runs->slots);
    runs->slots = slots;
    runs->slots_capacity = capacity;
    for (uint32_t number = 0; number < runs->partitions_count; number++) {
        const tpc_journal_run *run = &runs->runs[latest[number]];
        *slot_of(runs, run->topic_id, run->partition) = number + 1;
    }
    return 0;
}

static int add_run(tpc_journal_runs *runs, const tpc_journal_entry *entry, uint32_t *slot) {
    int result = grow((void **)&runs->runs, &runs->runs_capacity, runs->runs_count, sizeof *runs->runs);
    if (result) return result;
    if (*slot == SLOT_EMPTY) *slot = ++runs->partitions_count;
    tpc_journal_run *run = &runs->runs[runs->runs_count];
    *run = (tpc_journal_run){
        .sequence = entry->sequence,
        .payload_position = entry->payload_position,
        .offset = entry->offset,
        .partition = entry->partition,
        .partition_number = *slot - 1,
        .kind = entry->kind,
        .flags = entry->flags,
    };
    memcpy(run->topic_id, entry->topic_id, sizeof run->topic_id);
    runs->latest_runs[*slot - 1] = runs->runs_count++;
    return 0;
}

static void keep_payload(tpc_journal_run *run, const tpc_journal_entry *entry, const uint8_t *payload) {
    memcpy(run->payload, payload,
           entry->payload_bytes < sizeof run->payload ? entry->payload_bytes : sizeof run->payload);
}

static int add_entry(tpc_journal_runs *runs, const tpc_journal_entry *entry, const uint8_t *payload) {
    int result = grow_slots(runs);
    if (result) return result;
    uint32_t *slot = slot_of(runs, entry->topic_id, entry->partition);
    bool append = entry->kind == TPC_JOURNAL_APPEND;
    tpc_journal_run *latest = *slot == SLOT_EMPTY ? NULL : &runs->runs[runs->latest_runs[*slot - 1]];
    if (!append || !latest || latest->kind != TPC_JOURNAL_APPEND || latest->argument != entry->offset) {
        result = add_run(runs, entry, slot);
        if (result) return result;
    }
    uint32_t number = runs->latest_runs[*slot - 1];
    tpc_journal_run *run = &runs->runs[number];
    run->argument = entry->argument;
    run->payload_bytes += entry->payload_bytes;
    runs->entries_count++;
    if (!append) {
        keep_payload(run, entry, payload);
        return 0;
    }
    result = grow((void **)&runs->pieces, &runs->pieces_capacity, runs->pieces_count, sizeof *runs->pieces);
    if (result) return result;
    runs->pieces[runs->pieces_count++] = (tpc_journal_piece){
        .position = entry->payload_position,
        .offset = entry->offset,
        .end_offset = entry->argument,
        .bytes = entry->payload_bytes,
        .run = number,
    };
    return 0;
}

int tpc_journal_runs_add(tpc_journal_runs *runs, const tpc_journal_entry *entries, uint32_t count, const uint8_t *bytes,
                         uint64_t bytes_position) {
    for (uint32_t i = 0; i < count; i++) {
        int result = add_entry(runs, &entries[i], bytes + (entries[i].payload_position - bytes_position));
        if (result) return result;
    }
    return 0;
}

void tpc_journal_runs_clear(tpc_journal_runs *runs) {
    free(runs->runs);
    free(runs->pieces);
    free(runs->latest_runs);
    free(runs->slots);
    memset(runs, 0, sizeof *runs);
}

static bool piece_wanted(const tpc_journal_piece *piece, const tpc_journal_wanted *wanted) {
    const tpc_journal_wanted *range = &wanted[piece->run];
    return range->from_offset < range->upto_offset && piece->end_offset > range->from_offset &&
           piece->offset < range->upto_offset;
}

uint32_t tpc_journal_next_wanted(const tpc_journal_runs *runs, const tpc_journal_wanted *wanted, uint32_t piece) {
    while (piece < runs->pieces_count && !piece_wanted(&runs->pieces[piece], wanted)) piece++;
    return piece;
}

/* The part [*begin, *end) of a payload with the batches that are wanted. */
static int chosen_batches(const uint8_t *payload, const tpc_journal_piece *piece, const tpc_journal_wanted *range,
                          uint32_t *begin, uint32_t *end) {
    *begin = 0;
    *end = piece->bytes;
    if (piece->offset >= range->from_offset && piece->end_offset <= range->upto_offset) return 0;
    for (uint32_t at = *end = 0; at < piece->bytes;) {
        tpc_batch_header header;
        if (batch_check_stored(payload + at, piece->bytes - at, &header)) return -EBADMSG;
        at += (uint32_t)header.batch_bytes;
        if (header.base_offset < range->from_offset)
            *begin = *end = at;
        else if (header.base_offset < range->upto_offset)
            *end = at;
    }
    return 0;
}

/* Adds the chosen length to ends[target]; with `out` the chosen bytes go to where that stood before. */
static int64_t place_piece(const tpc_journal_piece *piece, const tpc_journal_wanted *range, const uint8_t *payload,
                           uint8_t *out, uint64_t *ends, uint32_t targets_count) {
    uint32_t begin, end;
    if (range->target >= targets_count) return -EINVAL;
    int result = chosen_batches(payload, piece, range, &begin, &end);
    if (result) return result;
    if (out) memcpy(out + ends[range->target], payload + begin, end - begin);
    ends[range->target] += end - begin;
    return end - begin;
}

int64_t tpc_journal_gather(const tpc_journal_runs *runs, const tpc_journal_wanted *wanted, uint32_t *piece,
                           const uint8_t *bytes, uint64_t bytes_count, uint64_t bytes_position, uint8_t *out,
                           uint64_t out_bytes, uint64_t *ends, uint32_t targets_count) {
    uint64_t total = 0, begin = 0;
    uint32_t next = *piece;
    memset(ends, 0, targets_count * sizeof *ends);
    for (; next < runs->pieces_count; next++) {
        const tpc_journal_piece *one = &runs->pieces[next];
        if (!piece_wanted(one, wanted)) continue;
        if (one->position < bytes_position || one->position + one->bytes > bytes_position + bytes_count) break;
        if (total + one->bytes > out_bytes) break;
        const uint8_t *payload = bytes + (one->position - bytes_position);
        int64_t added = place_piece(one, &wanted[one->run], payload, NULL, ends, targets_count);
        if (added < 0) return added;
        total += (uint64_t)added;
    }
    for (uint32_t target = 0; target < targets_count; target++) {
        uint64_t length = ends[target];
        ends[target] = begin;
        begin += length;
    }
    for (uint32_t i = *piece; i < next; i++) {
        const tpc_journal_piece *one = &runs->pieces[i];
        if (piece_wanted(one, wanted))
            place_piece(one, &wanted[one->run], bytes + (one->position - bytes_position), out, ends, targets_count);
    }
    *piece = next;
    return (int64_t)total;
}
