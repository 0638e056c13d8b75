"""The network: a GRU that reads both ways, and one that writes and looks back (Luong et al. 2015).

Groups `encoder` and `decoder`. Padding changes nothing: the encoder's second direction begins at
the last real word, attention is among real words, and labels of pads do not count.
"""

from __future__ import annotations

from examples.seq2seq_attention.numerals import PAD, VOCABULARY, Key
from symgraph import AttrScope, Symbol, rnn, sym

FAR = -1e9  # a score whose softmax is 0


def network(key: Key, units: int) -> tuple[Symbol, list[str], list[str]]:
    """A `sym_gen` for (source, target) lengths: the softmax loss over words, and three figures:
    the summed negative log-likelihood, the number of words, and of answers that are all right.

    An answer is right if each of its words is the most probable one after those before it, so it is
    what greedy decoding would write.
    """
    with AttrScope(ctx_group="encoder"):
        length = sym.Variable("source_length")
        memory, first = encode(key[0], length, units)
    with AttrScope(ctx_group="decoder"):
        states = decode(key[1], units, first)
        context = attend(states, memory, length, units)
        both = sym.Concat(states, context, dim=2, name="both")
        top = sym.FullyConnected(both, num_hidden=units, flatten=False, name="top")
        top = sym.Activation(top, act_type="tanh", name="top_tanh")
        rows = sym.Reshape(top, shape=(-1, units), name="rows")
        scores = sym.FullyConnected(rows, num_hidden=len(VOCABULARY), name="words")
        label = sym.Variable("label")
        flat = sym.Reshape(label, shape=(-1,), name="labels")
        pads = {"use_ignore": True, "ignore_label": PAD}
        loss = sym.SoftmaxOutput(scores, flat, normalization="valid", name="softmax", **pads)
        figures = sym.nll_stats(loss, flat, name="nll", **pads)
        right = right_answers(loss, label, key[1])
    return sym.Group([loss, figures, right]), ["source", "source_length", "target"], ["label"]


def encode(steps: int, length: Symbol, units: int) -> tuple[Symbol, Symbol]:
    """States of both directions (N, T, 2 * units), and the decoder's first state (N, units)."""
    ends = {"sequence_length": length, "use_sequence_length": True}
    words = sym.SwapAxis(embedded("source", units), dim1=0, dim2=1)
    ahead, _ = reader("ahead", units).unroll(steps, words, layout="TNC", merge_outputs=True)
    turned = sym.SequenceReverse(words, name="turned", **ends)
    back, _ = reader("back", units).unroll(steps, turned, layout="TNC", merge_outputs=True)
    states = sym.Concat(ahead, sym.SequenceReverse(back, name="turned_back", **ends), dim=2)
    last = sym.SequenceLast(sym.Concat(ahead, back, dim=2), name="last", **ends)
    first = sym.FullyConnected(last, num_hidden=units, name="first")
    first = sym.Activation(first, act_type="tanh", name="first_tanh")
    return sym.SwapAxis(states, dim1=0, dim2=1), first


def decode(steps: int, units: int, first: Symbol) -> Symbol:
    """The decoder's states (N, T, units), from the words that it should have written so far."""
    words = embedded("target", units)
    states, _ = reader("write", units).unroll(
        steps, words, begin_state=[first], layout="NTC", merge_outputs=True
    )
    assert isinstance(states, Symbol)  # merged
    return states


def attend(states: Symbol, memory: Symbol, length: Symbol, units: int) -> Symbol:
    """What each state finds in the memory: a mean, weighted by the dot products with its words."""
    keys = sym.FullyConnected(memory, num_hidden=units, flatten=False, no_bias=True, name="keys")
    scores = sym.batch_dot(keys, states, transpose_b=True, name="scores")
    real = sym.SequenceMask(
        scores, length, use_sequence_length=True, axis=1, value=FAR, name="real"
    )
    weights = sym.softmax(real, axis=1, name="weights")
    return sym.batch_dot(weights, memory, transpose_a=True, name="context")


def right_answers(loss: Symbol, label: Symbol, steps: int) -> Symbol:
    """The number of samples without a wrong word; those of pads alone do not count."""
    best = sym.Reshape(sym.argmax(loss, axis=1), shape=(-1, steps))
    best, label = (sym.Cast(ids, dtype="float32") for ids in (best, label))
    real = label != PAD
    wrong = sym.sum((best != label) * real, axis=1)
    return sym.BlockGrad(sym.sum((wrong == 0) * (sym.sum(real, axis=1) > 0)), name="right")


def embedded(name: str, units: int) -> Symbol:
    data = sym.Variable(name)
    return sym.Embedding(data, input_dim=len(VOCABULARY), output_dim=units, name=f"{name}_embed")


def reader(name: str, units: int) -> rnn.GRUCell:
    return rnn.GRUCell(units, prefix=f"{name}_")
