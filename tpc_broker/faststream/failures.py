"""How a handler's word on a record reaches the client's stream."""

from __future__ import annotations


class NackedError(Exception):
    """The record is to be handled again."""


class RejectedError(Exception):
    """It is finished, or goes to the dead letters."""


def text_of(error: Exception | None) -> str:
    return "by its handler" if error is None else f"{type(error).__name__}: {error}"
