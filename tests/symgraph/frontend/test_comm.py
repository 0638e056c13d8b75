"""Collectives between groups: values, transposes, ragged and missing parts, any placement."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest

from partitioner import group2ctx
from partitioner.cutting.cut import cut
from runtime.planning.options import Options
from symgraph.core.context import cpu
from symgraph.core.errors import GraphError, MicroBatchError, ShapeError
from symgraph.core.reference import evaluate
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.name import Prefix
from symgraph.frontend.symbol import Symbol
from symgraph.passes.testing import check_grads
from tests.helpers.collectives import groups, network
from tests.helpers.pipelines import Case, assert_close, judge, make_plan, on_threads

comm = sym.comm


def inputs(count: int, stem: str = "x") -> list[Symbol]:
    """Variables, one in each participant's group."""
    found = []
    for group in groups(count):
        with AttrScope(ctx_group=group):
            found.append(sym.Variable(f"{stem}{len(found)}"))
    return found


def lowered(outputs, arrays):
    flat = [s for s in outputs if s is not None]
    types = {n: a.shape for n, a in arrays.items()}
    return lower(sym.Group(flat), types, {n: str(a.dtype) for n, a in arrays.items()})


def arrays_of(shapes, dtype="float64", stem="x") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"{stem}{i}": (rng.standard_normal(s) * 9).astype(dtype) for i, s in enumerate(shapes)}


def check(outputs, arrays, want) -> None:
    """Values as wanted, and gradients that are their slopes."""
    graph = lowered(outputs, arrays)
    for got, expected in zip(evaluate(graph, arrays), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)
    check_grads(graph, arrays)


RAGGED = [(2, 3), (1, 3), (4, 3), (2, 3)]


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_send_and_bcast(p):
    arrays = arrays_of([(3, 2)])
    (x,) = inputs(1)
    copies = comm.bcast(x, groups(p))
    assert [c.attr("ctx_group") for c in copies] == groups(p)
    check(copies, arrays, [arrays["x0"]] * p)
    check([comm.send(x, "rank1")], arrays, [arrays["x0"]])


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_gather_and_allgather_of_ragged_parts(p):
    arrays = arrays_of(RAGGED[:p])
    xs, want = inputs(p), list(arrays.values())
    check(comm.gather(xs, "rank0"), arrays, want)
    check([comm.gather(xs, "rank0", axis=0)], arrays, [np.concatenate(want)])
    lists = comm.allgather(xs)
    check(itertools.chain(*lists), arrays, want * p)
    joined = comm.allgather(xs, axis=0)
    assert [y.attr("ctx_group") for y in joined] == groups(p)
    check(joined, arrays, [np.concatenate(want)] * p)


