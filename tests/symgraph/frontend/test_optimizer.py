"""Optimizers, against their equations written out in float64."""

from __future__ import annotations

import json
import math
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from symgraph.core.errors import ConfigError, DTypeError, GraphError, RunError, ShapeError
from symgraph.frontend import nd, optimizer
from symgraph.frontend.lr_scheduler import CosineScheduler, FactorScheduler, LRScheduler
from symgraph.frontend.optimizer import (
    FTML,
    LAMB,
    NAG,
    OPTIMIZERS,
    SGD,
    SGLD,
    AdaDelta,
    AdaGrad,
    Adam,
    Adamax,
    AdamW,
    Ftrl,
    Nadam,
    Optimizer,
    RMSProp,
    Signum,
)

SHAPE = (7, 5)
EACH = [
    SGD(),
    SGD(momentum=0.9),
    NAG(),
    NAG(momentum=0.8),
    Adam(),
    AdamW(),
    RMSProp(),
    RMSProp(centered=True),
    AdaGrad(0.5),
    AdaDelta(),
    Adamax(),
    FTML(),
    Ftrl(lamda1=0.0),
    LAMB(),
    Nadam(),
    Signum(0.001),
]


def sgd(w, g, s, t, lr, wd, clip, momentum=0.0):
    s["m"] = momentum * s.get("m", 0) - lr * (clip(g) + wd * w)
    return w + s["m"]


def nag(w, g, s, t, lr, wd, clip, momentum=0.0):
    d = clip(g) + wd * w
    s["m"] = momentum * s.get("m", 0) + lr * d
    return w - (momentum * s["m"] + lr * d)


def adam(w, g, s, t, lr, wd, clip, beta1=0.9, beta2=0.999, epsilon=1e-8):
    d = clip(g + wd * w)
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * d
    s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * d**2
    rate = lr * math.sqrt(1 - beta2**t) / (1 - beta1**t)
    return w - rate * s["m"] / (np.sqrt(s["v"]) + epsilon)


def adamw(w, g, s, t, lr, wd, clip, beta1=0.9, beta2=0.999, epsilon=1e-8):
    d = clip(g)
    s["m"] = beta1 * s.get("m", 0) + (1 - beta1) * d
    s["v"] = beta2 * s.get("v", 0) + (1 - beta2) * d**2
    mean, var = s["m"] / (1 - beta1**t), s["v"] / (1 - beta2**t)
    return (1 - lr * wd) * w - lr * mean / (np.sqrt(var) + epsilon)


def rmsprop(w, g, s, t, lr, wd, clip, gamma1=0.9, gamma2=0.9, epsilon=1e-8, centered=False):
    d = clip(g + wd * w)
    s["n"] = gamma1 * s.get("n", 0) + (1 - gamma1) * d**2
    if not centered:
        return w - lr * d / np.sqrt(s["n"] + epsilon)
    s["g"] = gamma1 * s.get("g", 0) + (1 - gamma1) * d
    s["delta"] = gamma2 * s.get("delta", 0) - lr * d / np.sqrt(s["n"] - s["g"] ** 2 + epsilon)
    return w + s["delta"]


