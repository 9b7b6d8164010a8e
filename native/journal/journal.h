/* The journal as other C modules of the core see it: the Python face plus a listener called inside the wait. */
#ifndef TPC_JOURNAL_H
#define TPC_JOURNAL_H

#include "ring.h"
#include "in_place.h"
#include "cdef/40_journal.h"

/* Told synchronously, before the events for Python are pushed. */
typedef struct {
    void *context;
    void (*durable)(void *context, uint64_t sequence);                        /* contiguous: everything up to it */
    void (*failed)(void *context, uint64_t first_failed_sequence, int error); /* everything from it on is void */
} tpc_journal_listener;

void tpc_journal_listen(tpc_journal *journal, tpc_journal_listener listener);

/* 0, or -EIO between a failure and the reopen. */
int tpc_journal_health(const tpc_journal *journal);

uint64_t tpc_journal_durable_sequence(const tpc_journal *journal);

/* As many commits are being written as may be: what is appended now waits for the end of one. */
bool tpc_journal_is_writing(const tpc_journal *journal);

/* A batch that is written in place; see in_place.h. */
typedef struct {
    tpc_in_place_file *file;
    int64_t offset, next_offset;
    int64_t position;      /* of the first whole block that it writes */
    uint32_t bytes;        /* of its whole blocks */
    uint32_t staged_bytes; /* of these, the first ones, which are staged; the others are written from `data` */
    tpc_frame *frame;
    const uint8_t *data;
} tpc_journal_in_place;

/* The commit that an entry with such a payload would join; 0: it would open one. */
uint64_t tpc_journal_joined_sequence(const tpc_journal *journal, uint32_t payload_bytes);
/* Whether a batch may be written in place now: the journal's mode, staging, and how much a recovery would have to read. */
bool tpc_journal_in_place_ready(tpc_journal *journal, uint32_t payload_bytes_max, uint32_t bytes);
/* As tpc_journal_append(), after ..._ready(); *staged: where the staged bytes are to be put, at once. */
int tpc_journal_append_in_place(tpc_journal *journal, const tpc_journal_in_place *in_place, const uint8_t *topic_id,
                                int32_t partition, const uint8_t *payload, uint32_t payload_bytes, uint64_t *sequence,
                                uint8_t **staged);

#endif
