"""Initialisers."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import symgraph as sg
from symgraph.core import rand
from symgraph.core.errors import GraphError, ShapeError
from symgraph.frontend import init

EACH = [
    init.Zero(),
    init.One(),
    init.Constant(0.3),
    init.Uniform(0.2),
    init.Normal(0.5),
    init.Orthogonal(),
    init.Orthogonal(1.0, "normal"),
    init.Xavier(),
    init.Xavier("gaussian", "in", 2),
    init.MSRAPrelu("out", 0.1),
    init.LSTMBias(2.0),
]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fc1_bias", 0),
        ("bn_beta", 0),
        ("bn_moving_mean", 0),
        ("bn_moving_avg", 0),
        ("bn_moving_inv_var", 0),
        ("l0_init_c", 0),
        ("l0_init_h", 0),
        ("bn_gamma", 1),
        ("bn_moving_var", 1),
        ("fc1_weight", 7),
        ("weight", 7),
    ],
)
def test_the_end_of_the_name_decides(name, value):
    got = init.Constant(7)(name, (2, 3), "float32", 0)
    assert got.dtype == np.float32
    assert got.tolist() == [[value] * 3] * 2


def test_a_name_without_a_rule_is_refused():
    with pytest.raises(GraphError, match=r"'data': .* end in one of weight, bias.* Variable\('da"):
        init.Uniform()("data", (2, 3), "float32", 0)


def test_the_variables_own_initializer_comes_first():
    attrs = {"__init__": init.Constant(2.5).dumps()}
    for name in ("fc1_bias", "fc1_weight", "state"):
        assert init.Uniform()(name, (2,), "float64", 0, attrs).tolist() == [2.5, 2.5]


def test_lstm_bias():
    """Case R3: forget bias 2, H = 100."""
    attrs = {"__init__": '["lstmbias", {"forget_bias": 2.0}]'}
    got = init.Zero()("lstm_l0_i2h_bias", (400,), "float32", 0, attrs)
    assert got.tolist() == [0] * 100 + [2] * 100 + [0] * 200
    with pytest.raises(ShapeError, match=r"'b' of shape \(6,\) is not the bias of an LSTM"):
        init.LSTMBias().fill("b", (6,), "float32", 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_depend_on_seed_and_name_only(dtype):
    make = init.Uniform(0.1)
    first = make("a_weight", (300, 400), dtype, 1)
    make("b_weight", (5, 5), dtype, 1)
    assert np.array_equal(make("a_weight", (300, 400), dtype, 1), first)
    assert not np.isin(make("b_weight", (50, 50), "float64", 1), first).any()
    assert not np.isin(make("a_weight", (50, 50), "float64", 2), first).any()


@pytest.mark.parametrize(
    ("make", "draw"), [(init.Uniform(1.0), rand.uniform), (init.Normal(1.0), rand.normal)]
)
def test_the_counter_is_the_element(make, draw):
    """More than two of the blocks that values are drawn in, and a ragged one."""
    shape = (3, 50_001)
    raw = draw(np, rand.key(4, "init", "w_weight"), np.arange(3 * 50_001), np.float64)
    want = 2 * raw - 1 if draw is rand.uniform else raw
    assert np.array_equal(make("w_weight", shape, "float64", 4), want.reshape(shape))


def test_spread_of_uniform_and_normal():
    u = init.Uniform()("w_weight", (400, 500), "float32", 3)
    assert u.dtype == np.float32
    assert -0.07 <= u.min() < -0.0699
    assert 0.0699 < u.max() < 0.07
    x = init.Normal()("w_weight", (400, 500), "float64", 3)
    assert x.std() == pytest.approx(0.01, rel=5 / math.sqrt(2 * x.size))
    assert abs(x.mean()) < 5 * 0.01 / math.sqrt(x.size)


@pytest.mark.parametrize("factor", ["in", "out", "avg"])
@pytest.mark.parametrize("tail", [(), (3, 2)])
def test_xavier_spread(factor, tail):
    shape = (200, 50, *tail)
    n = {"in": 50, "out": 200, "avg": 125}[factor] * math.prod(tail)
    u = init.Xavier("uniform", factor, 3)("w_weight", shape, "float64", 1)
    assert np.abs(u).max() == pytest.approx(math.sqrt(3 / n), rel=1e-3)
    x = init.Xavier("gaussian", factor, 2)("w_weight", shape, "float64", 1)
    assert x.std() == pytest.approx(math.sqrt(2 / n), rel=5 / math.sqrt(2 * x.size))
    msra = init.MSRAPrelu(factor, slope=0.5)("w_weight", shape, "float64", 1)
    assert msra.std() == pytest.approx(math.sqrt(2 / 1.25 / n), rel=5 / math.sqrt(2 * x.size))


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (6, 6), (3, 2, 5)])
@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_orthogonal(shape, kind):
    w = init.Orthogonal(1.5, kind)("w_weight", shape, "float64", 2)
    assert w.shape == shape
    w = w.reshape(shape[0], -1)
    gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
    np.testing.assert_allclose(gram, 1.5**2 * np.eye(len(gram)), atol=1e-12)


def test_matrix_initializers_refuse_vectors():
    for make in (init.Xavier(), init.MSRAPrelu(), init.Orthogonal()):
        with pytest.raises(ShapeError, match=r"needs two axes or more but parameter 'v_weight' ha"):
            make("v_weight", (5,), "float32", 0)


@pytest.mark.parametrize("make", EACH)
def test_dumps_round_trip(make):
    again = init.create(make.dumps())
    assert again == make
    shape = (8, 6)
    assert np.array_equal(
        again("w_weight", shape, "float64", 1), make("w_weight", shape, "float64", 1)
    )


def test_dumps_is_mxnets_text():
    assert init.Normal(0.5).dumps() == '["normal", {"sigma": 0.5}]'
    assert json.loads(init.Xavier(factor_type="in", magnitude=2.34).dumps()) == [
        "xavier",
        {"rnd_type": "uniform", "factor_type": "in", "magnitude": 2.34},
    ]


def test_create():
    assert init.create("Xavier", magnitude=2) == init.Xavier(magnitude=2)
    assert init.create("zeros") == init.Zero()
    assert init.create("ones") == init.One()
    made = init.Mixed([".*"], [init.Zero()])
    assert init.create(made) is made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (3, "3 is not an initializer: pass one such as Xavier"),
        (init.Xavier, "Xavier'> is not an initializer: pass one such as Xavier"),
        ('["xavier", {"magnitude": "3"}]', "Xavier: magnitude is '3' but must be a finite number"),
        ('["xavier", {"magnitude": -3}]', "magnitude is -3 but must be 0 or more"),
        ("xavir", "unknown initializer 'xavir': did you mean 'xavier'"),
        ('["uniform", {"sigma": 1}]', "initializer 'uniform': .*unexpected keyword .*'sigma'"),
        ('["constant", {}]', "initializer 'constant': .*missing"),
        ("[uniform", r"'\[uniform' is not JSON"),
        ('["uniform"]', "is not JSON of"),
        ('["xavier", {"rnd_type": "normal"}]', "Xavier: unknown rnd_type 'normal'"),
        ('["xavier", {"factor_type": "fan"}]', "Xavier: unknown factor_type 'fan'"),
        ('["orthogonal", {"rand_type": "unifrm"}]', "did you mean 'uniform'"),
    ],
)
def test_create_refuses(text, message):
    with pytest.raises(GraphError, match=message):
        init.create(text)


def test_arrays_as_first_values():
    """`Variable(init=Constant(array))` could not be written as JSON."""
    constant = init.create(init.Constant(np.arange(3.0)).dumps())
    assert constant("x_weight", (2, 3), "float32", 0).tolist() == [[0, 1, 2]] * 2
    assert init.Normal(np.float32(0.5)).dumps() == '["normal", {"sigma": 0.5}]'
    with pytest.raises(ShapeError, match=r"'x_weight' of shape \(2, 4\) cannot be filled with"):
        constant("x_weight", (2, 4), "float32", 0)


def test_mixed():
    mixed = init.Mixed(["embed", ".*h2h", ".*"], [init.One(), init.Constant(2), init.Constant(3)])
    shape = (1, 1)
    for name, want in [
        ("embed_weight", 1),
        ("l0_h2h_weight", 2),
        ("l0_h2h_bias", 0),
        ("weight", 3),
    ]:
        assert mixed(name, shape, "float32", 0) == want
    assert init.Mixed([".*"], ["one"])("x_weight", shape, "float32", 0) == 1
    own = {"__init__": init.Constant(9).dumps()}
    assert mixed("embed_weight", shape, "float32", 0, own) == 9


def test_mixed_refuses():
    with pytest.raises(GraphError, match=r"Mixed: '\*' is not a pattern: nothing to repeat"):
        init.Mixed(["*"], [init.Zero()])
    with pytest.raises(GraphError, match="2 patterns, 1 initializers"):
        init.Mixed(["a", "b"], [init.Zero()])
    with pytest.raises(GraphError, match=r"'c_weight' matches none of the patterns 'a', 'b': add"):
        init.Mixed(["a", "b"], [init.Zero()] * 2)("c_weight", (1,), "float32", 0)


def test_register_makes_a_users_initializer_known():
    class Ramp(init.Initializer):
        def fill(self, name, shape, dtype, seed):
            return np.arange(math.prod(shape), dtype=dtype).reshape(shape)

    try:
        init.register(Ramp)
        assert init.Zero()("x", (3,), "float32", 0, {"__init__": "ramp"}).tolist() == [0, 1, 2]
        with pytest.raises(GraphError, match="initializer 'ramp' already exists"):
            init.register(Ramp)
    finally:
        init.INITIALIZERS.pop("ramp", None)


def test_load_takes_known_values_and_draws_others():
    known = init.Load({"arg:fc_weight": np.ones((2, 3)), "norm_gamma": [5]}, "zeros")
    assert known("fc_weight", (2, 3), "float32", 0).tolist() == [[1, 1, 1]] * 2
    assert known("norm_gamma", (1,), "float32", 0).tolist() == [5]
    assert known("other_weight", (1,), "float32", 0).tolist() == [0]
    with pytest.raises(GraphError, match=r"'fc_weight' has the shape \(3,\).*has \(2, 3\)"):
        known("fc_weight", (3,), "float32", 0)
    with pytest.raises(GraphError, match=r"no value for parameter 'fc_bias'.*fc_weight"):
        init.Load({"fc_weight": [1]})("fc_bias", (1,), "float32", 0)
    with pytest.raises(GraphError, match=r"not 'net\.params': read a file with nd\.load\(path\)"):
        init.Load("net.params")


@pytest.mark.parametrize("factor", [2, 3])
def test_bilinear_enlarges_a_ramp_to_a_ramp(factor):
    """UpSampling's error advised an initializer that was not there."""
    ramp = np.add.outer(np.arange(6.0), 2 * np.arange(6.0)).astype("float32")[None, None]
    kernel, pad = 2 * factor - factor % 2, math.ceil((factor - 1) / 2)
    up = sg.sym.Deconvolution(
        sg.sym.Variable("x"),
        kernel=(kernel, kernel),
        stride=(factor, factor),
        pad=(pad, pad),
        num_filter=1,
        name="up",
    )
    weight = init.Bilinear()("up_weight", (1, 1, kernel, kernel), "float32", 0)
    with up.simple_bind(sg.cpu(), x=ramp.shape) as executor:
        executor.copy_params_from({"up_weight": weight})
        large = np.asarray(executor.forward(x=ramp)[0])[0, 0]
    inside = large[factor:-factor, factor:-factor]
    assert large.shape == (6 * factor, 6 * factor)
    np.testing.assert_allclose(np.diff(inside, axis=0), 1 / factor, atol=1e-5)
    np.testing.assert_allclose(np.diff(inside, axis=1), 2 / factor, atol=1e-5)


