"""The network: stacked LSTMs that read on rank 0, and stacked LSTMs that write on rank 1.

    rank 0   source ─ embedding ─ LSTMs ─┐
                                     h and c of each layer
    rank 1   target ─ embedding ─────── LSTMs ─ scores of words

As ChainerMN's seq2seq example, after Sutskever et al. 2014. The decoder of `training` reads the
correct words so far, that of `greedy` the words it has written; both have the same parameters.
"""

from __future__ import annotations

from typing import NamedTuple

from examples.seq2seq.batches import Key
from examples.seq2seq.vocabulary import PAD
from runtime import chainermn
from symgraph import AttrScope, Symbol, rnn, sym

READER, WRITER = 0, 1  # ranks
SymGen = tuple[Symbol, list[str], list[str]]


class Sizes(NamedTuple):
    """Numbers of tokens of both languages, and of units and layers of the LSTMs."""

    source: int
    target: int
    units: int
    layers: int


def training(key: Key, sizes: Sizes) -> SymGen:
    """A `sym_gen` for training, by a bucket's lengths.

    The outputs are the softmax loss over words, and two figures: the summed negative log-likelihood
    and the number of words.
    """
    decoder = chainermn.create_multi_node_n_step_rnn(
        stack("decoder", sizes), WRITER, rank_in=READER, layout="TNC", merge_outputs=True
    )
    with AttrScope(ctx_group=f"rank{WRITER}"):
        words = embedded("target", sizes.target, sizes.units)
    _, (outputs, _) = chainermn.connect(encoder(key[0], sizes), decoder(key[1], words))
    with AttrScope(ctx_group=f"rank{WRITER}"):
        rows = sym.Reshape(outputs, shape=(-1, sizes.units), name="rows")
        scores = sym.FullyConnected(rows, num_hidden=sizes.target, name="words")
        label = sym.Reshape(sym.Variable("label"), shape=(-1,), name="labels")
        pads = {"use_ignore": True, "ignore_label": PAD}
        loss = sym.SoftmaxOutput(scores, label, normalization="valid", name="softmax", **pads)
        figures = sym.nll_stats(loss, label, name="nll", **pads)
    return sym.Group([loss, figures]), ["source", "target"], ["label"]


def greedy(key: Key, sizes: Sizes) -> SymGen:
    """A `sym_gen` for greedy decoding, by a bucket's lengths.

    The output is the most probable word of each step, int32 (T, N). The variable `begin` (N,) holds
    the first word that the decoder reads.
    """

    def write(*first: Symbol) -> Symbol:
        states, cell = list(first), stack("decoder", sizes)
        parameters = "target_embed_weight", "words_weight", "words_bias"
        table, weight, bias = map(sym.Variable, parameters)
        word, words = sym.Variable("begin"), []
        for _ in range(key[1]):
            x = sym.Embedding(word, table, input_dim=sizes.target, output_dim=sizes.units)
            x, states = cell(x, states)
            scores = sym.FullyConnected(x, weight, bias, num_hidden=sizes.target)
            word = sym.Cast(sym.argmax(scores, axis=1), dtype="int32")
            words.append(word)
        return sym.stack(*words, axis=0, name="translation")

    decoder = chainermn.MultiNodeChainList(WRITER)
    messages = [READER] * len(stack("decoder", sizes).state_info)
    decoder.add_link(write, rank_in=messages, rank_out=None)
    _, translation = chainermn.connect(encoder(key[0], sizes), decoder())
    return translation, ["source", "begin"], []


def encoder(steps: int, sizes: Sizes) -> chainermn.Call:
    """Call the encoder on the first rank, which sends its last states to the other."""
    with AttrScope(ctx_group=f"rank{READER}"):
        words = embedded("source", sizes.source, sizes.units)
    cell = chainermn.create_multi_node_n_step_rnn(
        stack("encoder", sizes), READER, rank_out=WRITER, layout="TNC"
    )
    return cell(steps, words)


def stack(name: str, sizes: Sizes) -> rnn.SequentialRNNCell:
    cell = rnn.SequentialRNNCell()
    for layer in range(sizes.layers):
        cell.add(rnn.LSTMCell(sizes.units, prefix=f"{name}{layer}_"))
    return cell


def embedded(name: str, tokens: int, units: int) -> Symbol:
    data = sym.Variable(name)
    return sym.Embedding(data, input_dim=tokens, output_dim=units, name=f"{name}_embed")
