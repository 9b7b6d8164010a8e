
#include "segment_window.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fetch.h"
#include "wire.h"
#include "io.h"

enum {
    WINDOWS_MAX = 256,
    HEADER_BYTES = 27, /* of a batch, up to and with last_offset_delta */
    BATCH_BYTES_MIN = 61,
    LENGTH_AT = 8,
    LENGTH_COUNTED_FROM = 12,
    LAST_OFFSET_DELTA_AT = 23,
    ENTRY_BYTES = 8
};

/* ---- files ---- */

static tpc_segment_file *file_new(int descriptor) {
    tpc_segment_file *file = malloc(sizeof *file);
    int own = file ? (int)tpc_io.duplicate(descriptor) : -1;
    if (own < 0) {
        free(file);
        return NULL;
    }
    *file = (tpc_segment_file){.references = 1, .descriptor = own};
    return file;
}

static void file_release(void *released) {
    tpc_segment_file *file = released;
    TPC_HOLDS(file->references > 0);
    if (--file->references > 0) return;
    tpc_io.close(file->descriptor);
    free(file);
}

tpc_frame *tpc_file_slice_frame(tpc_budget *budget, tpc_segment_file *file, int64_t position) {
    tpc_frame *frame = tpc_frame_new_forced(budget, sizeof(tpc_file_range));
    if (!frame) return NULL;
    TPC_HOLDS(file->references > 0 && position >= 0);
    file->references++;
    tpc_file_range range = {
        .owner = file, .release = file_release, .position = position, .descriptor = file->descriptor};
    memcpy(frame->data, &range, sizeof range);
    frame->holds_file = 1;
    return frame;
}

/* ---- opening and closing ---- */

static void use_unlink(tpc_windows *windows, tpc_segment_window *window) {
    TPC_HOLDS((window->older ? window->older->newer : windows->oldest) == window);
    TPC_HOLDS((window->newer ? window->newer->older : windows->newest) == window);
    *(window->older ? &window->older->newer : &windows->oldest) = window->newer;
    *(window->newer ? &window->newer->older : &windows->newest) = window->older;
}

static void use_link(tpc_windows *windows, tpc_segment_window *window) {
    TPC_HOLDS(!windows->oldest == !windows->newest);
    window->older = windows->newest;
    window->newer = NULL;
    *(windows->newest ? &windows->newest->newer : &windows->oldest) = window;
    windows->newest = window;
}

static void close_window(tpc_windows *windows, tpc_segment_window *window) {
    tpc_segment_window **at = &window->partition->windows;
    TPC_HOLDS(windows->count > 0);
    while (*at != window) {
        TPC_HOLDS(*at); /* it is one of its partition's */
        at = &(*at)->next;
    }
    *at = window->next;
    use_unlink(windows, window);
    windows->count--;
    if (windows->headers_file == window->file) windows->headers_file = NULL;
    file_release(window->file);
    free(window);
}

void tpc_windows_close_below(tpc_windows *windows, tpc_partition *partition, int64_t log_start_offset) {
    for (tpc_segment_window *window = partition->windows, *next; window; window = next) {
        next = window->next;
        if (window->upto_offset <= log_start_offset) close_window(windows, window);
    }
}

void tpc_windows_close_all(tpc_windows *windows, tpc_partition *partition) {
    while (partition->windows) close_window(windows, partition->windows);
}

/* The one that reaches furthest of those that hold the offset. */
static tpc_segment_window *window_of(const tpc_partition *partition, int64_t offset) {
    tpc_segment_window *best = NULL;
    for (tpc_segment_window *window = partition->windows; window; window = window->next)
        if (offset >= window->from_offset && offset < window->upto_offset &&
            (!best || window->upto_offset > best->upto_offset))
            best = window;
    return best;
}

int tpc_partition_wants_window(tpc_plane *plane, uint64_t handle, int64_t offset, int64_t bytes_max) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    tpc_segment_window *window;
    int64_t position;
    int64_t next_offset;
    uint64_t bytes;
    return partition && tpc_window_find(&plane->windows, partition, offset, bytes_max, partition->high_watermark, true,
                                        &window, &position, &bytes, &next_offset) == -ENOENT;
}

int tpc_partition_close_windows(tpc_plane *plane, uint64_t handle) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    tpc_windows_close_all(&plane->windows, partition);
    tpc_aborted_forget(plane, partition);
    return 0;
}

