"""Recurrent networks (MXNet's `mx.rnn`): cells, stacks, checkpoints, sentences in buckets.

May import frontend and below.
Start reading: cells.py.
"""

from symgraph.rnn import composite as composite
from symgraph.rnn.bidirectional import BidirectionalCell
from symgraph.rnn.cells import BaseRNNCell, GRUCell, LSTMCell, RNNCell, RNNParams
from symgraph.rnn.checkpoint import (
    do_rnn_checkpoint,
    load_rnn_checkpoint,
    save_rnn_checkpoint,
)
from symgraph.rnn.convolutional import (
    BaseConvRNNCell,
    ConvGRUCell,
    ConvLSTMCell,
    ConvRNNCell,
)
from symgraph.rnn.fused import FusedRNNCell
from symgraph.rnn.io import BucketSentenceIter, encode_sentences
from symgraph.rnn.stacks import (
    DropoutCell,
    ModifierCell,
    ResidualCell,
    SequentialRNNCell,
    ZoneoutCell,
)

__all__ = [
    "BaseConvRNNCell",
    "BaseRNNCell",
    "BidirectionalCell",
    "BucketSentenceIter",
    "ConvGRUCell",
    "ConvLSTMCell",
    "ConvRNNCell",
    "DropoutCell",
    "FusedRNNCell",
    "GRUCell",
    "LSTMCell",
    "ModifierCell",
    "RNNCell",
    "RNNParams",
    "ResidualCell",
    "SequentialRNNCell",
    "ZoneoutCell",
    "do_rnn_checkpoint",
    "encode_sentences",
    "load_rnn_checkpoint",
    "save_rnn_checkpoint",
]
