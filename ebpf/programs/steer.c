/*
 * steer: which core's socket gets a new connection, or a datagram.
 *
 * The kernel runs an SK_REUSEPORT program when a SYN or a datagram comes for a port that several sockets share
 * (SO_REUSEPORT), and the program names the socket. Of TCP it sees the SYN only; a datagram it sees whole. One program and
 * one set of maps belong to one port; `ebpf/steering.py` makes both, `ebpf/README.md` says what the maps mean and what a
 * decision costs.
 *
 * Minimum kernel: 5.5, for LOADS, which the cores write through memory.
 *
 * Compiled in two ways. Ahead of time by clang for libbpf: the maps are declared here, and libbpf puts the descriptors of
 * those that were made by `ebpf/steering.py` in their place. By bcc on the host (STEER_BCC): it has no name for a socket
 * array, so every map comes as a descriptor in a macro.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#ifdef STEER_BCC
#define SEC(name)
#define MAP(name) ((void *)bpf_pseudo_fd(1, name##_FD))
#define bytes_of bpf_skb_load_bytes
#else
typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
#define SEC(name) __attribute__((section(name), used))
#define MAP(name) ((void *)&name)
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static u64 (*bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static u32 (*bpf_get_prandom_u32)(void) = (void *)BPF_FUNC_get_prandom_u32;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)BPF_FUNC_get_smp_processor_id;
static long (*bpf_sk_select_reuseport)(void *context, void *sockets, void *key,
                                       u64 flags) = (void *)BPF_FUNC_sk_select_reuseport;
static long (*bytes_of)(const void *context, u32 offset, void *to, u32 length) = (void *)BPF_FUNC_skb_load_bytes;

/* Types only: sizes and flags are those of the maps that replace them. */
#define DECLARE(name, map_type, map_key, map_value) \
    struct {                                        \
        int (*type)[map_type];                      \
        map_key *key;                               \
        map_value *value;                           \
        int (*max_entries)[1];                      \
    } name SEC(".maps")
#endif

enum select { BY_LOAD = 0, BY_CPU = 1, BY_SOURCE_PORT = 2, BY_OWNER = 3 };

/* What is counted; behind these, one number for each core: how often it was selected. */
enum count { FALLBACK_DOWN, FALLBACK_KERNEL, MISS_MALFORMED, MISS_UNOWNED, COUNTS };

#define NOBODY 0xffffffff
#define BURST_GAP_NS 134217728ull  /* 0.13 s without a new connection: all are accepted, and the burst is over */
#define BURST_NS_MAX 4294967296ull /* else after 4.3 s: of a steady stream some are closed again */
#define DATAGRAM_VERSION 1

struct policy {
    u32 cores;
    u32 select; /* enum select */
    u32 next;   /* the first of two that are compared, by turns */
    u32 unused;
};

/* A core accepts a while after it was selected, so a burst is counted here as well, from what was open when it began. */
struct load {
    u32 open;   /* connections; written by the core, all else here */
    u32 base;   /* open when the burst began */
    u32 placed; /* since */
    u32 unused;
    u64 began_ns;
    u64 last_ns; /* placed */
};

struct owner {
    u32 topic; /* both in network order, as in the datagram */
    u32 partition;
};

#ifndef STEER_BCC
DECLARE(SOCKETS, BPF_MAP_TYPE_REUSEPORT_SOCKARRAY, u32, u64);
DECLARE(POLICY, BPF_MAP_TYPE_ARRAY, u32, struct policy);
DECLARE(ALIVE, BPF_MAP_TYPE_ARRAY, u32, u32);
DECLARE(LOADS, BPF_MAP_TYPE_ARRAY, u32, struct load);
DECLARE(CPUS, BPF_MAP_TYPE_ARRAY, u32, u32);
DECLARE(OWNERS, BPF_MAP_TYPE_HASH, struct owner, u32);
DECLARE(COUNTERS, BPF_MAP_TYPE_ARRAY, u32, u64);
#endif

static inline __attribute__((always_inline)) void count(u32 which) {
    u64 *counted = bpf_map_lookup_elem(MAP(COUNTERS), &which);
    if (counted) __sync_fetch_and_add(counted, 1);
}

/* The core itself where it is alive, else the one that the supervisor has named in its place; NOBODY without any. */
static inline __attribute__((always_inline)) u32 alive(u32 core) {
    u32 *found = bpf_map_lookup_elem(MAP(ALIVE), &core);
    return found ? *found : NOBODY;
}

