"""Runs that every transport must do alike: named cases with their published results.

A run is a function of a cluster: it does the work and returns the arrays that came out on the
local ranks, by rank and name. The MPI program and the tests that read its files make the same
table, `runs(devices)`, on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import symgraph.frontend.sym as sym
from runtime.engine.session import Session, initialize
from runtime.planning.costs.prices import NOMINAL, always
from runtime.planning.options import Options
from runtime.planning.planner import plan
from runtime.schedule.generators.table import SCHEDULES
from runtime.transports import Cluster
from symgraph.core.context import Context, cpu
from symgraph.core.types import TensorType
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.init import Uniform
from symgraph.frontend.name import NameManager
from symgraph.frontend.optimizer import SGD
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed
from tests.helpers import mazur as published
from tests.helpers.buckets import batch, lstm, make_buckets, start
from tests.helpers.collectives import groups as participants
from tests.helpers.collectives import network, tree
from tests.helpers.networks import random_case, random_groups
from tests.helpers.pipelines import Case, Result, make_plan, on_devices, run_step
from tests.helpers.recurrent import lstm_case
from tests.helpers.torch_files import RECORDED, recorded

Arrays = dict[str, np.ndarray]

SEEDS = range(3)
MICRO_BATCHES = (1, 2, 3, 5)


class Step(NamedTuple):
    """One training step of a case. want: published values of its arrays, to `digits`."""

    case: Case
    options: Options
    want: Mapping[str, Any] = {}
    digits: float = 1e-10

    def __call__(self, cluster: Cluster) -> dict[int, Arrays]:
        results = run_step(make_plan(self.case, self.options), self.case, cluster)
        return {rank: named(result) for rank, result in results.items()}


class Training(NamedTuple):
    """X18 (N5 with clip): steps of SGD on an MLP; arrays are each step's loss and the weights."""

    options: Options
    clip: float | None = None

    def __call__(self, cluster: Cluster) -> dict[int, Arrays]:
        symbol, batches = mlp()
        feeds = {n: Feed(TensorType(a.shape, str(a.dtype))) for n, a in batches[0].items()}
        made = plan(symbol, feeds, replace(self.options, update=True), wrt=None)
        arrays = initialize(made, cluster, Uniform(0.05), seed=3)
        session = Session(made, cluster, arrays, optimizer=SGD(0.1), clip=self.clip)
        losses = np.array([session.step(feeds)["loss_nll"] for feeds in batches])
        found: dict[int, Arrays] = {rank: dict(weights) for rank, weights in arrays.items()}
        if made.rank_of("fc2_weight") in found:  # the figures are the same on every rank
            found[made.rank_of("fc2_weight")]["losses"] = losses
        return found


class Bucketed(NamedTuple):
    """Steps of batches of several buckets, alone and together; arrays as in Training."""

    options: Options

    def __call__(self, cluster: Cluster) -> dict[int, Arrays]:
        made = make_buckets(lstm(), batch(7), replace(self.options, update=True))
        session, arrays = start(made, cluster)
        steps = [(7,), (3,), (5, 7, 3), (3, 7)]
        losses = [session.step_batches([batch(n) for n in step])["nll_nll"] for step in steps]
        found: dict[int, Arrays] = {rank: dict(weights) for rank, weights in arrays.items()}
        if made.default.rank_of("decode_weight") in found:
            found[made.default.rank_of("decode_weight")]["losses"] = np.array(losses)
        return found


Run = Step | Training | Bucketed


def named(result: Result) -> Arrays:
    """A result's local arrays by name: `output<i>` and `grad <parameter>`."""
    outputs = {f"output{i}": a for i, a in enumerate(result.outputs) if a is not None}
    return outputs | {f"grad {n}": a for n, a in result.grads.items()}


def gathered(of_rank: Mapping[int, Arrays]) -> Arrays:
    """All ranks' arrays; each must come from exactly one of them."""
    found: Arrays = {}
    for arrays in of_rank.values():
        assert not found.keys() & arrays.keys()
        found |= arrays
    return found


def alone(run: Run) -> Run:
    """The same run with everything on one device."""
    return run._replace(options=Options(micro_batches=run.options.micro_batches))


