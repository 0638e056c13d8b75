"""The session: training steps, the same on every placement and schedule, and right by numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import symgraph.frontend.sym as sym
from runtime.engine.session import Session, initialize
from runtime.planning.options import Options
from runtime.planning.plan import Plan
from runtime.planning.planner import plan
from runtime.transports import ThreadCluster, Transport
from runtime.transports.agreement import agree_on_plan
from symgraph.core.context import cpu
from symgraph.core.errors import MicroBatchError, PlacementError, RunError
from symgraph.core.types import TensorType
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.init import Uniform
from symgraph.frontend.name import NameManager
from symgraph.frontend.optimizer import SGD, Adam, Optimizer
from symgraph.frontend.symbol import Symbol
from symgraph.passes.batching import Feed
from tests.helpers.pipelines import Case, make_plan, on_devices
from tests.helpers.recurrent import lstm_case

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")
SCHEDULES = ["gpipe", "1f1b"]
Weights = dict[str, np.ndarray]


def group(number: int) -> AttrScope:
    return AttrScope(ctx_group=f"g{number}")


def options(devices: int, schedule: str = "gpipe", micro_batches: int = 1, **more: Any) -> Options:
    groups = {f"g{i}": cpu(min(i, devices - 1)) for i in range(3)}
    return on_devices(devices, groups, schedule, micro_batches, **{"update": True, **more})


def trained(
    case: Case,
    how: Options,
    optimizer: Optimizer,
    steps: int = 1,
    clip: float | None = None,
) -> tuple[Weights, list[dict[str, float]]]:
    """The weights after some steps on the same data, and each step's figures."""
    made = make_plan(case, how)
    with ThreadCluster(made.partition.placement.ranks) as cluster:
        own = {
            rank: {n: a.copy() for n, a in case.arrays.items() if made.rank_of(n) == rank}
            for rank in range(cluster.size)
        }
        session = Session(made, cluster, own, optimizer=optimizer, clip=clip)
        figures = [session.step(case.feeds) for _ in range(steps)]
        return session.parameters(), figures


def bits(weights: Weights) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in weights.items()}


def test_a_wish_to_stop_is_no_figure():
    """Trainers read it as figures["stop"], which users saw among the sums over their batches."""
    case = mlp_case()
    made = make_plan(case, options(2))
    with ThreadCluster(2) as cluster:
        arrays = initialize(made, cluster, Uniform(0.1), seed=0)
        session = Session(made, cluster, arrays, optimizer=SGD(0.1))
        for stop in (False, True, False):
            assert list(session.step(case.feeds, stop=stop)) == list(made.scalars)
            assert session.stopped == stop


# -- a small MLP against numpy ---------------------------------------------------------------------


def mlp_case() -> Case:
    rng = np.random.default_rng(0)
    with NameManager():
        with group(0):
            x = sym.tanh(sym.FullyConnected(sym.Variable("data"), num_hidden=6, name="fc1"))
        with group(1):
            x = sym.tanh(sym.FullyConnected(x, num_hidden=5, name="fc2"))
        with group(2):
            x = sym.FullyConnected(x, num_hidden=4, name="fc3")
            label = sym.Variable("label")
            out = sym.SoftmaxOutput(x, label, normalization="batch", name="softmax")
            nll = sym.nll_stats(out, label, name="nll")
    feeds = {
        "data": rng.standard_normal((10, 3)),
        "label": rng.integers(0, 4, 10).astype(np.float64),
    }
    both = sym.Group([out, nll])
    shapes, _, _ = both.infer_shape(**{n: a.shape for n, a in feeds.items()})
    names = zip(both.list_arguments(), shapes, strict=True)
    return Case(both, feeds, {n: rng.standard_normal(s) for n, s in names if n not in feeds})


