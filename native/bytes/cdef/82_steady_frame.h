/*
 * Frames of the steady state of replication, between two cores of different nodes (native/replication/steady.h says who sends them).
 * Behind the length field of every frame a header of 8 bytes, little-endian, then entries of its kind, one behind the other:
 *
 *   u8 version | u8 kind | u16 0 | u32 entries
 *   APPEND   topic_id[16] | i32 partition | i32 term | u64 source | u64 target | i64 prev_offset | i64 commit_offset |
 *            u32 bytes | u32 0 | batches
 *   ACK      topic_id[16] | i32 partition | i32 term | u64 source | u64 target | i64 durable_offset | i64 commit_offset
 *   BEAT     u32 machines | u32 0: one entry, which says that those of the sender's core are there
 *
 * The first two are about the epoch of the term alone: the position in front of an APPEND is (term, prev_offset), an ACK is of
 * (term, durable_offset). commit_offset -1: nothing of the term is committed.
 */
enum {
    TPC_STEADY_VERSION = 1,
    TPC_STEADY_HEADER_BYTES = 8,
    TPC_STEADY_APPEND_BYTES = 64, /* and its batches */
    TPC_STEADY_ACK_BYTES = 56,
    TPC_STEADY_BEAT_BYTES = 8
};

enum tpc_steady_kind { TPC_STEADY_APPEND = 1, TPC_STEADY_ACK = 2, TPC_STEADY_BEAT = 3 };

typedef struct {
    const uint8_t *topic_id;
    int32_t partition;
    int32_t term;
    uint64_t source, target; /* incarnations of the replicas that say it, and that it is for */
    int64_t offset;          /* prev_offset, or durable_offset */
    int64_t commit_offset;
    uint32_t batches_bytes;
    uint32_t kind;
    const uint8_t *batches;
} tpc_steady_entry;

/* How many entries a frame has, and of which kind. -EBADMSG: it is none; -EPROTONOSUPPORT: another version. */
int64_t tpc_steady_frame_decode(const uint8_t *bytes, size_t bytes_count, uint32_t *kind);
/* The entry at a position of a frame, which is moved behind it. 0; -EBADMSG: there is none, or one that cannot be. */
int tpc_steady_entry_decode(uint32_t kind, const uint8_t *bytes, size_t bytes_count, size_t *position,
                            tpc_steady_entry *out);
/* The same of a BEAT: its machines. */
int tpc_steady_beat_decode(const uint8_t *bytes, size_t bytes_count, size_t *position, uint32_t *machines);
void tpc_steady_beat_encode(uint32_t machines, uint8_t *out);
/* The length field and the header of a frame with so many bytes of entries: 12 bytes at `out`. */
void tpc_steady_frame_header(uint32_t kind, uint32_t entries, uint32_t entries_bytes, uint8_t *out);
/* An entry without its batches; how many bytes at `out`. */
uint32_t tpc_steady_entry_encode(const tpc_steady_entry *entry, uint8_t *out);
