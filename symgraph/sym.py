"""The symbol namespace: variables, groups and every operator under MXNet's name.

Operators are the entries of the registry: `sg.sym.FullyConnected(data, num_hidden=10, name="fc")`
takes input symbols by position or name, parameters by name, `name=` and `attr=`. An input that is
not given becomes a variable `<name>_<input>`. `help(sg.sym.FullyConnected)` lists the parameters.
`sg.sym.comm` holds the collectives between groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import symgraph.ops
from symgraph import comm as comm
from symgraph.attribute import AttrScope, hide
from symgraph.compose import call
from symgraph.errors import ConfigError, nearest
from symgraph.ops.params import REQUIRED
from symgraph.ops.registry import ALIASES, OPS, find
from symgraph.symbol import Symbol, from_json
from symgraph.symnode import Entry, SymNode
from symgraph.types import Shape

assert symgraph.ops  # importing it registers the operators


def Variable(
    name: str,
    attr: Mapping[str, str] | None = None,
    shape: Shape | None = None,
    lr_mult: float | None = None,
    wd_mult: float | None = None,
    dtype: Any = None,
    init: Any = None,
    **kwargs: str,
) -> Symbol:
    """A named input or parameter (MXNet Variable).

    shape may hold 0 for unknown dimensions; a shape given to `infer_shape` wins over it. init is
    an initializer or its name. Further keywords are attributes and look like `__key__`.
    """
    if not isinstance(name, str):
        raise TypeError(f"a variable's name is a string, not {type(name).__name__}")
    own: dict[str, str] = dict(attr or {})
    hints = {"shape": shape, "lr_mult": lr_mult, "wd_mult": wd_mult, "dtype": dtype}
    own.update({f"__{k}__": _text(v) for k, v in hints.items() if v is not None})
    if init is not None:
        own["__init__"] = init if isinstance(init, str) else init.dumps()
    for key, value in kwargs.items():
        if not (key.startswith("__") and key.endswith("__")):
            raise ValueError(f"variable {name!r}: attribute {key!r} must look like __{key}__")
        own[hide(key)] = value
    return Symbol([Entry(SymNode(name, None, AttrScope.current().get(own)))])


def _text(value: Any) -> str:
    return str(getattr(value, "__name__", value))


var = Variable


def Group(symbols: Iterable[Symbol]) -> Symbol:
    """One symbol with all outputs of several."""
    symbols = list(symbols)
    for symbol in symbols:
        if not isinstance(symbol, Symbol):
            raise TypeError(f"Group takes symbols, not {type(symbol).__name__}")
    entries: list[Entry] = [e for s in symbols for e in s.entries]
    return Symbol(entries)


load_json = from_json


def load(path: str) -> Symbol:
    """Read a symbol that `save` wrote, or an MXNet 1.x symbol file."""
    try:
        with open(path, encoding="utf-8") as file:
            return from_json(file.read())
    except FileNotFoundError:
        raise ConfigError(f"no symbol file {path!r}") from None


def _operator(name: str) -> Callable[..., Symbol]:
    op = find(name)

    def operator(
        *args: Any, name: str | None = None, attr: Mapping[str, str] | None = None, **kwargs: Any
    ) -> Symbol:
        return Symbol(call(op.name, hint, args, kwargs, name, attr))

    hint = name
    inputs = op.inputs if isinstance(op.inputs, tuple) else ("*inputs",)
    shown = [
        f"    {key}: {p.kind}" + ("" if p.default is REQUIRED else f" = {p.default!r}")
        for key, p in op.params.items()
    ]
    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = "\n".join(
        [op.doc, "", "Inputs: " + ", ".join(inputs), *(["Parameters:", *shown] if shown else [])]
    )
    return operator


def __getattr__(name: str) -> Callable[..., Symbol]:
    if name not in OPS and name not in ALIASES:
        public = [n for n in (*OPS, *ALIASES) if not n.startswith("_")]
        raise AttributeError(f"symgraph.sym has no operator {name!r}; {nearest(name, public)}")
    made = _operator(name)
    globals()[name] = made
    return made


def __dir__() -> list[str]:
    return sorted({*globals(), *OPS, *ALIASES})
