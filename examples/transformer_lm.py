"""A transformer language model (decoder only, pre-norm), in groups that can be placed.

    python -m symgraph.run examples/transformer_lm.yaml

Groups: `embed`, `layer0`, `layer1`, ... and `decode`. Every layer adds to one stream of values.
So all that crosses from device to device is that stream, and its gradient on the way back.

Source: Vaswani et al. 2017, "Attention is all you need"; Radford et al. 2019 for the place of the
norms.
"""

from __future__ import annotations

from symgraph.errors import ConfigError

from symgraph import AttrScope, Feed, Model, Symbol, TensorType, sym

FAR = -1e9  # a score whose softmax is 0


def build(
    batch_size: int,
    sequence_length: int,
    vocab: int = 10_000,
    layers: int = 4,
    hidden: int = 192,
    heads: int = 4,
    dropout: float = 0.0,
    decode_shards: int | str = "devices",
    ignore_label: int | None = None,
    dtype: str = "float32",
) -> Model:
    """Language model over int32 ids `data` and `label` (sequence_length, batch_size).

    Outputs: softmax loss over (batch_size * sequence_length, vocab), whose gradient is that of the
    mean loss a sequence, and (NLL sum, token count). A word sees itself and those before it in its
    piece of text. hidden: a multiple of heads. ignore_label: the label of words that do not count.
    """
    if hidden % heads:
        raise ConfigError(f"hidden ({hidden}) is no multiple of heads ({heads})")
    ids = TensorType((sequence_length, batch_size), "int32")
    with AttrScope(ctx_group="embed"):
        x = embedded(sequence_length, vocab, hidden, dtype)
    for layer in range(layers):
        name = f"layer{layer}"
        with AttrScope(ctx_group=name):
            mask = later(sequence_length, dtype)
            size = sequence_length, hidden
            found = attention(norm(x, f"{name}_attend"), heads, mask, size, name)
            x = plus(x, found, dropout, f"{name}_attended")
            x = plus(x, feed_forward(norm(x, f"{name}_think"), hidden, name), dropout, name)
    with AttrScope(ctx_group="decode", shard=str(decode_shards)):
        rows = sym.Reshape(norm(x, "top"), shape=(-1, hidden), name="rows")
        scores = sym.FullyConnected(rows, num_hidden=vocab, name="decode")
        label = sym.SwapAxis(sym.Variable("label"), dim1=0, dim2=1, name="label_turned")
        label = sym.Reshape(label, shape=(-1,), name="labels")
        ignore = {} if ignore_label is None else {"use_ignore": True, "ignore_label": ignore_label}
        how = "valid" if ignore else "batch"
        loss = sym.SoftmaxOutput(scores, label, normalization=how, name="softmax", **ignore)
        figures = sym.nll_stats(loss, label, name="nll", **ignore)
    return Model(sym.Group([loss, figures]), {"data": Feed(ids, 1), "label": Feed(ids, 1)})


def embedded(steps: int, vocab: int, hidden: int, dtype: str) -> Symbol:
    """Words and their places (batch, steps, hidden)."""
    weight = sym.Variable("embed_weight", dtype=dtype)
    words = sym.Embedding(
        sym.Variable("data"), weight, input_dim=vocab, output_dim=hidden, dtype=dtype, name="embed"
    )
    places = sym.Variable("place_weight", shape=(1, steps, hidden), dtype=dtype)
    words = sym.SwapAxis(words, dim1=0, dim2=1, name="words")
    return sym.broadcast_add(words, places, name="placed")


def norm(x: Symbol, name: str) -> Symbol:
    """Every word's activations with mean 0 and variance 1, times and plus what is learned."""
    return sym.LayerNorm(x, axis=-1, name=f"{name}_norm")


def plus(x: Symbol, more: Symbol, dropout: float, name: str) -> Symbol:
    """The stream with what a part of a layer has found."""
    if dropout:
        more = sym.Dropout(more, p=dropout, name=f"{name}_dropout")
    return sym.elemwise_add(x, more, name=f"{name}_sum")


def attention(x: Symbol, heads: int, mask: Symbol, size: tuple[int, int], name: str) -> Symbol:
    """What each word finds in those up to itself, by several heads. size: steps, hidden units."""
    steps, hidden = size
    every = sym.FullyConnected(x, num_hidden=3 * hidden, flatten=False, name=f"{name}_qkv")
    parts = sym.SliceChannel(every, num_outputs=3, axis=2, name=f"{name}_parts")
    query, key, value = (apart(part, steps, heads, hidden // heads) for part in parts)
    scores = sym.batch_dot(query, key, transpose_b=True, name=f"{name}_scores")
    scores = scores * (hidden // heads) ** -0.5
    weights = sym.softmax(sym.broadcast_add(scores, mask), axis=-1, name=f"{name}_weights")
    found = sym.batch_dot(weights, value, name=f"{name}_found")
    found = sym.Reshape(found, shape=(-1, heads, steps, hidden // heads))
    found = sym.transpose(found, axes=(0, 2, 1, 3))
    found = sym.Reshape(found, shape=(-1, steps, hidden), name=f"{name}_together")
    return sym.FullyConnected(found, num_hidden=hidden, flatten=False, name=f"{name}_out")


def apart(x: Symbol, steps: int, heads: int, size: int) -> Symbol:
    """(batch, steps, heads * size) as (batch * heads, steps, size)."""
    x = sym.transpose(sym.Reshape(x, shape=(-1, steps, heads, size)), axes=(0, 2, 1, 3))
    return sym.Reshape(x, shape=(-1, steps, size))


def later(steps: int, dtype: str) -> Symbol:
    """(1, steps, steps): FAR where the column's word comes after the row's, 0 elsewhere."""
    places = sym.arange(0, steps, dtype=dtype)
    rows, columns = (sym.Reshape(places, shape=shape) for shape in ((1, -1, 1), (1, 1, -1)))
    return sym.broadcast_greater(columns, rows) * FAR


def feed_forward(x: Symbol, hidden: int, name: str) -> Symbol:
    """What is thought about each word by itself."""
    x = sym.FullyConnected(x, num_hidden=4 * hidden, flatten=False, name=f"{name}_wide")
    x = sym.LeakyReLU(x, act_type="gelu", name=f"{name}_gelu")
    return sym.FullyConnected(x, num_hidden=hidden, flatten=False, name=f"{name}_narrow")
