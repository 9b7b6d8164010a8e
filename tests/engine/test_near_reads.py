"""Fetch from followers, and who is sent to one (KIP-392): answered in C, and in Python by the same rules."""

import uuid
from types import SimpleNamespace

import pytest

from tests.engine.test_plane_fetch import LONG_MS, asks, parts_of, read_answer, values_of, wait_parked
from tests.support.fetch_bench import BROKER_ID, FetchBench
from tests.support.plane_bench import records_of, topic_id_of
from tests.support.steady_peers import APPEND as STEADY_APPEND
from tests.support.steady_peers import OWN, Peer, frame
from tests.support.steady_peers import entry as steady_entry
from tpc_broker.engine.steady_plane import SteadyPlane
from tpc_broker.error_codes import ErrorCode as E

TERM = 3
PREFERRED = 2048
WITH_FOLLOWERS = 11


class Near:
    """What `broker.near_reads` is to the handler: consumers in `racks` are told to read elsewhere."""

    def __init__(self, *racks):
        self.racks = racks
        self.lacking = []

    def preferred(self, partition, offset, rack, _listener):
        is_elsewhere = partition.led_epoch is not None and rack in self.racks and offset <= 5
        return PREFERRED if is_elsewhere else None

    async def lacks(self, _partition, offset):
        self.lacking.append(offset)


class Quorum:
    """What `broker.replication_port` says of the one that leads here."""

    def __init__(self):
        self.asked, self.follows = 0, True

    async def confirm(self, _key):
        self.asked += 1
        return self.follows


def bench_of(path, *, in_c):
    bench = FetchBench(path, in_c=in_c, region_blocks=1024)
    bench.core.replicated = SimpleNamespace(near=Near(), replication=SimpleNamespace(leaderships=Quorum()))
    return bench


@pytest.fixture(params=["in C", "in Python"])
def bench(request, tmp_path):
    bench = bench_of(tmp_path / "journal", in_c=request.param == "in C")
    yield bench
    bench.shut()


@pytest.fixture
def in_c(tmp_path):
    bench = bench_of(tmp_path / "journal", in_c=True)
    yield bench
    bench.shut()


def follower(bench, records=5, committed=3, starts=0):
    """A partition that follows in TERM; it serves reads."""
    handle = bench.make("t", is_led=False, log_start_offset=starts, log_end_offset=starts)
    bench.plane.set_replicated(handle)
    bench.plane.follow(handle, TERM)
    for number in range(records):
        batch = records_of(1, base_offset=starts + number, leader_epoch=TERM)
        bench.plane.append_replica(handle, TERM, batch)
    bench.until(lambda: bench.plane.state(handle).durable_offset == starts + records)
    bench.plane.commit(handle, TERM, starts + committed)
    bench.partitions["t", 0].is_replicated = True
    serve(bench, TERM)
    return handle


def leader(bench, *racks):
    handle = bench.make("t", is_led=False)
    bench.plane.set_replicated(handle)
    bench.plane.arm(handle, TERM)
    bench.partitions["t", 0].is_replicated, bench.partitions["t", 0].led_epoch = True, TERM
    bench.face.set_racks(["a", "b", "bb"])
    bench.face.set_near_racks(handle, racks_of(*racks))
    bench.core.replicated.near.racks = racks
    return handle


def racks_of(*racks):
    return sum(1 << ["a", "b", "bb"].index(rack) for rack in racks)


def serve(bench, term):
    bench.partitions["t", 0].followed_epoch = term
    bench.face.serve_reads(bench.partitions["t", 0].handle, term)


def of_epoch(epoch, offset=0, version=12, **more):
    asked = asks(("t", 0, offset), version=version, **more)
    asked["Topics"][0]["Partitions"][0]["CurrentLeaderEpoch"] = epoch
    return asked


def told(part):
    return part["ErrorCode"], part["HighWatermark"], len(values_of(part)) if part["Records"] else 0


