/*
 * What one partition knows of idempotent producers: open addressing by producer id (keyed_hash.h). The table has hashes and
 * numbers alone, so its doubling is short however many there are; the states stay where they are, in chunks of 4, 4, 8, 16, ...
 */
#ifndef TPC_PRODUCER_H
#define TPC_PRODUCER_H

#include <stdbool.h>
#include <stdint.h>

#include "bytes.h"
#include "frame.h"
#include "ring.h"
#include "connection.h"
#include "journal.h"
#include "cdef/50_partition.h"
#include "cdef/51_replica.h"
#include "transaction.h"

typedef struct {
    uint32_t hash;
    uint32_t state; /* its number + 1; 0: free */
} tpc_producer_slot;

typedef struct {
    tpc_producer_slot *slots;
    tpc_producer_state **chunks;
    uint32_t capacity; /* of slots: 0 or a power of two */
    uint32_t count;
    uint32_t states_used; /* numbers below it are of states, or free */
    uint32_t states_max;  /* in the chunks */
    uint32_t free_first;  /* a number + 1; 0: none */
    uint64_t *all_count;  /* of all tables of the plane together, or NULL */
    tpc_transactions transactions;
} tpc_producers;

enum tpc_sequence_verdict {
    TPC_SEQUENCE_NEXT = 0,
    TPC_SEQUENCE_DUPLICATE = 1,
    TPC_SEQUENCE_OUT_OF_ORDER = 2,      /* OUT_OF_ORDER_SEQUENCE_NUMBER */
    TPC_SEQUENCE_FENCED = 3,            /* INVALID_PRODUCER_EPOCH */
    TPC_SEQUENCE_NOT_IN_TRANSACTION = 4 /* INVALID_TXN_STATE: its producer has one open, which it is no part of */
};

/* The one with a number below states_used; NULL: it is free. */
tpc_producer_state *tpc_producers_at(const tpc_producers *producers, uint32_t number);

tpc_producer_state *tpc_producers_find(const tpc_producers *producers, int64_t producer_id);

/* Judges a batch with a producer id; *duplicate: which of the remembered ones it repeats. */
enum tpc_sequence_verdict tpc_producers_check(const tpc_producers *producers, const tpc_batch_header *header,
                                              tpc_producer_batch *duplicate);

/* Of a known producer's: whether it is out of order because batches in front of it are missing. */
bool tpc_producers_lack(const tpc_producers *producers, const tpc_batch_header *header);

/* Whether the next new producer makes the table grow. */
bool tpc_producers_full(const tpc_producers *producers);

/* Makes sure that one more producer can be put without failing, and with this batch a transaction begin. */
int tpc_producers_reserve(tpc_producers *producers, const tpc_batch_header *header);

/* Remembers an accepted batch; tpc_producers_reserve() came before. The marker: NULL for what is no control batch. */
void tpc_producers_accept(tpc_producers *producers, const tpc_batch_header *header, const tpc_control_marker *marker,
                          int64_t base_offset, int64_t now_ms);

/* Takes back the newest batch of a producer, which was so before; NULL: it was not known. */
void tpc_producers_undo(tpc_producers *producers, int64_t producer_id, const tpc_producer_state *before);

/* Forgets one that has no open transaction. */
void tpc_producers_remove(tpc_producers *producers, int64_t producer_id);

/* The log was cut: what began or was aborted behind its end is forgotten. What ended there stays as it is, and holds readers back
 * until the producers are found out anew. */
void tpc_producers_cut(tpc_producers *producers, int64_t end_offset);

/* How many slots a search looks at, at most. */
uint32_t tpc_producers_longest_search(const tpc_producers *producers);

void tpc_producers_free(tpc_producers *producers);

/* As tpc_partition_load_producers(). No copy of an earlier state may be put back after it. */
int tpc_producers_decode(tpc_producers *producers, const uint8_t *encoded, uint32_t bytes, bool sequence_lost,
                         int64_t now_ms, int64_t expiry_ms);
/* One of them, without their number; how many bytes, TPC_PRODUCER_ENCODED_MAX at most. */
uint32_t tpc_producer_encode(const tpc_producer_state *state, uint8_t *encoded);
/* Of the transactions that have ended those with markers below an offset, as far as there is room; how many bytes. */
uint32_t tpc_producers_encode_ended(const tpc_producers *producers, int64_t upto_offset, uint8_t *encoded,
                                    uint32_t bytes_max);

#endif
