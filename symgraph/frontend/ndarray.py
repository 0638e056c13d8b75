"""Arrays as MXNet's scripts handle them: numpy's, with the methods of `mx.nd.NDArray`.

An NDArray is a numpy array on the host: numpy's functions take it, and arithmetic, comparison and
reductions are numpy's. Operators (`mx.nd.<op>`, and methods that numpy does not have) are computed
by the rules that networks run by. What an executor or a module returns is such an array, so
`.asnumpy()` works on it; there is no engine behind it and no autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Context as Scopes
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from types import ModuleType
from typing import Any

import numpy as np

from symgraph.core.context import Context, current_context, require_context
from symgraph.core.errors import GraphError, ShapeError
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env, find
from symgraph.core.seeding import SEEDING
from symgraph.core.types import Array, dtype_name
from symgraph.frontend import left_out, sym
from symgraph.frontend.lower import lower
from symgraph.frontend.symbol import FLUENT, Symbol
from symgraph.ops.movement import TRIAL

KEYWORD_ONLY = Parameter.KEYWORD_ONLY
Key = Any  # what numpy's indexing takes


class NDArray(np.ndarray[Any, np.dtype[Any]]):
    """A numpy array with the methods of MXNet's NDArray.

    As in numpy, a single element and a sum over everything have no axis; `asnumpy` gives them one,
    as MXNet does. Comparisons give booleans. Of methods that both libraries have, `flatten`, `take`
    and `reshape` follow MXNet's documentation, unless they are called with numpy's arguments.
    """

    _context: Context | None

    def __array_finalize__(self, source: object) -> None:
        self._context = getattr(source, "_context", None)

    def __str__(self) -> str:
        return str(np.asarray(self))

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.shape or (1,)))
        return f"{self.asnumpy()}\n<NDArray {shape} @{self.context}>"

    # -- elements --------------------------------------------------------------------------------

    def __getitem__(self, key: Key) -> Any:
        found = super().__getitem__(_integers(key))
        if isinstance(found, np.ndarray):
            return found
        keys = key if isinstance(key, tuple) else (key,)
        return super().__getitem__((*map(_integers, keys), ...))  # an array, not a number

    def __setitem__(self, key: Key, value: Any) -> None:
        super().__setitem__(_integers(key), value)

    def asscalar(self) -> Any:
        """Return the only element as a number of Python; ValueError if there are several."""
        if self.size != 1:
            raise ValueError(f"asscalar: an array of shape {self.shape} is not a single number")
        return self.asnumpy()[(0,) * max(1, self.ndim)]

    def __float__(self) -> float:
        return float(self.asscalar())

    def __int__(self) -> int:
        return int(self.asscalar())

    def __index__(self) -> int:
        return int(self.asscalar())

    # -- copies and devices ----------------------------------------------------------------------

    def asnumpy(self) -> Array:
        """Return a copy that is a plain numpy array, with one axis or more."""
        return np.array(self, ndmin=1, subok=False)

    @property
    def context(self) -> Context:
        """The device that the array was made for; its elements are in the host's memory."""
        return self._context or Context("cpu")

    ctx = context

    @property
    def stype(self) -> str:
        """The storage type: always "default", a dense array."""
        return "default"

    def tostype(self, stype: str) -> NDArray:
        """Return the array itself, since it is dense; AttributeError for another storage type."""
        require_dense(stype)
        return self

    def as_in_context(self, context: Context) -> NDArray:
        """Return the array itself if it is of that device, else a copy for it."""
        require_context("as_in_context: context", context)
        return self if context == self.context else self.copyto(context)

    def copyto(self, other: NDArray | Context) -> NDArray:
        """Copy the elements to another array of this shape, or to a new one for a device."""
        if isinstance(other, Context):
            return on_context(self.copy(), other)
        if not isinstance(other, np.ndarray):
            raise TypeError(f"copyto takes an array or a device, not {type(other).__name__}")
        if other.shape != self.shape:
            raise GraphError(f"copyto: an array of shape {self.shape} into one of {other.shape}")
        other[...] = self
        return other

    def wait_to_read(self) -> None:
        """Return at once: arrays are complete when a call returns them."""

    wait_to_write = wait_to_read

    def detach(self) -> NDArray:
        """Return the array itself: it has no gradients to be detached from."""
        return self

    # -- what MXNet defines otherwise than numpy -------------------------------------------------

    def reshape(self, *shape: Any, **kwargs: Any) -> Any:
        """Return the array in another shape, in which 0, -1, -2, -3 and -4 are as in `mx.sym`."""
        wanted = kwargs.get("shape", shape[0] if len(shape) == 1 else shape)
        codes = (wanted,) if isinstance(wanted, int | np.integer) else tuple(wanted)
        given = {key: value for key, value in kwargs.items() if key != "shape"}
        if given.keys() <= {"order", "copy"} and not any(c == 0 or c < -1 for c in codes):
            return super().reshape(codes, **given)
        return call_operator("reshape", self, shape=codes, **given)

    def flatten(self, *order: Any, **kwargs: Any) -> Any:
        """Merge all axes but the first, as `mx.nd.flatten`; numpy's if an `order` is given."""
        if order or kwargs:
            return super().flatten(*order, **kwargs)
        return call_operator("flatten", self)

    def take(  # type: ignore[override]
        self, indices: Any, axis: int | None = 0, out: Any = None, mode: str = "clip"
    ) -> Any:
        """Take elements along an axis: the first one by default, and the nearest if out of it."""
        return super().take(_integers(indices), axis, out, mode)  # type: ignore[call-overload]

    def sort(  # type: ignore[override]
        self, axis: Any = -1, is_ascend: bool = True, **kwargs: Any
    ) -> Any:
        """Return the array sorted along an axis; with numpy's arguments, sort it in place."""
        if kwargs:
            return super().sort(axis, **kwargs)
        return call_operator("sort", self, axis=axis, is_ascend=is_ascend)

    def transpose(self, *axes: Any, **kwargs: Any) -> NDArray:
        """Permute the axes; `axes` may be given by name."""
        return super().transpose(*axes, *kwargs.values()) if kwargs else super().transpose(*axes)


