"""The operator registry: one `register(...)` call holds every rule and fact of an operator."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, NamedTuple, ParamSpec

import numpy as np

from symgraph.core.batch_layout import BatchRule, elementwise
from symgraph.core.errors import DTypeError, GraphError, nearest
from symgraph.core.params import Attrs, Param, Site
from symgraph.core.ref import Ref
from symgraph.core.types import HALVES, Array, Shape, TensorType, Types, wide

# What an operator stores with mixed precision; see symgraph/passes/precision.py.
LOW, INSIDE, FULL, FOLLOWS = "low", "inside", "full", "follows"

VARIABLE = "variable"
COPY = "_CrossDeviceCopy"

Partial = Shape | None  # None: nothing known; a 0 in a shape: this dimension is not known
Shapes = Sequence[Partial]


class Env(NamedTuple):
    """The environment of a computation: what it may depend on besides its inputs."""

    #: The array module, numpy or CuPy.
    xp: Any = np
    #: Whether this is a training step.
    train: bool = False
    #: The seed of the counter-based random numbers.
    seed: int = 0
    #: The training step, from 0.
    step: int = 0
    #: The index in the whole batch of this micro-batch's first sample.
    sample: int = 0


class Call(NamedTuple):
    """A forward call, as its gradient rule sees it, and the gradients of its outputs."""

    attrs: Attrs
    #: The inputs.
    x: tuple[Ref, ...]
    #: The outputs.
    y: tuple[Ref, ...]
    #: The outputs' gradients; None for one that no loss depends on, and for a loss's own output.
    g: tuple[Ref | None, ...]

    @property
    def gy(self) -> Ref:
        """The gradient of the first output, which must not be None."""
        assert self.g[0] is not None
        return self.g[0]


Names = tuple[str, ...]
ShapeRule = Callable[[Site, Shapes, Shapes], tuple[Shapes, Shapes]]
DTypeRule = Callable[[Site, Sequence[str | None]], tuple[Sequence[str | None], Sequence[str]]]
Positions = tuple[int, ...]  # the positions of inputs
Offsets = Sequence[int]  # the offsets of outputs in the memory of an input, in bytes
ViewRule = Callable[[Attrs, Types, Types], Offsets | None]
Count = Callable[[Attrs, Types], int]


def same_dtype(site: Site, ins: Sequence[str | None]) -> tuple[list[str | None], list[str]]:
    """Give every input and output one dtype (float32 if none is known)."""
    known = [d for d in ins if d is not None]
    dtype = known[0] if known else "float32"
    for other in known:
        if other != dtype:
            raise DTypeError(
                f"{site.op} {site.name!r}: inputs have dtypes {dtype} and {other}; add a Cast"
            )
    return [dtype] * len(ins), [dtype]


def output_size(attrs: Attrs, ins: Types, outs: Types) -> int:
    """Count one operation for each element of the first output."""
    return outs[0].size


def no_flops(attrs: Attrs, ins: Types, outs: Types) -> int:
    """Count nothing, for operators that only move data."""
    return 0


def same_memory(attrs: Attrs, ins: Types, outs: Types) -> Offsets | None:
    """Place the only output over all of the first input."""
    return (0,)


def if_unchanged(attrs: Attrs, ins: Types, outs: Types) -> Offsets | None:
    """Place the output over the first input if their types are equal."""
    return (0,) if ins[0] == outs[0] else None


def by_its_parts(env: Env, attrs: Attrs, *arrays: Array) -> Any:
    """Stand in for the computation of a composite operator, which no graph has."""
    raise AssertionError("a composite operator was not expanded")


class HiddenInput(NamedTuple):
    """An input that users do not give: `name`, made by operator `op` from the inputs `reads`."""

    name: str
    op: str
    attrs: dict[str, Any]
    reads: Names


@dataclass(frozen=True, kw_only=True)
class OpDef:
    """Everything the library knows about one operator."""

    name: str
    inputs: Names | Callable[[Attrs], Names]
    #: The rule that completes partly known shapes of inputs and outputs, in both directions.
    shape: ShapeRule
    #: compute(env, attrs, *arrays) -> an array, or a tuple of arrays for several outputs.
    compute: Callable[..., Any]
    #: The gradients of the inputs, each a Ref or None; without a rule no gradient flows.
    grad: Callable[[Call], Sequence[Ref | None]] | None = None
    #: Multiplications and additions of one call.
    flops: Callable[[Attrs, Types, Types], int] = output_size
    params: Mapping[str, Param] = field(default_factory=dict)
    #: The rule that completes partly known dtypes; one output dtype stands for all outputs.
    dtype: DTypeRule = same_dtype
    #: How the batch axis goes through; see batch_layout.py.
    batch: BatchRule = elementwise
    outputs: Names | Callable[[Attrs], Names] = ("output",)
    #: How many of the outputs, the first ones, users see; all by default.
    visible: int | None = None
    #: The trailing inputs that are auxiliary states.
    aux: Names = ()
    #: The outputs that hold the next values of auxiliary states in training.
    aux_outputs: tuple[int, ...] = ()
    #: The parameter that counts the inputs arg0, arg1, ...
    variadic: str | None = None
    #: The number of samples or elements that a mean divides by. Such an operator has a parameter
    #: `count`, which micro-batching sets to the whole batch's number.
    divisor: Count | None = None
    #: Whether it is a head of the backward pass: its own output's gradient is not asked for.
    loss: bool | Callable[[Attrs], bool] = False
    #: Whether it draws random numbers.
    random: bool = False
    #: Whether it must see the whole batch, as a count of valid labels must; see batching.py.
    whole_batch: bool = False
    #: What it stores with mixed precision; see precision.py.
    precision: str = FOLLOWS
    #: The inputs that stay float32 with mixed precision.
    full_inputs: Names = ()
    #: Whether its computation reads values on the host or takes values from there: a GPU must wait
    #: for it, so a CUDA graph cannot hold it.
    reads_on_host: bool = False
    #: Where in the first input's memory the outputs lie, if the computation makes no new array.
    view: ViewRule | None = None
    #: The parameter that names the axis along which the output is its inputs side by side.
    join: str | None = None
    #: Pairs of an output and an input of the same size that it may be written over.
    in_place: tuple[tuple[int, int], ...] = ()
    #: Inputs that hold ids: name -> how many ids there are, all of them being 0 or more.
    ids: Mapping[str, Count] = field(default_factory=dict)
    #: Inputs that calls of many time steps may join along their first axis, as output rows follow.
    rowwise: Positions | Callable[[Attrs], Positions] = ()
    #: Inputs over whose first axis the output is a sum, so that a sum of calls is one call.
    row_sums: Positions | Callable[[Attrs], Positions] = ()
    #: Whether these parameters leave the first input as it is.
    identity: Callable[[Attrs], bool] | None = None
    #: Whether every element of the output is 0.
    zeros: bool = False
    #: Whether no more of an input is read than the output has.
    reads_part: bool = False
    #: Whether the computation makes arrays as large as its inputs on the way.
    copies_inputs: bool = True
    #: The bytes that the computation needs on the way, in multiples of its inputs and outputs.
    temporaries: int = 3
    #: The inputs that are added behind those of the user's when a symbol becomes a graph.
    hidden: Callable[[Attrs], Sequence[HiddenInput]] | None = None
    #: The network that a composite operator stands for: a symbol whose variables are named as the
    #: operator's inputs. It takes the call's place when a symbol becomes a graph.
    expand: Callable[[Site, Types], Any] | None = None
    #: Input -> the initializer, as its `dumps()`, of the variable that stands for a missing one.
    first_values: Mapping[str, str] = field(default_factory=dict)
    #: What pictures of a network say of a call, besides the operator's name.
    caption: Callable[[Attrs], str] | None = None
    aliases: Names = ()
    doc: str = ""

    def input_names(self, attrs: Attrs) -> Names:
        return self.inputs(attrs) if callable(self.inputs) else self.inputs

    def output_names(self, attrs: Attrs) -> Names:
        return self.outputs(attrs) if callable(self.outputs) else self.outputs

    def is_loss(self, attrs: Attrs) -> bool:
        return self.loss(attrs) if callable(self.loss) else self.loss

    def rowwise_inputs(self, attrs: Attrs) -> Positions:
        return self.rowwise(attrs) if callable(self.rowwise) else self.rowwise

    def summed_inputs(self, attrs: Attrs) -> Positions:
        return self.row_sums(attrs) if callable(self.row_sums) else self.row_sums


OPS: dict[str, OpDef] = {}
ALIASES: dict[str, str] = {}


P = ParamSpec("P")


def _registering(define: Callable[P, OpDef]) -> Callable[P, OpDef]:
    def register(*args: P.args, **fields: P.kwargs) -> OpDef:
        """Add an operator, given OpDef's fields; GraphError for a name or alias that is taken."""
        op = define(*args, **fields)
        for name in (op.name, *op.aliases):
            if name in OPS or name in ALIASES:
                raise GraphError(f"operator {name!r} is registered already")
        OPS[op.name] = op
        ALIASES.update(dict.fromkeys(op.aliases, op.name))
        return op

    return update_wrapper(register, define, assigned=(), updated=())


