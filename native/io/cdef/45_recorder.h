/*
 * Recorder of everything that is to reach the disk, for tests that build crash images (which writes were asked for, in
 * which order, which flushes had completed). Off unless a test switches it on; one per process.
 *
 * The file is a sequence of: tpc_disk_record, path bytes, payload bytes. A write's payload is what was written; a rename's is
 * the new path. Completions name the token of their submission and have neither.
 */
enum tpc_disk_record_kind {
    TPC_DISK_RECORD_WRITE = 1,
    TPC_DISK_RECORD_FLUSH = 2,    /* fsync, fdatasync */
    TPC_DISK_RECORD_TRUNCATE = 3, /* offset: the new length */
    TPC_DISK_RECORD_ALLOCATE = 4, /* offset, length */
    TPC_DISK_RECORD_RENAME = 5,
    TPC_DISK_RECORD_UNLINK = 6,
    TPC_DISK_RECORD_CREATE = 7,   /* a file or directory that may be new */
    TPC_DISK_RECORD_COMPLETED = 8 /* result */
};

enum tpc_disk_record_flags {
    TPC_DISK_RECORD_DSYNC = 1,     /* the write is durable when it completes */
    TPC_DISK_RECORD_DIRECT = 2,    /* the descriptor's; whoever records need not say it */
    TPC_DISK_RECORD_DATA_ONLY = 4, /* fdatasync */
    TPC_DISK_RECORD_LINKED = 8     /* a flush that begins when the write recorded in front of it is over */
};

typedef struct {
    uint32_t magic; /* TPC_DISK_RECORD_MAGIC */
    uint16_t kind;
    uint16_t flags;
    uint64_t order; /* 0, 1, 2, … over all records of the file */
    uint64_t token; /* joins a submission and its completion; 0: completed when recorded */
    uint64_t device;
    uint64_t inode;
    int64_t offset;
    int64_t length;
    int64_t result;
    uint32_t path_bytes;
    uint32_t payload_bytes;
} tpc_disk_record;

enum { TPC_DISK_RECORD_MAGIC = 0x52435054 };

int tpc_recorder_start(const char *path); /* -EBUSY when on already, -errno of open */
int tpc_recorder_stop(void);              /* 0, or -errno of the first record that could not be written */

/* For operations done by plain system calls (a directory fsync, a rename): the same records, from Python. */
uint64_t tpc_disk_record_write(int descriptor, const void *data, int64_t length, int64_t offset, uint32_t flags);
uint64_t tpc_disk_record_flush(int descriptor, uint32_t flags);
uint64_t tpc_disk_record_range(uint32_t kind, int descriptor, int64_t offset, int64_t length);
uint64_t tpc_disk_record_name(uint32_t kind, const char *path, const char *path_to);
void tpc_disk_record_completed(uint64_t token, int64_t result);