def _integers(key: Key) -> Key:
    """Indices that are a float array, as MXNet's ids often are, as integers."""
    floats = isinstance(key, np.ndarray) and key.dtype.kind == "f"
    return key.astype(np.int64) if floats else key


def on_context(values: Any, context: Context | None) -> NDArray:
    """Return values as an NDArray that is made for a device; None: the current one."""
    array = np.asarray(values).view(NDArray)
    array._context = current_context() if context is None else require_context("ctx", context)
    return array


def viewed(array: Array, context: Context | None = None) -> Array:
    """Return a numpy array as an NDArray on the same memory; an array of CuPy as it is.

    The context is the device that the array is made for; None: that of an NDArray, or cpu(0).
    """
    if not isinstance(array, np.ndarray) or (context is None and isinstance(array, NDArray)):
        return array
    made = array.view(NDArray)
    made._context = made._context if context is None else context
    return made


def array(source: Any, ctx: Context | None = None, dtype: Any = None) -> NDArray:
    """Copy values to a new array (`mx.nd.array`).

    As in MXNet, values that are no NDArray become float32 unless a dtype is given.
    """
    kind = dtype or (source.dtype if isinstance(source, NDArray) else "float32")
    return on_context(np.array(source, dtype_name(kind), order="C"), ctx)


def require_dense(stype: str | None) -> None:
    """Raise AttributeError for a storage type of sparse arrays."""
    if stype not in (None, "default"):
        left_out.refuse("nd.sparse")


# -- operators -----------------------------------------------------------------------------------


def call_operator(name: str, *args: Any, **kwargs: Any) -> Any:
    """Compute an operator of `sym` on arrays: `call_function` by name."""
    return call_function(getattr(sym, name), *args, **kwargs)


def call_function(
    function: Callable[..., Symbol],
    *args: Any,
    out: Any = None,
    ctx: Context | None = None,
    **kwargs: Any,
) -> Any:
    """Compute what a function of the namespace `sym` makes, on arrays in place of symbols.

    Args:
        function: The function, such as `sym.FullyConnected`.
        args: Arrays, lists of arrays, and parameters, as the function takes them.
        out: The array, or the arrays, that the results are written to.
        ctx: The device that the results are made for; that of the first array by default.
        kwargs: Arrays and parameters by name.

    Returns:
        An array, or a list of them if there are several outputs.

    Raises:
        GraphError: An input is missing, or whatever the function raises.
    """
    symbol, feeds = _symbol_of(function, args, kwargs)
    if ctx is None:
        first = next((a for a in _arrays([*args, *kwargs.values()])), None)
        ctx = first.context if isinstance(first, NDArray) else None
    try:
        computed = _computed(symbol, feeds)
    except ShapeError:
        computed = _of_nothing(symbol, feeds)
        if not computed:
            raise
    results = [_owned(a, feeds.values(), ctx) for a in computed]
    if out is not None:
        return _written(results, out)
    return results[0] if len(results) == 1 else results


