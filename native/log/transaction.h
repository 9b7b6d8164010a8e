/*
 * The transactions of one partition that hold its last stable offset back: open ones, and those whose marker is above the high
 * watermark. What an open one's producer knows of it is a pointer (producer.h), so they stay where they are in memory.
 */
#ifndef TPC_TRANSACTION_H
#define TPC_TRANSACTION_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tpc_open_transaction {
    struct tpc_open_transaction *previous, *next;             /* of all, by first_offset */
    struct tpc_open_transaction *ended_previous, *ended_next; /* of those that have ended, by marker_end */
    int64_t producer_id;
    int64_t first_offset;
    int64_t marker_end; /* behind its marker; -1: it is open */
} tpc_open_transaction;

/*
 * Of a producer whose transaction's coordinator is being asked whether a partition is part of it, before its first batch there.
 * The batch is appended only where this still stands: a marker, or another epoch, has ended the transaction meanwhile.
 */
typedef struct {
    int64_t producer_id;
    int32_t lowest_sequence; /* of those that asked: of a producer without batches none that is higher comes first */
    uint32_t guard;
    uint32_t asking; /* requests */
    int16_t producer_epoch;
    bool begins_anew; /* from transaction.version 2 on each transaction's first sequence of a producer is 0 */
} tpc_verification;

typedef struct {
    int64_t producer_id;
    int64_t first_offset;
    int64_t marker_end;
    int64_t stable_offset; /* none whose marker comes later has begun below it */
} tpc_aborted;

typedef struct {
    tpc_open_transaction *first, *last;
    tpc_open_transaction *ended_first, *ended_last;
    tpc_open_transaction *spare; /* for the next one that begins; NULL: none */
    tpc_verification *verifications;
    uint32_t verifications_count, verifications_capacity;
    tpc_aborted *aborted; /* by marker_end: aborted.c says from where on all of them are here */
    uint32_t aborted_count, aborted_capacity;
} tpc_transactions;

/* Makes sure that one more can begin, or be aborted, without failing. 0 or -ENOMEM. */
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

/*
 * Who asks a producer's coordinator begins, or joins, a verification; *guard is the number given, or the one that it has.
 * 0; -EBUSY: TPC_VERIFICATIONS_MAX are under way; -ENOMEM; -EINVAL: one of a later epoch is.
 */
enum { TPC_VERIFICATIONS_MAX = 4096 };
int tpc_verification_begin(tpc_transactions *transactions, const tpc_verification *asked, uint32_t *guard);
/* NULL: there is none. */
const tpc_verification *tpc_verification_of(const tpc_transactions *transactions, int64_t producer_id);
/* What an epoch of its producer has begun or ended here is over with that one. One of a later epoch stands. */
void tpc_verification_end(tpc_transactions *transactions, int64_t producer_id, int16_t producer_epoch);
/* One request less asks; the last one ends it. */
void tpc_verification_leave(tpc_transactions *transactions, int64_t producer_id, uint32_t guard);

/* Of all: none stands any more. */
void tpc_verifications_forget(tpc_transactions *transactions);

/* One was aborted; reserve came before. */
void tpc_transactions_abort(tpc_transactions *transactions, const tpc_aborted *aborted);
/* The log ends at an offset: markers behind it have aborted nothing. */
void tpc_transactions_cut_aborted(tpc_transactions *transactions, int64_t end_offset);
/* Forgets those that begin at or behind an offset, at which their log is cut. None of them may be pointed to by a producer. */
void tpc_transactions_cut(tpc_transactions *transactions, int64_t end_offset);
/* Forgets all of them, verifications too. */
void tpc_transactions_free(tpc_transactions *transactions);

#endif
