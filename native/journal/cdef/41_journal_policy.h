/* What the journal does next: decisions free of I/O, here for their tests. native/journal/journal.c has the theory. */
enum tpc_commit_state {
    TPC_COMMIT_OPEN = 0,
    TPC_COMMIT_CLOSED = 1,   /* waits; nothing is appended to it any more */
    TPC_COMMIT_IN_PLACE = 2, /* what it writes in place is under way, or still to be asked for */
    TPC_COMMIT_PROVEN = 3,   /* all of that is on the disk */
    TPC_COMMIT_SUBMITTED = 4,
    TPC_COMMIT_WRITTEN = 5,
    TPC_COMMIT_FAILED = 6,
    TPC_COMMIT_STATES_COUNT = 7
};

enum tpc_commit_event {
    TPC_COMMIT_CLOSE = 0, /* it is full */
    TPC_COMMIT_ASK_IN_PLACE = 1,
    TPC_COMMIT_IN_PLACE_ENDED = 2, /* well */
    TPC_COMMIT_SUBMIT = 3,
    TPC_COMMIT_WRITE_ENDED = 4, /* well */
    TPC_COMMIT_FAIL = 5,
    TPC_COMMIT_EVENTS_COUNT = 6
};

/* The state after an event; -1: that cannot happen. */
int tpc_commit_next_state(int state, int event);

enum tpc_journal_action {
    TPC_JOURNAL_NOTHING = 0,
    TPC_JOURNAL_WRITE_IN_PLACE = 1,   /* ask for what the next commit writes in place, or for the rest of it */
    TPC_JOURNAL_WRITE_COMMIT = 2,     /* seal and submit the next commit */
    TPC_JOURNAL_ABANDON_IN_PLACE = 3, /* do not ask for the rest */
    TPC_JOURNAL_DROP_FAILED = 4       /* drop everything that is not durable, and tell of it */
};

/* What the decision needs of the journal. The next commit is the oldest that was not submitted. */
typedef struct {
    uint32_t commits_in_flight; /* without the one that is IN_PLACE */
    uint32_t commits_in_flight_max;
    uint32_t in_place_in_flight; /* 0 or 1 */
    uint8_t is_waiting;          /* there is a next commit; if not, the next four are 0 */
    uint8_t state;               /* enum tpc_commit_state, of the next commit */
    uint8_t has_in_place;
    uint8_t in_place_asked; /* the kernel has taken all of it */
    uint8_t is_paced;       /* it is not yet time for the next commit */
    uint8_t has_failed;     /* a write did */
    uint8_t failure_told;
    uint8_t in_place_early; /* a mutant's: a commit does not wait for what it writes in place */
} tpc_journal_view;

int tpc_journal_next_action(const tpc_journal_view *view); /* enum tpc_journal_action */

/*
 * How long after a commit of so many blocks the next one may be submitted, in ns, when space has been wanted for so long and
 * so many blocks are left: see journal.c. 0: at once.
 */
int64_t tpc_journal_pace_ns(uint64_t blocks, uint64_t blocks_left, int64_t wanted_ns);
