/* Mutations through native/bytes/segment.c: a part of bytes_mutations.c. */

enum { SEGMENT_ENTRIES = 3, SEGMENT_PRODUCERS = 2, OFFSET_ENTRY_BYTES = 8, TIME_ENTRY_BYTES = 12 };

/* Any: what a file's name says, and what a log was cut to. No batch of which the walk takes something ends beyond what an
 * offset can be. */
static int64_t segment_offset(const input *in) {
    static const int64_t edges[] = {0,         100, INT32_MAX, INT64_MAX - INT32_MAX - 2, INT64_MAX - 1,
                                    INT64_MAX, -1,  INT64_MIN};
    uint64_t first = 0;
    if (in->size >= sizeof first) memcpy(&first, in->bytes, sizeof first);
    uint64_t chosen = next_random() % 16;
    return chosen < sizeof edges / sizeof *edges ? edges[chosen] : (int64_t)(__builtin_bswap64(first) - chosen % 3);
}

static tpc_segment_state segment_state(const input *in) {
    return (tpc_segment_state){.segment_bytes = 1 << (next_random() % 12),
                               .segment_ms = (int64_t)(next_random() % 3) * INT32_MAX,
                               .index_interval_bytes = (int64_t)(next_random() % 200),
                               .offset_entries_max = 1 + (int64_t)(next_random() % 8),
                               .time_entries_max = 1 + (int64_t)(next_random() % 8),
                               .base_offset = segment_offset(in),
                               .largest_timestamp = -1,
                               .first_timestamp = -1,
                               .last_entry_timestamp = -1,
                               .next_offset = next_random() % 4 ? 0 : segment_offset(in),
                               .leader_epoch = next_random() % 4 ? INT32_MAX : 2};
}

static void require_segment(const tpc_segment_state *before, const tpc_segment_state *state, size_t size) {
    require(state->place >= before->place && (size_t)state->place <= size, "the walk stays within the bytes");
    require(state->next_offset >= before->next_offset, "offsets never fall");
    require(state->position - before->position <= state->place - before->place, "a segment of what was taken");
    require(state->offset_entries_made <= SEGMENT_ENTRIES && state->time_entries_made <= state->offset_entries_made,
            "entries in their room");
    if (state->position == before->position) return;
    require(before->base_offset >= 0 && state->next_offset - 1 - before->base_offset <= INT32_MAX,
            "an index can have what is taken");
}

/* A roll begins a segment with the batch that it stopped at, as who calls it does. */
static bool segment_rolls(const input *in, tpc_segment_state *state) {
    uint64_t base;
    if (state->stop != TPC_SEGMENT_ROLL || in->size - (size_t)state->place < sizeof base) return false;
    memcpy(&base, in->bytes + state->place, sizeof base);
    base = __builtin_bswap64(base);
    if (state->position == 0 && (uint64_t)state->base_offset == base) return false;
    state->base_offset = (int64_t)base;
    state->position = state->offset_entries = state->time_entries = 0;
    return true;
}

static int run_segment(const input *in) {
    uint8_t *offsets = malloc(SEGMENT_ENTRIES * OFFSET_ENTRY_BYTES),
            *times = malloc(SEGMENT_ENTRIES * TIME_ENTRY_BYTES);
    tpc_segment_producer *producers = malloc(SEGMENT_PRODUCERS * sizeof *producers);
    tpc_segment_state state = segment_state(in), first = state;
    int64_t taken = 0;
    for (bool goes_on = true; goes_on;) {
        tpc_segment_state before = state;
        int result = tpc_segment_walk(in->bytes, in->size + lie, &state, offsets, times, SEGMENT_ENTRIES, producers,
                                      SEGMENT_PRODUCERS);
        require((result == -EINVAL) == (before.base_offset < 0), "a segment begins with an offset");
        if (result < 0) break;
        require_segment(&before, &state, in->size);
        require(state.producers_count <= SEGMENT_PRODUCERS, "producers in their room");
        taken += state.position - before.position;
        goes_on = state.stop == TPC_SEGMENT_ROOM || segment_rolls(in, &state);
    }
    state = first;
    do {
        tpc_segment_state before = state;
        if (tpc_segment_index(in->bytes, in->size + lie, &state, offsets, times, SEGMENT_ENTRIES) < 0) break;
        require_segment(&before, &state, in->size);
    } while (state.stop == TPC_SEGMENT_ROOM);
    free(offsets);
    free(times);
    free(producers);
    return taken ? 0 : 1;
}
