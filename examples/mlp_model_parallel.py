"""A perceptron whose layers exchange values by send: ChainerMN's functions.send and recv.

    python -m examples.mlp_model_parallel [--mnist FOLDER] [--epochs 3] [--micro-batches 2]
    mpiexec -n 2 python -m examples.mlp_model_parallel

The first layer and the loss are on rank 0, the other layers on rank 1. The backward pass sends the
gradients in the other direction automatically: there are no delegate variables. For comparison, the
same network also runs on one device: the losses of every step are equal bit for bit.
"""

from __future__ import annotations

import sys

import symgraph as sg
from examples.mnist import CLASSES, HIDDEN, main, softmax_loss
from symgraph import Symbol


def network() -> Symbol:
    data, label = sg.sym.Variable("data"), sg.sym.Variable("label")
    with sg.AttrScope(ctx_group="rank0"):
        h = sg.sym.relu(sg.sym.FullyConnected(data, num_hidden=HIDDEN, name="l1"))
    h = sg.sym.comm.send(h, "rank1")
    with sg.AttrScope(ctx_group="rank1"):
        h = sg.sym.relu(sg.sym.FullyConnected(h, num_hidden=HIDDEN, name="l2"))
        y = sg.sym.FullyConnected(h, num_hidden=CLASSES, name="l3")
    y = sg.sym.comm.send(y, "rank0")
    with sg.AttrScope(ctx_group="rank0"):
        return softmax_loss(y, label)


if __name__ == "__main__":
    sys.exit(main(network, {"rank0": 0, "rank1": 1}, 2, __doc__))