def runs(devices: int) -> dict[str, Run]:
    """All runs on that many devices, by name."""
    table: dict[str, Run] = {}
    for seed in SEEDS:
        groups = random_groups(seed + 100 * devices, devices)
        for number, schedule in enumerate(SCHEDULES):
            count = MICRO_BATCHES[(seed + number) % len(MICRO_BATCHES)]
            name = f"random{seed}-{schedule}-m{count}"
            table[name] = Step(random_case(seed), options(devices, groups, count, schedule))
    for p, schedule in ((2, "1f1b"), (3, "gpipe"), (4, "zb-h1"), (5, "1f1b")):
        place = {g: cpu(i % devices) for i, g in enumerate(participants(p))}
        for make in (network, tree):
            name = f"collectives-{make.__name__}-{p}-{schedule}"
            table[name] = Step(make(p), options(devices, place, 3, schedule))
    for number, schedule in enumerate(SCHEDULES):
        table[f"segments-{schedule}"] = segments(devices, schedule, 1 + number % 3)
    with NameManager():
        for name, make in CASES.items():
            table[name] = make(devices)
    for name in RECORDED:
        table[f"torch-{name}"] = exported(name, devices)
    return table


def exported(name: str, devices: int) -> Step:
    """A network that PyTorch exported, with the loss and gradients that it computed."""
    case, want = recorded(name)
    ranks = tuple(map(cpu, range(devices)))
    strategy = "uniform" if devices > 1 else None
    priced = Options(devices=ranks, strategy=strategy, pricing=always(NOMINAL))
    return Step(case, priced, want, 1e-5)


def options(
    devices: int, groups: Mapping[str, Context], micro_batches: int = 1, schedule: str = "1f1b"
) -> Options:
    return on_devices(devices, groups, schedule, micro_batches)


def spread(devices: int, *names: str) -> dict[str, Context]:
    """Groups dealt out to the devices in turn."""
    return {name: cpu(i % devices) for i, name in enumerate(names)}


def group(name: str) -> AttrScope:
    return AttrScope(ctx_group=name)


def chain(devices: int) -> Step:
    """G1: (data1 + data2) * 3 on one device, + data3 on another."""
    arrays = {"data1": 1.0, "data2": 2.0, "data3": 3.0}
    data1, data2, data3 = (sym.Variable(n) for n in arrays)
    with group("dev1"):
        scaled = (data1 + data2) * 3
    with group("dev2"):
        total = sym.MakeLoss(scaled + data3)
    case = Case(total, {}, {n: np.full((4, 5), v) for n, v in arrays.items()})
    want = {"output0": 12, "grad data1": 3, "grad data2": 3, "grad data3": 1}
    return Step(case, options(devices, spread(devices, "dev1", "dev2")), want)


def two_groups(devices: int) -> Step:
    """G2: 2a on one device, + b on another."""
    with group("dev1"):
        twice = sym.Variable("a") * 2
    with group("dev2"):
        total = sym.MakeLoss(twice + sym.Variable("b"))
    case = Case(total, {}, {n: np.ones((2, 5)) for n in "ab"})
    want = {"output0": 3, "grad a": 2, "grad b": 1}
    return Step(case, options(devices, spread(devices, "dev1", "dev2")), want)


def branches(count: int, devices: int) -> Step:
    """G10: the sum of i * x, branch i on device i mod D (MXNet issue 10455)."""
    with group("g0"):
        x = sym.Variable("x")
    parts = []
    for i in range(1, count + 1):
        with group(f"g{i % devices}"):
            parts.append(x * i)
    with group("g0"):
        total = sym.MakeLoss(sym.add_n(*parts))
    names = [f"g{i}" for i in range(devices)]
    value = count * (count + 1) / 2
    case = Case(total, {}, {"x": np.ones(1)})
    return Step(
        case, options(devices, spread(devices, *names)), {"output0": value, "grad x": value}
    )


