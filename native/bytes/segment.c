/*
 * What a segment keeps of the batches appended to it, decided header by header as Kafka 4.3 decides it: the offset index
 * gets an entry for a batch when more than index_interval_bytes came since the last entry, the time index one with it when
 * the largest timestamp has risen. The same walk looks out for what only Python decides: rolls, control batches, epochs.
 */
#include <errno.h>
#include <string.h>

#include "batch.h"
#include "bytes.h"
#include "wire.h"

enum { OFFSET_ENTRY_BYTES = 8, TIME_ENTRY_BYTES = 12, BATCHES_KEPT = 5 };

static const int64_t RELATIVE_OFFSET_MAX = INT32_MAX;
static const int32_t SEQUENCE_MASK = INT32_MAX;

typedef struct {
    uint8_t *offset_entries;
    uint8_t *time_entries;
    int32_t entries_max;
    tpc_segment_producer *producers;
    int32_t producers_max;
    tpc_segment_producer *latest; /* most batches in a row come from one producer */
} outputs;

static bool is_sane(const tpc_segment_state *state, size_t bytes_count, int32_t entries_max) {
    return state->place >= 0 && (size_t)state->place <= bytes_count && state->base_offset >= 0 && entries_max >= 1;
}

/* batch_check_stored() has seen to it that a batch ends where an offset can be, and the segment does not begin below 0. */
static bool must_roll(const tpc_segment_state *state, const tpc_batch_header *header) {
    if (header->base_offset + header->last_offset_delta - state->base_offset > RELATIVE_OFFSET_MAX) return true;
    if (state->position == 0) return false;
    if (state->position + header->batch_bytes > state->segment_bytes) return true;
    if (state->first_timestamp >= 0 && header->max_timestamp > state->first_timestamp &&
        (uint64_t)header->max_timestamp - (uint64_t)state->first_timestamp > (uint64_t)state->segment_ms)
        return true;
    return state->offset_entries >= state->offset_entries_max || state->time_entries >= state->time_entries_max;
}

static void add_time_entry(tpc_segment_state *state, outputs *out) {
    if (state->largest_timestamp <= state->last_entry_timestamp) return;
    uint8_t *entry = out->time_entries + (size_t)state->time_entries_made++ * TIME_ENTRY_BYTES;
    wire_set_u64(entry, (uint64_t)state->largest_timestamp);
    wire_set_u32(entry + 8, (uint32_t)(state->largest_timestamp_offset - state->base_offset));
    state->last_entry_timestamp = state->largest_timestamp;
    state->time_entries++;
}

static void add_to_indexes(const tpc_batch_header *header, tpc_segment_state *state, outputs *out) {
    int64_t last_offset = header->base_offset + header->last_offset_delta;
    if (state->position == 0) state->first_timestamp = header->max_timestamp;
    if (header->max_timestamp > state->largest_timestamp) {
        state->largest_timestamp = header->max_timestamp;
        state->largest_timestamp_offset = last_offset;
    }
    if (state->bytes_since_entry > state->index_interval_bytes) {
        uint8_t *entry = out->offset_entries + (size_t)state->offset_entries_made++ * OFFSET_ENTRY_BYTES;
        wire_set_u32(entry, (uint32_t)(last_offset - state->base_offset));
        wire_set_u32(entry + 4, (uint32_t)state->position);
        state->offset_entries++;
        add_time_entry(state, out);
        state->bytes_since_entry = 0;
    }
    state->bytes_since_entry += header->batch_bytes;
}

/* The producer's slot, made when there is none; NULL when there is no room. */
static tpc_segment_producer *producer_slot(const tpc_batch_header *header, tpc_segment_state *state, outputs *out) {
    if (out->latest && out->latest->producer_id == header->producer_id) return out->latest;
    for (int32_t i = 0; i < state->producers_count; i++)
        if (out->producers[i].producer_id == header->producer_id) return out->latest = &out->producers[i];
    if (state->producers_count >= out->producers_max) return NULL;
    out->latest = &out->producers[state->producers_count++];
    *out->latest = (tpc_segment_producer){
        .producer_id = header->producer_id,
        .producer_epoch = header->producer_epoch,
        .transaction_first_offset = -1,
    };
    return out->latest;
}

