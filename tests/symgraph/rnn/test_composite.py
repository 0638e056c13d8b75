"""sym.RNN and sym._recurrent against numpy, and against the cells that stand in their place."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

import symgraph as sg
from symgraph import sym
from symgraph.core.errors import GraphError, ShapeError
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.core.tags import lookup
from symgraph.frontend.lower import lower
from symgraph.rnn.unrolled import Form

T, B, WIDTH, H = 5, 3, 4, 2
MODES = ("rnn_relu", "rnn_tanh", "lstm", "gru")
LENGTHS = np.array([5, 1, 3])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "softsign": lambda x: x / (1 + abs(x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
    "affine(0.5, 0.1)": lambda x: 0.5 * x + 0.1,
    "leakyrelu(0.3)": lambda x: np.where(x > 0, x, 0.3 * x),
    "thresholdedrelu(0.2)": lambda x: np.where(x > 0.2, x, 0),
    "scaledtanh(0.7, 1.5)": lambda x: 0.7 * np.tanh(1.5 * x),
    "hardsigmoid(0.3, 0.4)": lambda x: np.clip(0.3 * x + 0.4, 0, 1),
    "elu(0.8)": lambda x: np.where(x > 0, x, 0.8 * np.expm1(x)),
}
USUAL = {"rnn_relu": ["relu"], "rnn_tanh": ["tanh"], "lstm": ["sigmoid", "tanh", "tanh"]}
USUAL["gru"] = ["sigmoid", "tanh"]


def one_step(mode, x, h, c, w, a):
    """One step of one sample: the formulas of ONNX's LSTM, GRU and RNN."""
    f, *more = [ACTIVATIONS[name] for name in a["names"]]
    bound = a.get("clip") or np.inf

    def clip(x):
        return np.clip(x, -bound, bound)

    i2h, h2h = w["i2h_weight"] @ x + w["i2h_bias"], w["h2h_weight"] @ h + w["h2h_bias"]
    if mode.startswith("rnn"):
        return f(clip(i2h + h2h)), c
    if mode == "lstm":
        i, forget, new, o = np.split(i2h + h2h, 4)
        of_i, of_f, of_o = np.split(w.get("peephole", np.zeros(3 * len(h))), 3)
        i = f(clip(i + of_i * c))
        forget = 1 - i if a.get("input_forget") else f(clip(forget + of_f * c))
        c = forget * c + i * more[0](clip(new))
        return f(clip(o + of_o * c)) * more[1](c), c
    (r, z, new), (h_r, h_z, h_new) = np.split(i2h, 3), np.split(h2h, 3)
    r, z = f(clip(r + h_r)), f(clip(z + h_z))
    if not a.get("reset_after", True):
        rows = slice(2 * len(h), None)
        h_new, r = w["h2h_weight"][rows] @ (r * h) + w["h2h_bias"][rows], 1
    return (1 - z) * more[0](clip(new + r * h_new)) + z * h, c


def expected(mode, letters, layers, data, named, lengths, **a):
    """The outputs and last states, sample by sample."""
    steps, batch, _ = data.shape
    shape = (layers * len(letters), batch, H)
    ends = [named.get(n, np.zeros(shape)).copy() for n in ("state", "state_cell")]
    below = data
    for layer in range(layers):
        above = np.zeros((steps, batch, H * len(letters)))
        for at, letter in enumerate(letters):
            prefix, row = f"{letter}{layer}_", layer * len(letters) + at
            w = {k.removeprefix(prefix): v for k, v in named.items() if k.startswith(prefix)}
            names = a.get("activations") or USUAL[mode] * len(letters)
            own = {**a, "names": names[at * len(USUAL[mode]) : (at + 1) * len(USUAL[mode])]}
            for n in range(batch):
                h, c = ends[0][row, n], ends[1][row, n]
                order = range(lengths[n])
                for t in order if letter == "l" else reversed(order):
                    h, c = one_step(mode, below[t, n], h, c, w, own)
                    above[t, n, at * H : (at + 1) * H] = h
                ends[0][row, n], ends[1][row, n] = h, c
        below = above
    return [below, *ends[: 2 if mode == "lstm" else 1]]


