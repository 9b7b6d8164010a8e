"""What clients ask for and this broker does not have: a line for each API and client id, once an hour.

Clients say little of it, or nothing: who looks for the reason finds it in the log. Client ids are whatever clients
send, so only so many are told apart; those that come beyond them share one line an API and hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tpc_broker import limits

if TYPE_CHECKING:
    from collections.abc import Callable

NO_ID: Final = "(none)"


class AskedInVain:
    """`admit` gives the words that a line is to end with, or None: no line now."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._told: dict[tuple[str, str | None], tuple[float, int]] = {}
        """By API and client id (None: of all others): since when, and how often. Those that began first are first."""

    def admit(self, api: str, client_id: str | None) -> str | None:
        now_s = self._now_s()
        name = shortened(client_id)
        key: tuple[str, str | None] = (api, name)
        before = self._over(key, now_s)
        if key not in self._told and self._distinct(now_s) >= limits.VAIN_CLIENTS_MAX:
            key = (api, None)
            before = self._over(key, now_s)
        if key in self._told:
            began_s, times = self._told[key]
            self._told[key] = began_s, times + 1
            return None
        self._told[key] = now_s, 1
        who = f"client id {name}" if key[1] is not None else f"client id {name} and others, too many to be told apart"
        return f"{who}; once an hour{f', {before:,} times in the one before' if before else ''}"

    def _over(self, key: tuple[str, str | None], now_s: float) -> int:
        """Forget a line that is an hour old; how often it would have been written."""
        began_s, times = self._told.get(key, (now_s, 0))
        if now_s - began_s < limits.VAIN_LINE_S:
            return 0
        del self._told[key]
        return times

    def _distinct(self, now_s: float) -> int:
        """How many are told apart, after those went that are an hour old."""
        while self._told and now_s - next(iter(self._told.values()))[0] >= limits.VAIN_LINE_S:
            del self._told[next(iter(self._told))]
        return len(self._told)


def shortened(client_id: str | None) -> str:
    """In quotes and in one line, whatever it is made of."""
    if client_id is None:
        return NO_ID
    cut = client_id[: limits.VAIN_NAME_CHARACTERS_MAX]
    return repr(cut) + ("…" if cut != client_id else "")
