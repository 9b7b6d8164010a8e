/* Links to cores of other nodes: the frames of the steady state, both ways (steady.h). */
#include "steady_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LENGTH_BYTES = 4,
    HEAD_BYTES = LENGTH_BYTES + TPC_STEADY_HEADER_BYTES,
    GATHERED_BYTES = 16384,
    COPIED_BYTES_MAX = 8192, /* of an append: it leaves together with others */
    SLICES_MAX = 48
};

_Static_assert((int)TPC_STEADY_APPEND_KIND == (int)TPC_STEADY_APPEND && (int)TPC_STEADY_ACK_KIND == (int)TPC_STEADY_ACK,
               "the same numbers");
_Static_assert(GATHERED_BYTES >= HEAD_BYTES + TPC_STEADY_APPEND_BYTES + COPIED_BYTES_MAX,
               "room for one append at least");

steady_link *steady_link_find(const tpc_plane *plane, uint64_t id) {
    uint32_t slot = (uint32_t)(id & (STEADY_LINKS_MAX - 1));
    steady_link *it = id && slot < plane->steady->links_count ? plane->steady->links[slot] : NULL;
    return it && it->id == id && it->connection ? it : NULL;
}

/* ---- frames out ---- */

/* Rule: Who looks at a link behind a send holds its connection. A send that finds no memory closes it, and what closes
 * while nothing of it is under way is freed at once. See also native/net/link.c, native/replication/steady_lag.c. Held by
 * tests/engine/test_scarce_memory.py. */
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
    send_push(it->connection, slices, count, false); /* if not, the connection is closed, and tells */
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
    tpc_slice slices[SLICES_MAX + 1];
    TPC_HOLDS(stretch->count > 0 && stretch->count <= SLICES_MAX);
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

/* Appends behind what it was sent, as far as there is room. Whether there is more. */
static bool send_items(tpc_plane *plane, tpc_steady *it, steady_peer *peer, steady_link *to) {
    tpc_partition *partition = it->partition;
    while (peer->next_offset < partition->log_end_offset) {
        if (peer->want != STEADY_WANTS_NOTHING) return false;
        if (!to->connection || !steady_has_room(to, peer)) return true;
        tpc_tail_stretch stretch;
        uint32_t most = peer->asked ? COPIED_BYTES_MAX : STEADY_APPEND_BYTES_MAX;
        int result =
            tpc_tail_measure(partition, peer->next_offset, most, partition->log_end_offset, true, SLICES_MAX, &stretch);
        if (result < 0 || !stretch.bytes) {
            return !steady_want(plane, it, peer, to);
        }
        tpc_steady_entry entry = append_entry(it, peer, (uint32_t)stretch.bytes);
        bool is_small = stretch.bytes <= COPIED_BYTES_MAX;
        int64_t end_offset = stretch_end(it, &stretch);
        STEADY_PEER_HOLDS(it, peer, end_offset > peer->next_offset && end_offset <= partition->log_end_offset);
        if (!(is_small ? send_copied : send_as_it_lies)(to, &entry, partition, &stretch)) return true;
        plane->steady->statistics.appends_sent++;
        plane->steady->statistics.append_bytes_sent += stretch.bytes;
        steady_sent(plane, it, peer, to, end_offset, (uint32_t)stretch.bytes);
    }
    return false;
}

static void send_all(tpc_plane *plane) {
    node list, *head = &plane->steady->sending;
    node_init(&list);
    while (node_linked(head)) node_to_tail(&list, head->next);
    while (node_linked(&list)) {
        tpc_steady *it = NODE_OWNER(list.next, tpc_steady, sending);
        bool is_more = false;
        TPC_HOLDS(it->is_leader && !it->is_stopped);
        node_remove(&it->sending);
        for (uint32_t i = 0; i < it->peers_count; i++) {
            steady_link *to = steady_link_find(plane, it->peers[i].link);
            if (!to) continue;
            connection *held = steady_link_hold(to);
            if (send_items(plane, it, &it->peers[i], to)) is_more = true;
            connection_let_go(held);
        }
        if (is_more) node_to_tail(head, &it->sending);
    }
}

static void tell_commit(tpc_plane *plane, tpc_steady *it, steady_peer *peer, steady_link *to) {
    connection *held = steady_link_hold(to);
    uint8_t *at = room(to, TPC_STEADY_APPEND, TPC_STEADY_APPEND_BYTES);
    if (at) {
        tpc_steady_entry entry = append_entry(it, peer, 0);
        tpc_steady_entry_encode(&entry, at);
        steady_sent(plane, it, peer, to, peer->next_offset, 0);
    }
    connection_let_go(held);
}

/* Commits that no append has told; when the next one is due. */
static int64_t tell_commits(tpc_plane *plane, int64_t now_ns) {
    node *head = &plane->steady->telling;
    while (node_linked(head)) {
        tpc_steady *it = NODE_OWNER(head->next, tpc_steady, telling);
        if (it->tell_ns > now_ns) return it->tell_ns;
        TPC_HOLDS(it->is_leader && !it->is_stopped);
        node_remove(&it->telling);
        for (uint32_t i = 0; i < it->peers_count; i++) {
            steady_peer *peer = &it->peers[i];
            steady_link *to = steady_link_find(plane, peer->link);
            bool wants =
                peer->next_offset == it->partition->log_end_offset && peer->told_offset < it->partition->commit_offset;
            if (to && wants) tell_commit(plane, it, peer, to);
        }
    }
    return INT64_MAX;
}

