"""A cache of results that lasts as long as the object from which they were computed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def remembered(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Cache a function's results for each object that is its first argument.

    Objects are told apart by identity, the other arguments by equality. Errors are not cached.
    """
    known: dict[int, list[tuple[tuple[Any, ...], dict[str, Any], Result]]] = {}

    @wraps(function)
    def remembering(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        subject, *others = args
        if id(subject) not in known:
            known[id(subject)] = []
            weakref.finalize(subject, known.pop, id(subject))
        results = known[id(subject)]
        for some, named, result in results:
            if some == tuple(others) and named == kwargs:
                return result
        found = function(*args, **kwargs)
        results.append((tuple(others), kwargs, found))
        return found

    return remembering
