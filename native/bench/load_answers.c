/*
 * Where an answer ends and whether it says that all went well, for each protocol the generator speaks.
 *
 * Kafka: Produce version 9 and Fetch version 12, one topic with one partition in each. Redis: RESP2 without nested arrays,
 * which XADD never answers. NATS: server text lines; a MSG is a JetStream acknowledgement.
 */
#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "load.h"

typedef struct {
    const uint8_t *at, *end;
} reader;

static uint64_t read_number(reader *in, unsigned bytes) {
    uint64_t value = 0;
    if (in->end - in->at < bytes) {
        in->at = in->end;
        return 0;
    }
    for (unsigned index = 0; index < bytes; index++) value = value << 8 | *in->at++;
    return value;
}

static uint32_t read_varint(reader *in) {
    uint32_t value = 0;
    for (unsigned shift = 0; shift < 35 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        value |= (uint32_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) break;
    }
    return value;
}

static void skip(reader *in, size_t bytes) {
    in->at += (size_t)(in->end - in->at) < bytes ? (size_t)(in->end - in->at) : bytes;
}

static void skip_string(reader *in) {
    uint32_t size = read_varint(in);
    skip(in, size ? size - 1 : 0);
}

static void read_produce(reader *in, answer *out) {
    skip(in, 5); /* correlation id, tags */
    read_varint(in);
    skip_string(in);
    read_varint(in);
    skip(in, 4);
    out->error = (int16_t)read_number(in, 2);
}

/* Counts the records of the whole batches of `data` by their headers. */
static void read_batches(const uint8_t *data, size_t bytes, answer *out) {
    while (bytes >= 61) {
        reader in = {data, data + bytes};
        uint64_t base = read_number(&in, 8), length = read_number(&in, 4);
        if (12 + length > bytes) break;
        in.at = data + 23;
        if (out->first < 0)
            out->first = (int64_t)base;
        else if ((int64_t)base != out->next)
            out->gap = true;
        out->next = (int64_t)(base + read_number(&in, 4) + 1);
        in.at = data + 57;
        out->records += read_number(&in, 4);
        out->data_bytes += 12 + length;
        data += 12 + length;
        bytes -= 12 + length;
    }
}

static void read_fetch(reader *in, answer *out) {
    skip(in, 5 + 4);
    out->error = (int16_t)read_number(in, 2);
    out->session = (uint32_t)read_number(in, 4);
    if (out->error || read_varint(in) < 2) return;
    skip_string(in);
    read_varint(in);
    skip(in, 4);
    out->error = (int16_t)read_number(in, 2);
    skip(in, 24);
    uint32_t aborted = read_varint(in);
    for (uint32_t index = 1; index < aborted; index++) skip(in, 17);
    skip(in, 4);
    uint32_t size = read_varint(in);
    size_t bytes = size ? size - 1 : 0, left = (size_t)(in->end - in->at);
    read_batches(in->at, bytes < left ? bytes : left, out);
}

static answer read_kafka(enum protocol protocol, const uint8_t *bytes, size_t count) {
    answer out = {.first = -1, .next = -1};
    if (count < 4) return out;
    reader in = {bytes, bytes + 4};
    out.wanted = 4 + read_number(&in, 4);
    if (count < out.wanted) return out;
    out.bytes = out.wanted;
    in.end = bytes + out.bytes;
    protocol == PROTOCOL_KAFKA_FETCH ? read_fetch(&in, &out) : read_produce(&in, &out);
    return out;
}

/* Bytes of the line that starts here with its line end; 0 when it has none yet. */
static size_t line_bytes(const uint8_t *bytes, size_t count) {
    const uint8_t *end = memchr(bytes, '\n', count);
    return end ? (size_t)(end - bytes) + 1 : 0;
}

static answer read_redis(const uint8_t *bytes, size_t count) {
    answer out = {0};
    size_t line = line_bytes(bytes, count);
    if (!line) return out;
    size_t body = 0;
    if (bytes[0] == '$') {
        long size = strtol((const char *)bytes + 1, NULL, 10);
        body = size >= 0 ? (size_t)size + 2 : 0;
    }
    if (count < line + body) return out;
    out.bytes = line + body;
    out.error = bytes[0] == '-' ? -1 : 0;
    return out;
}

static answer read_nats(const uint8_t *bytes, size_t count) {
    answer out = {0};
    size_t line = line_bytes(bytes, count);
    if (!line) return out;
    out.bytes = line;
    out.ignored = true;
    if (!memcmp(bytes, "PING", 4 < line ? 4 : line)) {
        out.ping = true;
    } else if (!memcmp(bytes, "-ERR", 4 < line ? 4 : line)) {
        out.error = -1;
    } else if (!memcmp(bytes, "MSG ", 4 < line ? 4 : line)) {
        const uint8_t *number = bytes + line;
        while (number[-1] != ' ') number--;
        size_t body = (size_t)strtol((const char *)number, NULL, 10) + 2;
        out.ignored = false;
        out.bytes = count < line + body ? 0 : line + body;
        if (out.bytes && memmem(bytes + line, body, "\"error\"", 7)) out.error = -1;
    }
    return out;
}

answer answer_read(enum protocol protocol, const uint8_t *bytes, size_t count) {
    switch (protocol) {
    case PROTOCOL_REDIS:
        return read_redis(bytes, count);
    case PROTOCOL_NATS:
        return read_nats(bytes, count);
    default:
        return read_kafka(protocol, bytes, count);
    }
}