def values_for(symbol, **shapes):
    rng = np.random.default_rng(5)
    found, _, _ = symbol.infer_shape(**shapes)
    arguments = zip(symbol.list_arguments(), found, strict=True)
    return {name: rng.uniform(-1, 1, shape) for name, shape in arguments}


def check(symbol, values, wanted):
    shapes = {name: value.shape for name, value in values.items()}
    dtypes = {name: str(value.dtype) for name, value in values.items()}
    results = evaluate(lower(symbol, shapes, dtypes), values, Env())
    for result, array in zip(results, wanted, strict=True):
        assert_allclose(result, array, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("mode", MODES)
def test_the_general_operator(mode, direction, lengths):
    options = {"use_state": mode != "gru", "no_bias": mode == "rnn_relu"}
    r = sym._recurrent(
        sym.Variable("data"),
        mode=mode,
        state_size=H,
        num_layers=2,
        direction=direction,
        state_outputs=True,
        use_sequence_length=lengths is not None,
        name="r",
        **options,
    )
    values = values_for(r, data=(T, B, WIDTH))
    if lengths is not None:
        values["r_sequence_length"] = lengths
    named = {name.removeprefix("r_"): value for name, value in values.items()}
    letters = {"forward": "l", "reverse": "r", "bidirectional": "lr"}[direction]
    if options["no_bias"]:
        for prefix in (f"{d}{layer}_" for d in letters for layer in range(2)):
            named |= {f"{prefix}{kind}_bias": np.zeros(H) for kind in ("i2h", "h2h")}
    count = [T] * B if lengths is None else lengths
    check(r, values, expected(mode, letters, 2, values["data"], named, count))


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        *[("rnn_tanh", {"activations": [name]}) for name in ACTIVATIONS],
        ("rnn_tanh", {"clip": 0.3}),
        ("lstm", {"peepholes": True, "clip": 0.4}),
        ("lstm", {"input_forget": True, "activations": ["hardsigmoid(0.3, 0.4)", "relu", "tanh"]}),
        ("gru", {"reset_after": False}),
        ("gru", {"reset_after": True, "clip": 0.2}),
        ("gru", {"reset_after": False, "activations": ["sigmoid", "softsign"], "clip": 0.6}),
    ],
)
def test_the_options_of_onnx(mode, options):
    r = sym._recurrent(
        sym.Variable("data"), mode=mode, state_size=H, state_outputs=True, name="r", **options
    )
    values = values_for(r, data=(T, B, WIDTH))
    named = {name.removeprefix("r_"): value for name, value in values.items()}
    check(r, values, expected(mode, "l", 1, values["data"], named, [T] * B, **options))


