"""A small bucketed language model for tests, its batches, and the judge's answer for a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import symgraph as sg
from runtime.engine.bucket_session import BucketSession
from runtime.engine.session import Arrays, initialize
from runtime.planning.buckets import Buckets
from runtime.planning.options import Options
from runtime.transports import Cluster
from symgraph.core.reference import evaluate
from symgraph.core.registry import Env
from symgraph.frontend.io import DataBatch, DataDesc
from symgraph.frontend.lower import lower
from symgraph.passes.gradients import gradients

VOCAB, HIDDEN, PAD = 11, 4, 0


def lstm(
    layers: int = 2, normalization: str = "valid", dropout: float = 0.0, pad: int = PAD
) -> Callable[[int], Any]:
    """A `sym_gen`: groups `embed`, `layer0`, ... and `decode`; pads are ignored."""

    def sym_gen(length: int) -> Any:
        data, label = sg.sym.Variable("data"), sg.sym.Variable("softmax_label")
        with sg.AttrScope(ctx_group="embed"):
            x = sg.sym.Embedding(data, input_dim=VOCAB, output_dim=HIDDEN, name="embed")
        for layer in range(layers):
            with sg.AttrScope(ctx_group=f"layer{layer}"):
                cell = sg.rnn.LSTMCell(HIDDEN, prefix=f"lstm{layer}_")
                x, _ = cell.unroll(length, x, layout="NTC", merge_outputs=True)
                if dropout:
                    x = sg.sym.Dropout(x, p=dropout, name=f"drop{layer}")
        with sg.AttrScope(ctx_group="decode"):
            rows = sg.sym.Reshape(x, shape=(-1, HIDDEN))
            scores = sg.sym.FullyConnected(rows, num_hidden=VOCAB, name="decode")
            flat = sg.sym.Reshape(label, shape=(-1,))
            given = {"use_ignore": True, "ignore_label": pad}
            loss = sg.sym.SoftmaxOutput(
                scores, flat, normalization=normalization, name="softmax", **given
            )
            figures = sg.sym.nll_stats(loss, flat, name="nll", **given)
        return sg.sym.Group([loss, figures]), ("data",), ("softmax_label",)

    return sym_gen


def batch(length: int, seed: int = 0, size: int = 4, pad: int = PAD) -> DataBatch:
    """Sentences of up to `length` words, one of them that long, for the bucket of that length."""
    rng = np.random.default_rng((seed, length))
    lengths = [length, *rng.integers(1, length + 1, size - 1)]
    return padded([rng.integers(1, VOCAB, n) for n in lengths], length, pad)


def padded(sentences: Sequence[np.ndarray], length: int, pad: int = PAD) -> DataBatch:
    """A batch of these sentences, padded to a length."""
    data = np.full((len(sentences), length), pad, np.int32)
    for row, sentence in zip(data, sentences, strict=True):
        row[: len(sentence)] = sentence
    label = np.full_like(data, pad)
    label[:, :-1] = data[:, 1:]
    names = DataDesc("data", data.shape, "int32"), DataDesc("softmax_label", data.shape, "int32")
    return DataBatch(
        [data], [label], bucket_key=length, provide_data=names[:1], provide_label=names[1:]
    )


def halves(layers: int = 2, devices: int = 2) -> dict[str, sg.Context]:
    """Neighbouring groups on one device."""
    groups = ["embed", *(f"layer{i}" for i in range(layers)), "decode"]
    return {g: sg.cpu(i * devices // len(groups)) for i, g in enumerate(groups)}


def make_buckets(
    sym_gen: Callable[[int], Any], largest: DataBatch, options: Options, **more: Any
) -> Buckets:
    given = {"dtype": "float64", **more}
    return Buckets(sym_gen, largest.bucket_key, largest.descriptions, options, **given)


def options(devices: int = 1, schedule: str = "gpipe", micro_batches: int = 2, **more: Any) -> Any:
    """Options of a training plan for `lstm()` with neighbouring groups together."""
    contexts = tuple(sg.cpu(i) for i in range(devices))
    given = {"groups": halves(devices=devices), "update": True, **more}
    return Options(
        default=contexts[0],
        devices=contexts,
        schedule=schedule,
        micro_batches=micro_batches,
        **given,
    )


def start(
    buckets: Buckets, cluster: Cluster, seed: int = 1, **more: Any
) -> tuple[BucketSession, Arrays]:
    """A training session with fresh parameters."""
    arrays = initialize(buckets.default, cluster, sg.init.Uniform(0.5), seed)
    given = {"optimizer": sg.optimizer.create("sgd", learning_rate=0.1), **more}
    return BucketSession(buckets, cluster, arrays, **given), arrays


def gradients_of(session: BucketSession) -> dict[str, np.ndarray]:
    """The gradients of the last step, over all local ranks."""
    return {n: g.copy() for w in session.workers.values() for n, g in w.grads.items()}


def judge(
    sym_gen: Callable[[int], Any], batches: Sequence[DataBatch], arrays: dict[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], float, float]:
    """The reference interpreter, a batch at a time: gradients for the mean over the words of all
    batches, the summed negative log-likelihood, and the number of words."""
    total: dict[str, np.ndarray] = {}
    nll = 0.0
    words = sum(int((b.label[0] != PAD).sum()) for b in batches)
    for given in batches:
        symbol, *_ = sym_gen(given.bucket_key)
        values = {**given.feeds, **arrays}
        shapes = {n: a.shape for n, a in values.items()}
        graph = lower(symbol, shapes, {n: str(a.dtype) for n, a in values.items()})
        both = gradients(graph, list(arrays), heads=False)
        results = evaluate(both.graph, values, Env(train=True))
        own = int((given.label[0] != PAD).sum())
        for name, grad in zip(both.grads, results[len(graph.outputs) :], strict=True):
            total[name] = total.get(name, 0.0) + grad * (max(1, own) / words)
        nll += float(results[1][0])
    return total, nll, float(words)