@pytest.mark.parametrize("sizes", [(2, 1), (3, 0), (1, 4, 2), (0, 3, 0, 2), (5,)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_and_reduce_scatter_of_ragged_parts(sizes, axis):
    p, total = len(sizes), sum(sizes)
    shape = (total, 2) if axis == 0 else (2, total)
    arrays = arrays_of([shape] * p)
    xs = inputs(p)
    places = np.cumsum(sizes)[:-1]
    parts = comm.scatter(xs[0], groups(p), axis=axis, sizes=sizes)
    assert [part is None for part in parts] == [size == 0 for size in sizes]
    want = [a for a in np.split(arrays["x0"], places, axis) if a.size]
    check(parts, {"x0": arrays["x0"]}, want)
    sums = comm.reduce_scatter(xs, axis=axis, sizes=sizes)
    want = [a for a in np.split(sum(arrays.values()), places, axis) if a.size]
    check(sums, arrays, want)


def test_scatter_of_equal_parts_and_of_lists():
    arrays = arrays_of([(6, 2)])
    (x,) = inputs(1)
    check(comm.scatter(x, groups(3)), arrays, np.split(arrays["x0"], 3))
    arrays = arrays_of([(1, 1), (2, 2)])
    xs = inputs(2)
    parts = comm.scatter([*xs, None], groups(3))
    assert parts[2] is None
    check(parts, arrays, arrays.values())


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_alltoall_of_ragged_and_missing_parts(p):
    """Participant i sends i + j rows to j: nothing from 0 to 0."""
    arrays, rows = {}, []
    rng = np.random.default_rng(1)
    for i, group in enumerate(groups(p)):
        with AttrScope(ctx_group=group):
            row = [sym.Variable(f"x{i}{j}") if i + j else None for j in range(p)]
        rows.append(row)
        arrays |= {f"x{i}{j}": rng.standard_normal((i + j, 2)) for j in range(p) if i + j}
    columns = comm.alltoall(rows, groups(p))
    assert columns[0][0] is None
    if p > 1:
        assert {y.attr("ctx_group") for y in columns[1]} == {"rank1"}
        want = [arrays[f"x{i}{j}"] for j in range(p) for i in range(p) if i + j]
        check(itertools.chain(*columns), arrays, want)


@pytest.mark.parametrize("p", [2, 3])
def test_variables_are_exchanged_between_devices(p):
    """They are there before the exchange, though nothing but its copies reads them."""
    devices = dict(zip(groups(p), map(cpu, range(p)), strict=True))
    columns = [inputs(p, f"x{j}") for j in range(p)]
    rows = [list(row) for row in zip(*columns, strict=True)]
    outputs = [*itertools.chain(*comm.alltoall(rows, groups(p)))]
    names = {name: (2, 3) for s in outputs for name in s.list_arguments()}
    with sym.Group(outputs).simple_bind(cpu(0), group2ctx=devices, **names) as executor:
        for number, array in enumerate(executor.arg_dict.values()):
            array[:] = number
        found = [float(y[0, 0]) for y in executor.forward()]
        want = [executor.arg_dict[s.list_arguments()[0]][0, 0] for s in outputs]
    assert found == want


@pytest.mark.parametrize("p", [1, 2, 3, 4])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_allreduce(p, axis):
    arrays = arrays_of([(12, 12)] * p)
    check(comm.allreduce(inputs(p), axis=axis), arrays, [sum(arrays.values())] * p)


def test_allreduce_over_ragged_parts():
    arrays = arrays_of([(5, 2)] * 3)
    sums = comm.allreduce(inputs(3), axis=0, sizes=(2, 0, 3))
    check(sums, arrays, [sum(arrays.values())] * 3)


def test_reduce_scatter_of_lists_may_lack_parts():
    arrays = arrays_of([(2,), (2,), (3,)])
    x0, x1, x2 = inputs(3)
    sums = comm.reduce_scatter([[x0, None], [x1, x2]], groups=groups(2))
    check(sums, arrays, [arrays["x0"] + arrays["x1"], arrays["x2"]])
    assert comm.reduce_scatter([[None]], groups=["a"]) == [None]


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "uint8", "int32", "int64"])
def test_every_dtype_is_moved_exactly(dtype):
    rng = np.random.default_rng(2)
    arrays = {f"x{i}": rng.integers(0, 100, (2, 3)).astype(dtype) for i in range(2)}
    xs = inputs(2)
    moved = [*comm.bcast(xs[0], groups(2)), *comm.allgather(xs, axis=1), *comm.allreduce(xs)]
    got = evaluate(lowered(moved, arrays), arrays)
    x, y = arrays.values()
    joined = np.concatenate([x, y], 1)
    for a, b in zip(got, [x, x, joined, joined, x + y, x + y], strict=True):
        assert a.dtype == dtype
        assert np.array_equal(a, b)


