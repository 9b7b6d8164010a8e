/*
 * Compaction, record by record.
 *
 * First the newest offset of each key of the part of the log that was not cleaned yet goes into a map; then every record
 * is held against it. The map has hashes of keys, not keys: 128 bits of SipHash-2-4 with a key that is drawn for each job,
 * so that nobody can choose two keys that it takes for one. It is open addressing with steps of one: nothing is ever
 * removed, and it is never full to the brim.
 *
 * What is written is what Kafka's cleaner writes. A batch of which all records stay is copied. Another one keeps its
 * offsets, its producer and its leader epoch; its base_timestamp is that of the first record that stays, or its horizon
 * where it has one, and the deltas of its records are made anew.
 */
#include <errno.h>

#include "batch.h"
#include "clean_codecs.h"
#include "sip.h"
#include "wire.h"

enum {
    CRC_COVERS_FROM = 21,
    EMPTIED_ATTRIBUTES = TPC_BATCH_LOG_APPEND_TIME | TPC_BATCH_TRANSACTIONAL | TPC_BATCH_IS_CONTROL,
    KEPT_ATTRIBUTES = EMPTIED_ATTRIBUTES | TPC_BATCH_COMPRESSION_MASK,
    /* By which one record may grow: the delta of its timestamp by 9, its length by 4. */
    RECORD_GROWTH_MAX = 13,
    CACHE_LINE_BYTES = 64,
};

/* ---- the map ---- */

static void hash_of(const uint64_t key[2], const uint8_t *bytes, size_t count, uint64_t hash[2]) {
    tpc_sip state = tpc_sip_begin(key);
    state.b ^= 0xee;
    tpc_sip_take_bytes(&state, bytes, count, count, 2);
    state.c ^= 0xee;
    hash[0] = tpc_sip_end(&state, 4);
    state.b ^= 0xdd;
    hash[1] = tpc_sip_end(&state, 4);
}

static inline uint64_t slot_of(const tpc_cleaner *cleaner, const uint64_t hash[2]) {
    return (uint64_t)((unsigned __int128)hash[0] * (uint64_t)cleaner->slots_count >> 64);
}

/* The key's place, or the free one that it would have. */
static inline tpc_clean_key *place_of(const tpc_cleaner *cleaner, const uint64_t hash[2]) {
    for (uint64_t at = slot_of(cleaner, hash);; at = at + 1 == (uint64_t)cleaner->slots_count ? 0 : at + 1) {
        tpc_clean_key *key = &cleaner->keys[at];
        if (!key->next_offset || (key->hash[0] == hash[0] && key->hash[1] == hash[1])) return key;
    }
}

/* False: the map is full. */
static bool put_key(tpc_cleaner *cleaner, const uint64_t hash[2], int64_t offset) {
    tpc_clean_key *key = place_of(cleaner, hash);
    if (!key->next_offset) {
        if (cleaner->keys_count >= cleaner->keys_max) return false;
        cleaner->keys_count++;
        memcpy(key->hash, hash, sizeof key->hash);
    }
    if (offset >= key->next_offset) key->next_offset = offset + 1;
    return true;
}

/* ---- batches ---- */

static inline int64_t last_offset_of(const tpc_batch_header *header) {
    return header->base_offset + header->last_offset_delta;
}

/* The batch at cleaner->place. False: there is none, cleaner->stop says why. */
static bool begin_batch(tpc_cleaner *cleaner, const uint8_t *bytes, size_t bytes_count, tpc_batch_header *header) {
    const uint8_t *at = bytes + cleaner->place;
    cleaner->stop = TPC_CLEAN_END;
    if ((size_t)cleaner->place >= bytes_count) return false;
    cleaner->reason = batch_check_stored(at, bytes_count - (size_t)cleaner->place, header);
    if (cleaner->reason == TPC_BATCH_TRUNCATED) return false;
    if (!cleaner->reason &&
        (header->base_offset < cleaner->next_offset || last_offset_of(header) >= cleaner->source_end_offset))
        cleaner->reason = TPC_BATCH_BAD_ORDER;
    if (!cleaner->reason &&
        tpc_crc32c(0, at + CRC_COVERS_FROM, (size_t)header->batch_bytes - CRC_COVERS_FROM) != header->crc)
        cleaner->reason = TPC_BATCH_BAD_CRC;
    if (!cleaner->reason) return true;
    cleaner->stop = TPC_CLEAN_BAD;
    return false;
}

static bool is_compressed(const tpc_batch_header *header) { return header->attributes & TPC_BATCH_COMPRESSION_MASK; }

typedef struct {
    const uint8_t *bytes; /* NULL: the caller has to unpack them */
    size_t count;
} records_span;

