"""Results that are remembered for as long as the object lives that they were computed of."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def remembered(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function return what it returned before for the same first and equal other arguments.

    The first argument is compared by identity. Errors are not remembered.
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
