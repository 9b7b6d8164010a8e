/*
 * What the disk allows, without any server.
 *
 *   disk_limit FILE WRITES SEQUENTIAL_MIB
 *
 * WRITES durable writes of 4 KiB, one after the other (O_DIRECT + RWF_DSYNC over blocks that were written before), then
 * SEQUENTIAL_MIB of such writes of 1 MiB each. Prints one JSON object; the file is removed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "histogram.h"

enum { BLOCK_BYTES = 4096, CHUNK_BYTES = 1 << 20, FILE_CHUNKS = 64 };

static histogram latencies;

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void fail(const char *what, int error) {
    fprintf(stderr, "disk_limit: %s: %s\n", what, strerror(error));
    exit(1);
}

static void write_durably(int fd, void *data, size_t bytes, off_t place) {
    struct iovec part = {data, bytes};
    if (pwritev2(fd, &part, 1, place, RWF_DSYNC) != (ssize_t)bytes) fail("write", errno);
}

int main(int count, char **arguments) {
    if (count != 4) fail("usage: disk_limit FILE WRITES SEQUENTIAL_MIB", EINVAL);
    long writes = atol(arguments[2]), chunks = atol(arguments[3]);
    int fd = open(arguments[1], O_RDWR | O_CREAT | O_CLOEXEC | O_DIRECT, 0600);
    void *data;
    if (fd < 0) fail(arguments[1], errno);
    if (posix_memalign(&data, BLOCK_BYTES, CHUNK_BYTES)) fail("memory", ENOMEM);
    memset(data, 'x', CHUNK_BYTES);
    for (int chunk = 0; chunk < FILE_CHUNKS; chunk++) write_durably(fd, data, CHUNK_BYTES, (off_t)chunk * CHUNK_BYTES);
    for (long index = 0; index < writes; index++) {
        int64_t before_ns = now_ns();
        write_durably(fd, data, BLOCK_BYTES, (off_t)index % (FILE_CHUNKS * (CHUNK_BYTES / BLOCK_BYTES)) * BLOCK_BYTES);
        histogram_add(&latencies, (uint64_t)(now_ns() - before_ns));
    }
    int64_t before_ns = now_ns();
    for (long chunk = 0; chunk < chunks; chunk++)
        write_durably(fd, data, CHUNK_BYTES, (off_t)(chunk % FILE_CHUNKS) * CHUNK_BYTES);
    int64_t sequential_ns = now_ns() - before_ns;
    unlink(arguments[1]);
    printf("{\"writes\":%ld,\"sequential_bytes\":%" PRId64 ",\"sequential_ns\":%" PRId64 ",\"histogram\":", writes,
           (int64_t)chunks * CHUNK_BYTES, sequential_ns);
    histogram_print(&latencies, stdout);
    printf("}\n");
    return 0;
}
