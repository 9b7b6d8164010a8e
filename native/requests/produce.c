/*
 * A Produce request, from its bytes to appends: two passes over its partitions.
 *
 * The survey changes nothing: it finds whether everything the request needs is at hand (partitions led here, room in the
 * journal, segment space), and otherwise leaves the request to Python. The second pass validates, checks sequences and
 * appends, partition by partition; from here on every outcome is a partition's error code in the answer. A partition that
 * is named twice gets both batches, and two answers.
 *
 * A request that is left, and has its own frame by then, keeps what was read of it (`decoded_produce`): Python asks for that
 * (tpc_plane_produce_asked), and so does every further try. One that was left where it lay in a receive buffer is read once
 * more, so twice in all. Only without memory to keep it in, within the core's budget, it is read each time.
 *
 * Below the level of transactions they are refused with TRANSACTIONAL_ID_AUTHORIZATION_FAILED, after which producers stop for good.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forward.h"
#include "grants.h"

enum { VERSION_WITH_TOPIC_IDS = 13 };

/* Kafka's time-out covers the waiting for replicas, not its own append: a very small one must not hit our journal write. */
#define TIMEOUT_NS_MIN 1000000000ll

/* A frame this much larger than its batches is not kept in the tail for their sake. */
#define FRAME_WASTE_BYTES_MAX 65536u

/* ---- one partition ---- */

/*
 * An unknown producer may begin anywhere, since its state may have been lost with old segments; but where no record has
 * ever been there is none that it followed (Kafka from 4.5 on). Were it taken, what comes before it could never be written.
 * Records that were acknowledged early may have been all that there was, and have gone with a crash.
 */
static bool begins_too_late(const tpc_partition *partition, const tpc_batch_header *header) {
    return header->base_sequence != 0 && !partition->log_end_offset && !(partition->flags & TPC_PARTITION_RELAXED) &&
           !tpc_producers_find(&partition->producers, header->producer_id);
}

static bool lacks_earlier(const tpc_partition *partition, const tpc_batch_header *header) {
    return begins_too_late(partition, header) || tpc_producers_lack(&partition->producers, header);
}

/*
 * A batch with a gap in front of it, of a partition that refused something lately, or is led here since lately: what is
 * missing is what was refused, and it is tried again when this one is answered. So it is refused as that one was. Were its
 * sequence called out of order, librdkafka would begin another producer epoch, in which all that it has not seen
 * acknowledged comes again as new records, of all partitions; but what was refused for its leader's sake, or was not
 * answered when another core ended, may be in the log. That a leader is back before what its clients had sent it has come
 * is usual: terms last for moments when leaders are handed over, and a core that starts, or takes a partition back, leads
 * it a moment after it was asked.
 *
 * What counts is when it came: it may have been held since, and what was refused may have gone by another connection, or
 * been refused on another core. An unknown producer may begin anywhere, but where it was refused itself: its connection knows
 * that of a partition whose leader was another core, and the partition where it has no other core.
 */
static int16_t shared_refusal(tpc_plane *plane, const tpc_partition *partition, uint64_t connection,
                              int64_t received_ns, const tpc_batch_header *header) {
    if (header->producer_id < 0 || header->base_sequence == 0) return 0;
    bool is_known = tpc_producers_find(&partition->producers, header->producer_id) != NULL;
    if (!is_known && partition->is_replicated)
        return connection ? tpc_connection_refusal(plane->connections, connection, received_ns) : 0;
    if (!partition->refused_with || received_ns - partition->refused_ns > TPC_REFUSED_NS_MAX) return 0;
    return !is_known || tpc_producers_lack(&partition->producers, header) ? partition->refused_with : 0;
}

/*
 * A gap in front of which nothing was refused here is one for sure where the log is the group's. A leader that was paused or
 * cut off, and does not know yet that another one is elected, lacks what that one took: its client is to go there. So Python asks
 * the quorum first, in a round that begins when the batch is here (raft-rules 7.3), and says what to refuse it with.
 */
static bool is_gap(tpc_plane *plane, const tpc_partition *partition, uint64_t connection, int64_t received_ns,
                   const tpc_batch_header *header) {
    return partition->is_replicated && header->producer_id >= 0 && lacks_earlier(partition, header) &&
           !shared_refusal(plane, partition, connection, received_ns, header);
}

/* Of what came before it, and is missing. */
static int16_t refusal_by_sequence(tpc_plane *plane, tpc_partition *partition, const tpc_produce_records *records,
                                   const tpc_batch_header *header) {
    int16_t shared = shared_refusal(plane, partition, records->connection, records->received_ns, header);
    if (shared || !records->gap_code) return shared;
    if (!is_gap(plane, partition, records->connection, records->received_ns, header)) return 0;
    tpc_produce_refused(plane, records->connection, partition, records->gap_code);
    return records->gap_code;
}

