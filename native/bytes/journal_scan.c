/*
 * Recovery's reading of the journal: the chain of commits, and what may lie behind its end.
 *
 * The blocks behind the last commit of the chain hold older laps, torn writes, and commits of an earlier run that were
 * never acknowledged. None of them can pass for the next commit: it must carry this journal's id, the next sequence, the
 * checksum of its predecessor and its own. And none of the honest ones can claim that a missing sequence had been
 * durable: what was durable when they were submitted is in the chain, or the chain is damaged.
 */
#include <errno.h>
#include <string.h>

#include "bytes.h"
#include "journal_format.h"

enum { CRC_POSITION = 92 - 24, ENTRY_ROUND = TPC_JOURNAL_ENTRY_ALIGNMENT - 1 };

_Static_assert(__builtin_offsetof(tpc_journal_commit_header, crc) == CRC_POSITION, "the checksum is in its place");

static uint32_t commit_crc(const uint8_t *commit, uint32_t commit_bytes) {
    static const uint8_t zeros[4];
    uint32_t crc = tpc_crc32c(0, commit, CRC_POSITION);
    crc = tpc_crc32c(crc, zeros, sizeof zeros);
    return tpc_crc32c(crc, commit + CRC_POSITION + 4, commit_bytes - CRC_POSITION - 4);
}

int tpc_journal_commit_seal(uint8_t *commit, size_t buffer_bytes) {
    tpc_journal_commit_header header;
    if (buffer_bytes < sizeof header) return -EINVAL;
    memcpy(&header, commit, sizeof header);
    if (header.commit_bytes < sizeof header || header.commit_bytes > buffer_bytes) return -EINVAL;
    header.crc = commit_crc(commit, header.commit_bytes);
    memcpy(commit, &header, sizeof header);
    return 0;
}

static uint64_t whole_blocks(uint64_t bytes) {
    return (bytes + TPC_JOURNAL_BLOCK_BYTES - 1) / TPC_JOURNAL_BLOCK_BYTES * TPC_JOURNAL_BLOCK_BYTES;
}

/* Whether a commit of this journal may begin here; nothing is said about its body. */
static bool header_fits(const tpc_journal_commit_header *header, const uint8_t journal_id[16], uint64_t room_bytes) {
    return header->magic == TPC_JOURNAL_MAGIC && header->format_version == TPC_JOURNAL_FORMAT_VERSION &&
           memcmp(header->journal_id, journal_id, 16) == 0 && header->commit_bytes >= sizeof *header &&
           whole_blocks(header->commit_bytes) <= room_bytes;
}

static bool entries_fit(const uint8_t *commit, const tpc_journal_commit_header *header) {
    uint64_t position = sizeof *header;
    for (uint32_t i = 0; i < header->entries_count; i++) {
        tpc_journal_entry_header entry;
        position = (position + ENTRY_ROUND) & ~(uint64_t)ENTRY_ROUND;
        if (position + sizeof entry > header->commit_bytes) return false;
        memcpy(&entry, commit + position, sizeof entry);
        if (entry.entry_bytes < sizeof entry || entry.entry_bytes > header->commit_bytes - position) return false;
        position += entry.entry_bytes;
    }
    return ((position + ENTRY_ROUND) & ~(uint64_t)ENTRY_ROUND) >= header->commit_bytes;
}

typedef struct {
    const uint8_t *bytes;
    size_t bytes_count;
    uint64_t position; /* of the bytes in the region */
} window;

/* The region's bytes from `position` on, or NULL when not all of them are in the window. */
static const uint8_t *in_window(const window *view, uint64_t position, uint64_t bytes_count) {
    if (position < view->position || bytes_count > view->bytes_count ||
        position - view->position > view->bytes_count - bytes_count)
        return NULL;
    return view->bytes + (position - view->position);
}

static bool whole_multiple(uint64_t bytes) { return bytes % TPC_JOURNAL_BLOCK_BYTES == 0; }

