/*
 * The connections of a core as a whole: what their end is, their turn, statistics.
 */
#include "connection_state.h"
#include "latency.h"
#include "io.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

_Static_assert(sizeof((tpc_connection_statistics){0}.closed_by_reason) / sizeof(uint64_t) == TPC_CLOSE_REASONS_COUNT,
               "one counter for each reason");

static const int64_t NS_PER_MS = 1000000;

/* ------------------------------------------------------------------------------------------------ its end */

/* A peer that takes nothing would keep what the kernel has queued, and zero-copy frames with it, for many minutes: reset. */
static void make_close_abortive(const connection *it) {
    if (it->reason != TPC_CLOSE_SEND_DEADLINE && it->reason != TPC_CLOSE_BUDGET) return;
    tpc_io.abandon(it->descriptor);
}

/* Of each part what it holds, in this order: links tell others, and what is not sent is no more. */
static void closing(connection *it) {
    quota_unmute(it);
    if (it->link != NULL || it->carrier != NULL || it->forwards) links_connection_closing(it);
    if (it->sink->closing != NULL) it->sink->closing(it);
    if (it->tls != NULL) tls_closing(it);
    receive_forget(it);
    answers_forget(it);
    identity_closing(it);
    if (it->carrier != NULL) return;
    make_close_abortive(it);
    tpc_io.shut(it->descriptor);
}

static void add_to_listener(tpc_listener_statistics *sum, const connection *it) {
    sum->opened++;
    sum->requests += it->requests;
    sum->received_bytes += it->received_bytes;
    sum->sent_bytes += it->sent_bytes;
}

static bool is_of_links(const connection *it) { return it->link != NULL || it->steady != NULL; }

static bool came_to_a_listener(const connection *it) { return !is_of_links(it) && it->carrier == NULL; }

static void closed(connection *it) {
    tpc_connections *connections = it->owner;
    if (came_to_a_listener(it)) add_to_listener(&connections->listeners[it->listener].ended, it);
    if (it->carrier == NULL) tpc_io.close(it->descriptor);
    if (it->link != NULL || it->carrier != NULL) links_connection_gone(it);
    if (it->sink->gone != NULL) it->sink->gone(it);
    tpc_ring_release_event(connections->ring);
    if (!is_of_links(it)) {
        connections->statistics.closed++;
        connections->statistics.closed_by_reason[it->reason]++;
        int result =
            tpc_ring_push_event(connections->ring, TPC_EVENT_CLOSED, connection_id(it), it->reason, it->error, NULL);
        assert(result == 0);
        (void)result;
    }
    connection_discard(it);
}

static void freed(connection *it) {
    if (it->has_peer) peer_counts_remove(&it->owner->peers, &it->peer);
    identity_free(it);
    quota_forget(it);
    tls_free(it);
}

static const connection_life life = {.closing = closing, .closed = closed, .freed = freed};

static void flush_and_close(connection *it, int reason, int when) {
    if (it->state == CONNECTION_FLUSHING && it->close_when <= when) return;
    it->state = CONNECTION_FLUSHING;
    it->reason = (uint8_t)reason;
    it->close_when = (uint8_t)when;
    receive_forget(it);
    connection_needs_attention(it);
}

int tpc_connection_close(tpc_connections *connections, uint64_t id, int reason, int when) {
    connection *it = connection_find(connections, id);
    if (it == NULL || it->state == CONNECTION_CLOSING) return -ENOTCONN;
    assert(reason > TPC_CLOSE_NONE && reason < TPC_CLOSE_REASONS_COUNT);
    if (when == TPC_CLOSE_NOW)
        connection_begin_close(it, reason, 0);
    else
        flush_and_close(it, reason, when);
    return 0;
}

void tpc_connections_close_all(tpc_connections *connections, int reason, int when) {
    for (uint32_t i = 0; i < connections->slots_count; i++) {
        connection *it = connections->slots[i].connection;
        if (it != NULL && (!is_of_links(it) || when == TPC_CLOSE_NOW)) /* what was forwarded is to be answered */
            tpc_connection_close(connections, connection_id(it), reason, when);
    }
}

/* ------------------------------------------------------------------------------------------------ the turn */

static void attend(connection *it) {
    connection_hold(it);
    bool done = receive_attend(it) && send_attend(it);
    if (it->state == CONNECTION_FLUSHING && send_is_flushed(it)) {
        receive_discard(it);
        connection_begin_close(it, it->reason, 0);
    }
    node_remove(&it->attention); /* what came up meanwhile has been seen to just now */
    if (!done) connection_needs_attention(it);
    connection_let_go(it);
}

