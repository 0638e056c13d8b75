"""The network: a bidirectional GRU that reads, and one that writes with attention.

Groups: `encoder` and `decoder`. Padding has no effect: the encoder's backward direction begins at
the last real word, attention is restricted to real words, and labels of padding do not count.
Source: Luong et al. 2015.
"""

from __future__ import annotations

from examples.seq2seq_attention.numerals import PAD, VOCABULARY, Key
from symgraph import AttrScope, Symbol, rnn, sym

FAR = -1e9  # a score whose softmax is 0


def network(
    key: Key, units: int, vocabulary: int = len(VOCABULARY)
) -> tuple[Symbol, list[str], list[str]]:
    """A `sym_gen` by (source, target) lengths, for words 0 to `vocabulary` - 1.

    The outputs are the softmax loss over words, and three figures: the summed negative
    log-likelihood, the number of words, and the number of right answers. An answer is right if each
    of its words is the most probable one after its predecessors: greedy decoding would write it.
    """
    with AttrScope(ctx_group="encoder"):
        length = sym.Variable("source_length")
        memory, first = encode(key[0], length, embedded("source", units, vocabulary), units)
    with AttrScope(ctx_group="decoder"):
        states = decode(key[1], embedded("target", units, vocabulary), first, units)
        context = attend(states, memory, length, units)
        joined = sym.Concat(states, context, dim=2, name="both")
        top = sym.FullyConnected(joined, num_hidden=units, flatten=False, name="top")
        top = sym.Activation(top, act_type="tanh", name="top_tanh")
        rows = sym.Reshape(top, shape=(-1, units), name="rows")
        scores = sym.FullyConnected(rows, num_hidden=vocabulary, name="words")
        label = sym.Variable("label")
        flat = sym.Reshape(label, shape=(-1,), name="labels")
        pads = {"use_ignore": True, "ignore_label": PAD}
        loss = sym.SoftmaxOutput(scores, flat, normalization="valid", name="softmax", **pads)
        figures = sym.nll_stats(loss, flat, name="nll", **pads)
        right = right_answers(loss, label, key[1])
    return sym.Group([loss, figures, right]), ["source", "source_length", "target"], ["label"]


def encode(steps: int, length: Symbol, words: Symbol, units: int) -> tuple[Symbol, Symbol]:
    """Return states of both directions (N, T, 2 * units) and the first decoder state (N, units)."""
    ends = {"sequence_length": length, "use_sequence_length": True}
    words = sym.SwapAxis(words, dim1=0, dim2=1)
    forward, _ = reader("ahead", units).unroll(steps, words, layout="TNC", merge_outputs=True)
    reversed_words = sym.SequenceReverse(words, name="turned", **ends)
    backward, _ = reader("back", units).unroll(
        steps, reversed_words, layout="TNC", merge_outputs=True
    )
    states = sym.Concat(forward, sym.SequenceReverse(backward, name="turned_back", **ends), dim=2)
    last = sym.SequenceLast(sym.Concat(forward, backward, dim=2), name="last", **ends)
    first = sym.FullyConnected(last, num_hidden=units, name="first")
    first = sym.Activation(first, act_type="tanh", name="first_tanh")
    return sym.SwapAxis(states, dim1=0, dim2=1), first


def decode(steps: int, words: Symbol, first: Symbol, units: int) -> Symbol:
    """Return the decoder's states (N, T, units), computed from the correct words so far."""
    states, _ = reader("write", units).unroll(
        steps, words, begin_state=[first], layout="NTC", merge_outputs=True
    )
    assert isinstance(states, Symbol)  # merged
    return states


def attend(states: Symbol, memory: Symbol, length: Symbol, units: int) -> Symbol:
    """Return the context of each state: a mean of the memory, weighted by softmax of products."""
    keys = sym.FullyConnected(memory, num_hidden=units, flatten=False, no_bias=True, name="keys")
    scores = sym.batch_dot(keys, states, transpose_b=True, name="scores")
    real = sym.SequenceMask(
        scores, length, use_sequence_length=True, axis=1, value=FAR, name="real"
    )
    weights = sym.softmax(real, axis=1, name="weights")
    return sym.batch_dot(weights, memory, transpose_a=True, name="context")


def right_answers(loss: Symbol, label: Symbol, steps: int) -> Symbol:
    """Count the samples without a wrong word; samples of padding only do not count."""
    best = sym.Reshape(sym.argmax(loss, axis=1), shape=(-1, steps))
    best, label = (sym.Cast(ids, dtype="float32") for ids in (best, label))
    real = label != PAD
    wrong = sym.sum((best != label) * real, axis=1)
    return sym.BlockGrad(sym.sum((wrong == 0) * (sym.sum(real, axis=1) > 0)), name="right")


def embedded(name: str, units: int, vocabulary: int) -> Symbol:
    data = sym.Variable(name)
    return sym.Embedding(data, input_dim=vocabulary, output_dim=units, name=f"{name}_embed")


def reader(name: str, units: int) -> rnn.GRUCell:
    return rnn.GRUCell(units, prefix=f"{name}_")