/* The records of the compressed batch at cleaner->place, until the next call. */
static records_span unpack(tpc_cleaner *cleaner, const uint8_t *batch, const tpc_batch_header *header) {
    tpc_clean_codecs *codecs = &cleaner->codecs;
    int64_t count = clean_unpack(codecs, header->attributes & TPC_BATCH_COMPRESSION_MASK, codecs->unpacked,
                                 batch + TPC_BATCH_HEADER_BYTES, (size_t)header->batch_bytes - TPC_BATCH_HEADER_BYTES);
    return count < 0 ? (records_span){0} : (records_span){codecs->unpacked, (size_t)count};
}

/*
 * Unpacking zstd takes as long as packing what is left, and lz4 longer than memory. So as long as there is room, what
 * collecting has unpacked stays for writing, which meets the same batches in the same order. Which batch it was of is told by all of its header, in
 * which is the checksum of the rest, and both readings hold the batch against that.
 */
typedef struct {
    uint8_t header[TPC_BATCH_HEADER_BYTES];
    uint8_t reserved[3];
    int64_t base_offset;
    int64_t records_bytes;
} remembered;

_Static_assert(sizeof(remembered) == 80, "records and the next header are aligned");

static inline int64_t remembered_size(int64_t records_bytes) {
    return (int64_t)sizeof(remembered) + ((records_bytes + 7) & ~7);
}

/* As unpack(), for good where there is room. */
static records_span unpack_and_remember(tpc_cleaner *cleaner, const uint8_t *batch, const tpc_batch_header *header) {
    tpc_clean_codecs *codecs = &cleaner->codecs;
    if (codecs->remembered_bytes - codecs->remembered_end < remembered_size(codecs->unpacked_bytes))
        return unpack(cleaner, batch, header);
    remembered *one = (remembered *)(codecs->remembered + codecs->remembered_end);
    uint8_t *records = (uint8_t *)(one + 1);
    int64_t count = clean_unpack(codecs, header->attributes & TPC_BATCH_COMPRESSION_MASK, records,
                                 batch + TPC_BATCH_HEADER_BYTES, (size_t)header->batch_bytes - TPC_BATCH_HEADER_BYTES);
    if (count < 0) return (records_span){0};
    memcpy(one->header, batch, TPC_BATCH_HEADER_BYTES);
    one->base_offset = header->base_offset;
    one->records_bytes = count;
    codecs->remembered_end += remembered_size(count);
    return (records_span){records, (size_t)count};
}

/* Records are walked over by their lengths, one miss of the cache after the other. The next batch is about as large. */
static inline void ask_for_next(const tpc_clean_codecs *codecs, const remembered *one) {
    int64_t size = remembered_size(one->records_bytes), begin = codecs->remembered_at + size;
    int64_t end = begin + size < codecs->remembered_end ? begin + size : codecs->remembered_end;
    for (int64_t at = begin; at < end; at += CACHE_LINE_BYTES) __builtin_prefetch(codecs->remembered + at);
}

/* As unpack(), of what collecting has left where it has. */
static records_span recall(tpc_cleaner *cleaner, const uint8_t *batch, const tpc_batch_header *header) {
    tpc_clean_codecs *codecs = &cleaner->codecs;
    if (!clean_can_pack(codecs, header->attributes & TPC_BATCH_COMPRESSION_MASK)) return (records_span){0};
    while (codecs->remembered_at < codecs->remembered_end) {
        const remembered *one = (const remembered *)(codecs->remembered + codecs->remembered_at);
        if (memcmp(one->header, batch, TPC_BATCH_HEADER_BYTES) == 0) {
            ask_for_next(codecs, one);
            return (records_span){(const uint8_t *)(one + 1), (size_t)one->records_bytes};
        }
        if (one->base_offset >= header->base_offset) break;
        codecs->remembered_at += remembered_size(one->records_bytes);
    }
    return unpack(cleaner, batch, header);
}

/* What the caller has to know of the batch that it is to unpack. */
static int ask_to_unpack(tpc_cleaner *cleaner, const tpc_batch_header *header) {
    cleaner->batch_bytes = header->batch_bytes;
    cleaner->attributes = header->attributes;
    return TPC_CLEAN_UNPACK;
}

static void pass_batch(tpc_cleaner *cleaner, const tpc_batch_header *header) {
    cleaner->place += header->batch_bytes;
    cleaner->next_offset = last_offset_of(header) + 1;
}

/* The aborted transaction that a batch of data is of; NULL: none. */
static tpc_clean_aborted *aborted_of(const tpc_cleaner *cleaner, const tpc_batch_header *header) {
    if (!(header->attributes & TPC_BATCH_TRANSACTIONAL)) return NULL;
    int64_t low = 0, high = cleaner->aborted_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const tpc_clean_aborted *one = &cleaner->aborted[middle];
        if (one->producer_id < header->producer_id ||
            (one->producer_id == header->producer_id && one->first_offset <= header->base_offset))
            low = middle + 1;
        else
            high = middle;
    }
    tpc_clean_aborted *one = low ? &cleaner->aborted[low - 1] : NULL;
    return one && one->producer_id == header->producer_id && header->base_offset <= one->last_offset ? one : NULL;
}