CASES = [
    (SGD, sgd, {}),
    (SGD, sgd, {"momentum": 0.9}),
    (NAG, nag, {}),
    (NAG, nag, {"momentum": 0.7}),
    (Adam, adam, {}),
    (Adam, adam, {"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}),
    (AdamW, adamw, {}),
    (AdamW, adamw, {"beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3}),
    (RMSProp, rmsprop, {}),
    (RMSProp, rmsprop, {"gamma1": 0.7, "epsilon": 1e-3}),
    (RMSProp, rmsprop, {"centered": True}),
    (RMSProp, rmsprop, {"centered": True, "gamma1": 0.6, "gamma2": 0.5}),
]


def train(opt, weight, grads, scale=1.0, attrs=None, name="fc_weight"):
    weight = weight.copy()
    state = opt.state(name, weight)
    for t, grad in enumerate(grads, start=1):
        opt.apply(np, name, weight, grad, state, t, scale, attrs or {})
    return weight, state


@pytest.mark.parametrize(("kind", "formula", "own"), CASES)
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-12), ("float32", 2e-5)])
def test_updates_follow_the_equations(kind, formula, own, clip, dtype, rtol):
    rng = np.random.default_rng(3)
    weight = rng.standard_normal(SHAPE).astype(dtype)
    grads = [rng.standard_normal(SHAPE).astype(dtype) for _ in range(6)]
    opt = kind(0.05, wd=0.1, clip_gradient=clip, rescale_grad=0.5, **own)
    got, _ = train(opt, weight, grads, scale=3.0, attrs={"__lr_mult__": "2", "wd_mult": "0.5"})

    def clipped(g):
        return g if clip is None else np.clip(g, -clip, clip)

    want, state = weight.astype(np.float64), {}
    for t, grad in enumerate(grads, start=1):
        g = 3.0 * 0.5 * grad.astype(np.float64)
        want = formula(want, g, state, t, 0.05 * 2, 0.1 * 0.5, clipped, **own)
    assert got.dtype == dtype
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


MXNET = Path(__file__).parents[1] / "data" / "mxnet_optimizers.npz"


@pytest.fixture(scope="module")
def mxnet():
    """What MXNet 1.9.1 makes of a weight; see data/write_mxnet.py."""
    with np.load(MXNET) as arrays:
        return dict(arrays)


def test_updates_are_mxnets(mxnet):
    """The weight after each of four updates, through MXNet's own call."""
    keys = [key for key in mxnet if key.count("/") == 2]
    others = {"adamw", "ccsgd", "sgld", "faulty"}
    assert {key.split("/")[0] for key in keys} == OPTIMIZERS.keys() - others
    for key in keys:
        made = optimizer.create(key.split("/")[0], **json.loads(str(mxnet[f"{key}/settings"])))
        updater, weight = optimizer.get_updater(made), nd.array(mxnet["weight"])
        for grad, want in zip(mxnet["grads"], mxnet[key], strict=True):
            updater(0, nd.array(grad), weight)
            np.testing.assert_allclose(weight, want, rtol=2e-5, atol=2e-6, err_msg=key)


def test_langevin_noise_has_its_variance_and_a_seed():
    opt, shape = SGLD(0.04, wd=0.5), (400, 300)
    first, _ = train(opt, np.ones(shape), [np.full(shape, 2.0)])
    # w - lr / 2 * (g + wd * w) + sqrt(lr) * noise
    np.testing.assert_allclose(first.mean(), 1 - 0.02 * 2.5, atol=0.003)
    np.testing.assert_allclose(first.std(), 0.2, rtol=0.01)
    again, _ = train(opt, np.ones(shape), [np.full(shape, 2.0)])
    other, _ = train(SGLD(0.04, wd=0.5, seed=1), np.ones(shape), [np.full(shape, 2.0)])
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first.ravel(), other.ravel())[0, 1]) < 0.02


def test_an_element_without_gradients_stays_a_number_under_adamax():
    """MXNet's becomes nan."""
    got, _ = train(Adamax(), np.ones(3), [np.array([1.0, 0.0, -1.0])] * 2)
    assert got[1] == 1
    assert np.isfinite(got).all()


@pytest.mark.parametrize("opt", [AdaDelta(), Ftrl(), FTML(), LAMB(), Nadam(), Adamax(), AdaGrad()])
def test_a_rate_of_zero_freezes_a_parameter(opt):
    got, _ = train(opt, np.ones(3), [np.ones(3)] * 2, attrs={"lr_mult": "0"})
    assert (got == 1).all()


def test_settings_change_between_updates():
    opt, weight = SGD(0.1), np.zeros(2)
    updater = optimizer.get_updater(opt)
    updater(0, np.ones(2), weight)
    opt.lr = 0.5
    updater(0, np.ones(2), weight)
    np.testing.assert_allclose(weight, -0.6)
    assert (opt.learning_rate, opt.num_update) == (0.5, 2)
    with pytest.raises(ConfigError, match="learning_rate is -1"):
        opt.set_learning_rate(-1)
    with pytest.raises(ConfigError, match="the learning rate is its lr_scheduler's"):
        SGD(lr_scheduler=FactorScheduler(2, 0.5)).lr = 1.0


