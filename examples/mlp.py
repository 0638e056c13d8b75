"""A multilayer perceptron in two halves: 784-1000 on one device, 1000-1000-10 on another.

    python -m examples.mlp [--mnist FOLDER] [--epochs 3] [--micro-batches 2] [--schedule 1f1b]
    mpiexec -n 2 python -m examples.mlp

The network of ChainerMN's model-parallel MNIST example, in MXNet's style: only the groups say where
layers are. For comparison, the same network also runs on one device: the losses of every step are
equal bit for bit.
"""

from __future__ import annotations

import sys

import symgraph as sg
from examples.mnist import CLASSES, HIDDEN, main, softmax_loss
from symgraph import Symbol


def network() -> Symbol:
    data, label = sg.sym.Variable("data"), sg.sym.Variable("label")
    with sg.AttrScope(ctx_group="first"):
        x = sg.sym.FullyConnected(data, num_hidden=HIDDEN, name="fc1")
        x = sg.sym.Activation(x, act_type="relu", name="relu1")
    with sg.AttrScope(ctx_group="second"):
        x = sg.sym.FullyConnected(x, num_hidden=HIDDEN, name="fc2")
        x = sg.sym.Activation(x, act_type="relu", name="relu2")
        x = sg.sym.FullyConnected(x, num_hidden=CLASSES, name="fc3")
        return softmax_loss(x, label)


if __name__ == "__main__":
    sys.exit(main(network, {"first": 0, "second": 1}, 2, __doc__))
