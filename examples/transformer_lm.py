"""A transformer language model (decoder only, pre-norm), in groups that can be placed.

    symgraph train examples/transformer_lm.yaml

Groups: `embed`, `layer0`, `layer1`, ... and `decode`. Every layer adds to one stream of
activations, so devices exchange only this stream and its gradient.

Source: Vaswani et al. 2017, "Attention is all you need"; Radford et al. 2019 for the position of
the norms.
"""

from __future__ import annotations

from symgraph import AttrScope, Feed, Model, Symbol, TensorType, sym
from symgraph.errors import ConfigError

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
    """Build a language model over int32 ids `data` and `label` (sequence_length, batch_size).

    Outputs: softmax loss over (batch_size * sequence_length, vocab), whose gradient is that of the
    mean loss per sequence, and (NLL sum, token count). A word attends to itself and to earlier
    words of its sequence. hidden must be a multiple of heads; words whose label is ignore_label do
    not count.
    """
    if hidden % heads:
        raise ConfigError(f"hidden ({hidden}) is not a multiple of heads ({heads})")
    ids = TensorType((sequence_length, batch_size), "int32")
    with AttrScope(ctx_group="embed"):
        x = embedded(sequence_length, vocab, hidden, dtype)
    for layer in range(layers):
        name = f"layer{layer}"
        with AttrScope(ctx_group=name):
            mask = causal_mask(sequence_length, dtype)
            size = sequence_length, hidden
            attended = attention(norm(x, f"{name}_attend"), heads, mask, size, name)
            x = add(x, attended, dropout, f"{name}_attended")
            x = add(x, feed_forward(norm(x, f"{name}_think"), hidden, name), dropout, name)
    with AttrScope(ctx_group="decode", shard=str(decode_shards)):
        rows = sym.Reshape(norm(x, "top"), shape=(-1, hidden), name="rows")
        scores = sym.FullyConnected(rows, num_hidden=vocab, name="decode")
        label = sym.SwapAxis(sym.Variable("label"), dim1=0, dim2=1, name="label_turned")
        label = sym.Reshape(label, shape=(-1,), name="labels")
        ignore = {} if ignore_label is None else {"use_ignore": True, "ignore_label": ignore_label}
        mean_over = "valid" if ignore else "batch"
        loss = sym.SoftmaxOutput(scores, label, normalization=mean_over, name="softmax", **ignore)
        figures = sym.nll_stats(loss, label, name="nll", **ignore)
    return Model(sym.Group([loss, figures]), {"data": Feed(ids, 1), "label": Feed(ids, 1)})


def embedded(steps: int, vocab: int, hidden: int, dtype: str) -> Symbol:
    """Embed words and their positions: (batch, steps, hidden)."""
    weight = sym.Variable("embed_weight", dtype=dtype)
    words = sym.Embedding(
        sym.Variable("data"), weight, input_dim=vocab, output_dim=hidden, dtype=dtype, name="embed"
    )
    places = sym.Variable("place_weight", shape=(1, steps, hidden), dtype=dtype)
    words = sym.SwapAxis(words, dim1=0, dim2=1, name="words")
    return sym.broadcast_add(words, places, name="placed")


def norm(x: Symbol, name: str) -> Symbol:
    """Normalize each word's activations, with learned scale and shift."""
    return sym.LayerNorm(x, axis=-1, name=f"{name}_norm")


def add(x: Symbol, output: Symbol, dropout: float, name: str) -> Symbol:
    """Add the output of a part of a layer to the stream."""
    if dropout:
        output = sym.Dropout(output, p=dropout, name=f"{name}_dropout")
    return sym.elemwise_add(x, output, name=f"{name}_sum")


def attention(x: Symbol, heads: int, mask: Symbol, size: tuple[int, int], name: str) -> Symbol:
    """Let each word attend to the words up to itself, with several heads.

    size is (steps, hidden units).
    """
    steps, hidden = size
    qkv = sym.FullyConnected(x, num_hidden=3 * hidden, flatten=False, name=f"{name}_qkv")
    query, key, value = split_heads(qkv, steps, heads, hidden // heads, name)
    scores = sym.batch_dot(query, key, transpose_b=True, name=f"{name}_scores")
    scores = scores * (hidden // heads) ** -0.5
    weights = sym.softmax(sym.broadcast_add(scores, mask), axis=-1, name=f"{name}_weights")
    context = sym.batch_dot(weights, value, name=f"{name}_found")
    context = sym.Reshape(context, shape=(-1, heads, steps, hidden // heads))
    context = sym.transpose(context, axes=(0, 2, 1, 3))
    context = sym.Reshape(context, shape=(-1, steps, hidden), name=f"{name}_together")
    return sym.FullyConnected(context, num_hidden=hidden, flatten=False, name=f"{name}_out")


def split_heads(qkv: Symbol, steps: int, heads: int, size: int, name: str) -> list[Symbol]:
    """Split (batch, steps, 3 * heads * size) into 3 of (batch * heads, steps, size).

    That is one copy: the parts then lie one after the other.
    """
    qkv = sym.Reshape(qkv, shape=(-1, steps, 3, heads, size))
    qkv = sym.transpose(qkv, axes=(2, 0, 3, 1, 4), name=f"{name}_heads")
    parts = sym.SliceChannel(qkv, num_outputs=3, axis=0, name=f"{name}_parts")
    return [sym.Reshape(part, shape=(-1, steps, size)) for part in parts]


def causal_mask(steps: int, dtype: str) -> Symbol:
    """Return (1, steps, steps): FAR where the column's word comes after the row's, else 0."""
    places = sym.arange(0, steps, dtype=dtype)
    rows, columns = (sym.Reshape(places, shape=shape) for shape in ((1, -1, 1), (1, 1, -1)))
    return sym.broadcast_greater(columns, rows) * FAR


def feed_forward(x: Symbol, hidden: int, name: str) -> Symbol:
    """Apply a two-layer perceptron to each word."""
    x = sym.FullyConnected(x, num_hidden=4 * hidden, flatten=False, name=f"{name}_wide")
    x = sym.LeakyReLU(x, act_type="gelu", name=f"{name}_gelu")
    return sym.FullyConnected(x, num_hidden=hidden, flatten=False, name=f"{name}_narrow")
