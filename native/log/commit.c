/*
 * Durable, committed, visible, acknowledged: four things, each behind the one before.
 *
 *     durable_offset   this core's journal has everything below it, in a row with what was durable before
 *     commit_offset    so have enough of the voters: with one voter the same moment, here and in the same call; of a
 *                      replicated partition Python says so (tpc_partition_commit), never beyond what is durable here
 *     high_watermark   readers see everything below it: it follows commit_offset at once
 *     answers          wait for an offset of one partition: acks=1 until it is durable, acks=all until it is committed
 *
 * A wait stands in the list of its partition and level, in the order of the offsets, which is mostly the order in which
 * they came; so what has become durable or committed takes waits from the front. What ends them otherwise takes them
 * from the back: appends that are undone (the journal failed) or cut, or a role that ends. Whoever waits is told at once,
 * inside the call that did it: so a wait that is in a list is for records that this log has.
 */
#include <errno.h>
#include <stdlib.h>

#include "plane.h"

/* ---- waits ---- */

int64_t tpc_partition_reached(const tpc_partition *partition, enum tpc_wait_level level) {
    return level == TPC_WAIT_DURABLE ? partition->durable_offset : partition->commit_offset;
}

/* Rule: Whoever waits for records is answered once: when they are durable or committed, when they are lost, or when
 * the role ends. A wait in a list is for records that the log has. Why: docs/decisions/2026-11-23-four-offsets.md.
 * See also native/requests/pending.c, tpc_broker/engine/data_plane.py. Held by tests/engine/test_commit_waits.py,
 * tests/engine/test_plane_produce.py, tests/engine/test_plane_roles.py. */
void tpc_commit_wait_begin(tpc_partition *partition, tpc_commit_wait *wait, enum tpc_wait_level level,
                           int64_t end_offset,
                           void (*over)(tpc_plane *plane, tpc_commit_wait *wait, int16_t error_code)) {
    TPC_PARTITION_INVARIANT(partition, end_offset > tpc_partition_reached(partition, level));
    TPC_PARTITION_INVARIANT(partition, end_offset <= partition->log_end_offset);
    TPC_PARTITION_INVARIANT(partition, !wait->partition); /* it stands in no other list */
    tpc_commit_waits *waits = &partition->waits[level];
    TPC_PARTITION_INVARIANT(partition, !waits->first == !waits->last);
    tpc_commit_wait *before = waits->last;
    while (before && before->end_offset > end_offset) before = before->previous; /* a duplicate's is an earlier one */
    tpc_commit_wait *after = before ? before->next : waits->first;
    *wait = (tpc_commit_wait){.previous = before,
                              .next = after,
                              .partition = partition,
                              .end_offset = end_offset,
                              .level = level,
                              .over = over};
    *(before ? &before->next : &waits->first) = wait;
    *(after ? &after->previous : &waits->last) = wait;
}

void tpc_commit_wait_end(tpc_commit_wait *wait) {
    if (!wait->partition) return;
    tpc_commit_waits *waits = &wait->partition->waits[wait->level];
    TPC_PARTITION_INVARIANT(wait->partition, (wait->previous ? wait->previous->next : waits->first) == wait);
    TPC_PARTITION_INVARIANT(wait->partition, (wait->next ? wait->next->previous : waits->last) == wait);
    *(wait->previous ? &wait->previous->next : &waits->first) = wait->next;
    *(wait->next ? &wait->next->previous : &waits->last) = wait->previous;
    wait->partition = NULL;
}

static void tell(tpc_plane *plane, tpc_commit_wait *wait, int16_t error_code) {
    tpc_commit_wait_end(wait);
    wait->over(plane, wait, error_code);
}

static void tell_reached(tpc_plane *plane, tpc_partition *partition, enum tpc_wait_level level) {
    tpc_commit_waits *waits = &partition->waits[level];
    int64_t reached = tpc_partition_reached(partition, level);
    while (waits->first && waits->first->end_offset <= reached) tell(plane, waits->first, TPC_ERROR_NONE);
}

void tpc_commit_waits_fail(tpc_plane *plane, tpc_partition *partition, int64_t offset, int16_t error_code) {
    for (int level = 0; level < TPC_WAIT_LEVELS; level++) {
        tpc_commit_waits *waits = &partition->waits[level];
        while (waits->last && waits->last->end_offset > offset) tell(plane, waits->last, error_code);
    }
}

/* ---- advancing ---- */

/* Python, when it has asked for it. */
static void tell_advanced(tpc_plane *plane, tpc_partition *partition) {
    if (!partition->watched) return;
    partition->watched = false;
    tpc_ring_push_event(plane->ring, TPC_EVENT_PARTITION_ADVANCED, partition->handle, partition->high_watermark,
                        tpc_partition_last_stable_offset(partition), NULL);
}

