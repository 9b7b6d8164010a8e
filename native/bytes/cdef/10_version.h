/* The ABI of the byte helpers; Python refuses a stale build. */
int tpc_bytes_abi(void);
