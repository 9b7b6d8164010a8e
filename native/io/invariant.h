/*
 * Invariants, checked always: what is broken is told in one line on stderr, with the numbers, and the core ends by SIGABRT. Its
 * memory cannot be believed any more; it is restarted, and recovers from what is on the disk.
 */
#ifndef TPC_INVARIANT_H
#define TPC_INVARIANT_H

/* The rest is a printf format with its arguments: whose state it is, and the numbers. */
#define TPC_INVARIANT(condition, ...) \
    (__builtin_expect(!(condition), 0) ? tpc_invariant_broken(#condition, __FILE__, __LINE__, __VA_ARGS__) : (void)0)

/* For what needs no numbers to be understood: the condition, the file, the line and the function are told. */
#define TPC_HOLDS(condition) TPC_INVARIANT(condition, "in %s", __func__)

_Noreturn void tpc_invariant_broken(const char *condition, const char *file, int line, const char *format, ...)
    __attribute__((cold, format(printf, 4, 5)));

#endif