def test_a_follower_answers_up_to_its_own_high_watermark_whoever_knows_of_followers(bench):
    follower(bench)
    client = bench.connect()
    for version in range(4, 19):
        (part,) = parts_of(bench.fetch(client, version, asks(("t", 0, 0), version=version)))
        knows = version >= WITH_FOLLOWERS
        assert told(part) == ((0, 3, 3) if knows else (E.NOT_LEADER_OR_FOLLOWER, -1, 0)), version
    (part,) = parts_of(bench.fetch(client, 12, asks(("t", 0, 0), IsolationLevel=1)))
    assert (told(part), part["LastStableOffset"], part["AbortedTransactions"]) == ((0, 3, 3), 3, [])


def test_only_one_that_serves_reads_does(bench):
    handle, client = follower(bench), bench.connect()
    serve(bench, None)
    (part,) = parts_of(bench.fetch(client, 12, asks(("t", 0, 0))))
    assert told(part) == (E.NOT_LEADER_OR_FOLLOWER, -1, 0)
    serve(bench, TERM)
    assert told(parts_of(bench.fetch(client, 12, asks(("t", 0, 0))))[0]) == (0, 3, 3)
    bench.plane.withdraw(handle)
    del bench.partitions["t", 0]
    assert told(parts_of(bench.fetch(client, 12, asks(("t", 0, 0))))[0])[0] == E.UNKNOWN_TOPIC_OR_PARTITION


def test_one_that_follows_in_another_term_serves_when_it_is_told_to_again(bench):
    """Whoever says no epoch is not told that its own is over."""
    handle, client = follower(bench), bench.connect()
    bench.plane.follow(handle, TERM + 1)
    bench.partitions["t", 0].followed_epoch = None
    assert told(parts_of(bench.fetch(client, 12, asks(("t", 0, 0))))[0]) == (E.NOT_LEADER_OR_FOLLOWER, -1, 0)
    serve(bench, TERM + 1)
    assert told(parts_of(bench.fetch(client, 12, asks(("t", 0, 0))))[0]) == (0, 3, 3)


def test_the_epoch_of_who_asks_is_that_of_the_leader_it_follows(bench):
    follower(bench)
    client = bench.connect()
    expected = {-1: 0, TERM: 0, TERM - 1: E.FENCED_LEADER_EPOCH, TERM + 1: E.UNKNOWN_LEADER_EPOCH}
    for epoch, error in expected.items():
        (part,) = parts_of(bench.fetch(client, 12, of_epoch(epoch)))
        assert part["ErrorCode"] == error, epoch
    asked = of_epoch(TERM - 1, version=16)
    (part,) = parts_of(bench.fetch(client, 16, asked))
    assert part["CurrentLeader"]["LeaderId"] == BROKER_ID, "where it is led"


def test_a_follower_never_says_that_an_offset_is_nowhere(bench):
    """Nothing between high watermark and log end; what it has not got its leader may have."""
    follower(bench, starts=10)
    client = bench.connect()
    for offset in (13, 14, 15):
        assert told(parts_of(bench.fetch(client, 12, asks(("t", 0, offset))))[0]) == (0, 13, 0)
    for offset in (9, 16):
        (part,) = parts_of(bench.fetch(client, 12, asks(("t", 0, offset), wait_ms=LONG_MS)))
        assert told(part) == (E.OFFSET_NOT_AVAILABLE, -1, 0)
        assert part["LogStartOffset"] == -1
    assert bench.core.replicated.near.lacking == [9, 16]


@pytest.mark.parametrize(("offset", "starts"), [(6, 0), (3, 4)], ids=["above", "below"])
@pytest.mark.parametrize(
    ("follows", "error"), [(True, E.OFFSET_OUT_OF_RANGE), (False, E.NOT_LEADER_OR_FOLLOWER)], ids=["one", "none"]
)
def test_a_leader_says_that_an_offset_is_nowhere_when_a_quorum_follows_it(bench, offset, starts, follows, error):
    """One that was paused may be asked for what the next leader has committed, or has not deleted."""
    handle, client = leader(bench), bench.connect()
    bench.send(client, [("t", 0, records_of(1)) for _ in range(5)])
    bench.until(lambda: bench.plane.state(handle).durable_offset == 5)
    bench.plane.commit(handle, TERM, 5)
    bench.answer(client)
    bench.plane.set_log_start(handle, starts)
    bench.core.replicated.replication.leaderships.follows = follows
    (part,) = parts_of(bench.fetch(client, 12, asks(("t", 0, offset))))
    assert (told(part), part["LogStartOffset"]) == ((error, -1, 0), -1)
    assert bench.core.replicated.replication.leaderships.asked == 1
    assert told(parts_of(bench.fetch(client, 12, asks(("t", 0, 4))))[0]) == (0, 5, 1)
    assert bench.core.replicated.replication.leaderships.asked == 1, "not for what it has"


