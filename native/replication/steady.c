/* The steady machine: what a leader and a follower do while C has them (steady.h). */
#include "steady_state.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TELL_AFTER_NS 5000000  /* a commit rides on the next append; alone it leaves after so long */
#define HELD_NS_MAX 1000000000 /* what a follower has had no room for so long is Python's */
#define ASKED_MAX 3            /* who answers nothing is asked again after twice as long each time, so often */

void steady_peer_broken(const tpc_steady *it, const steady_peer *peer, const char *condition, const char *file,
                        int line) {
    const tpc_partition *partition = it->partition;
    tpc_invariant_broken(condition, file, line,
                         "%s-%d in term %d, which ends at %lld: a replica has %lld, is sent what begins at %lld, was "
                         "sent %lld, %lld bytes of it without an answer",
                         (const char *)partition->topic_name, partition->index, it->term,
                         (long long)partition->log_end_offset, (long long)peer->match_offset,
                         (long long)peer->next_offset, (long long)peer->sent_offset, (long long)peer->unacked.bytes);
}

/* ---- marks ---- */

static void marks_add(steady_marks *marks, int64_t end_offset, int64_t bytes) {
    bool is_new = marks->count < STEADY_MARKS;
    TPC_HOLDS(bytes > 0);
    TPC_HOLDS(!marks->count || marks->marks[(marks->first + marks->count - 1) % STEADY_MARKS].end_offset < end_offset);
    uint32_t at = (marks->first + (is_new ? marks->count++ : STEADY_MARKS - 1)) % STEADY_MARKS;
    if (is_new) marks->marks[at].bytes = 0;
    marks->marks[at].end_offset = end_offset;
    marks->marks[at].bytes += bytes;
    marks->bytes += bytes;
}

/* What ends at or below the offset is over; how many bytes that were. */
static int64_t marks_drop(steady_marks *marks, int64_t offset) {
    int64_t dropped = 0;
    while (marks->count && marks->marks[marks->first].end_offset <= offset) {
        dropped += marks->marks[marks->first].bytes;
        marks->first = (marks->first + 1) % STEADY_MARKS;
        marks->count--;
    }
    marks->bytes -= dropped;
    TPC_HOLDS(marks->count ? marks->bytes > 0 : marks->bytes == 0);
    return dropped;
}

/* ---- a leader ---- */

static bool owes_answer(const tpc_steady *it, const steady_peer *peer) {
    bool has_all = peer->next_offset == it->partition->log_end_offset; /* another waits for nobody's answer */
    bool owes =
        peer->match_offset < peer->next_offset || (has_all && peer->known_offset < it->partition->commit_offset);
    return peer->link && owes;
}

static void look_at_busy(tpc_plane *plane, tpc_steady *it) {
    bool is_busy = it->partition->durable_offset < it->partition->log_end_offset;
    for (uint32_t i = 0; i < it->peers_count; i++) {
        steady_peer *peer = &it->peers[i];
        bool owes = owes_answer(it, peer);
        if (!owes)
            peer->waits_ns = 0;
        else if (!peer->waits_ns)
            peer->waits_ns = tpc_ring_now_ns(plane->ring);
        is_busy = is_busy || owes;
    }
    if (!is_busy) {
        node_remove(&it->busy);
    } else if (!node_linked(&it->busy)) {
        it->progress_ns = tpc_ring_now_ns(plane->ring);
        node_to_tail(&plane->steady->busy, &it->busy);
    }
}

/* The largest offset that a majority of the voters has durable; -1: there is none. */
static int64_t majority_offset(const tpc_steady *it) {
    int64_t have[TPC_STEADY_PEERS_MAX + 1];
    uint32_t count = 0;
    if (it->own_votes) have[count++] = it->partition->durable_offset;
    for (uint32_t i = 0; i < it->peers_count; i++)
        if (it->peers[i].votes) have[count++] = it->peers[i].match_offset;
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t at = i; at && have[at - 1] > have[at]; at--) {
            int64_t higher = have[at - 1];
            have[at - 1] = have[at];
            have[at] = higher;
        }
    return count ? have[(count - 1) / 2] : -1;
}