/* Whether the log has the batch that a producer is to be told of, as far as that can be seen in memory. */
static bool is_there(const tpc_partition *partition, const tpc_batch_header *header,
                     const tpc_producer_batch *earlier) {
    if (earlier->base_offset < 0 || earlier->last_offset < earlier->base_offset ||
        earlier->last_offset >= partition->log_end_offset)
        return false;
    tpc_tail_stretch stretch;
    tpc_batch_header found;
    if (tpc_tail_measure(partition, earlier->base_offset, 1, partition->log_end_offset, true, 1, &stretch) < 0)
        return true; /* in a segment */
    if (!stretch.count) return false;
    tpc_slice piece = tpc_tail_piece(partition, &stretch, 0, stretch.bytes);
    return tpc_batch_header_read(piece.data, piece.length, &found) == 0 && found.base_offset == earlier->base_offset &&
           found.last_offset_delta == header->last_offset_delta && found.producer_id == header->producer_id &&
           found.producer_epoch == header->producer_epoch && found.base_sequence == header->base_sequence;
}

/* Rule: Nobody is told that records are at offsets where they are not: what the log has is looked at before a success is
 * said, and an error is said in its place. Producers of a log that was cut are not believed until they are found again.
 * See also native/requests/pending.c, native/replication/replica.c, tpc_broker/broker/partition.py. Held by
 * tests/engine/test_doubted_answers.py, tests/broker/test_told_offsets.py, tests/simulator/nodes_oracle.py. */
static int judge_producer(tpc_plane *plane, const tpc_partition *partition, const tpc_batch_header *header,
                          tpc_append_result *result) {
    tpc_producer_batch earlier;
    if (partition->producers_stale) {
        result->error_code = tpc_produce_doubted(plane, partition, -1, -1);
        return 1;
    }
    switch (tpc_producers_check(&partition->producers, header, &earlier)) {
    case TPC_SEQUENCE_NEXT:
        if (!begins_too_late(partition, header)) return 0;
        result->error_code = TPC_ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER;
        return 1;
    case TPC_SEQUENCE_OUT_OF_ORDER:
        result->error_code = TPC_ERROR_OUT_OF_ORDER_SEQUENCE_NUMBER;
        return 1;
    case TPC_SEQUENCE_FENCED:
        result->error_code = TPC_ERROR_INVALID_PRODUCER_EPOCH;
        return 1;
    case TPC_SEQUENCE_NOT_IN_TRANSACTION:
        result->error_code = TPC_ERROR_INVALID_TXN_STATE;
        return 1;
    default:
        break;
    }
    if (!is_there(partition, header, &earlier)) {
        result->error_code = tpc_produce_doubted(plane, partition, earlier.base_offset, earlier.last_offset + 1);
        return 1;
    }
    *result = (tpc_append_result){.base_offset = earlier.base_offset,
                                  .next_offset = earlier.last_offset + 1,
                                  .append_ms = earlier.timestamp_ms,
                                  .duplicate = 1};
    if (earlier.base_offset >= partition->durable_offset) {
        const tpc_tail_batch *run = tpc_tail_find(partition, earlier.base_offset);
        TPC_PARTITION_INVARIANT(partition, run); /* what is not durable is in memory */
        result->sequence = run->sequence;
    }
    plane->statistics.duplicates++;
    return 1;
}

static int append_valid(tpc_plane *plane, tpc_partition *partition, const tpc_produce_records *records,
                        tpc_batch_report *report, tpc_append_result *result) {
    tpc_append_batch batch = {.frame = records->frame,
                              .batch = records->records,
                              .bytes = (uint32_t)report->header.batch_bytes,
                              .stamp_time = (partition->flags & TPC_PARTITION_LOG_APPEND_TIME) != 0,
                              .set_max_timestamp = (report->flags & TPC_BATCH_MAX_TIMESTAMP_WRONG) != 0,
                              .max_timestamp = report->records_max_timestamp,
                              .now_ms = records->now_ms};
    TPC_PARTITION_INVARIANT(partition, !tpc_replica_refusal(partition, records->acks));
    int error = tpc_append_batch_to(plane, partition, &batch, &report->header, result);
    TPC_PARTITION_INVARIANT(partition, error < 0 || result->next_offset == partition->log_end_offset);
    TPC_PARTITION_INVARIANT(partition, error < 0 || partition->high_watermark <= result->base_offset);
    return error;
}

