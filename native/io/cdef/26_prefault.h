/* Memory for the cache, made ready beside the core's thread. */
typedef struct tpc_prefault tpc_prefault;

/* NULL: no memory, or no thread can be started. */
tpc_prefault *tpc_prefault_new(void);
/* Waits until the thread has ended: one page's fault, at most. */
void tpc_prefault_free(tpc_prefault *prefault);
/* From the core's thread. Gives to malloc what has become ready since the last call; returns its bytes. Then asks for
 * as many more, in whole pieces and not above what may be under way at once, for which the thread takes at most
 * `permille` thousandths of a CPU. */
int64_t tpc_prefault_turn(tpc_prefault *prefault, int64_t wanted_bytes, uint32_t permille);
/* As long as memory that is free is kept for the next use: see prefault.c. For the whole process. */
void tpc_prefault_keep_heap(void);
