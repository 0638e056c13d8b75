"""Random networks of any of the registry's operators, with sample inputs and parameters for each.

An operator that is not in SAMPLES is called with a value at hand, others of the same shape, and
0.7 for a `scalar`. Where that is outside its domain (log of -1), the values are mapped into it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import symgraph.frontend.sym as sym
from symgraph.core.errors import GraphError
from symgraph.core.reference import evaluate
from symgraph.core.registry import OPS, Env
from symgraph.core.types import Shape
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import micro_batch
from tests.helpers.networks import GROUPS
from tests.helpers.pipelines import Case

BATCH, PART = 5, 2  # samples of the batch and of a micro-batch
DEALT = 13  # operators that each network is dealt
LARGEST = 8.0  # magnitude of a value that others are computed from
SHAPES = {2: (BATCH, 4), 3: (BATCH, 3, 4), 4: (BATCH, 2, 4, 4)}  # of fed data, by rank


class Maker:
    """Grows a network whose values have any shape; `apart`: no operator may mix samples."""

    def __init__(self, rng: np.random.Generator, dtype: str, apart: bool) -> None:
        self.rng, self.dtype, self.apart = rng, dtype, apart
        self.feeds: dict[str, np.ndarray] = {}
        self.arrays: dict[str, np.ndarray] = {}
        self.pool: list[tuple[Symbol, Shape]] = []
        self.unread: list[Symbol] = []
        self.heads: list[Symbol] = []

    # -- what samples take ---------------------------------------------------------------------

    def feed(self, values: np.ndarray, dtype: str = "") -> Symbol:
        name = f"feed{len(self.feeds)}"
        self.feeds[name] = np.asarray(values).astype(dtype or self.dtype)
        return sym.Variable(name)

    def data(self, shape: Shape) -> Symbol:
        """A new value that has a gradient."""
        fed = self.feed(self.rng.standard_normal(shape))
        return sym.broadcast_add(fed, self.parameter((1, *shape[1:])))

    def ids(self, shape: Shape, count: int) -> Symbol:
        return self.feed(self.rng.integers(0, count, shape), str(self.rng.choice(["int32", ""])))

    def lengths(self, longest: int) -> Symbol:
        return self.feed(self.rng.integers(1, longest + 1, BATCH))

    def parameter(self, shape: Shape) -> Symbol:
        name = f"parameter{len(self.arrays)}"
        self.arrays[name] = (self.rng.standard_normal(shape) / 2).astype(self.dtype)
        return sym.Variable(name)

    def like(self, shape: Shape) -> Symbol:
        """A value at hand of this shape, or a new one."""
        known = [x for x, other in self.pool if other == shape]
        if known and self.rng.random() < 0.7:
            return known[self.rng.integers(len(known))]
        fed = shape[0] == BATCH
        return self.data(shape) if fed else self.parameter(shape)

    def axis(self, rank: int) -> int:
        return int(self.rng.integers(1 if self.apart else 0, rank))

    def flag(self) -> bool:
        return bool(self.rng.random() < 0.5)

    def word(self, *words: str) -> str:
        return str(self.rng.choice(words))

    # -- growth --------------------------------------------------------------------------------

    def scope(self) -> AttrScope:
        """A random group, or none at all."""
        group = int(self.rng.integers(GROUPS + 1))
        return AttrScope(ctx_group=f"g{group}") if group < GROUPS else AttrScope()

    def grow(self, op: str, tries: int = 8) -> None:
        """Call the operator; no value at hand may suit it, or it may mix samples."""
        for _ in range(tries):
            try:
                with self.scope():
                    made = self.call(op)
                results = self.results(made)
            except GraphError:
                continue
            if all(np.isfinite(array).all() for array in results):
                self.keep(op, made, results)
                return

    def call(self, op: str) -> Symbol:
        ranks, sample = SAMPLES.get(op, ("234", None))
        function, params = getattr(sym, op), {"scalar": 0.7} if "scalar" in OPS[op].params else {}
        if not ranks:
            made = function(**sample(self, ()))
            if OPS[op].inputs:
                return made
            add = sym.broadcast_add if op == "_arange" else sym.elemwise_add
            return add(self.value("2")[0], made)  # a constant finds the batch's length so
        x, shape = self.value(ranks)
        if OPS[op].random and op.endswith("_like"):
            x = self.data(shape)  # with the batch in front, where the interpreter takes it to be
        count = len(OPS[op].inputs) if isinstance(OPS[op].inputs, tuple) else 1
        others = [] if sample else [self.other(op, shape) for _ in range(count - 1)]
        if OPS[op].variadic and op not in ONE_INPUT:
            others = [self.like(shape), self.like(shape)]
        if sample:
            params = sample(self, shape)
        into = INTO_DOMAIN.get(op, lambda value: value)
        return function(into(x), *map(into, others), **params)

    def value(self, ranks: str) -> tuple[Symbol, Shape]:
        """A value at hand with one of these ranks, or a new one."""
        fits = [value for value in self.pool if str(len(value[1])) in ranks]
        if fits and self.rng.random() < 0.7:
            return fits[self.rng.integers(len(fits))]
        shape = SHAPES[int(self.rng.choice(list(ranks)))]
        return self.data(shape), shape

    def other(self, op: str, shape: Shape) -> Symbol:
        broadcast = op.startswith("broadcast_")
        return self.parameter((1, *shape[1:])) if broadcast else self.like(shape)

    def results(self, made: Symbol) -> list[np.ndarray]:
        """The values of a symbol; GraphError if its shapes do not fit or it mixes samples."""
        self.fill(made)
        graph = lower(made, *self.types(made, BATCH))
        if self.apart:
            small = lower(made, *self.types(made, PART))
            micro_batch(small, dict.fromkeys(self.feeds, 0), PART, BATCH)
        case = self.case(made)
        return evaluate(graph, case.feeds | case.arrays, Env(train=True))

    def fill(self, made: Symbol) -> None:
        """Values for the parameters and states that the call has made."""
        values = self.feeds | self.arrays
        known = {n: values[n].shape for n in made.list_inputs() if n in values}
        arguments, _, states = made.infer_shape(**known)
        names = [*made.list_arguments(), *made.list_auxiliary_states()]
        for name, shape in zip(names, [*arguments, *states], strict=True):
            if name not in values:
                low = 0.5 if name.endswith("var") else -1.0
                self.arrays[name] = self.rng.uniform(low, 1.5, shape).astype(self.dtype)

    def types(self, made: Symbol, size: int) -> tuple[dict[str, Any], dict[str, str]]:
        case = self.case(made)
        fed = {n: (size, *a.shape[1:]) for n, a in case.feeds.items()}
        dtypes = {n: str(a.dtype) for n, a in (case.feeds | case.arrays).items()}
        return fed | case.shapes, dtypes

    def keep(self, op: str, made: Symbol, results: list[np.ndarray]) -> None:
        if OPS[op].loss:
            self.heads.append(made)
            return
        read = set(made.get_internals().list_outputs())
        self.unread = [u for u in self.unread if u.list_outputs()[0] not in read]
        for value, array in zip(made, results, strict=True):
            if str(array.dtype) != self.dtype:
                value = sym.Cast(value, dtype=self.dtype)
            largest = float(np.abs(array).max(initial=0.0))
            if largest > LARGEST:
                value = value * (1 / largest)
            self.unread.append(value)
            if array.ndim in SHAPES and array.shape:
                self.pool.append((value, array.shape))

    def finish(self) -> Case:
        """Every value that no other reads is a loss."""
        for value in self.unread:
            with self.scope():
                head = sym.MakeLoss(sym.tanh(value))
                try:
                    self.results(head)
                except GraphError:  # it is a sum over the batch
                    head = sym.MakeLoss(value)
            self.heads.append(head)
        return self.case(sym.Group(self.heads))

    def case(self, made: Symbol) -> Case:
        used = made.list_inputs()
        feeds = {n: self.feeds[n] for n in used if n in self.feeds}
        return Case(made, feeds, {n: self.arrays[n] for n in used if n in self.arrays})


def _positive(x: Symbol) -> Symbol:
    return sym.sigmoid(x) + 0.5


def _below_1(x: Symbol) -> Symbol:
    return sym.tanh(x) * 0.7


def _one_longer(x: Symbol) -> Symbol:
    return sym.expand_dims(x, axis=1)


FROM_0 = """gamma gammaln
    log log2 log10 sqrt rsqrt cbrt rcbrt reciprocal _power broadcast_power elemwise_div
    broadcast_div _mod broadcast_mod _rmod_scalar _rdiv_scalar _power_scalar"""
INTO_DOMAIN: dict[str, Callable[[Symbol], Symbol]] = {
    **dict.fromkeys(FROM_0.split(), _positive),
    **dict.fromkeys(["arcsin", "arccos", "arctanh", "log1p", "tan", "erfinv"], _below_1),
    **dict.fromkeys(["broadcast_to", "broadcast_axis", "squeeze"], _one_longer),
    "arccosh": lambda x: _positive(x) + 1.0,
    "broadcast_like": lambda x: sym.mean(x, axis=1, keepdims=True),
    "where": lambda x: x * (x > 0.1),
    **dict.fromkeys(["SequenceReverse", "CTCLoss"], lambda x: sym.SwapAxis(x, dim1=0, dim2=1)),
    "_lstm_gates": lambda x: sym.FullyConnected(x, num_hidden=12),
    "_gru_gates": lambda x: sym.FullyConnected(x, num_hidden=9),
}
ONE_INPUT = ("Crop", "UpSampling")  # which may have more


def _along(m: Maker, s: Shape) -> dict[str, Any]:
    return {"axis": m.axis(len(s))}


def _reduced(m: Maker, s: Shape) -> dict[str, Any]:
    return {"axis": m.axis(len(s)), "keepdims": m.flag()}


def _constant(m: Maker, s: Shape) -> dict[str, Any]:
    return {"shape": (0, 4), "dtype": m.dtype}


def _regression(m: Maker, s: Shape) -> dict[str, Any]:
    return {"label": m.feed(m.rng.random(s))}


def _timed(m: Maker, s: Shape) -> dict[str, Any]:
    lengths = m.feed(m.rng.integers(1, s[1] + 1, BATCH))
    return {"axis": 1, "sequence_length": lengths, "use_sequence_length": True}


def _gates(count: int) -> Callable[[Maker, Shape], dict[str, Any]]:
    name = "c" if count == 4 else "h"
    return lambda m, s: {"h2h": m.like((BATCH, 3 * count)), name: m.like((BATCH, 3))}


#: Operator -> the ranks of its first input (none: it is not a value at hand), and its parameters
#: and other inputs, by name, for a first input of a shape.
SAMPLES: dict[str, tuple[str, Callable[[Maker, Shape], dict[str, Any]]]] = {
    **dict.fromkeys(["sum", "mean", "max", "min", "norm", "argmax", "argmin"], ("234", _reduced)),
    **dict.fromkeys(["prod", "nansum", "nanprod"], ("234", _reduced)),
    **dict.fromkeys(["cumsum", "sort", "argsort"], ("234", _along)),
    "topk": (
        "234",
        lambda m, s: {"k": 2, "axis": len(s) - 1, "ret_typ": m.word("value", "both", "mask")},
    ),
    "gather_nd": (
        "",
        lambda m, s: {
            "data": m.parameter((3, 3, 4)),
            "indices": sym.transpose(m.ids((BATCH, 2), 3)),
        },
    ),
    "scatter_nd": (
        "2",
        lambda m, s: {"indices": sym.transpose(m.ids((BATCH, 1), 3)), "shape": (3, *s[1:])},
    ),
    "CTCLoss": ("3", lambda m, s: {"label": m.ids((BATCH, 1), s[2])}),
    "GridGenerator": (
        "",
        lambda m, s: {
            "data": m.data((BATCH, 6)),
            "transform_type": "affine",
            "target_shape": (2, 3),
        },
    ),
    "SpatialTransformer": (
        "4",
        lambda m, s: {
            "loc": m.like((BATCH, 6)),
            "target_shape": (2, 3),
            "transform_type": "affine",
            "sampler_type": "bilinear",
        },
    ),
    "ROIPooling": (
        "4",
        lambda m, s: {
            "rois": m.feed(m.rng.integers(0, (BATCH, 4, 4, 4, 4), (BATCH, 5))),
            "pooled_size": (2, 2),
            "spatial_scale": 1.0,
        },
    ),
    "batch_take": ("2", lambda m, s: {"indices": m.ids(s[:1], s[-1])}),
    "slice_like": ("3", lambda m, s: {"shape_like": m.parameter((1, 2, 2)), "axes": (1, 2)}),
    "InstanceNorm": ("34", lambda m, s: {}),
    "GroupNorm": ("4", lambda m, s: {"num_groups": m.word("1", "2")}),
    "SVMOutput": ("2", lambda m, s: {"label": m.feed(m.rng.integers(0, s[1], s[:1]))}),
    **dict.fromkeys(["_zeros", "_ones", "_random_uniform", "_random_normal"], ("", _constant)),
    **dict.fromkeys([op for op in OPS if op.endswith("RegressionOutput")], ("234", _regression)),
    **dict.fromkeys(["softmax", "softmin", "log_softmax", "reverse"], ("234", _along)),
    "depth_to_space": ("4", lambda m, s: {"block_size": 1}),
    "space_to_depth": ("4", lambda m, s: {"block_size": 2}),
    "reshape_like": ("3", lambda m, s: {"rhs": m.like(s), "lhs_begin": 1, "rhs_begin": 1}),
    **dict.fromkeys(["SequenceMask", "SequenceLast"], ("34", _timed)),
    "SequenceReverse": ("34", lambda m, s: _timed(m, s) | {"axis": 0}),
    "_full": ("", lambda m, s: {"shape": (0, 4), "dtype": m.dtype, "value": 0.3}),
    "_arange": ("", lambda m, s: {"stop": 4, "dtype": m.dtype}),
    "_begin_state": ("2", lambda m, s: {"shape": (0, 3)}),
    "_lstm_gates": ("2", _gates(4)),
    "_gru_gates": ("2", _gates(3)),
    "add_n": ("234", lambda m, s: {}),
    "stack": ("23", _along),
    "Concat": ("234", lambda m, s: {"dim": m.axis(len(s))}),
    "batch_dot": ("3", lambda m, s: {"rhs": m.like(s), "transpose_b": True}),
    "scaled_dot_product_attention": (
        "3",
        lambda m, s: {"key": m.like(s), "value": m.like(s), "causal": m.flag()},
    ),
    "dot": ("2", lambda m, s: {"rhs": m.parameter((s[1], 3))}),
    "broadcast_to": ("23", lambda m, s: {"shape": (0, 3) + (0,) * (len(s) - 1)}),
    "broadcast_axis": ("23", lambda m, s: {"axis": 1, "size": 3}),
    "broadcast_like": ("234", lambda m, s: {"rhs": m.like(s)}),
    "Embedding": (
        "",
        lambda m, s: (
            {"data": m.ids((BATCH, 3), 6), "input_dim": 6, "output_dim": 4} | {"dtype": m.dtype}
        ),
    ),
    "take": ("", lambda m, s: {"a": m.parameter((6, 4)), "indices": m.ids((BATCH, 3), 6)}),
    "pick": ("234", lambda m, s: {"index": m.ids(s[:-1], s[-1])}),
    "one_hot": ("", lambda m, s: {"indices": m.ids((BATCH,), 4), "depth": 4, "dtype": m.dtype}),
    "FullyConnected": ("234", lambda m, s: {"num_hidden": 4, "flatten": m.flag()}),
    "Convolution": ("4", lambda m, s: {"kernel": (3, 3), "pad": (1, 1), "num_filter": 2}),
    "Deconvolution": ("4", lambda m, s: {"kernel": (2, 2), "stride": (2, 2), "num_filter": 2}),
    "tile": ("234", lambda m, s: {"reps": (1,) * (len(s) - 1) + (2,)}),
    "repeat": ("234", lambda m, s: {"repeats": 2, "axis": m.axis(len(s))}),
    "Crop": ("4", lambda m, s: {"h_w": (2, 2), "offset": (1, 1)}),
    "SoftmaxOutput": (
        "2",
        lambda m, s: {
            "label": m.feed(m.rng.integers(-1, s[1], s[:1])),
            "use_ignore": True,
            "normalization": m.word("null", "batch", "valid"),
        },
    ),
    "softmax_cross_entropy": ("2", lambda m, s: {"label": m.ids(s[:1], s[1])}),
    "MakeLoss": ("234", lambda m, s: {"grad_scale": 0.3}),
    "Reshape": ("34", lambda m, s: {"shape": (0, -1, 2)}),
    "SwapAxis": ("34", lambda m, s: {"dim1": m.axis(len(s)), "dim2": m.axis(len(s))}),
    "transpose": ("34", lambda m, s: {"axes": m.rng.permutation(len(s)).tolist()}),
    "expand_dims": ("23", lambda m, s: {"axis": m.axis(len(s) + 1)}),
    "squeeze": ("23", lambda m, s: {"axis": 1}),
    "SliceChannel": ("234", lambda m, s: {"num_outputs": 2, "axis": len(s) - 1}),
    "slice_axis": ("234", lambda m, s: {"axis": len(s) - 1, "begin": 1}),
    "slice": ("23", lambda m, s: {"begin": (None, 1), "end": (None, s[1])}),
    "LeakyReLU": ("234", lambda m, s: {"act_type": m.word("leaky", "elu", "prelu")}),
    "Activation": ("234", lambda m, s: {"act_type": m.word("softrelu", "relu", "softsign")}),
    "BatchNorm": ("234", lambda m, s: {"fix_gamma": m.flag()}),
    "IdentityAttachKLSparseReg": ("2", lambda m, s: {}),
    "LayerNorm": ("234", lambda m, s: {}),
    "LRN": ("4", lambda m, s: {"nsize": 3}),
    "L2Normalization": ("34", lambda m, s: {"mode": m.word("instance", "channel", "spatial")}),
    "Pooling": ("4", lambda m, s: {"kernel": (2, 2), "pool_type": m.word("max", "avg", "sum")}),
    "UpSampling": ("4", lambda m, s: {"scale": 2, "sample_type": "nearest"}),
    "Pad": (
        "4",
        lambda m, s: {"mode": m.word("constant", "edge"), "pad_width": (0,) * 4 + (1,) * 4},
    ),
    "clip": ("234", lambda m, s: {"a_min": -0.5, "a_max": 0.6}),
    "Cast": ("234", lambda m, s: {"dtype": "float32"}),
}

# What users reach by Python's operators, by `sg.sym.random` and by cells.
REACHED = "_power _maximum _minimum _mod _hypot _equal _not_equal _greater _greater_equal _lesser"
REACHED += (
    " _lesser_equal _logical_and _logical_or _logical_xor _random_uniform_like _random_normal_like"
)


TESTS = {"__main__", "tests.helpers.faults"}  # register operators of their own


@cache
def drawable() -> list[str]:
    """The registry's operators but for those that only passes make: gradients, shards, copies."""
    reached = {*REACHED.split(), *SAMPLES}
    return [
        op
        for op, definition in OPS.items()
        if definition.expand is None
        and op != "Custom"  # which computes what users register
        and not {definition.shape.__module__, definition.compute.__module__} & TESTS
        and (not op.startswith("_") or op in reached or op.endswith("_scalar"))
    ]


def dealt(seed: int) -> list[str]:
    """A network's operators: packs of all of them are shuffled and dealt one after another."""
    rng, packs = np.random.default_rng(0), list[str]()
    while len(packs) < (seed + 1) * DEALT:
        packs += [str(op) for op in rng.permutation(drawable())]
    return packs[seed * DEALT : (seed + 1) * DEALT]


def random_operators(seed: int) -> tuple[Case, bool]:
    """A network, its data and its parameters, all from one seed; whether it keeps samples apart.

    Seeds take turns: float64 and float32, networks that keep samples apart and any.
    """
    dtype, apart = ("float64", "float32")[seed % 2], seed // 2 % 2 == 0
    maker = Maker(np.random.default_rng(seed), dtype, apart)
    with NameManager():
        for op in dealt(seed):
            maker.grow(op)
        return maker.finish(), apart
