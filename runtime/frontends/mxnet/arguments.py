"""What a caller of `bind` gives: arrays by name, and what to do with gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from runtime.backends.device.arrays import is_array
from symgraph.core.errors import GraphError, nearest
from symgraph.core.types import BFLOAT16, DTYPES, Array

REQUESTS = ("null", "write", "add")
GradReq = str | Sequence[str] | Mapping[str, str]


def arrays_by_name(
    what: str, given: Sequence[Any] | Mapping[str, Any], names: list[str], partial: bool = False
) -> dict[str, Array]:
    """Arrays by name, in the order of `names`."""
    if not isinstance(given, Mapping):
        if len(given) != len(names):
            raise GraphError(f"bind: {len(given)} arrays in `{what}` for {len(names)} names")
        given = {n: a for n, a in zip(names, given, strict=True) if a is not None}
    for name in given:
        if name not in names:
            raise GraphError(f"bind: `{what}` has {name!r}; {nearest(name, names)}")
    missing = [n for n in names if n not in given]
    if missing and not partial:
        raise GraphError(f"bind: key {missing[0]!r} is missing in `{what}`")
    for name, array in given.items():
        if not is_array(array) or array.dtype.name not in DTYPES:
            raise TypeError(f"bind: {name!r} in `{what}` is no numpy array of a known dtype")
        if not array.size:
            raise GraphError(f"bind: {name!r} in `{what}` has no elements: {array.shape}")
    return {n: given[n] for n in names if n in given}


def host_array(what: str, name: str, value: Any) -> Array:
    """Anything as an array of numbers; GraphError naming it if it is none."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise GraphError(f"{what}: {name!r} is no array: {error}") from error
    if array.dtype.kind not in "biuf" and array.dtype.name not in (*DTYPES, BFLOAT16):
        raise GraphError(f"{what}: {name!r} holds no numbers, but {array.dtype}")
    return array


def requests_of(grad_req: GradReq, names: Iterable[str]) -> dict[str, str]:
    """What to do with each argument's gradient; a dict leaves out those that are null."""
    names = list(names)
    if isinstance(grad_req, str):
        table = dict.fromkeys(names, grad_req)
    elif isinstance(grad_req, Mapping):
        for name in grad_req:
            if name not in names:
                raise GraphError(f"grad_req: no argument {name!r}; {nearest(name, names)}")
        table = {n: grad_req.get(n, "null") for n in names}
    elif not isinstance(grad_req, Sequence):
        raise GraphError(f"grad_req is {grad_req!r}; {nearest('', REQUESTS)}")
    elif len(grad_req) == len(names):
        table = dict(zip(names, grad_req, strict=True))
    else:
        raise GraphError(f"grad_req has {len(grad_req)} entries for {len(names)} arguments")
    for name, request in table.items():
        if request not in REQUESTS:
            raise GraphError(f"grad_req of {name!r}: {request!r}; {nearest(request, REQUESTS)}")
    return table
