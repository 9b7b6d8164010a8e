"""Where reading begins, as a program says it: `start` of `Client.read`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from tpc_broker.client.consumer.ports import Position
from tpc_broker.client.requests import EARLIEST, LATEST


class Offset(int):
    """An offset, where a bare number would be a time: ``start=Offset(100)``."""


StartLike: TypeAlias = "Literal['earliest', 'latest'] | Offset | datetime | int"


class Start(NamedTuple):
    """Either an offset, or a time as ListOffsets takes it: ms since 1970, `EARLIEST` or `LATEST`."""

    offset: int | None = None
    time_ms: int = EARLIEST


def position_of(said: Position | int | Literal["earliest", "latest"] | None) -> Position | None:
    """Where one partition of an ``assignment`` begins: a bare number is an offset. `ValueError` for what is none."""
    if said is None or isinstance(said, Position):
        return said
    if said in {"earliest", "latest"}:
        return Position(EARLIEST if said == "earliest" else LATEST)
    if isinstance(said, int) and not isinstance(said, bool) and said >= 0:
        return Position(int(said))
    raise ValueError(f"{said!r} is no place to begin at: an offset, a Position, 'earliest', 'latest', or None")


def start_of(said: StartLike) -> Start:
    """`ValueError` for what is none. A datetime without a time zone is one in local time, as Python has it."""
    if said == "earliest":
        return Start(time_ms=EARLIEST)
    if said == "latest":
        return Start(time_ms=LATEST)
    if isinstance(said, Offset):
        if said < 0:
            raise ValueError(f"start is offset {int(said)}: 0 or more")
        return Start(offset=int(said))
    if isinstance(said, datetime):
        return Start(time_ms=max(0, round(said.timestamp() * 1000)))
    if isinstance(said, int) and not isinstance(said, bool) and said >= 0:
        return Start(time_ms=said)
    raise ValueError(f"start is {said!r}: 'earliest', 'latest', an Offset, a datetime, or ms since 1970")
