"""The main job: a stacked LSTM language model, unrolled in time, in groups that can be placed.

    symgraph train examples/lstm_lm.yaml

Groups: `embed`, `layer0`, `layer1`, ... and `decode`. The network is that of MXNet's
model-parallel LSTM example, written one time step at a time; planning merges operators that can
process many time steps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import symgraph as sg
from symgraph import Feed, Model, Symbol, TensorType


def each_step(function: Callable[..., Symbol], name: str, *sequences: list[Symbol]) -> list[Symbol]:
    """Apply a function to every time step of one or more sequences."""
    outputs = []
    for t, step in enumerate(zip(*sequences, strict=True)):
        with sg.AttrScope(time_step=str(t)):
            outputs.append(function(*step, name=f"{name}_t{t}"))
    return outputs


def build(
    batch_size: int,
    sequence_length: int,
    vocab: int = 10_000,
    layers: int = 4,
    hidden: int = 200,
    embed: int = 200,
    dropout: float = 0.0,
    residual: bool = True,
    decode_shards: int | str = "devices",
    ignore_label: int | None = None,
    dtype: str = "float32",
) -> Model:
    """Build a language model that reads word ids `data` (T, B) and predicts `label` (T, B).

    The outputs are the softmax loss, the summed negative log-likelihood with the number of words,
    and the last states of every layer, from which the next batch starts.

    Args:
        batch_size: sequences per batch, B.
        sequence_length: time steps per batch, T.
        vocab: words of the vocabulary.
        layers: LSTM layers.
        hidden: units per layer.
        embed: size of the word embeddings.
        dropout: probability of dropout before each layer and the decoder.
        residual: whether each layer's input is added to its output if the sizes are equal, as in
            GNMT; deep stacks learn much faster this way.
        decode_shards: number of pieces of the decoder and its softmax, or their proportion ("3:2"),
            one per device; by default one for each device that group2ctx maps `decode` to.
        ignore_label: the label of padding, which does not count; with it, the loss is the mean over
            all other words of a step.
        dtype: dtype of weights and activations.
    """
    feeds = {
        n: Feed(TensorType((sequence_length, batch_size), "int32"), 1) for n in ("data", "label")
    }
    states: dict[str, str] = {}
    last = []
    with sg.AttrScope(ctx_group="embed"):
        words = sg.sym.Embedding(
            sg.sym.Variable("data"), input_dim=vocab, output_dim=embed, name="embed"
        )
        x = list(
            sg.sym.SliceChannel(
                words, num_outputs=sequence_length, axis=0, squeeze_axis=True, name="embed_steps"
            )
        )
    for layer in range(layers):
        name = f"layer{layer}"
        with sg.AttrScope(ctx_group=name):
            if dropout:
                x = each_step(partial(sg.sym.Dropout, p=dropout), f"{name}_dropout", x)
            cell = sg.rnn.LSTMCell(hidden, prefix=f"{name}_")
            begin = [sg.sym.Variable(f"{name}_init_{kind}") for kind in "hc"]
            outputs, ends = cell.unroll(sequence_length, x, begin)
            if residual and (layer or embed == hidden):
                outputs = each_step(sg.sym.elemwise_add, f"{name}_residual", outputs, x)
            x = outputs
            for kind, end in zip("hc", ends, strict=True):
                last.append(sg.sym.BlockGrad(end, name=f"{name}_last_{kind}"))
                states[f"{name}_init_{kind}"] = f"{name}_last_{kind}_output"
    feeds |= {n: Feed(TensorType((batch_size, hidden), dtype), 0) for n in states}
    with sg.AttrScope(ctx_group="decode", shard=str(decode_shards)):
        top = sg.sym.stack(*x, axis=0, name="outputs")
        if dropout:
            top = sg.sym.Dropout(top, p=dropout, name="decode_dropout")
        rows = sg.sym.Reshape(top, shape=(-1, hidden), name="rows")
        scores = sg.sym.FullyConnected(rows, num_hidden=vocab, name="decode")
        label = sg.sym.Reshape(sg.sym.Variable("label"), shape=(-1,), name="labels")
        ignore = {} if ignore_label is None else {"use_ignore": True, "ignore_label": ignore_label}
        mean_over = "valid" if ignore else "batch"
        loss = sg.sym.SoftmaxOutput(
            scores, label, normalization=mean_over, name="softmax", **ignore
        )
        figures = sg.sym.nll_stats(loss, label, name="nll", **ignore)
    return Model(sg.sym.Group([loss, figures, *last]), feeds, states)
