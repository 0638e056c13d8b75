"""Networks and batches in files, for configs of these tests."""

from __future__ import annotations

import os

import numpy as np

import symgraph as sg
from symgraph import Feed, Model, TensorType

HEADS = {
    "softmax": lambda x, y: sg.sym.SoftmaxOutput(x, y, normalization="batch", name="head"),
    "soft": lambda x, y: sg.sym.SoftmaxOutput(x, y, grad_scale=0.1, name="head"),
    "svm": lambda x, y: sg.sym.SVMOutput(x, y, regularization_coefficient=0.1, name="head"),
    "svm_linear": lambda x, y: sg.sym.SVMOutput(x, y, margin=0.5, use_linear=True, name="head"),
    "linear": lambda x, y: sg.sym.LinearRegressionOutput(x, y, name="head"),
    "mae": lambda x, y: sg.sym.MAERegressionOutput(x, y, name="head"),
    "logistic": lambda x, y: sg.sym.LogisticRegressionOutput(x, y, name="head"),
    "make_loss": lambda x, y: sg.sym.MakeLoss(sg.sym.square(x - y), name="head"),
    "summed": lambda x, y: sg.sym.MakeLoss(
        sg.sym.sum(sg.sym.square(x - y)), grad_scale=0.01, name="head"
    ),
}

BY_CLASS = ("softmax", "svm", "svm_linear")  # of which a label names a class


def build(batch_size: int, head: str = "softmax", columns: int = 6) -> Model:
    """A perceptron with one of HEADS."""
    x, label = sg.sym.Variable("data"), sg.sym.Variable("label")
    with sg.AttrScope(ctx_group="a"):
        x = sg.sym.FullyConnected(x, num_hidden=8, name="fc1")
        x = sg.sym.Activation(x, act_type="tanh", name="act")
    with sg.AttrScope(ctx_group="b"):
        x = HEADS[head](sg.sym.FullyConnected(x, num_hidden=3, name="fc2"), label)
    shape = (batch_size,) if head in BY_CLASS else (batch_size, 3)
    return Model(
        x,
        {
            "data": Feed(TensorType((batch_size, columns), "float32")),
            "label": Feed(TensorType(shape, "float32")),
        },
    )


def carried(batch_size: int) -> Model:
    """The sum of all samples of a row so far, beside the sum of a label."""
    rows = TensorType((batch_size, 6), "float32")
    with sg.AttrScope(ctx_group="a"):
        total = sg.sym.elemwise_add(sg.sym.Variable("data"), sg.sym.Variable("before"))
        kept = sg.sym.BlockGrad(total, name="kept")
    with sg.AttrScope(ctx_group="b"):
        x = sg.sym.FullyConnected(total, num_hidden=3, name="fc")
        x = sg.sym.LinearRegressionOutput(x, sg.sym.Variable("label"), name="head")
    label = TensorType((batch_size, 3), "float32")
    feeds = {"data": Feed(rows), "before": Feed(rows), "label": Feed(label)}
    return Model(sg.sym.Group([x, kept]), feeds, {"before": "kept_output"})


def of_pairs(batch_size: int) -> Model:
    """A loss of all pairs of samples, so that a micro-batch has all of them."""
    x = sg.sym.FullyConnected(sg.sym.Variable("data"), num_hidden=3, name="fc")
    x = sg.sym.SoftmaxOutput(sg.sym.dot(x, x, transpose_b=True), sg.sym.Variable("label"))
    types = {"data": (batch_size, 6), "label": (batch_size,)}
    return Model(x, {name: Feed(TensorType(shape)) for name, shape in types.items()})


def samples(count: int, head: str = "softmax", seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays that fit the network."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((count, 6)).astype("float32")
    label = data[:, :3].argmax(1) if head in BY_CLASS else data[:, :3] > 0
    return {"data": data, "label": label.astype("float32")}


def batches(batch_size: int, epoch: int, count: int = 40, head: str = "softmax"):
    """Yield the batches of an epoch; the last one may be short."""
    arrays = samples(count, head, epoch)
    for start in range(0, count, batch_size):
        yield {name: array[start : start + batch_size] for name, array in arrays.items()}


def loaded_once():
    """Return a function of the epoch."""
    arrays = samples(32)
    return lambda epoch: [arrays] * (epoch + 1)


def held_out(batch_size: int, head: str = "softmax"):
    return batches(batch_size, 99, 21, head)


def misnamed(batch_size: int):
    yield {"dta": np.zeros((batch_size, 6)), "label": np.zeros(batch_size)}


def unknown_class(batch_size: int):
    """Labels that only the network's own operators find wrong."""
    yield {"data": np.zeros((batch_size, 6)), "label": np.full(batch_size, 7.0)}


def one_nan(batch_size: int, epoch: int):
    """Four batches, the third of which is not finite."""
    for number in range(4):
        arrays = samples(batch_size, seed=number)
        arrays["data"][0, 0] += np.nan if number == 2 else 0.0
        yield arrays


def sixteens():
    return [*batches(16, 99)]


class Rewound:
    """A reader of the batches of `sixteens`; every new loop over it starts from the first."""

    def __iter__(self):
        self.left = iter(sixteens())
        return self

    def __next__(self):
        return next(self.left)


READER = Rewound()


def rewound():
    return READER


def is_rank_1() -> bool:
    return os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1"


def lost_on_rank_1(batch_size: int):
    if is_rank_1():
        raise OSError("disk gone")
    return batches(batch_size, 99)


def shorter_on_rank_1(batch_size: int, epoch: int):
    found = [*batches(batch_size, epoch, 6 * batch_size)]
    return found[:4] if is_rank_1() else found


def other_on_rank_1(batch_size: int):
    return batches(batch_size, int(is_rank_1()), 3 * batch_size)


def ragged_batches(batch_size: int, head: str = "softmax"):
    """Yield short batches, also before whole ones."""
    return [samples(count, head, count) for count in (batch_size, 1, 5, batch_size)]


def broken_on_rank_1(batch_size: int):
    yield from batches(batch_size, 0, 3 * batch_size)
    yield from lost_on_rank_1(batch_size)


def endless(batch_size: int):
    while True:
        yield samples(batch_size)


def strange():
    return 3


def broken(batch_size: int):
    yield samples(batch_size)
    raise OSError("disk gone")


def ragged():
    return [{"data": [[1, 2], [3]], "label": [0, 1]}]


def scalars():
    return [{"data": 1.0, "label": 1.0}]
