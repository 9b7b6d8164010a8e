/*
 * Heartbeats of cores, over the links of the steady state.
 *
 * A machine (tpc_broker/raft) says a few times a second to each other core that it is there: that alone is most of what a cluster at rest
 * does. So C says it in the machine's place, to all cores in one turn, and takes note of who was heard; Python asks for that before it
 * calls anybody silent. A beat vouches for no more than Python's heartbeat would: only for machines that want it, and from the thread
 * on which they run; one that wants it no more is left out of the next one, which leaves at once. Whatever comes behind a beat
 * says the same as the beat, which itself may wait behind much. When a machine was not heard for TPC_STEADY_GAP_MS, what is heard
 * afterwards is another stretch: a silence that nobody has looked at stays one.
 */
#include "steady_state.h"

#include <errno.h>

#include "io.h"

enum { NS_OF_MS = 1000000 };

/*
 * This thread stood still, and heard nobody either. Of a time in which it neither ran nor waited for a CPU it was stopped (SIGSTOP, a
 * debugger): that says nothing of how long its next steps take.
 */
static void note_late(tpc_steady_links *all, int64_t late_ns) {
    int64_t before_ns = all->busy_ns;
    all->busy_ns = tpc_io.busy_ns();
    if (all->busy_ns >= 0 && all->busy_ns - before_ns < late_ns) late_ns = all->busy_ns - before_ns;
    for (uint32_t machine = 0; machine < TPC_STEADY_MACHINES; machine++)
        if (late_ns > all->late_ns[machine]) all->late_ns[machine] = late_ns;
}

int64_t steady_beat_all(tpc_plane *plane, int64_t now_ns) {
    tpc_steady_links *all = plane->steady;
    if (now_ns < all->beat_ns) return all->beat_ns;
    note_late(all, all->beat_ns ? now_ns - all->beat_ns : 0);
    all->beat_ns = INT64_MAX;
    for (uint32_t i = 0; i < all->links_count; i++) {
        steady_link *it = all->links[i];
        if (!it || !it->connection || !(it->beats | it->beats_said)) continue;
        TPC_HOLDS(it->plane == plane);
        all->beat_ns = now_ns + (int64_t)TPC_STEADY_BEAT_MS * NS_OF_MS;
        all->statistics.beats_sent++;
        it->beats_said = it->beats;
        steady_send_beat(it, it->beats);
    }
    return all->beat_ns;
}

void steady_take_beat(tpc_plane *plane, const steady_link *from, uint32_t machines) {
    TPC_HOLDS(plane->steady->heard[from->id & (STEADY_LINKS_MAX - 1)].link == from->id); /* not of another link's end */
    plane->steady->heard[from->id & (STEADY_LINKS_MAX - 1)].machines = machines;
    plane->steady->statistics.beats_taken++;
    steady_hear(plane, from);
}

void steady_hear(tpc_plane *plane, const steady_link *from) {
    steady_heard *heard = &plane->steady->heard[from->id & (STEADY_LINKS_MAX - 1)];
    int64_t now_ns = tpc_ring_now_ns(plane->ring);
    TPC_HOLDS(heard->link == from->id);
    for (uint32_t machine = 0; machine < TPC_STEADY_MACHINES; machine++) {
        if (!(heard->machines >> machine & 1)) continue;
        TPC_HOLDS(heard->last_ns[machine] <= now_ns);
        bool is_gap = now_ns - heard->last_ns[machine] >= (int64_t)TPC_STEADY_GAP_MS * NS_OF_MS;
        if (is_gap) heard->since_ns[machine] = now_ns;
        heard->last_ns[machine] = now_ns;
    }
}

void steady_unheard(tpc_plane *plane, uint64_t link) {
    plane->steady->heard[link & (STEADY_LINKS_MAX - 1)] = (steady_heard){.link = link};
}

int tpc_steady_beat(tpc_plane *plane, uint64_t link, uint32_t machine, int is_said) {
    steady_link *it = steady_link_find(plane, link);
    if (machine >= TPC_STEADY_MACHINES) return -EINVAL;
    if (!it) return -ENOENT;
    uint32_t before = it->beats, bit = 1U << machine;
    it->beats = is_said ? before | bit : before & ~bit;
    TPC_HOLDS(it->beats < 1U << TPC_STEADY_MACHINES);
    if (it->beats != before) plane->steady->beat_ns = 0;
    return 0;
}

int64_t tpc_steady_take_late(tpc_plane *plane, uint32_t machine) {
    if (machine >= TPC_STEADY_MACHINES) return -EINVAL;
    int64_t late_ns = plane->steady->late_ns[machine];
    TPC_HOLDS(late_ns >= 0);
    plane->steady->late_ns[machine] = 0;
    return late_ns;
}

int tpc_steady_heard(const tpc_plane *plane, uint64_t link, uint32_t machine, int64_t *since_ns, int64_t *last_ns) {
    const steady_heard *heard = &plane->steady->heard[link & (STEADY_LINKS_MAX - 1)];
    if (machine >= TPC_STEADY_MACHINES) return -EINVAL;
    if (!link || heard->link != link) return -ENOENT;
    TPC_HOLDS(heard->since_ns[machine] <= heard->last_ns[machine]);
    *since_ns = heard->since_ns[machine];
    *last_ns = heard->last_ns[machine];
    return 0;
}
