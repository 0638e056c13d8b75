"""ChainerMN's names: communicators, chain lists and the data side of one program a rank."""

from __future__ import annotations

from runtime.chainermn.communicator import Communicator, create_communicator
from symgraph.chain_list import MultiNodeChainList, connect, create_multi_node_n_step_rnn

__all__ = [
    "Communicator",
    "MultiNodeChainList",
    "connect",
    "create_communicator",
    "create_multi_node_n_step_rnn",
]
