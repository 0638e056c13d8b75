"""A perceptron as chain lists, one per rank: ChainerMN's train_mnist_model_parallel.

    python -m examples.mlp_chain_list [--mnist FOLDER] [--epochs 3] [--micro-batches 2]
    mpiexec -n 2 python -m examples.mlp_chain_list

Every process builds the lists of both ranks, and `connect` joins them into one graph: links that
wait for each other, or messages that nobody reads, are errors there. For comparison, the same
network also runs on one device: the losses of every step are equal bit for bit.
"""

from __future__ import annotations

import sys

import symgraph as sg
from examples.mnist import CLASSES, HIDDEN, main, softmax_loss
from runtime import chainermn
from symgraph import Symbol


class MLP0(chainermn.MultiNodeChainList):
    """Rank 0: the first layer, and the loss."""

    def __init__(self, comm: int) -> None:
        super().__init__(comm)
        self.add_link(self.first, rank_in=None, rank_out=1)
        self.add_link(self.last, rank_in=1, rank_out=None)

    def first(self, x: Symbol) -> Symbol:
        return sg.sym.relu(sg.sym.FullyConnected(x, num_hidden=HIDDEN, name="l1"))

    def last(self, y: Symbol) -> Symbol:
        return softmax_loss(y, sg.sym.Variable("label"))


class MLP1(chainermn.MultiNodeChainList):
    """Rank 1: the other layers."""

    def __init__(self, comm: int) -> None:
        super().__init__(comm)
        self.add_link(self.middle, rank_in=0, rank_out=0)

    def middle(self, h: Symbol) -> Symbol:
        h = sg.sym.relu(sg.sym.FullyConnected(h, num_hidden=HIDDEN, name="l2"))
        return sg.sym.FullyConnected(h, num_hidden=CLASSES, name="l3")


def network() -> Symbol:
    model0, model1 = MLP0(0), MLP1(1)
    losses, _ = chainermn.connect(model0(sg.sym.Variable("data")), model1())
    return sg.sym.Group(losses)


if __name__ == "__main__":
    sys.exit(main(network, {"rank0": 0, "rank1": 1}, 2, __doc__))
