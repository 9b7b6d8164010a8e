/*
 * Windows: stretches of segments that Python has opened to C, so that fetches behind the tail need no Python.
 *
 * Python owns segments and their indexes. When it reads for a fetch, it opens a window: the segment's file and a part of
 * its sparse index. C then finds whole batches by itself, with the index and the headers in the file, and sends them from
 * the page cache. A window has its own descriptor, which is closed when neither it nor an answer on its way needs it, so a
 * segment may be renamed, removed or closed by Python meanwhile. Its bytes never change: they are whole batches behind
 * which nothing is rewritten; where that is not so any more (a partition made anew), Python closes its windows.
 *
 * Finding never waits for the disk: what is not in the page cache is not found.
 */
#ifndef TPC_SEGMENT_WINDOW_H
#define TPC_SEGMENT_WINDOW_H

#include "partition.h"

enum { TPC_WINDOW_HINTS = 16 };

typedef struct tpc_segment_file {
    uint32_t references;
    int descriptor;
} tpc_segment_file;

typedef struct {
    uint32_t relative_offset; /* of the last record of the batch that begins at the position */
    uint32_t position;
} tpc_window_entry;

typedef struct tpc_segment_window {
    struct tpc_segment_window *next;          /* of its partition */
    struct tpc_segment_window *older, *newer; /* of the plane, by use */
    tpc_partition *partition;
    tpc_segment_file *file;
    int64_t segment_base_offset;
    int64_t from_offset, upto_offset;    /* offsets that are certainly in here */
    int64_t from_position, end_position; /* whole batches */
    bool to_segment_end;                 /* behind end_position the segment had nothing */
    bool is_sealed;                      /* and never will */
    struct {
        int64_t offset, position;
    } hints[TPC_WINDOW_HINTS]; /* where batches begin, as seen last; position 0: none */
    uint32_t hint_next;
    uint32_t entries_count;
    tpc_window_entry entries[];
} tpc_segment_window;

typedef struct tpc_windows {
    tpc_segment_window *oldest, *newest;
    uint32_t count;
    uint8_t headers[4096]; /* of a file around a place, as read last */
    const tpc_segment_file *headers_file;
    int64_t headers_position;
    uint32_t headers_bytes;
} tpc_windows;

/* Whole batches of a segment below upto_offset, from the one that holds `offset` on, at most bytes_max (min_one: the first
 * whatever its size). 0 with *bytes (0: nothing fits) and *next_offset, of what follows; -ENOENT: no window has them, -EAGAIN:
 * their headers are not in the page cache. */
int tpc_window_find(tpc_windows *windows, tpc_partition *partition, int64_t offset, int64_t bytes_max,
                    int64_t upto_offset, bool min_one, tpc_segment_window **window, int64_t *position, uint64_t *bytes,
                    int64_t *next_offset);
void tpc_windows_close_below(tpc_windows *windows, tpc_partition *partition, int64_t log_start_offset);
void tpc_windows_close_all(tpc_windows *windows, tpc_partition *partition);

/* Bytes of a file as a slice of an answer: its frame holds the file. NULL: no memory. */
tpc_frame *tpc_file_slice_frame(tpc_budget *budget, tpc_segment_file *file, int64_t position);

#endif
