/*
 * The transactions of one partition that hold its last stable offset back: open ones, and those whose marker is above the high
 * watermark. What an open one's producer knows of it is a pointer (producer.h), so they stay where they are in memory.
 */
#ifndef TPC_TRANSACTION_H
#define TPC_TRANSACTION_H

#include <stdint.h>

typedef struct tpc_open_transaction {
    struct tpc_open_transaction *previous, *next;             /* of all, by first_offset */
    struct tpc_open_transaction *ended_previous, *ended_next; /* of those that have ended, by marker_end */
    int64_t producer_id;
    int64_t first_offset;
    int64_t marker_end; /* behind its marker; -1: it is open */
} tpc_open_transaction;

typedef struct {
    tpc_open_transaction *first, *last;
    tpc_open_transaction *ended_first, *ended_last;
    tpc_open_transaction *spare; /* for the next one that begins; NULL: none */
} tpc_transactions;

/* Makes sure that one more can begin without failing. 0 or -ENOMEM. */
int tpc_transactions_reserve(tpc_transactions *transactions);
/* Reserve came before. */
tpc_open_transaction *tpc_transactions_begin(tpc_transactions *transactions, int64_t producer_id, int64_t first_offset);
/* An open one has a marker that ends there. It stays until readers see that. */
void tpc_transactions_end(tpc_transactions *transactions, tpc_open_transaction *transaction, int64_t marker_end);
/* The marker was taken back. */
void tpc_transactions_reopen(tpc_transactions *transactions, tpc_open_transaction *transaction);
void tpc_transactions_forget(tpc_transactions *transactions, tpc_open_transaction *transaction);
/* Forgets those whose markers are below the high watermark. */
void tpc_transactions_settle(tpc_transactions *transactions, int64_t high_watermark);
/* Forgets all of them. */
void tpc_transactions_free(tpc_transactions *transactions);

#endif
