"""A VGG network for images of 32x32, a group for each block of convolutions.

Without batch normalisation, as it was published: so that the batch can be divided among devices.

symgraph train examples/vgg.yaml
"""

from __future__ import annotations

import symgraph as sg
from symgraph import Feed, Model, TensorType

BLOCKS = ((1, 2), (2, 2), (4, 3), (8, 3))  # filters in multiples of the first block's, convolutions


HE = sg.init.MSRAPrelu("in", slope=0)  # He et al., ICCV 2015: keeps the variance through relu


def weight(name: str) -> sg.Symbol:
    """Return the weight of a layer."""
    return sg.sym.Variable(f"{name}_weight", init=HE)


def build(batch_size: int, filters: int = 16, classes: int = 10, side: int = 32) -> Model:
    """Build a network that reads `data` (B, 3, side, side) and predicts `label` (B,).

    Groups: block1 to block4, and head.

    Args:
        batch_size: Images per batch, B.
        filters: Filters of each convolution of the first block.
        classes: Classes.
        side: Height and width of the images, a multiple of 16.
    """
    x = sg.sym.Variable("data")
    for block, (width, depth) in enumerate(BLOCKS, 1):
        with sg.AttrScope(ctx_group=f"block{block}"):
            for number in range(1, depth + 1):
                name = f"conv{block}_{number}"
                x = sg.sym.Convolution(
                    x,
                    weight(name),
                    num_filter=width * filters,
                    kernel=(3, 3),
                    pad=(1, 1),
                    name=name,
                )
                x = sg.sym.Activation(x, act_type="relu", name=f"{name}_relu")
            x = sg.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), name=f"pool{block}")
    with sg.AttrScope(ctx_group="head"):
        x = sg.sym.FullyConnected(
            sg.sym.Flatten(x), weight("fc1"), num_hidden=8 * filters, name="fc1"
        )
        x = sg.sym.Activation(x, act_type="relu", name="fc1_relu")
        x = sg.sym.FullyConnected(x, num_hidden=classes, name="fc2")
        x = sg.sym.SoftmaxOutput(x, sg.sym.Variable("label"), normalization="batch", name="softmax")
    feeds = {
        "data": Feed(TensorType((batch_size, 3, side, side), "float32")),
        "label": Feed(TensorType((batch_size,), "float32")),
    }
    return Model(x, feeds)
