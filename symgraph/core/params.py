"""Operator parameters: parsing from Python values and from MXNet's JSON strings, and printing."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

from symgraph.core.errors import GraphError, ShapeError, nearest
from symgraph.core.types import DTYPES, dtype_name

REQUIRED = object()
LONGS = re.compile(r"(?<=\d)L\b")  # of Python 2, whose MXNet wrote (1L, 1L)
LARGEST = 2**63 - 1  # what MXNet's integers hold
MAX_PARTS = 100_000  # inputs or outputs of one call
INTS = "int | Sequence[int]"  # the type of a tuple of ints, of which one stands for itself
Attrs = Mapping[str, Any]


class Site(NamedTuple):
    """The node that a rule is applied to, so that its errors can name it."""

    op: str
    name: str
    attrs: Attrs

    def fail(self, message: str) -> NoReturn:
        raise ShapeError(f"{self.op} {self.name!r}: {message}")


@dataclass(frozen=True)
class Param:
    """One parameter of an operator: how it is parsed, and its default (REQUIRED if none)."""

    parse: Callable[[Any], Any]
    default: Any = REQUIRED
    kind: str = "value"
    #: Whether it gathers all arguments that no other parameter has the name of, as a mapping.
    gathers: bool = False
    #: Its type, for signatures and type checkers.
    type: str = "Any"
    #: Whether None is a value of its own, and not the same as leaving the parameter out.
    takes_none: bool = False


def literal(raw: Any) -> Any:
    """Parse MXNet's string form of a value (`"(3, 3)"`, `"True"`); return others unchanged."""
    if not isinstance(raw, str):
        return raw
    try:
        return ast.literal_eval(LONGS.sub("", raw))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return raw


def _int(raw: Any) -> int:
    value = literal(raw)
    if isinstance(value, bool) or int(value) != value or abs(value) > LARGEST:
        raise ValueError
    return int(value)


def _bool(raw: Any) -> bool:
    value = literal(raw)
    if isinstance(value, str):
        value = {"true": True, "false": False}[value.lower()]
    if value not in (0, 1):
        raise ValueError
    return bool(value)


def _ints(raw: Any) -> tuple[int, ...]:
    value = literal(raw)
    return (_int(value),) if isinstance(value, int) else tuple(_int(v) for v in value)


def integer(default: Any = REQUIRED) -> Param:
    """Declare an int."""
    return Param(_int, default, "int", type="int")


def count(default: Any = REQUIRED, most: int | None = None) -> Param:
    """Declare an int of 1 or more, and no more than `most`."""

    def parse(raw: Any) -> int:
        value = _int(raw)
        if not 1 <= value <= (most or LARGEST):
            raise ValueError
        return value

    kind = f"int of 1 to {most}" if most else "int of 1 or more"
    return Param(parse, default, kind, type="int")


def number(default: Any = REQUIRED) -> Param:
    """Declare a float."""
    return Param(lambda raw: float(literal(raw)), default, "float", type="float")


def boolean(default: Any = REQUIRED) -> Param:
    """Declare a bool; MXNet's `True`, `true` and `1` are all accepted."""
    return Param(_bool, default, "bool", type="bool")


def integers(default: Any = REQUIRED) -> Param:
    """Declare a tuple of ints; a single int counts as a tuple of one."""
    return Param(_ints, default, "tuple of ints", type=INTS)


def optional(param: Param, default: Any = None) -> Param:
    """Declare the same parameter, with None allowed, by default the default."""

    def parse(raw: Any) -> Any:
        return None if literal(raw) is None else param.parse(raw)

    kind, type_ = f"{param.kind} or None", f"{param.type} | None"
    return Param(parse, default, kind, type=type_, takes_none=default is not None)


def dtype(default: Any = REQUIRED) -> Param:
    """Declare a dtype, given by name or numpy type."""
    kind = "dtype, one of " + ", ".join(DTYPES)
    return Param(dtype_name, default, kind, type="str | type[Any] | dtype[Any]")


def ignored() -> Param:
    """Declare a parameter of MXNet that has no effect here: any value is accepted and dropped."""
    return Param(lambda raw: None, None, "value, which changes nothing")


def only(value: Any) -> Param:
    """Declare a parameter of MXNet that may have no other value than its default."""

    def parse(raw: Any) -> Any:
        if literal(raw) != value:
            raise ValueError
        return value

    return Param(parse, value, f"value: only {value!r} is supported")


def choice(*names: str, default: Any = REQUIRED) -> Param:
    """Declare one of a few words."""

    def parse(raw: Any) -> str:
        if raw not in names:
            raise ValueError
        return str(raw)

    listed = ", ".join(map(repr, names))
    return Param(parse, default, f"one of {listed}", type=f"Literal[{listed}] | str")


def parse_params(op: str, name: str, spec: Mapping[str, Param], given: Mapping[str, Any]) -> Attrs:
    """Parse the parameters of one call; GraphError for unknown, missing and malformed ones."""
    rest = next((key for key, param in spec.items() if param.gathers), None)
    unknown = [key for key in given if key not in spec]
    if unknown:
        if rest is None:
            known = nearest(unknown[0], spec)
            raise GraphError(f"{op} {name!r}: no parameter {unknown[0]!r}; {known}")
        given = {**given, rest: {**dict(given.get(rest, ())), **{k: given[k] for k in unknown}}}
    out: dict[str, Any] = {}
    for key, param in spec.items():
        if key in given:
            try:
                out[key] = param.parse(given[key])
            except (ValueError, TypeError, KeyError, OverflowError):
                raise GraphError(
                    f"{op} {name!r}: {key}={given[key]!r} is not a valid {param.kind}"
                ) from None
        elif param.default is REQUIRED:
            raise GraphError(f"{op} {name!r}: parameter {key!r} ({param.kind}) is missing")
        else:
            out[key] = param.default
    return MappingProxyType(out)
