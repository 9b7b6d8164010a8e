/*
 * What leaves in a turn, over all links (steady.h): what followers lack, commits that nothing else has told, beats, and
 * what leaders are owed.
 */
#include "steady_state.h"

/* Appends behind what it was sent, as far as there is room. Whether there is more. */
static bool send_items(tpc_plane *plane, tpc_steady *it, steady_peer *peer, steady_link *to) {
    tpc_partition *partition = it->partition;
    while (peer->next_offset < partition->log_end_offset) {
        if (peer->want != STEADY_WANTS_NOTHING) return false;
        if (!to->connection || !steady_has_room(to, peer)) return true;
        tpc_tail_stretch stretch;
        uint32_t most = peer->asked ? STEADY_COPIED_BYTES_MAX : STEADY_APPEND_BYTES_MAX;
        int result = tpc_tail_measure(partition, peer->next_offset, most, partition->log_end_offset, true,
                                      STEADY_SLICES_MAX, &stretch);
        if (result < 0 || !stretch.bytes) return !steady_want(plane, it, peer, to);
        int64_t end_offset = steady_send_stretch(to, it, peer, &stretch);
        if (end_offset < 0) return true;
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
    if (steady_send_commit(to, it, peer)) steady_sent(plane, it, peer, to, peer->next_offset, 0);
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
        steady_send_acks(it);
        TPC_HOLDS(!it->gathered); /* nothing waits for the next turn */
        connection_let_go(held);
    }
    return until_ns;
}
