"""What `tpc partition place`, `move` and `balance` wait for, and when they give up."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest

from tpc_broker.cli import move_waits
from tpc_broker.cli.move_waits import HEARD_S, wait_moved
from tpc_broker.client.errors import ClientError, RefusedError
from tpc_broker.kafka import ErrorCode

WHERE = ("t", 0)


class Moves:
    """Of partition t-0. `moving_until_s`, `astray_until_s`: so long it is on its way, and not where it should be."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, moving_until_s: float, astray_until_s: float) -> None:
        self.now_s = 0.0
        self._moving_until_s, self._astray_until_s = moving_until_s, astray_until_s
        self.refusals = 2
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self._sleep)
        monkeypatch.setattr(move_waits, "time", clock)
        monkeypatch.setattr(move_waits, "listed_moves", self._listed)

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def _listed(self, _client: object) -> list[tuple[str, SimpleNamespace]]:
        if self.refusals:
            self.refusals -= 1
            raise RefusedError(ErrorCode.NOT_CONTROLLER, "nobody leads the metadata")
        here = [("t", SimpleNamespace(partition_index=0))] if self.now_s < self._moving_until_s else []
        return [*here, ("other", SimpleNamespace(partition_index=0))]

    def attempts(self) -> Iterable[object]:
        for _ in range(10):
            yield lambda _error: None

    def wait(self, gives_up_s: float | None = None) -> None:
        def astray() -> dict[tuple[str, int], str]:
            return {WHERE: "stays"} if self.now_s < self._astray_until_s else {}

        wait_moved(self, [WHERE], astray, gives_up_s=gives_up_s)  # type: ignore[arg-type]


def test_it_is_waited_for_as_long_as_it_is_under_way_and_until_its_node_has_heard(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moves = Moves(monkeypatch, moving_until_s=1_000, astray_until_s=1_000 + HEARD_S / 2)
    moves.wait()
    assert moves.now_s == pytest.approx(1_000 + HEARD_S / 2, abs=0.2)
    assert capsys.readouterr().err == "1 of 1 partitions on their way ...\n"


def test_one_that_stays_where_it_is_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = Moves(monkeypatch, moving_until_s=10, astray_until_s=10_000)
    with pytest.raises(ClientError, match="t-0 stays"):
        moves.wait()
    assert moves.now_s == pytest.approx(10 + HEARD_S, abs=0.3)


def test_who_gives_up_says_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    moves = Moves(monkeypatch, moving_until_s=10_000, astray_until_s=10_000)
    with pytest.raises(ClientError, match="1 partitions are still on their way after 120 s; they go on"):
        moves.wait(120)
    assert moves.now_s == pytest.approx(120, abs=0.2)
