"""The executor: MXNet's forward and backward, with and without devices."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from runtime.backends.device.arrays import device, on_host
from runtime.engine.phases import split_phases
from runtime.frontends.mxnet.executor import Executor, bind, simple_bind
from runtime.schedule.program import Schedule
from runtime.schedule.replay import check
from symgraph.core.context import Context, cpu, gpu
from symgraph.core.errors import GraphError, PlacementError, RunError, ShapeError
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.core.seeding import SEEDING
from symgraph.frontend import nd as mx_nd
from symgraph.frontend import sym
from symgraph.frontend.attribute import AttrScope
from symgraph.frontend.lower import lower
from symgraph.frontend.name import NameManager
from symgraph.frontend.symbol import Symbol
from symgraph.passes.gradients import gradients
from tests.helpers.gpus import everywhere
from tests.helpers.networks import random_case, random_groups

Groups = dict[str, Context] | None
PLACES: dict[str, Groups] = {
    "none": None,
    "one": {"dev1": cpu(0), "dev2": cpu(0), "dev3": cpu(0)},
    "two": {"dev1": cpu(0), "dev2": cpu(1), "dev3": cpu(0)},
    "three": {"dev1": cpu(2), "dev2": cpu(1), "dev3": cpu(0)},
}
ON_GPUS = {"dev1": gpu(0), "dev2": cpu(0), "dev3": gpu(1)}
placed = pytest.mark.parametrize("groups", PLACES.values(), ids=PLACES)


def group(name: str) -> AttrScope:
    return AttrScope(ctx_group=name)


def net() -> Symbol:
    """A classifier over three groups, with a weight that two of them use."""
    with NameManager():
        shared = sym.Variable("shared_weight", attr={"ctx_group": "dev1"})
        with group("dev1"):
            x = sym.FullyConnected(
                sym.Variable("data"), shared, num_hidden=4, no_bias=True, name="fc1"
            )
        with group("dev2"):
            x = sym.FullyConnected(sym.tanh(x), num_hidden=4, name="fc2")
        with group("dev3"):
            x = sym.FullyConnected(x, shared, num_hidden=4, no_bias=True, name="fc3")
            return sym.SoftmaxOutput(x, name="softmax")


def values(symbol: Symbol, seed: int = 0, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found, _, _ = symbol.infer_shape(**shapes)
    arrays = zip(symbol.list_arguments(), found, strict=True)
    return {n: rng.standard_normal(s) for n, s in arrays}


def net_values(seed: int = 0) -> dict[str, np.ndarray]:
    found = values(net(), seed, data=(5, 4))
    found["softmax_label"] = np.array([0.0, 3, 1, 2, 2])
    return found


def reference(symbol: Symbol, arrays: dict[str, np.ndarray], wrt: list[str], heads=()) -> tuple:
    """Outputs, and gradients by name, of the reference interpreter."""
    dtypes = {n: str(a.dtype) for n, a in arrays.items()}
    both = gradients(lower(symbol, {n: a.shape for n, a in arrays.items()}, dtypes), wrt)
    fed = {name: heads[i] for i, name in both.heads.items()}
    outs = evaluate(both.graph, arrays | fed, Env(train=True))
    count = len(symbol.list_outputs())
    return outs[:count], dict(zip(wrt, outs[count:], strict=True))


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


# -- forward and backward ------------------------------------------------------------------------


@everywhere(ON_GPUS, **PLACES)
def test_two_devices_by_hand(groups):
    """G1 (mxnet test_model_parallel.test_chain): 12 everywhere, gradients 3, 3 and 1."""
    with group("dev1"):
        total = (sym.Variable("data1") + sym.Variable("data2")) * 3
    with group("dev2"):
        net = total + sym.Variable("data3")
    shapes = dict.fromkeys(("data1", "data2", "data3"), (4, 5))
    chosen = groups and {"dev1": groups["dev1"], "dev2": groups["dev2"]}
    with simple_bind(net, cpu(), group2ctx=chosen, **shapes) as executor:
        for value, name in enumerate(shapes, 1):
            executor.arg_dict[name][:] = value
        (out,) = executor.forward(is_train=True)
        assert (out == 12).all()
        executor.backward(np.ones((4, 5)))
        found = {n: set(on_host(g).flat) for n, g in executor.grad_dict.items()}
        assert found == {"data1": {3.0}, "data2": {3.0}, "data3": {1.0}}
        edges = [e for e in executor.plan.partition.edges if executor.plan.partition.crosses(e)]
        pairs = [(str(e.src), str(e.dst)) for e in edges]
    assert pairs == ([("0F", "1F"), ("1B", "0B")] if len({*(chosen or {}).values()}) == 2 else [])


@everywhere(ON_GPUS, **PLACES)
def test_gradients_live_where_their_arguments_do(groups):
    """G2 (mxnet test_module_ctx_group): 2a + b, gradients 2 and 1."""
    with group("dev1"):
        a = sym.Variable("a")
        double = a * 2
    with group("dev2"):
        net = double + sym.Variable("b")
    chosen = groups and {"dev1": groups["dev1"], "dev2": groups["dev2"]}
    with simple_bind(net, cpu(0), group2ctx=chosen, a=(2, 5), b=(2, 5)) as executor:
        executor.arg_dict["a"][:] = executor.arg_dict["b"][:] = 1
        assert (executor.forward(is_train=True)[0] == 3).all()
        executor.backward([np.ones((2, 5))])
        assert (executor.grad_dict["a"] == 2).all()
        assert (executor.grad_dict["b"] == 1).all()
        partition = executor.plan.partition
        where = {
            name: partition.placement.devices[partition.rank(key)]
            for name, value in executor.plan.grads.items()
            for key, body in partition.bodies.items()
            if value in body.results
        }
        home = chosen or {"dev1": cpu(0), "dev2": cpu(0)}
        assert where == {"a": home["dev1"], "b": home["dev2"]}
        for name, context in where.items():
            assert device(context).holds(executor.arg_dict[name])
            assert device(context).holds(executor.grad_dict[name])


@everywhere(ON_GPUS, **PLACES)
def test_any_placement_gives_the_same_bits(groups):
    """G8: with devices, on one of them, and with annotations that nobody maps.

    GPUs' kernels round differently.
    """
    arrays = net_values()
    wrt = ["data", "shared_weight", "fc2_weight", "fc2_bias"]
    (out,), grads = reference(net(), arrays, wrt)
    wanted = {**grads, "": out}
    requests = {n: "write" for n in wrt}
    types = dict.fromkeys(arrays, "float64")
    made = []
    for where in (groups, None):
        with simple_bind(net(), cpu(0), requests, types, group2ctx=where, data=(5, 4)) as executor:
            executor.copy_params_from(arrays)
            (out,) = executor.forward(is_train=True)
            executor.backward()
            made.append({n: on_host(a) for n, a in {**executor.grad_dict, "": out}.items()})
    assert made[0].keys() == {*wrt, ""}
    for name, want in wanted.items():
        assert same(made[0][name], made[1][name]) or groups is ON_GPUS
        np.testing.assert_allclose(made[0][name], want, 1e-12, 1e-12)


@pytest.mark.filterwarnings("ignore:group2ctx maps groups")
@pytest.mark.parametrize("seed", range(10))
def test_random_nets_on_three_devices(seed):
    case = random_case(seed)
    arrays = case.feeds | case.arrays
    wrt = list(case.arrays)
    outs, grads = reference(case.symbol, arrays, wrt, heads=[None] * 9)
    for other in range(3):
        groups = random_groups(100 * seed + other, 3)
        targets = {n: np.empty_like(arrays[n]) for n in wrt}
        with bind(case.symbol, cpu(0), arrays, targets, group2ctx=groups) as executor:
            for got, want in zip(executor.forward(is_train=True), outs, strict=True):
                np.testing.assert_allclose(got, want, 1e-12, 1e-12)
            executor.backward()
            for name in wrt:
                np.testing.assert_allclose(targets[name], grads[name], 1e-11, 1e-11)


def test_outputs_are_written_in_place_and_arguments_are_shared():
    """As in MXNet, scripts take the arrays of outputs before the first forward."""
    x = np.array([1.0, 2.0])
    with bind(sym.identity(sym.Variable("x"), name="y"), cpu(), {"x": x}) as executor:
        (first,) = executor.outputs
        assert (first.shape, first.dtype) == ((2,), np.float64)
        executor.forward()
        x[:] = 5  # the caller's own array is the argument
        assert (executor.outputs[0] == [1, 2]).all()
        assert (executor.forward()[0] == 5).all()
        executor.arg_dict["x"][:] = 7
        assert (executor.forward()[0] == 7).all()
        assert (x == 7).all()
        assert (first.asnumpy() == 7).all()
        assert executor.output_dict["y_output"] is first is executor.outputs[0]


def test_keywords_of_forward_are_copied_into_arguments():
    with simple_bind(sym.square(sym.Variable("x")), x=(2,)) as executor:
        given = np.array([1.0, 3.0])
        assert (executor.forward(x=given)[0] == [1, 9]).all()
        given[:] = 0
        assert (executor.arg_dict["x"] == [1, 3]).all()
        with pytest.raises(GraphError, match="forward: no argument 'z'; known: 'x'"):
            executor.forward(z=given)
        with pytest.raises(GraphError, match=r"forward: 'x' has shape \(3,\), not \(2,\)"):
            executor.forward(x=np.ones(3))


@everywhere(ON_GPUS, **PLACES)
def test_evaluation_and_training_take_turns(groups):
    """Pipelines 16: eval, train, eval, on one executor."""
    with simple_bind(net(), cpu(0), group2ctx=groups, data=(5, 4)) as executor:
        executor.copy_params_from(net_values())
        before = on_host(executor.forward()[0]).copy()
        after = on_host(executor.forward(is_train=True)[0]).copy()
        executor.backward()
        again = on_host(executor.forward(is_train=False)[0]).copy()
        assert same(before, after)
        assert same(before, again)


@placed
def test_forward_may_train_twice_before_backward(groups):
    arrays = net_values()
    targets = {"fc2_weight": np.zeros((4, 4))}
    with bind(net(), cpu(0), arrays, targets, group2ctx=groups) as executor:
        executor.forward(is_train=True)
        arrays["data"][:] *= 2
        executor.forward(is_train=True)
        executor.backward()
    _, grads = reference(net(), arrays, ["fc2_weight"])
    np.testing.assert_allclose(targets["fc2_weight"], grads["fc2_weight"], 1e-12, 1e-12)


@pytest.mark.parametrize("heads", [[[2.0, 3.0]], {"y_output": [2.0, 3.0]}, np.array([2.0, 3.0])])
def test_gradients_of_a_forward_that_did_not_train(heads):
    """MXNet's scripts call `forward()` and `backward(heads)`: dropout is then no dropout."""
    half = sym.Dropout(sym.square(sym.Variable("x")), p=0.5)
    with simple_bind(sym.identity(half, name="y"), x=(2,)) as executor:
        executor.forward(x=np.array([1.0, 5.0]))
        executor.backward(heads, is_train=False)
        assert executor.grad_dict["x"].asnumpy().tolist() == [4, 30]
        assert executor.outputs[0].asnumpy().tolist() == [1, 25]
        with pytest.raises(RunError, match="backward needs a forward before it, which it uses up"):
            executor.backward(heads)