int tpc_produce_to(tpc_plane *plane, tpc_partition *partition, const tpc_produce_records *records,
                   tpc_batch_report *report, tpc_append_result *result) {
    *result = (tpc_append_result){.base_offset = -1, .next_offset = -1, .append_ms = -1};
    result->relaxed = tpc_produce_relaxed(partition, records);
    if (partition->flags & TPC_PARTITION_INTERNAL) {
        memset(report, 0, sizeof *report);
        result->error_code = TPC_ERROR_INVALID_TOPIC_EXCEPTION;
        return 0;
    }
    result->error_code = tpc_replica_refusal(partition, records->acks);
    if (result->error_code) {
        tpc_produce_refused(plane, records->connection, partition, (int16_t)result->error_code);
        memset(report, 0, sizeof *report);
        return 0;
    }
    bool is_checked = records->timestamps_checked;
    tpc_batch_limits limits = {.now_ms = records->now_ms,
                               .timestamp_before_ms_max = is_checked ? INT64_MAX : partition->timestamp_before_ms_max,
                               .timestamp_after_ms_max = is_checked ? INT64_MAX : partition->timestamp_after_ms_max,
                               .batch_bytes_max = partition->batch_bytes_max,
                               .segment_bytes_max = partition->segment_bytes_max,
                               .produce_version = records->version,
                               .log_append_time = (partition->flags & TPC_PARTITION_LOG_APPEND_TIME) != 0,
                               .compacted = (partition->flags & TPC_PARTITION_COMPACTED) != 0};
    result->error_code = tpc_batch_validate(records->records, records->bytes, &limits, report);
    result->reason = report->reason;
    if (result->error_code) return 0;
    result->error_code = refusal_by_sequence(plane, partition, records, &report->header);
    if (result->error_code) return 0;
    if (report->header.producer_id >= 0 && judge_producer(plane, partition, &report->header, result)) {
        result->relaxed = tpc_produce_relaxed(partition, records);
        return 0;
    }
    result->error_code = tpc_produce_transaction_refusal(partition, records, &report->header);
    if (result->error_code) return 0;
    int error = append_valid(plane, partition, records, report, result);
    result->relaxed = tpc_produce_relaxed(partition, records);
    return error;
}

int tpc_plane_produce_records(tpc_plane *plane, uint64_t handle, const uint8_t *records, uint32_t bytes,
                              int16_t produce_version, tpc_append_result *result) {
    tpc_partition *partition = tpc_partition_of(plane, handle);
    if (!partition) return -ENOENT;
    if (tpc_records_transactional(records, (int32_t)bytes)) {
        *result = (tpc_append_result){.base_offset = -1,
                                      .append_ms = -1,
                                      .next_offset = -1,
                                      .error_code = TPC_ERROR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED};
        return 0;
    }
    tpc_frame *frame = tpc_frame_new_forced(plane->budget, bytes);
    if (!frame) return -ENOMEM;
    memcpy(frame->data, records, bytes);
    tpc_produce_records copy = {.frame = frame,
                                .records = frame->data,
                                .bytes = bytes,
                                .version = produce_version,
                                .received_ns = tpc_ring_now_ns(plane->ring),
                                .acks = TPC_ACKS_ALL,
                                .now_ms = tpc_plane_now_ms(plane)};
    tpc_batch_report report;
    int error = tpc_produce_to(plane, partition, &copy, &report, result);
    tpc_frame_release(frame);
    return error;
}

/* ---- the survey ---- */

typedef struct {
    tpc_produce_request request;
    const tpc_produce_verdict *verdicts; /* NULL: none yet */
    int32_t refused_code;                /* of the whole request: acks, transactions; 0: none */
    uint32_t records_bytes;
    bool has_transactional; /* batch */
    bool has_refused;       /* partition, by the right to write: scratch.refused[] */
} survey;

static int leave(tpc_plane *plane, enum tpc_produce_fallback reason) {
    plane->fallback_reason = reason;
    plane->statistics.produce_fallbacks++;
    return 0;
}

void tpc_produce_scratch_free(tpc_produce_scratch *scratch) {
    free(scratch->parts), free(scratch->partitions), free(scratch->lengths), free(scratch->results);
    free(scratch->places), free(scratch->asked), free(scratch->refused);
    *scratch = (tpc_produce_scratch){0};
}

/* For the most that a request may have: of memory that is never touched the kernel gives none. */
static int make_scratch(tpc_produce_scratch *scratch, int32_t capacity) {
    size_t parts = (size_t)capacity;
    *scratch = (tpc_produce_scratch){.capacity = capacity,
                                     .parts = malloc(parts * sizeof *scratch->parts),
                                     .partitions = malloc(parts * sizeof *scratch->partitions),
                                     .refused = malloc(parts * sizeof *scratch->refused),
                                     .lengths = malloc(parts * sizeof *scratch->lengths),
                                     .results = malloc(parts * sizeof *scratch->results),
                                     .places = malloc(parts * sizeof *scratch->places),
                                     .asked = malloc(parts * sizeof *scratch->asked)};
    if (scratch->parts && scratch->partitions && scratch->lengths && scratch->results && scratch->places &&
        scratch->asked && scratch->refused)
        return 0;
    tpc_produce_scratch_free(scratch);
    return -ENOMEM;
}