register = _registering(OpDef)


def find(name: str) -> OpDef:
    """Return the operator of a name or alias; GraphError with near misses for an unknown name."""
    op = OPS.get(ALIASES.get(name, name))
    if op is None:
        raise GraphError(f"no operator {name!r}; {nearest(name, [*OPS, *ALIASES])}")
    return op


def complete(shape: Partial) -> bool:
    """Tell whether every dimension is known."""
    return shape is not None and 0 not in shape


MAX_CACHED = 1 << 16  # calls whose types are cached
_inferred: dict[Hashable, tuple[TensorType, ...]] = {}


def infer(op: OpDef, site: Site, ins: Types) -> tuple[TensorType, ...]:
    """Return the output types of a call whose input types are all known.

    They are cached, because an unrolled network makes the same few calls thousands of times, and
    every pass over its graph asks again.
    """
    key = op.name, tuple(site.attrs.items()), tuple(ins)
    types = _inferred.get(key)
    if types is None:
        if len(_inferred) >= MAX_CACHED:
            _inferred.clear()
        types = _inferred[key] = _infer(op, site, ins)
    return types


def forget_types() -> None:
    """Empty the cache of `infer`, because a rule has changed."""
    _inferred.clear()


def _infer(op: OpDef, site: Site, ins: Types) -> tuple[TensorType, ...]:
    known: list[Partial] = [t.shape for t in ins]
    outputs = len(op.output_names(site.attrs))
    _, shapes = op.shape(site, known, [None] * outputs)
    _, dtypes = op.dtype(site, [t.dtype for t in ins])
    if len(dtypes) == 1:
        dtypes = list(dtypes) * outputs
    for shape in shapes:
        if shape is None:
            site.fail(f"its shape does not follow from its inputs' shapes {known}")
    return tuple(TensorType(s, d) for s, d in zip(shapes, dtypes, strict=True) if s is not None)