def test_normalization_that_does_not_train_has_the_gradient_of_what_it_computes():
    x = np.random.default_rng(0).standard_normal((5, 3))
    net = sym.BatchNorm(sym.Variable("x"), fix_gamma=False, eps=1e-5, name="n")
    with simple_bind(net, type_dict={"x": "float64"}, x=(5, 3)) as executor:
        executor.copy_params_from({"n_gamma": [2.0, 3, 4]}, {"n_moving_var": [1.0, 4, 9]})
        executor.forward(x=x)
        executor.backward(np.ones((5, 3)))
        slope = np.array([2 / 1, 3 / 2, 4 / 3])
        np.testing.assert_allclose(executor.grad_dict["x"], np.tile(slope, (5, 1)), rtol=1e-4)
        assert executor.aux_dict["n_moving_mean"].asnumpy().tolist() == [0, 0, 0]


def test_head_gradients_by_name_are_checked():
    with simple_bind(sym.identity(sym.Variable("x"), name="y"), x=(2,)) as executor:
        executor.forward()
        with pytest.raises(GraphError, match="backward: no output 'y'; known: 'y_output'"):
            executor.backward({"y": np.ones(2)})


def test_the_seed_of_dropout():
    """An executor's own, and that of mx.random.seed for one that has none."""
    net = sym.Dropout(sym.Variable("x"), p=0.5)
    with simple_bind(net, x=(64,)) as one, simple_bind(net, x=(64,)) as two:

        def drawn(executor):
            return [executor.forward(is_train=True, x=np.ones(64))[0].tobytes() for _ in range(2)]

        SEEDING.set(3)
        first, second = drawn(one)
        assert first != second
        assert drawn(two) == [first, second]
        SEEDING.set(4)
        other = drawn(one)
        assert other != [first, second]
        two.seed = 3
        assert (two.seed, drawn(two)) == (3, [first, second])
        SEEDING.set(3)
        assert drawn(one) == [first, second]
        assert drawn(two) != [first, second]  # it goes on
        SEEDING.set(0)