static void send_acks(steady_link *it) {
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

int64_t steady_turn(void *context, int64_t now_ns) {
    tpc_plane *plane = context;
    int64_t held_ns = node_linked(&plane->steady->holding) ? steady_take_held(plane, now_ns) : INT64_MAX;
    send_all(plane);
    int64_t until_ns = tell_commits(plane, now_ns), beat_ns = steady_beat_all(plane, now_ns);
    if (beat_ns < until_ns) until_ns = beat_ns;
    if (held_ns < until_ns) until_ns = held_ns;
    for (uint32_t i = 0; i < plane->steady->links_count; i++) {
        steady_link *it = plane->steady->links[i];
        if (!it || !it->connection) continue;
        connection *held = steady_link_hold(it);
        flush(it, TPC_STEADY_APPEND);
        if (it->connection) send_acks(it);
        TPC_HOLDS(!it->gathered); /* nothing waits for the next turn */
        connection_let_go(held);
    }
    return until_ns;
}

/* ---- frames in ---- */

static void take(connection *it, const uint8_t *bytes, uint32_t length, tpc_frame *frame) {
    steady_link *from = it->steady;
    tpc_plane *plane = from->plane;
    TPC_HOLDS(from->connection == it && plane);
    uint32_t kind = 0;
    size_t position = TPC_STEADY_HEADER_BYTES;
    int64_t count = tpc_steady_frame_decode(bytes, length, &kind);
    receive_note_size(it, length);
    plane->steady->statistics.frames_taken++;
    plane->steady->statistics.taken_bytes += length;
    if (count > 0 && kind == TPC_STEADY_BEAT) {
        uint32_t machines;
        if (tpc_steady_beat_decode(bytes, length, &position, &machines) == 0) steady_take_beat(plane, from, machines);
    } else if (count > 0) {
        steady_hear(plane, from);
    }
    for (int64_t i = 0; i < count && kind != TPC_STEADY_BEAT && it->state == CONNECTION_OPEN; i++) {
        tpc_steady_entry entry;
        if (tpc_steady_entry_decode(kind, bytes, length, &position, &entry) < 0) {
            count = -EBADMSG;
            break;
        }
        if (kind == TPC_STEADY_APPEND)
            steady_take_append(plane, from, &entry, frame);
        else
            steady_take_ack(plane, from, &entry);
    }
    if (count < 0 || (it->state == CONNECTION_OPEN && position != length))
        connection_begin_close(it, TPC_CLOSE_REQUEST_INVALID, EPROTO);
    tpc_plane_publish_advanced(plane);
}

static bool steady_takes_bytes(connection *it, uint8_t *bytes, uint32_t length) {
    take(it, bytes, length, NULL);
    return true;
}

static void steady_takes_frame(connection *it, tpc_frame *frame) {
    connection_hold(it);
    take(it, frame->data + it->lead, frame->length - it->lead, frame);
    tpc_frame_release(frame);
    connection_let_go(it);
}

/* Bounded by what its other end may have unacknowledged: a follower never stops to listen. */
static bool is_never_full(const connection *it) {
    (void)it;
    return false;
}

static bool may_always_resume(const connection *it) {
    (void)it;
    return true;
}

/* An append that is alone in its frame lies as it will in its segment, and is written from there. */
static bool aligns_append(connection *it, const uint8_t *data, size_t bytes, uint32_t *residue) {
    tpc_plane *plane = it->steady->plane;
    uint32_t kind;
    size_t position = TPC_STEADY_HEADER_BYTES;
    tpc_steady_entry entry;
    int64_t window_position;
    if (!plane || bytes < TPC_STEADY_HEADER_BYTES + TPC_STEADY_APPEND_BYTES) return false;
    if (tpc_steady_frame_decode(data, it->announced, &kind) != 1 || kind != TPC_STEADY_APPEND) return false;
    if (tpc_steady_entry_decode(kind, data, it->announced, &position, &entry) < 0) return false;
    tpc_partition *partition = tpc_partition_identified(plane, entry.topic_id, entry.partition);
    if (!partition || !tpc_in_place_window_expect(partition, entry.batches_bytes, &window_position)) return false;
    *residue = (uint32_t)(window_position - (entry.batches - data)) % TPC_IN_PLACE_BLOCK_BYTES;
    return true;
}

static void steady_link_closing(connection *of) {
    steady_link *it = of->steady;
    TPC_HOLDS(it->connection == of && it->plane);
    it->connection = NULL;
    tpc_frame_release(it->gathered);
    it->gathered = NULL;
    while (node_linked(&it->acks)) node_remove(it->acks.next);
    TPC_HOLDS(it->plane->steady->statistics.links_up > 0);
    it->plane->steady->statistics.links_up--;
    it->plane->steady->statistics.links_lost++;
}

static void steady_link_gone(connection *of) {
    steady_link *it = of->steady;
    tpc_plane *plane = it->plane;
    TPC_HOLDS(!it->connection && !it->gathered && !node_linked(&it->acks));
    TPC_HOLDS(of->owner->steady_links > 0);
    of->owner->steady_links--;
    if (plane) {
        TPC_HOLDS(plane->steady->links[it->id & (STEADY_LINKS_MAX - 1)] == it);
        plane->steady->links[it->id & (STEADY_LINKS_MAX - 1)] = NULL;
        tpc_ring_push_event(plane->ring, TPC_EVENT_STEADY_LINK, it->id, 0, 0, NULL);
    }
    free(it);
}

static const connection_sink steady_sink = {.take_bytes = steady_takes_bytes,
                                            .take_frame = steady_takes_frame,
                                            .is_full = is_never_full,
                                            .may_resume = may_always_resume,
                                            .align = aligns_append,
                                            .closing = steady_link_closing,
                                            .gone = steady_link_gone,
                                            .is_forced = true};

/* ---- life ---- */

int tpc_steady_adopt(tpc_plane *plane, int descriptor, int32_t node, tpc_tls_session *tls, const uint8_t *unread,
                     size_t unread_bytes, uint64_t *link) {
    tpc_steady_links *all = plane->steady;
    uint32_t slot = 0;
    while (slot < all->links_count && all->links[slot]) slot++;
    if (!plane->connections) return -EINVAL;
    if (slot == STEADY_LINKS_MAX) return -EMFILE;
    steady_link *it = calloc(1, sizeof *it);
    connection *made = it ? connection_make(plane->connections, descriptor, 0, &steady_sink) : NULL;
    if (!made || (tls && tls_adopt(made, tls, unread, unread_bytes) < 0)) {
        if (made) connection_withdraw(made);
        free(it);
        return -ENOMEM;
    }
    it->plane = plane;
    it->connection = made;
    it->id = ++all->lives << STEADY_SLOT_BITS | slot;
    it->node = node;
    node_init(&it->acks);
    made->steady = it;
    TPC_HOLDS(steady_link_find(plane, it->id) == NULL);
    all->links[slot] = it;
    steady_unheard(plane, it->id);
    if (slot == all->links_count) all->links_count++;
    all->statistics.links_up++;
    plane->connections->steady_links++;
    connections_counted(plane->connections);
    *link = it->id;
    return 0;
}

void tpc_steady_close(tpc_plane *plane, uint64_t link) {
    steady_link *it = steady_link_find(plane, link);
    if (it) connection_begin_close(it->connection, TPC_CLOSE_LOCAL, 0);
}

int tpc_steady_take(tpc_plane *plane, tpc_steady_message *message) {
    steady_message *first = plane->steady->messages_first;
    if (!first) return 0;
    TPC_HOLDS(plane->steady->messages_last && !plane->steady->messages_last->next);
    plane->steady->messages_first = first->next;
    if (!first->next) plane->steady->messages_last = NULL;
    *message = first->said;
    free(first);
    return 1;
}

void tpc_steady_get_statistics(const tpc_plane *plane, tpc_steady_statistics *statistics) {
    *statistics = plane->steady->statistics;
}

int tpc_steady_begin(tpc_plane *plane) {
    tpc_steady_links *made = calloc(1, sizeof *made);
    if (!made) return -ENOMEM;
    node_init(&made->sending), node_init(&made->telling), node_init(&made->busy), node_init(&made->holding);
    node_init(&made->wanting);
    plane->steady = made;
    int result = tpc_ring_add_turn_hook(plane->ring, TPC_TURN_MIDDLE, steady_turn, plane);
    if (result < 0) {
        free(made);
        plane->steady = NULL;
    }
    return result;
}

/* Connections outlive the plane: what is left of theirs is closed, and knows no plane any more. */
void tpc_steady_end(tpc_plane *plane) {
    tpc_steady_links *all = plane->steady;
    tpc_steady_message message;
    if (!all) return;
    TPC_HOLDS(!all->statistics.leaders && !all->statistics.followers); /* their partitions went before */
    TPC_HOLDS(!node_linked(&all->sending) && !node_linked(&all->telling) && !node_linked(&all->busy));
    TPC_HOLDS(!node_linked(&all->wanting) && !node_linked(&all->holding));
    tpc_ring_remove_turn_hook(plane->ring, steady_turn, plane);
    while (tpc_steady_take(plane, &message)) tpc_frame_release(message.frame);
    for (uint32_t i = 0; i < all->links_count; i++) {
        steady_link *it = all->links[i];
        if (!it) continue;
        if (it->connection) {
            connection *of = it->connection;
            connection_hold(of);
            connection_begin_close(of, TPC_CLOSE_SHUTDOWN, 0);
            it->plane = NULL;
            connection_let_go(of);
        } else {
            it->plane = NULL;
        }
    }
    free(all);
    plane->steady = NULL;
}
