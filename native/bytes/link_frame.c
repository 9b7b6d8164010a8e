/* Frames of the link between two cores, to bytes and back. */
#include <errno.h>

#include "bytes.h"
#include "wire.h"

#define HELLO_MAGIC 0x4b4e4c54u /* "TLNK" */

/* How x86 and ARM have numbers in memory. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the link's frames are little-endian");

typedef struct {
    uint8_t version;
    uint8_t kind;
    uint16_t detail;
    uint32_t sequence;
    uint64_t stream;
} header;

typedef struct {
    uint32_t magic;
    uint16_t feature_level;
    uint16_t reserved;
    uint32_t core;
    uint32_t reserved_too;
    uint64_t life;
} hello;

_Static_assert(TPC_LINK_SUBJECT_BYTES_MAX == 2 + TPC_LINK_PRINCIPAL_BYTES_MAX + TPC_LINK_HOST_BYTES_MAX, "all of it");
_Static_assert(sizeof(header) == TPC_LINK_HEADER_BYTES && sizeof(hello) == TPC_LINK_HELLO_BYTES, "as documented");

int tpc_link_frame_decode(const uint8_t *bytes, size_t bytes_count, tpc_link_frame *out) {
    header head;
    if (bytes_count < sizeof head || bytes_count > INT32_MAX) return -EBADMSG;
    memcpy(&head, bytes, sizeof head);
    *out = (tpc_link_frame){.stream = head.stream,
                            .sequence = head.sequence,
                            .detail = head.detail,
                            .version = head.version,
                            .kind = head.kind,
                            .payload = bytes + sizeof head,
                            .payload_bytes = (uint32_t)(bytes_count - sizeof head)};
    if (head.version != TPC_LINK_VERSION) return -EPROTONOSUPPORT;
    if (head.kind != TPC_LINK_HELLO) return 0;
    hello said;
    if (out->payload_bytes < sizeof said) return -EBADMSG;
    memcpy(&said, out->payload, sizeof said);
    if (said.magic != HELLO_MAGIC) return -EBADMSG;
    out->core = said.core;
    out->life = said.life;
    out->feature_level = said.feature_level;
    return 0;
}

void tpc_link_frame_header(const tpc_link_frame *frame, uint8_t *out) {
    header head = {.version = TPC_LINK_VERSION,
                   .kind = frame->kind,
                   .detail = frame->detail,
                   .sequence = frame->sequence,
                   .stream = frame->stream};
    wire_set_u32(out, (uint32_t)sizeof head + frame->payload_bytes);
    memcpy(out + 4, &head, sizeof head);
}

void tpc_link_hello(uint32_t core, uint64_t life, uint8_t *out) {
    hello said = {.magic = HELLO_MAGIC, .feature_level = TPC_LINK_FEATURE_LEVEL, .core = core, .life = life};
    tpc_link_frame frame = {.kind = TPC_LINK_HELLO, .payload_bytes = sizeof said};
    tpc_link_frame_header(&frame, out);
    memcpy(out + 4 + sizeof(header), &said, sizeof said);
}

static bool is_text(const uint8_t *bytes, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (bytes[i] < 0x20 || bytes[i] == 0x7f) return false;
    return true;
}

static bool is_name(const tpc_link_subject_names *it) {
    return it->principal_bytes > 0 && it->principal_bytes <= TPC_LINK_PRINCIPAL_BYTES_MAX &&
           it->host_bytes <= TPC_LINK_HOST_BYTES_MAX && is_text(it->principal, it->principal_bytes) &&
           is_text(it->host, it->host_bytes);
}

uint32_t tpc_link_subject(const uint8_t *principal, uint32_t principal_bytes, const uint8_t *host, uint32_t host_bytes,
                          uint8_t *out) {
    const tpc_link_subject_names names = {principal, host, principal_bytes, host_bytes};
    uint16_t length = (uint16_t)principal_bytes;
    if (!is_name(&names)) return 0;
    memcpy(out, &length, sizeof length);
    memcpy(out + sizeof length, principal, principal_bytes);
    memcpy(out + sizeof length + principal_bytes, host, host_bytes);
    return (uint32_t)sizeof length + principal_bytes + host_bytes;
}

int tpc_link_subject_decode(const uint8_t *payload, size_t payload_bytes, tpc_link_subject_names *out) {
    uint16_t length;
    if (payload_bytes < sizeof length || payload_bytes > TPC_LINK_SUBJECT_BYTES_MAX) return -EBADMSG;
    memcpy(&length, payload, sizeof length);
    if (length > payload_bytes - sizeof length) return -EBADMSG;
    *out = (tpc_link_subject_names){.principal = payload + sizeof length,
                                    .principal_bytes = length,
                                    .host = payload + sizeof length + length,
                                    .host_bytes = (uint32_t)(payload_bytes - sizeof length - length)};
    return is_name(out) ? 0 : -EBADMSG;
}
