"""What waits for a thing ends with it, and what never comes fails by name."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from tests.support import waiting


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.05)


def test_what_comes_is_returned() -> None:
    looks = iter([None, 0, "", "it"])
    assert waiting.eventually(lambda: next(looks), "it", pause_s=0) == "it"


def test_exceptions_that_mean_not_yet() -> None:
    looks = iter([KeyError, ValueError])

    def look() -> bool:
        for error in looks:
            raise error
        return True

    assert waiting.eventually(look, "it", not_yet=(KeyError, ValueError), pause_s=0)
    looks = iter([KeyError])
    with pytest.raises(KeyError):
        waiting.eventually(look, "it", pause_s=0)


@pytest.mark.usefixtures("impatient")
def test_what_does_not_come_is_named_with_what_was_seen_last() -> None:
    with pytest.raises(waiting.NotYetError, match=r"the end: not within 0.05 s; last: \[\]"):
        waiting.eventually(list, "the end")
    with pytest.raises(waiting.NotYetError, match="the end"):
        trio.run(waiting.eventually_in_loop, list, "the end", clock=trio.testing.MockClock(autojump_threshold=0))
    with pytest.raises(waiting.NotYetError, match="3 of 4: not within"):
        for _ in waiting.patiently(lambda: "3 of 4", 0.05):
            pass


def test_a_time_is_bounded_from_below() -> None:
    with waiting.takes_at_least(0.01):
        waiting.let_pass(0.01)
    with pytest.raises(AssertionError, match="at least 100"), waiting.takes_at_least(100):
        pass