def test_arguments_without_gradients_give_none():
    with simple_bind(sym.MakeLoss(sym.Variable("x")), grad_req="null", x=(2,)) as executor:
        assert executor.grad_dict["x"] is None
        with pytest.raises(KeyError):
            executor.grad_dict["y"]


def test_backward_is_done_once():
    with simple_bind(sym.MakeLoss(sym.Variable("x")), x=(2,)) as executor:
        with pytest.raises(RunError, match="backward needs"):
            executor.backward()
        executor.forward(is_train=True)
        executor.backward()
        with pytest.raises(RunError, match="backward needs"):
            executor.backward()


def test_a_failed_forward_leaves_nothing_for_backward():
    """Pipelines 18: and the executor works on."""
    ids = np.array([0.0, 1])
    arrays = {"ids": ids, "embed_weight": np.ones((3, 2))}
    net = sym.MakeLoss(sym.Embedding(sym.Variable("ids"), input_dim=3, output_dim=2, name="embed"))
    grads = {"embed_weight": np.zeros((3, 2))}
    with bind(net, cpu(), arrays, grads) as executor:
        executor.forward(is_train=True)
        ids[1] = 7
        with pytest.raises(RunError, match=r"rank 0 failed at 0F0 \(step 1\), node 'embed': "):
            executor.forward(is_train=True)
        with pytest.raises(RunError, match="backward needs a forward"):
            executor.backward()
        ids[1] = 2
        executor.forward(is_train=True)
        executor.backward()
    assert grads["embed_weight"].tolist() == [[1, 1], [0, 0], [1, 1]]


