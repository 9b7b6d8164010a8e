/*
 * Forwarding (native/requests/forward.h): Produce and Fetch for partitions that other cores own go there over links, when they
 * came to a listener that all cores share.
 */
typedef struct {
    uint64_t produces; /* requests of clients that were sent on, wholly or in parts */
    uint64_t fetches;
    uint64_t parts;         /* what became of them on the links */
    uint64_t under_way;     /* requests, now */
    uint64_t not_available; /* parts that were answered NOT_LEADER_OR_FOLLOWER: their core could not be asked */
    uint64_t routes;        /* topics, now */
} tpc_forward_statistics;

/* Links were opened before. `listeners`: bit n is set when requests of listener n are sent on. 0 or -ENOMEM. */
int tpc_forward_open(tpc_plane *plane, uint32_t core, uint64_t listeners);

/* The cores that own the partitions of a topic, in place of what was said of it before. count 0: it is gone. 0 or -ENOMEM. */
int tpc_forward_set_route(tpc_plane *plane, const uint8_t *topic_name, uint32_t topic_name_bytes,
                          const uint8_t *topic_id, const uint16_t *cores, uint32_t count);
/* How many routes the fullest bucket of the table by names holds. For tests. */
int tpc_forward_longest_chain(const tpc_plane *plane);
void tpc_forward_get_statistics(const tpc_plane *plane, tpc_forward_statistics *statistics);
