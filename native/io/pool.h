/*
 * Free lists for small structures of one size that every request takes and gives back: the newest one given is the next
 * one taken, while it is still in the processor's cache. What is beyond `kept_max` goes back to the allocator, so a burst
 * leaves no more than that behind.
 */
#ifndef TPC_POOL_H
#define TPC_POOL_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct {
    void *first; /* chained through the first word of each */
    uint32_t kept, kept_max;
    size_t item_bytes;
} tpc_pool;

static inline void *tpc_pool_take(tpc_pool *pool) {
    void *taken = pool->first;
    if (!taken) return malloc(pool->item_bytes);
    pool->first = *(void **)taken;
    pool->kept--;
    return taken;
}

static inline void tpc_pool_give(tpc_pool *pool, void *item) {
    if (pool->kept >= pool->kept_max) {
        free(item);
        return;
    }
    *(void **)item = pool->first;
    pool->first = item;
    pool->kept++;
}

static inline void tpc_pool_drain(tpc_pool *pool) {
    while (pool->first) {
        void *item = pool->first;
        pool->first = *(void **)item;
        free(item);
    }
    pool->kept = 0;
}

#endif