def _computed(symbol: Symbol, feeds: Mapping[str, Array]) -> Sequence[Array]:
    """The outputs of a symbol for these arrays."""
    shapes = {name: a.shape for name, a in feeds.items()}
    graph = lower(symbol, shapes, _dtypes(feeds))
    draws = any(find(node.op).random for node in graph if not node.is_variable)
    env = Env(seed=SEEDING.seed, step=SEEDING.next_draw() if draws else 0)
    return evaluate(graph, feeds, env)


def _of_nothing(symbol: Symbol, feeds: Mapping[str, Array]) -> Sequence[Array]:
    """The outputs if all are empty, else none. In a graph's shapes, 0 is an unknown length.

    So a prime stands for it in the inputs.
    """
    shapes = {name: tuple(d or TRIAL for d in a.shape) for name, a in feeds.items()}
    outputs, dtypes = (
        symbol.infer_shape_partial(**shapes)[1],
        symbol.infer_type(**_dtypes(feeds))[1],
    )
    found = [tuple(d if d % TRIAL else 0 for d in shape) for shape in outputs]
    if any(0 not in shape for shape in found):
        return []
    return [np.zeros(*pair) for pair in zip(found, dtypes, strict=True)]


def _dtypes(feeds: Mapping[str, Array]) -> dict[str, str]:
    return {name: a.dtype.name for name, a in feeds.items()}


def _symbol_of(
    function: Callable[..., Symbol], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Symbol, dict[str, Array]]:
    """The symbol of a call, and the arrays that its variables stand for."""
    feeds: dict[str, Array] = {}

    def symbolic(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            name = f"array{len(feeds)}"
            feeds[name] = np.asarray(value)
            return sym.Variable(name)
        if isinstance(value, list | tuple) and any(isinstance(v, np.ndarray) for v in value):
            return [symbolic(v) for v in value]
        return value

    def made() -> Symbol:  # in a context of its own: no open scope names or tags anything
        inputs = [symbolic(v) for v in args]
        return function(*inputs, **{key: symbolic(v) for key, v in kwargs.items()})

    symbol = Scopes().run(made)
    missing = next((name for name in symbol.list_inputs() if name not in feeds), None)
    if missing is not None:
        raise GraphError(f"nd.{function.__name__}: an array for {missing!r} is missing")
    return symbol, feeds


@cache
def on_arrays(function: Callable[..., Symbol]) -> Callable[..., Any]:
    """Return a function of the namespace `sym` as one that computes at once, on arrays."""

    @wraps(function)
    def operator(*args: Any, **kwargs: Any) -> Any:
        return call_function(function, *args, **kwargs)

    given, added = signature(function), {"out": "Any", "ctx": "Context | None"}
    found = [
        p.replace(annotation=str(p.annotation).replace("Symbol", "NDArray"))
        for p in given.parameters.values()
        if p.name not in added
    ]
    found += [Parameter(n, KEYWORD_ONLY, default=None, annotation=a) for n, a in added.items()]
    found.sort(key=lambda p: p.kind)
    operator.__signature__ = Signature(found, return_annotation="Any")  # type: ignore[attr-defined]
    return operator


class ArrayNamespace:
    """The functions of a namespace of `sym`, such as `sym.linalg`, on arrays."""

    def __init__(self, functions: ModuleType) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return on_arrays(getattr(self._functions, name))

    def __dir__(self) -> list[str]:
        return dir(self._functions)


def _arrays(values: Sequence[Any]) -> list[Any]:
    flat = [v for value in values for v in (value if isinstance(value, list | tuple) else [value])]
    return [v for v in flat if isinstance(v, np.ndarray)]


def _owned(result: Array, feeds: Any, ctx: Context | None) -> NDArray:
    """A result that shares no memory with what it was computed from."""
    shares = any(np.may_share_memory(result, feed) for feed in feeds)
    return on_context(result.copy() if shares or not result.flags.writeable else result, ctx)


def _written(results: Sequence[NDArray], out: Any) -> Any:
    targets = out if isinstance(out, list | tuple) else [out]
    for target, result in zip(targets, results, strict=False):
        result.copyto(target)
    return out


def _method(name: str) -> Callable[..., Any]:
    def method(self: NDArray, *args: Any, **kwargs: Any) -> Any:
        return call_operator(name, self, *args, **kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Compute `mx.nd.{name}` of this array."
    return method


for _name in FLUENT:
    if not hasattr(np.ndarray, _name):
        setattr(NDArray, _name, _method(_name))
