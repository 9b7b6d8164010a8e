"""Codecs at work: asked again after what they lacked is there, and their errors with the place of the record."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tpc_broker.client.codecs.codec import DecodingError, EncodingError, LackError
from tpc_broker.client.codecs.registry import RegistryError, UnknownSchemaError

if TYPE_CHECKING:
    from tpc_broker.client.codecs.codec import Codec, Place
    from tpc_broker.client.values import Record

T = TypeVar("T")


async def encoded(codec: Codec[T], value: T, place: Place) -> bytes | None:
    """`EncodingError`, or `RegistryError` when a registry cannot be asked."""
    while True:
        try:
            return codec.encode(value, place)
        except LackError as lack:
            try:
                await codec.supply(lack, place)
            except UnknownSchemaError as error:
                raise EncodingError(place, codec, error) from error
            except RegistryError:
                raise
            except Exception as error:
                raise EncodingError(place, codec, error) from error
        except Exception as error:
            raise EncodingError(place, codec, error) from error


async def supplied(codec: Codec[T], lack: LackError, record: Record, place: Place) -> None:
    """What a codec lacked for that record. `DecodingError`, or `RegistryError` when a registry cannot be asked."""
    try:
        await codec.supply(lack, place)
    except UnknownSchemaError as error:
        raise DecodingError(record, place.field, codec, error) from error
    except RegistryError:
        raise
    except Exception as error:
        raise DecodingError(record, place.field, codec, error) from error
