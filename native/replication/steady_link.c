/* A link to a core of another node, and the frames of the steady state that leave over it (steady.h). */
#include "steady_state.h"

#include <string.h>

enum { LENGTH_BYTES = 4, HEAD_BYTES = LENGTH_BYTES + TPC_STEADY_HEADER_BYTES, GATHERED_BYTES = 16384 };

_Static_assert((int)TPC_STEADY_APPEND_KIND == (int)TPC_STEADY_APPEND && (int)TPC_STEADY_ACK_KIND == (int)TPC_STEADY_ACK,
               "the same numbers");
_Static_assert(GATHERED_BYTES >= HEAD_BYTES + TPC_STEADY_APPEND_BYTES + STEADY_COPIED_BYTES_MAX,
               "room for one append at least");

steady_link *steady_link_find(const tpc_plane *plane, uint64_t id) {
    uint32_t slot = (uint32_t)(id & (STEADY_LINKS_MAX - 1));
    steady_link *it = id && slot < plane->steady->links_count ? plane->steady->links[slot] : NULL;
    return it && it->id == id && it->connection ? it : NULL;
}

void steady_want_nothing(steady_peer *peer, steady_link *to) {
    TPC_HOLDS(peer->want == STEADY_WANTS_NOTHING || !to || to->wants > 0);
    if (peer->want != STEADY_WANTS_NOTHING && to) to->wants--;
    peer->want = STEADY_WANTS_NOTHING;
}

/* ---- frames ---- */

/* Rule: Who looks at a link behind a send holds its connection. A send that finds no memory closes it, and what closes
 * while nothing of it is under way is freed at once. See also native/net/link.c, native/replication/steady_turn.c,
 * native/replication/steady_lag.c. Held by tests/engine/test_scarce_memory.py. */
connection *steady_link_hold(steady_link *it) {
    TPC_HOLDS(it->connection && it->connection->steady == it);
    connection_hold(it->connection);
    return it->connection;
}

static void push(steady_link *it, const tpc_slice *slices, uint32_t count) {
    TPC_HOLDS(it->connection && it->connection->steady == it);
    TPC_HOLDS(count > 0 && slices[0].length >= HEAD_BYTES);
    tpc_steady_statistics *statistics = &it->plane->steady->statistics;
    statistics->frames_sent++;
    for (uint32_t i = 0; i < count; i++) statistics->sent_bytes += slices[i].length;
    answers_push(it->connection, slices, count, false); /* if not, the connection is closed, and tells */
}

/* What was gathered leaves. */
static void flush(steady_link *it, uint32_t kind) {
    tpc_frame *frame = it->gathered;
    uint32_t count = it->gathered_count;
    if (!frame) return;
    TPC_HOLDS(kind == it->gathered_kind); /* its other end reads all entries of a frame as one kind */
    TPC_INVARIANT(count > 0 && frame->length > HEAD_BYTES && frame->length <= GATHERED_BYTES,
                  "%u entries in a frame of %u bytes", count, frame->length);
    it->gathered = NULL;
    it->gathered_count = 0;
    tpc_steady_frame_header(kind, count, frame->length - HEAD_BYTES, frame->data);
    tpc_slice all = {.frame = frame, .data = frame->data, .length = frame->length};
    push(it, &all, 1);
}

/* Room for an entry behind those gathered; NULL: no memory. */
static uint8_t *room(steady_link *it, uint32_t kind, uint32_t bytes) {
    if (it->gathered && it->gathered->length + bytes > GATHERED_BYTES) flush(it, kind);
    if (!it->connection) return NULL;
    if (!it->gathered) {
        it->gathered = tpc_frame_new_forced(it->plane->budget, GATHERED_BYTES);
        if (!it->gathered) return NULL;
        it->gathered->length = HEAD_BYTES;
        it->gathered_kind = kind;
    }
    TPC_HOLDS(kind == it->gathered_kind);
    TPC_HOLDS(bytes > 0 && it->gathered->length + bytes <= it->gathered->capacity);
    uint8_t *at = it->gathered->data + it->gathered->length;
    it->gathered->length += bytes;
    it->gathered_count++;
    return at;
}