/* The next record of a batch, of which `after` is the least offset delta. False: it is none. */
static inline bool next_record(const tpc_batch_header *header, const uint8_t *records, size_t records_bytes,
                               size_t *position, int32_t after, tpc_record *record) {
    return tpc_record_read(records, records_bytes, position, record) == 0 && record->offset_delta >= after &&
           record->offset_delta <= header->last_offset_delta;
}

/* Records of a batch, some at a time: while the first ones are dealt with, their places in the map come from memory. */
enum { AHEAD = 32 };

typedef struct {
    const tpc_batch_header *header;
    const uint8_t *records;
    size_t records_bytes;
    size_t position;
    int32_t read;  /* of the batch */
    int32_t after; /* the least offset delta of the next one */
    struct {
        tpc_record record;
        uint64_t hash[2];
    } ahead[AHEAD];
} record_walk;

/* How many are in `ahead`; 0: there are no more; -1: what comes next is no record. */
static int read_ahead(const tpc_cleaner *cleaner, record_walk *walk) {
    int filled = 0;
    for (; filled < AHEAD && walk->read < walk->header->records_count; filled++, walk->read++) {
        tpc_record *record = &walk->ahead[filled].record;
        if (!next_record(walk->header, walk->records, walk->records_bytes, &walk->position, walk->after, record))
            return -1;
        walk->after = record->offset_delta < INT32_MAX ? record->offset_delta + 1 : INT32_MAX;
        if (!record->key) continue;
        hash_of(cleaner->hash_key, record->key, (size_t)record->key_bytes, walk->ahead[filled].hash);
        __builtin_prefetch(&cleaner->keys[slot_of(cleaner, walk->ahead[filled].hash)], 1);
    }
    return filled ? filled : walk->position == walk->records_bytes ? 0 : -1;
}

static bool are_records(const tpc_batch_header *header, const uint8_t *records, size_t records_bytes) {
    size_t position = 0;
    int32_t after = 0;
    for (int32_t index = 0; index < header->records_count; index++) {
        tpc_record record;
        if (!next_record(header, records, records_bytes, &position, after, &record)) return false;
        after = record.offset_delta < INT32_MAX ? record.offset_delta + 1 : INT32_MAX;
    }
    return position == records_bytes;
}

/* ---- collecting ---- */

/* False: the map is full. */
static bool collect_records(tpc_cleaner *cleaner, const tpc_batch_header *header, const uint8_t *records,
                            size_t records_bytes) {
    if (!are_records(header, records, records_bytes)) return true;
    record_walk walk = {.header = header, .records = records, .records_bytes = records_bytes};
    for (int count; (count = read_ahead(cleaner, &walk)) > 0;) {
        for (int i = 0; i < count; i++) {
            const tpc_record *record = &walk.ahead[i].record;
            int64_t offset = header->base_offset + record->offset_delta;
            if (!record->key || offset < cleaner->first_offset || put_key(cleaner, walk.ahead[i].hash, offset))
                continue;
            cleaner->stop = TPC_CLEAN_FULL;
            cleaner->end_offset = offset;
            return false;
        }
    }
    return true;
}

static void collected(tpc_cleaner *cleaner, const tpc_batch_header *header) {
    pass_batch(cleaner, header);
    if (cleaner->next_offset > cleaner->end_offset) cleaner->end_offset = cleaner->next_offset;
}

int tpc_clean_collect(tpc_cleaner *cleaner, const uint8_t *bytes, size_t bytes_count) {
    tpc_batch_header header;
    while (begin_batch(cleaner, bytes, bytes_count, &header)) {
        bool has_keys = header.records_count > 0 && last_offset_of(&header) >= cleaner->first_offset &&
                        !(header.attributes & TPC_BATCH_IS_CONTROL) && !aborted_of(cleaner, &header);
        const uint8_t *records = bytes + cleaner->place + TPC_BATCH_HEADER_BYTES;
        size_t records_bytes = (size_t)header.batch_bytes - TPC_BATCH_HEADER_BYTES;
        if (has_keys && is_compressed(&header)) {
            records_span unpacked = unpack_and_remember(cleaner, bytes + cleaner->place, &header);
            if (!unpacked.bytes) {
                cleaner->stop = ask_to_unpack(cleaner, &header);
                break;
            }
            records = unpacked.bytes, records_bytes = unpacked.count;
        }
        if (has_keys && !collect_records(cleaner, &header, records, records_bytes)) break;
        collected(cleaner, &header);
    }
    return cleaner->stop;
}

