"""Instants and spans of time as people write them."""

from __future__ import annotations

import datetime
import re
from typing import Any

import click

_ISO_SPAN = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", re.IGNORECASE)
_SHORT_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?")


_FIRST_TIMESTAMP = datetime.datetime.fromtimestamp(0, datetime.UTC)


def parse_instant(text: str) -> datetime.datetime:
    """ISO 8601 of the years 1 to 9999; local time where no zone is given. ValueError for anything else."""
    try:
        return datetime.datetime.fromisoformat(text).astimezone(datetime.UTC)
    except OverflowError:
        raise ValueError(f"not in the years 1 to 9999: {text!r}") from None


def parse_record_time(text: str) -> datetime.datetime:
    """An instant that a record can have. ValueError for what is none, and for one before 1970: negative time stamps
    mean other things to a broker (-1: the end).
    """
    instant = parse_instant(text)
    if instant < _FIRST_TIMESTAMP:
        raise ValueError(f"before 1970: {text!r}")
    return instant


def parse_span(text: str) -> datetime.timedelta:
    """ISO 8601 as Kafka's tools take it (`PT1H30M`), or short (`1h30m`). ValueError for anything else."""
    found = _ISO_SPAN.fullmatch(text) or _SHORT_SPAN.fullmatch(text)
    if found is None or not any(found.groups()):
        raise ValueError(f"no span of time: {text!r}")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    try:
        return datetime.timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError:
        raise ValueError(f"too long: {text!r}") from None


def now_ms() -> int:
    return milliseconds(datetime.datetime.now(datetime.UTC))


def milliseconds(instant: datetime.datetime) -> int:
    return int(instant.timestamp() * 1000)


class Instant(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since click 8.4
    """An option's value: a point in time."""

    name = "TIMESTAMP"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return value if isinstance(value, datetime.datetime) else parse_instant(value)
        except ValueError:
            allowed = "ISO 8601 timestamp of the years 1 to 9999, such as 2026-11-21T08:00:00Z"
            self.fail(f"{value!r} is no {allowed}", parameter, context)


class Span(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """An option's value: a length of time."""

    name = "DURATION"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return value if isinstance(value, datetime.timedelta) else parse_span(value)
        except ValueError:
            self.fail(f"{value!r} is no length of time, such as 90s, 1h30m, 7d or PT1H30M", parameter, context)
