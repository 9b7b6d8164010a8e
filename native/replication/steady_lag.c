/*
 * What a follower needs is in segments only: Python reads it, and it leaves here as if it had come from the tail.
 *
 * Who reads is all that differs: `next` is a place in the log whatever holds its records, so the group stays C's, and its
 * other followers notice nothing. One stretch at a time of each follower is asked for, when there is room for it, and only
 * what begins at `next` is taken.
 */
#include <errno.h>
#include <string.h>

#include "steady_state.h"

bool steady_want(tpc_plane *plane, tpc_steady *it, steady_peer *peer, steady_link *to) {
    tpc_steady_links *all = plane->steady;
    TPC_HOLDS(it->is_leader && !it->is_stopped);
    TPC_HOLDS(peer->want == STEADY_WANTS_NOTHING && peer->link == to->id);
    STEADY_PEER_HOLDS(it, peer, peer->next_offset < it->partition->log_end_offset);
    TPC_HOLDS(to->wants <= STEADY_LINK_WANTS_MAX);
    if (to->wants == STEADY_LINK_WANTS_MAX) return false;
    to->wants++;
    peer->want = STEADY_WANTS;
    plane->steady->statistics.wanted++;
    if (!node_linked(&all->wanting)) tpc_ring_push_event(plane->ring, TPC_EVENT_STEADY, 0, 0, 0, NULL);
    if (!node_linked(&it->wanting)) node_to_tail(&all->wanting, &it->wanting);
    return true;
}

int tpc_steady_take_want(tpc_plane *plane, tpc_steady_want *want) {
    node *head = &plane->steady->wanting;
    while (node_linked(head)) {
        tpc_steady *it = NODE_OWNER(head->next, tpc_steady, wanting);
        TPC_HOLDS(it->is_leader && !it->is_stopped);
        for (uint32_t i = 0; i < it->peers_count; i++) {
            steady_peer *peer = &it->peers[i];
            if (peer->want != STEADY_WANTS) continue;
            peer->want = STEADY_WAITS;
            *want = (tpc_steady_want){.handle = it->partition->handle,
                                      .link = peer->link,
                                      .incarnation = peer->incarnation,
                                      .offset = peer->next_offset,
                                      .term = it->term,
                                      .peer = i};
            return 1;
        }
        node_remove(&it->wanting);
    }
    return 0;
}

static steady_peer *waiting_peer(tpc_plane *plane, const tpc_steady_want *want, tpc_steady **of) {
    tpc_partition *partition = tpc_partition_of(plane, want->handle);
    tpc_steady *it = *of = partition ? partition->steady : NULL;
    if (!it || it->is_stopped || !it->is_leader || it->term != want->term || want->peer >= it->peers_count) return NULL;
    steady_peer *peer = &it->peers[want->peer];
    bool is_it = peer->link == want->link && peer->incarnation == want->incarnation;
    return is_it && peer->want == STEADY_WAITS && peer->next_offset == want->offset ? peer : NULL;
}

/* How many bytes leave in one message; 0: what follows is not what comes next of the term. */
static uint32_t stretch_of(const tpc_steady *it, const uint8_t *batches, uint32_t bytes, int64_t *offset) {
    uint32_t taken = 0;
    while (taken < bytes) {
        tpc_batch_header header;
        if (tpc_batch_header_read(batches + taken, bytes - taken, &header) < 0) return 0;
        int64_t end_offset = *offset + header.last_offset_delta + 1; /* if that is where it begins */
        if (header.base_offset != *offset || header.last_offset_delta < 0 ||
            end_offset > it->partition->log_end_offset || header.partition_leader_epoch != it->term)
            return 0;
        if (taken && taken + (uint32_t)header.batch_bytes > STEADY_APPEND_BYTES_MAX) break;
        taken += (uint32_t)header.batch_bytes;
        *offset = end_offset;
    }
    return taken;
}

/* Rule: What C sends a follower from segments is what comes next of the term, and the follower is not in sync before
 * it has what there was. Whoever looks at who is in sync learns of both. Why:
 * docs/decisions/2026-11-23-steady-state-in-c.md. See also tpc_broker/node/replicas/lagging.py,
 * tpc_broker/raft/carrying.py. Held by tests/engine/test_steady_lag.py, tests/node/test_replica_lag.py,
 * tests/raft/test_carrying.py. */
int tpc_steady_give(tpc_plane *plane, const tpc_steady_want *want, const uint8_t *batches, uint32_t bytes) {
    tpc_steady *it;
    steady_peer *peer = waiting_peer(plane, want, &it);
    steady_link *to = peer ? steady_link_find(plane, peer->link) : NULL;
    if (!to) return -ENOENT;
    int64_t offset = peer->next_offset;
    for (uint32_t at = 0, part; at < bytes; at += part)
        if (!(part = stretch_of(it, batches + at, bytes - at, &offset))) return -EBADMSG;
    if (!bytes) return -EBADMSG;
    STEADY_PEER_HOLDS(it, peer, offset > peer->next_offset && offset <= it->partition->log_end_offset);
    steady_want_nothing(peer, to);
    connection *held = steady_link_hold(to);
    for (uint32_t at = 0, part; at < bytes && to->connection; at += part) {
        offset = peer->next_offset;
        part = stretch_of(it, batches + at, bytes - at, &offset);
        TPC_HOLDS(part > 0 && part <= bytes - at); /* as it was found before */
        if (!steady_send_read(to, it, peer, batches + at, part)) break;
        plane->steady->statistics.given_bytes += part;
        steady_sent(plane, it, peer, to, offset, part);
        if (peer->asked) break;
    }
    connection_let_go(held);
    if (!node_linked(&it->sending)) node_to_tail(&plane->steady->sending, &it->sending);
    return 0;
}
