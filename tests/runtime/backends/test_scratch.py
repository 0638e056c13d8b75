"""Scratch of operators: what is planned is what is taken, and is in the plan's table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from runtime.backends.device.arrays import device
from runtime.backends.scratch import scratch_held
from runtime.engine.rank import RankResources
from runtime.engine.worker import Worker
from runtime.frontends.cli.plan_report import memory_table
from runtime.planning.options import Options
from runtime.transports import ThreadCluster, Transport
from symgraph import cpu, gpu
from symgraph.core.units import bytes_text
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.symbol import Symbol
from tests.helpers.gpus import STAND_IN, everywhere
from tests.helpers.pipelines import Case, make_plan


def images(stride: tuple[int, int]) -> Case:
    """Two convolutions; with a stride of one a CPU does them by Winograd's products."""
    rng = np.random.default_rng(0)
    with AttrScope(ctx_group="net"):
        x = sym.Variable("data")
        for name, filters in (("first", 16), ("second", 20)):
            x = sym.Convolution(
                x, kernel=(3, 3), stride=stride, pad=(1, 1), num_filter=filters, name=name
            )
        net = sym.MakeLoss(sym.square(x))
    return with_numbers(net, rng.standard_normal((8, 16, 8, 8)))


def rows() -> Case:
    """A normalisation, whose gradient takes scratch on a GPU."""
    with AttrScope(ctx_group="net"):
        net = sym.MakeLoss(sym.square(sym.LayerNorm(sym.Variable("data"), name="norm")))
    return with_numbers(net, np.random.default_rng(0).standard_normal((300, 5)))


def sequences() -> Case:
    """What has no kernel on a GPU, and so memory set aside for what it makes on the way."""
    with AttrScope(ctx_group="net"):
        net = sym.log_softmax(sym.SequenceReverse(sym.Variable("data")), axis=0)
        net = sym.MakeLoss(sym.square(net))
    return with_numbers(net, np.random.default_rng(0).standard_normal((40, 5, 30)))


def attention() -> Case:
    """Attention with a mask, in two blocks of queries."""
    with AttrScope(ctx_group="net"):
        x = sym.Variable("data")
        mask = sym.Variable("mask", shape=(1, 1, 100))
        x = sym.scaled_dot_product_attention(x, x, x, mask, use_mask=True, name="attention")
        net = sym.MakeLoss(sym.square(x))
    return with_numbers(net, np.random.default_rng(0).standard_normal((2, 100, 20)))


def with_numbers(net: Symbol, data: np.ndarray) -> Case:
    shapes, _, _ = net.infer_shape(data=data.shape)
    names = zip(net.list_arguments(), shapes, strict=True)
    rng = np.random.default_rng(1)
    return Case(net, {"data": data}, {n: rng.standard_normal(s) for n, s in names if n != "data"})


SMALL = pytest.mark.parametrize("shared_gpu", [STAND_IN], indirect=True)
CASES = {  # and whether a CPU takes any
    "convolutions by products": (images((1, 1)), True),
    "convolutions": (images((2, 2)), False),
    "attention": (attention(), True),
    "rows": (rows(), False),
    "own computations": (sequences(), False),
}


@everywhere({"net": gpu(0)}, cpus={"net": cpu(0)})
@pytest.mark.parametrize(("name", "parts"), [*[(name, 1) for name in CASES], ("convolutions", 5)])
def test_what_is_planned_is_what_is_taken(groups, name, parts):
    """With micro-batches of two sizes as well: on a GPU each may take pieces of its own."""
    (case, on_cpus), context, shared = CASES[name], groups["net"], RankResources()
    made = make_plan(case, Options(groups, context, (), micro_batches=parts))
    here = device(context)

    def work(transport: Transport) -> int:
        with here.use():
            arrays = {n: here.put(a) for n, a in case.arrays.items()}
        worker = Worker(made, 0, arrays, wanted=(), resources=shared)
        for _ in range(3):  # call by call, captured, and launched again
            worker.step(transport, case.feeds)
        held = scratch_held(here, shared.context)
        assert worker.held == held + shared.pool.memory.nbytes
        return held

    with ThreadCluster(1) as cluster:
        (held,) = cluster.run(work)
    (memory,) = made.memory
    if context.kind == "gpu" and here.xp.__version__ != "stand-in":
        assert held >= memory.scratch  # a card keeps what was taken for other tests
        return
    assert memory.scratch == held
    assert bool(held) == (context.kind == "gpu" or on_cpus)
    head, row = (line.split("  ") for line in memory_table(made, made.memory).splitlines()[:2])
    shown = dict(zip([w.strip() for w in head if w], [w.strip() for w in row if w], strict=True))
    assert shown["scratch"] == bytes_text(held)
    assert memory.peak > memory.scratch + memory.parameters


def found(make: Callable[[Symbol], Symbol]) -> Case:
    """Places in rows, or what is there, without a gradient."""
    with AttrScope(ctx_group="net"):
        net = sym.MakeLoss(sym.BlockGrad(make(sym.Variable("data"))))
    return Case(net, {"data": np.random.default_rng(0).random((5, 2, 3000), "float32")}, {})


@SMALL
@pytest.mark.parametrize(
    "case",
    [
        sequences(),
        found(lambda x: sym.topk(x, k=1)),
        found(lambda x: sym.pick(x, sym.max(x, axis=1), axis=1)),
    ],
    ids=["sequences", "topk", "pick"],
)
def test_own_computations_take_no_more_than_is_set_aside(shared_gpu, monkeypatch, case):
    here = device(gpu(0))
    monkeypatch.setattr(type(here), "set_aside", lambda self, count: None)
    made = make_plan(case, Options({"net": gpu(0)}, gpu(0), ()))
    with ThreadCluster(1) as cluster:
        cluster.run(lambda transport: Worker(made, 0, {}).step(transport, case.feeds))
    assert 0 < here.set_aside_bytes <= made.memory[0].scratch
