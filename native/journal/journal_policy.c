/* What may become of a commit, and what the journal does next. No I/O, no state: see cdef/41_journal_policy.h. */
#include "journal_state.h"

/* What is not named here cannot happen. */
static const struct {
    int8_t state, event, next;
} transitions[] = {
    {TPC_COMMIT_OPEN, TPC_COMMIT_CLOSE, TPC_COMMIT_CLOSED},
    {TPC_COMMIT_OPEN, TPC_COMMIT_ASK_IN_PLACE, TPC_COMMIT_IN_PLACE},
    {TPC_COMMIT_OPEN, TPC_COMMIT_SUBMIT, TPC_COMMIT_SUBMITTED},
    {TPC_COMMIT_CLOSED, TPC_COMMIT_ASK_IN_PLACE, TPC_COMMIT_IN_PLACE},
    {TPC_COMMIT_CLOSED, TPC_COMMIT_SUBMIT, TPC_COMMIT_SUBMITTED},
    {TPC_COMMIT_IN_PLACE, TPC_COMMIT_IN_PLACE_ENDED, TPC_COMMIT_PROVEN},
    {TPC_COMMIT_IN_PLACE, TPC_COMMIT_FAIL, TPC_COMMIT_FAILED},
    {TPC_COMMIT_PROVEN, TPC_COMMIT_SUBMIT, TPC_COMMIT_SUBMITTED},
    {TPC_COMMIT_SUBMITTED, TPC_COMMIT_WRITE_ENDED, TPC_COMMIT_WRITTEN},
    {TPC_COMMIT_SUBMITTED, TPC_COMMIT_FAIL, TPC_COMMIT_FAILED},
};

int tpc_commit_next_state(int state, int event) {
    for (unsigned i = 0; i < sizeof transitions / sizeof transitions[0]; i++)
        if (transitions[i].state == state && transitions[i].event == event) return transitions[i].next;
    return -1;
}

int tpc_journal_next_action(const tpc_journal_view *view) {
    bool is_asking = view->is_waiting && view->state == TPC_COMMIT_IN_PLACE && !view->in_place_asked;
    if (view->has_failed) {
        if (is_asking) return TPC_JOURNAL_ABANDON_IN_PLACE;
        bool is_settled = !view->commits_in_flight && !view->in_place_in_flight;
        return is_settled && !view->failure_told ? TPC_JOURNAL_DROP_FAILED : TPC_JOURNAL_NOTHING;
    }
    if (!view->is_waiting) return TPC_JOURNAL_NOTHING;
    if (is_asking || (view->has_in_place && view->state <= TPC_COMMIT_CLOSED)) return TPC_JOURNAL_WRITE_IN_PLACE;
    if (view->state == TPC_COMMIT_IN_PLACE && !view->in_place_early) return TPC_JOURNAL_NOTHING;
    if (view->is_paced) return TPC_JOURNAL_NOTHING;
    return view->commits_in_flight < view->commits_in_flight_max ? TPC_JOURNAL_WRITE_COMMIT : TPC_JOURNAL_NOTHING;
}

/* Rule: A journal that fills up is slowed down by pauses of 40 ms at most. It does not stop as long as a checkpoint
 * takes seconds. Why: docs/decisions/2026-11-26-first-writes.md. See also native/journal/journal_writer.c. Held by
 * tests/engine/test_journal_policy.py, tests/engine/test_journal.py. */
int64_t tpc_journal_pace_ns(uint64_t blocks, uint64_t blocks_left, int64_t wanted_ns) {
    if (wanted_ns <= 0) return 0;
    double share = blocks_left ? (double)blocks / (double)blocks_left : 1.0;
    double pace_ns = share * (double)(wanted_ns / 2);
    return pace_ns < (double)TPC_JOURNAL_PACE_NS_MAX ? (int64_t)pace_ns : TPC_JOURNAL_PACE_NS_MAX;
}
