/*
 * Quotas: see cdef/31_quota.h. What follows is the connections' (connection_quota.c).
 */
#ifndef TPC_QUOTA_H
#define TPC_QUOTA_H

#include <stddef.h>
#include <stdint.h>

#include "connection.h"
#include "cdef/31_quota.h"

#endif
