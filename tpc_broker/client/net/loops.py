"""Which event loop runs, and its own cheapest ways where anyio's cost a tenth of a short request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable


class Event(Protocol):
    def set(self) -> Any: ...
    async def wait(self) -> Any: ...


def is_on_trio() -> bool:
    return anyio.get_cancelled_exc_class().__module__.startswith("trio")


def event_maker() -> Callable[[], Event]:
    """What makes an event of the running loop; waiting for it is cancelled as anything else is."""
    if not is_on_trio():
        import asyncio  # noqa: PLC0415 - trio does without it

        return asyncio.Event
    import trio  # noqa: PLC0415 - asyncio does without it

    return trio.Event


def keep_interrupts_off(*functions: Any) -> None:
    """Trio raises an interrupt from the keyboard in whichever task runs just then, between any two steps of it. Not in
    these functions nor in what they call: there the program's main task gets it, when it waits for something. (asyncio
    always cancels the main task.)
    """
    if is_on_trio():
        import trio  # noqa: PLC0415 - asyncio does without it

        for function in functions:
            trio.lowlevel.enable_ki_protection(function)