/* Counted anew: whether a majority of the voters has what ends there, or a follower's leader has said so. */
static bool is_agreed(const tpc_steady *it, int64_t offset) {
    if (!it->is_leader) return offset <= it->leader_commit_offset;
    uint32_t voters = it->own_votes, have = it->own_votes && it->partition->durable_offset >= offset;
    for (uint32_t i = 0; i < it->peers_count; i++) {
        voters += it->peers[i].votes;
        have += it->peers[i].votes && it->peers[i].match_offset >= offset;
    }
    return 2 * have > voters;
}

static void raise_commit(tpc_plane *plane, tpc_steady *it, int64_t offset) {
    if (offset > it->partition->durable_offset) offset = it->partition->durable_offset;
    if (offset <= it->partition->commit_offset) return;
    steady_verify(it);
    TPC_PARTITION_INVARIANT(it->partition, is_agreed(it, offset));
    plane->steady->statistics.commits++;
    tpc_partition_committed(plane, it->partition, offset);
}

static void advance(tpc_plane *plane, tpc_steady *it) {
    int64_t before = it->partition->commit_offset;
    raise_commit(plane, it, majority_offset(it));
    if (it->partition->commit_offset == before) return;
    marks_drop(&it->uncommitted, it->partition->commit_offset);
    bool has_all = it->partition->commit_offset == it->partition->log_end_offset;
    TPC_PARTITION_INVARIANT(it->partition, !has_all || !it->uncommitted.count);
    if (node_linked(&it->telling)) return;
    it->tell_ns = tpc_ring_now_ns(plane->ring) + TELL_AFTER_NS;
    node_to_tail(&plane->steady->telling, &it->telling);
}

bool tpc_steady_appended(tpc_plane *plane, tpc_partition *partition, uint32_t bytes) {
    tpc_steady *it = partition->steady;
    if (!it || it->is_stopped || !it->is_leader) return false;
    steady_verify(it);
    TPC_PARTITION_INVARIANT(partition, partition->told_offset < partition->log_end_offset);
    partition->told_offset = partition->log_end_offset;
    marks_add(&it->uncommitted, partition->log_end_offset, bytes);
    if (!node_linked(&it->sending)) node_to_tail(&plane->steady->sending, &it->sending);
    look_at_busy(plane, it);
    return true;
}

bool tpc_steady_is_full(const tpc_partition *partition) {
    const tpc_steady *it = partition->steady;
    return it && it->is_leader && it->uncommitted.bytes >= it->uncommitted_bytes_max;
}

bool tpc_steady_is_lacked(const tpc_plane *plane, const tpc_partition *partition, int64_t offset) {
    const tpc_steady *it = partition->steady;
    if (!it || !it->is_leader || it->is_stopped) return false;
    for (uint32_t i = 0; i < it->peers_count; i++) {
        const steady_peer *peer = &it->peers[i];
        bool is_in_tail = peer->want == STEADY_WANTS_NOTHING;
        if (is_in_tail && peer->next_offset < offset && steady_link_find(plane, peer->link)) return true;
    }
    return false;
}

bool steady_has_room(const steady_link *to, const steady_peer *peer) {
    if (peer->asked && peer->unacked.bytes) return false;
    return peer->unacked.bytes < STEADY_PEER_UNACKED_BYTES_MAX && to->unacked_bytes < STEADY_LINK_UNACKED_BYTES_MAX &&
           to->connection->unsent_bytes < STEADY_LINK_UNSENT_BYTES_MAX;
}

void steady_sent(tpc_plane *plane, tpc_steady *it, steady_peer *peer, steady_link *to, int64_t end_offset,
                 uint32_t bytes) {
    TPC_HOLDS(peer->link == to->id);
    STEADY_PEER_HOLDS(it, peer, (end_offset > peer->next_offset) == (bytes > 0));
    peer->told_offset = it->partition->commit_offset;
    if (end_offset > peer->next_offset) {
        peer->next_offset = end_offset;
        if (end_offset > peer->sent_offset) peer->sent_offset = end_offset;
        marks_add(&peer->unacked, end_offset, bytes);
        to->unacked_bytes += bytes;
    }
    steady_verify_peer(it, peer);
    look_at_busy(plane, it);
}

