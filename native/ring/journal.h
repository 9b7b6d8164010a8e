/* The journal as other C modules of the core see it: the Python face plus a listener called inside the wait. */
#ifndef TPC_JOURNAL_H
#define TPC_JOURNAL_H

#include "ring.h"
#include "cdef/40_journal.h"

/* Told synchronously, before the events for Python are pushed. */
typedef struct {
    void *context;
    void (*durable)(void *context, uint64_t sequence);                    /* contiguous: everything up to it */
    void (*failed)(void *context, uint64_t first_failed_sequence, int error); /* everything from it on is void */
} tpc_journal_listener;

void tpc_journal_listen(tpc_journal *journal, tpc_journal_listener listener);

/* 0, or -EIO between a failure and the reopen. */
int tpc_journal_health(const tpc_journal *journal);

uint64_t tpc_journal_durable_sequence(const tpc_journal *journal);

#endif