void tpc_partition_committed(tpc_plane *plane, tpc_partition *partition, int64_t commit_offset) {
    TPC_PARTITION_INVARIANT(partition, commit_offset >= partition->commit_offset);
    partition->commit_offset = partition->high_watermark = commit_offset;
    if (partition->producers.transactions.ended_first && !partition->producers_stale)
        tpc_transactions_settle(&partition->producers.transactions, commit_offset);
    tpc_partition_verify(partition);
    tpc_plane_publish_partition_committed(plane, partition);
    tell_reached(plane, partition, TPC_WAIT_COMMITTED);
    tell_advanced(plane, partition);
}

void tpc_partition_durable(tpc_plane *plane, tpc_partition *partition, int64_t durable_offset, int64_t bytes) {
    TPC_PARTITION_INVARIANT(partition, durable_offset > partition->durable_offset && bytes > 0);
    TPC_PARTITION_INVARIANT(partition, durable_offset <= partition->log_end_offset);
    partition->durable_offset = durable_offset;
    tpc_plane_publish_partition_durable(plane, partition, bytes);
    tell_reached(plane, partition, TPC_WAIT_DURABLE);
    if (!partition->is_replicated)
        tpc_partition_committed(plane, partition, durable_offset);
    else
        plane->replication->durable(plane, partition);
}

int tpc_partition_set_replicated(tpc_plane *plane, uint64_t handle, int on) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    partition->is_replicated = on != 0;
    partition->told_offset = partition->log_end_offset;
    if (on) return 0;
    plane->replication->forget_appended(plane, partition);
    tpc_partition_committed(plane, partition, partition->durable_offset);
    tpc_plane_publish_advanced(plane);
    return 0;
}

/* Rule: A replicated partition is committed only as far as Python says, and never beyond what is durable here. A
 * follower appends only what follows. What is committed is never cut. No reader sees more, also not in segments.
 * Why: docs/decisions/2026-11-23-replicated-partitions.md. See also native/replication/replica.c,
 * native/log/segment_window.c. Held by tests/engine/test_replicated_partitions.py,
 * tests/engine/test_plane_fetch_segments.py, tests/node/test_three_replicas.py. */
int tpc_partition_commit(tpc_plane *plane, uint64_t handle, int32_t term, int64_t end_offset) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (!partition->is_replicated || partition->role == TPC_ROLE_NONE) return -EPERM;
    if (term != partition->leader_epoch) return -ESTALE;
    if (end_offset > partition->durable_offset) return -EINVAL;
    if (end_offset <= partition->commit_offset) return 0;
    tpc_partition_committed(plane, partition, end_offset);
    tpc_plane_publish_advanced(plane);
    return 1;
}

/* ---- waits of Python ---- */

typedef struct tpc_python_wait {
    tpc_commit_wait wait;
    struct tpc_python_wait *previous, *next; /* of all of the plane */
    uint64_t token;
} tpc_python_wait;

static void python_wait_over(tpc_plane *plane, tpc_commit_wait *wait, int16_t error_code) {
    tpc_python_wait *of = (tpc_python_wait *)wait;
    TPC_HOLDS((of->previous ? of->previous->next : plane->python_waits) == of);
    *(of->previous ? &of->previous->next : &plane->python_waits) = of->next;
    if (of->next) of->next->previous = of->previous;
    tpc_ring_release_event(plane->ring);
    int result = tpc_ring_push_event(plane->ring, TPC_EVENT_WAIT_OVER, of->token, error_code, 0, NULL);
    TPC_INVARIANT(result == 0, "no room to tell the end of wait %llu", (unsigned long long)of->token);
    free(of);
}

int tpc_partition_wait(tpc_plane *plane, uint64_t handle, int32_t level, int64_t end_offset, int32_t leader_epoch,
                       uint64_t token) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (level < 0 || level >= TPC_WAIT_LEVELS) return -EINVAL;
    if (leader_epoch != partition->leader_epoch || end_offset > partition->log_end_offset) return -ESTALE;
    if (end_offset <= tpc_partition_reached(partition, (enum tpc_wait_level)level)) return 1;
    tpc_python_wait *wait = malloc(sizeof *wait);
    if (!wait || tpc_ring_promise_event(plane->ring) < 0) {
        free(wait);
        return -ENOMEM;
    }
    *wait = (tpc_python_wait){.next = plane->python_waits, .token = token};
    if (wait->next) wait->next->previous = wait;
    plane->python_waits = wait;
    tpc_commit_wait_begin(partition, &wait->wait, (enum tpc_wait_level)level, end_offset, python_wait_over);
    return 0;
}

void tpc_python_waits_forget(tpc_plane *plane) {
    for (tpc_python_wait *wait = plane->python_waits, *next; wait; wait = next) {
        next = wait->next;
        tpc_commit_wait_end(&wait->wait);
        tpc_ring_release_event(plane->ring);
        free(wait);
    }
    plane->python_waits = NULL;
}
