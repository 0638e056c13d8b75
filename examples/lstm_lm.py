"""The main job: a stacked LSTM language model, unrolled in time, in groups that can be placed.

    python -m symgraph.run examples/lstm_lm.yaml

Groups: `embed`, `layer0`, `layer1`, ... and `decode`. The network is MXNet's model-parallel LSTM
example with each layer's input projection as one product over all time steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import symgraph as sg
from symgraph import Feed, Model, Symbol, TensorType

Steps = Symbol | list[Symbol]  # a sequence: one symbol with time as axis 0, or one a time step


def lstm_layer(
    inputs: Steps, hidden: int, steps: int, name: str
) -> tuple[list[Symbol], Symbol, Symbol]:
    """One LSTM layer: its outputs (B, hidden), one a time step, and its last c and h.

    inputs: (T, B, inputs), to be projected in one product, or one (B, inputs) a time step. Gates
    are in MXNet's order i, f, c, o. The forget gate's bias starts at 1.
    """
    bias = sg.sym.Variable(f"{name}_i2h_bias", init=sg.init.LSTMBias(forget_bias=1.0))
    i2h, h2h = (sg.sym.Variable(f"{name}_{kind}_weight") for kind in ("i2h", "h2h"))
    if isinstance(inputs, Symbol):
        projected = sg.sym.FullyConnected(
            inputs, weight=i2h, bias=bias, num_hidden=4 * hidden, flatten=False, name=f"{name}_i2h"
        )
        by_step = sg.sym.SliceChannel(
            projected, num_outputs=steps, axis=0, squeeze_axis=True, name=f"{name}_steps"
        )
    c, h = sg.sym.Variable(f"{name}_init_c"), sg.sym.Variable(f"{name}_init_h")
    outputs = []
    for t in range(steps):
        with sg.AttrScope(time_step=str(t)):
            if isinstance(inputs, Symbol):
                projection = by_step[t]
            else:
                projection = sg.sym.FullyConnected(
                    inputs[t], weight=i2h, bias=bias, num_hidden=4 * hidden, name=f"{name}_t{t}_i2h"
                )
            recurrent = sg.sym.FullyConnected(
                h, weight=h2h, no_bias=True, num_hidden=4 * hidden, name=f"{name}_t{t}_h2h"
            )
            gates = sg.sym.SliceChannel(
                projection + recurrent, num_outputs=4, axis=1, name=f"{name}_t{t}_gates"
            )
            i, f, o = (sg.sym.sigmoid(gates[k]) for k in (0, 1, 3))
            c = sg.sym.elemwise_add(f * c, i * sg.sym.tanh(gates[2]), name=f"{name}_t{t}_c")
            h = sg.sym.elemwise_mul(o, sg.sym.tanh(c), name=f"{name}_t{t}_h")
            outputs.append(h)
    return outputs, c, h


def over_time(function: Callable[..., Symbol], name: str, *sequences: Steps) -> Steps:
    """A function of whole sequences, or of each time step where they are lists of steps."""
    if isinstance(sequences[0], Symbol):
        return function(*sequences, name=name)
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
    by_step: bool = False,
    decode_shards: int | str = "devices",
    dtype: str = "float32",
) -> Model:
    """A language model on time-major word ids `data` (T, B), to predict `label` (T, B).

    residual: each layer's input is added to its output where the sizes are equal, as in GNMT;
    deep stacks learn much sooner so. by_step: a layer projects its inputs one time step at a time
    and not all in one product; so layers on different devices can work on different time steps
    (`pipeline.time_segment`). decode_shards: pieces that the decoder and its softmax are split
    in, or their proportion ("3:2"), for as many devices; by default one for each that group2ctx
    maps `decode` to. Outputs: the softmax loss, the summed negative log-likelihood with the number
    of words, and the last states of every layer, from which the next batch starts.
    """
    feeds = {
        n: Feed(TensorType((sequence_length, batch_size), "int32"), 1) for n in ("data", "label")
    }
    states: dict[str, str] = {}
    last = []
    with sg.AttrScope(ctx_group="embed"):
        x = sg.sym.Embedding(
            sg.sym.Variable("data"), input_dim=vocab, output_dim=embed, name="embed"
        )
        if by_step:
            x = list(sg.sym.SliceChannel(
                x, num_outputs=sequence_length, axis=0, squeeze_axis=True, name="embed_steps"
            ))  # fmt: skip
    for layer in range(layers):
        name = f"layer{layer}"
        with sg.AttrScope(ctx_group=name):
            if dropout:
                x = over_time(partial(sg.sym.Dropout, p=dropout), f"{name}_dropout", x)
            below = x
            outputs, *ends = lstm_layer(x, hidden, sequence_length, name)
            x = outputs if by_step else sg.sym.stack(*outputs, axis=0, name=f"{name}_out")
            if residual and (layer or embed == hidden):
                x = over_time(sg.sym.elemwise_add, f"{name}_residual", x, below)
            for kind, end in zip("ch", ends, strict=True):
                last.append(sg.sym.BlockGrad(end, name=f"{name}_last_{kind}"))
                states[f"{name}_init_{kind}"] = f"{name}_last_{kind}_output"
    feeds |= {n: Feed(TensorType((batch_size, hidden), dtype), 0) for n in states}
    with sg.AttrScope(ctx_group="decode", shard=str(decode_shards)):
        if by_step:
            x = sg.sym.stack(*x, axis=0, name="outputs")
        if dropout:
            x = sg.sym.Dropout(x, p=dropout, name="decode_dropout")
        rows = sg.sym.Reshape(x, shape=(-1, hidden), name="rows")
        scores = sg.sym.FullyConnected(rows, num_hidden=vocab, name="decode")
        label = sg.sym.Reshape(sg.sym.Variable("label"), shape=(-1,), name="labels")
        loss = sg.sym.SoftmaxOutput(scores, label, normalization="batch", name="softmax")
        figures = sg.sym.nll_stats(loss, label, name="nll")
    return Model(sg.sym.Group([loss, figures, *last]), feeds, states)