static steady_peer *peer_at(tpc_steady *it, const steady_link *from, uint64_t incarnation) {
    for (uint32_t i = 0; i < it->peers_count; i++)
        if (it->peers[i].link == from->id && it->peers[i].incarnation == incarnation) return &it->peers[i];
    return NULL;
}

/* ---- what is not steady ---- */

/* With bytes that are its own; NULL: no memory, as if it had been lost on the way. */
static steady_message *keep(tpc_plane *plane, const steady_link *from, const tpc_steady_entry *entry,
                            tpc_frame *frame) {
    TPC_HOLDS((entry->batches != NULL) == (entry->batches_bytes > 0));
    steady_message *made = calloc(1, sizeof *made);
    if (made && entry->batches_bytes) {
        made->said.batches = entry->batches;
        if (frame) {
            made->said.frame = tpc_frame_retain(frame);
        } else if ((made->said.frame = tpc_frame_new_forced(plane->budget, entry->batches_bytes))) {
            made->said.batches = memcpy(made->said.frame->data, entry->batches, entry->batches_bytes);
        } else {
            free(made);
            made = NULL;
        }
    }
    if (!made) return NULL;
    made->said.link = from->id;
    memcpy(made->said.topic_id, entry->topic_id, sizeof made->said.topic_id);
    made->said.partition = entry->partition;
    made->said.term = entry->term;
    made->said.source = entry->source;
    made->said.target = entry->target;
    made->said.offset = entry->offset;
    made->said.commit_offset = entry->commit_offset;
    made->said.kind = entry->kind;
    made->said.batches_bytes = entry->batches_bytes;
    return made;
}

static void push_message(tpc_plane *plane, steady_message *made) {
    tpc_steady_links *all = plane->steady;
    TPC_HOLDS(!made->next);
    TPC_HOLDS((all->messages_first == NULL) == (all->messages_last == NULL));
    all->statistics.unsteady++;
    if (!all->messages_first) tpc_ring_push_event(plane->ring, TPC_EVENT_STEADY, 0, 0, 0, NULL);
    *(all->messages_last ? &all->messages_last->next : &all->messages_first) = made;
    all->messages_last = made;
}

static void to_python(tpc_plane *plane, steady_link *from, const tpc_steady_entry *entry, tpc_frame *frame) {
    steady_message *made = keep(plane, from, entry, frame);
    if (made) push_message(plane, made);
}

/* ---- held ---- */

/* Appends ask for room when there is little; a partition that had none before it was carried, or not enough, has none to do so. */
static void ask_for_room(tpc_plane *plane, tpc_steady *it) {
    const tpc_partition *partition = it->partition;
    int64_t bytes = 0;
    for (const steady_message *held = it->held_first; held; held = held->next) bytes += held->said.batches_bytes;
    if (partition->bytes_admitted >= bytes || partition->bytes_admitted == it->held_bytes_admitted) return;
    if (tpc_ring_push_event(plane->ring, TPC_EVENT_ROOM_LOW, partition->handle, partition->bytes_admitted, bytes,
                            NULL) == 0)
        it->held_bytes_admitted = partition->bytes_admitted;
}

static void hold(tpc_plane *plane, tpc_steady *it, steady_link *from, const tpc_steady_entry *entry, tpc_frame *frame) {
    steady_message *made = keep(plane, from, entry, frame);
    if (!made) return;
    TPC_HOLDS(!it->is_leader && !it->is_stopped);
    TPC_HOLDS((it->held_first == NULL) == (it->held_last == NULL));
    TPC_HOLDS((it->held_first == NULL) == !node_linked(&it->holding));
    if (!it->held_first) {
        it->held_ns = tpc_ring_now_ns(plane->ring);
        it->held_bytes_admitted = -1;
        node_to_tail(&plane->steady->holding, &it->holding);
    }
    *(it->held_last ? &it->held_last->next : &it->held_first) = made;
    it->held_last = made;
    ask_for_room(plane, it);
    plane->steady->statistics.held++;
}

