"""Put a driver in a function's place; it is handed the function and decides whether to call it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

Driver = Callable[..., Any]
"""Called with the replay, the original function and its arguments; a coroutine for a coroutine."""


def substitute(owner: Any, name: str, driver: Driver, replay: Any) -> None:
    """Replace ``owner.name`` by a plain function with its attributes that calls the driver."""
    original = getattr(owner, name)
    if inspect.iscoroutinefunction(driver):

        @functools.wraps(original)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await driver(replay, original, *args, **kwargs)

        setattr(owner, name, awaited)
        return

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        return driver(replay, original, *args, **kwargs)

    setattr(owner, name, called)
