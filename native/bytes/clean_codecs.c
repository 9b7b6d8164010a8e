/*
 * lz4 and zstd for the cleaner, with the functions of libraries that the caller has found. What is not as it mostly is (another
 * frame than Kafka's clients write, no room, an error) is left to the caller, who has slower means and the last word.
 */
#include "clean_codecs.h"
#include "wire.h"

enum { LZ4 = 3, ZSTD = 4, LZ4_BLOCK_BYTES = 64 * 1024, SIZE_BYTES = 4 };

/* Magic, version 1 with independent blocks and no checksums, blocks of 64 KiB, and the header's own checksum byte. */
static const uint8_t LZ4_HEADER[] = {0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82};
static const uint32_t LZ4_STORED = 0x80000000u;

typedef int (*lz4_function)(const char *from, char *to, int from_bytes, int to_bytes_max);
typedef size_t (*zstd_function)(void *context, void *to, size_t to_bytes_max, const void *from, size_t from_bytes);
typedef unsigned (*zstd_is_error)(size_t result);

static uint32_t read_size(const uint8_t *at) {
    uint32_t size;
    memcpy(&size, at, sizeof size);
    return size;
}

static int64_t lz4_unpack_frame(lz4_function unpack, const uint8_t *from, size_t from_bytes, uint8_t *to,
                                size_t to_bytes) {
    size_t written = 0;
    if (from_bytes < sizeof LZ4_HEADER || memcmp(from, LZ4_HEADER, sizeof LZ4_HEADER) != 0) return -1;
    from += sizeof LZ4_HEADER, from_bytes -= sizeof LZ4_HEADER;
    for (;;) {
        if (from_bytes < SIZE_BYTES) return -1;
        uint32_t raw = read_size(from), size = raw & ~LZ4_STORED;
        from += SIZE_BYTES, from_bytes -= SIZE_BYTES;
        if (!raw) return from_bytes ? -1 : (int64_t)written;
        size_t room = to_bytes - written < LZ4_BLOCK_BYTES ? to_bytes - written : LZ4_BLOCK_BYTES;
        if (size > from_bytes || size > LZ4_BLOCK_BYTES) return -1;
        int got = (int)size;
        if (!(raw & LZ4_STORED))
            got = unpack((const char *)from, (char *)to + written, (int)size, (int)room);
        else if (size <= room)
            memcpy(to + written, from, size);
        else
            return -1;
        if (got < 0) return -1;
        written += (size_t)got;
        from += size, from_bytes -= size;
    }
}

bool clean_can_pack(const tpc_clean_codecs *codecs, int compression) {
    if (compression == LZ4) return codecs->lz4_unpack && codecs->lz4_pack;
    return compression == ZSTD && codecs->zstd_unpack && codecs->zstd_pack;
}

int64_t clean_unpack(const tpc_clean_codecs *codecs, int compression, uint8_t *to, const uint8_t *from,
                     size_t from_bytes) {
    size_t to_bytes = (size_t)codecs->unpacked_bytes;
    if (!clean_can_pack(codecs, compression)) return -1;
    if (compression == LZ4) return lz4_unpack_frame((lz4_function)codecs->lz4_unpack, from, from_bytes, to, to_bytes);
    size_t got = ((zstd_function)codecs->zstd_unpack)(codecs->zstd_unpack_context, to, to_bytes, from, from_bytes);
    return ((zstd_is_error)codecs->zstd_is_error)(got) ? -1 : (int64_t)got;
}

size_t clean_packed_bound(size_t bytes) {
    return bytes + bytes / 128 + sizeof LZ4_HEADER + SIZE_BYTES * (bytes / LZ4_BLOCK_BYTES + 2) + 256;
}

static int64_t lz4_pack_frame(lz4_function pack, const uint8_t *from, size_t from_bytes, uint8_t *to) {
    uint8_t *at = to;
    memcpy(at, LZ4_HEADER, sizeof LZ4_HEADER);
    at += sizeof LZ4_HEADER;
    while (from_bytes) {
        size_t plain = from_bytes < LZ4_BLOCK_BYTES ? from_bytes : LZ4_BLOCK_BYTES;
        uint32_t size = (uint32_t)pack((const char *)from, (char *)at + SIZE_BYTES, (int)plain, (int)plain - 1);
        if (!size || size >= plain) {
            memcpy(at + SIZE_BYTES, from, plain);
            size = (uint32_t)plain | LZ4_STORED;
        }
        memcpy(at, &size, SIZE_BYTES);
        at += SIZE_BYTES + (size & ~LZ4_STORED);
        from += plain, from_bytes -= plain;
    }
    memset(at, 0, SIZE_BYTES);
    return at + SIZE_BYTES - to;
}

int64_t clean_pack(const tpc_clean_codecs *codecs, int compression, const uint8_t *from, size_t from_bytes, uint8_t *to,
                   size_t to_bytes) {
    if (to_bytes < clean_packed_bound(from_bytes)) return -1;
    if (compression == LZ4) return lz4_pack_frame((lz4_function)codecs->lz4_pack, from, from_bytes, to);
    void *context =
        from_bytes <= (size_t)codecs->small_bytes ? codecs->zstd_pack_small_context : codecs->zstd_pack_context;
    size_t got = ((zstd_function)codecs->zstd_pack)(context, to, to_bytes, from, from_bytes);
    return ((zstd_is_error)codecs->zstd_is_error)(got) ? -1 : (int64_t)got;
}
