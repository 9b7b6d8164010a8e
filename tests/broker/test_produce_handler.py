"""A Produce that C leaves again and again: what the handler does until it is taken, or given up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio

from tpc_broker.broker.handlers.produce import REFUSAL_WAIT_MS_MAX, handle_produce
from tpc_broker.broker.ports import ProduceFallback
from tpc_broker.error_codes import ErrorCode

TIMEOUT_MS = 5_000
CALLS_MAX = 100_000
TOPIC = SimpleNamespace(name="t", partition_data=[SimpleNamespace(index=0, records=b"x")])


class Plane:
    """Leaves every request, or takes refusals, and counts how often it is asked."""

    def __init__(self, left: ProduceFallback, *, takes_refusals: bool) -> None:
        self.left = left
        self.takes_refusals = takes_refusals
        self.calls = 0

    def produce_with(self, _request, verdicts, _endpoints):
        self.calls += 1
        assert self.calls < CALLS_MAX, "it spins"
        refused = all(verdict.error_code == ErrorCode.KAFKA_STORAGE_ERROR for verdict in verdicts)
        return ProduceFallback.NONE if refused and self.takes_refusals else self.left


def core_with(plane):
    return SimpleNamespace(
        plane=plane,
        clock=SimpleNamespace(monotonic_ms=lambda: int(trio.current_time() * 1000)),
        replicated=None,
        partitions=SimpleNamespace(find=lambda _key, _index: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        view=SimpleNamespace(endpoints=lambda _listener: ()),
    )


async def produce(plane):
    """How long the handler took, in ms."""
    message = SimpleNamespace(topic_data=[TOPIC], timeout_ms=TIMEOUT_MS)
    begun_s = trio.current_time()
    await handle_produce(core_with(plane), SimpleNamespace(api_version=9, listener=0), message)
    return (trio.current_time() - begun_s) * 1000


@pytest.mark.parametrize("left", [ProduceFallback.NO_MEMORY, ProduceFallback.NOT_ADMITTED])
async def test_what_finds_no_room_in_time_is_refused(left, autojump_clock):
    plane = Plane(left, takes_refusals=True)
    assert TIMEOUT_MS <= await produce(plane) < TIMEOUT_MS + 100


async def test_without_memory_even_for_a_refusal_the_connection_is_given_up_and_the_loop_never_held(autojump_clock):
    plane = Plane(ProduceFallback.NO_MEMORY, takes_refusals=False)
    with pytest.raises(MemoryError, match="refuse"):
        await produce(plane)
    assert plane.calls < TIMEOUT_MS + REFUSAL_WAIT_MS_MAX
