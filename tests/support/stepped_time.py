"""Time that passes when a test says so, for what is simulated without trio."""

import heapq
from itertools import count


class SteppedTime:
    def __init__(self):
        self._now_s, self._planned, self._numbers = 1000.0, [], count()

    def now_ns(self):
        return round(self._now_s * 1e9)

    def later(self, delay_s, action):
        heapq.heappush(self._planned, (self._now_s + delay_s, next(self._numbers), action))

    def step(self):
        """To whatever is to happen next; False: nothing is."""
        if not self._planned:
            return False
        when_s, _number, action = heapq.heappop(self._planned)
        self._now_s = max(self._now_s, when_s)
        action()
        return True


def stepped(coroutine):
    """What a coroutine gives that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")
