/*
 * The hash of tables whose keys clients choose (topic names, partitions, ids of producers): SipHash-1-3 with a key that this
 * process drew at its start. Who does not know the key finds no keys that share a bucket; with a hash that is the same everywhere
 * a few megabytes of such keys make every step through the table a walk through all of them. Nothing that is stored or
 * sent may depend on it: the next process has another key.
 */
#ifndef TPC_KEYED_HASH_H
#define TPC_KEYED_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Of the number, and of the bytes behind it. */
uint64_t tpc_keyed_hash(uint64_t number, const uint8_t *bytes, size_t count);
/* The same with another key, of 16 bytes. */
uint64_t tpc_keyed_hash_with(const uint64_t seed[2], uint64_t number, const uint8_t *bytes, size_t count);

#endif
