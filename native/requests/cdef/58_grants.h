/*
 * Rights of subjects, as Python has decided them (native/requests/grants.h): C goes on or refuses by them, and leaves to Python
 * what it does not know. Without an authorizer nobody is asked about.
 */
enum tpc_right {
    TPC_RIGHT_READ = 1,    /* of a topic */
    TPC_RIGHT_WRITE = 2,   /* to a topic */
    TPC_RIGHT_TRANSACT = 4 /* to write by a transactional id */
};

/* What is kept at most, of topics and of transactional ids: what is void goes first, of transactional ids then a subject's own
 * for another of its, and then the oldest. */
enum { TPC_GRANTS_MAX = 65536, TPC_GRANTS_TRANSACTIONAL_MAX = 4096 };

/* Counters since the rights were begun to be asked about, and what is now. */
typedef struct {
    uint64_t generation;       /* now; 0: nobody is asked about */
    uint64_t installed;        /* decisions of Python */
    uint64_t evicted;          /* kept no more, for want of room */
    uint64_t forgotten;        /* how often the rules have changed */
    uint64_t unknown;          /* asked for, and left to Python */
    uint64_t refused_produces; /* partitions of requests, and requests for their transactional id */
    uint64_t refused_fetches;  /* partitions of attempts */
    uint64_t refused_datagrams;
} tpc_grant_statistics;

/*
 * From now on subjects are asked about: nothing is granted yet. `generation`, above every earlier one, is that of the rules.
 * Answers that are alike for everybody are forgotten, and none but ApiVersions' is kept any more. Fetches that wait are asked about
 * at once. 0; -EINVAL; -ENOMEM: nothing has changed.
 */
int tpc_grants_begin(tpc_plane *plane, uint64_t generation);
/* Everybody may do everything. */
void tpc_grants_end(tpc_plane *plane);
/* The rules are others: what was decided is void, and fetches that wait are asked about again, in this call. 0; -EINVAL: the
 * generation is not above the last one, or nobody is asked about. */
int tpc_grants_forget(tpc_plane *plane, uint64_t generation);

/*
 * Of the rights in `known` the subject has those in `allowed`, and not the others, by the rules of this generation. What was
 * decided in it stands. 0; -EINVAL: no subject, or no such rights; -ESTALE: the rules are others by now.
 */
int tpc_grants_install(tpc_plane *plane, uint64_t generation, uint32_t subject, const uint8_t *topic_id, uint32_t known,
                       uint32_t allowed);
int tpc_grants_install_transactional(tpc_plane *plane, uint64_t generation, uint32_t subject, const uint8_t *id,
                                     uint32_t id_bytes, int allowed);

/* Whose datagrams are, all of them; 0: nobody's, and they are refused where subjects are asked about. */
void tpc_grants_set_datagrams(tpc_plane *plane, uint32_t subject);

void tpc_grants_get_statistics(const tpc_plane *plane, tpc_grant_statistics *statistics);
