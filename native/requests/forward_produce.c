/*
 * A Produce whose partitions belong to other cores: sent on as it came to one that has them all, else taken apart and
 * its answer put together.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "forward.h"
#include "wire.h"

enum { TOPIC_IDS_FROM = 13, FLEXIBLE_FROM = 9 };

static void finish_produce(tpc_forwarded *it);

static const tpc_forwarded_kind produce_kind = {.finish = finish_produce};

/* ---- asking ---- */

static void send_whole(tpc_forwarded *it) {
    const uint8_t *begin = it->request.body - it->request.header_bytes;
    tpc_slice all = tpc_slice_of(it->frame, begin, it->request.header_bytes + it->request.body_bytes);
    tpc_forwarded_send(it, &it->parts[0], TPC_LINK_FORWARD_PRODUCE, &all, 1);
}

/* The fields of one owner's part in a frame of their own, the records from where they lie. False: no memory. */
static bool send_part(tpc_forwarded *it, tpc_forwarded_part *part, const tpc_produce_request *asked,
                      const tpc_produce_part *parts, uint8_t *chosen, uint32_t *splits) {
    int16_t version = it->request.api_version;
    uint32_t header_bytes = it->request.header_bytes, done = 0, count = 0;
    for (int32_t i = 0; i < it->asked_count; i++) {
        chosen[i] = it->cores[i] == part->core;
        part->asked_count += chosen[i];
    }
    int64_t bytes = tpc_produce_request_encode(version, asked, parts, it->asked_count, chosen, NULL, 0, splits);
    tpc_frame *frame = tpc_frame_new_forced(it->plane->budget, header_bytes + (uint32_t)bytes);
    tpc_slice *slices = frame ? malloc((2 * (size_t)part->asked_count + 2) * sizeof *slices) : NULL;
    if (!slices) {
        tpc_frame_release(frame);
        return false;
    }
    memcpy(frame->data, it->request.body - header_bytes, header_bytes);
    tpc_produce_request_encode(version, asked, parts, it->asked_count, chosen, frame->data + header_bytes,
                               (size_t)bytes, splits);
    for (int32_t i = 0; i < it->asked_count; i++) {
        if (!chosen[i]) continue;
        uint32_t end = header_bytes + splits[i];
        slices[count++] = tpc_slice_of(frame, frame->data + done, end - done);
        if (parts[i].records_bytes > 0)
            slices[count++] = tpc_slice_of(it->frame, parts[i].records, (uint32_t)parts[i].records_bytes);
        done = end;
    }
    TPC_HOLDS(done <= frame->length && count <= 2 * (uint32_t)part->asked_count);
    uint32_t rest = header_bytes + (uint32_t)bytes - done;
    if (rest) slices[count++] = tpc_slice_of(frame, frame->data + done, rest);
    tpc_frame_release(frame);
    tpc_forwarded_send(it, part, TPC_LINK_FORWARD_PRODUCE, slices, count);
    free(slices);
    return true;
}

/* The partitions' places are in the bytes that the request lies in, which may only be lent: they are read once more. */
static tpc_produce_part *decode_again(const tpc_forwarded *it, tpc_produce_request *asked) {
    tpc_produce_part *parts = malloc((size_t)it->asked_count * sizeof *parts);
    if (parts && tpc_produce_decode(it->request.body, it->request.body_bytes, it->request.api_version, asked, parts,
                                    it->asked_count) == 0)
        return parts;
    free(parts);
    return NULL;
}

static bool send_parts(tpc_forwarded *it) {
    tpc_produce_request asked;
    tpc_produce_part *parts = decode_again(it, &asked);
    uint8_t *chosen = malloc((size_t)it->asked_count);
    uint32_t *splits = malloc((size_t)it->asked_count * sizeof *splits);
    bool sent = parts && chosen && splits;
    for (uint32_t i = 0; i < it->parts_count && sent; i++)
        sent = send_part(it, &it->parts[i], &asked, parts, chosen, splits) || i > 0;
    free(parts), free(chosen), free(splits);
    return sent;
}

int tpc_forward_produce(tpc_plane *plane, const tpc_request *request, const tpc_produce_request *asked,
                        const tpc_produce_part *parts) {
    tpc_forwarding *forwarding = plane->forwarding;
    int32_t count = asked->parts_count;
    uint16_t distinct[TPC_FORWARD_CORES_MAX];
    if (count == 0) return 0;
    uint16_t *cores = malloc((size_t)count * sizeof *cores);
    if (!cores) return -ENOMEM;
    for (int32_t i = 0; i < count; i++)
        cores[i] = tpc_forward_owner(forwarding, parts[i].topic_name, parts[i].topic_name_bytes, parts[i].topic_id,
                                     parts[i].partition);
    uint32_t parts_count = tpc_forwarded_cores(cores, count, distinct);
    bool all_here = parts_count == 1 && distinct[0] == forwarding->core;
    tpc_forwarded *it = all_here ? NULL : tpc_forwarded_new(plane, &produce_kind, request, count, parts_count);
    if (!it) {
        free(cores);
        return all_here ? 0 : -ENOMEM;
    }
    it->cores = cores;
    it->acks = asked->acks;
    for (uint32_t i = 0; i < parts_count; i++) it->parts[i].core = distinct[i];
    if (parts_count == 1) {
        it->parts[0].asked_count = count;
        send_whole(it);
    } else if (!send_parts(it)) {
        tpc_forwarded_free(it);
        return -ENOMEM;
    }
    for (uint32_t i = 0; i < parts_count; i++) /* for want of memory */
        if (!it->parts[i].whole)
            it->parts[i] = (tpc_forwarded_part){.outcome = TPC_LINK_LOST, .is_done = true, .core = distinct[i]};
    forwarding->statistics.produces++;
    tpc_forwarded_sent(it);
    return 1;
}

