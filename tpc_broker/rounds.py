"""When tasks that look after something now and then do so: together. A core at rest wakes up once for all of them, and
one that works is interrupted by them once.
"""

from __future__ import annotations

import trio


def next_round_s(every_s: float) -> float:
    """On trio's clock: an instant about so long from now, half as much again at most, that all with this period share.
    Periods that are multiples of one another share theirs, too.
    """
    rounds = (trio.current_time() + every_s / 2) // every_s
    return (rounds + 1) * every_s


async def next_round(every_s: float) -> None:
    """Sleep until `next_round_s`."""
    await trio.sleep_until(next_round_s(every_s))