enum finding { FOUND, ABSENT, NOT_IN_WINDOW, ENTRIES_BAD };

static enum finding want(tpc_journal_scan_state *state, uint64_t position, uint64_t bytes_count) {
    state->wanted_position = position;
    state->wanted_bytes = bytes_count;
    return NOT_IN_WINDOW;
}

/* The next commit of the chain, looked for at one place. */
static enum finding commit_at(const window *view, uint64_t position, tpc_journal_scan_state *state,
                              tpc_journal_commit_header *header) {
    if (position >= state->region_bytes) return ABSENT;
    const uint8_t *at = in_window(view, position, TPC_JOURNAL_BLOCK_BYTES);
    if (!at) return want(state, position, TPC_JOURNAL_BLOCK_BYTES);
    memcpy(header, at, sizeof *header);
    if (!header_fits(header, state->journal_id, state->region_bytes - position)) return ABSENT;
    if (header->sequence != state->next_sequence) return ABSENT;
    if (!state->any_previous_crc && header->previous_crc != state->previous_crc) return ABSENT;
    at = in_window(view, position, whole_blocks(header->commit_bytes));
    if (!at) return want(state, position, whole_blocks(header->commit_bytes));
    if (commit_crc(at, header->commit_bytes) != header->crc) return ABSENT;
    return entries_fit(at, header) ? FOUND : ENTRIES_BAD;
}

/* At the next block, else at the region's first one, where the writer goes when the rest is too short. */
static enum finding next_commit(const window *view, tpc_journal_scan_state *state, tpc_journal_commit_header *header) {
    if (!state->wrapped) {
        enum finding finding = commit_at(view, state->position, state, header);
        if (finding != ABSENT) return finding;
    }
    state->wrapped = 1;
    enum finding finding = commit_at(view, 0, state, header);
    if (finding == FOUND || finding == ENTRIES_BAD) {
        if (state->position) state->wrapped_position = state->position;
        state->position = 0;
    }
    if (finding != NOT_IN_WINDOW) state->wrapped = 0;
    return finding;
}

static void enter_commit(const tpc_journal_commit_header *header, tpc_journal_scan_state *state) {
    state->inside_commit = 1;
    state->entry_position = sizeof *header;
    state->entries_left = header->entries_count;
    state->previous_crc = header->crc;
    state->any_previous_crc = 0;
    state->durable_sequence = header->durable_sequence;
    state->run_id = header->run_id;
    state->submitted_ms = header->submitted_ms;
    state->commits_count++;
}

/* False when the bytes are not those that were checked when the commit was entered. */
static bool take_entry(const uint8_t *commit, uint32_t commit_bytes, tpc_journal_scan_state *state,
                       tpc_journal_entry *out) {
    tpc_journal_entry_header entry;
    if (state->entry_position > commit_bytes || commit_bytes - state->entry_position < sizeof entry) return false;
    memcpy(&entry, commit + state->entry_position, sizeof entry);
    if (entry.entry_bytes < sizeof entry || entry.entry_bytes > commit_bytes - state->entry_position) return false;
    *out = (tpc_journal_entry){
        .sequence = state->next_sequence,
        .payload_position = state->position + state->entry_position + sizeof entry,
        .offset = entry.offset,
        .argument = entry.argument,
        .payload_bytes = entry.entry_bytes - (uint32_t)sizeof entry,
        .partition = entry.partition,
        .kind = entry.kind,
        .flags = entry.flags,
    };
    memcpy(out->topic_id, entry.topic_id, sizeof out->topic_id);
    state->entry_position = tpc_journal_aligned_bytes(state->entry_position + entry.entry_bytes);
    state->entries_left--;
    return true;
}

