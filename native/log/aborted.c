/*
 * Which transactions of a partition were aborted: what readers of committed records are told beside the data.
 *
 * A partition has those whose markers are at or above its aborted_from_offset, all of them. Markers that come add to them;
 * what lies below, segments say (their .txnindex), and Python brings it when it has read there for somebody: then the offset
 * falls. Where they are too many, the oldest ones go, and it rises; but never those whose markers are not written behind,
 * since nobody else knows them. A read from above the offset finds data and list in one step.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fetch.h"

enum {
    CORE_MAX = 4 * 1024 * 1024 / (int)sizeof(tpc_aborted), /* of all partitions of a core */
    DROPPED_AT_ONCE = TPC_ABORTED_MAX / 8
};

/* ---- looking ---- */

uint32_t tpc_aborted_place(const tpc_partition *partition, int64_t offset) {
    const tpc_transactions *transactions = &partition->producers.transactions;
    uint32_t low = 0, high = transactions->aborted_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (transactions->aborted[middle].marker_end <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

const tpc_aborted *tpc_aborted_next(const tpc_partition *partition, uint32_t *place, int64_t upto) {
    const tpc_transactions *transactions = &partition->producers.transactions;
    while (*place < transactions->aborted_count) {
        const tpc_aborted *one = &transactions->aborted[(*place)++];
        TPC_PARTITION_INVARIANT(partition, one->first_offset < one->marker_end);
        if (one->stable_offset >= upto) *place = UINT32_MAX; /* all later ones begin behind it */
        if (one->first_offset < upto) return one;
    }
    return NULL;
}

/* ---- how many there are ---- */

static void count(tpc_plane *plane, tpc_partition *partition) {
    uint32_t now = partition->producers.transactions.aborted_count;
    TPC_PARTITION_INVARIANT(partition, plane->aborted_count >= partition->aborted_counted);
    plane->aborted_count += (int64_t)now - partition->aborted_counted;
    partition->aborted_counted = now;
}

/* All whose markers are at or above that offset are here, and no others. */
static void verify_from(const tpc_partition *partition) {
    const tpc_transactions *transactions = &partition->producers.transactions;
    if (!transactions->aborted_count) return;
    TPC_PARTITION_INVARIANT(partition, transactions->aborted[0].marker_end > partition->aborted_from_offset);
}

/* How many segments have. */
static uint32_t written(const tpc_partition *partition) {
    return tpc_aborted_place(partition, partition->written_offset);
}

/* The oldest ones. */
static void drop(tpc_plane *plane, tpc_partition *partition, uint32_t dropped) {
    tpc_transactions *transactions = &partition->producers.transactions;
    if (!dropped) return;
    TPC_PARTITION_INVARIANT(partition, dropped <= transactions->aborted_count);
    int64_t marker_end = transactions->aborted[dropped - 1].marker_end;
    TPC_PARTITION_INVARIANT(partition, marker_end <= partition->written_offset); /* else nobody would know it */
    if (partition->aborted_from_offset < marker_end) partition->aborted_from_offset = marker_end;
    transactions->aborted_count -= dropped;
    memmove(transactions->aborted, transactions->aborted + dropped,
            transactions->aborted_count * sizeof *transactions->aborted);
    verify_from(partition);
    count(plane, partition);
}

/* Of one partition after the other half of what segments have. */
static void drop_of_all(tpc_plane *plane) {
    for (uint32_t looked_at = 0; plane->aborted_count > CORE_MAX && looked_at < plane->slots_count; looked_at++) {
        plane->aborted_hand = plane->aborted_hand + 1 < plane->slots_count ? plane->aborted_hand + 1 : 0;
        tpc_partition *partition = plane->slots[plane->aborted_hand].partition;
        if (partition && partition->aborted_counted) drop(plane, partition, (written(partition) + 1) / 2);
    }
}

/* Rule: Of aborted transactions a partition keeps TPC_ABORTED_MAX at most, and those whose markers no segment has yet; a core
 * keeps 4 MiB of them. What goes is told by segments. Held by tests/engine/test_read_committed.py. */
void tpc_aborted_bound(tpc_plane *plane, tpc_partition *partition) {
    verify_from(partition);
    count(plane, partition);
    if (partition->aborted_counted > TPC_ABORTED_MAX) {
        uint32_t droppable = written(partition);
        drop(plane, partition, droppable < DROPPED_AT_ONCE ? droppable : DROPPED_AT_ONCE);
    }
    if (plane->aborted_count > CORE_MAX) drop_of_all(plane);
}

void tpc_aborted_delete(tpc_plane *plane, tpc_partition *partition) {
    int64_t below = partition->log_start_offset;
    if (below > partition->written_offset) below = partition->written_offset;
    drop(plane, partition, tpc_aborted_place(partition, below));
}

void tpc_aborted_forget(tpc_plane *plane, tpc_partition *partition) {
    drop(plane, partition, written(partition));
    if (partition->aborted_from_offset < partition->written_offset)
        partition->aborted_from_offset = partition->written_offset;
}

void tpc_aborted_keep(tpc_plane *plane, tpc_partition *partition) {
    tpc_transactions *transactions = &partition->producers.transactions, none = {0};
    if (partition->producers_stale && partition->stale_from_offset < partition->written_offset)
        tpc_aborted_forget(plane, partition);
    tpc_transactions_cut_aborted(transactions, partition->written_offset);
    none.aborted = transactions->aborted;
    none.aborted_count = transactions->aborted_count;
    none.aborted_capacity = transactions->aborted_capacity;
    transactions->aborted = NULL;
    transactions->aborted_count = transactions->aborted_capacity = 0;
    tpc_producers_free(&partition->producers);
    *transactions = none;
    count(plane, partition);
}

void tpc_aborted_release(tpc_plane *plane, tpc_partition *partition) {
    TPC_PARTITION_INVARIANT(partition, plane->aborted_count >= partition->aborted_counted);
    plane->aborted_count -= partition->aborted_counted;
    partition->aborted_counted = 0;
}

/* ---- Python ---- */

int tpc_partition_aborted(const tpc_plane *plane, uint64_t handle, int64_t offset, int64_t upto, tpc_told_aborted *out,
                          uint32_t out_max, tpc_known_aborted *known) {
    const tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    int told = 0;
    uint32_t place = tpc_aborted_place(partition, offset), have = partition->producers.transactions.aborted_count;
    int64_t left = CORE_MAX - plane->aborted_count;
    *known = (tpc_known_aborted){.from_offset = partition->aborted_from_offset,
                                 .room = have < TPC_ABORTED_MAX ? (int32_t)(TPC_ABORTED_MAX - have) : 0};
    if (known->room > left) known->room = left > 0 ? (int32_t)left : 0;
    for (const tpc_aborted *one; (one = tpc_aborted_next(partition, &place, upto)); told++)
        if ((uint32_t)told < out_max)
            out[told] =
                (tpc_told_aborted){one->producer_id, one->first_offset, one->marker_end - 1, one->stable_offset};
    return told;
}

int tpc_partition_add_aborted(tpc_plane *plane, uint64_t handle, int64_t offset, int64_t upto,
                              const tpc_told_aborted *added, uint32_t added_count) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    tpc_transactions *transactions = &partition->producers.transactions;
    if (upto != partition->aborted_from_offset || offset >= upto) return -ESTALE;
    uint32_t have = transactions->aborted_count;
    verify_from(partition); /* so what is added stands in front of it */
    if (added_count > TPC_ABORTED_MAX) return -EINVAL;
    tpc_aborted *all = malloc(((size_t)have + added_count + 1) * sizeof *all);
    if (!all) return -ENOMEM;
    for (uint32_t i = 0; i < added_count; i++)
        all[i] = (tpc_aborted){added[i].producer_id, added[i].first_offset, added[i].last_offset + 1,
                               added[i].stable_offset};
    if (have) memcpy(all + added_count, transactions->aborted, have * sizeof *all);
    free(transactions->aborted);
    transactions->aborted = all;
    transactions->aborted_count = have + added_count;
    transactions->aborted_capacity = have + added_count + 1;
    partition->aborted_from_offset = offset;
    count(plane, partition);
    return 0;
}

/* ---- fetches ---- */

int tpc_fetch_tell_aborted(tpc_fetches *fetches, tpc_fetch_reading *reading, int64_t offset, int64_t upto) {
    reading->aborted_at = fetches->aborted_count;
    reading->aborted_count = 0;
    uint32_t place = tpc_aborted_place(reading->partition, offset);
    for (const tpc_aborted *one; (one = tpc_aborted_next(reading->partition, &place, upto));) {
        TPC_PARTITION_INVARIANT(reading->partition, one->marker_end > offset && one->first_offset < upto);
        if (fetches->aborted_count == fetches->aborted_capacity) {
            uint32_t capacity = fetches->aborted_capacity ? 2 * fetches->aborted_capacity : 64;
            tpc_aborted_transaction *grown = realloc(fetches->aborted, capacity * sizeof *grown);
            if (!grown) return -ENOMEM;
            fetches->aborted = grown;
            fetches->aborted_capacity = capacity;
        }
        fetches->aborted[fetches->aborted_count++] = (tpc_aborted_transaction){one->producer_id, one->first_offset};
        reading->aborted_count++;
    }
    return 0;
}