def by_numpy(
    case: Case, steps: int, lr: float, momentum: float, wd: float, clip: float
) -> tuple[Weights, list[float]]:
    """The same training, written out."""
    w = {n: a.copy() for n, a in case.arrays.items()}
    mom = {n: np.zeros_like(a) for n, a in w.items()}
    x, label = case.feeds["data"], case.feeds["label"].astype(int)
    rows = np.arange(len(x))
    losses = []
    for _ in range(steps):
        h = [x]
        for layer in (1, 2, 3):
            z = h[-1] @ w[f"fc{layer}_weight"].T + w[f"fc{layer}_bias"]
            h.append(np.tanh(z) if layer < 3 else z)
        p = np.exp(h[3] - h[3].max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        losses.append(float(-np.log(p[rows, label]).sum()))
        g = p.copy()
        g[rows, label] -= 1
        g /= len(x)
        grads = {}
        for layer in (3, 2, 1):
            grads[f"fc{layer}_weight"], grads[f"fc{layer}_bias"] = g.T @ h[layer - 1], g.sum(0)
            g = (g @ w[f"fc{layer}_weight"]) * (1 - h[layer - 1] ** 2)
        norm = np.sqrt(sum((a**2).sum() for a in grads.values()))
        for name, grad in grads.items():
            grad = grad * min(1.0, clip / norm) + wd * name.endswith("weight") * w[name]
            mom[name] = momentum * mom[name] - lr * grad
            w[name] += mom[name]
    return w, losses


def test_training_is_what_numpy_does():
    case = mlp_case()
    want, losses = by_numpy(case, 5, lr=0.5, momentum=0.9, wd=0.01, clip=0.3)
    sgd = SGD(0.5, momentum=0.9, wd=0.01)
    for devices in (1, 2, 3):
        for micro_batches in (1, 3):
            how = options(devices, "1f1b", micro_batches)
            got, figures = trained(case, how, sgd, 5, clip=0.3)
            assert got.keys() == want.keys()
            for name, value in want.items():
                np.testing.assert_allclose(got[name], value, rtol=1e-10, atol=1e-12)
            found = [f["nll_nll"] for f in figures]
            np.testing.assert_allclose(found, losses, rtol=1e-10)


@pytest.mark.parametrize("optimizer", [SGD(0.5, momentum=0.9, wd=0.01), Adam(0.01)])
@pytest.mark.parametrize("micro_batches", [1, 3, 10])
def test_training_has_the_same_bits_on_every_placement_and_schedule(micro_batches, optimizer):
    case = mlp_case()
    runs = [
        trained(case, options(devices, schedule, micro_batches), optimizer, 5, clip=0.3)
        for devices in (1, 2, 3)
        for schedule in SCHEDULES
    ]
    for weights, figures in runs[1:]:
        assert bits(weights) == bits(runs[0][0])
        assert figures == runs[0][1]


def test_an_unrolled_lstm_trains_to_the_same_bits():
    case = lstm_case(3, 4, batch=6)
    runs = []
    for devices in (1, 2, 3):
        groups = {f"layer{i}": cpu(min(i, devices - 1)) for i in range(3)}
        how = Options(groups | {"head": cpu(devices - 1)}, cpu(0), (), "1f1b", 3, update=True)
        runs.append(bits(trained(case, how, SGD(0.1), 3, clip=1.0)[0]))
    assert runs[1] == runs[0]
    assert runs[2] == runs[0]


# -- the end of a step -----------------------------------------------------------------------------


def linear_case(*columns: list[float], shared: bool = False) -> Case:
    """A loss c . w on each group: the gradient of its weight is c."""
    losses, arrays, feeds, weights = [], {}, {}, {}
    for number, column in enumerate(columns):
        name = "w_weight" if shared else f"w{number}_weight"
        with group(number):
            if name not in weights:
                weights[name] = sym.Variable(name)
            product = sym.Variable(f"c{number}") * weights[name]
            losses.append(sym.MakeLoss(sym.sum(product, axis=1), name=f"loss{number}"))
        feeds[f"c{number}"] = np.array([column])
        arrays[name] = np.zeros((1, len(column)))
    return Case(sym.Group(losses), feeds, arrays)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_norm_that_clips_is_that_of_all_stages(devices):
    """N5: norms 3 and 4 make 5, which a limit of 5 leaves alone, and one of 2.5 halves."""
    case = linear_case([3.0, 0.0], [0.0, 4.0])
    for clip, factor in ((5.0, 1.0), (2.5, 0.5), (None, 1.0)):
        weights, _ = trained(case, options(devices), SGD(1.0), clip=clip)
        assert weights["w0_weight"].tolist() == [[-3 * factor, 0]]
        assert weights["w1_weight"].tolist() == [[0, -4 * factor]]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_shared_weight_counts_once(devices):
    """Pipelines 22: its gradient is (3, 4), of norm 5, not 3 on one stage and 4 on the other."""
    case = linear_case([3.0, 0.0], [0.0, 4.0], shared=True)
    weights, _ = trained(case, options(devices), SGD(1.0), clip=2.5)
    assert weights["w_weight"].tolist() == [[-1.5, -2]]


@pytest.mark.parametrize("devices", [1, 2])
def test_multipliers_of_variables(devices):
    """lr_mult and wd_mult; biases do not decay unless they say so."""
    names = {
        "plain_weight": {},
        "slow_weight": {"lr_mult": 0.5},
        "free_weight": {"wd_mult": 0.0},
        "the_bias": {},
        "decaying_bias": {"wd_mult": 2.0},
    }
    losses, c = [], sym.Variable("c")
    for number, (name, attrs) in enumerate(names.items()):
        with group(number % 2):
            losses.append(sym.MakeLoss(sym.Variable(name, **attrs) * c))
    arrays = {name: np.ones((1, 1)) for name in names}
    case = Case(sym.Group(losses), {"c": np.ones((1, 1))}, arrays)
    weights, _ = trained(case, options(devices), SGD(1.0, wd=0.25))
    found = {name: float(a[0, 0]) for name, a in weights.items()}
    assert found == {
        "plain_weight": 1 - 1.25,
        "slow_weight": 1 - 0.5 * 1.25,
        "free_weight": 1 - 1.0,
        "the_bias": 1 - 1.0,
        "decaying_bias": 1 - 1.5,
    }


def test_gradients_add_up_over_micro_batches_once():
    """Pipelines 11, with clipping off so that it cannot hide a wrong scale."""
    case = mlp_case()
    whole, _ = trained(case, options(2, "gpipe", 1), SGD(0.5))
    for micro_batches in (2, 3, 5, 10):
        split, _ = trained(case, options(2, "gpipe", micro_batches), SGD(0.5))
        for name, value in whole.items():
            np.testing.assert_allclose(split[name], value, rtol=1e-10, atol=1e-13)


def test_a_norm_that_is_not_finite_stops_every_rank():
    """Pipelines 22: NaN in one stage; no weight is changed."""
    case = linear_case([np.nan, 0.0], [0.0, 4.0])
    made = make_plan(case, options(2))
    own = {r: {n: a for n, a in case.arrays.items() if made.rank_of(n) == r} for r in range(2)}
    with ThreadCluster(2) as cluster:
        session = Session(made, cluster, own, optimizer=SGD(1.0), clip=1.0)
        with pytest.raises(RunError, match=r"at step 1: the batch has numbers .* finite in 'c0'"):
            session.step(case.feeds)
    assert all((a == 0).all() for a in case.arrays.values())


def test_an_update_that_fails_names_the_parameter():
    """Pipelines 18: rank, instruction and node, as for any other failure."""
    case = linear_case([1.0], [2.0])
    made = make_plan(case, options(2))
    own = {r: {n: a for n, a in case.arrays.items() if made.rank_of(n) == r} for r in range(2)}
    case.arrays["w1_weight"].flags.writeable = False
    with ThreadCluster(2) as cluster:
        session = Session(made, cluster, own, optimizer=SGD(1.0))
        with pytest.raises(
            RunError, match=r"rank 1 failed at U1 \(step 0\), node 'w1_weight': .*read-only"
        ):
            session.step(case.feeds)


# -- agreement, states, evaluation -----------------------------------------------------------------


def test_ranks_with_different_plans_say_who_differs():
    """Pipelines 20: by the digest of graphs, placement and programs, before anything runs."""
    case = mlp_case()
    plans = [make_plan(case, options(3, schedule, 2)) for schedule in ("gpipe", "1f1b")]
    with ThreadCluster(3) as cluster:

        def differ(transport: Transport) -> None:
            agree_on_plan(transport, plans[transport.rank // 2])

        with pytest.raises(
            RunError,
            match=r"rank 2 has another graph, placement or schedule than rank 0 \(digest "
            rf"{plans[1].digest[:12]}, not {plans[0].digest[:12]}\): all ranks must be started",
        ):
            cluster.run(differ)


@pytest.mark.parametrize(
    "other",
    [options(2, "1f1b", 2), options(2, "gpipe", 5), options(1, "gpipe", 2), options(3, "gpipe", 2)],
)
def test_digests_tell_plans_apart(other):
    case = mlp_case()
    first = make_plan(case, options(2, "gpipe", 2))
    assert first.digest == make_plan(mlp_case(), options(2, "gpipe", 2)).digest
    assert first.digest != make_plan(case, other).digest


def accumulator() -> tuple[Symbol, Mapping[str, Feed]]:
    """s' = s + x, whose sum over the batch is reported."""
    with group(0):
        s = sym.elemwise_add(sym.Variable("s"), sym.Variable("x"), name="next")
    with group(1):
        total = sym.sum(s, name="total")
    type_ = TensorType((4, 2), "float64")
    return sym.Group([total, s]), {"x": Feed(type_), "s": Feed(type_)}


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("devices", [1, 2])
def test_evaluation_adds_figures_up_and_carries_states(devices, micro_batches):
    symbol, feeds = accumulator()
    how = options(devices, "gpipe", micro_batches, states={"s": "next_output"}, update=False)
    made = plan(symbol, feeds, how)
    x = np.arange(8.0).reshape(4, 2)
    with ThreadCluster(devices) as cluster:
        session = Session(made, cluster, initialize(made, cluster, Uniform(0.1), seed=0))
        for _ in range(3):
            assert session.step({"x": x}) == {}
        assert session.collect()["total_output"] == 28 * (1 + 2 + 3)
        assert session.collect()["total_output"] == 0
        session.reset_states()
        session.step({"x": x})
        assert session.collect()["total_output"] == 28


def test_a_network_that_mixes_samples_has_its_figures():
    """In one micro-batch: what follows a batch normalisation still is a sum over the samples."""
    with group(0):
        normal = sym.BatchNorm(sym.Variable("x"), name="norm")
    with group(1):
        total = sym.MakeLoss(sym.sum(sym.square(normal)), name="total")
    made = plan(
        total,
        {"x": Feed(TensorType((4, 2), "float64"))},
        options(2),
        wrt=["norm_beta"],
        dtypes=dict.fromkeys(total.list_inputs(), "float64"),
    )
    with ThreadCluster(2) as cluster:
        arrays = initialize(made, cluster, Uniform(0.1), seed=0)
        session = Session(made, cluster, arrays, optimizer=SGD(0.1))
        figures = session.step({"x": np.arange(8.0).reshape(4, 2)})
    assert figures["total_output"] == pytest.approx(8, rel=1e-3)


def test_a_state_and_its_next_value_must_be_on_one_device():
    with group(0):
        s = sym.Variable("s")
    with group(1):
        out = sym.tanh(s, name="next")
    feeds = {"s": Feed(TensorType((4, 2), "float64"))}
    with pytest.raises(
        PlacementError,
        match=r"state 's' is on cpu\(0\), but its next value 'next_output' is made on cpu\(1\)",
    ):
        plan(out, feeds, options(2, states={"s": "next_output"}))


def test_more_micro_batches_than_samples_are_refused():
    with pytest.raises(MicroBatchError, match="10 samples cannot be split into 11 micro-batches"):
        make_plan(mlp_case(), options(1, "gpipe", 11))


def initial(made: Plan, ranks: int) -> Weights:
    with ThreadCluster(ranks) as cluster:
        arrays = initialize(made, cluster, Uniform(0.1), seed=3)
    assert all(made.rank_of(n) == rank for rank, own in arrays.items() for n in own)
    return {n: a for own in arrays.values() for n, a in own.items()}


def test_initial_weights_do_not_depend_on_the_placement():
    case = mlp_case()
    found = [initial(make_plan(case, options(d)), d) for d in (1, 2, 3)]
    assert found[0].keys() == case.arrays.keys()
    assert bits(found[0]) == bits(found[1]) == bits(found[2])