# -- what becomes of gradients -------------------------------------------------------------------


def product() -> Symbol:
    return sym.MakeLoss(sym.Variable("w") * sym.square(sym.Variable("x")) + sym.Variable("b"))


def test_grad_req_null_write_and_add():
    for request in ("null", "write", "add"):
        with simple_bind(product(), grad_req=request, x=(2,)) as executor:
            executor.arg_dict["x"][:], executor.arg_dict["w"][:] = 3, 2
            for _ in range(2):
                executor.forward(is_train=True)
                executor.backward()
            if request == "null":
                assert executor.grad_dict == {}
                continue
            times = 2 if request == "add" else 1
            assert (executor.grad_dict["x"] == times * 12).all()
            assert (executor.grad_dict["w"] == times * 9).all()
            assert (executor.grad_dict["b"] == times * 1).all()


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        (["write", "add", "null"], {"w": 9, "x": 24}),
        ({"x": "add", "b": "write"}, {"x": 24, "b": 1}),
    ],
)
def test_grad_req_by_argument(request_, found):
    """As a list in the order of list_arguments, or as a dict that leaves out what is null."""
    assert product().list_arguments() == ["w", "x", "b"]
    with simple_bind(product(), grad_req=request_, x=(2,)) as executor:
        executor.arg_dict["x"][:], executor.arg_dict["w"][:] = 3, 2
        for _ in range(2):
            executor.forward(is_train=True)
            executor.backward()
        assert {n: g[0] for n, g in executor.grad_dict.items()} == found


@placed
def test_add_into_the_callers_arrays(groups):
    arrays = net_values()
    targets = {n: np.ones_like(arrays[n]) for n in ("shared_weight", "data")}
    with bind(net(), cpu(0), arrays, targets, "add", group2ctx=groups) as executor:
        for _ in range(3):
            executor.forward(is_train=True)
            executor.backward()
    _, grads = reference(net(), arrays, list(targets))
    for name, target in targets.items():
        np.testing.assert_allclose(target, 1 + 3 * grads[name], rtol=1e-12)


def test_an_argument_that_no_output_needs_has_a_zero_gradient():
    net = sym.Group([sym.MakeLoss(sym.Variable("x")), sym.BlockGrad(sym.Variable("y"))])
    with simple_bind(net, x=(2,), y=(3,)) as executor:
        executor.grad_dict["y"][:] = 5
        executor.forward(is_train=True)
        executor.backward()
        assert (executor.grad_dict["y"] == 0).all()