/* Each connection that is on the list now, once: one that comes back for want of a submission entry waits a turn. */
static void attend_all(tpc_connections *connections) {
    node list = connections->attention;
    if (!node_linked(&connections->attention)) return;
    list.next->previous = &list;
    list.previous->next = &list;
    node_init(&connections->attention);
    while (node_linked(&list)) {
        connection *it = NODE_OWNER(list.next, connection, attention);
        node_remove(&it->attention);
        attend(it);
    }
}

static int64_t close_stuck_senders(tpc_connections *connections, int64_t now_ns) {
    int64_t allowed_ns = connections->limits.send_deadline_ms * NS_PER_MS;
    while (allowed_ns > 0 && node_linked(&connections->by_send)) {
        connection *it = NODE_OWNER(connections->by_send.next, connection, by_send);
        if (it->send_progress_ns + allowed_ns > now_ns) return it->send_progress_ns + allowed_ns;
        connection_begin_close(it, TPC_CLOSE_SEND_DEADLINE, ETIMEDOUT);
    }
    return INT64_MAX;
}

/* A close costs some 10 us with what follows it, and thousands of clients may have fallen silent in the same moment: so a
 * turn closes a few, and who is not idle gets answers in between. */
static int64_t close_idle(tpc_connections *connections, int64_t now_ns) {
    int64_t allowed_ns = connections->limits.idle_ms_max * NS_PER_MS;
    if (tpc_ring_is_serving(connections->ring)) return now_ns;
    for (unsigned looked_at = 0; allowed_ns > 0 && node_linked(&connections->by_activity); looked_at++) {
        connection *it = NODE_OWNER(connections->by_activity.next, connection, by_activity);
        if (it->active_ns + allowed_ns > now_ns) return it->active_ns + allowed_ns;
        if (looked_at == CLOSES_PER_TURN_MAX) return now_ns;
        if (it->requests_unanswered > 0 || it->unsent_bytes > 0 || is_of_links(it) || it->carrier != NULL)
            connection_touch(it); /* it waits for us: long polls, and the send deadline, have rules of their own */
        else
            connection_begin_close(it, TPC_CLOSE_IDLE, 0);
    }
    return INT64_MAX;
}

/* Of the starved, the first that waits for memory of its own, not for that of answers. */
static connection *longest_short_of_memory(tpc_connections *connections) {
    for (node *at = connections->by_starvation.next; at != &connections->by_starvation; at = at->next)
        if (NODE_OWNER(at, connection, by_starvation)->deferred == NULL)
            return NODE_OWNER(at, connection, by_starvation);
    return NULL;
}

/*
 * Memory is short: who loses its connection, so that a crowd of half requests cannot hold everybody up for ever. First
 * who keeps an unfinished request without sending. Then, when somebody has waited too long for memory, the last of those
 * that wait as well and keep something, so that the first gets on; and at last even who sends, but so slowly.
 */
static connection *victim_of_starvation(tpc_connections *connections, int64_t now_ns, int64_t allowed_ns) {
    connection *waiting = longest_short_of_memory(connections);
    connection *sender = NULL;
    if (waiting == NULL) return NULL;
    if (node_linked(&connections->by_assembly)) {
        sender = NODE_OWNER(connections->by_assembly.next, connection, by_assembly);
        if (sender->assembly_progress_ns + allowed_ns <= now_ns) return sender;
    }
    if (waiting->starved_ns + allowed_ns > now_ns) return NULL;
    connection *parked = NULL; /* parked bytes are charged as well, but an unfinished request goes first */
    for (node *at = connections->by_starvation.previous; at != &waiting->by_starvation; at = at->previous) {
        connection *other = NODE_OWNER(at, connection, by_starvation);
        if (other->partial != NULL) return other;
        if (parked == NULL && other->backlog != NULL && other->deferred == NULL) parked = other;
    }
    if (parked != NULL && sender == NULL) return parked;
    return waiting->starved_ns + 4 * allowed_ns > now_ns ? NULL : sender;
}

/* While memory is short, who takes nothing of its answers has less time than the send deadline. */
static connection *stuck_reader(const tpc_connections *connections, int64_t now_ns, int64_t allowed_ns) {
    if (allowed_ns <= 0 || !node_linked(&connections->by_send)) return NULL;
    connection *longest = NODE_OWNER(connections->by_send.next, connection, by_send);
    return longest->send_progress_ns + allowed_ns <= now_ns ? longest : NULL;
}