/* ---- answering ---- */

static void put_entry(wire_writer *writer, tpc_forwarded *it, int32_t i, int32_t partition) {
    tpc_forwarded_part *part = tpc_forwarded_part_of(it, it->cores[i]);
    if (part->entries_at < part->entries_count && part->entries[part->entries_at].partition == partition) {
        const tpc_answer_entry *entry = &part->entries[part->entries_at++];
        wire_put(writer, part->answer.data + entry->begin, entry->end - entry->begin);
        return;
    }
    uint8_t error[TPC_ERROR_ENTRY_BYTES_MAX];
    wire_put(writer, error,
             tpc_produce_error_entry(it->request.api_version, partition, TPC_ERROR_NOT_LEADER_OR_FOLLOWER, error));
}

/* The whole answer: every partition with what its owner said, as the request names them. */
static size_t put_answer(tpc_forwarded *it, const tpc_produce_request *asked, const tpc_produce_part *parts,
                         uint8_t *out, size_t out_bytes) {
    bool flexible = it->request.api_version >= FLEXIBLE_FROM;
    wire_writer writer = {.out = out, .out_bytes = out_bytes};
    for (uint32_t i = 0; i < it->parts_count; i++) it->parts[i].entries_at = 0;
    wire_put_i32(&writer, (int32_t)out_bytes - 4);
    wire_put_i32(&writer, it->request.correlation_id);
    wire_put_no_tags(&writer, flexible);
    int32_t topics = 0;
    for (int32_t i = 0; i < asked->parts_count; i++) topics += !i || parts[i].topic_index != parts[i - 1].topic_index;
    wire_put_count(&writer, flexible, topics);
    for (int32_t i = 0; i < asked->parts_count;) {
        int32_t end = i + 1;
        while (end < asked->parts_count && parts[end].topic_index == parts[i].topic_index) end++;
        wire_put_topic(&writer, flexible, it->request.api_version >= TOPIC_IDS_FROM, parts[i].topic_name,
                       parts[i].topic_name_bytes, parts[i].topic_id);
        wire_put_count(&writer, flexible, end - i);
        for (; i < end; i++) put_entry(&writer, it, i, parts[i].partition);
        wire_put_no_tags(&writer, flexible);
    }
    wire_put_i32(&writer, (int32_t)it->request.throttle_ms);
    wire_put_no_tags(&writer, flexible);
    return writer.bytes;
}

static void answer_produce(tpc_forwarded *it) {
    tpc_plane *plane = it->plane;
    tpc_produce_request asked;
    tpc_slice answer = {0};
    if (it->parts_count == 1 && it->parts[0].outcome == TPC_LINK_ANSWERED && !it->request.throttle_ms) {
        answer = tpc_slice_of(it->parts[0].answer.frame, it->parts[0].answer.data, it->parts[0].answer.length);
    } else {
        tpc_produce_part *parts = decode_again(it, &asked);
        tpc_forwarded_read(it);
        size_t bytes = parts ? put_answer(it, &asked, parts, NULL, 0) : 0;
        answer.frame = parts ? tpc_frame_new_forced(plane->budget, (uint32_t)bytes) : NULL;
        if (answer.frame) {
            size_t put_bytes = put_answer(it, &asked, parts, answer.frame->data, bytes);
            TPC_INVARIANT(put_bytes == bytes, "an answer of %zu bytes, which was to have %zu", put_bytes, bytes);
            answer.data = answer.frame->data;
            answer.length = (uint32_t)bytes;
        }
        free(parts);
    }
    if (answer.frame)
        tpc_answer_framed(plane->connections, it->request.connection, it->request.sequence, &answer, 1);
    else
        tpc_connection_close(plane->connections, it->request.connection, TPC_CLOSE_BUDGET, TPC_CLOSE_NOW);
}

/* acks=0 has no answer: an error closes the connection, as it would here. */
static void finish_produce(tpc_forwarded *it) {
    tpc_connections *connections = it->plane->connections;
    bool refused = false, failed = false;
    for (uint32_t i = 0; i < it->parts_count; i++) {
        refused |= it->parts[i].outcome == TPC_LINK_REFUSED;
        failed |= it->parts[i].outcome == TPC_LINK_LOST;
    }
    if (refused || (it->acks == 0 && failed))
        tpc_connection_close(connections, it->request.connection, TPC_CLOSE_REQUEST_INVALID, TPC_CLOSE_AFTER_ANSWERED);
    else if (it->acks == 0)
        tpc_answer_none(connections, it->request.connection, it->request.sequence);
    else
        answer_produce(it);
    tpc_forwarded_free(it);
}