def test_integer_inputs_have_no_gradient():
    net = sym.Embedding(sym.Variable("ids"), input_dim=5, output_dim=2, name="embed")
    with simple_bind(net, type_dict={"ids": "int32"}, ids=(3,)) as executor:
        assert executor.arg_dict["ids"].dtype == np.int32
        assert executor.grad_req == {"ids": "null", "embed_weight": "write"}
        executor.forward(is_train=True, ids=[1, 4, 1])
        executor.backward(np.ones((3, 2)))
        assert executor.grad_dict["embed_weight"][:, 0].tolist() == [0, 2, 0, 0, 1]


# -- head gradients ------------------------------------------------------------------------------


def test_an_output_that_is_no_loss_needs_a_head_gradient():
    with simple_bind(sym.square(sym.Variable("x"), name="y"), x=(2,)) as executor:
        executor.forward(is_train=True)
        with pytest.raises(
            RunError,
            match="'y_output' is not a loss, so backward needs its head gradient in out_grads",
        ):
            executor.backward()
        with pytest.raises(GraphError, match=r"head gradient of 'y_output' has shape \(3,\), not"):
            executor.backward(np.ones(3))
        with pytest.raises(GraphError, match="backward: 2 head gradients for 1 outputs"):
            executor.backward([np.ones(2), np.ones(2)])
        executor.backward([np.ones(2)])  # the forward run is still there


@everywhere(ON_GPUS, **PLACES)
def test_head_gradients_of_several_outputs(groups):
    """In the order of the outputs; losses ignore theirs, and outputs behind BlockGrad need none."""
    with group("dev1"):
        x = sym.Variable("x")
        y = sym.square(x, name="y")
    with group("dev2"):
        loss = sym.MakeLoss(sym.exp(x), name="loss")
    with group("dev3"):
        z = sym.sin(x, name="z")
    both = sym.Group([y, loss, z, sym.BlockGrad(y, name="state")])
    types = {"x": "float64"}
    with simple_bind(both, cpu(0), type_dict=types, group2ctx=groups, x=(2,)) as executor:
        executor.forward(is_train=True, x=[0.5, 2.0])
        heads = [np.array([1.0, 10.0]), None, np.array([3.0, 4.0])]
        executor.backward(heads)
        v = on_host(executor.arg_dict["x"])
        want = 2 * v * heads[0] + np.exp(v) + np.cos(v) * heads[2]
        np.testing.assert_allclose(on_host(executor.grad_dict["x"]), want, rtol=1e-14)
        executor.forward(is_train=True)
        with pytest.raises(RunError, match="output 'z_output' is not a loss"):
            executor.backward([heads[0]])


def test_a_variable_as_output():
    x = sym.Variable("x")
    with simple_bind(sym.Group([x, sym.square(x)]), x=(2,)) as executor:
        executor.forward(is_train=True, x=[1, 3])
        executor.backward([np.array([10, 20]), np.ones(2)])
        assert executor.grad_dict["x"].tolist() == [12, 26]


# -- auxiliary states ----------------------------------------------------------------------------


@everywhere(ON_GPUS, **PLACES)
def test_batch_norm_states_change_once_in_training_and_not_in_evaluation(groups):
    with group("dev1"):
        x = sym.tanh(sym.Variable("data"))
    with group("dev2"):
        x = sym.BatchNorm(x, momentum=0.5, name="norm")
    with group("dev3"):
        x = sym.MakeLoss(sym.square(x))
    data = np.random.default_rng(0).standard_normal((6, 2))
    types = {"data": "float64"}
    with simple_bind(x, cpu(0), "write", types, group2ctx=groups, data=(6, 2)) as executor:
        assert list(executor.aux_dict) == ["norm_moving_mean", "norm_moving_var"]
        executor.copy_params_from({"data": data}, {"norm_moving_var": np.ones(2)})
        executor.forward()
        assert executor.aux_dict["norm_moving_mean"].tolist() == [0, 0]
        executor.forward(is_train=True)
        executor.backward()
        mean, var = np.tanh(data).mean(0), np.tanh(data).var(0)
        found = {name: on_host(array) for name, array in executor.aux_dict.items()}
        np.testing.assert_allclose(found["norm_moving_mean"], mean / 2)
        np.testing.assert_allclose(found["norm_moving_var"], (1 + var) / 2)
        assert executor.grad_dict.keys() == {"data", "norm_gamma", "norm_beta"}


