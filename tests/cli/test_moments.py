"""Instants at the ends of what can be told."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner

from tpc_broker.cli.consume import parse_start
from tpc_broker.cli.main import main
from tpc_broker.cli.moments import milliseconds, parse_instant

LAST = "9999-12-31T23:59:59Z"
BEYOND = ["0001-01-01", "9999-12-31T23:59:59-12:00"]
EARLY = ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z"]
"""As a time stamp of -1 the second of them would be the end of a partition."""


@pytest.fixture(params=["UTC", "Europe/Berlin", "America/New_York"], autouse=True)
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as changed:
        changed.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


def test_the_first_and_the_last_second_are_instants_in_every_zone() -> None:
    assert milliseconds(parse_instant("0001-01-01T00:00:00Z")) == -62_135_596_800_000
    assert milliseconds(parse_instant(LAST)) == 253_402_300_799_000
    assert milliseconds(parse_instant("1970-01-01T00:00:00Z")) == 0


@pytest.mark.parametrize("text", BEYOND)
def test_what_is_beyond_them_is_no_instant(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_instant(text)


def of_consume(text: str) -> list[str]:
    return ["consume", "t", "--from", text]


def of_trim(text: str) -> list[str]:
    return ["topic", "trim", "t", "--before", text]


def of_reset(text: str) -> list[str]:
    return ["group", "reset-offsets", "g", "--topic", "t", "--to-datetime", text]


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        *((of_consume, text, "an ISO 8601 timestamp of the years 1970 to 9999") for text in [*BEYOND, *EARLY]),
        *((of_trim, text, "an ISO 8601 timestamp of the years 1970 to 9999") for text in [*BEYOND, *EARLY]),
        *((of_reset, text, "is no ISO 8601 timestamp of the years 1 to 9999") for text in BEYOND),
    ],
)
def test_what_is_out_of_range_is_one_line(arguments: Callable[[str], list[str]], text: str, said: str) -> None:
    done = CliRunner().invoke(main, arguments(text), catch_exceptions=False)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("tpc: ")
    assert said in done.stderr


def test_consume_begins_at_what_is_in_range() -> None:
    assert parse_start(LAST) == parse_instant(LAST)
    assert parse_start("1970-01-01T00:00:00Z") == parse_instant("1970-01-01T00:00:00Z")
