/*
 * Who may read or write what: a table of what Python has decided, asked for each partition of a Produce and of each attempt of a
 * Fetch.
 *
 * Theory of operation. A grant is of a subject (who, and from where) and a topic's id, or of a subject and a transactional id. It
 * has the generation of the rules that it was decided by, and counts in that generation only, so a change of the rules makes
 * all of them void at once. What is not known is neither allowed nor refused: Python decides it, installs that, and hands the
 * request back. Refusals are kept as well: who is refused a thousand times costs Python one decision.
 *
 * The grant that a partition was asked about last stands in the partition itself, where what is looked at is in the cache
 * already: one topic, and mostly one subject, so three compares. It goes with its partition, and so never with a topic
 * that is made again. Without an authorizer there is no table, and one compare.
 */
#ifndef TPC_GRANTS_H
#define TPC_GRANTS_H

#include "plane.h"

enum tpc_grant { TPC_GRANT_UNKNOWN = 0, TPC_GRANT_ALLOWED = 1, TPC_GRANT_REFUSED = 2 };

/* Whether subjects are asked about. */
static inline bool tpc_grants_count(const tpc_plane *plane) { return __builtin_expect(plane->grants != NULL, 0); }

/* Brings what the table has of the subject and the topic into `held`; whether it has the right. */
bool tpc_grants_recall(tpc_plane *plane, tpc_granted *held, const uint8_t *topic_id, uint32_t subject, uint32_t right);

/*
 * Rule: Who writes is asked about, for each partition and for the transactional id of each request that has a transactional batch
 * and may write to some partition, before anything else is done for the request: before room is made, and before a coordinator
 * is asked. That Python has said nothing against a partition is not enough: the rules may have changed since. See also
 * native/requests/produce.c, tpc_broker/broker/grants.py. Held by tests/engine/test_grants.py,
 * tests/engine/test_grants_random.py.
 */
/* Only where subjects are asked about. `held`: of this topic. */
static inline enum tpc_grant tpc_grants_ask_topic(tpc_plane *plane, tpc_granted *held, const uint8_t *topic_id,
                                                  uint32_t subject, uint32_t right) {
    bool is_known = held->subject == subject && held->generation == plane->grants_generation && held->known & right;
    if (!is_known && !tpc_grants_recall(plane, held, topic_id, subject, right)) return TPC_GRANT_UNKNOWN;
    return held->allowed & right ? TPC_GRANT_ALLOWED : TPC_GRANT_REFUSED;
}

static inline enum tpc_grant tpc_grants_ask(tpc_plane *plane, tpc_partition *partition, uint32_t subject,
                                            uint32_t right) {
    return tpc_grants_ask_topic(plane, &partition->granted, partition->topic_id, subject, right);
}

/* Of a transactional id. */
enum tpc_grant tpc_grants_ask_transactional(tpc_plane *plane, const uint8_t *id, int32_t id_bytes, uint32_t subject);

#endif