def test_factors_by_name_and_by_index():
    opt = SGD(0.1, wd=1.0, param_idx2name={0: "a_weight", 1: "a_bias"})
    assert [opt._get_wd(i) for i in (0, 1, 2)] == [1.0, 0.0, 1.0]
    opt.set_lr_mult({"a_weight": 10, 1: 3})
    opt.set_wd_mult({"a_weight": 0})
    assert opt.rates("a_weight", 1, {"lr_mult": "7"}) == (1.0, 0.0)
    assert opt._get_lrs([0, 1]) == [1.0, pytest.approx(0.3)]


def test_an_updater_resumes_from_its_states():
    rng = np.random.default_rng(4)
    grads = rng.standard_normal((4, 2, 3))
    whole, halves = np.ones((2, 3)), np.ones((2, 3))
    updater = optimizer.get_updater(Signum(0.1))
    for grad in grads:
        updater(7, grad, whole)
    first = optimizer.get_updater(Signum(0.1))
    for grad in grads[:2]:
        first(7, grad, halves)
    second = optimizer.get_updater(pickle.loads(pickle.dumps(Signum(0.1))))
    second.set_states(first.get_states())
    for grad in grads[2:]:
        second([7], [grad], [halves])
    assert np.array_equal(whole, halves)


def test_half_precision_weights_have_a_copy():
    weight = np.ones(3, np.float16)
    updater = optimizer.get_updater(SGD(1e-4, multi_precision=True))
    for _ in range(40):
        updater(0, np.ones(3, np.float16), weight)
    np.testing.assert_allclose(weight, 0.996, atol=6e-4)  # without a copy no update would count


@pytest.fixture
def heavy():
    """An optimizer in MXNet's own way, under its name while the test runs."""

    @optimizer.register
    class Heavy(Optimizer):
        def __init__(self, heaviness=0.9, **settings):
            super().__init__(**settings)
            self.heaviness = heaviness

        def create_state(self, index, weight):
            return None, (nd.zeros(weight.shape, weight.context, dtype=weight.dtype),)

        def update(self, index, weight, grad, state):
            self._update_count(index)
            _, (mom,) = state
            mom *= self.heaviness
            mom -= self._get_lr(index) * (grad * self.rescale_grad + self._get_wd(index) * weight)
            weight[:] += mom

    yield Heavy
    del OPTIMIZERS["heavy"]


def test_an_optimizer_of_ones_own(heavy):
    own = optimizer.create("heavy", learning_rate=0.05, wd=0.1, rescale_grad=0.5)
    assert own.slots() == ("state0",)
    assert not own.by_element
    rng = np.random.default_rng(3)
    weight, grads = rng.standard_normal(SHAPE), rng.standard_normal((3, *SHAPE))
    same = SGD(0.05, momentum=0.9, wd=0.1, rescale_grad=0.5)
    for_all = {"scale": 2.0, "attrs": {"lr_mult": "2"}}
    np.testing.assert_allclose(
        train(own, weight, grads, **for_all)[0], train(same, weight, grads, **for_all)[0]
    )
    with pytest.warns(UserWarning, match="'heavy' is replaced"):
        optimizer.register(heavy)
    with pytest.raises(ConfigError, match="unexpected keyword argument 'lightness'"):
        optimizer.create("heavy", lightness=1)


def test_a_rule_with_another_update():
    class Reversed(SGD):
        def update(self, index, weight, grad, state):
            super().update(index, weight, -grad, state)

    weight, grads = np.ones(3), [np.ones(3)] * 2
    assert not Reversed(0.1).by_element
    np.testing.assert_allclose(train(Reversed(0.1), weight, grads)[0], 1.2)
    with pytest.raises(TypeError, match=r"derive it from mx.optimizer.Optimizer"):
        type("Stateful", (SGD,), {"create_state": lambda self, index, weight: None})


@pytest.mark.parametrize("opt", EACH)
def test_the_first_update_steps(opt):
    """Case X10."""
    weight, grad = np.ones(3), np.array([1.0, -2.0, 0.0])
    if isinstance(opt, Ftrl):
        weight[:] = 0  # what its first state, zeros, stands for
    got, _ = train(opt, weight, [grad])
    assert (np.sign(weight - got) == np.sign(grad)).all()
    if isinstance(opt, (SGD, Adam)) and not isinstance(opt, NAG):
        rate = opt.DEFAULT_RATE
        step = np.sign(grad) if isinstance(opt, Adam) else grad
        np.testing.assert_allclose(weight - got, rate * step, rtol=1e-6)