@pytest.mark.every(3)
@pytest.mark.parametrize("p", [2, 3, 4])
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_any_placement_gives_the_numbers_of_one_device(p, micro_batches):
    case = network(p)
    want = judge(case)
    for devices in (range(p), [0] * p, [i // 2 for i in range(p)], range(p)[::-1]):
        place = {g: cpu(d) for g, d in zip(groups(p), devices, strict=True)}
        options = Options(place, cpu(0), (), "1f1b", micro_batches)
        assert_close(on_threads(case, options), want)


def messages(outputs, arrays, p: int) -> int:
    graph = lowered(outputs, arrays)
    place = {g: cpu(i) for i, g in enumerate(groups(p))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the groups of participants that only receive nothing
        partition = cut(graph, group2ctx(graph, place, cpu(0)))
    return sum(map(partition.crosses, partition.edges))


def test_no_collective_sends_more_than_it_says():
    p = 4
    arrays = arrays_of([(4, 4)] * p)
    one = {"x0": arrays["x0"]}
    xs = inputs(p)
    assert messages([comm.send(xs[0], "rank1")], one, p) == 1
    assert messages(comm.bcast(xs[0], groups(p)), one, p) == p - 1
    assert messages(comm.scatter(xs[0], groups(p)), one, p) == p - 1
    assert messages([comm.gather(xs, "rank2", axis=0)], arrays, p) == p - 1
    assert messages(comm.allgather(xs, axis=0), arrays, p) == p * (p - 1)
    assert messages(comm.reduce_scatter(xs), arrays, p) == p * (p - 1)
    assert messages(comm.allreduce(xs), arrays, p) == p * (p - 1)
    assert messages(comm.allreduce(xs, axis=0), arrays, p) == 2 * p * (p - 1)


@pytest.mark.parametrize("p", [2, 3, 4])
def test_a_loss_on_every_participant_counts_p_times_unless_scaled(p):
    """X8: sum(y) on p participants after a bcast gives a gradient of p at the root."""
    with AttrScope(ctx_group="rank0"):
        w = sym.Variable("w") * 1.0
    for scale, want in ((1.0, p), (1 / p, 1)):
        losses = []
        for i, y in enumerate(comm.bcast(w, groups(p))):
            with AttrScope(ctx_group=f"rank{i}"):
                losses.append(sym.MakeLoss(y, grad_scale=scale, name=f"loss{i}"))
        case = Case(sym.Group(losses), {}, {"w": np.ones((2, 3))})
        place = {g: cpu(i) for i, g in enumerate(groups(p))}
        np.testing.assert_allclose(on_threads(case, Options(place)).grads["w"], want)


def test_names_are_given_once_and_prefixed_once():
    xs = inputs(2)
    with Prefix("net_"):
        assert comm.send(xs[0], "rank1").name == "net_send0"
        assert comm.allgather(xs, axis=0, name="all")[1].name == "net_all_1"


def test_a_cut_of_the_batch_axis_is_refused_with_micro_batches():
    """Samples of one participant would be others in each micro-batch."""
    parts = comm.scatter(sym.Variable("data"), groups(2), name="cut")
    case = Case(sym.MakeLoss(sym.Concat(*parts, dim=0)), {"data": np.ones((8, 2))}, {})
    make_plan(case, Options({g: cpu(0) for g in groups(2)}))
    with pytest.raises(MicroBatchError, match="'cut' cuts the batch axis"):
        make_plan(case, Options({g: cpu(0) for g in groups(2)}, micro_batches=2))


def test_wrong_numbers_of_participants_are_named():
    xs = inputs(2)
    with pytest.raises(GraphError, match=r"'all': 2 participants are given for 3 groups"):
        comm.allgather(xs, groups=groups(3), name="all")
    with pytest.raises(GraphError, match=r"'cut': 2 sizes are given for 3 participants"):
        comm.scatter(xs[0], groups(3), sizes=(1, 2), name="cut")
    with pytest.raises(GraphError, match=r"'swap': 3 parts of participant 1 are given for 2"):
        comm.alltoall([xs, [*xs, None]], groups(2), name="swap")
    with pytest.raises(GraphError, match=r"participant 0 \(symbol 'free'\) has no ctx_group"):
        comm.allreduce([sym.Variable("free")])
    with pytest.raises(GraphError, match="no participants"):
        comm.allgather([])
    with pytest.raises(GraphError, match="'sent' has no participants"):
        comm.bcast(xs[0], [], name="sent")
    with pytest.raises(TypeError, match="'sent': groups is a list of groups, not the name 'rank1'"):
        comm.bcast(xs[0], "rank1", name="sent")
    with pytest.raises(GraphError, match="nothing to join: all parts are None"):
        comm.gather([None], "rank0", axis=0)
    with pytest.raises(ShapeError, match=r"_cut 'cut'.*\(5, 2\) and \(3, 0\)"):
        lowered(comm.scatter(xs[0], groups(2), sizes=(1, 2), name="cut"), arrays_of([(5, 2)]))
