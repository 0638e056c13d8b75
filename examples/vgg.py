"""A VGG network for images of 32x32, a group for each block of convolutions.

symgraph train examples/vgg.yaml
"""

from __future__ import annotations

import symgraph as sg
from symgraph import Feed, Model, TensorType

BLOCKS = ((1, 2), (2, 2), (4, 3), (8, 3))  # filters in multiples of the first block's, convolutions


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
                    num_filter=width * filters,
                    kernel=(3, 3),
                    pad=(1, 1),
                    no_bias=True,
                    name=name,
                )
                x = sg.sym.BatchNorm(x, fix_gamma=False, name=f"{name}_norm")
                x = sg.sym.Activation(x, act_type="relu", name=f"{name}_relu")
            x = sg.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), name=f"pool{block}")
    with sg.AttrScope(ctx_group="head"):
        x = sg.sym.FullyConnected(sg.sym.Flatten(x), num_hidden=8 * filters, name="fc1")
        x = sg.sym.Activation(x, act_type="relu", name="fc1_relu")
        x = sg.sym.FullyConnected(x, num_hidden=classes, name="fc2")
        x = sg.sym.SoftmaxOutput(x, sg.sym.Variable("label"), normalization="batch", name="softmax")
    feeds = {
        "data": Feed(TensorType((batch_size, 3, side, side), "float32")),
        "label": Feed(TensorType((batch_size,), "float32")),
    }
    return Model(x, feeds)