static inline __attribute__((always_inline)) int in_burst(struct load *load, u64 now_ns) {
    return now_ns - load->last_ns < BURST_GAP_NS && now_ns - load->began_ns < BURST_NS_MAX;
}

static inline __attribute__((always_inline)) u32 load_of(u32 core, u64 now_ns) {
    struct load *load = bpf_map_lookup_elem(MAP(LOADS), &core);
    if (!load) return 0;
    u32 open = load->open, expected = load->base + load->placed;
    return in_burst(load, now_ns) && expected > open ? expected : open;
}

static inline __attribute__((always_inline)) void place_on(u32 core, u64 now_ns) {
    struct load *load = bpf_map_lookup_elem(MAP(LOADS), &core);
    if (!load) return;
    if (!in_burst(load, now_ns)) {
        load->base = load->open;
        load->placed = 0;
        load->began_ns = now_ns;
    }
    load->last_ns = now_ns;
    __sync_fetch_and_add(&load->placed, 1);
}

/* The less loaded of two: one by turns, so that a burst is dealt out evenly, the other by chance. */
static inline __attribute__((always_inline)) u32 by_load(struct policy *policy, u32 cores) {
    u64 now_ns = bpf_ktime_get_ns();
    u32 turn = policy->next;
    policy->next = turn + 1;
    u32 first = alive(turn % cores), second = alive(bpf_get_prandom_u32() % cores);
    u32 chosen = load_of(second, now_ns) < load_of(first, now_ns) ? second : first;
    place_on(chosen, now_ns);
    return chosen;
}

static inline __attribute__((always_inline)) u32 by_cpu(u32 cores) {
    u32 cpu = bpf_get_smp_processor_id();
    u32 *core = bpf_map_lookup_elem(MAP(CPUS), &cpu);
    return (core ? *core : cpu) % cores;
}

static inline __attribute__((always_inline)) u32 by_source_port(struct sk_reuseport_md *context, u32 cores) {
    u8 port[2];
    if (bytes_of(context, 0, port, sizeof port)) return by_cpu(cores);
    return ((u32)port[0] << 8 | port[1]) % cores;
}

/* The owner of what the datagram's header names; whoever took the packet where nobody owns it: that core refuses it. */
static inline __attribute__((always_inline)) u32 by_owner(struct sk_reuseport_md *context, u32 cores) {
    u8 head[20]; /* of the UDP header 8 bytes; then version, flags, length of the key (2), topic, partition */
    struct owner named;
    if (bytes_of(context, 0, head, sizeof head) || head[8] != DATAGRAM_VERSION) {
        count(MISS_MALFORMED);
        return by_cpu(cores);
    }
    __builtin_memcpy(&named.topic, head + 12, 4);
    __builtin_memcpy(&named.partition, head + 16, 4);
    u32 *core = bpf_map_lookup_elem(MAP(OWNERS), &named);
    if (!core) {
        count(MISS_UNOWNED);
        return by_cpu(cores);
    }
    return *core % cores;
}

SEC("sk_reuseport") int steer(struct sk_reuseport_md *context) {
    u32 zero = 0;
    struct policy *policy = bpf_map_lookup_elem(MAP(POLICY), &zero);
    if (!policy) return SK_PASS;
    u32 cores = policy->cores, wanted, core;
    if (cores == 0) return SK_PASS;
    switch (policy->select) {
    case BY_CPU:
        wanted = by_cpu(cores);
        break;
    case BY_SOURCE_PORT:
        wanted = by_source_port(context, cores);
        break;
    case BY_OWNER:
        wanted = by_owner(context, cores);
        break;
    default:
        wanted = by_load(policy, cores);
    }
    core = wanted < cores ? alive(wanted) : NOBODY;
    if (core != wanted) count(FALLBACK_DOWN);
    if (core == NOBODY || bpf_sk_select_reuseport(context, MAP(SOCKETS), &core, 0)) {
        count(FALLBACK_KERNEL); /* without a word of ours it takes any socket, by the connection's hash */
        return SK_PASS;
    }
    count(COUNTS + core);
    return SK_PASS;
}

#ifndef STEER_BCC
const char terms[] SEC("license") = "Dual MIT/GPL";
#endif
