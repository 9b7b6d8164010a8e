/* Between clean.c and clean_codecs.c. -1: it is the caller's. */
#ifndef TPC_CLEAN_CODECS_H
#define TPC_CLEAN_CODECS_H

#include <stdbool.h>

#include "bytes.h"

/* Whether the functions are there. */
bool clean_can_pack(const tpc_clean_codecs *codecs, int compression);

/* To where there is room for codecs->unpacked_bytes; how many bytes. */
int64_t clean_unpack(const tpc_clean_codecs *codecs, int compression, uint8_t *to, const uint8_t *from,
                     size_t from_bytes);

/* The room that packing so many bytes needs. */
size_t clean_packed_bound(size_t bytes);

/* With a compression that clean_unpack() knows; how many bytes. */
int64_t clean_pack(const tpc_clean_codecs *codecs, int compression, const uint8_t *from, size_t from_bytes, uint8_t *to,
                   size_t to_bytes);

#endif
