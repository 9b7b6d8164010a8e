"""Values of a user's own types as plain ones, and back, by msgspec."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

KEPT: Final = (bytes, bytearray, dt.datetime, dt.date, dt.time, Decimal, uuid.UUID)
"""What Avro's logical types are in Python: left as they are."""


def converters(kind: Any, kept: tuple[type, ...]) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """To plain values, and from them. Both leave everything as it is without a kind."""
    if kind is None:
        return _same, _same
    try:
        import msgspec  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        text = "values of one's own types need msgspec: pip install 'tpc-broker[msgspec]'"
        raise ModuleNotFoundError(text, name="msgspec") from None

    def plain(value: Any) -> Any:
        return msgspec.to_builtins(value, builtin_types=kept)

    def made(value: Any) -> Any:
        return msgspec.convert(value, kind, builtin_types=kept)

    return plain, made


def _same(value: Any) -> Any:
    return value
