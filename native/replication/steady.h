/*
 * The steady state of replicated partitions: append, acknowledge, commit, without Python.
 *
 * Theory of operation. A group is driven by exactly one of two: Python's machine (tpc_broker/raft), which knows elections, conflicts,
 * configurations and everything rare; or, between tpc_steady_lead() or tpc_steady_follow() and tpc_steady_disarm(), what is here: the
 * rows of tpc_broker/raft/steady.py. Nothing here changes a term, a vote or a configuration, nothing is cut, and no number is lowered,
 * but for what a follower that answers nothing was sent: it may be lost, and is sent again.
 * What no row takes is handed to Python as the message that it is, and with it all that comes behind it for the same partition, until Python
 * arms it again. All is about the epoch of the armed term: its marker is durable in this log, so an offset identifies a prefix.
 *
 * A leader's appends leave in the turn in which they are made, beside its own journal's write: from the tail, one frame for all
 * groups of a link, large ones from where they lie. A follower appends what continues its log, and acknowledges what is durable here, for all
 * groups of a link in one frame a turn. A leader commits what a majority of the voters has durable, itself only as far as its own
 * journal is, and never beyond that (raft-rules 3.3, 3.4); joint configurations are never armed.
 *
 * What was sent and not acknowledged is bounded for each peer and each link; nothing is queued for a slow one, `next` is a place
 * in the log. A link that breaks is told to Python, which takes the groups of it back.
 */
#ifndef TPC_STEADY_H
#define TPC_STEADY_H

#include "plane.h"
#include "cdef/52_steady.h"

typedef struct tpc_steady_links tpc_steady_links;

/* Of replicated partitions, for tpc_plane_new(). */
extern const tpc_plane_replication tpc_replication;

int tpc_steady_begin(tpc_plane *plane);
void tpc_steady_end(tpc_plane *plane);

/* A leader has appended so many bytes. False: Python is to be told. */
bool tpc_steady_appended(tpc_plane *plane, tpc_partition *partition, uint32_t bytes);
/* durable_offset has moved. */
void tpc_steady_durable(tpc_plane *plane, tpc_partition *partition);
/* Its role has ended: nothing is done for it any more, until Python has taken it back. */
void tpc_steady_stop(tpc_plane *plane, tpc_partition *partition);
/* It is about to be freed. */
void tpc_steady_forget(tpc_plane *plane, tpc_partition *partition);
/* More than its leader may have uncommitted waits for a quorum. */
bool tpc_steady_is_full(const tpc_partition *partition);
/* A replica that is sent to has not been sent all that is below an offset. */
bool tpc_steady_is_lacked(const tpc_plane *plane, const tpc_partition *partition, int64_t offset);

#endif
