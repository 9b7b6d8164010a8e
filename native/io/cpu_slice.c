/*
 * A core works for some tens of microseconds and sleeps again, and whoever it wakes up for waits. With a shorter slice than
 * others have, the kernel lets it run as soon as it wakes up (EEVDF: the earlier deadline), in place of one who has worked
 * for longer than the slice of the one that woke up; its share of the CPU stays what it was.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cdef/27_cpu_slice.h"

enum { RESET_ON_FORK = 1 };

/* sched_setattr(2); glibc has it since 2.41 only. */
typedef struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime_ns, deadline_ns, period_ns;
} attributes;

static int read_attributes(int thread, attributes *found) {
    return syscall(SYS_sched_getattr, thread, found, sizeof *found, 0) < 0 ? -errno : 0;
}

static int is_shared_out(const attributes *of) { return of->policy == SCHED_OTHER || of->policy == SCHED_BATCH; }

int tpc_cpu_slice_take(uint64_t slice_ns) {
    attributes wanted = {0}; /* all else stays: niceness above all */
    int result = read_attributes(0, &wanted);
    if (result < 0 || !is_shared_out(&wanted)) return result;
    wanted.size = sizeof wanted;
    wanted.flags |= RESET_ON_FORK;
    wanted.runtime_ns = slice_ns;
    return syscall(SYS_sched_setattr, 0, &wanted, 0) < 0 ? -errno : 0;
}

int64_t tpc_cpu_slice(int thread) {
    attributes found = {0};
    int result = read_attributes(thread, &found);
    if (result < 0) return result;
    return is_shared_out(&found) ? (int64_t)found.runtime_ns : 0;
}