static steady_message *take_first_held(tpc_steady *it) {
    steady_message *first = it->held_first;
    if (!first) return NULL;
    TPC_HOLDS(node_linked(&it->holding) && it->held_last);
    it->held_first = first->next;
    if (!first->next) {
        it->held_last = NULL;
        node_remove(&it->holding);
    }
    first->next = NULL;
    return first;
}

/* What is held, and whatever comes behind it, is Python's. */
static void stop(tpc_plane *plane, tpc_steady *it) {
    it->is_stopped = true;
    for (steady_message *held; (held = take_first_held(it));) push_message(plane, held);
    TPC_HOLDS(!it->held_last && !node_linked(&it->holding));
}

/* ---- what peers say ---- */

/* raft-rules 3.4: only with the marker of the term durable here is the log a prefix of the leader's. */
static void follow_commit(tpc_plane *plane, tpc_steady *it) {
    TPC_HOLDS(!it->is_leader);
    TPC_PARTITION_INVARIANT(it->partition, it->start_offset <= it->partition->durable_offset);
    raise_commit(plane, it, it->leader_commit_offset);
}

static void owe_ack(tpc_plane *plane, tpc_steady *it) {
    steady_link *to = steady_link_find(plane, it->leader_link);
    TPC_HOLDS(!it->is_leader && !it->is_stopped);
    if (to && !node_linked(&it->acks)) node_to_tail(&to->acks, &it->acks);
}

static bool follows(const tpc_steady *it, const steady_link *from, const tpc_steady_entry *entry) {
    return it && !it->is_stopped && !it->is_leader && it->term == entry->term && it->leader_node == from->node &&
           it->leader_incarnation == entry->source && it->own_incarnation == entry->target;
}

/* Rows RECEIVE of the table. 0, or nothing has changed: -EAGAIN: there is no room now. */
static int take_steady_append(tpc_plane *plane, tpc_steady *it, const tpc_steady_entry *entry, tpc_frame *frame) {
    tpc_partition *partition = it->partition;
    steady_verify(it);
    if (!entry->batches_bytes)
        return it->start_offset <= entry->offset && entry->offset <= partition->log_end_offset ? 0 : -EINVAL;
    if (entry->offset != partition->log_end_offset) return -EINVAL;
    int result = tpc_replica_append_steady(plane, partition, frame, (uint8_t *)entry->batches, entry->batches_bytes);
    TPC_PARTITION_INVARIANT(partition, result < 0 || partition->log_end_offset > entry->offset);
    TPC_PARTITION_INVARIANT(partition, partition->durable_offset <= entry->offset); /* so no ack can tell of it yet */
    return result == -ENOSPC ? -EAGAIN : result;
}

static void took_append(tpc_plane *plane, tpc_steady *it, uint64_t link, const tpc_steady_entry *entry) {
    plane->steady->statistics.appends_taken += entry->batches_bytes != 0;
    plane->steady->statistics.append_bytes_taken += entry->batches_bytes;
    TPC_HOLDS(!it->is_leader && !it->is_stopped);
    if (it->leader_link != link) node_remove(&it->acks);
    it->leader_link = link;
    if (entry->commit_offset > it->leader_commit_offset) it->leader_commit_offset = entry->commit_offset;
    follow_commit(plane, it);
    if (!entry->batches_bytes) owe_ack(plane, it);
}

void steady_take_append(tpc_plane *plane, steady_link *from, const tpc_steady_entry *entry, tpc_frame *frame) {
    tpc_partition *partition = tpc_partition_identified(plane, entry->topic_id, entry->partition);
    tpc_steady *it = partition ? partition->steady : NULL;
    int result = -EPERM;
    if (follows(it, from, entry)) result = it->held_first ? -EAGAIN : take_steady_append(plane, it, entry, frame);
    if (result == -EAGAIN) {
        hold(plane, it, from, entry, frame);
    } else if (result < 0) {
        if (it && !it->is_leader) stop(plane, it); /* what comes behind it is Python's, too */
        to_python(plane, from, entry, frame);
    } else {
        took_append(plane, it, from->id, entry);
    }
}