def test_copying_parameters():
    net = sym.FullyConnected(sym.Variable("x"), num_hidden=2, name="fc")
    with simple_bind(net, x=(1, 2)) as executor:
        executor.copy_params_from({"fc_bias": [1, 2], "other": 3}, allow_extra_params=True)
        assert executor.arg_dict["fc_bias"].tolist() == [1, 2]
        with pytest.raises(GraphError, match=r"no parameter 'fc_bais'; did you mean 'fc_bias'\?"):
            executor.copy_params_from({"fc_bais": [1, 2]})


def test_parameters_of_another_shape_are_not_copied():
    """A row was broadcast over the whole weight; MXNet refuses it."""
    net = sym.FullyConnected(sym.Variable("x"), num_hidden=2, name="fc")
    with simple_bind(net, x=(1, 3)) as executor:
        with pytest.raises(GraphError, match=r"'fc_weight' has shape \(1, 3\), not \(2, 3\)"):
            executor.copy_params_from({"fc_weight": np.ones((1, 3))})
        assert not executor.arg_dict["fc_weight"].any()


def test_arrays_are_in_the_order_of_names():
    net = sym.BatchNorm(sym.Variable("x"), name="norm")
    with simple_bind(net, grad_req={"norm_beta": "write"}, x=(4, 3)) as executor:
        pairs = (executor.arg_arrays, "arg_dict"), (executor.aux_arrays, "aux_dict")
        for arrays, table in pairs:
            assert [id(a) for a in arrays] == [id(a) for a in getattr(executor, table).values()]
        assert executor.grad_arrays[:2] == [None, None]
        assert executor.grad_arrays[2] is executor.grad_dict["norm_beta"]
        assert executor.output_dict["norm_output"] is executor.outputs[0]


@placed
def test_reshape_keeps_the_arrays_whose_shapes_stay(groups):
    rng = np.random.default_rng(0)
    with simple_bind(net(), cpu(), "add", group2ctx=groups, data=(2, 4)) as executor:
        for name in ("shared_weight", "fc2_weight"):
            executor.arg_dict[name][:] = rng.standard_normal((4, 4))
        with pytest.raises(
            GraphError, match=r"'softmax_label' changes from \(2,\) to \(5,\): give"
        ):
            executor.reshape(data=(5, 4))
        with executor.reshape(True, data=(5, 4)) as other:
            assert other.arg_dict["softmax_label"].shape == (5,)
            assert other.arg_dict["fc2_weight"] is executor.arg_dict["fc2_weight"]
            assert other.grad_dict["fc2_bias"] is executor.grad_dict["fc2_bias"]
            data = rng.standard_normal((5, 4)).astype("float32")
            (got,) = other.forward(is_train=True, data=data)
            other.backward()
            one, total = got, other.grad_dict["fc2_bias"].copy()
        executor.forward(is_train=True, data=data[:2])
        np.testing.assert_allclose(executor.outputs[0], one[:2], rtol=1e-5)
        executor.backward()
        assert np.abs(executor.grad_dict["fc2_bias"] - total).max() > 1e-3  # both are added up


# -- binding -------------------------------------------------------------------------------------


def test_simple_bind_refuses_unknown_names():
    """S4: MXNet ignores them."""
    fc = sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc")
    with pytest.raises(GraphError, match=r"simple_bind: no argument 'dta'; did you mean 'data'\?"):
        simple_bind(fc, dta=(2, 3))
    with pytest.raises(GraphError, match=r"name 'dta' not found; did you mean 'data'\?"):
        simple_bind(fc, type_dict={"dta": "float64"}, data=(2, 3))


def test_simple_bind_wants_shapes():
    """S4: shape=(10) is the number 10."""
    fc = sym.FullyConnected(sym.Variable("data"), num_hidden=2, name="fc")
    with pytest.raises(TypeError, match=r"need to be shapes \(tuple\), but 'data' is .*int"):
        simple_bind(fc, data=(10))
    with pytest.raises(ShapeError, match="cannot infer the shapes of data, fc_weight"):
        simple_bind(fc)


