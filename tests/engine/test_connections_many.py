"""Many connections of which the same becomes true in one moment: who has nothing to do with it is served meanwhile."""

import pytest

from tests.support.connection_bench import frame_of, leave
from tpc_broker.engine.connections import CloseReason, ConnectionLimits


def test_many_that_fall_idle_together_hold_up_nobody(make_connections):
    """Their closes are spread over turns: who asks meanwhile is served before the last of them is gone."""
    bench = make_connections()
    idle = [bench.connect() for _ in range(2000)]
    busy = bench.connect()
    busy.sendall(frame_of(b"me too"))
    bench.world.let_pass(1.1)
    bench.connections.set_limits(ConnectionLimits(idle_ms_max=1000))
    bench.connections.answer(bench.next_request(), b"served")
    assert bench.read_frame(busy) == b"served"
    assert bench.connections.statistics().closed < len(idle)
    bench.until(lambda: bench.connections.statistics().closed_by_reason[CloseReason.IDLE] >= len(idle))


@pytest.mark.parametrize("reason", [CloseReason.PEER, CloseReason.RESET])
def test_many_that_leave_together_hold_up_nobody(make_connections, reason):
    """Their closes are spread over turns: who asks meanwhile is heard before the last of them is gone."""
    bench = make_connections()
    leaving, stays = [bench.connect() for _ in range(1000)], bench.connect()
    stays.sendall(frame_of(b"ping"))
    for client in leaving:
        leave(client, resets=reason is CloseReason.RESET)
    request = bench.next_request()
    assert bench.connections.statistics().closed < len(leaving)
    bench.connections.answer(request, b"pong")
    assert bench.read_frame(stays) == b"pong"
    bench.until(lambda: bench.connections.statistics().closed_by_reason[reason] == len(leaving))
