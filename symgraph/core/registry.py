"""The operator registry: every rule of an operator stands in one `register(...)` call."""

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
    """What a computation may depend on besides its inputs.

    xp: the array module. seed, step, sample: keys of the counter-based random numbers, sample
    being the index in the whole batch of this micro-batch's first sample.
    """

    xp: Any = np
    train: bool = False
    seed: int = 0
    step: int = 0
    sample: int = 0


class Call(NamedTuple):
    """What a gradient rule sees: the forward call, and the gradients of its outputs.

    g holds None for an output that no loss depends on (and for a loss's own output).
    """

    attrs: Attrs
    x: tuple[Ref, ...]
    y: tuple[Ref, ...]
    g: tuple[Ref | None, ...]

    @property
    def gy(self) -> Ref:
        """The gradient of the only differentiable output, which is there."""
        assert self.g[0] is not None
        return self.g[0]


Names = tuple[str, ...]
ShapeRule = Callable[[Site, Shapes, Shapes], tuple[Shapes, Shapes]]
DTypeRule = Callable[[Site, Sequence[str | None]], tuple[Sequence[str | None], Sequence[str]]]
Positions = tuple[int, ...]  # of inputs
Offsets = Sequence[int]  # of outputs in the memory of an input, in bytes
ViewRule = Callable[[Attrs, Types, Types], Offsets | None]
Count = Callable[[Attrs, Types], int]


def same_dtype(site: Site, ins: Sequence[str | None]) -> tuple[list[str | None], list[str]]:
    """Every input and output has one dtype (float32 if none is known)."""
    known = [d for d in ins if d is not None]
    dtype = known[0] if known else "float32"
    for other in known:
        if other != dtype:
            raise DTypeError(
                f"{site.op} {site.name!r}: inputs have dtypes {dtype} and {other}; add a Cast"
            )
    return [dtype] * len(ins), [dtype]


def output_size(attrs: Attrs, ins: Types, outs: Types) -> int:
    """One operation an element of the first output."""
    return outs[0].size


def no_flops(attrs: Attrs, ins: Types, outs: Types) -> int:
    """Data movement only."""
    return 0


def same_memory(attrs: Attrs, ins: Types, outs: Types) -> Offsets | None:
    """A view whose only output is all of the first input."""
    return (0,)


def if_unchanged(attrs: Attrs, ins: Types, outs: Types) -> Offsets | None:
    """`same_memory` where the output has the first input's type; otherwise a new array."""
    return (0,) if ins[0] == outs[0] else None


class HiddenInput(NamedTuple):
    """An input that users do not give: `name`, made by operator `op` from the inputs `reads`."""

    name: str
    op: str
    attrs: dict[str, Any]
    reads: Names


@dataclass(frozen=True, kw_only=True)
class OpDef:
    """Everything the library knows about one operator.

    shape: bidirectional rule over partial shapes. dtype: rule over partly known dtypes; a single
    output dtype stands for all outputs. compute(env, attrs, *arrays): one array, or a tuple for
    several outputs. grad(call): one Ref or None an input; None instead of a rule: no gradient
    flows. flops: multiplications and additions of one call. batch: how the batch axis goes
    through (core/batch_layout.py). divisor: number of samples or elements a mean divides by; such
    an operator has a parameter `count` that micro-batching sets to the whole batch's.
    loss: a head of the backward pass; the gradient of its own output is not asked for.
    whole_batch: must see the whole batch (a count of valid labels), see batching.py.
    precision, full_inputs: what it stores with mixed precision, see precision.py.
    looks: the computation looks at its inputs' values on the host, or takes values from there, so
    that a GPU must wait for it: a CUDA graph cannot hold it.
    """

    name: str
    inputs: Names | Callable[[Attrs], Names]
    shape: ShapeRule
    compute: Callable[..., Any]
    grad: Callable[[Call], Sequence[Ref | None]] | None = None
    flops: Callable[[Attrs, Types, Types], int] = output_size
    params: Mapping[str, Param] = field(default_factory=dict)
    dtype: DTypeRule = same_dtype
    batch: BatchRule = elementwise
    outputs: Names | Callable[[Attrs], Names] = ("output",)
    visible: int | None = None  # the outputs users see; all by default
    aux: Names = ()  # trailing inputs that are auxiliary states
    aux_outputs: tuple[int, ...] = ()  # the outputs that hold their next values in training
    variadic: str | None = None  # parameter that counts the inputs arg0, arg1, ...
    divisor: Callable[[Attrs, Types], int] | None = None
    loss: bool = False
    random: bool = False
    whole_batch: bool = False
    precision: str = FOLLOWS
    full_inputs: Names = ()
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
    #: The inputs that are added behind those of the user's when a symbol becomes a graph.
    hidden: Callable[[Attrs], Sequence[HiddenInput]] | None = None
    aliases: Names = ()
    doc: str = ""

    def input_names(self, attrs: Attrs) -> Names:
        return self.inputs(attrs) if callable(self.inputs) else self.inputs

    def output_names(self, attrs: Attrs) -> Names:
        return self.outputs(attrs) if callable(self.outputs) else self.outputs

    def rowwise_inputs(self, attrs: Attrs) -> Positions:
        return self.rowwise(attrs) if callable(self.rowwise) else self.rowwise

    def summed_inputs(self, attrs: Attrs) -> Positions:
        return self.row_sums(attrs) if callable(self.row_sums) else self.row_sums


