"""The transformer example: what it computes, in numpy's words; any partition; that it learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import erf

from examples.transformer_lm import build
from runtime.training.data.table import load_data
from runtime.training.job import prepare
from runtime.training.trainer import Trainer
from runtime.transports import ThreadCluster, make_cluster
from symgraph import cpu
from symgraph.app.config import load_config
from symgraph.core.errors import ConfigError
from symgraph.frontend.lower import lower
from tests.helpers.pipelines import Case, judge, make_plan, merged, on_devices, run_step

STEPS, BATCH, VOCAB, HIDDEN, HEADS, LAYERS = 6, 4, 11, 8, 2, 2
CONFIG = Path(__file__).parents[2] / "examples" / "transformer_lm.yaml"
APART = {"embed": cpu(0), "layer0": cpu(0), "layer1": cpu(1), "decode": cpu(1)}
AND_BACK = {**APART, "decode": cpu(0)}


def case(**more: object) -> Case:
    """A small network of float64, and values for everything."""
    model = build(
        BATCH, STEPS, VOCAB, layers=LAYERS, hidden=HIDDEN, heads=HEADS, dtype="float64", **more
    )
    rng = np.random.default_rng(0)
    feeds = {n: rng.integers(VOCAB, size=(STEPS, BATCH)).astype("int32") for n in ("data", "label")}
    graph = lower(
        model.symbol, {n: a.shape for n, a in feeds.items()}, dict.fromkeys(model.feeds, "int32")
    )
    types = {n.name: n.types[0] for n in graph.variables if n.name not in feeds}
    arrays = {n: rng.standard_normal(t.shape) * 0.5 for n, t in types.items()}
    assert {t.dtype for t in types.values()} == {"float64"}
    return Case(model.symbol, feeds, arrays, dict.fromkeys(feeds, 1))


def normed(x, arrays, name):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * arrays[f"{name}_norm_gamma"] + arrays[f"{name}_norm_beta"]


def dense(x, arrays, name):
    return x @ arrays[f"{name}_weight"].T + arrays[f"{name}_bias"]


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def probabilities(data, arrays):
    """(batch, steps, vocab), a sequence and a head at a time."""
    found = []
    for words in data.T:
        x = arrays["embed_weight"][words] + arrays["place_weight"][0]
        for i in range(LAYERS):
            parts = dense(normed(x, arrays, f"layer{i}_attend"), arrays, f"layer{i}_qkv")
            query, key, value = np.split(parts, 3, -1)
            heads = []
            for at in np.split(np.arange(HIDDEN), HEADS):
                scores = query[:, at] @ key[:, at].T / np.sqrt(HIDDEN // HEADS)
                scores[np.triu_indices(STEPS, 1)] = -np.inf
                heads.append(softmax(scores) @ value[:, at])
            x = x + dense(np.concatenate(heads, -1), arrays, f"layer{i}_out")
            wide = dense(normed(x, arrays, f"layer{i}_think"), arrays, f"layer{i}_wide")
            wide = wide * (1 + erf(wide / np.sqrt(2))) / 2
            x = x + dense(wide, arrays, f"layer{i}_narrow")
        found.append(softmax(dense(normed(x, arrays, "top"), arrays, "decode")))
    return np.array(found)


def test_it_is_the_network_of_the_paper():
    given = case()
    loss, *figures = judge(given).outputs
    wanted = probabilities(given.feeds["data"], given.arrays)
    np.testing.assert_allclose(loss.reshape(wanted.shape), wanted, rtol=1e-9)
    labels = given.feeds["label"].T
    nll = -np.log(np.take_along_axis(wanted, labels[..., None], -1)).sum()
    np.testing.assert_allclose(np.concatenate(figures), [nll, STEPS * BATCH], rtol=1e-9)


@pytest.mark.every(3)
@pytest.mark.parametrize("groups", [APART, AND_BACK])
@pytest.mark.parametrize(
    ("schedule", "micro_batches"), [("gpipe", 1), ("gpipe", 4), ("1f1b", 4), ("zb-h1", 2)]
)
def test_any_partition_gives_the_same(groups, schedule, micro_batches):
    given = case()
    made = make_plan(given, on_devices(2, groups, schedule, micro_batches))
    with ThreadCluster(2) as cluster:
        found = merged(run_step(made, given, cluster))
    wanted = judge(given)
    np.testing.assert_allclose(found.outputs[0], wanted.outputs[0], rtol=1e-10)
    assert {*found.grads} == {*wanted.grads}
    for name, grad in wanted.grads.items():
        np.testing.assert_allclose(found.grads[name], grad, rtol=1e-8, atol=1e-12, err_msg=name)


@pytest.mark.slow
def test_it_learns_from_the_command_line_s_config(tmp_path):
    words = " ".join(f"w{(i * i) % 17}" for i in range(40))
    text = tmp_path / "text.txt"
    text.write_text("\n".join([words] * 60), encoding="utf-8")
    config = load_config(
        str(CONFIG),
        [
            "args={layers: 2, hidden: 16, heads: 2, dropout: 0.05}",
            "data.batch_size=8",
            "data.sequence_length=12",
            "data.vocab=20",
            "data.kind=text",
            f"data.path={text}",
            "group2ctx={embed: cpu(0), layer0: cpu(0), layer1: cpu(1), decode: [cpu(0), cpu(1)]}",
            "train.steps=120",
            "train.seconds=null",
            "train.learning_rate=0.01",
            "evaluate.every=null",
        ],
    )
    with make_cluster("threads", len(config.devices)) as cluster:
        loss = Trainer(prepare(config), cluster, load_data(config)).fit()["loss"]
    assert loss < 0.5  # of 17 words, each is told by those before it: log 17 = 2.8 without


def test_heads_share_the_hidden_units():
    with pytest.raises(ConfigError, match=r"hidden \(10\) is not a multiple of heads \(4\)"):
        build(2, 3, hidden=10, heads=4)
