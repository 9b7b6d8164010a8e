/* What plain.c (entries, sockets, cancels) and plain_files.c (threads) share. */
#ifndef TPC_PLAIN_STATE_H
#define TPC_PLAIN_STATE_H

#include <liburing.h>
#include <pthread.h>

#include "substitute.h"
#include "ring_state.h"

enum { PLAIN_CREW_THREADS_MAX = 4 };

enum plain_state {
    PLAIN_QUEUED,    /* taken, and not yet submitted */
    PLAIN_WAITING,   /* for its descriptor to be ready */
    PLAIN_WITH_CREW, /* a file's: until its thread's result is in */
    PLAIN_COMPLETE,  /* until it is harvested */
};

/* An entry from tpc_plain_entry() until its result is harvested. It is in one list at a time. */
typedef struct plain_operation {
    struct io_uring_sqe entry;
    struct plain_operation *next, *previous;
    struct plain_operation *hash_next, **hash_place; /* of those that can be cancelled; NULL: it is not there */
    struct plain_operation *chained;                 /* linked behind this one */
    struct plain_operation *head;                    /* of its chain */
    int32_t result;
    uint32_t done_bytes; /* of a read: what was in the page cache */
    int own_descriptor;  /* of a file's; -1: none */
    uint8_t state;
    bool is_running; /* in a thread; under the crews' lock */
} plain_operation;

typedef struct {
    plain_operation *first, *last;
    unsigned count;
} plain_list;

struct plain_files;

/* One chain of the journal's or of others' files. */
typedef struct {
    struct plain_files *files;
    pthread_cond_t wanted;
    plain_list queued;
    unsigned threads_max, threads_count, idle_count;
    pthread_t threads[PLAIN_CREW_THREADS_MAX];
    const char *name;
} plain_crew;

/* The lock is for the lists, `is_running`, and the crews' counts. */
typedef struct plain_files {
    pthread_mutex_t lock;
    plain_crew journal, others;
    plain_list reports;
    int reports_fd; /* an eventfd, written when the list was empty */
    bool is_stopping;
} plain_files;

void plain_list_add(plain_list *list, plain_operation *operation);
void plain_list_remove(plain_list *list, plain_operation *operation);
plain_operation *plain_list_take(plain_list *list);

int plain_files_new(plain_files *files);
void plain_files_free(plain_files *files);
bool plain_is_of_file(const plain_operation *operation);

/* What is in the page cache is read at once: all that was asked for. -EAGAIN: there is less, and the rest is for a thread.
 * -ESPIPE: this is no file, but a pipe or a socket. */
int32_t plain_read_cached(plain_operation *operation);

/* Whether the chain of files' operations is done already, with all results set; else it will be among the reports. */
bool plain_files_begin(plain_files *files, plain_operation *head);

/* Whether the chain was still queued, and will not be done. */
bool plain_files_cancel(plain_files *files, plain_operation *head);

/* All chains that were done since the last call. */
plain_list plain_files_reports(plain_files *files);

#endif
