"""Whether a partition's active segment may be sealed, so that what follows goes to another one.

Batches that are written in place have their positions in the active segment before they come here: the data plane
gives them through its in-place window, and recovery finds them in the journal. Until these are counted the segment has
to take everything in front of their end.
"""

from __future__ import annotations

from typing import Protocol


class InPlaceWindow(Protocol):
    """The data plane's hold on the active segment."""

    def close(self) -> None:
        """Nothing more is written in place."""
        ...

    def end_offset(self) -> int:
        """Behind the last batch written in place that has not come here; -1: there is none."""
        ...


class RollGuard:
    """Of one partition."""

    def __init__(self) -> None:
        self._window: InPlaceWindow | None = None
        self._replay_end_offset = -1

    def follow(self, window: InPlaceWindow) -> None:
        """The data plane has the partition now."""
        self._window = window

    def hold_until(self, offset: int) -> None:
        """The journal names batches below this offset that were written in place; -1: none."""
        self._replay_end_offset = offset

    def close_window(self) -> None:
        """Nothing more is given a position; what has one still has to be taken."""
        if self._window is not None:
            self._window.close()

    def may_roll(self, base_offset: int) -> bool:
        """Whether another segment may begin at an offset. Asking closes the window: its answer stays true."""
        if base_offset < self._replay_end_offset:
            self.close_window()
            return False
        if self._window is None:
            return True
        self._window.close()
        return base_offset >= self._window.end_offset()