int tpc_clean_collect_unpacked(tpc_cleaner *cleaner, const uint8_t *batch, const uint8_t *records,
                               size_t records_bytes) {
    tpc_batch_header header;
    if (tpc_batch_header_read(batch, SIZE_MAX, &header) < 0) return -EINVAL;
    cleaner->stop = TPC_CLEAN_END;
    if (!records || collect_records(cleaner, &header, records, records_bytes)) collected(cleaner, &header);
    return cleaner->stop;
}

/* ---- judging ---- */

static inline bool has_horizon(const tpc_cleaner *cleaner, const tpc_batch_header *header) {
    return cleaner->horizons_believed && (header->attributes & TPC_CLEAN_HORIZON);
}

static inline int64_t timestamp_of(const tpc_batch_header *header, const tpc_record *record) {
    if (header->attributes & TPC_BATCH_LOG_APPEND_TIME) return header->max_timestamp;
    return (int64_t)((uint64_t)header->base_timestamp + (uint64_t)record->timestamp_delta);
}

static inline bool is_marked(const tpc_cleaner *cleaner, int32_t index) {
    return cleaner->marks[index >> 3] >> (index & 7) & 1;
}

static inline void mark(tpc_cleaner *cleaner, int32_t index, bool stays) {
    uint8_t bit = (uint8_t)(1u << (index & 7));
    if (stays)
        cleaner->marks[index >> 3] |= bit;
    else
        cleaner->marks[index >> 3] &= (uint8_t)~bit;
}

/* Whether a record of the part that the map knows stays. */
static inline bool record_stays(const tpc_cleaner *cleaner, const tpc_record *record, const uint64_t hash[2],
                                int64_t offset, bool is_over, tpc_clean_verdict *verdict) {
    if (!record->key || place_of(cleaner, hash)->next_offset > offset + 1) return false;
    if (record->value || !is_over) return true;
    verdict->removed_upto = offset + 1;
    return false;
}

/* Kafka's order: a batch whose last offset a producer is known by is emptied where another one goes. */
static int outcome_without_records(const tpc_cleaner *cleaner, const tpc_batch_header *header) {
    int64_t last_offset = last_offset_of(header), low = 0, high = cleaner->kept_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (cleaner->kept_offsets[middle] < last_offset)
            low = middle + 1;
        else
            high = middle;
    }
    bool stays = low < cleaner->kept_count && cleaner->kept_offsets[low] == last_offset && header->producer_id >= 0;
    return stays ? TPC_CLEAN_EMPTIED : TPC_CLEAN_GONE;
}

/* What the records that are marked say together. */
typedef struct {
    int64_t first_timestamp;
    int64_t max_timestamp;
    bool has_tombstone;
} kept_records;

/* Marks the records that stay. False: they cannot be read. */
static bool judge_records(tpc_cleaner *cleaner, const tpc_batch_header *header, const uint8_t *records,
                          size_t records_bytes, tpc_clean_verdict *verdict, kept_records *kept) {
    bool is_over =
        has_horizon(cleaner, header) && header->base_timestamp <= cleaner->now_ms && !cleaner->tombstones_stay;
    record_walk walk = {.header = header, .records = records, .records_bytes = records_bytes};
    int32_t index = 0;
    int count;
    if (header->records_count > cleaner->marks_bytes * 8) return false;
    while ((count = read_ahead(cleaner, &walk)) > 0) {
        for (int i = 0; i < count; i++, index++) {
            const tpc_record *record = &walk.ahead[i].record;
            int64_t offset = header->base_offset + record->offset_delta;
            bool stays = offset >= cleaner->end_offset || (header->attributes & TPC_BATCH_IS_CONTROL) ||
                         record_stays(cleaner, record, walk.ahead[i].hash, offset, is_over, verdict);
            mark(cleaner, index, stays);
            if (!stays) continue;
            int64_t timestamp = timestamp_of(header, record);
            if (!verdict->records_count++) kept->first_timestamp = timestamp;
            if (timestamp > kept->max_timestamp) kept->max_timestamp = timestamp;
            kept->has_tombstone |= !record->value;
        }
    }
    return count == 0;
}

static int16_t copied_attributes(const tpc_cleaner *cleaner, const tpc_batch_header *header) {
    return cleaner->horizons_believed ? header->attributes : (int16_t)(header->attributes & ~TPC_CLEAN_HORIZON);
}

static tpc_clean_verdict verdict_of_copy(const tpc_cleaner *cleaner, const tpc_batch_header *header, int outcome) {
    return (tpc_clean_verdict){.outcome = outcome,
                               .attributes = copied_attributes(cleaner, header),
                               .base_timestamp = header->base_timestamp,
                               .max_timestamp = header->max_timestamp,
                               .records_count = header->records_count};
}