static tpc_steady_entry append_entry(const tpc_steady *it, const steady_peer *peer, uint32_t bytes) {
    int64_t commit_offset = it->partition->commit_offset;
    TPC_HOLDS(it->is_leader);
    steady_verify(it);
    STEADY_PEER_HOLDS(it, peer, peer->link && peer->next_offset >= 0);
    STEADY_PEER_HOLDS(it, peer, bytes == 0 || peer->next_offset < it->partition->log_end_offset);
    return (tpc_steady_entry){.topic_id = it->partition->topic_id,
                              .partition = it->partition->index,
                              .term = it->term,
                              .source = it->own_incarnation,
                              .target = peer->incarnation,
                              .offset = peer->next_offset,
                              .commit_offset = commit_offset < it->start_offset ? -1 : commit_offset,
                              .batches_bytes = bytes,
                              .kind = TPC_STEADY_APPEND};
}

static bool send_copied(steady_link *to, const tpc_steady_entry *entry, const tpc_partition *partition,
                        const tpc_tail_stretch *stretch) {
    uint8_t *at = room(to, TPC_STEADY_APPEND, TPC_STEADY_APPEND_BYTES + entry->batches_bytes);
    if (!at) return false;
    at += tpc_steady_entry_encode(entry, at);
    uint64_t left_bytes = stretch->bytes;
    for (uint32_t i = 0; i < stretch->count; i++) {
        tpc_slice piece = tpc_tail_piece(partition, stretch, i, left_bytes);
        memcpy(at, piece.data, piece.length);
        at += piece.length;
        left_bytes -= piece.length;
    }
    TPC_HOLDS(left_bytes == 0); /* as much follows the entry as it says */
    TPC_HOLDS(at == to->gathered->data + to->gathered->length);
    return true;
}

static bool send_as_it_lies(steady_link *to, const tpc_steady_entry *entry, const tpc_partition *partition,
                            const tpc_tail_stretch *stretch) {
    tpc_slice slices[STEADY_SLICES_MAX + 1];
    TPC_HOLDS(stretch->count > 0 && stretch->count <= STEADY_SLICES_MAX);
    flush(to, TPC_STEADY_APPEND);
    tpc_frame *head =
        to->connection ? tpc_frame_new_forced(to->plane->budget, HEAD_BYTES + TPC_STEADY_APPEND_BYTES) : NULL;
    if (!head) return false;
    tpc_steady_frame_header(TPC_STEADY_APPEND, 1, TPC_STEADY_APPEND_BYTES + entry->batches_bytes, head->data);
    tpc_steady_entry_encode(entry, head->data + HEAD_BYTES);
    slices[0] = (tpc_slice){.frame = head, .data = head->data, .length = HEAD_BYTES + TPC_STEADY_APPEND_BYTES};
    uint64_t left_bytes = stretch->bytes;
    for (uint32_t i = 0; i < stretch->count; i++) {
        slices[i + 1] = tpc_tail_piece(partition, stretch, i, left_bytes);
        tpc_frame_retain(slices[i + 1].frame);
        left_bytes -= slices[i + 1].length;
    }
    TPC_HOLDS(left_bytes == 0);
    push(to, slices, stretch->count + 1);
    return true;
}

bool steady_send_read(steady_link *to, const tpc_steady *it, const steady_peer *peer, const uint8_t *batches,
                      uint32_t bytes) {
    TPC_HOLDS(bytes > 0);
    tpc_steady_entry entry = append_entry(it, peer, bytes);
    flush(to, TPC_STEADY_APPEND);
    tpc_frame *frame =
        to->connection ? tpc_frame_new_forced(to->plane->budget, HEAD_BYTES + TPC_STEADY_APPEND_BYTES + bytes) : NULL;
    if (!frame) return false;
    tpc_steady_frame_header(TPC_STEADY_APPEND, 1, TPC_STEADY_APPEND_BYTES + bytes, frame->data);
    tpc_steady_entry_encode(&entry, frame->data + HEAD_BYTES);
    memcpy(frame->data + HEAD_BYTES + TPC_STEADY_APPEND_BYTES, batches, bytes);
    push(to, &(tpc_slice){.frame = frame, .data = frame->data, .length = frame->length}, 1);
    return true;
}