def test_slopes_of_prelu_begin_at_a_quarter():
    """They began at 1, the identity; in MXNet their variable says otherwise."""
    net = sg.sym.LeakyReLU(sg.sym.Variable("x"), act_type="prelu", name="act")
    attrs = net.attr_dict()["act_gamma"]
    assert init.Xavier()("act_gamma", (3,), "float32", 0, attrs).tolist() == [0.25] * 3


class Halves(init.Initializer):
    """As MXNet's users write them."""

    def __init__(self, share=0.5):
        super().__init__(share=share)
        self.share = share

    def _init_weight(self, name, arr):
        arr[:] = self.share

    def _init_bias(self, name, arr):
        arr[:] = len(name)


def test_an_initializer_in_mxnets_way():
    made = Halves(0.25)
    assert made("a_weight", (2,), "float32", 0).tolist() == [0.25, 0.25]
    assert made("a_bias", (1,), "float32", 0).tolist() == [6]
    assert made("a_gamma", (1,), "float32", 0).tolist() == [1]
    assert made.dumps() == '["halves", {"share": 0.25}]'
    with pytest.raises(NotImplementedError, match="Initializer has neither fill nor _init_weight"):
        init.Initializer()("a_weight", (1,), "float32", 0)


class Halved(init.Xavier):
    """A subclass of one that symgraph has."""

    def _init_weight(self, name, arr):
        super()._init_weight(name, arr)
        arr[:] *= 0.5


def test_the_way_of_a_subclass_goes_first():
    """`_init_weight` of a subclass of Xavier was never called: its weights were Xavier's."""
    whole = init.Xavier(magnitude=2)("a_weight", (3, 4), "float32", 7)
    half = Halved(magnitude=2)("a_weight", (3, 4), "float32", 7)
    np.testing.assert_array_equal(half, whole / 2)
    filled = np.zeros((1, 1, 4, 4), "float32")
    init.Bilinear()._init_weight(None, filled)  # as MXNet's own tests call it
    assert filled[0, 0, 0].tolist() == [0.0625, 0.1875, 0.1875, 0.0625]


@pytest.mark.parametrize(
    "made", [init.Uniform(), init.Mixed([".*"], [init.Uniform()]), init.Load({}, init.Uniform())]
)
def test_an_array_is_filled_in_place(made):
    array = np.zeros((2, 3), "float32")
    assert made(init.InitDesc("a_weight"), array) is array
    np.testing.assert_array_equal(array, made("a_weight", (2, 3), "float32", 0))
    ones = init.InitDesc("a_weight", {"__init__": init.One().dumps()})
    if not isinstance(made, init.Mixed):
        assert (made(ones, array) == 1).all()