def test_simple_bind_refuses_unknown_requests_and_groups():
    with group("dev1"):
        y = sym.tanh(sym.Variable("x"), name="y")
    with pytest.raises(GraphError, match=r"grad_req of 'x': 'wrte'; did you mean 'write'\?"):
        simple_bind(y, grad_req="wrte", x=(2,))
    with pytest.raises(GraphError, match="grad_req: no argument 'z'; known: 'x'"):
        simple_bind(y, grad_req={"z": "add"}, x=(2,))
    with pytest.raises(GraphError, match="grad_req has 2 entries for 1 arguments"):
        simple_bind(y, grad_req=["add", "add"], x=(2,))
    with pytest.raises(PlacementError, match="node 'x' is in group 'dev1', which group2ctx does"):
        simple_bind(y, group2ctx={"dev2": cpu(1)}, x=(2,))


def test_bind_takes_lists_in_the_order_of_arguments():
    w, x, b = (np.full(2, v) for v in (2.0, 3.0, 1.0))
    dw, dx = np.zeros(2), np.zeros(2)
    with bind(product(), cpu(), [w, x, b], [dw, dx, None]) as executor:
        assert (executor.forward(is_train=True)[0] == 19).all()
        executor.backward()
    assert (dw.tolist(), dx.tolist()) == ([9, 9], [12, 12])
    assert executor.grad_dict.keys() == {"w", "x"}


@pytest.mark.parametrize(
    ("change", "error", "why"),
    [
        ({"args": [np.ones(2)]}, GraphError, "bind: 1 arrays in `args` for 3 names"),
        ({"args": {"w": np.ones(2)}}, GraphError, "bind: key 'x' is missing in `args`"),
        (
            {"args": {"ww": np.ones(2)}},
            GraphError,
            "'w' is missing in `args`, which has 'ww' besid",
        ),
        (
            {"args": [1.0, 2.0, 3.0]},
            TypeError,
            "bind: 'w' in `args` is not a numpy array of a known",
        ),
        ({"args_grad": {"v": np.ones(2)}}, GraphError, "bind: `args_grad` has 'v'; known: 'b', "),
        ({"args_grad": {"w": np.ones(3)}}, GraphError, r"array of 'w' is float64\(3,\), not float"),
        ({"args_grad": {"w": np.ones(2, "f4")}}, GraphError, "array of 'w' is float32"),
        ({"aux_states": [np.ones(2)]}, GraphError, "bind: 1 arrays in `aux_states` for 0 names"),
        ({"grad_req": "ad"}, GraphError, "grad_req of 'w': 'ad'; did you mean 'add'"),
    ],
)
def test_bind_says_what_is_wrong(change, error, why):
    given = {"args": {n: np.ones(2) for n in "wxb"}} | change
    with pytest.raises(error, match=why):
        bind(product(), cpu(), **given)


def test_networks_may_share_a_table_of_arrays():
    """MXNet's autoencoder binds each layer to the arrays of all."""
    table = {n: mx_nd.ones(2) for n in ("w", "x", "b", "w2")}
    grads = {"w": mx_nd.zeros(2), "w2": mx_nd.zeros(2), "x": None}
    with bind(product(), cpu(), table, grads, aux_states={"mean": mx_nd.zeros(2)}) as executor:
        executor.forward()
        executor.backward()
        assert executor.arg_dict["w"] is table["w"]
        assert executor.grad_dict.keys() == {"w"}
        assert grads["w"].asnumpy().tolist() == [1, 1]


def test_bind_wants_auxiliary_states():
    net = sym.BatchNorm(sym.Variable("x"), name="norm")
    args = {"x": np.ones((3, 2)), "norm_gamma": np.ones(2), "norm_beta": np.zeros(2)}
    with pytest.raises(GraphError, match="key 'norm_moving_mean' is missing in `aux_states`"):
        bind(net, cpu(), args)
    states = [np.zeros(2), np.ones(2)]
    with bind(net, cpu(), args, aux_states=states) as executor:
        executor.forward(is_train=True)
    np.testing.assert_allclose(states[0], 0.1)  # the caller's own array


def test_shapes_that_do_not_fit_are_refused():
    args = {"w": np.ones(2), "x": np.ones(3), "b": np.ones(2)}
    with pytest.raises(ShapeError, match=r"\(2,\) and \(3,\)|\(3,\) and \(2,\)"):
        bind(product(), cpu(), args)


