"""Recurrent networks: MXNet's `mx.rnn`."""

from symgraph.rnn.cells import BaseRNNCell, GRUCell, LSTMCell, RNNCell, RNNParams
from symgraph.rnn.stacks import DropoutCell, ModifierCell, ResidualCell, SequentialRNNCell

__all__ = [
    "BaseRNNCell",
    "DropoutCell",
    "GRUCell",
    "LSTMCell",
    "ModifierCell",
    "RNNCell",
    "RNNParams",
    "ResidualCell",
    "SequentialRNNCell",
]
