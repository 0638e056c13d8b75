"""Symbols: networks as users write them, before shapes are known (MXNet's Symbol).

A Symbol is a tuple of outputs of an immutable graph of `SymNode`s. Operators are called through
`sg.sym` (sym.py); shape inference is in infer.py, JSON in json_format.py, and lowering to a typed
Graph in lower.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from symgraph.core.errors import GraphError, nearest
from symgraph.core.tags import both_spellings, lookup
from symgraph.core.types import Shape
from symgraph.frontend import json_format
from symgraph.frontend.backend import load
from symgraph.frontend.infer import Inferred, infer_dtypes, infer_shapes
from symgraph.frontend.operator_calls import call
from symgraph.frontend.symnode import Entry, Outputs, SymNode, replaced, walk
from symgraph.ops.elementwise import COMPARISONS

DRAWN = 300  # operators and inputs in a picture
SHOWN = 8  # names of outputs in the repr of a group


class OperatorMethods:
    """The operators that are methods of symbols: `x.sum(axis=1)` is `sym.sum(x, axis=1)`."""

    __slots__ = ()

    abs: Callable[..., Symbol]
    arccos: Callable[..., Symbol]
    arccosh: Callable[..., Symbol]
    arcsin: Callable[..., Symbol]
    arcsinh: Callable[..., Symbol]
    arctan: Callable[..., Symbol]
    arctanh: Callable[..., Symbol]
    argmax: Callable[..., Symbol]
    argmax_channel: Callable[..., Symbol]
    argmin: Callable[..., Symbol]
    argsort: Callable[..., Symbol]
    astype: Callable[..., Symbol]
    broadcast_axes: Callable[..., Symbol]
    broadcast_like: Callable[..., Symbol]
    broadcast_to: Callable[..., Symbol]
    cbrt: Callable[..., Symbol]
    ceil: Callable[..., Symbol]
    clip: Callable[..., Symbol]
    cos: Callable[..., Symbol]
    cosh: Callable[..., Symbol]
    degrees: Callable[..., Symbol]
    depth_to_space: Callable[..., Symbol]
    exp: Callable[..., Symbol]
    expand_dims: Callable[..., Symbol]
    expm1: Callable[..., Symbol]
    fix: Callable[..., Symbol]
    flatten: Callable[..., Symbol]
    flip: Callable[..., Symbol]
    floor: Callable[..., Symbol]
    log: Callable[..., Symbol]
    log10: Callable[..., Symbol]
    log1p: Callable[..., Symbol]
    log2: Callable[..., Symbol]
    log_softmax: Callable[..., Symbol]
    max: Callable[..., Symbol]
    mean: Callable[..., Symbol]
    min: Callable[..., Symbol]
    nanprod: Callable[..., Symbol]
    nansum: Callable[..., Symbol]
    norm: Callable[..., Symbol]
    one_hot: Callable[..., Symbol]
    ones_like: Callable[..., Symbol]
    pad: Callable[..., Symbol]
    pick: Callable[..., Symbol]
    prod: Callable[..., Symbol]
    radians: Callable[..., Symbol]
    rcbrt: Callable[..., Symbol]
    reciprocal: Callable[..., Symbol]
    relu: Callable[..., Symbol]
    repeat: Callable[..., Symbol]
    reshape: Callable[..., Symbol]
    reshape_like: Callable[..., Symbol]
    rint: Callable[..., Symbol]
    round: Callable[..., Symbol]
    rsqrt: Callable[..., Symbol]
    sigmoid: Callable[..., Symbol]
    sign: Callable[..., Symbol]
    sin: Callable[..., Symbol]
    sinh: Callable[..., Symbol]
    slice: Callable[..., Symbol]
    slice_axis: Callable[..., Symbol]
    slice_like: Callable[..., Symbol]
    softmax: Callable[..., Symbol]
    softmin: Callable[..., Symbol]
    sort: Callable[..., Symbol]
    space_to_depth: Callable[..., Symbol]
    split: Callable[..., Symbol]
    sqrt: Callable[..., Symbol]
    square: Callable[..., Symbol]
    squeeze: Callable[..., Symbol]
    sum: Callable[..., Symbol]
    swapaxes: Callable[..., Symbol]
    take: Callable[..., Symbol]
    tan: Callable[..., Symbol]
    tanh: Callable[..., Symbol]
    tile: Callable[..., Symbol]
    topk: Callable[..., Symbol]
    transpose: Callable[..., Symbol]
    trunc: Callable[..., Symbol]
    zeros_like: Callable[..., Symbol]


RENAMED = {"astype": "cast"}  # method -> operator, where that has another name
FLUENT = tuple(name for name in OperatorMethods.__annotations__ if name not in RENAMED)


class Symbol(OperatorMethods, Outputs):
    """One or more outputs of a symbolic network (`mx.sym.Symbol`).

    Calling a symbol composes it. Indexing selects outputs by number, slice or name. Arithmetic
    makes element-wise operators. Many operators are methods too, as in MXNet: `x.sum(axis=1)`.
    """

    __slots__ = ()
    __array_priority__ = 1000.0  # `2.0 * symbol` with a numpy scalar calls __rmul__

    def __repr__(self) -> str:
        names = self.list_outputs()
        if self.name is not None and self.entries[0].port == 0:
            return f"<Symbol {self.name}>"
        if len(names) == 1:
            return f"<Symbol {names[0]}>"
        more = f", ... {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"<Symbol group [{', '.join(names[:SHOWN])}{more}]>"

    def _repr_svg_(self) -> str | None:
        """Return the picture of `mx.viz.plot_network`, for notebooks; None: it is too large."""
        if len(walk(self.entries)) > DRAWN:
            return None
        svg: str = (
            load("network_picture")
            .picture(self, "network", "svg", None, None, {}, True, None, None)
            .svg()
        )
        return svg

    def __bool__(self) -> bool:
        raise NotImplementedError("a symbol has no truth value, because it has no values yet")

    # -- structure ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Symbol]:
        return iter([Symbol([e]) for e in self.entries])

    def __getitem__(self, which: int | str | slice) -> Symbol:
        if isinstance(which, str):
            positions = [i for i, n in enumerate(self.list_outputs()) if n == which]
            if len(positions) > 1:
                raise ValueError(f"there are multiple outputs with name {which!r}")
            if not positions:
                known = nearest(which, self.list_outputs())
                raise ValueError(f"cannot find output that matches name {which!r}; {known}")
            which = positions[0]
        if isinstance(which, slice):
            return Symbol(self.entries[which])
        if not hasattr(which, "__index__"):
            raise TypeError(
                f"outputs are selected by number, slice or name, not {type(which).__name__}"
            )
        if not -len(self.entries) <= which < len(self.entries):
            raise IndexError(f"output {which} of a symbol with {len(self.entries)} outputs")
        return Symbol([self.entries[which]])

    def _variables(self, aux: bool) -> list[str]:
        nodes = walk(self.entries)
        states = {
            e.node.name for n in nodes if n.op for e in n.inputs[len(n.inputs) - len(n.op.aux) :]
        }
        return [n.name for n in nodes if n.op is None and (n.name in states) == aux]

    def list_arguments(self) -> list[str]:
        """List the names of inputs and parameters, depth-first, without auxiliary states."""
        return self._variables(aux=False)

    def list_auxiliary_states(self) -> list[str]:
        """List the names of states that training updates without gradients (in BatchNorm)."""
        return self._variables(aux=True)

    def list_inputs(self) -> list[str]:
        """List the names of arguments and auxiliary states, in depth-first order."""
        return [n.name for n in walk(self.entries) if n.op is None]

    def get_internals(self) -> Symbol:
        """Return a group of every output of every node, inputs first."""
        nodes = walk(self.entries)
        return Symbol(Entry(n, i) for n in nodes for i in range(len(n.outputs)))

    def get_children(self) -> Symbol | None:
        """Return a group of the direct inputs of this symbol's nodes; None for variables."""
        nodes = list(dict.fromkeys(e.node for e in self.entries))
        inputs = [e for n in nodes for e in n.inputs]
        return Symbol(inputs) if inputs else None

    # -- composition -------------------------------------------------------------------------

    def __call__(self, *args: Symbol, name: str | None = None, **kwargs: Symbol) -> Symbol:
        """Return a copy with variables replaced, by position (as `list_inputs`) or by name.

        `name` renames the symbol's node. Raises GraphError for an unknown name.
        """
        if args and kwargs:
            raise TypeError("compose takes positional or keyword symbols, not both")
        for value in (*args, *kwargs.values()):
            if not isinstance(value, Symbol):
                raise TypeError(f"compose expects symbols as arguments, not {type(value).__name__}")
        known = self.list_inputs()
        if len(args) > len(known):
            raise GraphError(f"{len(args)} symbols are given, but there are {len(known)} inputs")
        new = dict(zip(known, args, strict=False)) | kwargs
        for key in new:
            if key not in known:
                raise GraphError(f"keyword argument name {key!r} not found; {nearest(key, known)}")
        swap = {key: value.one("compose") for key, value in new.items()}
        return _replace(self, swap, name)

    # -- attributes --------------------------------------------------------------------------

    def attr(self, key: str) -> str | None:
        """Return a parameter or attribute of the node, by either spelling; None if missing."""
        return lookup(json_format.attr_strings(self.one("attr").node), key)

    def list_attr(self) -> dict[str, str]:
        """Return the node's parameters and attributes, hidden ones in both spellings."""
        return both_spellings(json_format.attr_strings(self.one("list_attr").node))

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Return `list_attr` of every node that has any, by node name."""
        strings = {n.name: json_format.attr_strings(n) for n in walk(self.entries)}
        return {name: both_spellings(attrs) for name, attrs in strings.items() if attrs}

    # -- inference ---------------------------------------------------------------------------

    def infer_shape(
        self, *args: Shape, **kwargs: Shape
    ) -> tuple[list[Shape], list[Shape], list[Shape]]:
        """Infer the shapes of (arguments, outputs, auxiliary states).

        Shapes are given by position or name, with 0 for an unknown dimension. Inference goes both
        ways. Raises ShapeError for contradictions and, unlike MXNet, if a shape stays unknown; see
        `infer_shape_partial`.
        """
        inferred = infer_shapes(self, self._by_name("infer_shape", args, kwargs))
        inferred.require_complete()
        arguments, outputs, states = self._by_kind(inferred)
        return arguments, outputs, states

    def infer_shape_partial(self, *args: Shape, **kwargs: Shape) -> tuple[list[Any], ...]:
        """Infer shapes as `infer_shape` does, with () for unknown ones."""
        inferred = infer_shapes(self, self._by_name("infer_shape_partial", args, kwargs))
        return tuple([[s or () for s in group] for group in self._by_kind(inferred)])

    def infer_type(self, *args: Any, **kwargs: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Infer the dtypes of (arguments, outputs, auxiliary states), as numpy's.

        They are equal to their names and to numpy's types. Anything that is not determined is
        float32. Raises DTypeError for contradictions.
        """
        arguments, outputs, states = self._dtypes("infer_type", args, kwargs, partial=False)
        return arguments, outputs, states

    def infer_type_partial(self, *args: Any, **kwargs: Any) -> tuple[list[Any], ...]:
        """Infer dtypes as `infer_type` does, with None for those that are not determined."""
        return self._dtypes("infer_type_partial", args, kwargs, partial=True)

    def _dtypes(
        self, method: str, args: Sequence[Any], kwargs: dict[str, Any], *, partial: bool
    ) -> tuple[list[Any], ...]:
        inferred = infer_dtypes(self, self._by_name(method, args, kwargs), partial=partial)
        return tuple([[d and np.dtype(d) for d in group] for group in self._by_kind(inferred)])

    def _by_name(self, method: str, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        if args and kwargs:
            raise TypeError(f"{method} takes positional or keyword arguments, not both")
        names = self.list_arguments()
        if len(args) > len(names):
            raise GraphError(f"{method}: {len(args)} are given for {len(names)} arguments")
        return {k: v for k, v in zip(names, args, strict=False) if v is not None} | kwargs

    def _by_kind(self, inferred: Inferred) -> tuple[list[Any], list[Any], list[Any]]:
        variable = inferred.variables
        return (
            [variable.get(n) for n in self.list_arguments()],
            [inferred.values.get((id(e.node), e.port)) for e in self.entries],
            [variable.get(n) for n in self.list_auxiliary_states()],
        )

    # -- text --------------------------------------------------------------------------------

    def tojson(self) -> str:
        """Write the symbol in MXNet's JSON layout; `sym.load_json` reads it."""
        return json_format.dumps(self)

    def save(self, path: str) -> None:
        """Write `tojson` to a file; `sym.load` reads it."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.tojson())

    def debug_str(self) -> str:
        """Describe the symbol with one line per node: inputs, parameters and attributes."""
        return json_format.listing(self)

    def __reduce__(self) -> tuple[Callable[[str], Symbol], tuple[str]]:
        return from_json, (self.tojson(),)

    # -- execution, by the runtime ----------------------------------------------------------------

    def simple_bind(
        self, ctx: Any = None, grad_req: Any = "write", type_dict: Any = None, **kwargs: Any
    ) -> Any:
        """Return an Executor with new arrays for every argument (`mx.sym.Symbol.simple_bind`).

        Args:
            ctx: the device of operators without a group; by default cpu(0).
            grad_req: "write", "add" or "null", for all arguments or by name.
            type_dict: dtypes of arguments by name; all others are inferred.
            **kwargs: shapes of arguments by name, `group2ctx`, and further options of
                runtime.frontends.mxnet.executor.simple_bind.
        """
        return load("executor").simple_bind(self, ctx, grad_req, type_dict, **kwargs)

    def bind(
        self,
        ctx: Any,
        args: Any,
        args_grad: Any = None,
        grad_req: Any = "write",
        aux_states: Any = None,
        group2ctx: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return an Executor on the caller's arrays (`mx.sym.Symbol.bind`).

        Args:
            ctx: the device of operators without a group.
            args: arrays of the arguments, as a list or by name.
            args_grad: arrays that receive the gradients, as a list or by name.
            grad_req: "write", "add" or "null", for all arguments or by name.
            aux_states: arrays of the auxiliary states, as a list or by name.
            group2ctx: devices by ctx_group.
            **kwargs: further options of runtime.frontends.mxnet.executor.bind.
        """
        return load("executor").bind(
            self, ctx, args, args_grad, grad_req, aux_states, group2ctx, **kwargs
        )

    def eval(self, ctx: Any = None, **kwargs: Any) -> list[Any]:
        """Compute the outputs, as numpy arrays, from arrays of all arguments by name."""
        with self.bind(ctx, kwargs) as executor:
            outputs: list[Any] = executor.forward()
        return outputs

    # -- arithmetic --------------------------------------------------------------------------

    def __add__(self, other: Any) -> Symbol:
        return binary("elemwise_add", "_plus_scalar", "_plus", self, other)

    def __radd__(self, other: Any) -> Symbol:
        return self.__add__(other)

    def __sub__(self, other: Any) -> Symbol:
        return binary("elemwise_sub", "_minus_scalar", "_minus", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return binary("elemwise_sub", "_rminus_scalar", "_rminus", self, other)

    def __mul__(self, other: Any) -> Symbol:
        return binary("elemwise_mul", "_mul_scalar", "_mul", self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return self.__mul__(other)

    def __truediv__(self, other: Any) -> Symbol:
        return binary("elemwise_div", "_div_scalar", "_div", self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return binary("elemwise_div", "_rdiv_scalar", "_rdiv", self, other)

    def __pow__(self, other: Any) -> Symbol:
        return binary("_power", "_power_scalar", "_power", self, other)

    def __rpow__(self, other: Any) -> Symbol:
        return binary("_power", "_rpower_scalar", "_rpower_", self, other)

    def __mod__(self, other: Any) -> Symbol:
        return binary("_mod", "_mod_scalar", "_mod", self, other)

    def __rmod__(self, other: Any) -> Symbol:
        return binary("_mod", "_rmod_scalar", "_rmod", self, other)

    def __abs__(self) -> Symbol:
        return Symbol(call("abs", "abs", (self,), {}))

    def __neg__(self) -> Symbol:
        return self * -1.0

    def __eq__(self, other: Any) -> Any:
        return binary("_equal", "_equal_scalar", "_equal", self, other)

    def __ne__(self, other: Any) -> Any:
        return binary("_not_equal", "_not_equal_scalar", "_not_equal", self, other)

    def __gt__(self, other: Any) -> Symbol:
        return binary("_greater", "_greater_scalar", "_greater", self, other)

    def __ge__(self, other: Any) -> Symbol:
        return binary("_greater_equal", "_greater_equal_scalar", "_greater_equal", self, other)

    def __lt__(self, other: Any) -> Symbol:
        return binary("_lesser", "_lesser_scalar", "_lesser", self, other)

    def __le__(self, other: Any) -> Symbol:
        return binary("_lesser_equal", "_lesser_equal_scalar", "_lesser_equal", self, other)

    __hash__ = object.__hash__


def from_json(text: str) -> Symbol:
    """Read a symbol from the text of `tojson` or of an MXNet symbol file (`mx.sym.load_json`).

    Raises GraphError for any other text.
    """
    return Symbol(json_format.loads(text))


COMPARED = {f"_{word}" for word in COMPARISONS}


def binary(op: str, scalar_op: str, hint: str, left: Symbol, right: Any) -> Symbol:
    """Call `op` on two symbols, or `scalar_op` on a symbol and a number.

    The name derives from `hint` as in MXNet: `_plus0`, `_plusscalar0`, but `_greater_scalar0`.
    """
    if isinstance(right, Symbol):
        return Symbol(call(op, hint, (left, right), {}))
    if not hasattr(right, "__float__") or getattr(right, "ndim", False):
        raise TypeError(f"{left!r} {op} {type(right).__name__}: not a symbol or number")
    hint = f"{hint}_scalar" if op in COMPARED else f"{hint}scalar"
    return Symbol(call(scalar_op, hint, (left,), {"scalar": float(right)}))


def _fluent(op: str, method: str) -> Callable[..., Symbol]:
    """Return a method that calls `sym.op` on the symbol."""

    def operator(self: Symbol, *args: Any, **kwargs: Any) -> Symbol:
        node = {key: kwargs.pop(key) for key in ("name", "attr") if key in kwargs}
        return Symbol(call(op, op, (self, *args), kwargs, **node))

    operator.__name__ = operator.__qualname__ = method
    operator.__doc__ = f"Call `sym.{op}` on this symbol."
    return operator


for _name in OperatorMethods.__annotations__:
    setattr(Symbol, _name, _fluent(RENAMED.get(_name, _name), _name))


def _replace(symbol: Symbol, swap: Mapping[str, Entry], name: str | None) -> Symbol:
    heads = {id(e.node) for e in symbol.entries}

    def renamed(node: SymNode) -> tuple[str, Mapping[str, str]]:
        own = name and len(heads) == 1 and id(node) in heads
        return name if name and own else node.name, node.attrs

    return Symbol(replaced(symbol.entries, swap, renamed))
