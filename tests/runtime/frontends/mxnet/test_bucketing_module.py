"""The bucketing module: one array a parameter, whichever bucket's network changes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symgraph as mx
from symgraph.core.errors import ConfigError, GraphError, RunError
from symgraph.frontend.io import DataBatch, DataDesc, DataIter
from symgraph.frontend.name import NameManager
from tests.helpers.gpus import everywhere

VOCAB, HIDDEN, BATCH = 7, 5, 4
GROUPS = {"embed": mx.cpu(0), "rnn": mx.cpu(0), "decode": mx.cpu(1)}
ON_GPUS = {"embed": mx.cpu(0), "rnn": mx.gpu(0), "decode": mx.gpu(1)}


def sym_gen(length: int) -> Any:
    """A language model of `length` steps; padding (0) is left out of the loss."""
    with mx.AttrScope(ctx_group="embed"):
        data = mx.sym.Variable("data")
        x = mx.sym.Embedding(data, input_dim=VOCAB, output_dim=HIDDEN, name="embed")
    with mx.AttrScope(ctx_group="rnn"):
        x, _ = mx.rnn.LSTMCell(HIDDEN).unroll(length, x, merge_outputs=True)
        x = mx.sym.Reshape(x, shape=(-1, HIDDEN))
    with mx.AttrScope(ctx_group="decode"):
        x = mx.sym.FullyConnected(x, num_hidden=VOCAB, name="decode")
        label = mx.sym.Reshape(mx.sym.Variable("softmax_label"), shape=(-1,))
        loss = {"use_ignore": True, "ignore_label": 0, "normalization": "valid"}
        return mx.sym.SoftmaxOutput(x, label, name="softmax", **loss), ["data"], ["softmax_label"]


def batch(length: int, seed: int = 0) -> DataBatch:
    words = np.random.default_rng((seed, length)).integers(1, VOCAB, (BATCH, length))
    data, label = (DataDesc(n, words.shape, "int32", "NT") for n in ("data", "softmax_label"))
    return DataBatch(
        [words],
        [np.roll(words, -1, 1)],
        bucket_key=length,
        provide_data=[data],
        provide_label=[label],
    )


class Batches(DataIter):
    """Batches of these lengths, in this order."""

    def __init__(self, lengths: list[int]) -> None:
        super().__init__(BATCH)
        self.lengths = lengths
        self.default_bucket_key = max(lengths)
        self.reset()

    @property
    def provide_data(self) -> list[DataDesc]:
        return batch(self.default_bucket_key).provide_data

    @property
    def provide_label(self) -> list[DataDesc]:
        return batch(self.default_bucket_key).provide_label

    def reset(self) -> None:
        self._left = iter(enumerate(self.lengths))

    def next(self) -> DataBatch:
        seed, length = next(self._left)
        return batch(length, seed)


def bound(key: int = 8, **settings: Any) -> mx.mod.BucketingModule:
    module = mx.mod.BucketingModule(sym_gen, key, **settings)
    first = batch(key)
    module.bind(first.provide_data, first.provide_label)
    module.init_params(mx.init.Uniform(0.5))
    module.init_optimizer(optimizer_params={"learning_rate": 1.0, "momentum": 0.5})
    return module


def bits(module: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in module.get_params()[0].items()}


@pytest.mark.parametrize(("grad_req", "second"), [("write", 2.0), ("add", 4.0)])
def test_gradients_of_two_buckets_go_to_one_array(grad_req, second):
    """Case B1 (MXNet's test_bucket_module_grad_req)."""

    def network(key: int) -> Any:
        weight = mx.sym.Variable("a", shape=(1,), init=mx.init.One())
        scaled = mx.sym.broadcast_mul(mx.sym.Variable("data"), weight)
        return mx.sym.make_loss(scaled), ["data"], None

    with mx.mod.BucketingModule(network, default_bucket_key=10) as module:
        module.bind([("data", (2,))], grad_req=grad_req)
        module.init_params()
        for key, want in ((10, 2.0), (5, second)):
            provide = [DataDesc("data", (2,), layout="N")]
            module.forward_backward(
                DataBatch([np.ones(2)], None, provide_data=provide, bucket_key=key)
            )
            assert module.grad_dict["a"].tolist() == [want]


def test_weights_are_one_array_for_all_buckets():
    """Case B2: what bucket 3 learns is seen in bucket 8."""
    with bound() as module:
        module.forward(batch(8), is_train=False)
        before = module.get_outputs()[0]
        first = module.get_params()[0]
        module.train_batch(batch(3))
        assert module.symbol.list_outputs() == ["softmax_output"]
        assert module.get_outputs()[0].shape == (BATCH * 3, VOCAB)
        after = module.get_params()[0]
        assert all(not np.array_equal(first[n], after[n]) for n in first)
        module.forward(batch(8), is_train=False)
        assert not np.array_equal(module.get_outputs()[0], before)
        alone = mx.mod.Module(sym_gen(8)[0])
        alone.bind(batch(8).provide_data, batch(8).provide_label, for_training=False)
        alone.set_params(after)
        alone.forward(batch(8))
        np.testing.assert_array_equal(alone.get_outputs()[0], module.get_outputs()[0])


@everywhere(ON_GPUS, none=None)
def test_buckets_learn_as_a_serial_run_does(groups):
    """Against single modules, one a batch, that hand on parameters and momentum by file."""
    lengths = [8, 3, 5, 3, 8]
    with bound(group2ctxs=groups) as module:
        for seed, length in enumerate(lengths):
            module.train_batch(batch(length, seed))
        got = module.get_params()[0]
    with bound(8) as serial:
        params = serial.get_params()[0]
    momentum = {name: np.zeros_like(array) for name, array in params.items()}
    for seed, length in enumerate(lengths):
        with NameManager():
            symbol = sym_gen(length)[0]
        one, now = mx.mod.Module(symbol), batch(length, seed)
        one.bind(now.provide_data, now.provide_label)
        one.set_params(params)
        one.forward_backward(now)
        for name, gradient in one.grad_dict.items():
            momentum[name] = 0.5 * momentum[name] - gradient / BATCH
            params[name] += momentum[name]
        one.close()
    for name, array in params.items():
        np.testing.assert_allclose(got[name], array, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_buckets_are_the_same_on_every_placement(micro_batches):
    found = []
    for settings in ({}, {"group2ctxs": GROUPS}, {"group2ctxs": GROUPS, "schedule": "1f1b"}):
        with bound(micro_batches=micro_batches, **settings) as module:
            for seed, length in enumerate([3, 8, 3]):
                module.train_batch(batch(length, seed))
            found.append(bits(module))
    assert found[0] == found[1] == found[2]


def test_fit_and_score_over_buckets(caplog):
    caplog.set_level("INFO")
    train, valid = Batches([8, 3, 5, 3]), Batches([3, 8])
    module = mx.mod.BucketingModule(sym_gen, train.default_bucket_key, group2ctxs=GROUPS)
    with module:
        module.fit(
            train,
            valid,
            eval_metric=mx.metric.Perplexity(0),
            num_epoch=15,
            optimizer="adam",
            optimizer_params={"learning_rate": 0.05},
            initializer=mx.init.Xavier(),
        )
        ((name, value),) = module.score(train, mx.metric.Perplexity(0))
    lines = [r.getMessage() for r in caplog.records if "Train-perplexity" in r.getMessage()]
    figures = [float(line.split("=")[1]) for line in lines]
    assert name == "perplexity"
    assert figures[-1] < 0.6 * figures[0]
    assert value < figures[-1]


def test_names_agree_whatever_was_made_before():
    """A bucket's automatic names begin anew; arguments are found by name (case B9)."""

    def listed(key: int) -> Any:
        data = mx.sym.Variable("data")
        left = mx.sym.FullyConnected(data, num_hidden=3, name="a")
        right = mx.sym.FullyConnected(data, num_hidden=3)
        both = left + right if key > 1 else right + left
        return mx.sym.MakeLoss(both, name="loss"), ["data"], None

    orders = [listed(key)[0].list_arguments() for key in (2, 1)]
    assert sorted(orders[0])[:2] == ["a_bias", "a_weight"]
    assert orders[0].index("a_weight") < orders[0].index("a_bias")
    with mx.mod.BucketingModule(listed, 2) as module:
        module.bind([("data", (4, 6))])
        module.init_params(mx.init.Xavier())
        weights = module.get_params()[0]
        assert weights.keys() == {
            f"{layer}_{what}" for layer in ("a", "fullyconnected0") for what in ("weight", "bias")
        }
        data = np.random.default_rng(0).standard_normal((4, 6)).astype("float32")
        made = []
        for key in (2, 1):
            now = DataBatch([data], bucket_key=key, provide_data=[DataDesc("data", (4, 6))])
            module.forward(now, is_train=False)
            made.append(module.get_outputs()[0])
        np.testing.assert_allclose(made[0], made[1], rtol=1e-6)


def test_a_bucket_may_not_bring_new_parameters():
    def growing(key: int) -> Any:
        x = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=3, name=f"fc{key}")
        return mx.sym.MakeLoss(x), ["data"], None

    with mx.mod.BucketingModule(growing, 2) as module:
        module.bind([("data", (4, 6))])
        module.init_params()
        with pytest.raises(GraphError, match=r"parameter 'fc1_weight' is new: .* did you mean"):
            module.switch_bucket(1, [("data", (4, 6))])


@everywhere(ON_GPUS, none=None)
def test_checkpoints_of_buckets(groups, tmp_path):
    prefix, how = str(tmp_path / "lm"), {"group2ctxs": groups}
    with bound(**how) as straight, bound(**how) as paused:
        for module in (straight, paused):
            module.train_batch(batch(3))
        paused.save_checkpoint(prefix, 1, save_optimizer_states=True)
        again = mx.mod.BucketingModule.load(
            prefix, 1, sym_gen, 8, load_optimizer_states=True, **how
        )
        again.bind(batch(8).provide_data, batch(8).provide_label)
        again.init_optimizer(optimizer_params={"learning_rate": 1.0, "momentum": 0.5})
        for module in (straight, again):
            module.train_batch(batch(5))
        assert bits(again) == bits(straight)


def test_mistakes_with_buckets():
    with pytest.raises(ConfigError, match="default_bucket_key is missing"):
        mx.mod.BucketingModule(sym_gen)
    with pytest.raises(RunError, match="not bound to shapes"):
        mx.mod.BucketingModule(sym_gen, 8).switch_bucket(3, [])
    with pytest.raises(TypeError, match=r"sym_gen\(8\) gives <Symbol softmax>, but must give \(s"):
        mx.mod.BucketingModule(lambda length: sym_gen(length)[0], 8)
    with bound() as module, pytest.raises(ConfigError, match="bucket 3 does not say what its arra"):
        module.forward(DataBatch([np.ones((BATCH, 3))], bucket_key=3))


def test_what_a_bucketing_module_tells():
    """Its shapes, and the shared_module that it is not, were AttributeErrors."""
    with mx.mod.BucketingModule(lambda length: [*sym_gen(length)], 8) as module:
        module.bind(batch(8).provide_data, batch(8).provide_label)
        assert (module.for_training, module.inputs_need_grad) == (True, False)
        module.switch_bucket(3, batch(3).provide_data, batch(3).provide_label)
        assert module.output_shapes == [("softmax_output", (3 * BATCH, VOCAB))]
        with pytest.raises(GraphError, match=r"data_shapes describes \[\], but .* \['data'\]"):
            module.switch_bucket(5, None)
        other = mx.mod.Module(*sym_gen(3))
        with pytest.raises(TypeError, match="shared_module is a Module, not a BucketingModule"):
            other.bind(batch(3).provide_data, batch(3).provide_label, shared_module=module)


@pytest.mark.slow
def test_buckets_share_memory_and_places():
    """Whatever the order, what is held is what the largest bucket needs; places are the default's.

    Without groups, a strategy places the default bucket, and the others follow it.
    """

    def held(module: Any) -> list[int]:
        return [r.pool.memory.nbytes for r in module._store.resources.values()]

    found = []
    for lengths in ([8, 3, 5], [3, 8, 5]):
        with bound(context=[mx.cpu(0), mx.cpu(1)], strategy="uniform") as module:
            ranks = {}
            for length in lengths:
                module.train_batch(batch(length))
                made = module.plan
                ranks[length] = {name: made.rank_of(name) for name in made.parameters}
                assert bool(made.placements) == (length == 8)  # no other placement is searched
            assert ranks[3] == ranks[5] == ranks[8]
            assert set(ranks[8].values()) == {0, 1}
            found.append(held(module))
    with bound(context=[mx.cpu(0), mx.cpu(1)], strategy="uniform") as largest:
        largest.train_batch(batch(8))
        assert found == [held(largest)] * 2


@pytest.mark.slow
def test_only_the_default_bucket_searches_for_a_schedule():
    """Every bucket tried all schedules again, for seconds each."""
    module = bound(schedule="auto", micro_batches=2, group2ctxs=GROUPS, context=mx.cpu(0))
    assert len(module.plan.candidates) > 2
    named = [c for c in module.plan.candidates if c.schedule != "auto"]
    module.prepare(batch(4))
    other = module._buckets[4].plan
    assert other.candidates == (other.choice,)
    assert other.choice.schedule == min(named, key=lambda c: c.seconds).schedule


def test_gradients_of_a_network_are_gone_when_another_one_has_run():
    with bound() as module:
        module.forward(batch(8), is_train=True)
        module.forward(batch(3), is_train=True)
        module.switch_bucket(8, [])
        with pytest.raises(RunError, match="backward: another network of the same parameters has"):
            module.backward()
        module.switch_bucket(3, [])
        module.backward()
        module.update()


@pytest.mark.parametrize("fused", [False, True])
def test_mxnets_lstm_bucketing_example(fused, caplog):
    """The script as it stands in MXNet's examples, but for the import; with cells of either kind.

    What it makes of 200 sentences in which a word is followed by the next one.
    """
    caplog.set_level("INFO")
    rng = np.random.default_rng(0)
    starts = rng.integers(0, 9, 200)
    text = [[f"w{(s + i) % 9}" for i in range(rng.integers(3, 12))] for s in starts]
    sentences, vocab = mx.rnn.encode_sentences(text, invalid_label=0, start_label=1)
    layout = "TN" if fused else "NT"
    train = mx.rnn.BucketSentenceIter(
        sentences, 16, buckets=[4, 8, 12], invalid_label=0, layout=layout
    )
    if fused:
        stack: Any = mx.rnn.FusedRNNCell(12, num_layers=2, mode="lstm", prefix="lstm_")
    else:
        stack = mx.rnn.SequentialRNNCell()
        for i in range(2):
            stack.add(mx.rnn.LSTMCell(num_hidden=12, prefix=f"lstm_l{i}_"))

    def sym_gen(seq_len: int) -> Any:
        data = mx.sym.Variable("data")
        label = mx.sym.Variable("softmax_label")
        embed = mx.sym.Embedding(data=data, input_dim=len(vocab), output_dim=8, name="embed")
        stack.reset()
        outputs, _ = stack.unroll(seq_len, inputs=embed, merge_outputs=True, layout=layout + "C")
        pred = mx.sym.Reshape(outputs, shape=(-1, 12))
        pred = mx.sym.FullyConnected(data=pred, num_hidden=len(vocab), name="pred")
        label = mx.sym.Reshape(label, shape=(-1,))
        pred = mx.sym.SoftmaxOutput(data=pred, label=label, name="softmax")
        return pred, ("data",), ("softmax_label",)

    model = mx.mod.BucketingModule(
        sym_gen=sym_gen, default_bucket_key=train.default_bucket_key, context=mx.cpu(0)
    )
    with model:
        model.fit(
            train_data=train,
            eval_data=train,
            eval_metric=mx.metric.Perplexity(0),
            kvstore="device",
            optimizer="sgd",
            optimizer_params={"learning_rate": 0.05, "momentum": 0.9, "wd": 0.00001},
            initializer=mx.init.Xavier(factor_type="in", magnitude=2.34),
            num_epoch=14,
            batch_end_callback=mx.callback.Speedometer(16, 5, auto_reset=False),
        )
        ((_, value),) = model.score(train, mx.metric.Perplexity(0))
        parameters = set(model.get_params()[0])
    assert value < 2.0
    assert "lstm_l1_h2h_weight" in parameters
    assert any("perplexity=" in r.getMessage() for r in caplog.records)
