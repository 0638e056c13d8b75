"""Checks of numbers: of one that is passed, and of those among a dataclass's fields."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from operator import index
from typing import Any

import numpy as np

from symgraph.core.errors import SymgraphError

# Annotation of a field -> what its value must be.
NUMBERS = {
    "int": "a whole number",
    "float": "a finite number",
    "float | None": "a finite number",
    "bool": "True or False",
}


def whole_number(value: Any, what: str, error: type[SymgraphError]) -> int:
    """Return a whole number, Python's or NumPy's, as an int; the error, which says `what` it is."""
    try:
        return index(value)
    except TypeError:
        raise error(f"{what} is {value!r} but must be a whole number") from None


def require_numbers(settings: Any, error: type[SymgraphError]) -> None:
    """Raise the error if a field that is annotated as a number holds something else."""
    for field in fields(settings) if is_dataclass(settings) else ():
        kind, value = str(field.type), getattr(settings, field.name)
        optional, whole = value is None and kind.endswith("None"), kind in ("int", "bool")
        if kind in NUMBERS and not optional and not _is_number(value, whole=whole):
            raise error(
                f"{type(settings).__name__}: {field.name} is {value!r} but must be {NUMBERS[kind]}"
            )


def _is_number(value: Any, *, whole: bool) -> bool:
    if not isinstance(value, int | float | np.number | np.bool_) or not math.isfinite(value):
        return False
    return not whole or value == int(value)
