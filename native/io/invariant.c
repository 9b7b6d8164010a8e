#include "invariant.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void tpc_invariant_broken(const char *condition, const char *file, int line, const char *format, ...) {
    char state[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(state, sizeof state, format, arguments);
    va_end(arguments);
    fprintf(stderr, "%s:%d: broken invariant: %s; %s\n", file, line, condition, state);
    abort();
}
