"""What a step does beside its operators: bytes of feeds, sums over micro-batches and updates."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitioner import Partition, group2ctx
from partitioner.base.types import BodyKey
from partitioner.costs.cost import Rates
from partitioner.cutting.cut import cut
from runtime.backends.cpu.micro import available
from runtime.backends.scratch import packed_weights
from runtime.planning.costs.overheads import step_overheads
from runtime.planning.options import Options
from runtime.planning.planner import plan
from symgraph import cpu
from symgraph.core.types import TensorType, Value
from symgraph.frontend import sym
from symgraph.frontend.lower import lower
from symgraph.passes.batching import Feed
from symgraph.passes.gradients import gradients

ROWS, INNER, UNITS = 5, 40, 30
WEIGHT, DATA = 4 * INNER * UNITS, 4 * ROWS * INNER  # bytes


def dense(rows: int = ROWS) -> tuple[Partition, dict[str, Value]]:
    x, w = sym.Variable("x"), sym.Variable("w")
    net = sym.MakeLoss(sym.FullyConnected(x, w, num_hidden=UNITS, no_bias=True, name="fc"))
    both = gradients(lower(net, {"x": (rows, INNER)}), ["w"])
    return cut(both.graph, group2ctx(both.graph, None, cpu(0))), dict(both.grads)


def counted(micro_batches: int, **options: int | bool):
    partition, grads = dense()
    settings = {"slots": 0, "update": True, **options}
    return step_overheads(partition, grads, {"w"}, micro_batches=micro_batches, **settings)


def test_the_body_that_reads_the_data_copies_it_in():
    found = counted(1)
    forward, backward = BodyKey(0, "F"), BodyKey(0, "B")
    assert found.copies[forward] == 1
    assert found.running[forward] == 2 * DATA
    assert found.running[backward] in (0, 2 * DATA)  # x is fed to it anew, or kept


@pytest.mark.parametrize(
    ("micro_batches", "passes"), [(1, 0), (2, 3 + 2), (3, 2 * 3 + 2 * 2), (4, 3 * 3 + 2 * 2)]
)
def test_terms_of_a_gradient_are_added_in_a_tree(micro_batches, passes):
    """Joins read two arrays and write one; the first of two siblings is copied."""
    backward = BodyKey(0, "B")
    more = counted(micro_batches).running[backward] - counted(1).running[backward]
    assert micro_batches * more == passes * WEIGHT


@pytest.mark.parametrize("slots", [0, 1, 2])
def test_an_update_reads_and_writes_the_parameter_and_its_slots(slots):
    found = counted(1, slots=slots)
    assert found.updating == {0: (3 + 2 * slots) * WEIGHT}
    assert found.packing == {0: 2 * WEIGHT if available() else 0}  # for x W^T only
    rates = Rates(passes=8.0, packing=2.0)
    assert found.update_seconds(0, rates) == found.updating[0] / 8 + found.packing[0] / 2
    assert counted(1, update=False).updating == {}
    assert counted(1, slots=slots, norms=True).updating == {0: (4 + 2 * slots) * WEIGHT}


def test_weights_of_products_with_few_rows_are_packed():
    if not available():
        pytest.skip("this CPU has not the vectors that packed products are written for")
    (packed,) = packed_weights(dense()[0], {"w"}, ())
    assert [*packed] == [("w", True, "float32")]  # x needs no gradient
    assert packed_weights(dense(rows=1000)[0], {"w"}, ()) == [{}]
    (both,) = packed_weights(dense(rows=1000)[0], {"w"}, (dense()[0],))
    assert both.keys() == packed.keys()  # a smaller micro-batch is packed for


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_replicas_copy_and_add_gradients(own, shared):
    """Each of two ranks sends half of its gradient, adds the half it gets, and copies all sums.

    Threads of one process add the other's half where it is, and copy the other half's sum; of a
    weight that they share they copy nothing.
    """
    x = sym.FullyConnected(sym.Variable("x"), num_hidden=UNITS, no_bias=True, name="fc")
    feeds = {"x": Feed(TensorType((4, INNER), "float32"))}
    devices = (cpu(0), cpu(1))
    given = Options(
        devices=devices, data_axis=2, update=True, shard_optimizer=own, shared_memory=shared
    )
    made = plan(sym.MakeLoss(x), feeds, given, wrt=None)
    half = WEIGHT / 2
    summing = 2 * half + 3 * half + 2 * half + (2 * half if own else 2 * WEIGHT)
    spreading = 2 * half + 2 * WEIGHT if own else 0
    if shared:
        summing, spreading = 3 * half, 0 if own else 2 * half
    updating = 3 * (half if own else WEIGHT)
    assert [*made.overheads().updating.values()] == [updating + summing + spreading] * 2
    norms = replace(made, options=replace(made.options, clips=True)).overheads().updating.values()
    first, second = norms
    assert first - second == WEIGHT  # of the first copy only
