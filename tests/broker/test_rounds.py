"""Tasks that look after something now and then wake up together."""

import itertools

import pytest
import trio

from tpc_broker.rounds import next_round


@pytest.mark.parametrize("began_s", [0, 0.2, 0.3, 0.74])
async def test_periods_that_are_multiples_share_their_instants_and_none_is_far_from_its_period(autojump_clock, began_s):
    woken = {0.5: [], 1.0: [], 2.0: []}

    async def look(every_s):
        woken[every_s].append(trio.current_time())
        while True:
            await next_round(every_s)
            woken[every_s].append(trio.current_time())
            await trio.sleep(every_s / 10)  # what it does then

    with trio.move_on_after(20):
        async with trio.open_nursery() as nursery:
            await trio.sleep(began_s)
            for every_s in woken:
                nursery.start_soon(look, every_s)
    for every_s, times in woken.items():
        assert all(every_s / 2 <= after - before <= 1.5 * every_s for before, after in itertools.pairwise(times))
        assert len(times) >= 0.9 * (20 - began_s) / every_s
    assert set(woken[2.0][1:]) <= set(woken[1.0]) | {20}
    assert set(woken[1.0][1:]) <= set(woken[0.5]) | {20}