def test_each_direction_has_its_activations():
    names = ["softsign", "elu(0.8)"]
    data = sym.Variable("data")
    r = sym._recurrent(
        data, mode="rnn_tanh", state_size=H, direction="bidirectional", activations=names, name="r"
    )
    values = values_for(r, data=(T, B, WIDTH))
    named = {name.removeprefix("r_"): value for name, value in values.items()}
    wanted = expected("rnn_tanh", "lr", 1, values["data"], named, [T] * B, activations=names)
    check(r, values, wanted[:1])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_mxnets_operator_equals_the_fused_cell(mode, bidirectional):
    """The vector has MXNet's order; values and gradients are those of the unfused cells."""
    data, layers = sym.Variable("data"), 2
    states = ["r_state", "r_state_cell"][: 2 if mode == "lstm" else 1]
    r = sym.RNN(
        data,
        mode=mode,
        state_size=H,
        num_layers=layers,
        bidirectional=bidirectional,
        name="r",
        **{s.removeprefix("r_"): sym.zeros_like(sym.Variable(s)) for s in states},
    )
    rows = layers * (2 if bidirectional else 1)
    fused = sg.rnn.FusedRNNCell(H, layers, mode, bidirectional, prefix="r_")
    cells, _ = fused.unfuse().unroll(T, data, layout="TNC", merge_outputs=True)
    begun = dict.fromkeys(states, (rows, B, H))
    rng = np.random.default_rng(3)
    vector = rng.uniform(-1, 1, fused.parameter_count(WIDTH)).astype("float32")
    x, g = (rng.uniform(-1, 1, (T, B, n)).astype("float32") for n in (WIDTH, H * rows // layers))
    with (
        r.simple_bind(data=(T, B, WIDTH), **begun) as one,
        cells.simple_bind(data=(T, B, WIDTH)) as many,
    ):
        one.arg_dict["r_parameters"][:] = vector
        parts = fused.unfuse().pack_weights(fused.unpack_weights({"r_parameters": vector}))
        for name, array in parts.items():
            many.arg_dict[name][:] = array
        for executor in (one, many):
            executor.arg_dict["data"][:] = x
            executor.forward(is_train=True)
            executor.backward(g)
        assert (one.outputs[0] == many.outputs[0]).all()
        assert_allclose(one.grad_dict["data"], many.grad_dict["data"], rtol=1e-5, atol=1e-6)
        gradients = {name: many.grad_dict[name] for name in parts}
        packed = fused.pack_weights(fused.unfuse().unpack_weights(gradients))["r_parameters"]
        assert_allclose(one.grad_dict["r_parameters"], packed, rtol=1e-5, atol=1e-6)


def test_mxnets_operator_with_lengths():
    r = sym.RNN(
        sym.Variable("data"),
        mode="gru",
        state_size=H,
        bidirectional=True,
        use_sequence_length=True,
        state_outputs=True,
        name="r",
    )
    assert r.list_arguments() == ["data", "r_parameters", "r_state", "r_sequence_length"]
    values = values_for(r, data=(T, B, WIDTH)) | {"r_sequence_length": LENGTHS}
    named, at = {"state": values["r_state"]}, 0
    for name, shape in Form("gru", H, 1, "lr").pieces(WIDTH):
        named[name] = values["r_parameters"][at : at + np.prod(shape)].reshape(shape)
        at += np.prod(shape)
    assert at == values["r_parameters"].size
    check(r, values, expected("gru", "lr", 1, values["data"], named, LENGTHS))


def test_a_projected_lstm_equals_pytorchs():
    """torch.nn.LSTM(2, 2, num_layers=2, bidirectional=True, proj_size=1), on the vector's order."""
    r = rnn(num_layers=2, bidirectional=True, projection_size=1, state_outputs=True)
    size, sums = 168, np.arange(1.0, 5).reshape(2, 1, 2)
    shapes = [(2, 1, 2), (size,), (4, 1, 1), (4, 1, 2)]
    assert r.infer_shape(r_parameters=(size,), data=(2, 1, 0)) == (
        shapes,
        [(2, 1, 2), *shapes[2:]],
        [],
    )
    values = [
        np.cos(np.arange(4)),
        np.sin(np.arange(1, size + 1)),
        np.arange(4) / 10,
        np.arange(8) / -20,
    ]
    with r.simple_bind(data=(2, 1, 2)) as executor:
        for array, value in zip(executor.arg_arrays, values, strict=True):
            array[...] = value.reshape(array.shape)
        outputs, h, c = executor.forward(is_train=True)
        assert_allclose(outputs.ravel(), [-0.33040428, 0.13809924, -0.29848921, 0.04098994], 1e-5)
        assert_allclose(h.ravel(), [-0.09475644, -0.07904976, -0.29848921, 0.13809924], 1e-5)
        assert_allclose(c.ravel()[:4], [0.15026122, -0.26478122, -0.35019923, 0.42635473], 1e-5)
        executor.backward([sums, np.zeros(h.shape), np.zeros(c.shape)])
        of_x, of_vector = executor.grad_arrays[:2]
        assert_allclose(of_x.ravel(), [0.08748226, 0.04146605, 0.19952292, 0.11490977], 1e-5)
        assert_allclose(of_vector[:3], [0.00128371, 0.00051064, 0.04466263], 1e-4)
        assert_allclose((of_vector * np.arange(size)).sum(), 120.91465, 1e-5)


def rnn(**options):
    options = {"mode": "lstm", **options}
    return sym.RNN(sym.Variable("data"), state_size=H, name="r", **options)


def test_shapes_follow_from_one_another():
    r = rnn(num_layers=2, bidirectional=True, state_outputs=True)
    size = sg.rnn.FusedRNNCell(H, 2, bidirectional=True).parameter_count(WIDTH)
    all_shapes = (
        [(T, B, WIDTH), (size,), (4, B, H), (4, B, H)],
        [(T, B, 4), (4, B, H), (4, B, H)],
        [],
    )
    assert r.infer_shape(data=(T, B, WIDTH)) == all_shapes
    assert r.infer_shape(data=(T, B, 0), r_parameters=(size,)) == all_shapes
    assert r.infer_shape(data=(T, 0, WIDTH), r_state=(4, B, H)) == all_shapes
    assert r.infer_shape_partial(r_parameters=(size,))[0][0] == (0, 0, WIDTH)
    general = sym._recurrent(sym.Variable("data"), mode="gru", state_size=H, name="r")
    found, _, _ = general.infer_shape(data=(T, B, 0), r_l0_i2h_weight=(3 * H, WIDTH))
    assert found[0] == (T, B, WIDTH)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            {"data": (T, B, WIDTH), "r_parameters": (7,)},
            "RNN 'r': parameters of shape .7,. do not fit",
        ),
        ({"data": (T, B)}, "data of shape .5, 3. does not fit"),
        ({"data": (T, B, WIDTH), "r_state": (2, B, H)}, "state of shape .2, 3, 2. does not fit"),
        ({"data": (200_000, B, WIDTH)}, "200000 time steps of 1 cells are more than"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message):
    with pytest.raises(ShapeError, match=message):
        lower(rnn(), shapes)


def test_only_an_lstm_is_projected():
    with pytest.raises(ShapeError, match="projection_size is for mode='lstm', not 'gru'"):
        rnn(mode="gru", projection_size=1).infer_shape(data=(T, B, WIDTH))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"projection_size": 0}, "projection_size=0 is not a valid"),
        ({"num_layers": 10**9}, "num_layers=1000000000 is not a valid int of 1 to 1000"),
        ({"state_size": 0}, "state_size=0 is not a valid"),
    ],
)
def test_parameters_that_are_refused(options, message):
    with pytest.raises(GraphError, match=message):
        sym.RNN(sym.Variable("data"), **{"mode": "lstm", "state_size": H, **options})