def run(op: OpDef, env: Env, attrs: Attrs, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """Compute one call; every output is C-contiguous and has the dtype that `infer` returns.

    BLAS may choose another kernel for a transposed view than for its copy that came over a
    channel; values that are always contiguous have the same bits wherever they are used.
    """
    compute = computation(op, arrays)
    result = compute(env, attrs, *arrays)
    if not isinstance(result, tuple):
        result = (result,)
    if compute is not op.compute:
        types = [TensorType(a.shape, str(a.dtype)) for a in arrays]
        outs = infer(op, Site(op.name, op.name, attrs), types)
        result = tuple([r.astype(t.dtype) for r, t in zip(result, outs, strict=True)])
    return tuple([env.xp.asarray(r, order="C") for r in result])


def computation(op: OpDef, arrays: Sequence[Array]) -> Callable[..., Any]:
    """Return an operator's computation on such arrays: floats of 16 bits are computed in float32.

    So sums do not stagnate and intermediate values do not overflow; results are rounded once, when
    they are stored. Operators that only move data take them as they are.
    """
    if op.flops is no_flops or not any(str(a.dtype) in HALVES for a in arrays):
        return op.compute

    def compute(env: Env, attrs: Attrs, *narrow: Array) -> Any:
        return op.compute(env, attrs, *[_widened(a) for a in narrow])

    return compute


def _widened(array: Array) -> Array:
    wider: Array = array.astype(wide(array.dtype), copy=False)
    return wider
