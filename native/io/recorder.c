/* Test instrument: writes records with plain system calls, so it blocks; it is never on in production. */
#define _GNU_SOURCE /* O_DIRECT */
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

bool tpc_recorder_on = false;

static int recorder_descriptor = -1;
static int recorder_error = 0;
static uint64_t recorder_order = 0;
static uint64_t recorder_token = 0;

int tpc_recorder_start(const char *path) {
    if (tpc_recorder_on) return -EBUSY;
    int descriptor = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (descriptor < 0) return -errno;
    recorder_descriptor = descriptor;
    recorder_error = 0;
    recorder_order = 0;
    tpc_recorder_on = true;
    return 0;
}

int tpc_recorder_stop(void) {
    if (!tpc_recorder_on) return -EINVAL;
    tpc_recorder_on = false;
    close(recorder_descriptor);
    recorder_descriptor = -1;
    return recorder_error;
}

static void record_put(tpc_disk_record *record, const char *path, const void *payload) {
    record->magic = TPC_DISK_RECORD_MAGIC;
    record->order = recorder_order++;
    struct iovec parts[3] = {
        {record, sizeof *record},
        {(void *)path, record->path_bytes},
        {(void *)payload, record->payload_bytes},
    };
    size_t bytes = parts[0].iov_len + parts[1].iov_len + parts[2].iov_len;
    ssize_t written = writev(recorder_descriptor, parts, 3);
    if (written < 0 || (size_t)written != bytes)
        recorder_error = recorder_error ? recorder_error : (written < 0 ? -errno : -ENOSPC);
}

static uint64_t record_descriptor(tpc_disk_record *record, int descriptor, const void *payload) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t path_bytes = readlink(link, path, sizeof path);
    struct stat status;
    if (fstat(descriptor, &status) == 0) {
        record->device = status.st_dev;
        record->inode = status.st_ino;
    }
    record->token = ++recorder_token;
    record->path_bytes = path_bytes > 0 ? (uint32_t)path_bytes : 0;
    record_put(record, path, payload);
    return record->token;
}

uint64_t tpc_disk_record_write(int descriptor, const void *data, int64_t length, int64_t offset, uint32_t flags) {
    if (!tpc_recorder_on) return 0;
    if (fcntl(descriptor, F_GETFL) & O_DIRECT) flags |= TPC_DISK_RECORD_DIRECT;
    tpc_disk_record record = {.kind = TPC_DISK_RECORD_WRITE,
                              .flags = (uint16_t)flags,
                              .offset = offset,
                              .length = length,
                              .payload_bytes = (uint32_t)length};
    return record_descriptor(&record, descriptor, data);
}

uint64_t tpc_disk_record_writev(int descriptor, void *const *parts, const size_t *lengths, unsigned count,
                                int64_t offset, uint32_t flags) {
    size_t length = 0, filled = 0;
    for (unsigned i = 0; i < count; i++) length += lengths[i];
    uint8_t *joined = malloc(length + 1);
    if (!joined) {
        recorder_error = recorder_error ? recorder_error : -ENOMEM;
        return 0;
    }
    for (unsigned i = 0; i < count; filled += lengths[i++]) memcpy(joined + filled, parts[i], lengths[i]);
    uint64_t token = tpc_disk_record_write(descriptor, joined, (int64_t)length, offset, flags);
    free(joined);
    return token;
}

uint64_t tpc_disk_record_flush(int descriptor, uint32_t flags) {
    if (!tpc_recorder_on) return 0;
    tpc_disk_record record = {.kind = TPC_DISK_RECORD_FLUSH, .flags = (uint16_t)flags};
    return record_descriptor(&record, descriptor, NULL);
}

uint64_t tpc_disk_record_range(uint32_t kind, int descriptor, int64_t offset, int64_t length) {
    if (!tpc_recorder_on) return 0;
    tpc_disk_record record = {.kind = (uint16_t)kind, .offset = offset, .length = length};
    return record_descriptor(&record, descriptor, NULL);
}

uint64_t tpc_disk_record_name(uint32_t kind, const char *path, const char *path_to) {
    if (!tpc_recorder_on) return 0;
    tpc_disk_record record = {.kind = (uint16_t)kind,
                              .token = ++recorder_token,
                              .path_bytes = (uint32_t)strlen(path),
                              .payload_bytes = path_to ? (uint32_t)strlen(path_to) : 0};
    record_put(&record, path, path_to);
    return record.token;
}

void tpc_disk_record_completed(uint64_t token, int64_t result) {
    if (!tpc_recorder_on || !token) return;
    tpc_disk_record record = {.kind = TPC_DISK_RECORD_COMPLETED, .token = token, .result = result};
    record_put(&record, NULL, NULL);
}