static int take_held(tpc_plane *plane, tpc_steady *it) {
    const tpc_steady_message *said = &it->held_first->said;
    tpc_steady_entry entry = {.topic_id = said->topic_id,
                              .partition = said->partition,
                              .term = said->term,
                              .source = said->source,
                              .target = said->target,
                              .offset = said->offset,
                              .commit_offset = said->commit_offset,
                              .batches = said->batches,
                              .batches_bytes = said->batches_bytes,
                              .kind = said->kind};
    if (!tpc_replica_has_room(plane, it->partition, entry.batches_bytes)) return -EAGAIN;
    int result = take_steady_append(plane, it, &entry, said->frame);
    if (result < 0) return result;
    steady_message *first = take_first_held(it);
    TPC_HOLDS(first && &first->said == said);
    took_append(plane, it, said->link, &entry);
    tpc_frame_release(first->said.frame);
    free(first);
    return 0;
}

int64_t steady_take_held(tpc_plane *plane, int64_t now_ns) {
    int64_t until_ns = INT64_MAX;
    for (node *at = plane->steady->holding.next, *next; at != &plane->steady->holding; at = next) {
        tpc_steady *it = NODE_OWNER(at, tpc_steady, holding);
        TPC_HOLDS(it->held_first && !it->is_stopped);
        next = at->next;
        int result = 0;
        while (it->held_first && (result = take_held(plane, it)) == 0) {
            it->held_ns = now_ns;
            it->held_bytes_admitted = -1;
            tpc_plane_publish_advanced(plane);
        }
        if (!it->held_first) continue;
        ask_for_room(plane, it);
        if (result != -EAGAIN || now_ns >= it->held_ns + HELD_NS_MAX)
            stop(plane, it);
        else if (it->held_ns + HELD_NS_MAX < until_ns)
            until_ns = it->held_ns + HELD_NS_MAX;
    }
    return until_ns;
}

/* What it is sent next begins behind what it has said that it has. */
static void send_behind_match(steady_peer *peer, steady_link *to) {
    peer->next_offset = peer->match_offset;
    steady_want_nothing(peer, to);
}

/* Row ACK of the table. */
static void acknowledged(tpc_plane *plane, tpc_steady *it, steady_peer *peer, steady_link *from, int64_t offset,
                         int64_t commit_offset) {
    TPC_HOLDS(peer->link == from->id);
    plane->steady->statistics.acks_taken++;
    it->progress_ns = tpc_ring_now_ns(plane->ring);
    if (commit_offset > peer->known_offset || offset > peer->match_offset) {
        peer->waits_ns = 0; /* look_at_busy() */
        peer->asked = 0;
    }
    if (commit_offset > peer->known_offset) peer->known_offset = commit_offset;
    from->unacked_bytes -= marks_drop(&peer->unacked, offset);
    TPC_HOLDS(from->unacked_bytes >= peer->unacked.bytes);
    if (offset > peer->match_offset) {
        peer->match_offset = offset;
        if (offset > peer->next_offset) send_behind_match(peer, from);
        advance(plane, it);
    }
    steady_verify_peer(it, peer);
    if (peer->next_offset < it->partition->log_end_offset && !node_linked(&it->sending))
        node_to_tail(&plane->steady->sending, &it->sending);
    look_at_busy(plane, it);
}

void steady_take_ack(tpc_plane *plane, steady_link *from, const tpc_steady_entry *entry) {
    tpc_partition *partition = tpc_partition_identified(plane, entry->topic_id, entry->partition);
    tpc_steady *it = partition ? partition->steady : NULL;
    bool leads = it && !it->is_stopped && it->is_leader;
    if (leads && entry->term < it->term) return;
    bool is_ours = leads && entry->term == it->term && entry->target == it->own_incarnation;
    steady_peer *peer = is_ours ? peer_at(it, from, entry->source) : NULL;
    if (!peer || entry->offset > peer->sent_offset) {
        to_python(plane, from, entry, NULL);
        return;
    }
    acknowledged(plane, it, peer, from, entry->offset, entry->commit_offset);
}