/* `is_dated`: a control batch that gets a horizon. */
static tpc_clean_verdict judge(tpc_cleaner *cleaner, const tpc_batch_header *header, const uint8_t *records,
                               size_t records_bytes, bool is_dated) {
    tpc_clean_verdict verdict = {0};
    kept_records kept = {.max_timestamp = -1};
    if (!judge_records(cleaner, header, records, records_bytes, &verdict, &kept))
        return verdict_of_copy(cleaner, header, TPC_CLEAN_UNREADABLE);
    if (!verdict.records_count) {
        verdict.outcome = outcome_without_records(cleaner, header);
        return verdict;
    }
    bool has_one = has_horizon(cleaner, header);
    verdict.is_horizon_new = !has_one && cleaner->may_grow &&
                             (is_dated || (kept.has_tombstone && last_offset_of(header) < cleaner->end_offset));
    if (verdict.records_count == header->records_count && !verdict.is_horizon_new)
        return verdict_of_copy(cleaner, header, TPC_CLEAN_STAYS);
    bool keeps_base = has_one || !cleaner->may_grow;
    verdict.outcome = TPC_CLEAN_REWRITTEN;
    verdict.deltas_stay = !cleaner->may_grow;
    verdict.base_timestamp = verdict.is_horizon_new ? cleaner->new_horizon_ms
                             : keeps_base           ? header->base_timestamp
                                                    : kept.first_timestamp;
    verdict.max_timestamp = header->attributes & TPC_BATCH_LOG_APPEND_TIME ? header->max_timestamp : kept.max_timestamp;
    verdict.attributes =
        (int16_t)((header->attributes & KEPT_ATTRIBUTES) | (has_one || verdict.is_horizon_new ? TPC_CLEAN_HORIZON : 0));
    return verdict;
}

/* ---- writing ---- */

static uint8_t *put_varlong(uint8_t *at, int64_t value) {
    uint64_t raw = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    for (; raw >= 0x80; raw >>= 7) *at++ = (uint8_t)(raw | 0x80);
    *at++ = (uint8_t)raw;
    return at;
}

static const uint8_t *behind_varint(const uint8_t *at) {
    while (*at++ & 0x80) {
    }
    return at;
}

/* One record that was read before, with the other base timestamp. Its attributes have no meaning, and are zero. */
static uint8_t *put_record(uint8_t *at, const uint8_t *record_begin, const tpc_record *record,
                           int64_t timestamp_delta) {
    uint8_t front[24] = {0}, *end = put_varlong(front + 1, timestamp_delta);
    end = put_varlong(end, record->offset_delta);
    const uint8_t *rest = behind_varint(behind_varint(behind_varint(record_begin) + 1));
    size_t front_bytes = (size_t)(end - front), rest_bytes = (size_t)(record_begin + record->record_bytes - rest);
    at = put_varlong(at, (int64_t)(front_bytes + rest_bytes));
    memcpy(at, front, front_bytes);
    memcpy(at + front_bytes, rest, rest_bytes);
    return at + front_bytes + rest_bytes;
}

/* The records that are marked; how many bytes. */
static size_t put_records(const tpc_cleaner *cleaner, const tpc_batch_header *header, const uint8_t *records,
                          size_t records_bytes, const tpc_clean_verdict *verdict, uint8_t *out) {
    uint8_t *at = out;
    size_t position = 0, begin = 0;
    for (int32_t index = 0; index < header->records_count; index++, begin = position) {
        tpc_record record;
        if (tpc_record_read(records, records_bytes, &position, &record) != 0) break;
        if (!is_marked(cleaner, index)) continue;
        uint64_t delta = (uint64_t)timestamp_of(header, &record) - (uint64_t)verdict->base_timestamp;
        at = put_record(at, records + begin, &record, verdict->deltas_stay ? record.timestamp_delta : (int64_t)delta);
    }
    return (size_t)(at - out);
}

/* The header in front of records_bytes that stand behind it, with its checksum. */
static void put_header(const uint8_t *batch, const tpc_clean_verdict *verdict, size_t records_bytes, uint8_t *out) {
    memcpy(out, batch, TPC_BATCH_HEADER_BYTES); /* offsets, leader epoch, magic, the producer's fields */
    wire_set_u32(out + 8, (uint32_t)(records_bytes + TPC_BATCH_HEADER_BYTES - TPC_BATCH_LENGTH_OVERHEAD_BYTES));
    wire_set_u16(out + 21, (uint16_t)verdict->attributes);
    wire_set_u64(out + 27, (uint64_t)verdict->base_timestamp);
    wire_set_u64(out + 35, (uint64_t)verdict->max_timestamp);
    wire_set_u32(out + 57, (uint32_t)verdict->records_count);
    tpc_batch_seal(out, records_bytes + TPC_BATCH_HEADER_BYTES);
}

