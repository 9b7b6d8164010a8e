/* What one partition knows of idempotent producers: open addressing by producer id (keyed_hash.h). */
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

typedef struct {
    tpc_producer_state *states; /* producer_id < 0: free */
    uint32_t capacity;          /* 0 or a power of two */
    uint32_t count;
} tpc_producers;

enum tpc_sequence_verdict {
    TPC_SEQUENCE_NEXT = 0,
    TPC_SEQUENCE_DUPLICATE = 1,
    TPC_SEQUENCE_OUT_OF_ORDER = 2, /* OUT_OF_ORDER_SEQUENCE_NUMBER */
    TPC_SEQUENCE_FENCED = 3        /* INVALID_PRODUCER_EPOCH */
};

tpc_producer_state *tpc_producers_find(const tpc_producers *producers, int64_t producer_id);

/* Judges a batch with a producer id; *duplicate: which of the remembered ones it repeats. */
enum tpc_sequence_verdict tpc_producers_check(const tpc_producers *producers, const tpc_batch_header *header,
                                              tpc_producer_batch *duplicate);

/* Of a known producer's: whether it is out of order because batches in front of it are missing. */
bool tpc_producers_lack(const tpc_producers *producers, const tpc_batch_header *header);

/* Whether the next new producer makes the table grow. */
bool tpc_producers_full(const tpc_producers *producers);

/* Makes sure that one more producer can be put without failing. */
int tpc_producers_reserve(tpc_producers *producers);

/* Remembers an accepted batch; tpc_producers_reserve() came before. */
void tpc_producers_accept(tpc_producers *producers, const tpc_batch_header *header, int64_t base_offset,
                          int64_t now_ms);

/* Puts a state in place of the one with its id (or as a new one); remove forgets. */
int tpc_producers_put(tpc_producers *producers, const tpc_producer_state *state);
void tpc_producers_remove(tpc_producers *producers, int64_t producer_id);

/* How many slots a search looks at, at most. */
uint32_t tpc_producers_longest_search(const tpc_producers *producers);

void tpc_producers_free(tpc_producers *producers);

/* As tpc_partition_load_producers(). */
int tpc_producers_decode(tpc_producers *producers, const uint8_t *encoded, uint32_t bytes, bool sequence_lost,
                         int64_t now_ms, int64_t expiry_ms);
/* One of them, without their number; how many bytes, TPC_PRODUCER_ENCODED_MAX at most. */
uint32_t tpc_producer_encode(const tpc_producer_state *state, uint8_t *encoded);

#endif