int tpc_partition_replaced(tpc_plane *plane, uint64_t handle, int64_t upto_offset) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (upto_offset > partition->written_offset) return -EINVAL;
    tpc_windows_close_all(&plane->windows, partition);
    tpc_aborted_forget(plane, partition);
    tpc_tail_drop_clean(plane, partition, upto_offset);
    return 0;
}

int tpc_partition_open_window(tpc_plane *plane, uint64_t handle, const tpc_window_params *params) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    tpc_windows *windows = &plane->windows;
    if (!partition) return -ENOENT;
    if (params->from_offset < params->segment_base_offset || params->upto_offset <= params->from_offset ||
        params->from_position < 0 || params->end_position <= params->from_position)
        return -EINVAL;
    tpc_segment_window *window = malloc(sizeof *window + (size_t)params->entries_count * sizeof(tpc_window_entry));
    tpc_segment_file *file = window ? file_new(params->descriptor) : NULL;
    if (!file) {
        free(window);
        return -ENOMEM;
    }
    *window = (tpc_segment_window){.partition = partition,
                                   .file = file,
                                   .to_segment_end = params->to_segment_end != 0,
                                   .is_sealed = params->is_sealed != 0,
                                   .segment_base_offset = params->segment_base_offset,
                                   .from_offset = params->from_offset,
                                   .upto_offset = params->upto_offset,
                                   .from_position = params->from_position,
                                   .end_position = params->end_position,
                                   .entries_count = params->entries_count};
    for (uint32_t i = 0; i < params->entries_count; i++)
        window->entries[i] = (tpc_window_entry){wire_u32(params->entries + (size_t)i * ENTRY_BYTES),
                                                wire_u32(params->entries + (size_t)i * ENTRY_BYTES + 4)};
    for (tpc_segment_window *other = partition->windows, *next; other; other = next) {
        next = other->next;
        if (other->from_offset >= window->from_offset && other->upto_offset <= window->upto_offset)
            close_window(windows, other);
    }
    if (windows->count == WINDOWS_MAX) close_window(windows, windows->oldest);
    TPC_HOLDS(windows->count < WINDOWS_MAX);
    window->next = partition->windows;
    partition->windows = window;
    use_link(windows, window);
    windows->count++;
    return 0;
}

/* ---- headers ---- */

typedef struct {
    int64_t base_offset, next_offset, bytes;
} stored_batch;

/* The batch that begins at a place of the window. 0, -EAGAIN: not in the page cache; -EBADMSG: no batch. */
static int header_at(tpc_windows *windows, const tpc_segment_window *window, int64_t position, stored_batch *batch) {
    bool known = windows->headers_file == window->file && position >= windows->headers_position &&
                 position + HEADER_BYTES <= windows->headers_position + windows->headers_bytes;
    if (!known) {
        int64_t left_bytes = window->end_position - position;
        TPC_HOLDS(position >= 0 && left_bytes > 0);
        int64_t bytes = left_bytes < (int64_t)sizeof windows->headers ? left_bytes : (int64_t)sizeof windows->headers;
        int64_t count = tpc_io.read_cached(window->file->descriptor, windows->headers, (uint64_t)bytes, position);
        windows->headers_file = NULL;
        if (count < HEADER_BYTES) return -EAGAIN;
        TPC_HOLDS(count <= bytes);
        windows->headers_file = window->file;
        windows->headers_position = position;
        windows->headers_bytes = (uint32_t)count;
    }
    const uint8_t *at = windows->headers + (position - windows->headers_position);
    batch->base_offset = (int64_t)wire_u64(at);
    int64_t offsets = (int64_t)(int32_t)wire_u32(at + LAST_OFFSET_DELTA_AT) + 1;
    bool is_beyond = __builtin_add_overflow(batch->base_offset, offsets, &batch->next_offset); /* it is damaged */
    batch->bytes = (int64_t)(int32_t)wire_u32(at + LENGTH_AT) + LENGTH_COUNTED_FROM;
    if (batch->bytes < BATCH_BYTES_MIN || batch->bytes > window->end_position - position || is_beyond ||
        batch->next_offset <= batch->base_offset)
        return -EBADMSG;
    return 0;
}

static void remember(tpc_segment_window *window, int64_t offset, int64_t position) {
    for (uint32_t i = 0; i < TPC_WINDOW_HINTS; i++)
        if (window->hints[i].position == position) return;
    uint32_t at = window->hint_next++ % TPC_WINDOW_HINTS;
    window->hints[at].offset = offset;
    window->hints[at].position = position;
}