@pytest.mark.every(4)
@pytest.mark.parametrize("opt", EACH)
def test_every_optimizer_finds_a_minimum(opt):
    target = np.array([1.0, -2.0, 3.0])
    weight = np.zeros(3)
    state = opt.state("w", weight)
    for t in range(1, 8001):
        opt.apply(np, "w", weight, weight - target, state, t)
    np.testing.assert_allclose(weight, target, atol=0.01)


@pytest.mark.parametrize("opt", EACH)
def test_gradients_are_left_alone(opt):
    grad = np.full(SHAPE, 0.25)
    train(opt, np.ones(SHAPE), [grad] * 2)
    assert (grad == 0.25).all()


@pytest.mark.parametrize("opt", [opt for opt in EACH if opt.by_element])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_blocks_do_not_change_the_result(opt, dtype):
    """The whole, and pieces cut elsewhere than where update cuts its blocks."""
    rng = np.random.default_rng(5)
    size = 2 * optimizer.BLOCK + 1001
    weight = rng.standard_normal(size).astype(dtype)
    grads = [rng.standard_normal(size).astype(dtype) for _ in range(2)]
    whole, state = train(opt, weight, grads)
    for part in (slice(0, 12_345), slice(12_345, optimizer.BLOCK + 7), slice(-9, None)):
        piece, piece_state = train(opt, weight[part], [g[part] for g in grads])
        assert np.array_equal(piece, whole[part])
        for slot in state:
            assert np.array_equal(piece_state[slot], state[slot][part])


@pytest.mark.parametrize("opt", EACH)
def test_an_update_allocates_little(opt):
    weight = np.ones((1024, 1024), np.float32)
    grad, state = np.ones_like(weight), opt.state("w", weight)
    tracemalloc.start()
    try:
        opt.apply(np, "w", weight, grad, state, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 * optimizer.BLOCK * weight.itemsize < weight.nbytes


@pytest.mark.parametrize("opt", EACH)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0)])
def test_scalars_and_empty_weights(opt, shape):
    got, _ = train(opt, np.ones(shape), [np.ones(shape)])
    assert got.shape == shape
    assert (got < 1).all()


@pytest.mark.parametrize("opt", EACH)
def test_a_gradient_need_not_be_contiguous(opt):
    rng = np.random.default_rng(6)
    weight, grad = rng.standard_normal(SHAPE), rng.standard_normal(SHAPE[::-1]).T
    assert np.array_equal(
        train(opt, weight, [grad])[0], train(opt, weight, [np.ascontiguousarray(grad)])[0]
    )


def test_numpy_scalars_do_not_widen_the_arithmetic():
    rng = np.random.default_rng(8)
    weight, grad = rng.standard_normal((2, 1000)).astype(np.float32)
    plain, _ = train(Adam(0.1, wd=0.3), weight, [grad], scale=0.7)
    numpy, _ = train(
        Adam(np.float64(0.1), wd=np.float64(0.3)), weight, [grad], scale=np.float64(0.7)
    )
    assert np.array_equal(plain, numpy)


@pytest.mark.parametrize("opt", EACH)
def test_state_is_named_arrays_like_the_weight(opt):
    weight = np.ones(SHAPE, np.float32)
    state = opt.state("w", weight)
    assert tuple(state) == opt.slots()
    for array in state.values():
        assert (array.dtype, array.shape) == (weight.dtype, weight.shape)
        assert not array.any()


def test_weight_decay_is_for_weights_and_gammas():
    opt = SGD(wd=0.5)
    decay = {n: opt.rates(n, 1, {})[1] for n in ("a_weight", "a_gamma", "a_bias", "beta", "weight")}
    assert decay == {"a_weight": 0.5, "a_gamma": 0.5, "a_bias": 0, "beta": 0, "weight": 0}
    assert opt.rates("a_bias", 1, {"__wd_mult__": "2"}) == (0.01, 1.0)
    assert opt.rates("a_weight", 1, {"wd_mult": "0", "lr_mult": "3"}) == (0.03, 0.0)
    with pytest.raises(GraphError, match="lr_mult of parameter 'a' is 'two', not a number"):
        opt.rates("a", 1, {"lr_mult": "two"})