/* As it was, but for a horizon that was not believed. */
static void put_copy(const uint8_t *batch, const tpc_batch_header *header, const tpc_clean_verdict *verdict,
                     uint8_t *out) {
    memcpy(out, batch, (size_t)header->batch_bytes);
    if (verdict->attributes != header->attributes) put_header(batch, verdict, (size_t)header->batch_bytes - 61, out);
}

static void put_emptied(const uint8_t *batch, const tpc_batch_header *header, uint8_t *out) {
    tpc_clean_verdict verdict = {.attributes = (int16_t)(header->attributes & EMPTIED_ATTRIBUTES),
                                 .base_timestamp = -1,
                                 .max_timestamp = header->max_timestamp};
    put_header(batch, &verdict, 0, out);
}

/* At most so many bytes are written of a batch whose records take so many. */
static size_t room_for(const tpc_batch_header *header, size_t records_bytes, const tpc_clean_verdict *verdict) {
    if (verdict->outcome == TPC_CLEAN_GONE) return 0;
    if (verdict->outcome == TPC_CLEAN_EMPTIED) return TPC_BATCH_HEADER_BYTES;
    if (verdict->outcome != TPC_CLEAN_REWRITTEN) return (size_t)header->batch_bytes;
    return TPC_BATCH_HEADER_BYTES + records_bytes + (size_t)verdict->records_count * RECORD_GROWTH_MAX;
}

/* False: cleaner->needed_bytes are, and nothing was done. */
static bool has_room(tpc_cleaner *cleaner, size_t bytes, size_t out_bytes) {
    cleaner->needed_bytes = (int64_t)bytes;
    return bytes <= out_bytes && (size_t)cleaner->written_bytes <= out_bytes - bytes;
}

/* Rule: Behind a batch that cannot be read no tombstone goes: the values that it removed may be in it. Held by
 * tests/log/test_cleaning.py. */
static void count_batch(tpc_cleaner *cleaner, const tpc_batch_header *header, const tpc_clean_verdict *verdict) {
    cleaner->records_read += header->records_count;
    cleaner->records_kept += verdict->records_count;
    cleaner->batches_kept += verdict->outcome != TPC_CLEAN_GONE;
    if (verdict->removed_upto > cleaner->removed_upto) cleaner->removed_upto = verdict->removed_upto;
    if (verdict->outcome == TPC_CLEAN_UNREADABLE) {
        cleaner->batches_unreadable++;
        cleaner->tombstones_stay = 1;
    }
}

/* Everything but REWRITTEN; how many bytes. */
static size_t put_whole(const uint8_t *batch, const tpc_batch_header *header, const tpc_clean_verdict *verdict,
                        uint8_t *out) {
    if (verdict->outcome == TPC_CLEAN_GONE) return 0;
    if (verdict->outcome == TPC_CLEAN_EMPTIED) {
        put_emptied(batch, header, out);
        return TPC_BATCH_HEADER_BYTES;
    }
    put_copy(batch, header, verdict, out);
    return (size_t)header->batch_bytes;
}

/*
 * Rule: Where a newer record of its key is known, a record goes in the cleaning that knows it, even if its batch grows: the
 * map forgets the key, and the record would be the newest one behind a tombstone that is gone. Held by
 * tests/log/test_cleaning.py.
 *
 * So a batch that might become larger than a batch can be keeps its base timestamp, and gets no horizon: then it is at most
 * as large as it was.
 */
static size_t without_growth(const tpc_batch_header *header, tpc_clean_verdict *verdict) {
    verdict->base_timestamp = header->base_timestamp;
    verdict->deltas_stay = 1;
    if (verdict->is_horizon_new) verdict->attributes &= ~TPC_CLEAN_HORIZON;
    return (size_t)header->batch_bytes;
}

/* False: there is no room. */
static bool put_plain(tpc_cleaner *cleaner, const uint8_t *batch, const tpc_batch_header *header,
                      tpc_clean_verdict *verdict, uint8_t *out, size_t out_bytes) {
    const uint8_t *records = batch + TPC_BATCH_HEADER_BYTES;
    size_t records_bytes = (size_t)header->batch_bytes - TPC_BATCH_HEADER_BYTES;
    size_t room = room_for(header, records_bytes, verdict);
    if (room > INT32_MAX && verdict->outcome == TPC_CLEAN_REWRITTEN) room = without_growth(header, verdict);
    if (!has_room(cleaner, room, out_bytes)) return false;
    uint8_t *at = out + cleaner->written_bytes;
    if (verdict->outcome == TPC_CLEAN_REWRITTEN) {
        size_t bytes = put_records(cleaner, header, records, records_bytes, verdict, at + TPC_BATCH_HEADER_BYTES);
        put_header(batch, verdict, bytes, at);
        cleaner->written_bytes += (int64_t)(TPC_BATCH_HEADER_BYTES + bytes);
    } else {
        cleaner->written_bytes += (int64_t)put_whole(batch, header, verdict, at);
    }
    count_batch(cleaner, header, verdict);
    pass_batch(cleaner, header);
    return true;
}

