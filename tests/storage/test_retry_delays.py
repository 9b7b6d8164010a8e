"""When what failed is tried again: twice as long after each attempt, and from the beginning after a long rest."""

import trio

from tpc_broker.storage.retry_delays import RetryDelays


async def waits(delays, count, rest_s=0.0):
    """How long it was before each of the next attempts was due. `rest_s`: it was well for so long after each."""
    found = []
    for _ in range(count):
        delays.tried("disk", 0.5)
        since_s = trio.current_time()
        while not delays.is_due("disk"):
            await trio.sleep(0.25)
        found.append(trio.current_time() - since_s)
        await trio.sleep(rest_s)
    return found


async def test_each_attempt_puts_the_next_one_off_twice_as_long(autojump_clock):
    delays = RetryDelays(10.0)
    assert delays.is_due("disk")
    assert await waits(delays, 7) == [0.5, 1, 2, 4, 8, 10, 10]
    assert delays.is_due("another")


async def test_what_fails_again_soon_after_goes_on_where_it_was(autojump_clock):
    assert await waits(RetryDelays(10.0), 6, rest_s=9) == [0.5, 1, 2, 4, 8, 10]


async def test_what_was_well_for_long_begins_anew_and_is_forgotten(autojump_clock):
    delays = RetryDelays(10.0)
    assert await waits(delays, 4, rest_s=11) == [0.5] * 4
    delays.tried("another", 0.5)
    assert list(delays._delays) == ["another"]
