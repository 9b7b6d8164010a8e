"""How long a connection is held up: what has come meanwhile waits with what stands in front of it, and not again after
it. Requests of a connection are handled one after the other, so five that each wait for two seconds would be ten.
"""

from __future__ import annotations

from typing import Final

KEPT_NS: Final = 60_000_000_000
"""After its end a hold is known for so long. What has stood behind it for longer may be held anew."""


class Holds:
    """Of one core, each for `held_ns` from its beginning. Times are monotonic, in ns."""

    def __init__(self, held_ns: int) -> None:
        self._held_ns = held_ns
        self._ends_ns: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._ends_ns)

    def left_s(self, connection: int, received_ns: int, now_ns: int) -> float:
        """How long a request that came then may be held, in seconds: what is left of the hold that its connection was
        in, or a new one.
        """
        end_ns = self._ends_ns.get(connection)
        if end_ns is None or received_ns > end_ns:
            self._forget_before(now_ns - KEPT_NS)
            self._ends_ns.pop(connection, None)
            end_ns = self._ends_ns[connection] = now_ns + self._held_ns
        return max(0, end_ns - now_ns) / 1e9

    def _forget_before(self, end_ns: int) -> None:
        """They stand in the order in which they end."""
        while self._ends_ns and self._ends_ns[first := next(iter(self._ends_ns))] < end_ns:
            del self._ends_ns[first]