@pytest.mark.parametrize("word", ["gelu", "affine(1, 2, 3)", "tanh("])
def test_activations_that_are_refused(word):
    with pytest.raises(GraphError, match=r"activations=.* is not a valid tuple of activations"):
        sym._recurrent(mode="rnn_tanh", state_size=H, activations=[word])


def test_every_cell_of_a_layer_has_all_its_activations():
    r = sym._recurrent(mode="rnn_tanh", state_size=H, activations=["tanh", "tanh"], name="r")
    with pytest.raises(ShapeError, match="2 activations, but rnn_tanh in 1 directions has 1"):
        lower(r, {"r_data": (T, B, WIDTH)})


def test_one_node_in_json_and_cells_in_the_graph():
    with sg.AttrScope(ctx_group="a"):
        r = rnn(p=0.3, num_layers=2, state_outputs=True)
    again = sym.load_json(r.tojson())
    assert again.tojson() == r.tojson()
    assert r.tojson().count('"RNN"') == 1
    with sg.AttrScope(ctx_group="b"), sg.name.Prefix("x_"):  # scopes at lowering do not matter
        graph = lower(again, {"data": (T, B, WIDTH)})
    assert str(graph) == str(lower(r, {"data": (T, B, WIDTH)}))
    calls = [node for node in graph if not node.is_variable]
    assert {lookup(node.tags, "ctx_group") for node in calls} == {"a"}
    assert {lookup(n.tags, "time_step") for n in calls if n.op == "_lstm_gates"} == set("01234")
    streams = [n.attrs["stream"] for n in calls if n.op == "Dropout"]
    assert len(set(streams)) == T


def test_only_what_is_read_is_unrolled():
    outputs, _, _ = rnn(state_outputs=True)
    ops = [node.op for node in lower(outputs, {"data": (T, B, WIDTH)})]
    assert "stack" not in ops
    assert ops.count("_lstm_gates") == T


def test_two_networks_drop_different_units():
    data = sym.Variable("data")
    both = [
        sym._recurrent(data, mode="gru", state_size=H, num_layers=2, p=0.5, name=name)
        for name in ("first", "second")
    ]
    graph = lower(sym.Group(both), {"data": (T, B, WIDTH)})
    streams = [node.attrs["stream"] for node in graph if node.op == "Dropout"]
    assert len(streams) == len({*streams}) == 2 * T
