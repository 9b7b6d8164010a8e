"""When what failed is tried again: twice as long after each attempt, and from the beginning after a long rest."""

import trio

from tpc_broker.storage.upkeep.retry_delays import RetryDelays


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


class CountedLooks(dict):
    """Counts how many delays are looked over."""

    looks = 0

    def items(self):
        self.looks += len(self)
        return super().items()


async def test_thousands_that_fail_together_are_not_looked_over_for_each_of_them(autojump_clock):
    delays = RetryDelays(10.0)
    delays._delays = looked_over = CountedLooks()
    for _ in range(8):
        for number in range(1000):
            delays.tried(number, 0.5)
        await trio.sleep(10)
    assert len(looked_over) == 1000
    assert looked_over.looks <= 8 * 1000


async def test_what_is_tried_anew_before_the_old_are_forgotten_begins_at_first_all_the_same(autojump_clock):
    delays = RetryDelays(10.0)
    for _ in range(4):
        delays.tried("disk", 0.5)
    await trio.sleep(13.5)
    delays.tried("another", 0.5)
    await trio.sleep(1)
    delays.tried("disk", 0.5)
    assert delays._delays["disk"].delay_s == 0.5