def float_crossing(dtype: str, devices: int) -> Step:
    """G14: values of a float type in all ranks go there and back, also a slice and a scalar."""
    rng = np.random.default_rng(14)
    arrays: Arrays = {}
    losses = []
    for shape in ((50,), (50, 20), (50, 20, 5), (50, 20, 5, 3), (), (3, 3, 2)):
        name = f"x{len(arrays)}"
        arrays[name] = (rng.integers(-64, 64, shape) / 32).astype(dtype)
        with group("a"):
            there = sym.negative(sym.Variable(name))
            if shape == (3, 3, 2):
                there = sym.slice_axis(there, axis=1, begin=1, end=2)  # not contiguous
        with group("b"):
            back = sym.tanh(there)
        with group("a"):
            losses.append(sym.MakeLoss(sym.square(back)))
    digits = {"float16": 2e-3, "float32": 1e-6}.get(dtype, 1e-12)
    want = {f"output{i}": squared_tanh(x) for i, x in enumerate(arrays.values())}
    case = Case(sym.Group(losses), {}, arrays)
    return Step(case, options(devices, spread(devices, "a", "b")), want, digits)


def squared_tanh(x: np.ndarray) -> np.ndarray:
    part = x[:, 1:2] if x.shape == (3, 3, 2) else x
    return np.tanh(part.astype("float64")) ** 2


def integer_crossing(dtype: str, devices: int) -> Step:
    """G14: word ids of an integer type; 2**24 + 1 is the first that float32 cannot hold."""
    ids = np.array([0, 3, 2**24 + 1, 2**31 - 1]).astype(dtype)
    with group("a"):
        there = sym.Variable("ids") - 1
    with group("b"):
        scaled = sym.broadcast_mul(sym.Cast(there, dtype="float64"), sym.Variable("w"))
        loss = sym.MakeLoss(scaled)
    case = Case(loss, {"ids": ids}, {"w": np.full(1, 0.5)})
    want = {"output0": (ids.astype("float64") - 1) / 2, "grad w": ids.astype("float64").sum() - 4}
    return Step(case, options(devices, spread(devices, "a", "b"), 2), want)


def mazur(devices: int) -> Step:
    """G18: the two-layer example whose values are in textbooks (published to 8 digits)."""
    x = sym.Variable("data")
    for layer in range(2):
        with group(f"d{layer}"):
            x = sym.sigmoid(sym.FullyConnected(x, num_hidden=2, name=f"fc_{layer}"))
    with group("d1"):
        loss = sym.MakeLoss(sym.sum(sym.square(x - sym.Variable("label"))) * 0.5)
        outputs = sym.Group([sym.BlockGrad(x), loss])
    want = {"output0": published.OUTPUT, "output1": published.LOSS}
    want |= {f"grad {name}": value for name, value in published.GRADIENTS.items()}
    case = Case(outputs, {}, {n: np.array(v) for n, v in published.INPUTS.items()})
    return Step(case, options(devices, spread(devices, "d0", "d1")), want, 5.1e-9)


def normalised(how: str, micro_batches: int, devices: int) -> Step:
    """N1: zero logits, 4 classes, one of 4 labels ignored; sum|grad| is 4.5, 1.125 or 1.5.

    The data is the unit matrix, so the weight's gradient is the logits', transposed.
    """
    labels = np.array([1.0, 2.0, 3.0, -1.0])
    with group("net"):
        logits = sym.FullyConnected(sym.Variable("x"), num_hidden=4, no_bias=True, name="logits")
    with group("loss"):
        loss = sym.SoftmaxOutput(
            logits, sym.Variable("label"), use_ignore=True, normalization=how, name="softmax"
        )
    per_row = {"null": 1, "batch": 4, "valid": 3}[how]
    grad = np.full((4, 4), 0.25)
    grad[[0, 1, 2], [1, 2, 3]] -= 1
    grad[3] = 0
    total = {"null": 4.5, "batch": 1.125, "valid": 1.5}[how]
    assert math.isclose(np.abs(grad / per_row).sum(), total)
    case = Case(loss, {"x": np.eye(4), "label": labels}, {"logits_weight": np.zeros((4, 4))})
    want = {"output0": 0.25, "grad logits_weight": (grad / per_row).T}
    groups = spread(devices, "net", "loss")
    return Step(case, options(devices, groups, micro_batches), want, 1e-15)


