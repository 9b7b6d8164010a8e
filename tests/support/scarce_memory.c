/* Preloaded: of what a core's C allocates, one allocation fails, counted from when it is asked for. Freed memory is filled. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <string.h>

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

static long left; /* 0: none fails */

void scarce_fail_at(long number) { left = number; }
long scarce_left(void) { return left; }

static int fails(const void *caller) {
    Dl_info of;
    return left > 0 && dladdr(caller, &of) && of.dli_fname && strstr(of.dli_fname, "/_ring.") && --left == 0;
}

void *malloc(size_t bytes) { return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes); }
void *calloc(size_t count, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}
void *realloc(void *old, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(old, bytes);
}
void free(void *gone) {
    if (gone) memset(gone, 0xa5, malloc_usable_size(gone));
    __libc_free(gone);
}
