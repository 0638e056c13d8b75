"""A tagger of sequences with lengths: an LSTM in each direction, each on a device of its own.

symgraph train examples/tagger.yaml
"""

from __future__ import annotations

import symgraph as sg
from symgraph import Feed, Model, Symbol, TensorType

IGNORED = -1  # the label behind the end of a sequence


def build(
    batch_size: int,
    length: int = 32,
    symbols: int = 128,
    embed: int = 32,
    hidden: int = 64,
    tags: int = 7,
) -> Model:
    """Build a network that reads ids `data` (T, B), of which `length` (B,) count, and tags each.

    `label` (T, B) is -1 behind the end of a sequence. Groups: forward, backward (which also joins
    both directions).

    Args:
        batch_size: Sequences per batch, B.
        length: Time steps, T.
        symbols: Ids.
        embed: Size of the embeddings of each direction.
        hidden: Units of each LSTM.
        tags: Tags.
    """
    data, lengths = sg.sym.Variable("data"), sg.sym.Variable("length")
    directions = []
    for name in ("forward", "backward"):
        with sg.AttrScope(ctx_group=name):
            x = sg.sym.Embedding(data, input_dim=symbols, output_dim=embed, name=f"{name}_embed")
            if name == "backward":
                x = _reversed(x, lengths)
            cell = sg.rnn.LSTMCell(hidden, prefix=f"{name}_")
            x, _ = cell.unroll(length, x, layout="TNC", merge_outputs=True)
            directions.append(_reversed(x, lengths) if name == "backward" else x)
    with sg.AttrScope(ctx_group="backward"):
        x = sg.sym.Reshape(sg.sym.Concat(*directions, dim=2), shape=(-1, 2 * hidden))
        scores = sg.sym.FullyConnected(x, num_hidden=tags, name="scores")
        loss = sg.sym.SoftmaxOutput(
            scores,
            sg.sym.Reshape(sg.sym.Variable("label"), shape=(-1,)),
            use_ignore=True,
            ignore_label=IGNORED,
            normalization="valid",
            name="softmax",
        )
    ids = Feed(TensorType((length, batch_size), "int32"), 1)
    return Model(
        loss, {"data": ids, "length": Feed(TensorType((batch_size,), "int32")), "label": ids}
    )


def _reversed(x: Symbol, lengths: Symbol) -> Symbol:
    return sg.sym.SequenceReverse(x, lengths, use_sequence_length=True)
