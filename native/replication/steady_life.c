/* Links to cores of other nodes come and go, and what comes over one goes to whose it is (steady.h). */
#include "steady_state.h"

#include <errno.h>
#include <stdlib.h>

/* ---- frames in ---- */

static void take(connection *it, const uint8_t *bytes, uint32_t length, tpc_frame *frame) {
    steady_link *from = it->steady;
    tpc_plane *plane = from->plane;
    TPC_HOLDS(from->connection == it && plane);
    uint32_t kind = 0;
    size_t position = TPC_STEADY_HEADER_BYTES;
    int64_t count = tpc_steady_frame_decode(bytes, length, &kind);
    framing_note_size(it, length);
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

/* ---- links come and go ---- */

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