def test_a_frozen_parameter_does_not_move():
    got, _ = train(SGD(momentum=0.9), np.ones(3), [np.ones(3)] * 3, attrs={"lr_mult": "0"})
    assert (got == 1).all()


def test_schedules_see_the_update_count():
    opt = SGD(lr_scheduler=FactorScheduler(2, 0.5, base_lr=0.4))
    assert [opt.rates("w", t, {})[0] for t in (1, 2, 3, 5)] == [0.4, 0.4, 0.2, 0.1]
    got, _ = train(opt, np.zeros(1), [np.ones(1)] * 4)
    assert got == pytest.approx([-(0.4 + 0.4 + 0.2 + 0.2)])


@pytest.mark.parametrize("kind", [SGD, NAG, Adam, RMSProp])
def test_learning_rate_replaces_the_base_of_any_schedule(kind):
    schedule = CosineScheduler(100, base_lr=1.0)
    assert kind(lr_scheduler=schedule).rates("w", 50, {})[0] == pytest.approx(0.5)
    assert kind(0.2, lr_scheduler=schedule).rates("w", 50, {})[0] == pytest.approx(0.1)
    assert kind().rates("w", 50, {})[0] == {SGD: 0.01, NAG: 0.01}.get(kind, 0.001)


@pytest.mark.parametrize("rate", [None, "fast", math.nan, -0.1, [0.1, 0.2]])
def test_a_schedule_of_ones_own_that_gives_no_rate_is_refused(rate):
    """NaN went into all weights, and None was told as a product of NoneType and float."""
    opt = SGD(lr_scheduler=lambda _: rate)
    with pytest.raises(ConfigError, match=r"gave .* for update 3: it must return a number, 0"):
        opt.rates("fc_weight", 3, {})