/* What a request says, in a frame beside its own. Its bytes stay as they are until it is carried out. */
typedef struct {
    const uint8_t *body; /* that it was read from */
    uint32_t body_bytes;
    tpc_produce_request request;
    tpc_produce_part parts[];
} decoded_produce;

/* Rule: A Produce is decoded once when C takes it, and twice at most when C leaves it, however often it is tried.
 * See also native/net/connection_requests.c, tpc_broker/engine/produces.py. Held by
 * tests/engine/test_produce_decoded.py, tests/engine/test_produce_paths_agree.py (what C tells is what Python's
 * codec finds). */
static void keep_decoded(tpc_plane *plane, tpc_request *request, const tpc_produce_request *asked) {
    if (!request->frame || request->decoded) return;
    size_t parts_bytes = (size_t)asked->parts_count * sizeof(tpc_produce_part);
    tpc_frame *frame = tpc_frame_new(plane->budget, (uint32_t)(sizeof(decoded_produce) + parts_bytes));
    if (!frame) return;
    decoded_produce *kept = (decoded_produce *)(void *)frame->data;
    *kept = (decoded_produce){.body = request->body, .body_bytes = request->body_bytes, .request = *asked};
    memcpy(kept->parts, plane->scratch.parts, parts_bytes);
    request->decoded = frame;
}

/* Never on the way of a request that is taken at once, so it takes none of its registers. */
static __attribute__((noinline)) void recall_decoded(tpc_plane *plane, const tpc_request *request,
                                                     tpc_produce_request *out) {
    const decoded_produce *kept = (const decoded_produce *)(const void *)request->decoded->data;
    TPC_INVARIANT(kept->body == request->body && kept->body_bytes == request->body_bytes,
                  "what is kept of a Produce was read from %u bytes at %p, its body has %u at %p", kept->body_bytes,
                  (const void *)kept->body, request->body_bytes, (const void *)request->body);
    *out = kept->request;
    TPC_HOLDS(out->parts_count >= 0 && out->parts_count <= plane->scratch.capacity);
    memcpy(plane->scratch.parts, kept->parts, (size_t)out->parts_count * sizeof kept->parts[0]);
}

/* The partitions, into the scratch. */
static inline enum tpc_produce_fallback decode(tpc_plane *plane, const tpc_request *request, tpc_produce_request *out) {
    tpc_produce_scratch *scratch = &plane->scratch;
    if (!scratch->capacity && make_scratch(scratch, plane->params.produce_partitions_max) < 0)
        return TPC_FALLBACK_NO_MEMORY;
    if (request->decoded) {
        recall_decoded(plane, request, out);
        return TPC_FALLBACK_NONE;
    }
    plane->statistics.produces_decoded++;
    switch (tpc_produce_decode(request->body, request->body_bytes, request->api_version, out, scratch->parts,
                               scratch->capacity)) {
    case 0:
        return TPC_FALLBACK_NONE;
    case -EPROTONOSUPPORT:
        return TPC_FALLBACK_VERSION;
    case -E2BIG:
        return TPC_FALLBACK_TOO_MANY;
    default:
        return TPC_FALLBACK_MALFORMED;
    }
}

tpc_partition *tpc_produce_partition_of(tpc_plane *plane, const tpc_produce_part *part, int16_t version) {
    if (version >= VERSION_WITH_TOPIC_IDS) return tpc_partition_identified(plane, part->topic_id, part->partition);
    return tpc_partition_named(plane, part->topic_name, (uint32_t)part->topic_name_bytes, part->partition);
}

/* How many bytes the request has for a partition up to here: it may name one more than once. */
static int64_t bytes_for(const tpc_plane *plane, tpc_partition *partition, int32_t bytes) {
    if (partition->survey != plane->surveys) partition->surveyed_bytes = 0;
    partition->survey = plane->surveys;
    return partition->surveyed_bytes += bytes;
}

static bool lacks_verdict(tpc_plane *plane, const tpc_request *request, const survey *about, int32_t i) {
    const tpc_produce_part *part = &plane->scratch.parts[i];
    const tpc_partition *partition = plane->scratch.partitions[i];
    tpc_batch_header header;
    if (!partition || !partition->is_replicated || partition->role != TPC_ROLE_LEADER || part->records_bytes <= 0)
        return false;
    if (about->verdicts && about->verdicts[i].gap_code) return false;
    if (tpc_batch_header_read(part->records, (size_t)part->records_bytes, &header) < 0) return false;
    return !tpc_replica_refusal(partition, (int16_t)about->request.acks) &&
           is_gap(plane, partition, request->connection, request->received_ns, &header);
}

