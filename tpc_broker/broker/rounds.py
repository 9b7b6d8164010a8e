"""When tasks that look after something now and then do so: together. A core at rest wakes up once for all of them."""

from __future__ import annotations

import trio


async def next_round(every_s: float) -> None:
    """Sleep for about so long, half as much again at most: until an instant that all with this period share. Periods
    that are multiples of one another share theirs, too.
    """
    rounds = (trio.current_time() + every_s / 2) // every_s
    await trio.sleep_until((rounds + 1) * every_s)