OPS: dict[str, OpDef] = {}
ALIASES: dict[str, str] = {}


P = ParamSpec("P")


def _registering(define: Callable[P, OpDef]) -> Callable[P, OpDef]:
    def register(*args: P.args, **fields: P.kwargs) -> OpDef:
        """Add an operator of these fields; a name or alias that is taken raises GraphError."""
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
    """The operator of that name or alias; unknown names raise GraphError with near misses."""
    op = OPS.get(ALIASES.get(name, name))
    if op is None:
        raise GraphError(f"no operator {name!r}; {nearest(name, [*OPS, *ALIASES])}")
    return op


def complete(shape: Partial) -> bool:
    """Whether every dimension is known."""
    return shape is not None and 0 not in shape


MEMO = 1 << 16  # calls whose types are remembered
_inferred: dict[Hashable, tuple[TensorType, ...]] = {}


def infer(op: OpDef, site: Site, ins: Types) -> tuple[TensorType, ...]:
    """Output types of one call whose input types are all known.

    Remembered, because an unrolled network makes the same few calls thousands of times, and every
    pass over its graph asks again.
    """
    key = op.name, tuple(site.attrs.items()), tuple(ins)
    found = _inferred.get(key)
    if found is None:
        if len(_inferred) >= MEMO:
            _inferred.clear()
        found = _inferred[key] = _infer(op, site, ins)
    return found


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
    """Compute one call; every output is C-contiguous, and of the dtype that `infer` says.

    BLAS may choose another kernel for a transposed view than for its copy that came over a
    channel; values that are always contiguous have the same bits wherever they are used.
    """
    compute = computation(op, arrays)
    result = compute(env, attrs, *arrays)
    if not isinstance(result, tuple):
        result = (result,)
    if compute is not op.compute:
        types = [TensorType(a.shape, str(a.dtype)) for a in arrays]
        made = infer(op, Site(op.name, op.name, attrs), types)
        result = tuple([r.astype(t.dtype) for r, t in zip(result, made, strict=True)])
    return tuple([env.xp.asarray(r, order="C") for r in result])


def computation(op: OpDef, arrays: Sequence[Array]) -> Callable[..., Any]:
    """An operator's computation on such arrays: floats of 16 bits are computed in float32.

    So sums do not stop and nothing in between overflows; results are rounded once, when they are
    stored. What only moves numbers takes them as they are.
    """
    if op.flops is no_flops or not any(str(a.dtype) in HALVES for a in arrays):
        return op.compute

    def compute(env: Env, attrs: Attrs, *given: Array) -> Any:
        return op.compute(env, attrs, *[_widened(a) for a in given])

    return compute


def _widened(array: Array) -> Array:
    found: Array = array.astype(wide(array.dtype), copy=False)
    return found
