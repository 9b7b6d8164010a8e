"""Latencies that C counts, by API: from a request's arrival to its answer; and which requests were the slowest."""

from tests.support.connection_bench import frame_of
from tests.support.waiting import let_pass
from tpc_broker._ring import lib


def test_a_request_s_time_is_in_the_histogram_of_its_api(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(frame_of(b"slow", api_key=3) + frame_of(b"fast", api_key=18))
    slow, fast = bench.next_request(), bench.next_request()
    bench.connections.answer(fast, b"answer")
    let_pass(0.5)
    bench.connections.answer(slow, b"answer")
    latencies = bench.connections.latencies()
    assert latencies.keys() == {3, 18}
    assert [sum(one["spans"]) for one in latencies.values()] == [1, 1]
    assert sum(latencies[3]["spans"][16:]) == 1, "500 ms are more than 2^15 us"
    assert latencies[3]["sum_ns"] >= latencies[18]["sum_ns"] + 500_000_000, "it came first"


def test_answers_in_c_are_counted_too_and_no_answer_is_one(make_connections):
    bench = make_connections()
    lib.tpc_connections_set_echo(bench.connections.pointer, 1)
    client = bench.connect()
    for _ in range(10):
        client.sendall(frame_of(b"x", api_key=18))
        bench.read_frame(client)
    lib.tpc_connections_set_echo(bench.connections.pointer, 0)
    client.sendall(frame_of(b"x", api_key=0))
    bench.connections.answer_none(bench.next_request())
    latencies = bench.connections.latencies()
    assert sum(latencies[18]["spans"]) == 10
    assert sum(latencies[0]["spans"]) == 1


def test_an_api_that_there_is_not_is_not_counted(make_connections):
    bench = make_connections()
    client = bench.connect()
    client.sendall(frame_of(b"x", api_key=-1) + frame_of(b"x", api_key=32_000))
    for _ in range(2):
        bench.connections.answer_none(bench.next_request())
    assert bench.connections.latencies() == {}


def test_the_slowest_are_kept_and_those_that_wait_by_design_are_not(make_connections):
    """Three are asked before all others and answered after them, so that no machine makes others slower."""
    bench = make_connections()
    held = []
    for frame in (
        frame_of(b"x" * 6, api_key=3, api_version=7),
        frame_of(b"x" * 31, api_key=3, api_version=7),
        frame_of(b"x", api_key=11),
    ):
        bench.connect().sendall(frame)
        held.append(bench.next_request())
    client = bench.connect()
    for number in range(40):
        client.sendall(frame_of(b"x" * (number + 100), api_key=3, api_version=7))
        bench.connections.answer(bench.next_request(), b"12345678")
    let_pass(0.5)
    for request in held:
        bench.connections.answer(request, b"12345678")
    slowest = bench.connections.slowest_requests()
    assert len(slowest) <= 16
    assert {one.api_key for one in slowest} == {3}
    assert [one.took_ns for one in slowest] == sorted((one.took_ns for one in slowest), reverse=True)
    head_bytes = len(frame_of(b"")) - 4
    slept = slowest[:2]
    assert {one.request_bytes - head_bytes for one in slept} == {6, 31}, "which of the two took longer is chance"
    assert min(one.took_ns for one in slept) >= 500_000_000
    assert (slept[0].api_version, slept[0].answer_bytes) == (7, 12)
