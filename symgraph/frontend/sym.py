"""The symbol namespace `sg.sym`: variables, groups and every operator under its MXNet name.

    sg.sym.FullyConnected(data, num_hidden=10, name="fc")

Operators are the entries of the registry. They take input symbols by position or name, parameters
by name or after the inputs, and `name=` and `attr=`. A missing input becomes a variable
`<name>_<input>`. `help(sg.sym.FullyConnected)` lists the parameters. `sg.sym.comm` holds the
collectives between groups, `sg.sym.random` the random operators, `sg.sym.linalg` and
`sg.sym.contrib` the operators whose MXNet names begin with `_linalg_` and `_contrib_`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import symgraph.ops
from symgraph.core.errors import GraphError, nearest
from symgraph.core.reading import read_text, reading
from symgraph.core.registry import ALIASES, OPS
from symgraph.core.tags import hide
from symgraph.core.types import CODES, Shape
from symgraph.frontend import comm as comm
from symgraph.frontend import left_out, sym_random
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.control_flow import foreach
from symgraph.frontend.infer import dtype_of, shape_of
from symgraph.frontend.init import Initializer
from symgraph.frontend.masked_flow import cond, while_loop
from symgraph.frontend.namespace import Namespace, operator
from symgraph.frontend.operator_calls import call
from symgraph.frontend.symbol import Symbol, binary, from_json
from symgraph.frontend.symnode import Entry, SymNode

assert symgraph.ops  # importing it registers the operators

PUBLIC = [
    "Group",
    "Symbol",
    "Variable",
    "comm",
    "contrib",
    "hypot",
    "linalg",
    "load",
    "load_json",
    "maximum",
    "minimum",
    "modulo",
    "pow",
    "power",
    "random",
    "var",
]


def Variable(
    name: str,
    attr: Mapping[str, str] | None = None,
    shape: int | Shape | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: Any = None,
    init: Any = None,
    stype: str = "default",
    **kwargs: str,
) -> Symbol:
    """Make a named input or parameter (`mx.sym.Variable`).

    Args:
        name: the variable's name.
        attr: attributes by key.
        shape: its shape, with 0 for unknown dimensions; `infer_shape` arguments have priority.
        lr_mult: factor of the learning rate.
        wd_mult: factor of the weight decay.
        dtype: its dtype, as a name, numpy type or MXNet number.
        init: an initializer or its name.
        stype: only "default" (dense); anything else raises ValueError.
        **kwargs: further attributes, spelt `__key__`.

    Raises:
        GraphError, TypeError, ValueError: for a wrong argument; the message names it.
    """
    if not isinstance(name, str):
        raise TypeError(f"a variable's name must be a string, not {type(name).__name__}")
    if stype != "default":
        raise ValueError(f"variable {name!r}: stype={stype!r}, but only 'default' is supported")
    attributes: dict[str, str] = dict(attr or {})
    code = None if dtype is None else CODES.index(dtype_of(name, dtype))
    if shape is not None:
        shape = shape_of(name, [shape] if isinstance(shape, int) else shape)
    _require_number(name, "lr_mult", lr_mult)
    _require_number(name, "wd_mult", wd_mult)
    hints = {"shape": shape, "lr_mult": lr_mult, "wd_mult": wd_mult, "dtype": code}
    attributes.update({f"__{k}__": str(v) for k, v in hints.items() if v is not None})
    if init is not None:
        if not isinstance(init, (str, Initializer)):
            raise TypeError(
                f"variable {name!r}: init is an initializer or its name, not {type(init).__name__}"
            )
        attributes["__init__"] = init if isinstance(init, str) else init.dumps()
    for key, value in kwargs.items():
        if not (key.startswith("__") and key.endswith("__")):
            raise ValueError(f"variable {name!r}: attribute {key!r} must look like __{key}__")
        attributes[hide(key)] = value
    return Symbol([Entry(SymNode(name, None, AttrScope.current().get(attributes)))])


def _require_number(name: str, key: str, value: Any) -> None:
    try:
        float(value or 0.0)
    except (TypeError, ValueError):
        raise TypeError(f"variable {name!r}: {key} must be a number, not {value!r}") from None


var = Variable
random = sym_random
contrib = Namespace("sym.contrib", "_contrib_", foreach=foreach, while_loop=while_loop, cond=cond)
linalg = Namespace("sym.linalg", "_linalg_")


def Group(symbols: Iterable[Symbol]) -> Symbol:
    """Combine several symbols into one with all their outputs (`mx.sym.Group`)."""
    symbols = list(symbols)
    if not symbols:
        raise TypeError("Group takes one or more symbols, not an empty list")
    for symbol in symbols:
        if not isinstance(symbol, Symbol):
            raise TypeError(f"Group takes symbols, not {type(symbol).__name__}")
    entries: list[Entry] = [e for s in symbols for e in s.entries]
    return Symbol(entries)


load_json = from_json


def load(path: str) -> Symbol:
    """Read a symbol file, written by `Symbol.save` or MXNet 0.8 to 1.9 (`mx.sym.load`).

    Raises ConfigError for a file that cannot be read, and GraphError for one that is not a symbol.
    """
    with reading(path, "symbol in JSON", GraphError):
        return from_json(read_text(path, "symbol file", GraphError))


# -- functions of two symbols, or of a symbol and a number -----------------------------------------


def maximum(left: Any, right: Any) -> Symbol:
    """Return the larger of both, element by element (`mx.sym.maximum`)."""
    return _either("_maximum", "_maximum_scalar", "_maximum_scalar", left, right)


def minimum(left: Any, right: Any) -> Symbol:
    """Return the smaller of both, element by element (`mx.sym.minimum`)."""
    return _either("_minimum", "_minimum_scalar", "_minimum_scalar", left, right)


def power(base: Any, exp: Any) -> Symbol:
    """Return base ** exp, element by element (`mx.sym.power`, `mx.sym.pow`)."""
    return _either("_power", "_power_scalar", "_rpower_scalar", base, exp)


pow = power


def modulo(left: Any, right: Any) -> Symbol:
    """Return the remainder of left / right, with the sign of right (`mx.sym.modulo`)."""
    return _either("_mod", "_mod_scalar", "_rmod_scalar", left, right)


def hypot(left: Any, right: Any) -> Symbol:
    """Return sqrt(left ** 2 + right ** 2), element by element (`mx.sym.hypot`)."""
    return _either("_hypot", "_hypot_scalar", "_hypot_scalar", left, right)


def _either(op: str, scalar_op: str, reverse: str, left: Any, right: Any) -> Symbol:
    """Call the operator for a symbol and a symbol or number, in either order.

    Names are MXNet's: `_maximum0`, `_maximumscalar0`, `_rpowerscalar0`.
    """
    if isinstance(left, Symbol):
        return binary(op, scalar_op, op, left, right)
    if isinstance(right, Symbol):
        return binary(op, reverse, reverse.removesuffix("_scalar"), right, left)
    raise TypeError(f"{op} takes a symbol and a symbol or number, not two numbers")


def full(
    shape: int | Shape, val: float, dtype: Any = "float32", *, name: str | None = None, **attrs: str
) -> Symbol:
    """Fill a shape, with 0 for the batch axis, with the number val (`mx.sym.full`)."""
    params = {"shape": shape, "value": val, "dtype": dtype, **attrs}
    return Symbol(call("_full", "_full", (), params, name))


_internal = sys.modules[__name__]  # MXNet's place for operators that begin with _


def __getattr__(name: str) -> Callable[..., Symbol]:
    left_out.refuse(f"sym.{name}")
    if name not in OPS and name not in ALIASES:
        public = [n for n in (*OPS, *ALIASES) if not n.startswith("_")]
        raise AttributeError(f"symgraph.sym has no operator {name!r}; {nearest(name, public)}")
    function = operator(name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    """Return what users call, and none of this file's imports."""
    return sorted({*PUBLIC, *OPS, *ALIASES})
