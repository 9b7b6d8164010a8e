/*
 * Makes the memory that a growing cache will need resident before the core uses it.
 *
 * The first touch of a page costs the kernel its zeroing and, in a virtual machine whose host took the page back, a
 * fault of the hypervisor: from 0.05 s of CPU per GB with huge pages to over a second. A core that writes large batches
 * at the disk's speed would spend most of its time so. A thread with the lowest priority, on any CPU, does it instead, in pieces
 * of malloc's heap that the core has taken for that and gives back when they are resident; it sleeps in proportion to
 * the CPU time that it used. The cache grows by what is ready and not faster; otherwise it uses its own memory again.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "io.h"
#include "ring_state.h"
#include "cdef/26_prefault.h"

enum {
    PIECE_BYTES = 4 << 20,
    PIECES_MAX = 16,
    STEP_BYTES = 2 << 20,
    PAGE_BYTES = 4096,
    MMAP_BYTES_MIN = 32 << 20, /* the largest that malloc accepts: frames come from the heap and return to it */
    TRIM_BYTES_MIN = 96 << 20, /* free at the heap's end before free() gives memory back by itself */
    LOWEST_PRIORITY = 19,
};

struct tpc_prefault {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wanted;
    void *pieces[PIECES_MAX]; /* the first `ready` are resident */
    uint32_t count, ready;
    uint32_t permille;
    bool stopped;
};

void tpc_prefault_keep_heap(void) {
    mallopt(M_MMAP_THRESHOLD, MMAP_BYTES_MIN);
    mallopt(M_TRIM_THRESHOLD, TRIM_BYTES_MIN);
}

static int64_t cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Its own memory, so that a write does no harm; a store works on every kernel, also where huge pages do not. */
static void touch(uint8_t *from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PAGE_BYTES) ((volatile uint8_t *)from)[at] = 0;
}

/* With the lock. False: the end. */
static bool rest(tpc_prefault *prefault, int64_t used_ns) {
    int64_t until_ns = tpc_monotonic_ns() + used_ns * (1000 - (int64_t)prefault->permille) / prefault->permille;
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    while (!prefault->stopped && pthread_cond_timedwait(&prefault->wanted, &prefault->lock, &until) != ETIMEDOUT) {
    }
    return !prefault->stopped;
}

/* With the lock, which it lets go of while it works. False: the end. */
static bool make_resident(tpc_prefault *prefault, uint8_t *piece) {
    for (size_t done = 0; done < PIECE_BYTES; done += STEP_BYTES) {
        pthread_mutex_unlock(&prefault->lock);
        int64_t since_ns = cpu_ns();
        touch(piece + done, STEP_BYTES);
        int64_t used_ns = cpu_ns() - since_ns;
        pthread_mutex_lock(&prefault->lock);
        if (!rest(prefault, used_ns)) return false;
    }
    return true;
}

static void leave_the_core(void) {
    cpu_set_t all;
    CPU_ZERO(&all);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) CPU_SET(cpu, &all);
    (void)sched_setaffinity(0, sizeof all, &all); /* as far as the process may; a failure leaves it where it is */
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), LOWEST_PRIORITY);
}

static void *run(void *context) {
    tpc_prefault *prefault = context;
    leave_the_core();
    pthread_mutex_lock(&prefault->lock);
    while (!prefault->stopped) {
        if (prefault->ready == prefault->count)
            pthread_cond_wait(&prefault->wanted, &prefault->lock);
        else if (make_resident(prefault, prefault->pieces[prefault->ready]))
            prefault->ready++;
    }
    pthread_mutex_unlock(&prefault->lock);
    return NULL;
}

tpc_prefault *tpc_prefault_new(void) {
    tpc_prefault *prefault = calloc(1, sizeof *prefault);
    if (!prefault) return NULL;
    tpc_monotonic_condition_init(&prefault->wanted);
    pthread_mutex_init(&prefault->lock, NULL);
    prefault->permille = 1;
    if (pthread_create(&prefault->thread, NULL, run, prefault) == 0) return prefault;
    pthread_cond_destroy(&prefault->wanted);
    pthread_mutex_destroy(&prefault->lock);
    free(prefault);
    return NULL;
}

void tpc_prefault_free(tpc_prefault *prefault) {
    if (!prefault) return;
    pthread_mutex_lock(&prefault->lock);
    prefault->stopped = true;
    pthread_cond_signal(&prefault->wanted);
    pthread_mutex_unlock(&prefault->lock);
    pthread_join(prefault->thread, NULL);
    for (uint32_t i = 0; i < prefault->count; i++) free(prefault->pieces[i]);
    pthread_cond_destroy(&prefault->wanted);
    pthread_mutex_destroy(&prefault->lock);
    free(prefault);
}

int64_t tpc_prefault_turn(tpc_prefault *prefault, int64_t wanted_bytes, uint32_t permille) {
    void *ready[PIECES_MAX];
    pthread_mutex_lock(&prefault->lock);
    uint32_t count = prefault->ready;
    for (uint32_t i = 0; i < count; i++) ready[i] = prefault->pieces[i];
    prefault->count -= count;
    for (uint32_t i = 0; i < prefault->count; i++) prefault->pieces[i] = prefault->pieces[count + i];
    prefault->ready = 0;
    prefault->permille = permille < 1 ? 1 : permille > 1000 ? 1000 : permille;
    int64_t under_way = (int64_t)prefault->count * PIECE_BYTES;
    for (; under_way + PIECE_BYTES <= wanted_bytes && prefault->count < PIECES_MAX; under_way += PIECE_BYTES) {
        void *piece = malloc(PIECE_BYTES);
        if (!piece) break;
        prefault->pieces[prefault->count++] = piece;
    }
    if (prefault->count) pthread_cond_signal(&prefault->wanted);
    pthread_mutex_unlock(&prefault->lock);
    for (uint32_t i = 0; i < count; i++) free(ready[i]); /* no sooner: the next pieces shall be others */
    return (int64_t)count * PIECE_BYTES;
}
