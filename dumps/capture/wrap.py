"""Put a tap on a function without the function, its callers or its pickles noticing."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from dumps.capture.failures import FailureLog

After = Callable[[Any], Any]
"""Called with the result; what it returns, unless None, takes the result's place."""

Tap = Callable[..., After | None]
"""Called with the arguments before the function; returns what to do after it, or None."""


def wrap(owner: Any, name: str, place: str, tap: Tap, log: FailureLog) -> None:
    """Replace ``owner.name`` by a function that calls the tap before and after it.

    A plain function with the attributes of the original: frameworks look at those (verl's
    dispatch), at whether it is a coroutine function (Ray), and pickle it by name.
    """
    original = getattr(owner, name)
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            after = _before(tap, place, log, args, kwargs)
            return _after(after, await original(*args, **kwargs), place, log)

        setattr(owner, name, awaited)
        return

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        after = _before(tap, place, log, args, kwargs)
        return _after(after, original(*args, **kwargs), place, log)

    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(called) if is_static else called)


def _before(
    tap: Tap, place: str, log: FailureLog, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> After | None:
    with log.kept(place):
        return tap(*args, **kwargs)
    return None


def _after(after: After | None, result: Any, place: str, log: FailureLog) -> Any:
    if after is not None:
        with log.kept(place):
            replaced = after(result)
            return result if replaced is None else replaced
    return result
