"""Data parallelism and model parallelism combined: ChainerMN's train_mnist_dual_parallel.

    python -m examples.dual_parallel [--mnist FOLDER] [--epochs 3] [--micro-batches 2]
    mpiexec -n 4 python -m examples.dual_parallel

Four ranks form a grid: each part of the perceptron is on two of them, each of which runs it on
half of the samples. Gradients are summed over the copies once per step.

                          first layer    other layers
    half of the samples       rank 0          rank 1
    the other half            rank 2          rank 3

For comparison, the same network also runs on one device: the losses of every step are equal bit for
bit.
"""

from __future__ import annotations

import sys

import symgraph as sg
from examples.mnist import CLASSES, HIDDEN, main, softmax_loss
from symgraph import Symbol


def network() -> Symbol:
    data, label = sg.sym.Variable("data"), sg.sym.Variable("label")
    with sg.AttrScope(ctx_group="first", replicate="2"):
        h = sg.sym.relu(sg.sym.FullyConnected(data, num_hidden=HIDDEN, name="l1"))
    with sg.AttrScope(ctx_group="second", replicate="2"):
        h = sg.sym.relu(sg.sym.FullyConnected(h, num_hidden=HIDDEN, name="l2"))
        y = sg.sym.FullyConnected(h, num_hidden=CLASSES, name="l3")
        return softmax_loss(y, label)


if __name__ == "__main__":
    sys.exit(main(network, {"first": (0, 2), "second": (1, 3)}, 4, __doc__))
