"""A segment is not sealed in front of batches that have their positions in it already."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tpc_broker.storage.segments.roll_guard import RollGuard


class Window:
    """As the data plane's: while it is open, batches written in place are given positions."""

    def __init__(self):
        self.is_open, self.end = False, -1

    def close(self):
        self.is_open = False

    def end_offset(self):
        return self.end

    def give(self, offset):
        if self.is_open:
            self.end = max(self.end, offset)


OFFSETS = st.integers(0, 20)
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["give", "ask", "hold"]), OFFSETS), st.tuples(st.sampled_from(["open", "count"]), OFFSETS)
)


@given(st.booleans(), st.lists(EVENTS))
def test_no_offset_that_was_given_a_position_is_above_a_roll(led, events):
    guard, window, held = RollGuard(), Window(), -1
    if led:
        guard.follow(window)
    for event, offset in events:
        match event:
            case "open" if led:
                window.is_open = True
            case "give":
                window.give(offset)
            case "count" if window.end <= offset:
                window.end = -1
            case "hold":
                held = offset
                guard.hold_until(offset)
            case "ask":
                may = guard.may_roll(offset)
                assert may == (offset >= max(window.end, held))
                window.give(offset + 1)  # a batch that comes before the roll is done
                assert guard.may_roll(offset) == may, "an answer stays true"


def test_what_has_failed_is_given_no_positions_any_more():
    guard, window = RollGuard(), Window()
    guard.close_window()
    guard.follow(window)
    window.is_open = True
    guard.close_window()
    assert not window.is_open
