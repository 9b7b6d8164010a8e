"""What several tasks want at the same time is done once, for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from tpc_broker.client.errors import ClientError, ClosedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

    from tpc_broker.client.net.tasks import Background

T = TypeVar("T")


class _Flight(Generic[T]):
    def __init__(self) -> None:
        self.landed = anyio.Event()
        self.result: T | None = None
        self.error: ClientError | None = None

    def land(self, result: T | None, error: ClientError | None) -> None:
        if not self.landed.is_set():
            self.result, self.error = result, error
            self.landed.set()


class Flights(Generic[T]):
    """Each is a task of ``tasks``: who is cancelled only stops waiting, and takes nothing away from the others."""

    def __init__(self, tasks: Background) -> None:
        self._tasks = tasks
        self._flights: dict[Hashable, _Flight[T]] = {}
        self._is_closed = False

    async def do(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """What ``make`` gives, here or for the first who wanted that key; raises the `ClientError` that it raised."""
        if self._is_closed:
            raise ClosedError("the client is closed")
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight()
            self._tasks.start_soon(self._fly, key, flight, make)
        await flight.landed.wait()
        if flight.error is not None:
            raise flight.error.again()
        assert flight.result is not None
        return flight.result

    async def _fly(self, key: Hashable, flight: _Flight[T], make: Callable[[], Awaitable[T]]) -> None:
        try:
            flight.land(await make(), None)
        except ClientError as error:
            flight.land(None, error)
        finally:
            flight.land(None, ClosedError("the client is closed"))
            del self._flights[key]

    def close(self) -> None:
        """Nobody waits any more."""
        self._is_closed = True
        for flight in self._flights.values():
            flight.land(None, ClosedError("the client was closed"))
