/* Frames of the steady state of replication: cdef/82_steady_frame.h. What comes is checked as far as a frame can be. */
#include <errno.h>
#include <string.h>

#include "bytes.h"

enum { LENGTH_BYTES = 4 };

typedef struct __attribute__((packed)) {
    uint8_t version, kind;
    uint16_t nothing;
    uint32_t entries;
} header;

typedef struct __attribute__((packed)) {
    uint8_t topic_id[16];
    int32_t partition, term;
    uint64_t source, target;
    int64_t offset, commit_offset;
} common;

typedef struct __attribute__((packed)) {
    uint32_t bytes, nothing;
} payload;

typedef struct __attribute__((packed)) {
    uint32_t machines, nothing;
} beat;

_Static_assert(sizeof(header) == TPC_STEADY_HEADER_BYTES, "the header is as described");
_Static_assert(sizeof(common) == TPC_STEADY_ACK_BYTES, "an ACK is as described");
_Static_assert(sizeof(common) + sizeof(payload) == TPC_STEADY_APPEND_BYTES, "an APPEND is as described");
_Static_assert(sizeof(beat) == TPC_STEADY_BEAT_BYTES, "a BEAT is as described");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are little-endian, and so is this machine");

int64_t tpc_steady_frame_decode(const uint8_t *bytes, size_t bytes_count, uint32_t *kind) {
    header head;
    if (bytes_count < sizeof head) return -EBADMSG;
    memcpy(&head, bytes, sizeof head);
    if (head.version != TPC_STEADY_VERSION) return -EPROTONOSUPPORT;
    if (head.kind < TPC_STEADY_APPEND || head.kind > TPC_STEADY_BEAT) return -EBADMSG;
    uint32_t bytes_min = head.kind == TPC_STEADY_APPEND ? TPC_STEADY_APPEND_BYTES
                         : head.kind == TPC_STEADY_ACK  ? TPC_STEADY_ACK_BYTES
                                                        : TPC_STEADY_BEAT_BYTES;
    if (head.kind == TPC_STEADY_BEAT && head.entries != 1) return -EBADMSG;
    if (head.entries == 0 || head.entries > (bytes_count - sizeof head) / bytes_min) return -EBADMSG;
    *kind = head.kind;
    return head.entries;
}

int tpc_steady_entry_decode(uint32_t kind, const uint8_t *bytes, size_t bytes_count, size_t *position,
                            tpc_steady_entry *out) {
    common said;
    payload with = {0};
    size_t at = *position;
    if (at > bytes_count || bytes_count - at < sizeof said) return -EBADMSG;
    memcpy(&said, bytes + at, sizeof said);
    const uint8_t *topic_id = bytes + at;
    at += sizeof said;
    if (said.partition < 0 || said.term < 1 || said.offset < 0 || said.commit_offset < -1) return -EBADMSG;
    if (kind == TPC_STEADY_APPEND) {
        if (bytes_count - at < sizeof with) return -EBADMSG;
        memcpy(&with, bytes + at, sizeof with);
        at += sizeof with;
        if (with.bytes > bytes_count - at) return -EBADMSG;
    }
    *out = (tpc_steady_entry){.topic_id = topic_id,
                              .partition = said.partition,
                              .term = said.term,
                              .source = said.source,
                              .target = said.target,
                              .offset = said.offset,
                              .commit_offset = said.commit_offset,
                              .batches_bytes = with.bytes,
                              .kind = kind,
                              .batches = with.bytes ? bytes + at : NULL};
    *position = at + with.bytes;
    return 0;
}

int tpc_steady_beat_decode(const uint8_t *bytes, size_t bytes_count, size_t *position, uint32_t *machines) {
    beat said;
    if (*position > bytes_count || bytes_count - *position < sizeof said) return -EBADMSG;
    memcpy(&said, bytes + *position, sizeof said);
    *position += sizeof said;
    *machines = said.machines;
    return 0;
}

void tpc_steady_beat_encode(uint32_t machines, uint8_t *out) {
    beat said = {.machines = machines};
    memcpy(out, &said, sizeof said);
}

void tpc_steady_frame_header(uint32_t kind, uint32_t entries, uint32_t entries_bytes, uint8_t *out) {
    header head = {.version = TPC_STEADY_VERSION, .kind = (uint8_t)kind, .entries = entries};
    uint32_t length = __builtin_bswap32((uint32_t)sizeof head + entries_bytes);
    memcpy(out, &length, LENGTH_BYTES);
    memcpy(out + LENGTH_BYTES, &head, sizeof head);
}

uint32_t tpc_steady_entry_encode(const tpc_steady_entry *entry, uint8_t *out) {
    common said = {.partition = entry->partition,
                   .term = entry->term,
                   .source = entry->source,
                   .target = entry->target,
                   .offset = entry->offset,
                   .commit_offset = entry->commit_offset};
    memcpy(said.topic_id, entry->topic_id, sizeof said.topic_id);
    memcpy(out, &said, sizeof said);
    if (entry->kind != TPC_STEADY_APPEND) return sizeof said;
    payload with = {.bytes = entry->batches_bytes};
    memcpy(out + sizeof said, &with, sizeof with);
    return sizeof said + sizeof with;
}