int tpc_steady_ack(tpc_plane *plane, uint64_t handle, uint64_t link, uint64_t source, int32_t term,
                   int64_t durable_offset, int64_t commit_offset) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    tpc_steady *it = partition ? partition->steady : NULL;
    steady_link *from = steady_link_find(plane, link);
    bool leads = it && !it->is_stopped && it->is_leader && it->term == term;
    steady_peer *peer = leads && from ? peer_at(it, from, source) : NULL;
    if (!peer || durable_offset > peer->sent_offset) return -ENOENT;
    acknowledged(plane, it, peer, from, durable_offset, commit_offset);
    tpc_plane_publish_advanced(plane);
    return 0;
}

void tpc_steady_durable(tpc_plane *plane, tpc_partition *partition) {
    tpc_steady *it = partition->steady;
    if (!it || it->is_stopped) return;
    if (it->is_leader) {
        it->progress_ns = tpc_ring_now_ns(plane->ring);
        advance(plane, it);
        look_at_busy(plane, it);
        return;
    }
    follow_commit(plane, it);
    owe_ack(plane, it);
}

/* ---- armed and disarmed ---- */

static bool waits_for_python(const tpc_plane *plane, const tpc_partition *partition) {
    for (const steady_message *at = plane->steady->messages_first; at; at = at->next)
        if (at->said.partition == partition->index &&
            memcmp(at->said.topic_id, partition->topic_id, sizeof at->said.topic_id) == 0)
            return true;
    return partition->is_appended;
}

/* Rule: A group is driven by the machine or by C, never by both. C is given what is quiet, for one term. Anything
 * that is not steady takes it back first. Why: docs/decisions/2026-11-23-steady-state-in-c.md. See also
 * tpc_broker/raft/carrying.py, tpc_broker/node/replicas/steady_carrier.py. Held by tests/engine/test_steady.py (C
 * beside the machine, from seeds), tests/engine/test_steady_rules.py, tests/node/test_replica_driver.py,
 * tests/raft/test_carrying.py. */
/* A new one; NULL with *error. */
static tpc_steady *arm(tpc_plane *plane, uint64_t handle, int32_t role, int32_t term, int64_t start_offset,
                       int *error) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    *error = !partition                                                     ? -ENOENT
             : !partition->is_replicated || partition->role != role         ? -EPERM
             : term != partition->leader_epoch                              ? -ESTALE
             : partition->steady || waits_for_python(plane, partition)      ? -EBUSY
             : start_offset < 0 || start_offset > partition->durable_offset ? -EINVAL
                                                                            : 0;
    if (*error) return NULL;
    tpc_partition_verify(partition);
    tpc_steady *it = calloc(1, sizeof *it);
    if (!it) {
        *error = -ENOMEM;
        return NULL;
    }
    *it = (tpc_steady){.partition = partition, .term = term, .start_offset = start_offset, .acked_offset = -1};
    it->is_leader = role == TPC_ROLE_LEADER;
    node_init(&it->sending), node_init(&it->telling), node_init(&it->busy), node_init(&it->acks);
    node_init(&it->wanting), node_init(&it->holding);
    it->progress_ns = tpc_ring_now_ns(plane->ring);
    return it;
}

static bool are_peers(const tpc_plane *plane, const tpc_partition *partition, const tpc_steady_peer_state *peers,
                      uint32_t count) {
    if (count > TPC_STEADY_PEERS_MAX) return false;
    for (uint32_t i = 0; i < count; i++) {
        if (peers[i].match_offset < -1 || peers[i].match_offset > partition->log_end_offset) return false;
        if (peers[i].link && (peers[i].match_offset < 0 || !steady_link_find(plane, peers[i].link))) return false;
    }
    return true;
}