/* Hands out entries of the checked commit at state->position; false when that cannot be finished in this call. */
static bool leave_commit(const window *view, tpc_journal_scan_state *state, tpc_journal_entry *out, int out_max,
                         int *filled) {
    tpc_journal_commit_header header;
    const uint8_t *at = in_window(view, state->position, sizeof header);
    if (at) memcpy(&header, at, sizeof header);
    if (at) at = in_window(view, state->position, header.commit_bytes);
    if (!at || header.crc != state->previous_crc) {
        want(state, state->position, TPC_JOURNAL_BLOCK_BYTES);
        state->stop = TPC_JOURNAL_MORE_BYTES;
        return false;
    }
    while (state->entries_left > 0) {
        if (*filled >= out_max) {
            state->stop = TPC_JOURNAL_MORE_ROOM;
            return false;
        }
        if (!take_entry(at, header.commit_bytes, state, &out[*filled])) {
            state->stop = TPC_JOURNAL_BAD_ENTRIES;
            return false;
        }
        ++*filled;
    }
    state->inside_commit = 0;
    state->position += whole_blocks(header.commit_bytes);
    state->next_sequence++;
    return true;
}

/* Rule: Each commit of the journal names the one before it. A torn tail is cut, and damage is reported. See also
 * tpc_broker/log/journal.py. Held by tests/native_bytes/test_journal_reader.py, tests/log/test_journal_scan.py. */
int tpc_journal_scan(const uint8_t *bytes, size_t bytes_count, uint64_t bytes_position, tpc_journal_scan_state *state,
                     tpc_journal_entry *out, int out_max) {
    const window view = {.bytes = bytes, .bytes_count = bytes_count, .position = bytes_position};
    int filled = 0;
    if (!whole_multiple(state->region_bytes) || !whole_multiple(state->position) || !whole_multiple(bytes_position))
        return -EINVAL;
    state->wanted_position = state->wanted_bytes = 0;
    for (;;) {
        if (!state->inside_commit) {
            tpc_journal_commit_header header;
            enum finding finding = next_commit(&view, state, &header);
            state->stop = finding == NOT_IN_WINDOW ? TPC_JOURNAL_MORE_BYTES
                          : finding == ENTRIES_BAD ? TPC_JOURNAL_BAD_ENTRIES
                                                   : TPC_JOURNAL_CHAIN_ENDS;
            if (finding != FOUND) return filled;
            enter_commit(&header, state);
        }
        if (!leave_commit(&view, state, out, out_max, &filled)) return filled;
    }
}

int tpc_journal_find_damage(const uint8_t *bytes, size_t bytes_count, uint64_t bytes_position,
                            tpc_journal_damage *state) {
    const window view = {.bytes = bytes, .bytes_count = bytes_count, .position = bytes_position};
    if (!whole_multiple(state->region_bytes) || !whole_multiple(state->position) || !whole_multiple(bytes_position))
        return -EINVAL;
    for (; state->position < state->region_bytes; state->position += TPC_JOURNAL_BLOCK_BYTES) {
        tpc_journal_commit_header header;
        state->wanted_bytes = TPC_JOURNAL_BLOCK_BYTES;
        const uint8_t *at = in_window(&view, state->position, TPC_JOURNAL_BLOCK_BYTES);
        if (!at) return 0;
        memcpy(&header, at, sizeof header);
        if (!header_fits(&header, state->journal_id, state->region_bytes - state->position)) continue;
        if (header.sequence < state->first_missing_sequence && header.durable_sequence < state->first_missing_sequence)
            continue;
        state->wanted_bytes = whole_blocks(header.commit_bytes);
        at = in_window(&view, state->position, state->wanted_bytes);
        if (!at) return 0;
        if (commit_crc(at, header.commit_bytes) != header.crc) continue;
        if (header.durable_sequence < state->first_missing_sequence) {
            state->torn_count++;
            continue;
        }
        state->found_sequence = header.sequence;
        state->found_durable_sequence = header.durable_sequence;
        return 1;
    }
    state->wanted_bytes = 0;
    return 0;
}
