"""Recurrent networks: MXNet's `mx.rnn`."""

from symgraph.rnn.cells import BaseRNNCell, GRUCell, LSTMCell, RNNCell, RNNParams
from symgraph.rnn.io import BucketSentenceIter, encode_sentences
from symgraph.rnn.stacks import DropoutCell, ModifierCell, ResidualCell, SequentialRNNCell

__all__ = [
    "BaseRNNCell",
    "BucketSentenceIter",
    "DropoutCell",
    "GRUCell",
    "LSTMCell",
    "ModifierCell",
    "RNNCell",
    "RNNParams",
    "ResidualCell",
    "SequentialRNNCell",
    "encode_sentences",
]
