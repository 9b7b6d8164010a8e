"""Codecs that ask nobody: bytes, text, JSON, MessagePack."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from tpc_broker.client.codecs.codec import Codec

if TYPE_CHECKING:
    from tpc_broker.client.codecs.codec import LackError, Place

T = TypeVar("T")
_TAKES_STRUCTURE = "typed JSON and MessagePack need msgspec: pip install 'tpc-broker[msgspec]'"


class NullError(ValueError):
    """A null where a value is expected."""

    def __init__(self) -> None:
        super().__init__("it is null; where that may be, as in a compacted topic: Nullable(codec)")


class Bytes(Codec["bytes | None"]):
    """As they are, nulls too. What is used where no codec is named."""

    def encode(self, value: bytes | None, _place: Place) -> bytes | None:
        if value is not None and not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"bytes, not {type(value).__name__}")
        return value

    def decode(self, data: bytes | None, _place: Place) -> bytes | None:
        return data


class Str(Codec[str]):
    """Text in UTF-8."""

    def encode(self, value: str, _place: Place) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"str, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes | None, _place: Place) -> str:
        return str(_given(data), "utf-8")


class Nullable(Codec["T | None"], Generic[T]):
    """Another codec, and None for a null: the tombstones of a compacted topic."""

    def __init__(self, codec: Codec[T]) -> None:
        self.codec = codec

    def encode(self, value: T | None, place: Place) -> bytes | None:
        return None if value is None else self.codec.encode(value, place)

    def decode(self, data: bytes | None, place: Place) -> T | None:
        return None if data is None else self.codec.decode(data, place)

    async def supply(self, lack: LackError, place: Place) -> None:
        await self.codec.supply(lack, place)

    def __repr__(self) -> str:
        return f"Nullable({self.codec})"


class Json(Codec[T]):
    """JSON. ``Json()``: what the standard library's `json` takes and gives, but NaN and infinities, which are no JSON.

    ``Json(Order)``: of that type, which may be a msgspec Struct, a dataclass, a TypedDict or a NamedTuple, and is
    checked when it is read. Needs msgspec (the extra `msgspec`).
    """

    @overload
    def __init__(self: Json[Any]) -> None: ...
    @overload
    def __init__(self, kind: type[T]) -> None: ...
    def __init__(self, kind: Any = None) -> None:
        self._name = "Json" if kind is None else f"Json({getattr(kind, '__name__', kind)})"
        if kind is None:
            self._encode, self._decode = _json_encode, _json_decode
            return
        found = _msgspec().json
        self._encode, self._decode = found.Encoder().encode, found.Decoder(kind).decode

    def encode(self, value: T, _place: Place) -> bytes:
        return self._encode(value)

    def decode(self, data: bytes | None, _place: Place) -> T:
        value: T = self._decode(_given(data))
        return value

    def __repr__(self) -> str:
        return self._name


class MessagePack(Codec[T]):
    """MessagePack of that type, which is checked (as for `Json`). Needs msgspec (the extra `msgspec`)."""

    def __init__(self, kind: type[T]) -> None:
        found = _msgspec().msgpack
        self._name = f"MessagePack({getattr(kind, '__name__', kind)})"
        self._encode, self._decode = found.Encoder().encode, found.Decoder(kind).decode

    def encode(self, value: T, _place: Place) -> bytes:
        data: bytes = self._encode(value)
        return data

    def decode(self, data: bytes | None, _place: Place) -> T:
        value: T = self._decode(_given(data))
        return value

    def __repr__(self) -> str:
        return self._name


def _given(data: bytes | None) -> bytes:
    if data is None:
        raise NullError
    return data


def _json_encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _json_decode(data: bytes) -> Any:
    return json.loads(data, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _msgspec() -> Any:
    try:
        import msgspec  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise ModuleNotFoundError(_TAKES_STRUCTURE, name="msgspec") from None
    return msgspec
