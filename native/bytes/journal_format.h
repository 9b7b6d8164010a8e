/*
 * The journal's bytes on the disk: one file per core, all its partitions' appends, little-endian throughout.
 *
 *   block 0, 1         superblocks (not described here)
 *   block 2 … end      the data region: commits
 *
 * A commit starts on a block boundary, lies in contiguous blocks, never wraps, and is padded with zeros to the end of
 * its last block. If it does not fit before the end of the region it starts at the region's first block; a reader looks
 * for the next commit at the next block and, if it is not there, at the region's first block.
 *
 *   commit  = tpc_journal_commit_header (96 bytes)  entry*  zeros
 *   entry   = tpc_journal_entry_header (48 bytes)  payload  zeros to a multiple of 8 (none needed after the last entry)
 *
 * Commits form a chain: journal_id is the same in all of them, sequence grows by one, and previous_crc is the crc field
 * of the commit before. A new run (run_id) continues the chain it found. Only the chain's unbroken beginning was
 * certainly written; durable_sequence, taken when a commit was submitted, tells a torn tail from damage.
 */
#ifndef TPC_JOURNAL_FORMAT_H
#define TPC_JOURNAL_FORMAT_H

#include <stdint.h>

#include "facts.h"

#define TPC_JOURNAL_BLOCK_BYTES TPC_BLOCK_BYTES
#define TPC_JOURNAL_MAGIC 0x4A435054u /* "TPCJ" in the order of the bytes */
#define TPC_JOURNAL_FORMAT_VERSION 1u
#define TPC_JOURNAL_ENTRY_ALIGNMENT 8u

enum tpc_journal_kind {
    TPC_JOURNAL_APPEND = 1,    /* offset: base offset; argument: next offset (end); payload: whole record batches */
    TPC_JOURNAL_CUT = 2,       /* everything of the partition at or above offset is void, and of its leader epochs
                                        * those above the argument; 0: those that begin behind the offset */
    TPC_JOURNAL_EPOCH = 3,     /* argument: leader epoch; offset: where it starts; payload: none, or i32 voted_for */
    TPC_JOURNAL_LOG_START = 4, /* offset: the new log start offset */
    TPC_JOURNAL_PARTITION_DELETED = 5,
    TPC_JOURNAL_NOTE = 6,     /* payload: opaque to the journal */
    TPC_JOURNAL_IN_PLACE = 7, /* offset, argument: of one batch; payload: tpc_journal_in_place_header, then the
                                        * bytes in front of and behind those that are in the segment */
    TPC_JOURNAL_RELEASED = 8, /* argument: how often it was handed over; payload: its fields of a checkpoint */
    TPC_JOURNAL_ADOPTED = 9,  /* the same, in the journal of its next core */
};

#define TPC_JOURNAL_MAY_SKIP 0x01u

/* A batch whose whole blocks are in a segment, and were on the disk before this entry was written. */
typedef struct __attribute__((packed)) {
    int64_t segment_base_offset;
    int64_t position; /* of the batch in the segment's file */
    uint32_t batch_bytes;
    uint32_t head_bytes; /* the batch's first bytes: in this entry */
    uint32_t tail_bytes; /* its last bytes: in this entry, behind the first ones */
    uint32_t header_crc; /* CRC-32C of the batch's header, which has that of its records */
} tpc_journal_in_place_header;

typedef struct __attribute__((packed)) {
    uint32_t magic;
    uint16_t format_version;
    uint16_t flags; /* 0 in version 1 */
    uint8_t journal_id[16];
    uint64_t run_id; /* new at every open */
    uint64_t sequence;
    uint64_t durable_sequence; /* highest sequence up to which all commits were durable when this one was submitted */
    uint64_t submitted_ms;     /* wall clock */
    uint32_t previous_crc;
    uint32_t commit_bytes; /* header and entries, alignment between entries included, padding to the block not */
    uint32_t entries_count;
    uint32_t crc;        /* CRC-32C of commit_bytes bytes from the header on, this field taken as 0 */
    uint8_t padding[24]; /* zeros */
} tpc_journal_commit_header;

typedef struct __attribute__((packed)) {
    uint32_t entry_bytes; /* header and payload, without the zeros that align the next entry */
    uint8_t kind;         /* enum tpc_journal_kind */
    uint8_t flags;        /* TPC_JOURNAL_MAY_SKIP: a reader that does not know the kind goes on; else it stops */
    uint16_t reserved;
    uint8_t topic_id[16];
    int32_t partition;
    uint32_t reserved2;
    int64_t offset;
    int64_t argument;
} tpc_journal_entry_header;

_Static_assert(sizeof(tpc_journal_commit_header) == 96, "the commit header is 96 bytes");
_Static_assert(sizeof(tpc_journal_entry_header) == 48, "the entry header is 48 bytes");
_Static_assert(sizeof(tpc_journal_in_place_header) == 32, "the header of a in-place entry is 32 bytes");

static inline uint32_t tpc_journal_aligned_bytes(uint32_t bytes) {
    return (bytes + TPC_JOURNAL_ENTRY_ALIGNMENT - 1) & ~(TPC_JOURNAL_ENTRY_ALIGNMENT - 1);
}

#endif