def test_schedules_of_ones_own():
    class Inverse(LRScheduler):
        base_lr, warmup_steps, warmup_begin_lr, warmup_mode = 1.0, 0, 0.0, "linear"

        def decayed(self, num_update):
            return self.base_lr / num_update

    class Halved(LRScheduler):  # as MXNet's scripts write them
        def __init__(self, every):
            super().__init__(base_lr=0.8)
            self.every = every

        def __call__(self, num_update):
            return self.base_lr * 0.5 ** (num_update // self.every)

    assert SGD(0.4, lr_scheduler=Halved(2)).rates("x_weight", 4, {}) == (0.1, 0.0)
    with pytest.raises(NotImplementedError, match="LRScheduler has neither decayed nor __call__"):
        SGD(lr_scheduler=LRScheduler()).rates("x_weight", 1, {})
    assert SGD(0.5, lr_scheduler=Inverse()).rates("x_weight", 4, {}) == (0.125, 0.0)
    assert SGD(lr_scheduler=lambda number: 1 / number).rates("x_weight", 4, {}) == (0.25, 0.0)


def test_centered_rmsprop_survives_a_steady_gradient():
    """The variance of a constant is 0 but often rounds below it, whose root is nan in MXNet."""
    grad = np.linspace(0.1, 1000, 4096, dtype=np.float32)
    got, _ = train(RMSProp(centered=True), np.ones_like(grad), [grad] * 300)
    assert np.isfinite(got).all()


def test_two_stages_are_clipped_by_their_common_norm():
    """Case N5: norms 3 and 4 are 5 together, within a limit of 5."""
    stages = [np.array([3.0, 0.0]), np.array([[0.0], [-4.0]])]
    total = sum(optimizer.sum_of_squares(np, g) for g in stages)
    assert total == 25.0
    assert optimizer.global_norm_scale(total, 5.0) == 1.0
    assert optimizer.global_norm_scale(total, 2.5) == 0.5
    assert optimizer.global_norm_scale(4.0, 5.0) == optimizer.global_norm_scale(0.0, 5.0) == 1.0


@pytest.mark.parametrize("total", [math.nan, math.inf])
def test_a_norm_that_is_not_finite_is_an_error(total):
    with pytest.raises(RunError, match="sum of squares of all gradients is"):
        optimizer.global_norm_scale(total, 5.0)


def test_the_limit_of_the_norm_is_above_zero():
    with pytest.raises(ConfigError, match="limit of the global norm is 0"):
        optimizer.global_norm_scale(1.0, 0)


def test_sum_of_squares_is_exact_and_steady():
    rng = np.random.default_rng(7)
    grad = rng.standard_normal((600, 500)).astype(np.float32)
    got = optimizer.sum_of_squares(np, grad)
    assert got == pytest.approx(math.fsum(float(x) ** 2 for x in grad.flat), rel=1e-13)
    assert got == optimizer.sum_of_squares(np, grad.T.copy().T)
    assert optimizer.sum_of_squares(np, np.full(10, 1e30, np.float32)) == pytest.approx(1e61)


def test_update_refuses_arrays_that_do_not_belong_together():
    opt, w = SGD(momentum=0.9), np.ones((2, 3))
    state = opt.state("w", w)
    with pytest.raises(ShapeError, match=r"'w' is \(2, 3\) but its grad is \(3, 2\)"):
        opt.apply(np, "w", w, np.ones((3, 2)), state, 1)
    with pytest.raises(DTypeError, match="'w' is float64 but its grad float32"):
        opt.apply(np, "w", w, np.ones((2, 3), np.float32), state, 1)
    with pytest.raises(ShapeError, match="but its mom is"):
        opt.apply(np, "w", w, w, {"mom": np.ones(6)}, 1)
    with pytest.raises(GraphError, match=r"holds \[\] but SGD needs \['mom'\]"):
        opt.apply(np, "w", w, w, {}, 1)
    with pytest.raises(GraphError, match="weight of parameter 'w' is not C-contiguous"):
        opt.apply(np, "w", w.T, np.ones((3, 2)), {"mom": np.ones((3, 2))}, 1)
    with pytest.raises(GraphError, match="update_count of 'w' is 0: the first update is 1"):
        opt.apply(np, "w", w, w, state, 0)
    with pytest.raises(DTypeError, match="'ids' is int64, but only floats are trained"):
        opt.state("ids", np.arange(3))


def test_create():
    assert optimizer.create("Adam", learning_rate=0.1, beta1=0.8) == Adam(0.1, beta1=0.8)
    with pytest.raises(ConfigError, match="unknown optimizer 'sdg': did you mean 'sgd'"):
        optimizer.create("sdg")
    with pytest.raises(ConfigError, match="'sgd' has no setting 'momentun': did you mean 'moment"):
        optimizer.create("sgd", momentun=0.9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SGD(-0.1), "SGD: learning_rate is -0.1 but must be 0 or more"),
        (lambda: SGD(momentum=1.0), "SGD: momentum is 1.0 but must be 0 or more and below 1"),
        (lambda: SGD(wd=-1), "wd is -1"),
        (lambda: RMSProp(centered="False"), "centered is 'False' but must be True or False"),
        (lambda: LAMB(lower_bound=-1.0), "lower_bound is -1.0 but must be 0 or more"),
        (lambda: LAMB(upper_bound=-1.0), "upper_bound is -1.0 but must be above 0"),
        (lambda: SGD(begin_num_update=-5), "begin_num_update is -5 but must be 0 or more"),
        (lambda: Adam(clip_gradient=0), "Adam: clip_gradient is 0 but must be above 0"),
        (lambda: Adam(beta2=1.0), "beta2 is 1.0"),
        (lambda: Adam(epsilon=0), "epsilon is 0"),
        (lambda: RMSProp(gamma1=-0.1), "gamma1 is -0.1"),
        (lambda: SGD(math.nan), "learning_rate is nan"),
        (lambda: SGD("0.1"), "SGD: learning_rate is '0.1' but must be a finite number"),
        (lambda: SGD(momentum=None), "SGD: momentum is None but must be a finite number"),
        (lambda: Adam(rescale_grad=math.nan), "rescale_grad is nan but must be a finite number"),
        (
            lambda: SGD(lr_scheduler=0.5),
            "lr_scheduler must be one of symgraph.lr_scheduler, not 0.5",
        ),
        (lambda: SGD(0.1, lr_scheduler=math.sqrt), "omit learning_rate"),
        (lambda: optimizer.create(3), "unknown optimizer 3: known: 'adadelta'"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
