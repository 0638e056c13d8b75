"""The network: stacked LSTMs that read on rank 0, and others that write on rank 1.

    rank 0   source ─ embedding ─ LSTMs ─┐
                                     h and c of each layer
    rank 1   target ─ embedding ─────── LSTMs ─ scores of words

(Sutskever et al. 2014, as ChainerMN's seq2seq example.) `training` reads what it should have
written so far, `greedy` what it wrote; both have the same parameters.
"""

from __future__ import annotations

from typing import NamedTuple

from runtime.chainermn import MultiNodeChainList, connect, create_multi_node_n_step_rnn

from examples.seq2seq.batches import Key
from examples.seq2seq.vocabulary import PAD
from symgraph import AttrScope, Symbol, rnn, sym
from symgraph.chainermn.chain_list import Call

READER, WRITER = 0, 1  # ranks
SymGen = tuple[Symbol, list[str], list[str]]


class Sizes(NamedTuple):
    """Numbers of tokens of both languages, and of the LSTMs' units and layers."""

    source: int
    target: int
    units: int
    layers: int


def training(key: Key, sizes: Sizes) -> SymGen:
    """A `sym_gen` for lengths: the softmax loss over words, and two figures: the summed negative
    log-likelihood and the number of words.
    """
    decoder = create_multi_node_n_step_rnn(
        stack("decoder", sizes), WRITER, rank_in=READER, layout="TNC", merge_outputs=True
    )
    with AttrScope(ctx_group=f"rank{WRITER}"):
        words = embedded("target", sizes.target, sizes.units)
    _, (outputs, _) = connect(encoder(key[0], sizes), decoder(key[1], words))
    with AttrScope(ctx_group=f"rank{WRITER}"):
        rows = sym.Reshape(outputs, shape=(-1, sizes.units), name="rows")
        scores = sym.FullyConnected(rows, num_hidden=sizes.target, name="words")
        label = sym.Reshape(sym.Variable("label"), shape=(-1,), name="labels")
        pads = {"use_ignore": True, "ignore_label": PAD}
        loss = sym.SoftmaxOutput(scores, label, normalization="valid", name="softmax", **pads)
        figures = sym.nll_stats(loss, label, name="nll", **pads)
    return sym.Group([loss, figures]), ["source", "target"], ["label"]


def greedy(key: Key, sizes: Sizes) -> SymGen:
    """A `sym_gen` for lengths: the most probable word of each step, int32 (T, N).

    `begin`: what each decoder reads first, (N,).
    """

    def write(*first: Symbol) -> Symbol:
        states, cell = list(first), stack("decoder", sizes)
        parameters = "target_embed_weight", "words_weight", "words_bias"
        table, weight, bias = map(sym.Variable, parameters)
        word, found = sym.Variable("begin"), []
        for _ in range(key[1]):
            x = sym.Embedding(word, table, input_dim=sizes.target, output_dim=sizes.units)
            x, states = cell(x, states)
            scores = sym.FullyConnected(x, weight, bias, num_hidden=sizes.target)
            word = sym.Cast(sym.argmax(scores, axis=1), dtype="int32")
            found.append(word)
        return sym.stack(*found, axis=0, name="translation")

    decoder = MultiNodeChainList(WRITER)
    messages = [READER] * len(stack("decoder", sizes).state_info)
    decoder.add_link(write, rank_in=messages, rank_out=None)
    _, translation = connect(encoder(key[0], sizes), decoder())
    return translation, ["source", "begin"], []


def encoder(steps: int, sizes: Sizes) -> Call:
    """What the first rank does: it sends its last states to the other."""
    with AttrScope(ctx_group=f"rank{READER}"):
        words = embedded("source", sizes.source, sizes.units)
    made = create_multi_node_n_step_rnn(
        stack("encoder", sizes), READER, rank_out=WRITER, layout="TNC"
    )
    return made(steps, words)


def stack(name: str, sizes: Sizes) -> rnn.SequentialRNNCell:
    made = rnn.SequentialRNNCell()
    for layer in range(sizes.layers):
        made.add(rnn.LSTMCell(sizes.units, prefix=f"{name}{layer}_"))
    return made


def embedded(name: str, tokens: int, units: int) -> Symbol:
    data = sym.Variable(name)
    return sym.Embedding(data, input_dim=tokens, output_dim=units, name=f"{name}_embed")