/* Which transaction the batch is of. False: `seen` is full. */
static bool note_transaction(tpc_cleaner *cleaner, const tpc_batch_header *header, tpc_clean_aborted *aborted) {
    if (aborted) aborted->batches_seen++;
    if (aborted || !(header->attributes & TPC_BATCH_TRANSACTIONAL)) return true;
    for (int32_t i = cleaner->seen_count - 1; i >= 0; i--)
        if (cleaner->seen[i] == header->producer_id) return true;
    if (cleaner->seen_count >= TPC_CLEAN_SEEN_MAX) return false;
    cleaner->seen[cleaner->seen_count++] = header->producer_id;
    return true;
}

/* Whether a batch that was packed again takes the place of the one that it was. */
static bool takes_place(const tpc_cleaner *cleaner, const tpc_batch_header *header, const tpc_clean_verdict *verdict,
                        int64_t packed_bytes) {
    int64_t bytes = packed_bytes + TPC_BATCH_HEADER_BYTES;
    bool is_small = bytes <= header->batch_bytes || (cleaner->may_grow && bytes <= cleaner->batch_bytes_max);
    return is_small || verdict->records_count < header->records_count;
}

/* Packs what stays of the unpacked records. False: cleaner->stop says why not. */
static bool put_packed(tpc_cleaner *cleaner, const uint8_t *batch, const tpc_batch_header *header,
                       records_span unpacked, tpc_clean_verdict *verdict, uint8_t *out, size_t out_bytes) {
    tpc_clean_codecs *codecs = &cleaner->codecs;
    size_t room = room_for(header, unpacked.count, verdict), bound = clean_packed_bound(room);
    cleaner->stop = ask_to_unpack(cleaner, header);
    if (room > (size_t)codecs->kept_bytes) return false;
    if (!has_room(cleaner, TPC_BATCH_HEADER_BYTES + bound, out_bytes)) {
        cleaner->stop = TPC_CLEAN_ROOM;
        return false;
    }
    uint8_t *at = out + cleaner->written_bytes;
    size_t kept_bytes = put_records(cleaner, header, unpacked.bytes, unpacked.count, verdict, codecs->kept);
    int64_t packed_bytes = clean_pack(codecs, header->attributes & TPC_BATCH_COMPRESSION_MASK, codecs->kept, kept_bytes,
                                      at + TPC_BATCH_HEADER_BYTES, bound);
    if (packed_bytes < 0) return false;
    if (takes_place(cleaner, header, verdict, packed_bytes)) {
        put_header(batch, verdict, (size_t)packed_bytes, at);
        cleaner->written_bytes += packed_bytes + TPC_BATCH_HEADER_BYTES;
    } else {
        *verdict = verdict_of_copy(cleaner, header, TPC_CLEAN_STAYS);
        put_copy(batch, header, verdict, at);
        cleaner->written_bytes += header->batch_bytes;
    }
    count_batch(cleaner, header, verdict);
    pass_batch(cleaner, header);
    return true;
}

/* A compressed batch, without the caller if it can be. */
static int clean_packed_batch(tpc_cleaner *cleaner, const uint8_t *batch, const tpc_batch_header *header, uint8_t *out,
                              size_t out_bytes) {
    records_span unpacked = recall(cleaner, batch, header);
    if (!unpacked.bytes) return ask_to_unpack(cleaner, header);
    tpc_clean_verdict verdict = judge(cleaner, header, unpacked.bytes, unpacked.count, false);
    if (verdict.outcome != TPC_CLEAN_REWRITTEN)
        return put_plain(cleaner, batch, header, &verdict, out, out_bytes) ? TPC_CLEAN_END : TPC_CLEAN_ROOM;
    return put_packed(cleaner, batch, header, unpacked, &verdict, out, out_bytes) ? TPC_CLEAN_END : cleaner->stop;
}

