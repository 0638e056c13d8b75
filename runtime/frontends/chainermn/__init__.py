"""ChainerMN's names: communicators, chain lists, links, and data for one program per rank.

May import everything below frontends.
Start reading: create.py, then communicator.py.
"""

from __future__ import annotations

from runtime.frontends.chainermn.checkpointer import create_multi_node_checkpointer
from runtime.frontends.chainermn.communicator import Communicator, join_ranks
from runtime.frontends.chainermn.create import create_communicator
from runtime.frontends.chainermn.data import (
    create_empty_dataset,
    create_multi_node_iterator,
    create_synchronized_iterator,
    scatter_dataset,
    scatter_index,
)
from runtime.frontends.chainermn.training import (
    create_multi_node_evaluator,
    create_multi_node_optimizer,
)
from symgraph.chainermn import rank_view as functions
from symgraph.chainermn.chain_list import (
    Call,
    MultiNodeChainList,
    connect,
    create_multi_node_n_step_rnn,
)
from symgraph.chainermn.channel_parallel import ParallelConvolution2D, ShardedConvolution
from symgraph.chainermn.multi_node_norm import MultiNodeBatchNormalization, create_mnbn_model

__all__ = [
    "Call",
    "Communicator",
    "MultiNodeBatchNormalization",
    "MultiNodeChainList",
    "ParallelConvolution2D",
    "ShardedConvolution",
    "connect",
    "create_communicator",
    "create_empty_dataset",
    "create_mnbn_model",
    "create_multi_node_checkpointer",
    "create_multi_node_evaluator",
    "create_multi_node_iterator",
    "create_multi_node_n_step_rnn",
    "create_multi_node_optimizer",
    "create_synchronized_iterator",
    "functions",
    "join_ranks",
    "scatter_dataset",
    "scatter_index",
]