def split(micro_batches: int, devices: int) -> Step:
    """N2: micro-batches of 10 samples, also where they do not divide, change nothing."""
    rng = np.random.default_rng(2)
    x = sym.Variable("x")
    for layer, size in enumerate((6, 5, 3)):
        with group(f"g{layer}"):
            x = sym.tanh(sym.FullyConnected(x, num_hidden=size, name=f"fc{layer}"))
    with group("g2"):
        loss = sym.SoftmaxOutput(x, sym.Variable("label"), normalization="batch", name="softmax")
    feeds = {"x": rng.standard_normal((10, 4)), "label": rng.integers(0, 3, 10).astype("float64")}
    shapes, _, _ = loss.infer_shape(**{n: a.shape for n, a in feeds.items()})
    arrays = {
        n: rng.standard_normal(s)
        for n, s in zip(loss.list_arguments(), shapes, strict=True)
        if n not in feeds
    }
    groups = spread(devices, "g0", "g1", "g2")
    return Step(Case(loss, feeds, arrays), options(devices, groups, micro_batches))


def mlp() -> tuple[Symbol, list[Arrays]]:
    """X18: 784-1000 | 1000-1000-10, and five batches of 100."""
    rng = np.random.default_rng(18)
    with group("first"):
        x = sym.FullyConnected(sym.Variable("x"), num_hidden=1000, name="fc1")
        x = sym.Activation(x, act_type="relu")
    with group("second"):
        x = sym.FullyConnected(x, num_hidden=1000, name="fc2")
        x = sym.Activation(x, act_type="relu")
        x = sym.FullyConnected(x, num_hidden=10, name="fc3")
        label = sym.Variable("label")
        prob = sym.SoftmaxOutput(x, label, normalization="batch", name="softmax")
        figures = sym.nll_stats(prob, label, name="loss")
    batches = [
        {
            "x": rng.random((100, 784), dtype="float32"),
            "label": rng.integers(0, 10, 100).astype("float32"),
        }
        for _ in range(5)
    ]
    return sym.Group([prob, figures]), batches


def training(micro_batches: int, clip: float | None, devices: int) -> Training:
    return Training(options(devices, spread(devices, "first", "second"), micro_batches), clip)


def bucketed(schedule: str, devices: int) -> Bucketed:
    groups = spread(devices, "embed", "layer0", "layer1", "decode")
    return Bucketed(options(devices, groups, 2, schedule))


def tied_over_time(steps: int, devices: int) -> Step:
    """R5: an LSTM stack, a layer a device, whose weights are used at every time step."""
    groups = spread(devices, "layer0", "layer1", "head")
    return Step(lstm_case(2, steps), options(devices, groups, 2))


def segments(devices: int, schedule: str, steps: int) -> Step:
    """An LSTM stack cut along time as well, some of it run again in the backward phase."""
    groups = spread(devices, "layer0", "layer1", "head")
    made = options(devices, groups, 2, schedule)
    return Step(lstm_case(2, 5), replace(made, time_segment=steps, recompute=(0,)))


CASES: dict[str, Callable[[int], Run]] = {
    "G1": chain,
    "G2": two_groups,
    **{f"G10-{n}": partial(branches, n) for n in (1, 5, 12)},
    **{f"G14-{d}": partial(float_crossing, d) for d in ("float16", "float32", "float64")},
    **{f"G14-{d}": partial(integer_crossing, d) for d in ("int32", "int64")},
    "G18": mazur,
    **{
        f"N1-{how}-m{m}": partial(normalised, how, m)
        for how, m in (("null", 1), ("batch", 4), ("valid", 2))
    },
    **{f"N2-m{m}": partial(split, m) for m in (3, 10)},
    **{f"R5-t{t}": partial(tied_over_time, t) for t in (1, 2, 9)},
    **{f"X18-m{m}": partial(training, m, None) for m in (1, 4)},
    "N5": partial(training, 2, 0.05),
    **{f"buckets-{schedule}": partial(bucketed, schedule) for schedule in ("gpipe", "1f1b")},
}