static int64_t stretch_end(const tpc_steady *it, const tpc_tail_stretch *stretch) {
    const tpc_partition *partition = it->partition;
    uint64_t left_bytes = stretch->bytes;
    tpc_slice last = {0};
    for (uint32_t i = 0; i < stretch->count; i++) {
        last = tpc_tail_piece(partition, stretch, i, left_bytes);
        left_bytes -= last.length;
    }
    int64_t end_offset = -1;
    for (uint32_t position = 0; position < last.length;) {
        tpc_batch_header header;
        int result = tpc_batch_header_read(last.data + position, last.length - position, &header);
        TPC_PARTITION_INVARIANT(partition, result == 0 && (uint32_t)header.batch_bytes <= last.length - position);
        bool is_of_term = header.partition_leader_epoch == it->term || header.base_offset < it->start_offset;
        TPC_PARTITION_INVARIANT(partition, is_of_term); /* only what is of its term a leader sends as such */
        TPC_PARTITION_INVARIANT(partition, header.last_offset_delta >= 0 && header.base_offset >= end_offset);
        end_offset = header.base_offset + header.last_offset_delta + 1;
        position += (uint32_t)header.batch_bytes;
    }
    return end_offset;
}

int64_t steady_send_stretch(steady_link *to, const tpc_steady *it, const steady_peer *peer,
                            const tpc_tail_stretch *stretch) {
    const tpc_partition *partition = it->partition;
    tpc_steady_entry entry = append_entry(it, peer, (uint32_t)stretch->bytes);
    bool is_small = stretch->bytes <= STEADY_COPIED_BYTES_MAX;
    int64_t end_offset = stretch_end(it, stretch);
    STEADY_PEER_HOLDS(it, peer, end_offset > peer->next_offset && end_offset <= partition->log_end_offset);
    return (is_small ? send_copied : send_as_it_lies)(to, &entry, partition, stretch) ? end_offset : -1;
}

bool steady_send_commit(steady_link *to, const tpc_steady *it, const steady_peer *peer) {
    uint8_t *at = room(to, TPC_STEADY_APPEND, TPC_STEADY_APPEND_BYTES);
    if (!at) return false;
    tpc_steady_entry entry = append_entry(it, peer, 0);
    tpc_steady_entry_encode(&entry, at);
    return true;
}

void steady_send_acks(steady_link *it) {
    flush(it, TPC_STEADY_APPEND);
    if (!it->connection) return;
    while (node_linked(&it->acks)) {
        tpc_steady *of = NODE_OWNER(it->acks.next, tpc_steady, acks);
        uint8_t *at = room(it, TPC_STEADY_ACK, TPC_STEADY_ACK_BYTES);
        if (!at) return;
        node_remove(&of->acks);
        const tpc_partition *partition = of->partition;
        TPC_HOLDS(!of->is_leader && of->leader_link == it->id);
        TPC_PARTITION_INVARIANT(partition, partition->role == TPC_ROLE_FOLLOWER && partition->leader_epoch == of->term);
        TPC_PARTITION_INVARIANT(partition, partition->durable_offset >= of->start_offset);
        TPC_PARTITION_INVARIANT(partition, partition->durable_offset >= of->acked_offset); /* what it said stays so */
        TPC_PARTITION_INVARIANT(partition, partition->commit_offset <= partition->durable_offset);
        of->acked_offset = partition->durable_offset;
        bool is_known = partition->commit_offset >= of->start_offset;
        tpc_steady_entry entry = {.topic_id = partition->topic_id,
                                  .partition = partition->index,
                                  .term = of->term,
                                  .source = of->own_incarnation,
                                  .target = of->leader_incarnation,
                                  .offset = partition->durable_offset,
                                  .commit_offset = is_known ? partition->commit_offset : -1,
                                  .kind = TPC_STEADY_ACK};
        tpc_steady_entry_encode(&entry, at);
        it->plane->steady->statistics.acks_sent++;
    }
    flush(it, TPC_STEADY_ACK);
}

void steady_send_beat(steady_link *to, uint32_t machines) {
    TPC_HOLDS(machines < 1U << TPC_STEADY_MACHINES);
    tpc_frame *frame = tpc_frame_new_forced(to->plane->budget, HEAD_BYTES + TPC_STEADY_BEAT_BYTES);
    if (!frame) return; /* as if it had been lost on the way */
    tpc_steady_frame_header(TPC_STEADY_BEAT, 1, TPC_STEADY_BEAT_BYTES, frame->data);
    tpc_steady_beat_encode(machines, frame->data + HEAD_BYTES);
    push(to, &(tpc_slice){.frame = frame, .data = frame->data, .length = HEAD_BYTES + TPC_STEADY_BEAT_BYTES}, 1);
}
