"""The main job: a stacked LSTM language model, unrolled in time, in groups that can be placed.

    python -m symgraph.run examples/lstm_lm.yaml

Groups: `embed`, `layer0`, `layer1`, ... and `decode`. The network is that of MXNet's
model-parallel LSTM example, written one time step at a time; what can be computed for many steps
at once is merged when it is planned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import symgraph as sg
from symgraph import Feed, Model, Symbol, TensorType


def each_step(function: Callable[..., Symbol], name: str, *sequences: list[Symbol]) -> list[Symbol]:
    """A function of every time step of one or more sequences."""
    made = []
    for t, step in enumerate(zip(*sequences, strict=True)):
        with sg.AttrScope(time_step=str(t)):
            made.append(function(*step, name=f"{name}_t{t}"))
    return made


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
    """A language model on time-major word ids `data` (T, B), to predict `label` (T, B).

    residual: each layer's input is added to its output where the sizes are equal, as in GNMT;
    deep stacks learn much sooner so. decode_shards: pieces that the decoder and its softmax are
    split in, or their proportion ("3:2"), for as many devices; by default one for each that
    group2ctx maps `decode` to. ignore_label: the label of pads, which do not count; with it, the
    loss is the mean over all other words of a step. Outputs: the softmax loss, the summed negative
    log-likelihood with the number of words, and the last states of every layer, from which the next
    batch starts.
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
        how = "valid" if ignore else "batch"
        loss = sg.sym.SoftmaxOutput(scores, label, normalization=how, name="softmax", **ignore)
        figures = sg.sym.nll_stats(loss, label, name="nll", **ignore)
    return Model(sg.sym.Group([loss, figures, *last]), feeds, states)
