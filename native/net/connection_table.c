/*
 * The table of connections: slots and generations, and where each stands between its opening and its end.
 *
 * Nothing here knows what a connection is made of. Who ends one (any part may) has it marked, and its `life`, which
 * connection.c gives, lets all parts go of what they hold before connection_begin_close() returns.
 */
#include "connection_state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* ------------------------------------------------------------------------------------------------ slots */

/* Rule: A connection is slot and generation, never a descriptor. Held by tests/engine/test_connections.py,
 * tests/engine/test_connections_random.py. */
connection *connection_find(tpc_connections *connections, uint64_t id) {
    uint32_t index = (uint32_t)id;
    if (index >= connections->slots_count) return NULL;
    slot *found = &connections->slots[index];
    return found->generation == (uint32_t)(id >> 32) ? found->connection : NULL;
}

connection *connection_of_completion(tpc_connections *connections, uint64_t user_data) {
    uint32_t index = (uint32_t)user_data;
    assert(index < connections->slots_count);
    slot *found = &connections->slots[index];
    assert(found->connection != NULL && (found->generation & 0xffffffu) == tpc_user_data_generation(user_data));
    return found->connection;
}

static int grow_slots(tpc_connections *connections) {
    uint32_t count = connections->slots_count ? connections->slots_count * 2 : 64;
    slot *slots = realloc(connections->slots, count * sizeof *slots);
    if (slots == NULL) return -ENOMEM;
    for (uint32_t i = count; i-- > connections->slots_count;) {
        slots[i] = (slot){.generation = 1, .next_free = connections->slots_free};
        connections->slots_free = i;
    }
    connections->slots = slots;
    connections->slots_count = count;
    return 0;
}

uint32_t connections_of_clients(const tpc_connections *connections) {
    return connections->connections_count - connections->links_connections - connections->steady_links;
}

void connections_counted(tpc_connections *connections) {
    if (connections->open_shown)
        __atomic_store_n(connections->open_shown, connections_of_clients(connections), __ATOMIC_RELAXED);
}

void tpc_connections_show_open(tpc_connections *connections, uint32_t *place) {
    connections->open_shown = place;
    connections_counted(connections);
}

static int take_slot(tpc_connections *connections, connection *it) {
    if (connections->slots_free == UINT32_MAX) {
        int result = grow_slots(connections);
        if (result < 0) return result;
    }
    it->slot = connections->slots_free;
    slot *taken = &connections->slots[it->slot];
    connections->slots_free = taken->next_free;
    taken->connection = it;
    it->generation = taken->generation;
    connections->connections_count++;
    connections_counted(connections);
    return 0;
}

static void return_slot(tpc_connections *connections, connection *it) {
    slot *returned = &connections->slots[it->slot];
    returned->connection = NULL;
    if (++returned->generation == 0) returned->generation = 1;
    returned->next_free = connections->slots_free;
    connections->slots_free = it->slot;
    connections->connections_count--;
    connections_counted(connections);
}

void connection_discard(connection *it) {
    it->owner->life->freed(it);
    return_slot(it->owner, it);
    free(it);
}

/* ------------------------------------------------------------------------------------------------ from its opening to its end */

connection *connection_make(tpc_connections *connections, int descriptor, uint16_t listener,
                            const connection_sink *sink) {
    connection *it = calloc(1, sizeof *it);
    if (it == NULL) return NULL;
    it->owner = connections;
    it->sink = sink;
    it->descriptor = descriptor;
    it->listener = listener;
    if (tpc_ring_promise_event(connections->ring) < 0) { /* of its end */
        free(it);
        return NULL;
    }
    if (take_slot(connections, it) < 0) {
        tpc_ring_release_event(connections->ring);
        free(it);
        return NULL;
    }
    node_init(&it->attention);
    node_init(&it->by_activity);
    node_init(&it->by_send);
    node_init(&it->by_assembly);
    node_init(&it->by_starvation);
    node_init(&it->by_opening);
    it->opened_ns = tpc_ring_now_ns(connections->ring);
    connection_touch(it);
    connection_needs_attention(it);
    return it;
}

void connection_withdraw(connection *it) {
    node_remove(&it->attention);
    node_remove(&it->by_activity);
    node_remove(&it->by_opening);
    tpc_ring_release_event(it->owner->ring);
    connection_discard(it);
}

int connection_announce(connection *it) {
    tpc_connections *connections = it->owner;
    int result =
        tpc_ring_push_event(connections->ring, TPC_EVENT_OPENED, connection_id(it), it->descriptor, it->listener, NULL);
    if (result < 0) {
        connection_withdraw(it);
        return result;
    }
    connections->statistics.opened++;
    return 0;
}

void connection_touch(connection *it) {
    it->active_ns = tpc_ring_now_ns(it->owner->ring);
    node_to_tail(&it->owner->by_activity, &it->by_activity);
}

void connection_begin_close(connection *it, int reason, int error) {
    if (it->state == CONNECTION_CLOSING) return;
    connection_hold(it);
    it->state = CONNECTION_CLOSING;
    it->reason = (uint8_t)reason;
    it->error = error;
    node_remove(&it->attention);
    node_remove(&it->by_activity);
    it->owner->life->closing(it);
    connection_let_go(it);
}

void connection_let_go(connection *it) {
    assert(it->operations > 0);
    it->operations--;
    it->owner->statistics.operations--;
    if (it->operations == 0 && it->state == CONNECTION_CLOSING) it->owner->life->closed(it);
}

/* ------------------------------------------------------------------------------------------------ by its id */

bool tpc_connection_is_open(tpc_connections *connections, uint64_t id) {
    const connection *it = connection_find(connections, id);
    return it != NULL && it->state != CONNECTION_CLOSING;
}

void tpc_connection_note_refusal(tpc_connections *connections, uint64_t id, int16_t error_code) {
    connection *it = connection_find(connections, id);
    if (it == NULL) return;
    it->refusal = error_code;
    it->refused_ns = tpc_ring_now_ns(connections->ring);
}

int16_t tpc_connection_refusal(tpc_connections *connections, uint64_t id, int64_t received_ns) {
    const connection *it = connection_find(connections, id);
    if (it == NULL || !it->refusal) return 0;
    return received_ns - it->refused_ns <= TPC_REFUSED_NS_MAX ? it->refusal : 0;
}

void tpc_connection_set_mark(tpc_connections *connections, uint64_t id, uint32_t mark) {
    connection *it = connection_find(connections, id);
    if (it != NULL) it->mark = mark;
}

uint32_t tpc_connection_mark(tpc_connections *connections, uint64_t id) {
    const connection *it = connection_find(connections, id);
    return it != NULL ? it->mark : 0;
}