static bool lacks_verification(const tpc_plane *plane, const tpc_request *request, const survey *about, int32_t i) {
    const tpc_partition *partition = plane->scratch.partitions[i];
    if (!about->has_transactional || about->refused_code) return false;
    if (!partition || partition->role != TPC_ROLE_LEADER || partition->flags & TPC_PARTITION_INTERNAL) return false;
    uint32_t guard = about->verdicts ? about->verdicts[i].guard : 0;
    return tpc_produce_lacks_verification(partition, &plane->scratch.parts[i], request->api_version, guard);
}

/*
 * More than a leader may have waits for its followers, or for a hand-over. A majority is there all the same (without one it
 * leads no more after a second), so its clients are held back by not being answered, as by a full journal: who produces with
 * `durability=relaxed`, or acks=1, waits for no follower by itself.
 */
static bool is_held_back(const tpc_partition *partition) {
    return partition && partition->is_replicated && partition->role == TPC_ROLE_LEADER &&
           !(partition->flags & TPC_PARTITION_INTERNAL) && tpc_replica_takes_nothing(partition);
}

static bool python_validates(const tpc_partition *partition, const tpc_produce_part *part) {
    tpc_batch_header header;
    if (partition->flags & TPC_PARTITION_PYTHON_VALIDATES) return true;
    if (!(partition->flags & TPC_PARTITION_COMPACTED) || part->records_bytes < TPC_BATCH_HEADER_BYTES) return false;
    if (tpc_batch_header_read(part->records, (size_t)part->records_bytes, &header)) return false;
    if (header.attributes & TPC_BATCH_COMPRESSION_MASK) return true;
    return tpc_records_keyless(part->records + TPC_BATCH_HEADER_BYTES,
                               (size_t)header.batch_bytes - TPC_BATCH_HEADER_BYTES, header.records_count, NULL, 0);
}

static enum tpc_produce_fallback survey_part(tpc_plane *plane, const tpc_request *request, const survey *about,
                                             int32_t i) {
    const tpc_produce_part *part = &plane->scratch.parts[i];
    tpc_partition *partition = plane->scratch.partitions[i];
    if (!about->verdicts && (!partition || partition->role != TPC_ROLE_LEADER)) return TPC_FALLBACK_UNKNOWN;
    if (!about->verdicts && python_validates(partition, part)) return TPC_FALLBACK_PYTHON_VALIDATES;
    if (partition && part->records_bytes > 0 &&
        partition->bytes_admitted < bytes_for(plane, partition, part->records_bytes))
        return TPC_FALLBACK_NOT_ADMITTED;
    if (is_held_back(partition)) return TPC_FALLBACK_UNCOMMITTED;
    if (lacks_verification(plane, request, about, i)) return TPC_FALLBACK_VERIFY;
    return lacks_verdict(plane, request, about, i) ? TPC_FALLBACK_GAP : TPC_FALLBACK_NONE;
}

static inline void look_up_part(tpc_plane *plane, const tpc_request *request, survey *about, int32_t i) {
    const tpc_produce_part *part = &plane->scratch.parts[i];
    plane->scratch.partitions[i] = tpc_produce_partition_of(plane, part, request->api_version);
    if (!tpc_records_transactional(part->records, part->records_bytes)) return;
    about->has_transactional = true;
    if (!plane->takes_transactions) about->refused_code = TPC_ERROR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
}

static __attribute__((noinline)) enum tpc_produce_fallback authorize(tpc_plane *plane, const tpc_request *request,
                                                                     survey *about) {
    tpc_produce_scratch *scratch = &plane->scratch;
    bool has_allowed = false;
    for (int32_t i = 0; i < about->request.parts_count; i++) {
        look_up_part(plane, request, about, i);
        scratch->refused[i] = false; /* nothing is written where there is no partition */
        if (!scratch->partitions[i] || (about->verdicts && about->verdicts[i].error_code)) continue;
        enum tpc_grant found = tpc_grants_ask(plane, scratch->partitions[i], request->subject, TPC_RIGHT_WRITE);
        if (found == TPC_GRANT_UNKNOWN) return TPC_FALLBACK_AUTHORIZE;
        has_allowed |= found == TPC_GRANT_ALLOWED;
        about->has_refused |= scratch->refused[i] = found == TPC_GRANT_REFUSED;
    }
    if (!about->has_transactional || about->refused_code) return TPC_FALLBACK_NONE;
    enum tpc_grant found = tpc_grants_ask_transactional(plane, about->request.transactional_id,
                                                        about->request.transactional_id_bytes, request->subject);
    /* Nothing of it is written in any case: who names ever new ids costs no decision each. */
    if (found == TPC_GRANT_UNKNOWN && about->has_refused && !has_allowed) found = TPC_GRANT_REFUSED;
    if (found == TPC_GRANT_REFUSED) about->refused_code = TPC_ERROR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    return found == TPC_GRANT_UNKNOWN ? TPC_FALLBACK_AUTHORIZE : TPC_FALLBACK_NONE;
}