@pytest.mark.parametrize(
    ("follows", "told_of"), [(True, {"Epoch": TERM, "EndOffset": 0}), (False, {"Epoch": -1, "EndOffset": -1})]
)
def test_a_leader_says_where_logs_part_when_a_quorum_follows_it(bench, follows, told_of):
    leader(bench)
    bench.partitions["t", 0].files.epochs.assign(TERM, 0)
    bench.core.replicated.replication.leaderships.follows = follows
    asked = asks(("t", 0, 5))
    asked["Topics"][0]["Partitions"][0]["LastFetchedEpoch"] = TERM
    (part,) = parts_of(bench.fetch(bench.connect(), 12, asked))
    assert part["DivergingEpoch"] == told_of
    assert part["ErrorCode"] == (0 if follows else E.NOT_LEADER_OR_FOLLOWER)


def test_a_follower_never_says_where_logs_part(bench):
    """What it has not got yet its leader may have."""
    follower(bench)
    bench.partitions["t", 0].files.epochs.assign(TERM, 0)
    asked = asks(("t", 0, 9))
    asked["Topics"][0]["Partitions"][0]["LastFetchedEpoch"] = TERM
    (part,) = parts_of(bench.fetch(bench.connect(), 12, asked))
    assert (part["DivergingEpoch"], part["ErrorCode"]) == ({"Epoch": -1, "EndOffset": -1}, E.OFFSET_NOT_AVAILABLE)


def test_who_waits_at_a_follower_gets_what_is_committed(in_c):
    handle, client = follower(in_c), in_c.connect()
    in_c.send_fetch(client, 12, of_epoch(TERM, 3, wait_ms=LONG_MS))
    wait_parked(in_c)
    in_c.plane.commit(handle, TERM, 4)
    assert told(parts_of(read_answer(in_c, client))[0]) == (0, 4, 1)
    assert in_c.handled == 0


def test_who_waits_gets_what_is_committed_while_c_carries_the_replica(in_c):
    steady, lost = SteadyPlane(), []
    steady._plane = in_c.plane.pointer
    steady._begin_steady(in_c.ring)
    steady.on_steady(lambda: None, lost.append)
    handle, client = follower(in_c), in_c.connect()
    peer = Peer(steady, 1)
    assert steady.steady_follow(handle, OWN, TERM, 0, (1, 7), peer.link, 3)
    in_c.send_fetch(client, 12, of_epoch(TERM, 5, wait_ms=LONG_MS))
    wait_parked(in_c)
    batch = records_of(2, base_offset=5, leader_epoch=TERM)
    peer.say(frame(STEADY_APPEND, steady_entry(5, 3, batch)))
    in_c.until(lambda: in_c.plane.state(handle).durable_offset == 7)
    assert in_c.fetch_counts().parked_now == 1, "durable, and not known to be committed"
    peer.say(frame(STEADY_APPEND, steady_entry(7, 7, b"")))
    assert told(parts_of(read_answer(in_c, client))[0]) == (0, 7, 2)
    assert in_c.handled == 0
    peer.socket.close()
    steady.steady_close(peer.link)
    in_c.until(lambda: lost)


@pytest.mark.parametrize("end", ["it serves no more", "it follows another", "it has no role", "it leads"])
def test_who_waits_is_sent_away_when_it_ends(in_c, end):
    handle, client = follower(in_c), in_c.connect()
    in_c.send_fetch(client, 12, of_epoch(TERM, 3, wait_ms=LONG_MS))
    wait_parked(in_c)
    in_c.partitions["t", 0].followed_epoch = None
    match end:
        case "it serves no more":
            in_c.face.serve_reads(handle, None)
        case "it follows another":
            in_c.plane.follow(handle, TERM + 1)
        case "it has no role":
            in_c.plane.disarm(handle)
        case "it leads":
            in_c.plane.disarm(handle)
            in_c.plane.arm(handle, TERM + 1)
    assert told(parts_of(read_answer(in_c, client))[0])[0] == E.NOT_LEADER_OR_FOLLOWER
    assert in_c.handled == 1


