/*
 * Frames of the link between two cores (native/net/link.h says who sends which). Behind the length field of every frame:
 * a header of 16 bytes, little-endian, then what its kind carries.
 *
 *   u8 version | u8 kind | u16 detail | u32 sequence | u64 stream
 */
enum { TPC_LINK_VERSION = 1, TPC_LINK_FEATURE_LEVEL = 3, TPC_LINK_HEADER_BYTES = 16, TPC_LINK_HELLO_BYTES = 24 };

enum tpc_link_kind {
    TPC_LINK_HELLO = 1,           /* the first of both sides: who it is, and what it understands */
    TPC_LINK_FORWARD_PRODUCE = 2, /* a request with its length field, as its client sent it; detail: listener */
    TPC_LINK_FORWARD_FETCH = 3,
    TPC_LINK_ANSWER = 4,  /* to the request of that sequence, with its length field; nothing: it has no answer */
    TPC_LINK_RELEASE = 5, /* the Fetch of that sequence is answered now, with what there is */
    TPC_LINK_CLOSE = 6,   /* the stream ends; detail: why (enum tpc_close_reason) */
    TPC_LINK_FORWARD_DATAGRAM = 7, /* level 2: where it came from, and its bytes: native/requests/datagram.c */
    TPC_LINK_SUBJECT = 8,          /* level 3: for whom a stream is, before its first request; detail: listener */
    TPC_LINK_KINDS_END = 9 /* unknown kinds from here on are passed over: the feature level says who sends them */
};

typedef struct {
    uint64_t stream; /* the client's connection at the core that it came to */
    uint64_t life;   /* HELLO: another number each time that the core's process starts */
    uint32_t core;   /* HELLO */
    uint32_t sequence;
    uint32_t payload_bytes;
    uint16_t detail;
    uint16_t feature_level; /* HELLO: the highest that it understands */
    uint8_t version;
    uint8_t kind;
    const uint8_t *payload;
} tpc_link_frame;

/* What SUBJECT carries: u16 bytes of the principal | principal | host. Neither has control bytes; no host: a Unix socket. */
enum { TPC_LINK_PRINCIPAL_BYTES_MAX = 512, TPC_LINK_HOST_BYTES_MAX = 64, TPC_LINK_SUBJECT_BYTES_MAX = 578 };

typedef struct {
    const uint8_t *principal;
    const uint8_t *host;
    uint32_t principal_bytes;
    uint32_t host_bytes;
} tpc_link_subject_names;

/* A frame without its length field. 0; -EBADMSG: shorter than its kind is; -EPROTONOSUPPORT: another version. */
int tpc_link_frame_decode(const uint8_t *bytes, size_t bytes_count, tpc_link_frame *out);

/* The length field and the header of a frame with so many bytes of payload behind it: 20 bytes at `out`. */
void tpc_link_frame_header(const tpc_link_frame *frame, uint8_t *out);
/* A whole HELLO with its length field: 44 bytes at `out`. */
void tpc_link_hello(uint32_t core, uint64_t life, uint8_t *out);

/* The payload of a SUBJECT into TPC_LINK_SUBJECT_BYTES_MAX bytes at `out`: how many it has; 0: no such names are sent. */
uint32_t tpc_link_subject(const uint8_t *principal, uint32_t principal_bytes, const uint8_t *host, uint32_t host_bytes,
                          uint8_t *out);
/* The names point into the payload. 0; -EBADMSG: it is not as tpc_link_subject() makes it. */
int tpc_link_subject_decode(const uint8_t *payload, size_t payload_bytes, tpc_link_subject_names *out);