static bool is_refused(const tpc_plane *plane, const survey *about, int32_t i) {
    return about->has_refused && plane->scratch.refused[i];
}

static enum tpc_produce_fallback survey_parts(tpc_plane *plane, const tpc_request *request, survey *about) {
    tpc_produce_scratch *scratch = &plane->scratch;
    uint32_t appends = 0;
    bool is_asked = tpc_grants_count(plane);
    plane->surveys++;
    if (is_asked) {
        enum tpc_produce_fallback reason = authorize(plane, request, about);
        if (reason) return reason;
    }
    for (int32_t i = 0; i < about->request.parts_count; i++) {
        const tpc_produce_part *part = &scratch->parts[i];
        if (!is_asked) look_up_part(plane, request, about, i);
        if (is_refused(plane, about, i) || (about->verdicts && about->verdicts[i].error_code)) continue;
        enum tpc_produce_fallback reason = survey_part(plane, request, about, i);
        if (reason) return reason;
        scratch->lengths[appends] = part->records_bytes > 0 ? (uint32_t)part->records_bytes : 0;
        about->records_bytes += scratch->lengths[appends++];
    }
    if (tpc_journal_would_fit(plane->journal, scratch->lengths, appends) == -EAGAIN) return TPC_FALLBACK_JOURNAL_FULL;
    return TPC_FALLBACK_NONE;
}

/* ---- the second pass ---- */

static int16_t code_of_failure(int error) {
    return error == -EMSGSIZE ? TPC_ERROR_MESSAGE_TOO_LARGE : TPC_ERROR_KAFKA_STORAGE_ERROR;
}

/* A large batch whose frame is not its request's alone, or only lent, is kept in one of its own. */
static bool needs_own_frame(const tpc_frame *frame, const tpc_produce_records *records, const survey *about) {
    return !tpc_tail_copies(records->bytes) &&
           (!frame || frame->capacity > about->records_bytes + FRAME_WASTE_BYTES_MAX);
}

static void produce_part(tpc_plane *plane, const tpc_request *request, tpc_pending *pending, int32_t i,
                         const survey *about) {
    const tpc_produce_part *part = &plane->scratch.parts[i];
    tpc_produce_result *result = &plane->scratch.results[i];
    tpc_partition *partition = plane->scratch.partitions[i];
    if (!partition || partition->role != TPC_ROLE_LEADER) {
        result->error_code = TPC_ERROR_NOT_LEADER_OR_FOLLOWER;
        tpc_produce_refused(plane, request->connection, partition, result->error_code);
        return;
    }
    tpc_produce_records records = {.connection = request->connection,
                                   .received_ns = request->received_ns,
                                   .frame = request->frame,
                                   .records = (uint8_t *)part->records,
                                   .bytes = part->records_bytes > 0 ? (uint32_t)part->records_bytes : 0,
                                   .version = request->api_version,
                                   .acks = (int16_t)about->request.acks,
                                   .gap_code = about->verdicts ? about->verdicts[i].gap_code : 0,
                                   .guard = about->verdicts ? about->verdicts[i].guard : 0,
                                   .now_ms = tpc_plane_now_ms(plane)};
    bool own_frame = needs_own_frame(request->frame, &records, about);
    if (own_frame && (records.frame = tpc_frame_new_forced(plane->budget, records.bytes)) != NULL)
        records.records = memcpy(records.frame->data, part->records, records.bytes);
    tpc_batch_report report;
    tpc_append_result appended;
    int error = own_frame && !records.frame ? -ENOMEM : tpc_produce_to(plane, partition, &records, &report, &appended);
    if (own_frame) tpc_frame_release(records.frame);
    if (error < 0) {
        result->error_code = code_of_failure(error);
        tpc_produce_refused(plane, request->connection, partition, result->error_code);
        return;
    }
    result->error_code = (int16_t)appended.error_code;
    result->log_start_offset = report.flags & TPC_BATCH_TELLS_LOG_START ? partition->log_start_offset : -1;
    if (appended.error_code) {
        tpc_produce_tell_bad_records(&report, result);
        return;
    }
    bool is_said_right = appended.base_offset >= 0 && appended.base_offset < appended.next_offset &&
                         appended.next_offset <= partition->log_end_offset;
    if (!is_said_right) {
        result->error_code = tpc_produce_doubted(plane, partition, appended.base_offset, appended.next_offset);
        tpc_produce_refused(plane, request->connection, partition, result->error_code);
        return;
    }
    result->base_offset = appended.base_offset;
    result->log_append_time_ms = appended.append_ms;
    TPC_PARTITION_INVARIANT(partition, !appended.relaxed || partition->flags & TPC_PARTITION_RELAXED);
    if (appended.relaxed) return;
    TPC_HOLDS(!pending->waits[i].partition && i < pending->parts_count);
    pending->waits[i].partition = partition; /* a duplicate, too: it shares the fate of the first one */
    pending->waits[i].end_offset = appended.next_offset;
}

