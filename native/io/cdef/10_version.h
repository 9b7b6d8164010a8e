/* The ABI of the ring part; Python refuses a stale build. */
int tpc_ring_abi(void);