/* The starved try again when memory came back. One victim a turn: its frames are perhaps all that was missing. */
static int64_t relieve_starvation(tpc_connections *connections, int64_t now_ns) {
    bool anybody_starves = node_linked(&connections->by_starvation);
    if (!anybody_starves && answers_have_room(connections)) {
        connections->starved_at_bytes = connections->starved_at_answers = INT64_MAX;
        return INT64_MAX;
    }
    int64_t allowed_ns = connections->limits.assembly_stall_ms_max * NS_PER_MS;
    connection *reader = stuck_reader(connections, now_ns, allowed_ns), *victim = NULL;
    if (reader != NULL)
        connection_begin_close(reader, TPC_CLOSE_SEND_DEADLINE, ETIMEDOUT);
    else if (anybody_starves && !connections->frames_leaving)
        victim = victim_of_starvation(connections, now_ns, allowed_ns);
    if (victim != NULL) connection_begin_close(victim, TPC_CLOSE_BUDGET, ENOMEM);
    int64_t used = tpc_budget_held(connections->budget);
    int64_t held = connections->answers_held_bytes;
    if (used < connections->starved_at_bytes || held < connections->starved_at_answers)
        for (node *at = connections->by_starvation.next; at != &connections->by_starvation; at = at->next)
            connection_needs_attention(NODE_OWNER(at, connection, by_starvation));
    connections->starved_at_bytes = used;
    connections->starved_at_answers = held;
    return now_ns + (allowed_ns / 4 > NS_PER_MS ? allowed_ns / 4 : NS_PER_MS);
}

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t on_turn(void *context, int64_t now_ns) {
    tpc_connections *connections = context;
    latency_turn(&connections->latencies, now_ns);
    int64_t until_ns = accept_turn(connections, now_ns);
    until_ns = earlier(until_ns, close_stuck_senders(connections, now_ns));
    until_ns = earlier(until_ns, close_idle(connections, now_ns));
    until_ns = earlier(until_ns, identity_turn(connections, now_ns));
    until_ns = earlier(until_ns, quota_turn(connections, now_ns));
    until_ns = earlier(until_ns, relieve_starvation(connections, now_ns));
    until_ns = earlier(until_ns, tls_turn(connections, now_ns));
    connections->left_closed = 0;
    attend_all(connections);
    if (connections->links != NULL) attend_all(connections); /* the links, which got the answers of streams */
    if (node_linked(&connections->attention)) return now_ns; /* for want of a submission entry, or put off */
    return until_ns;
}

/* ------------------------------------------------------------------------------------------------ making, freeing */

static void register_with_ring(tpc_connections *connections, bool on) {
    void *context = on ? connections : NULL;
    tpc_ring_handle(connections->ring, TPC_KIND_ACCEPT, on ? accept_on_completion : NULL, context);
    tpc_ring_handle(connections->ring, TPC_KIND_RECEIVE, on ? receive_on_completion : NULL, context);
    tpc_ring_handle(connections->ring, TPC_KIND_SEND, on ? send_on_completion : NULL, context);
}

tpc_connections *tpc_connections_new(tpc_ring *ring, tpc_budget *budget, const tpc_connection_limits *limits) {
    tpc_connections *connections = calloc(1, sizeof *connections);
    if (connections == NULL) return NULL;
    connections->ring = ring;
    connections->budget = budget;
    connections->limits = *limits;
    connections->life = &life;
    connections->slots_free = UINT32_MAX;
    connections->accepting = true;
    node_init(&connections->attention);
    node_init(&connections->by_activity);
    node_init(&connections->by_send);
    node_init(&connections->by_assembly);
    node_init(&connections->by_starvation);
    node_init(&connections->by_handshake);
    node_init(&connections->handshaking);
    node_init(&connections->strangers);
    int result = receive_start(connections);
    if (result == 0) result = tpc_ring_add_turn_hook(ring, TPC_TURN_LAST, on_turn, connections);
    if (result < 0) {
        receive_stop(connections);
        free(connections);
        errno = -result;
        return NULL;
    }
    register_with_ring(connections, true);
    return connections;
}

int tpc_connections_free(tpc_connections *connections) {
    if (connections->connections_count || connections->statistics.operations || connections->statistics.sends_in_kernel)
        return -EBUSY;
    links_free(connections);
    register_with_ring(connections, false);
    tpc_ring_remove_turn_hook(connections->ring, on_turn, connections);
    receive_stop(connections);
    for (uint32_t i = 0; i < connections->sendings_count; i++) free(connections->sendings[i]);
    free(connections->sendings);
    while (connections->chunks_count > 0) tpc_frame_release(connections->chunks[--connections->chunks_count]);
    peer_counts_free(&connections->peers);
    tls_stop(connections);
    quotas_free(connections);
    free(connections->slots);
    free(connections);
    return 0;
}