def test_bind_takes_mxnets_arguments_by_position():
    args, grads = {"x": np.ones(2), "y": np.ones(2)}, {"x": np.ones(2)}
    with (sym.Variable("x") * sym.Variable("y")).bind(
        cpu(), args, grads, "add", [], {}
    ) as executor:
        executor.forward(is_train=True)
        executor.backward(np.ones(2))
        assert grads["x"].tolist() == [2, 2]


def test_what_cannot_be_bound():
    x = sym.exp(sym.Variable("x"), name="y")
    ones, kept = np.ones(2), np.ones(2)
    kept.flags.writeable = False
    for make in (lambda ctx: x.bind(ctx, {"x": ones}), lambda ctx: x.simple_bind(ctx, x=(2,))):
        for ctx in ("cpu", [cpu()]):
            with pytest.raises(TypeError, match="bind: ctx is a device like"):
                make(ctx)
    with pytest.raises(GraphError, match="the gradient array of 'x' is read-only"):
        x.bind(cpu(), {"x": ones}, {"x": kept})
    with pytest.raises(GraphError, match=r"'x' in `args` has no elements: \(0, 2\)"):
        x.bind(cpu(), {"x": np.ones((0, 2))})
    with pytest.raises(GraphError, match="grad_req is None; known: 'add', 'null', 'write'"):
        x.simple_bind(cpu(), None, x=(2,))
    with x.bind(cpu(), {"x": ones}) as executor:
        for value in (["a", "b"], [1j, 0]):
            with pytest.raises(GraphError, match="forward: 'x' holds no numbers, but"):
                executor.forward(x=value)
        with pytest.raises(GraphError, match=r"forward: 'x' is not an array: .*inhomogeneous"):
            executor.forward(x=[[1, 2], [3]])


def test_two_outputs_of_one_name():
    """One of them was lost."""
    x = sym.Variable("x")
    both = sym.Group([sym.exp(x, name="y"), sym.tanh(x, name="y")])
    with both.simple_bind(x=(2,)) as executor:
        executor.forward()
        with pytest.raises(GraphError, match="two outputs are named 'y_output': take them from"):
            executor.output_dict  # noqa: B018


def test_methods_of_symbols_bind():
    x = sym.Variable("x")
    with sym.square(x).simple_bind(cpu(), "null", x=(2,)) as executor:
        assert isinstance(executor, Executor)
        assert executor.grad_dict == {}
    with sym.square(x).bind(cpu(), {"x": np.array([3.0])}) as executor:
        assert executor.forward()[0].tolist() == [9.0]


# -- inside --------------------------------------------------------------------------------------


def test_debug_str_shows_placement_and_messages():
    with simple_bind(net(), cpu(0), group2ctx=PLACES["two"], data=(5, 4)) as executor:
        text = executor.debug_str()
    assert text.startswith("stage  rank  device")
    assert "body 1F on cpu(1):" in text
    assert "  send 3: fc3_grad0 2B->1B float32[5,4]" in text
    assert "fc2 = FullyConnected(" in text


@pytest.mark.filterwarnings("ignore:group2ctx maps groups")
@pytest.mark.parametrize("seed", range(10))
def test_the_halves_of_a_schedule_are_the_schedule(seed):
    """Frees at the end of each half, all else in order: as one schedule, they pass the proof."""
    case = random_case(seed)
    arrays = case.feeds | case.arrays
    groups = random_groups(seed, 3)
    executor = bind(
        case.symbol, cpu(0), arrays, {n: a.copy() for n, a in case.arrays.items()}, group2ctx=groups
    )
    executor.close()
    plan = executor.plan
    halves = split_phases(plan)
    joined = Schedule.of(chain(*parts) for parts in zip(*(h.programs for h in halves), strict=True))
    check(joined, plan.partition, 1)


def test_a_closed_executor_cannot_run():
    executor = simple_bind(sym.square(sym.Variable("x")), x=(2,))
    executor.close()
    with pytest.raises(RunError, match="closed"):
        executor.forward()


def test_arrays_say_which_device_they_are_on():
    with AttrScope(ctx_group="a"):
        net = sym.FullyConnected(sym.Variable("x"), num_hidden=2, name="fc")
    groups = {"a": cpu(1)}
    with simple_bind(sym.square(net), cpu(2), group2ctx=groups, x=(1, 2)) as executor:
        assert executor.arg_dict["fc_weight"].context == cpu(1)
        assert executor.grad_dict["fc_bias"].context == cpu(1)
