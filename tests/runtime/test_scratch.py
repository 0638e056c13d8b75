"""Scratch of convolutions: what is planned is what is taken, and is in the plan's table."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.explain import memory_table
from runtime.pipeline import Options
from runtime.scratch import scratch_held
from runtime.transports import ThreadCluster, Transport
from runtime.worker import Shared, Worker
from symgraph import cpu, gpu, sym
from symgraph.arrays import device
from symgraph.attribute import AttrScope
from symgraph.units import bytes_text
from tests.gpus import everywhere
from tests.pipelines import Case, make_plan


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
    data = rng.standard_normal((8, 16, 8, 8))
    shapes, _, _ = net.infer_shape(data=data.shape)
    names = zip(net.list_arguments(), shapes, strict=True)
    return Case(net, {"data": data}, {n: rng.standard_normal(s) for n, s in names if n != "data"})


@everywhere({"net": gpu(0)}, cpus={"net": cpu(0)})
@pytest.mark.parametrize("stride", [(1, 1), (2, 2)], ids=str)
def test_what_is_planned_is_what_is_taken(groups, stride):
    case, context, shared = images(stride), groups["net"], Shared()
    made = make_plan(case, Options(groups, context, ()))
    here = device(context)

    def work(transport: Transport) -> int:
        with here.use():
            arrays = {n: here.put(a) for n, a in case.arrays.items()}
        worker = Worker(made, 0, arrays, wanted=(), shared=shared)
        worker.step(transport, case.feeds)
        held = scratch_held(here, shared.clock)
        assert worker.held == held + shared.pool.memory.nbytes
        return held

    with ThreadCluster(1) as cluster:
        (held,) = cluster.run(work)
    (memory,) = made.memory
    assert memory.scratch == held
    assert bool(held) == (context.kind == "gpu" or stride == (1, 1))
    head, row = (line.split("  ") for line in memory_table(made).splitlines())
    shown = dict(zip([w.strip() for w in head if w], [w.strip() for w in row if w], strict=True))
    assert shown["scratch"] == bytes_text(held)
    assert memory.peak > memory.scratch + memory.parameters
