/* CRC-32C (Castagnoli) of bytes, continuing from crc (0 to begin): tpc_crc32c(tpc_crc32c(0, a), b) is that of a then b. */
uint32_t tpc_crc32c(uint32_t crc, const void *bytes, size_t bytes_count);

/* The same by tables alone, whatever the CPU can do: the fall-back, and the second opinion in tests. */
uint32_t tpc_crc32c_portable(uint32_t crc, const void *bytes, size_t bytes_count);

/* As tpc_crc32c() is where the CPU has instructions for it, but not the newest: for tests, which else would not get there. */
uint32_t tpc_crc32c_lanes(uint32_t crc, const void *bytes, size_t bytes_count);

/* "vpclmulqdq", "sse4.2", "armv8" or "portable": what tpc_crc32c() uses on this machine. */
const char *tpc_crc32c_method(void);
