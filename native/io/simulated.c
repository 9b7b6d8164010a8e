/* Entries that a test carries out; see cdef/22_simulated.h. */
#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <string.h>

#include "ring_state.h"
#include "substitute.h"
#include "cdef/22_simulated.h"

enum operation_state { QUEUED, SUBMITTED, TAKEN, COMPLETE };

typedef struct operation {
    struct io_uring_sqe entry;
    struct operation *next;
    uint64_t number;
    int32_t result;
} operation;

typedef struct {
    operation *first, *last;
    unsigned count;
} operations;

typedef struct {
    tpc_substitute substitute;
    unsigned entries;
    uint64_t number; /* of the youngest */
    operations lists[COMPLETE + 1];
} simulated;

static simulated *of(tpc_substitute *substitute) { return (simulated *)substitute; }
static const simulated *seen(const tpc_substitute *substitute) { return (const simulated *)substitute; }

static void add(operations *list, operation *one) {
    one->next = NULL;
    *(list->first ? &list->last->next : &list->first) = one;
    list->last = one;
    list->count++;
}

static operation *take(operations *list) {
    operation *one = list->first;
    if (!one) return NULL;
    list->first = one->next;
    list->count--;
    return one;
}

/* The one of that number; NULL: it is not there. */
static operation *take_out(operations *list, uint64_t number) {
    operation *before = NULL, *one = list->first;
    for (; one && one->number != number; before = one, one = one->next) continue;
    if (!one) return NULL;
    if (list->last == one) list->last = before;
    *(before ? &before->next : &list->first) = one->next;
    list->count--;
    return one;
}

static struct io_uring_sqe *entry(tpc_substitute *substitute) {
    operations *queued = &of(substitute)->lists[QUEUED];
    operation *one = queued->count < of(substitute)->entries ? calloc(1, sizeof *one) : NULL;
    if (!one) return NULL;
    one->number = ++of(substitute)->number;
    add(queued, one);
    return &one->entry;
}

static unsigned queued(const tpc_substitute *substitute) { return seen(substitute)->lists[QUEUED].count; }

static unsigned space_left(const tpc_substitute *substitute) {
    return seen(substitute)->entries - seen(substitute)->lists[QUEUED].count;
}

static void complete(simulated *it, operation *one, int32_t result) {
    one->result = result;
    add(&it->lists[COMPLETE], one);
}

static unsigned cancel_list(simulated *it, operations *list) {
    unsigned count = list->count;
    for (operation *one; (one = take(list));) complete(it, one, -ECANCELED);
    return count;
}

static unsigned submit(tpc_substitute *substitute) {
    simulated *it = of(substitute);
    unsigned count = 0;
    for (operation *one; (one = take(&it->lists[QUEUED])); count++) {
        bool ends_all = one->entry.opcode == IORING_OP_ASYNC_CANCEL && one->entry.cancel_flags;
        if (ends_all)
            complete(it, one, (int32_t)(cancel_list(it, &it->lists[TAKEN]) + cancel_list(it, &it->lists[SUBMITTED])));
        else
            add(&it->lists[SUBMITTED], one);
    }
    return count;
}

static int wait_for(tpc_substitute *substitute, bool waits, int64_t timeout_ns) {
    (void)timeout_ns;
    return waits && !seen(substitute)->lists[COMPLETE].count ? -ETIME : 0;
}

static unsigned completed(const tpc_substitute *substitute) { return seen(substitute)->lists[COMPLETE].count; }

static bool next(tpc_substitute *substitute, tpc_substitute_completion *completion) {
    operation *one = take(&of(substitute)->lists[COMPLETE]);
    if (!one) return false;
    *completion = (tpc_substitute_completion){.user_data = one->entry.user_data, .result = one->result};
    free(one);
    return true;
}

static void keep_nothing(tpc_substitute *substitute) { (void)substitute; }

static int hold_file(tpc_substitute *substitute, int descriptor) {
    (void)substitute, (void)descriptor;
    return 0;
}

static void end(tpc_substitute *substitute) {
    for (unsigned i = 0; i <= COMPLETE; i++)
        for (operation *one; (one = take(&of(substitute)->lists[i]));) free(one);
    free(substitute);
}

int tpc_simulated_new(unsigned entries, tpc_substitute **out) {
    simulated *it = calloc(1, sizeof *it);
    if (!it) return -ENOMEM;
    it->entries = entries;
    it->substitute =
        (tpc_substitute){end, entry, queued, space_left, submit, wait_for, completed, next, keep_nothing, hold_file};
    *out = &it->substitute;
    return 0;
}

uint32_t tpc_simulated_take(tpc_ring *ring, tpc_simulated_entry *entries, uint32_t count) {
    simulated *it = of(ring->substitute);
    uint32_t taken = 0;
    for (operation *one; taken < count && (one = take(&it->lists[SUBMITTED])); taken++) {
        const struct io_uring_sqe *given = &one->entry;
        entries[taken] = (tpc_simulated_entry){.number = one->number,
                                               .user_data = given->user_data,
                                               .address = given->addr,
                                               .offset = given->off,
                                               .length = given->len,
                                               .descriptor = given->fd,
                                               .operation_flags = given->rw_flags,
                                               .poll_events = given->poll_events,
                                               .opcode = given->opcode,
                                               .flags = given->flags};
        add(&it->lists[TAKEN], one);
    }
    return taken;
}

int tpc_simulated_complete(tpc_ring *ring, uint64_t number, int32_t result) {
    simulated *it = of(ring->substitute);
    operation *one = take_out(&it->lists[TAKEN], number);
    if (!one) return -ENOENT;
    complete(it, one, result);
    return 0;
}

int64_t tpc_simulated_until(const tpc_ring *ring) { return ring->hooks_until_ns; }
