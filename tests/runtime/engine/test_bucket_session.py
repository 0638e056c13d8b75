"""Buckets: one array a parameter, each bucket its own length, several of them in one step."""

from __future__ import annotations

import numpy as np
import pytest

import symgraph as sg
from runtime.backends.cpu.gemm import available
from runtime.engine.bucket_session import BucketSession
from runtime.engine.session import initialize
from runtime.schedule.generators.table import SCHEDULES
from runtime.transports import ThreadCluster
from symgraph.passes.precision import FLOAT32
from tests.helpers.buckets import (
    HIDDEN,
    PAD,
    VOCAB,
    batch,
    gradients_of,
    judge,
    lstm,
    make_buckets,
    options,
    padded,
    start,
)

pytestmark = pytest.mark.filterwarnings("ignore:group2ctx maps groups")


def copied(session):
    return {n: a.copy() for n, a in session.parameters().items()}


def assert_right(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.every(9)
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_step_of_several_buckets_equals_the_reference(schedule, devices):
    batches = [batch(7), batch(3), batch(5, 1), batch(3, 2)]
    buckets = make_buckets(lstm(), batches[0], options(devices, schedule))
    with ThreadCluster(devices) as cluster:
        session, _ = start(buckets, cluster)
        before = copied(session)
        figures = session.step_batches(batches)
        grads, nll, words = judge(lstm(), batches, before)
        assert_right(gradients_of(session), grads)
        assert figures["nll_count"] == words
        assert figures["nll_nll"] == pytest.approx(nll, rel=1e-10)
        after = session.parameters()
        assert_right(after, {n: w - 0.1 * grads[n] for n, w in before.items()})


@pytest.mark.every(9)
@pytest.mark.parametrize("time_segment", [None, 2])
@pytest.mark.parametrize("recompute", ["none", "all"])
def test_placement_and_schedule_change_no_bit(time_segment, recompute):
    batches = [batch(3), batch(7), batch(5), batch(7, 1)]

    def gradients(devices, schedule):
        how = {"time_segment": time_segment, "recompute": recompute, "micro_batches": 3}
        made = options(devices, schedule, **how)
        buckets = make_buckets(lstm(dropout=0.3), batch(7), made)
        with ThreadCluster(devices) as cluster:
            session, _ = start(buckets, cluster)
            figures = session.step_batches(batches)
            return gradients_of(session), figures

    alone, figures = gradients(1, "gpipe")
    for devices, schedule in [(2, "gpipe"), (2, "1f1b"), (3, "zb-h1"), (3, "wavefront")]:
        got, told = gradients(devices, schedule)
        assert told == figures
        for name, value in alone.items():
            assert got[name].tobytes() == value.tobytes(), (name, devices, schedule)


def test_the_order_in_which_batches_are_given_changes_no_bit():
    batches = [batch(3), batch(7), batch(5)]
    found = []
    for order in ([0, 1, 2], [2, 0, 1]):
        with ThreadCluster(2) as cluster:
            session, _ = start(make_buckets(lstm(), batch(7), options(2, "1f1b")), cluster)
            session.step_batches([batches[i] for i in order])
            found.append(gradients_of(session))
    for name, value in found[0].items():
        assert value.tobytes() == found[1][name].tobytes()


def linear(weight_first=True):
    """`data` (2, key) times a weight: the sum over the key's columns keeps one shape for all."""

    def sym_gen(key):
        a, data = sg.sym.Variable("a", shape=(2, 1)), sg.sym.Variable("data")
        product = sg.sym.broadcast_mul(a, data) if weight_first else sg.sym.broadcast_mul(data, a)
        loss = sg.sym.MakeLoss(sg.sym.sum(product, axis=1), name="loss")
        return loss, ("data",), None

    return sym_gen


def ones(key):
    data = np.ones((2, key), np.float64)
    described = [sg.io.DataDesc("data", data.shape, "float64")]
    return sg.io.DataBatch([data], bucket_key=key, provide_data=described)


@pytest.mark.parametrize("keys", [(10,), (5,), (10, 5)])
def test_gradients_of_buckets(keys):
    """mxnet test_bucket_module_grad_req: every bucket writes into the one gradient of `a`.

    A gradient of 2 for each column; two buckets in one step add up, as grad_req add would.
    """
    buckets = make_buckets(linear(), ones(10), options(1, micro_batches=1, groups=None))
    with ThreadCluster(1) as cluster:
        arrays = {0: {"a": np.ones((2, 1))}}
        session = BucketSession(
            buckets, cluster, arrays, optimizer=sg.optimizer.create("sgd", learning_rate=0.0)
        )
        for _ in range(2):
            session.step_batches([ones(key) for key in keys])
            np.testing.assert_array_equal(session.workers[0].grads["a"], np.full((2, 1), sum(keys)))


def test_an_update_through_one_bucket_is_seen_in_all():
    """The original example gave each bucket its own parameters: five models, none of them whole."""
    buckets = make_buckets(lstm(), batch(10), options(2))
    with ThreadCluster(2) as cluster:
        session, arrays = start(buckets, cluster)
        before = copied(session)
        session.step_batches([batch(5)])
        grads, _, _ = judge(lstm(), [batch(5)], before)
        stepped = {n: w - 0.1 * grads[n] for n, w in before.items()}
        figures = session.step_batches([batch(10)])
        assert figures["nll_nll"] == pytest.approx(judge(lstm(), [batch(10)], stepped)[1])
        held = {id(a) for own in arrays.values() for a in own.values()}
        for workers in session._bound.values():
            for worker in workers.values():
                assert {id(a) for a in worker.arrays.values()} <= held


def test_a_bucket_runs_its_own_number_of_steps():
    """The original example unrolled all its buckets to the length of the largest."""
    buckets = make_buckets(lstm(), batch(10), options(2))
    with ThreadCluster(2) as cluster:
        session, _ = start(buckets, cluster)
        for length in (8, 10):
            session.step_batches([batch(length)])
            plan = session.workers[0].plan
            cells = [n for n in plan.network.first if n.op == "_lstm_gates" and n.origin is None]
            assert len(cells) == 2 * length


def test_padding_changes_neither_loss_nor_gradients():
    rng = np.random.default_rng(5)
    sentences = [rng.integers(1, VOCAB, n) for n in (8, 5, 7)]
    buckets = make_buckets(lstm(), padded(sentences, 60), options(2, micro_batches=2))
    found = []
    with ThreadCluster(2) as cluster:
        session, _ = start(
            buckets, cluster, optimizer=sg.optimizer.create("sgd", learning_rate=0.0)
        )
        for length in (8, 60):
            figures = session.step_batches([padded(sentences, length)])
            found.append((figures, gradients_of(session)))
    (short, grads), (long, padded_grads) = found
    assert short["nll_count"] == long["nll_count"] == sum(len(s) - 1 for s in sentences)
    assert short["nll_nll"] == pytest.approx(long["nll_nll"], rel=1e-12)
    for name, value in grads.items():
        np.testing.assert_allclose(padded_grads[name], value, rtol=1e-12, atol=1e-14)
        assert np.abs(value).max() > 0
    assert not padded_grads["embed_weight"][PAD].any()


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary():
    """The original example divided by sentences: its perplexity was that of whole sentences."""
    buckets = make_buckets(lstm(), batch(9), options(2))
    with ThreadCluster(2) as cluster:
        arrays = initialize(buckets.default, cluster, sg.init.Zero(), 1)
        session = BucketSession(buckets.scoring(), cluster, arrays)
        for given in ([batch(9), batch(4)], [batch(6)]):
            session.step_batches(given)
        figures = session.collect()
    words = sum(int((b.label[0] != PAD).sum()) for b in (batch(9), batch(4), batch(6)))
    assert figures["nll_count"] == words
    assert np.exp(figures["nll_nll"] / figures["nll_count"]) == pytest.approx(VOCAB, rel=1e-12)


def poison(session):
    for shared in session.resources.values():
        shared.pool.memory[:] = 0xFF  # not a number in any float


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_buckets_leave_each_other_nothing(schedule):
    """Buckets 5, 10, 5, 60, alone and together, give what a fresh session gives for each."""
    steps = [[batch(5)], [batch(10)], [batch(5, 1)], [batch(60)], [batch(5), batch(10)], [batch(5)]]
    rest = {"optimizer": sg.optimizer.create("sgd", learning_rate=0.0)}
    buckets = make_buckets(lstm(), batch(60), options(2, schedule))
    with ThreadCluster(2) as cluster:
        session, arrays = start(buckets, cluster, **rest)
        for given in steps:
            poison(session)
            session.step_batches(given)
            got = gradients_of(session)
            fresh = BucketSession(buckets, cluster, arrays, **rest)
            fresh.step_batches(given)
            for name, value in gradients_of(fresh).items():
                assert np.isfinite(value).all()
                assert got[name].tobytes() == value.tobytes()


def test_arguments_in_another_order_are_matched_by_name():
    """mxnet PR #1624: parameters were matched by position."""

    def sym_gen(key):
        return linear(weight_first=key > 7)(key)

    buckets = make_buckets(sym_gen, ones(10), options(1, micro_batches=1, groups=None))
    with ThreadCluster(1) as cluster:
        arrays = {0: {"a": np.ones((2, 1))}}
        session = BucketSession(
            buckets, cluster, arrays, optimizer=sg.optimizer.create("sgd", learning_rate=0.5)
        )
        session.step_batches([ones(10)])
        session.step_batches([ones(5)])
        orders = [list(made.parameters) for made in buckets._plans.values()]
        assert orders == [["a"], ["a"]]
        np.testing.assert_array_equal(arrays[0]["a"], np.full((2, 1), 1 - 0.5 * 15))


@pytest.mark.slow
def test_the_pool_does_not_depend_on_the_order_of_buckets():
    """One pool, as large as the largest step needs; what is in it has to make room first."""
    steps = [[batch(5)], [batch(12)], [batch(30)], [batch(12), batch(5)]]
    held = []
    for order in ([0, 1, 2, 3], [2, 3, 1, 0], [3, 0, 2, 1]):
        with ThreadCluster(2) as cluster:
            session, _ = start(make_buckets(lstm(), batch(5), options(2)), cluster)
            for index in order:
                session.step_batches(steps[index])
            held.append(session.held)
    assert held[0] == held[1] == held[2]
    with ThreadCluster(2) as cluster:
        alone, _ = start(make_buckets(lstm(), batch(30), options(2)), cluster)
        assert alone.held == held[0]


@pytest.mark.parametrize("precision", [FLOAT32, "bfloat16"])
def test_buckets_pack_what_they_read_in_memory_of_the_pool(precision):
    """In the long bucket the decoder has more rows than weights are packed for."""
    batches, held = [batch(12, size=32), batch(3, size=32), batch(5, size=32)], []
    made = options(2, micro_batches=1, precision=precision)
    still = {"optimizer": sg.optimizer.create("sgd", learning_rate=0.0)}
    for order in ([0, 1, 2], [2, 1, 0]):
        with ThreadCluster(2) as cluster:
            buckets = make_buckets(lstm(), batches[0], made, dtype="float32")
            session, _ = start(buckets, cluster, **still)
            for index in order:
                session.step_batches([batches[index]])
                first = gradients_of(session)
                for rank, worker in session.workers.items():
                    buffers = [packed.buffer for packed in worker.packs.buffers.values()]
                    assert len(buffers) == len(worker.parts.packed[rank])
                    assert all(np.shares_memory(b, worker.memory) for b in buffers)
                    worker.memory[:] = 0xFF  # not a number, in every dtype
                if precision == FLOAT32 and available():
                    read = {name for of in worker.parts.packed for name, *_ in of}
                    assert ("decode_weight" in read) == (index > 0)
                session.step_batches([batches[index]])
                for name, gradient in gradients_of(session).items():
                    assert gradient.tobytes() == first[name].tobytes()
            held.append(session.held)
    assert held[0] == held[1]


def attention(key):
    """Two axes: every one of `target` words reads a weighted sum of `source` words."""
    source, target = key
    with sg.AttrScope(ctx_group="embed"):
        words = [
            sg.sym.Embedding(sg.sym.Variable(n), input_dim=VOCAB, output_dim=HIDDEN, name=f"{n}_in")
            for n in ("source", "target")
        ]
    with sg.AttrScope(ctx_group="decode"):
        keys = sg.sym.Reshape(words[0], shape=(-1, 1, source, HIDDEN))
        queries = sg.sym.Reshape(words[1], shape=(-1, target, 1, HIDDEN))
        scores = sg.sym.sum(sg.sym.broadcast_mul(queries, keys), axis=3, keepdims=True)
        read = sg.sym.sum(sg.sym.broadcast_mul(sg.sym.softmax(scores, axis=2), keys), axis=2)
        rows = sg.sym.Reshape(read + words[1], shape=(-1, HIDDEN))
        out = sg.sym.FullyConnected(rows, num_hidden=VOCAB, name="decode")
        label = sg.sym.Reshape(sg.sym.Variable("label"), shape=(-1,))
        loss = sg.sym.SoftmaxOutput(
            out, label, normalization="valid", use_ignore=True, ignore_label=PAD, name="softmax"
        )
    return loss, ("source", "target"), ("label",)


def pair(source, target):
    rng = np.random.default_rng((source, target))
    arrays = [rng.integers(1, VOCAB, (4, n), np.int32) for n in (source, target, target)]
    described = [
        sg.io.DataDesc(n, a.shape, "int32")
        for n, a in zip(("source", "target", "label"), arrays, strict=True)
    ]
    key = (source, target)
    return sg.io.DataBatch(
        arrays[:2],
        arrays[2:],
        bucket_key=key,
        provide_data=described[:2],
        provide_label=described[2:],
    )


def test_two_axes_of_which_no_bucket_has_the_longest_of_both():
    pairs = [pair(20, 3), pair(3, 20), pair(9, 9)]
    held = []
    for order in ([0, 1, 2], [2, 1, 0]):
        groups = {"embed": sg.cpu(0), "decode": sg.cpu(1)}
        buckets = make_buckets(attention, pairs[order[0]], options(2, groups=groups))
        with ThreadCluster(2) as cluster:
            session, _ = start(buckets, cluster)
            for index in order:
                session.step_batches([pairs[index]])
            held.append(session.held)
            session.step_batches(pairs)
            assert all(np.isfinite(g).all() for g in gradients_of(session).values())
    assert held[0] == held[1]