static void begin_result(tpc_produce_result *result, const tpc_produce_part *part) {
    *result = (tpc_produce_result){.topic_name = part->topic_name,
                                   .topic_name_bytes = part->topic_name_bytes,
                                   .topic_index = part->topic_index,
                                   .partition = part->partition,
                                   .base_offset = -1,
                                   .log_append_time_ms = -1,
                                   .log_start_offset = -1,
                                   .error_message_bytes = -1,
                                   .leader_id = -1,
                                   .leader_epoch = -1};
    memcpy(result->topic_id, part->topic_id, sizeof result->topic_id);
}

/* What Kafka decides before the log is asked: a verdict about the topic stands, the acks come before the leader. */
static bool settled_before(tpc_plane *plane, const survey *about, int32_t i, tpc_produce_result *result) {
    const tpc_partition *partition = plane->scratch.partitions[i];
    const tpc_produce_verdict *verdict = about->verdicts ? &about->verdicts[i] : NULL;
    bool leadership = verdict && verdict->error_code == TPC_ERROR_NOT_LEADER_OR_FOLLOWER;
    bool is_transactional_id = about->refused_code == TPC_ERROR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    if (!is_transactional_id && is_refused(plane, about, i)) {
        plane->grant_statistics.refused_produces++;
        result->error_code = TPC_ERROR_TOPIC_AUTHORIZATION_FAILED;
        return true;
    }
    if (is_transactional_id || (about->refused_code && (!verdict || !verdict->error_code || leadership))) {
        result->error_code = (int16_t)about->refused_code;
        return true;
    }
    if (!verdict || !verdict->error_code) return false;
    result->error_code = verdict->error_code;
    result->leader_id = verdict->leader_id;
    result->leader_epoch = verdict->leader_epoch;
    result->error_message = verdict->error_message;
    result->error_message_bytes = verdict->error_message_bytes;
    if (verdict->keyless_count > 0) tpc_produce_tell_keyless(verdict, partition, result);
    return true;
}

/* acks=0: nothing is said, but a connection whose request met an error is closed, so that its client notices. */
static void end_without_answer(tpc_plane *plane, const tpc_request *request, int32_t parts_count) {
    bool failed = false;
    for (int32_t i = 0; i < parts_count; i++) failed |= plane->scratch.results[i].error_code != 0;
    if (failed)
        tpc_connection_close(plane->connections, request->connection, TPC_CLOSE_REQUEST_INVALID,
                             TPC_CLOSE_AFTER_ANSWERED);
    else
        tpc_answer_none(plane->connections, request->connection, request->sequence);
}

static void produce_parts(tpc_plane *plane, const tpc_request *request, tpc_pending *pending, const survey *about) {
    tpc_produce_scratch *scratch = &plane->scratch;
    for (int32_t i = 0; i < about->request.parts_count; i++) {
        begin_result(&scratch->results[i], &scratch->parts[i]);
        if (settled_before(plane, about, i, &scratch->results[i]))
            tpc_produce_refused(plane, request->connection, scratch->partitions[i], scratch->results[i].error_code);
        else
            produce_part(plane, request, pending, i, about);
        const tpc_produce_result *told = &scratch->results[i]; /* an offset, or an error, and never both */
        TPC_HOLDS((told->error_code == TPC_ERROR_NONE) == (told->base_offset >= 0));
        TPC_HOLDS(!pending->waits[i].partition || told->base_offset < pending->waits[i].end_offset);
    }
}

static void forget_record_errors(tpc_plane *plane, int32_t parts_count) {
    for (int32_t i = 0; i < parts_count; i++) free((void *)plane->scratch.results[i].record_errors);
}

static void answer(tpc_plane *plane, const tpc_request *request, tpc_pending *pending, const survey *about,
                   const tpc_node_endpoint *endpoints, int32_t endpoints_count) {
    if (about->request.acks == 0) {
        end_without_answer(plane, request, about->request.parts_count);
        tpc_pending_free(plane, pending);
        return;
    }
    TPC_HOLDS(pending->parts_count == about->request.parts_count && pending->waits_left == 0);
    int64_t timeout_ns = (int64_t)about->request.timeout_ms * 1000000;
    pending->deadline_ns = tpc_ring_now_ns(plane->ring) + (timeout_ns > TIMEOUT_NS_MIN ? timeout_ns : TIMEOUT_NS_MIN);
    bool is_early = about->request.acks == 1 && !about->has_transactional;
    enum tpc_wait_level level = is_early ? TPC_WAIT_DURABLE : TPC_WAIT_COMMITTED;
    tpc_pending_begin(plane, pending, request, level, endpoints, endpoints_count);
}

