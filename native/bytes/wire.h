/*
 * Reading and writing of big-endian fields within bounds, for the files of this folder.
 *
 * A reader that meets its end, or a malformed varint, becomes `bad` and stays so; every read from then on gives 0 and
 * takes nothing. So a decoder reads a whole structure and asks once, but must ask before it uses a count or a length.
 * A writer that runs out of room goes on counting: `bytes` is what the whole takes.
 */
#ifndef TPC_WIRE_H
#define TPC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t wire_u16(const uint8_t *at) {
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap16(value);
}

static inline uint32_t wire_u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap32(value);
}

static inline uint64_t wire_u64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return __builtin_bswap64(value);
}

static inline void wire_set_u16(uint8_t *at, uint16_t value) {
    value = __builtin_bswap16(value);
    memcpy(at, &value, sizeof value);
}

static inline void wire_set_u32(uint8_t *at, uint32_t value) {
    value = __builtin_bswap32(value);
    memcpy(at, &value, sizeof value);
}

static inline void wire_set_u64(uint8_t *at, uint64_t value) {
    value = __builtin_bswap64(value);
    memcpy(at, &value, sizeof value);
}

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
    bool bad;
} wire_reader;

static inline wire_reader wire_reader_of(const uint8_t *bytes, size_t bytes_count) {
    return (wire_reader){.at = bytes, .end = bytes_count ? bytes + bytes_count : bytes, .bad = false};
}

static inline size_t wire_left(const wire_reader *reader) { return (size_t)(reader->end - reader->at); }

/* The next bytes, or NULL (and bad). */
static inline const uint8_t *wire_take(wire_reader *reader, size_t bytes_count) {
    if (reader->bad || bytes_count > wire_left(reader)) {
        reader->bad = true;
        return NULL;
    }
    const uint8_t *taken = reader->at;
    reader->at += bytes_count;
    return taken;
}

static inline uint8_t wire_read_u8(wire_reader *reader) {
    const uint8_t *at = wire_take(reader, 1);
    return at ? *at : 0;
}

static inline int16_t wire_read_i16(wire_reader *reader) {
    const uint8_t *at = wire_take(reader, 2);
    return at ? (int16_t)wire_u16(at) : 0;
}

static inline int32_t wire_read_i32(wire_reader *reader) {
    const uint8_t *at = wire_take(reader, 4);
    return at ? (int32_t)wire_u32(at) : 0;
}

static inline int64_t wire_read_i64(wire_reader *reader) {
    const uint8_t *at = wire_take(reader, 8);
    return at ? (int64_t)wire_u64(at) : 0;
}

/* An unsigned LEB128 of at most `bits` bits; bits beyond are malformed. */
static inline uint64_t wire_read_leb128(wire_reader *reader, unsigned bits) {
    uint64_t value = 0;
    if (__builtin_expect(!reader->bad && reader->at != reader->end && *reader->at < 0x80, 1)) return *reader->at++;
    if (__builtin_expect(!reader->bad && wire_left(reader) >= 2 && reader->at[1] < 0x80, 1)) {
        reader->at += 2;
        return (uint64_t)(reader->at[-2] & 0x7f) | (uint64_t)reader->at[-1] << 7;
    }
    for (unsigned shift = 0; shift < bits; shift += 7) {
        if (reader->bad || reader->at == reader->end) break;
        uint8_t byte = *reader->at++;
        if (shift + 7 > bits && (byte & 0x7f) >> (bits - shift)) break;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
    reader->bad = true;
    return 0;
}

static inline uint32_t wire_read_uvarint(wire_reader *reader) { return (uint32_t)wire_read_leb128(reader, 32); }

static inline int32_t wire_read_varint(wire_reader *reader) {
    uint32_t raw = (uint32_t)wire_read_leb128(reader, 32);
    return (int32_t)((raw >> 1) ^ (~(raw & 1) + 1));
}

static inline int64_t wire_read_varlong(wire_reader *reader) {
    uint64_t raw = wire_read_leb128(reader, 64);
    return (int64_t)((raw >> 1) ^ (~(raw & 1) + 1));
}

typedef struct {
    uint8_t *out;
    size_t out_bytes;
    size_t bytes; /* written, or what would have been */
} wire_writer;

static inline void wire_put(wire_writer *writer, const void *bytes, size_t bytes_count) {
    if (bytes_count && bytes_count <= writer->out_bytes && writer->bytes <= writer->out_bytes - bytes_count)
        memcpy(writer->out + writer->bytes, bytes, bytes_count);
    writer->bytes += bytes_count;
}

static inline void wire_put_u8(wire_writer *writer, uint8_t value) { wire_put(writer, &value, 1); }

static inline void wire_put_i16(wire_writer *writer, int16_t value) {
    uint8_t raw[2];
    wire_set_u16(raw, (uint16_t)value);
    wire_put(writer, raw, sizeof raw);
}

static inline void wire_put_i32(wire_writer *writer, int32_t value) {
    uint8_t raw[4];
    wire_set_u32(raw, (uint32_t)value);
    wire_put(writer, raw, sizeof raw);
}

static inline void wire_put_i64(wire_writer *writer, int64_t value) {
    uint8_t raw[8];
    wire_set_u64(raw, (uint64_t)value);
    wire_put(writer, raw, sizeof raw);
}

static inline void wire_put_uvarint(wire_writer *writer, uint32_t value) {
    for (; value >= 0x80; value >>= 7) wire_put_u8(writer, (uint8_t)(value | 0x80));
    wire_put_u8(writer, (uint8_t)value);
}

/* ---- what most messages are made of; `flexible`: of a version with compact lengths and tagged fields ---- */

static inline void wire_put_count(wire_writer *writer, bool flexible, int32_t count) {
    if (flexible)
        wire_put_uvarint(writer, (uint32_t)count + 1);
    else
        wire_put_i32(writer, count);
}

/* -1 bytes: null. */
static inline void wire_put_string(wire_writer *writer, bool flexible, const uint8_t *bytes, int32_t bytes_count) {
    if (flexible)
        wire_put_uvarint(writer, (uint32_t)(bytes_count + 1));
    else
        wire_put_i16(writer, (int16_t)bytes_count);
    if (bytes_count > 0) wire_put(writer, bytes, (size_t)bytes_count);
}

static inline void wire_put_no_tags(wire_writer *writer, bool flexible) {
    if (flexible) wire_put_u8(writer, 0);
}

/* A name that is null in what was asked is empty here: no message has a topic without name and id. */
static inline void wire_put_topic(wire_writer *writer, bool flexible, bool by_id, const uint8_t *name,
                                  int32_t name_bytes, const uint8_t id[16]) {
    if (by_id)
        wire_put(writer, id, 16);
    else
        wire_put_string(writer, flexible, name, name_bytes < 0 ? 0 : name_bytes);
}

#endif