def from_rack(rack, offset=0, version=12, **more):
    return asks(("t", 0, offset), version=version, RackId=rack, **more)


def test_consumers_in_a_rack_with_a_replica_are_sent_there_at_once(bench):
    leader(bench, "b")
    client = bench.connect()
    bench.plane.append(bench.partitions["t", 0].handle, records_of(4))
    bench.until(lambda: bench.plane.state(bench.partitions["t", 0].handle).durable_offset == 4)
    bench.plane.commit(bench.partitions["t", 0].handle, TERM, 4)
    for version in (11, 12, 18):
        (part,) = parts_of(bench.fetch(client, version, from_rack("b", 4, version, wait_ms=LONG_MS)))
        assert (told(part), part["PreferredReadReplica"]) == ((0, 4, 0), PREFERRED), "without waiting"
        for rack in ("", "a", "bb", "c"):
            (part,) = parts_of(bench.fetch(client, version, from_rack(rack, 0, version)))
            assert (told(part), part["PreferredReadReplica"]) == ((0, 4, 4), -1), rack


def test_only_who_may_be_sent_away_costs_python(in_c):
    handle, client = leader(in_c, "b"), in_c.connect()
    for rack in ("", "a", "bb", "c", "B"):
        in_c.fetch(client, 12, from_rack(rack))
    assert in_c.handled == 0
    in_c.fetch(client, 12, from_rack("b"))
    assert (in_c.handled, in_c.fetch_counts().left["nearer"]) == (1, 1)
    in_c.face.set_near_racks(handle, 0)
    in_c.fetch(client, 12, from_rack("b"))
    assert in_c.handled == 1


def test_racks_beyond_sixty_three_share_a_bit(in_c):
    handle, client = leader(in_c), in_c.connect()
    names = [f"rack{number}" for number in range(70)]
    in_c.face.set_racks(names)
    for bit, expected in ((62, {"rack62"}), (63, set(names[63:]))):
        in_c.face.set_near_racks(handle, 1 << bit)
        found = set()
        for name in names:
            before = in_c.handled
            in_c.fetch(client, 12, from_rack(name))
            found |= {name} if in_c.handled > before else set()
        assert found == expected


def test_who_waits_is_sent_to_a_replica_that_came_meanwhile(in_c):
    handle, client = leader(in_c), in_c.connect()
    in_c.send_fetch(client, 12, from_rack("b", wait_ms=LONG_MS, bytes_min=1 << 20))
    wait_parked(in_c)
    in_c.core.replicated.near.racks = ("b",)
    in_c.face.set_near_racks(handle, racks_of("b"))
    in_c.plane.append(handle, records_of(1))
    in_c.until(lambda: in_c.plane.state(handle).durable_offset == 1)
    in_c.plane.commit(handle, TERM, 1)
    (part,) = parts_of(read_answer(in_c, client))
    assert (told(part), part["PreferredReadReplica"]) == ((0, 1, 0), PREFERRED)


def test_a_session_tells_each_time_where_to_read(bench):
    """Though nothing else is new of the partition."""
    leader(bench, "b")
    client = bench.connect()
    answer = bench.fetch(client, 12, from_rack("b", SessionEpoch=0))
    session = answer["SessionId"]
    assert session
    for epoch in (1, 2):
        asked = asks(SessionId=session, SessionEpoch=epoch, RackId="b")
        (part,) = parts_of(bench.fetch(client, 12, asked))
        assert part["PreferredReadReplica"] == PREFERRED
    asked = asks(SessionId=session, SessionEpoch=3)
    assert parts_of(bench.fetch(client, 12, asked)) == [], "from no rack"


def test_by_topic_id_too(bench):
    follower(bench)
    asked = asks(("t", 0, 0), version=13)
    assert asked["Topics"][0]["TopicId"] == uuid.UUID(bytes=topic_id_of("t"))
    assert told(parts_of(bench.fetch(bench.connect(), 13, asked))[0]) == (0, 3, 3)
