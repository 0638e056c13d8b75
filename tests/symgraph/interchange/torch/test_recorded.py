"""Recorded networks of PyTorch 2.13: the loss and every gradient, however they are placed."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from runtime.planning.options import Options
from symgraph.core.context import cpu
from tests.helpers.pipelines import Result, judge, on_threads
from tests.helpers.torch_files import DATA, RECORDED, recorded


def placed(devices: int, micro_batches: int = 1) -> Options:
    ranks = tuple(map(cpu, range(devices)))
    strategy = "uniform" if devices > 1 else None
    return Options(devices=ranks, strategy=strategy, micro_batches=micro_batches)


def check(result: Result, want: dict[str, np.ndarray]) -> None:
    outputs, grads = result
    got = {"output0": outputs[0]} | {f"grad {name}": grad for name, grad in grads.items()}
    assert got.keys() >= want.keys()
    for name, array in got.items():  # constants of the network have no gradient
        np.testing.assert_allclose(array, want.get(name, 0), rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", sorted(path.stem for path in DATA.glob("*.pt2")))
def test_the_reference_interpreter_agrees_with_pytorch(name):
    case, want = recorded(name)
    check(judge(case), want)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("name", RECORDED)
def test_loss_and_gradients(name, devices):
    case, want = recorded(name)
    check(on_threads(case, placed(devices)), want)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RECORDED if name != "resnet_block"])
def test_a_dynamic_batch_is_cut_into_micro_batches(name):
    """The loss's divisor is the number of labels of the whole batch that count."""
    case, want = recorded(name)
    check(on_threads(case, placed(2, micro_batches=3)), want)


def test_shapes_state_dynamic_dimensions():
    network, _, _ = sg.from_torch(DATA / "lstm_lm.pt2", shapes={"words": (7, 4)})
    assert network.attr_dict()["words"]["__shape__"] == "(7, 4)"
    network, _, _ = sg.from_torch(DATA / "lstm_lm.pt2")
    assert network.attr_dict()["words"]["__shape__"] == "(7, 0)"
    for shapes, message in (
        ({"word": (7, 4)}, "shapes: no input 'word'; did you mean 'words'"),
        ({"words": (7,)}, "shapes: 'words' has 2 axes"),
        ({"words": (8, 4)}, "shapes: axis 0 of 'words' is 7, not 8"),
    ):
        with pytest.raises(sg.errors.ConfigError, match=message):
            sg.from_torch(DATA / "lstm_lm.pt2", shapes=shapes)


@pytest.mark.parametrize("form", ["", "_decomposed"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("counting", "buffer 'steps' changes in the forward pass, which only those of batch norm"),
        ("reading", r"buffer 'norm.running_mean' changes .* norm may, if nothing else reads them"),
        ("indices", r"aten.max_pool2d_with_indices.default 'max_pool2d\w*': its output 1"),
    ],
)
def test_what_is_refused_is_named(name, message, form):
    """A buffer that was read by the name of its change became a constant, with its first value.

    The indices of max pooling were "read before it is made".
    """
    with pytest.raises(sg.errors.ConfigError, match=message):
        sg.from_torch(DATA / "refused" / f"{name}{form}.pt2")


def test_products_of_samples_with_samples_fit_batches_of_any_size():
    """A product had the example's number of columns, or was refused."""
    network, _, _ = sg.from_torch(DATA / "contrast.pt2")
    (scores,) = (n for n in network.get_internals().list_outputs() if n.startswith("linear_2"))
    assert network.get_internals()[scores].infer_shape(data=(7, 4))[1] == [(7, 7)]


def test_parameters_that_need_no_gradient_are_not_trained():
    """They were trained like all others."""
    network, parameters, _ = sg.from_torch(DATA / "frozen.pt2")
    attrs = network.attr_dict()
    layers = [name for name in parameters if name.startswith("layers.")]
    assert len(layers) == 4
    for multiplier in ("__lr_mult__", "__wd_mult__"):
        assert [n for n in layers if attrs[n].get(multiplier) == "0.0"] == ["layers.0.weight"]


def test_weight_decay_takes_every_parameter_as_in_pytorch():
    """It took none: their names do not end in _weight, as those of MXNet do."""
    network, parameters, _ = sg.from_torch(DATA / "contrast.pt2")
    module = sg.mod.Module(sg.sym.MakeLoss(network * 0), ("data",), None, context=[cpu(0)])
    module.bind([("data", (3, 4))])
    module.init_params(arg_params=parameters)
    module.init_optimizer(optimizer_params={"learning_rate": 0.5, "wd": 0.5})
    module.forward_backward(sg.io.DataBatch([np.ones((3, 4), "float32")]))
    module.update()
    for name, array in module.get_params()[0].items():
        np.testing.assert_allclose(array, parameters[name] * 0.75, rtol=1e-6)


def test_an_unbiased_variance_of_the_batch_fits_batches_of_any_size():
    """It was that of the example's number of samples."""
    network, parameters, _ = sg.from_torch(DATA / "spread.pt2")
    data = np.random.default_rng(0).random((7, 4), "float32")
    with network.simple_bind(data=data.shape, grad_req="null") as executor:
        executor.copy_params_from(parameters)
        found = executor.forward(data=data)[0]
    made = data @ parameters["layer.weight"].T
    np.testing.assert_allclose(found, [made.var(0, ddof=1).sum()], rtol=1e-5)


def test_samples_are_sorted_in_batches_of_any_size():
    network, parameters, _ = sg.from_torch(DATA / "ranked.pt2")
    data = np.random.default_rng(0).random((7, 4), "float32")
    with network.simple_bind(data=data.shape, grad_req="null") as executor:
        executor.copy_params_from(parameters)
        found = executor.forward(data=data)[0]
    made = data @ parameters["layer.weight"].T + parameters["layer.bias"]
    np.testing.assert_allclose(found, [np.sin(made).sum()], rtol=1e-5)


def test_statistics_of_batch_norm_are_states():
    """PyTorch's moving variance takes the unbiased one of the batch, MXNet's the biased one."""
    network, parameters, states = sg.from_torch(DATA / "resnet_block.pt2")
    assert not states.keys() & parameters.keys()
    assert sorted(states) == sorted(
        f"{layer}.running_{what}"
        for layer in ("bn1", "bn2", "bn3", "down.1")
        for what in ("mean", "var")
    )
    with (
        np.load(DATA / "resnet_block.npz") as arrays,
        sg.sym.MakeLoss(network).simple_bind(data=(6, 3, 12, 12), labels=(6,)) as executor,
    ):
        for table in (parameters, states):
            for name, array in table.items():
                (executor.arg_dict | executor.aux_dict)[name][...] = array
        executor.forward(is_train=True, **{n: arrays[f"input:{n}"] for n in ("data", "labels")})
        executor.backward()
        after = dict(executor.aux_dict)
        np.testing.assert_allclose(
            after["bn1.running_mean"], arrays["after:bn1.running_mean"], 1e-5, atol=1e-8
        )
        count = 6 * 12 * 12
        biased = (arrays["after:bn1.running_var"] - 0.9) * (count - 1) / count + 0.9
        np.testing.assert_allclose(after["bn1.running_var"], biased, 1e-5)
