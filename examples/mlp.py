"""A multilayer perceptron in two halves: 784-1000 on one device, 1000-1000-10 on another.

    python -m examples.mlp [--mnist FOLDER] [--epochs 3] [--micro-batches 2] [--schedule 1f1b]
    mpiexec -n 2 python -m examples.mlp

The network of ChainerMN's model-parallel MNIST example. Without a folder of MNIST's IDX files it
learns scikit-learn's digits, scaled up from 8x8 to 28x28. The same network also runs on one device
(threads only), and the losses of every step are compared: they are equal to the last bit.
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import symgraph as sg
from runtime import Options, Session, initialize, make_cluster, plan
from runtime.blas import limit_blas
from runtime.transports import launched_by_mpi
from symgraph import Feed, Symbol, TensorType
from symgraph.errors import ConfigError, SymgraphError

BATCH = 100
PIXELS, HIDDEN, CLASSES = 784, 1000, 10
FEEDS = {
    "data": Feed(TensorType((BATCH, PIXELS), "float32")),
    "label": Feed(TensorType((BATCH,), "int32")),
}


def network() -> Symbol:
    """The softmax loss, and the summed negative log-likelihood with the number of images."""
    data, label = sg.sym.Variable("data"), sg.sym.Variable("label")
    with sg.AttrScope(ctx_group="first"):
        x = sg.sym.FullyConnected(data, num_hidden=HIDDEN, name="fc1")
        x = sg.sym.Activation(x, act_type="relu", name="relu1")
    with sg.AttrScope(ctx_group="second"):
        x = sg.sym.FullyConnected(x, num_hidden=HIDDEN, name="fc2")
        x = sg.sym.Activation(x, act_type="relu", name="relu2")
        x = sg.sym.FullyConnected(x, num_hidden=CLASSES, name="fc3")
        loss = sg.sym.SoftmaxOutput(x, label, normalization="batch", name="softmax")
        figures = sg.sym.nll_stats(loss, label, name="nll")
    return sg.sym.Group([loss, figures])


def digits() -> tuple[Any, Any]:
    """scikit-learn's 1,797 digits as (N, 784) float32 in 0..1, and int32 labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ConfigError("scikit-learn is missing: pip install 'symgraph[examples]'") from None
    images, labels = load_digits(return_X_y=True)
    square = images.reshape(-1, 8, 8) / 16.0
    grid = np.minimum(np.arange(28) * 8 // 28, 7)
    return square[:, grid][:, :, grid].reshape(-1, PIXELS).astype("float32"), labels.astype("int32")


def mnist(folder: Path) -> tuple[Any, Any]:
    """MNIST's training images and labels from its IDX files, plain or gzipped."""
    images = _idx(folder, "train-images-idx3-ubyte", 16).reshape(-1, PIXELS)
    labels = _idx(folder, "train-labels-idx1-ubyte", 8)
    return (images / np.float32(255)).astype("float32"), labels.astype("int32")


def _idx(folder: Path, name: str, header: int) -> Any:
    for path, opener in ((folder / name, open), (folder / f"{name}.gz", gzip.open)):
        if path.exists():
            with opener(path, "rb") as file:
                return np.frombuffer(file.read(), np.uint8, offset=header)
    raise ConfigError(f"--mnist: there is neither {name} nor {name}.gz in {folder}")


def batches(images: Any, labels: Any, epochs: int) -> Iterator[dict[str, Any]]:
    """Whole batches in an order that is the same on every rank."""
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            yield {"data": images[rows], "label": labels[rows]}


def make_session(cluster: Any, devices: int, options: argparse.Namespace) -> Session:
    """The network placed on one or two devices, ready to train."""
    contexts = tuple(sg.cpu(i) for i in range(devices))
    groups = {"first": contexts[0], "second": contexts[-1]}
    made = plan(
        network(), FEEDS, wrt=None,
        options=Options(
            groups, contexts[0], contexts, options.schedule, options.micro_batches, update=True
        ),
    )  # fmt: skip
    arrays = initialize(made, cluster, sg.init.Xavier(), seed=1)
    return Session(made, cluster, arrays, optimizer=sg.optimizer.SGD(options.learning_rate))


def run(options: argparse.Namespace) -> int:
    """Train, print the losses and compare; the exit status."""
    images, labels = mnist(options.mnist) if options.mnist else digits()
    with_mpi = launched_by_mpi(os.environ)
    with make_cluster("mpi" if with_mpi else "threads", 2) as two, limit_blas(1):
        pipeline = make_session(two, 2, options)
        if 0 in two.ranks:
            print(pipeline.plan.partition, flush=True)
        with make_cluster("threads", 1) as one:
            single = make_session(one, 1, options)
            for step, feeds in enumerate(batches(images, labels, options.epochs), 1):
                losses = [_loss(session.step(feeds)) for session in (pipeline, single)]
                if step % 10 == 0 and 0 in two.ranks:
                    print(f"step {step:4d}  two devices {losses[0]:.9f}  one {losses[1]:.9f}")
                if losses[0] != losses[1]:
                    raise SystemExit(f"step {step}: the losses differ: {losses}")
    if 0 in two.ranks:
        print(f"{step} steps, every loss equal to the last bit")
    return 0


def _loss(figures: dict[str, float]) -> float:
    return figures["nll_nll"] / figures["nll_count"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.mlp", description=__doc__)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's IDX files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--schedule", default="1f1b", help="gpipe or 1f1b")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    options = parser.parse_args()
    try:
        return run(options)
    except SymgraphError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