int tpc_steady_lead(tpc_plane *plane, uint64_t handle, uint64_t own_incarnation, int32_t term, int64_t start_offset,
                    int own_votes, int64_t uncommitted_bytes_max, const tpc_steady_peer_state *peers, uint32_t count) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (partition && !are_peers(plane, partition, peers, count)) return -EINVAL;
    int error;
    tpc_steady *it = arm(plane, handle, TPC_ROLE_LEADER, term, start_offset, &error);
    if (!it) return error;
    TPC_PARTITION_INVARIANT(partition, partition->told_offset == partition->log_end_offset);
    it->own_incarnation = own_incarnation;
    it->own_votes = own_votes != 0;
    it->uncommitted_bytes_max = uncommitted_bytes_max;
    it->peers_count = count;
    for (uint32_t i = 0; i < count; i++)
        it->peers[i] = (steady_peer){.link = peers[i].link,
                                     .incarnation = peers[i].incarnation,
                                     .votes = peers[i].votes != 0,
                                     .match_offset = peers[i].match_offset,
                                     .next_offset = peers[i].match_offset,
                                     .sent_offset = peers[i].match_offset,
                                     .told_offset = peers[i].known_offset,
                                     .known_offset = peers[i].known_offset};
    for (uint32_t i = 0; i < count; i++) steady_verify_peer(it, &it->peers[i]);
    partition->steady = it;
    plane->steady->statistics.leaders++;
    node_to_tail(&plane->steady->sending, &it->sending);
    look_at_busy(plane, it);
    if (node_linked(&it->busy)) {
        it->tell_ns = it->progress_ns;
        node_to_tail(&plane->steady->telling, &it->telling);
    }
    advance(plane, it);
    tpc_plane_publish_advanced(plane);
    return 0;
}

int tpc_steady_follow(tpc_plane *plane, uint64_t handle, uint64_t own_incarnation, int32_t term, int64_t start_offset,
                      int32_t leader_node, uint64_t leader_incarnation, uint64_t leader_link,
                      int64_t leader_commit_offset) {
    int error;
    tpc_steady *it = arm(plane, handle, TPC_ROLE_FOLLOWER, term, start_offset, &error);
    if (!it) return error;
    it->own_incarnation = own_incarnation;
    it->leader_node = leader_node;
    it->leader_incarnation = leader_incarnation;
    it->leader_link = leader_link;
    it->leader_commit_offset = leader_commit_offset;
    it->partition->steady = it;
    plane->steady->statistics.followers++;
    follow_commit(plane, it);
    owe_ack(plane, it); /* of what has become durable since Python has looked */
    tpc_plane_publish_advanced(plane);
    return 0;
}

static void leave_lists(tpc_steady *it) {
    node_remove(&it->sending), node_remove(&it->telling), node_remove(&it->busy), node_remove(&it->acks);
    node_remove(&it->wanting);
}

void tpc_steady_stop(tpc_plane *plane, tpc_partition *partition) {
    if (!partition->steady) return;
    stop(plane, partition->steady);
    leave_lists(partition->steady);
}

void tpc_steady_forget(tpc_plane *plane, tpc_partition *partition) {
    tpc_steady *it = partition->steady;
    if (!it) return;
    stop(plane, it);
    leave_lists(it);
    for (uint32_t i = 0; i < it->peers_count; i++) {
        steady_link *to = steady_link_find(plane, it->peers[i].link);
        if (to) to->unacked_bytes -= it->peers[i].unacked.bytes;
        TPC_HOLDS(!to || to->unacked_bytes >= 0);
        steady_want_nothing(&it->peers[i], to);
    }
    uint64_t *armed = it->is_leader ? &plane->steady->statistics.leaders : &plane->steady->statistics.followers;
    TPC_HOLDS(*armed > 0);
    --*armed;
    partition->steady = NULL;
    free(it);
}

int tpc_steady_get_state(const tpc_plane *plane, uint64_t handle, tpc_steady_state *state) {
    const tpc_partition *partition = tpc_partition_of(plane, handle);
    const tpc_steady *it = partition ? partition->steady : NULL;
    if (!it) return -ENOENT;
    const tpc_tail_batch *newest = partition->appends_undurable ? tpc_tail_newest(partition) : NULL;
    *state = (tpc_steady_state){.log_end_offset = partition->log_end_offset,
                                .durable_offset = partition->durable_offset,
                                .commit_offset = partition->commit_offset,
                                .uncommitted_bytes = it->uncommitted.bytes,
                                .sequence = newest ? newest->sequence : 0,
                                .term = it->term,
                                .role = it->is_leader ? TPC_ROLE_LEADER : TPC_ROLE_FOLLOWER,
                                .peers_count = it->peers_count,
                                .leader_commit_offset = it->leader_commit_offset,
                                .is_stopped = it->is_stopped};
    for (uint32_t i = 0; i < it->peers_count; i++)
        state->peers[i] = (tpc_steady_peer_state){.link = it->peers[i].link,
                                                  .incarnation = it->peers[i].incarnation,
                                                  .match_offset = it->peers[i].match_offset,
                                                  .next_offset = it->peers[i].next_offset,
                                                  .known_offset = it->peers[i].known_offset,
                                                  .votes = it->peers[i].votes};
    return 0;
}