/* One batch of tpc_clean_batches(). */
static int clean_batch(tpc_cleaner *cleaner, const uint8_t *batch, const tpc_batch_header *header, uint8_t *out,
                       size_t out_bytes) {
    if (header->attributes & TPC_BATCH_IS_CONTROL) return TPC_CLEAN_CONTROL;
    tpc_clean_aborted *aborted = aborted_of(cleaner, header);
    tpc_clean_verdict verdict = {0};
    if (!note_transaction(cleaner, header, aborted)) return TPC_CLEAN_ROOM;
    if (aborted)
        verdict.outcome = outcome_without_records(cleaner, header);
    else if (header->base_offset >= cleaner->end_offset)
        verdict = verdict_of_copy(cleaner, header, TPC_CLEAN_STAYS);
    else if (header->records_count && is_compressed(header))
        return clean_packed_batch(cleaner, batch, header, out, out_bytes);
    else
        verdict = judge(cleaner, header, batch + TPC_BATCH_HEADER_BYTES,
                        (size_t)header->batch_bytes - TPC_BATCH_HEADER_BYTES, false);
    return put_plain(cleaner, batch, header, &verdict, out, out_bytes) ? TPC_CLEAN_END : TPC_CLEAN_ROOM;
}

int tpc_clean_batches(tpc_cleaner *cleaner, const uint8_t *bytes, size_t bytes_count, uint8_t *out, size_t out_bytes) {
    tpc_batch_header header;
    cleaner->needed_bytes = 0;
    while (begin_batch(cleaner, bytes, bytes_count, &header)) {
        cleaner->stop = clean_batch(cleaner, bytes + cleaner->place, &header, out, out_bytes);
        if (cleaner->stop) break;
    }
    return cleaner->stop;
}

int tpc_clean_unpacked(tpc_cleaner *cleaner, const uint8_t *batch, const uint8_t *records, size_t records_bytes,
                       uint8_t *out, size_t out_bytes, tpc_clean_verdict *verdict) {
    tpc_batch_header header;
    if (tpc_batch_header_read(batch, SIZE_MAX, &header) < 0) return -EINVAL;
    *verdict = records ? judge(cleaner, &header, records, records_bytes, false)
                       : verdict_of_copy(cleaner, &header, TPC_CLEAN_UNREADABLE);
    if (!has_room(cleaner, room_for(&header, records_bytes, verdict), out_bytes)) return -ENOSPC;
    uint8_t *at = out + cleaner->written_bytes;
    if (verdict->outcome == TPC_CLEAN_REWRITTEN)
        verdict->records_bytes = (int64_t)put_records(cleaner, &header, records, records_bytes, verdict, at);
    else
        cleaner->written_bytes += (int64_t)put_whole(batch, &header, verdict, at);
    count_batch(cleaner, &header, verdict);
    pass_batch(cleaner, &header);
    return 0;
}

int tpc_clean_packed(tpc_cleaner *cleaner, const uint8_t *batch, const tpc_clean_verdict *verdict,
                     const uint8_t *packed, size_t packed_bytes, uint8_t *out, size_t out_bytes) {
    tpc_batch_header header;
    if (tpc_batch_header_read(batch, SIZE_MAX, &header) < 0) return -EINVAL;
    if (packed_bytes > INT32_MAX - TPC_BATCH_HEADER_BYTES) return -EINVAL;
    bool stays = !takes_place(cleaner, &header, verdict, (int64_t)packed_bytes);
    size_t bytes = stays ? (size_t)header.batch_bytes : packed_bytes + TPC_BATCH_HEADER_BYTES;
    if (!has_room(cleaner, bytes, out_bytes)) return -ENOSPC;
    uint8_t *at = out + cleaner->written_bytes;
    if (stays) {
        tpc_clean_verdict copy = verdict_of_copy(cleaner, &header, TPC_CLEAN_STAYS);
        put_copy(batch, &header, &copy, at);
    } else {
        memcpy(at + TPC_BATCH_HEADER_BYTES, packed, packed_bytes);
        put_header(batch, verdict, packed_bytes, at);
    }
    cleaner->written_bytes += (int64_t)bytes;
    return 0;
}

int tpc_clean_control(tpc_cleaner *cleaner, const uint8_t *batch, int what, uint8_t *out, size_t out_bytes) {
    tpc_batch_header header;
    if (tpc_batch_header_read(batch, SIZE_MAX, &header) < 0) return -EINVAL;
    tpc_clean_verdict verdict = verdict_of_copy(cleaner, &header, TPC_CLEAN_STAYS);
    if (what == TPC_CLEAN_MARKER_GOES)
        verdict = (tpc_clean_verdict){.outcome = TPC_CLEAN_GONE, .removed_upto = last_offset_of(&header) + 1};
    else if (what == TPC_CLEAN_MARKER_DATED && !is_compressed(&header)) {
        tpc_clean_verdict dated = judge(cleaner, &header, batch + TPC_BATCH_HEADER_BYTES,
                                        (size_t)header.batch_bytes - TPC_BATCH_HEADER_BYTES, true);
        if (dated.outcome == TPC_CLEAN_REWRITTEN) verdict = dated;
    }
    return put_plain(cleaner, batch, &header, &verdict, out, out_bytes) ? 0 : -ENOSPC;
}