static int leave_decoded(tpc_plane *plane, tpc_request *request, const survey *about,
                         enum tpc_produce_fallback reason) {
    keep_decoded(plane, request, &about->request);
    return leave(plane, reason);
}

/* Carries a request out, or leaves it; it stays the caller's. */
static int carry_out(tpc_plane *plane, tpc_request *request, const tpc_produce_verdict *verdicts,
                     int32_t verdicts_count, const tpc_node_endpoint *endpoints, int32_t endpoints_count) {
    survey about = {.verdicts = verdicts};
    enum tpc_produce_fallback reason = decode(plane, request, &about.request);
    if (reason) return leave(plane, reason);
    if (verdicts && verdicts_count != about.request.parts_count) return -EINVAL;
    if (about.request.acks < -1 || about.request.acks > 1) about.refused_code = TPC_ERROR_INVALID_REQUIRED_ACKS;
    if (about.request.transactional_id_bytes >= 0 && !plane->takes_transactions)
        about.refused_code = TPC_ERROR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
    reason = survey_parts(plane, request, &about);
    if (reason && !verdicts && tpc_forwards(plane, request)) {
        int sent = tpc_forward_produce(plane, request, &about.request, plane->scratch.parts);
        if (sent > 0) return 1;
        if (sent < 0) reason = TPC_FALLBACK_NO_MEMORY; /* it is tried again */
    }
    if (reason) return leave_decoded(plane, request, &about, reason);
    tpc_pending *pending = tpc_pending_new(plane, request, about.request.parts_count);
    if (!pending) return leave_decoded(plane, request, &about, TPC_FALLBACK_NO_MEMORY);
    produce_parts(plane, request, pending, &about);
    plane->fallback_reason = TPC_FALLBACK_NONE;
    plane->statistics.produces_taken++;
    answer(plane, request, pending, &about, endpoints, endpoints_count);
    forget_record_errors(plane, about.request.parts_count);
    return 1;
}

int tpc_plane_produce_with(tpc_plane *plane, tpc_request *request, const tpc_produce_verdict *verdicts,
                           int32_t verdicts_count, const tpc_plane_endpoint *endpoints, int32_t endpoints_count) {
    tpc_node_endpoint few[8] = {0}, *told = endpoints_count <= 8 ? few : malloc((size_t)endpoints_count * sizeof *told);
    if (!told) return leave(plane, TPC_FALLBACK_NO_MEMORY);
    for (int32_t i = 0; i < endpoints_count; i++)
        told[i] = (tpc_node_endpoint){.host = endpoints[i].host,
                                      .host_bytes = endpoints[i].host_bytes,
                                      .rack = endpoints[i].rack,
                                      .rack_bytes = endpoints[i].rack_bytes,
                                      .node_id = endpoints[i].node_id,
                                      .port = endpoints[i].port};
    int taken = carry_out(plane, request, verdicts, verdicts_count, told, endpoints_count);
    if (taken == 1) {
        tpc_request_leaves_python(plane->connections, request);
        tpc_request_release(request);
    }
    if (told != few) free(told);
    return taken;
}

int tpc_plane_produce(tpc_plane *plane, tpc_request *request) {
    return tpc_plane_produce_with(plane, request, NULL, 0, NULL, 0);
}

int tpc_plane_fallback_reason(const tpc_plane *plane) { return plane->fallback_reason; }

int tpc_plane_produce_asked(tpc_plane *plane, tpc_request *request, tpc_asked_produce *out) {
    tpc_produce_request asked;
    enum tpc_produce_fallback reason = decode(plane, request, &asked);
    if (reason) return reason;
    keep_decoded(plane, request, &asked);
    for (int32_t i = 0; i < asked.parts_count; i++) {
        const tpc_produce_part *part = &plane->scratch.parts[i];
        tpc_asked_part *row = &plane->scratch.asked[i];
        *row = (tpc_asked_part){.partition = part->partition,
                                .records_place = part->records ? (int32_t)(part->records - request->body) : 0,
                                .records_bytes = part->records_bytes,
                                .name_place = part->topic_name ? (int32_t)(part->topic_name - request->body) : 0,
                                .name_bytes = part->topic_name_bytes};
        memcpy(row->topic_id, part->topic_id, sizeof row->topic_id);
    }
    *out = (tpc_asked_produce){.parts = plane->scratch.asked,
                               .parts_count = asked.parts_count,
                               .timeout_ms = asked.timeout_ms,
                               .transactional_id_place =
                                   asked.transactional_id ? (int32_t)(asked.transactional_id - request->body) : 0,
                               .transactional_id_bytes = asked.transactional_id_bytes};
    return 0;
}

int tpc_produce_borrowed(tpc_plane *plane, tpc_request *request) { return carry_out(plane, request, NULL, 0, NULL, 0); }
