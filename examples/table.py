"""A multilayer perceptron on rows of a table, in two groups.

symgraph train examples/table.yaml
"""

from __future__ import annotations

import symgraph as sg
from symgraph import Feed, Model, TensorType


def build(batch_size: int, columns: int = 30, hidden: int = 256, classes: int = 2) -> Model:
    """Build a network that reads `data` (B, columns) and predicts `label` (B,).

    Groups: first and second.

    Args:
        batch_size: Rows per batch, B.
        columns: Columns of the table.
        hidden: Units of each of the two hidden layers.
        classes: Classes.
    """
    x = sg.sym.Variable("data")
    for group in ("first", "second"):
        with sg.AttrScope(ctx_group=group):
            x = sg.sym.FullyConnected(x, num_hidden=hidden, name=f"{group}_fc")
            x = sg.sym.Activation(x, act_type="relu", name=f"{group}_relu")
    with sg.AttrScope(ctx_group="second"):
        x = sg.sym.FullyConnected(x, num_hidden=classes, name="scores")
        x = sg.sym.SoftmaxOutput(x, sg.sym.Variable("label"), normalization="batch", name="softmax")
    feeds = {
        "data": Feed(TensorType((batch_size, columns), "float32")),
        "label": Feed(TensorType((batch_size,), "float32")),
    }
    return Model(x, feeds)