static void add_to_producer(const tpc_batch_header *header, tpc_segment_producer *slot) {
    if (slot->producer_epoch != header->producer_epoch) {
        slot->producer_epoch = header->producer_epoch;
        slot->epoch_changed = 1;
        slot->batches_count = 0;
    }
    if (slot->batches_count == BATCHES_KEPT) {
        slot->batches_count--;
        memmove(slot->last_offset, slot->last_offset + 1, sizeof slot->last_offset - sizeof *slot->last_offset);
        memmove(slot->timestamp, slot->timestamp + 1, sizeof slot->timestamp - sizeof *slot->timestamp);
        memmove(slot->last_sequence, slot->last_sequence + 1, sizeof slot->last_sequence - sizeof *slot->last_sequence);
        memmove(slot->offset_delta, slot->offset_delta + 1, sizeof slot->offset_delta - sizeof *slot->offset_delta);
    }
    uint8_t at = slot->batches_count++;
    slot->last_offset[at] = header->base_offset + header->last_offset_delta;
    slot->timestamp[at] = slot->last_timestamp = header->max_timestamp;
    slot->offset_delta[at] = header->last_offset_delta;
    /* Sequences wrap from 2^31-1 to 0; -1 says that there is none. */
    slot->last_sequence[at] =
        header->base_sequence == -1
            ? -1
            : (int32_t)((uint32_t)header->base_sequence + (uint32_t)header->last_offset_delta) & SEQUENCE_MASK;
    if ((header->attributes & TPC_BATCH_TRANSACTIONAL) && slot->transaction_first_offset == -1)
        slot->transaction_first_offset = header->base_offset;
}

/* Takes the batch whose header this is, or says why not. */
static int take(const tpc_batch_header *header, tpc_segment_state *state, outputs *out) {
    if (must_roll(state, header)) return TPC_SEGMENT_ROLL;
    if (header->partition_leader_epoch > state->leader_epoch) return TPC_SEGMENT_EPOCH;
    if (state->offset_entries_made >= out->entries_max) return TPC_SEGMENT_ROOM;
    if (header->producer_id >= 0) {
        if (header->attributes & TPC_BATCH_IS_CONTROL) return TPC_SEGMENT_CONTROL;
        tpc_segment_producer *slot = producer_slot(header, state, out);
        if (!slot) return TPC_SEGMENT_ROOM;
        add_to_producer(header, slot);
    }
    add_to_indexes(header, state, out);
    state->position += header->batch_bytes;
    state->next_offset = header->base_offset + header->last_offset_delta + 1;
    return TPC_SEGMENT_END;
}

int tpc_segment_walk(const uint8_t *bytes, size_t bytes_count, tpc_segment_state *state, uint8_t *offset_entries,
                     uint8_t *time_entries, int32_t entries_max, tpc_segment_producer *producers,
                     int32_t producers_max) {
    outputs out = {.offset_entries = offset_entries,
                   .time_entries = time_entries,
                   .entries_max = entries_max,
                   .producers = producers,
                   .producers_max = producers_max};
    if (!is_sane(state, bytes_count, entries_max) || producers_max < 1) return -EINVAL;
    state->offset_entries_made = state->time_entries_made = state->producers_count = 0;
    state->stop = TPC_SEGMENT_END;
    while ((size_t)state->place < bytes_count) {
        tpc_batch_header header;
        const uint8_t *at = bytes + state->place;
        state->stop = TPC_SEGMENT_BAD;
        state->reason = batch_check_stored(at, bytes_count - (size_t)state->place, &header);
        if (state->reason) break;
        if (header.base_offset < state->next_offset) { /* written before an earlier call failed */
            state->reason = TPC_BATCH_BAD_ORDER;
            if (state->skipped_bytes != state->place ||
                header.base_offset + header.last_offset_delta >= state->next_offset)
                break;
            state->skipped_bytes += header.batch_bytes;
        } else {
            state->stop = take(&header, state, &out);
            if (state->stop) break;
        }
        state->place += header.batch_bytes;
        state->stop = TPC_SEGMENT_END;
    }
    return 0;
}

int tpc_segment_index(const uint8_t *bytes, size_t bytes_count, tpc_segment_state *state, uint8_t *offset_entries,
                      uint8_t *time_entries, int32_t entries_max) {
    outputs out = {.offset_entries = offset_entries, .time_entries = time_entries, .entries_max = entries_max};
    if (!is_sane(state, bytes_count, entries_max)) return -EINVAL;
    state->offset_entries_made = state->time_entries_made = 0;
    state->stop = TPC_SEGMENT_END;
    while ((size_t)state->place < bytes_count) {
        tpc_batch_header header;
        state->reason = batch_check_stored(bytes + state->place, bytes_count - (size_t)state->place, &header);
        if (!state->reason && header.base_offset < state->next_offset) state->reason = TPC_BATCH_BAD_ORDER;
        state->stop = state->reason                                   ? TPC_SEGMENT_BAD
                      : must_roll(state, &header)                     ? TPC_SEGMENT_ROLL
                      : state->offset_entries_made >= out.entries_max ? TPC_SEGMENT_ROOM
                                                                      : TPC_SEGMENT_END;
        if (state->stop) break;
        add_to_indexes(&header, state, &out);
        state->position += header.batch_bytes;
        state->next_offset = header.base_offset + header.last_offset_delta + 1;
        state->place += header.batch_bytes;
    }
    return 0;
}