void tpc_connections_set_limits(tpc_connections *connections, const tpc_connection_limits *limits) {
    tpc_connection_limits changed = *limits;
    changed.receive_buffers_count = connections->limits.receive_buffers_count;
    changed.receive_buffer_bytes = connections->limits.receive_buffer_bytes;
    connections->limits = changed;
}

void tpc_connections_set_hot(tpc_connections *connections, tpc_hot_handler handler, void *context) {
    connections->hot = handler;
    connections->hot_context = context;
}

void tpc_connections_set_borrowed(tpc_connections *connections, tpc_hot_handler handler, void *context) {
    connections->borrowed = handler;
    connections->borrowed_context = context;
}

void tpc_connections_set_alignment(tpc_connections *connections, tpc_alignment_handler handler, void *context) {
    connections->alignment = handler;
    connections->alignment_context = context;
}

static int echo(void *context, tpc_request *request) {
    tpc_request_answer_bytes(context, request, request->body, request->body_bytes);
    return 1;
}

void tpc_connections_set_echo(tpc_connections *connections, int on) {
    tpc_connections_set_hot(connections, on ? echo : NULL, connections);
}

/* ------------------------------------------------------------------------------------------------ looking at it */

static void write_peer(int descriptor, char *text, size_t text_bytes) {
    union {
        struct sockaddr any;
        struct sockaddr_in ip4;
        struct sockaddr_in6 ip6;
        struct sockaddr_storage storage;
    } peer = {0};
    char address[INET6_ADDRSTRLEN] = "";
    if (tpc_io.peer(descriptor, &peer, sizeof peer) < 0) {
        snprintf(text, text_bytes, "gone");
    } else if (peer.any.sa_family == AF_INET) {
        inet_ntop(AF_INET, &peer.ip4.sin_addr, address, sizeof address);
        snprintf(text, text_bytes, "%s:%u", address, ntohs(peer.ip4.sin_port));
    } else if (peer.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &peer.ip6.sin6_addr, address, sizeof address);
        snprintf(text, text_bytes, "[%s]:%u", address, ntohs(peer.ip6.sin6_port));
    } else {
        snprintf(text, text_bytes, "unix");
    }
}

static void describe(const connection *it, tpc_connection_info *info) {
    *info = (tpc_connection_info){
        .connection = connection_id(it),
        .opened_ns = it->opened_ns,
        .active_ns = it->active_ns,
        .requests = it->requests,
        .received_bytes = it->received_bytes,
        .sent_bytes = it->sent_bytes,
        .held_bytes = it->held_bytes,
        .requests_unanswered = it->requests_unanswered,
        .descriptor = it->descriptor,
        .paused = it->paused || it->starved,
        .closing = it->state != CONNECTION_OPEN,
        .listener = it->listener,
    };
    if (it->carrier != NULL)
        snprintf(info->peer, sizeof info->peer, "core %u:%u", it->client_core, (uint32_t)it->client);
    else
        write_peer(it->descriptor, info->peer, sizeof info->peer);
}

int tpc_connection_describe(tpc_connections *connections, uint64_t id, tpc_connection_info *info) {
    connection *it = connection_find(connections, id);
    if (it == NULL) return -ENOTCONN;
    describe(it, info);
    return 0;
}

void tpc_connections_statistics(tpc_connections *connections, tpc_connection_statistics *statistics) {
    *statistics = connections->statistics;
    statistics->connections = connections_of_clients(connections);
    statistics->slots = connections->slots_count;
    statistics->answer_bytes_held = (uint64_t)connections->answers_held_bytes;
}

uint32_t tpc_connections_listener_statistics(const tpc_connections *connections, tpc_listener_statistics *statistics,
                                             uint32_t count) {
    if (count > connections->listeners_count) count = connections->listeners_count;
    for (uint32_t i = 0; i < count; i++) statistics[i] = connections->listeners[i].ended;
    for (uint32_t i = 0; i < connections->slots_count; i++) {
        const connection *it = connections->slots[i].connection;
        if (it == NULL || !came_to_a_listener(it) || it->listener >= count) continue;
        add_to_listener(&statistics[it->listener], it);
        statistics[it->listener].connections++;
    }
    return connections->listeners_count;
}