/* How many entries have an offset (with `by_position`: a position) of at most so much. */
static uint32_t entries_upto(const tpc_segment_window *window, int64_t value, bool by_position) {
    uint32_t low = 0, high = window->entries_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const tpc_window_entry *entry = &window->entries[middle];
        if ((by_position ? entry->position : entry->relative_offset) <= value)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Where the batch begins that holds the offset. */
static int find_begin(tpc_windows *windows, tpc_segment_window *window, int64_t offset, int64_t *position) {
    for (uint32_t i = 0; i < TPC_WINDOW_HINTS; i++)
        if (window->hints[i].position && window->hints[i].offset == offset) {
            *position = window->hints[i].position;
            return 0;
        }
    uint32_t entries = entries_upto(window, offset - window->segment_base_offset, false);
    int64_t at = entries ? window->entries[entries - 1].position : window->from_position;
    while (at < window->end_position) {
        stored_batch batch;
        int result = header_at(windows, window, at, &batch);
        if (result < 0) return result;
        if (batch.next_offset > offset) break;
        at += batch.bytes;
        if (batch.next_offset == offset) /* so its header need not be at hand */
            break;
    }
    *position = at;
    return at < window->end_position ? 0 : -ENOENT;
}

/* Where the window ends for a reader: segments have what is durable, which may not be committed yet, or stable. */
static int find_end_of_visible(tpc_windows *windows, tpc_segment_window *window, int64_t upto_offset, int64_t *end) {
    *end = window->end_position;
    if (window->upto_offset <= upto_offset) return 0;
    int result = find_begin(windows, window, upto_offset, end);
    return result == -ENOENT ? 0 : result;
}

/* Where whole batches from `begin` on end within the limit, and in front of `window_end`; *next_offset comes as that of what
 * begins there. */
static int find_end(tpc_windows *windows, tpc_segment_window *window, int64_t begin, int64_t window_end,
                    int64_t bytes_max, bool min_one, int64_t *end, int64_t *next_offset) {
    int64_t limit = bytes_max > window_end - begin ? window_end : begin + bytes_max;
    uint32_t entries = entries_upto(window, limit, true);
    int64_t at =
        entries && window->entries[entries - 1].position > begin ? window->entries[entries - 1].position : begin;
    int64_t behind_window = *next_offset;
    while (at < window_end) {
        stored_batch batch;
        int result = header_at(windows, window, at, &batch);
        if (result == -EAGAIN && at > begin) break;
        if (result < 0) return result;
        if (at + batch.bytes > limit && (at > begin || !min_one)) {
            remember(window, batch.base_offset, at);
            *next_offset = batch.base_offset;
            break;
        }
        *next_offset = batch.next_offset;
        at += batch.bytes;
        if (at > limit) /* the first one, which is larger */
            break;
    }
    if (at == window_end) *next_offset = behind_window;
    TPC_HOLDS(at >= begin && at <= window->end_position);
    *end = at;
    return 0;
}

int tpc_window_find(tpc_windows *windows, tpc_partition *partition, int64_t offset, int64_t bytes_max,
                    int64_t upto_offset, bool min_one, tpc_segment_window **found, int64_t *position, uint64_t *bytes,
                    int64_t *next_offset) {
    tpc_segment_window *window = window_of(partition, offset);
    int64_t end = 0, visible_end = 0;
    if (!window) return -ENOENT;
    int result = find_begin(windows, window, offset, position);
    if (result == 0) result = find_end_of_visible(windows, window, upto_offset, &visible_end);
    *next_offset = window->upto_offset < upto_offset ? window->upto_offset : upto_offset;
    if (result == 0) result = find_end(windows, window, *position, visible_end, bytes_max, min_one, &end, next_offset);
    /* Headers on the disk may be damaged: so much is never believed of them. Python reads it, and says what is wrong. */
    if (result == 0 && end > *position && (*next_offset <= offset || *next_offset > upto_offset)) result = -EBADMSG;
    if (result < 0) return result == -EBADMSG ? -ENOENT : result;
    TPC_PARTITION_INVARIANT(partition, window->partition == partition && end >= *position);
    TPC_PARTITION_INVARIANT(partition, end <= window->end_position); /* behind it nothing is known to be whole */
    /* More would fit, and there is more: the next window has it. */
    bool complete = window->to_segment_end && window->upto_offset >= partition->written_offset;
    bool sealed = window->to_segment_end && window->is_sealed;
    if (end == window->end_position && end - *position < bytes_max && !complete && !sealed) return -ENOENT;
    use_unlink(windows, window);
    use_link(windows, window);
    *found = window;
    *bytes = (uint64_t)(end - *position);
    return 0;
}
