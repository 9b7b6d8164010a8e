/* How long the kernel lets this thread run before others that wait for its CPU. Threads and processes that it starts from now
 * on have the scheduler's own slice: they work for long, and wait for it. (Nor are they less nice than 0.)
 * -errno: it is refused. 0 as well where the kernel has one slice for all (before 6.12), and for a thread of another
 * class of the scheduler (real-time, idle), which is left as it is. */
int tpc_cpu_slice_take(uint64_t slice_ns);
/* What a thread has (0: this one); 0: the kernel does not say, or it is of another class. -errno. */
int64_t tpc_cpu_slice(int thread);