int tpc_steady_disarm(tpc_plane *plane, uint64_t handle, tpc_steady_state *state) {
    int result = tpc_steady_get_state(plane, handle, state);
    if (result == 0) tpc_steady_forget(plane, tpc_partition_of(plane, handle));
    return result;
}

uint32_t tpc_steady_stalled(tpc_plane *plane, int64_t since_ns, uint64_t *handles, uint32_t handles_max) {
    uint32_t count = 0;
    for (node *at = plane->steady->busy.next; at != &plane->steady->busy && count < handles_max; at = at->next) {
        const tpc_steady *it = NODE_OWNER(at, tpc_steady, busy);
        TPC_HOLDS(it->is_leader && !it->is_stopped);
        if (it->progress_ns < since_ns) handles[count++] = it->partition->handle;
    }
    return count;
}

/* Row SILENT of the table. Whether it is sent records again. */
static bool ask_again(tpc_plane *plane, tpc_steady *it, steady_peer *peer, steady_link *to, int64_t now_ns) {
    bool lacks = peer->match_offset < peer->next_offset;
    TPC_HOLDS(it->is_leader && !it->is_stopped);
    TPC_HOLDS(peer->link == to->id);
    plane->steady->statistics.asked_again++;
    peer->told_offset = peer->known_offset;
    peer->waits_ns = 0; /* from the next message on */
    if (peer->asked < ASKED_MAX) peer->asked++;
    to->unacked_bytes -= marks_drop(&peer->unacked, INT64_MAX);
    TPC_HOLDS(to->unacked_bytes >= 0);
    if (lacks) send_behind_match(peer, to);
    steady_verify_peer(it, peer);
    if (!node_linked(&it->sending)) node_to_tail(&plane->steady->sending, &it->sending);
    if (!node_linked(&it->telling)) {
        it->tell_ns = now_ns;
        node_to_tail(&plane->steady->telling, &it->telling);
    }
    return lacks;
}

/* Rule: A follower that answers nothing is sent again what it lacks, however the rest of its group goes on. It is
 * not in sync before it has what there was then. Why: docs/decisions/2026-11-23-steady-state-in-c.md. See also
 * tpc_broker/node/replicas/steady_carrier.py, tpc_broker/node/replicas/lagging.py. Held by
 * tests/engine/test_steady.py, tests/engine/test_steady_lag.py (C beside the machine),
 * tests/node/test_replica_lag.py. */
uint32_t tpc_steady_ask_again(tpc_plane *plane, int64_t now_ns, int64_t after_ns, tpc_steady_want *asked,
                              uint32_t asked_max) {
    uint32_t count = 0;
    for (node *at = plane->steady->busy.next, *next; at != &plane->steady->busy; at = next) {
        tpc_steady *it = NODE_OWNER(at, tpc_steady, busy);
        next = at->next;
        for (uint32_t i = 0; i < it->peers_count && count < asked_max; i++) {
            steady_peer *peer = &it->peers[i];
            steady_link *to = steady_link_find(plane, peer->link);
            if (!to || !peer->waits_ns || now_ns - peer->waits_ns < after_ns << peer->asked) continue;
            if (ask_again(plane, it, peer, to, now_ns))
                asked[count++] = (tpc_steady_want){.handle = it->partition->handle,
                                                   .link = peer->link,
                                                   .incarnation = peer->incarnation,
                                                   .offset = peer->next_offset,
                                                   .term = it->term,
                                                   .peer = i};
        }
        look_at_busy(plane, it);
    }
    return count;
}
