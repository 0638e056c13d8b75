"""The digits that the perceptron examples learn, and how they train: on devices beside one device.

Without a folder of MNIST's IDX files they learn scikit-learn's digits, scaled up from 8x8 to 28x28.
"""

from __future__ import annotations

import argparse
import gzip
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from symgraph.errors import ConfigError

import symgraph as sg
from runtime import Options, Session, initialize, make_cluster, plan
from runtime.backends.device.processor import limit_blas
from runtime.transports import launched_by_mpi
from symgraph import Feed, Symbol, TensorType
from symgraph.app.command_line import OK, status_of

BATCH = 100
SIDE, HIDDEN, CLASSES = 28, 1000, 10
PIXELS = SIDE * SIDE
FEEDS = {
    "data": Feed(TensorType((BATCH, PIXELS), "float32")),
    "label": Feed(TensorType((BATCH,), "int32")),
}
Devices = Mapping[str, int | tuple[int, ...]]  # group -> number of its device, or of each copy's


def softmax_loss(scores: Symbol, label: Symbol) -> Symbol:
    """The loss, and the summed negative log-likelihood with the number of images."""
    loss = sg.sym.SoftmaxOutput(scores, label, normalization="batch", name="softmax")
    return sg.sym.Group([loss, sg.sym.nll_stats(loss, label, name="nll")])


def digits(side: int = SIDE) -> tuple[Any, Any]:
    """scikit-learn's 1,797 digits as (N, side * side) float32 in 0..1, and int32 labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ConfigError("scikit-learn is missing: pip install 'symgraph[examples]'") from None
    images, labels = load_digits(return_X_y=True)
    square = images.reshape(-1, 8, 8) / 16.0
    grid = np.arange(side) * 8 // side
    scaled = square[:, grid][:, :, grid].reshape(-1, side * side)
    return scaled.astype("float32"), labels.astype("int32")


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


def make_session(
    network: Symbol, cluster: Any, devices: Devices, options: argparse.Namespace
) -> Session:
    """The network with its groups on these devices, ready to train."""
    contexts = tuple(sg.cpu(i) for i in range(cluster.size))
    groups = {
        group: contexts[at] if isinstance(at, int) else tuple([contexts[i] for i in at])
        for group, at in devices.items()
    }
    made = plan(
        network,
        FEEDS,
        wrt=None,
        options=Options(
            groups, contexts[0], contexts, options.schedule, options.micro_batches, update=True
        ),
    )
    arrays = initialize(made, cluster, sg.init.Xavier(), seed=1)
    return Session(made, cluster, arrays, optimizer=sg.optimizer.SGD(options.learning_rate))


def run(network: Symbol, devices: Devices, count: int, options: argparse.Namespace) -> int:
    """Train, print the losses and compare; the exit status."""
    images, labels = mnist(options.mnist) if options.mnist else digits()
    with_mpi = launched_by_mpi(os.environ)
    with make_cluster("mpi" if with_mpi else "threads", count) as many, limit_blas(1):
        pipeline = make_session(network, many, devices, options)
        if 0 in many.ranks:
            print(pipeline.plan.partition, flush=True)
        with make_cluster("threads", 1) as one:
            single = make_session(network, one, dict.fromkeys(devices, 0), options)
            for step, feeds in enumerate(batches(images, labels, options.epochs), 1):
                losses = [_loss(session.step(feeds)) for session in (pipeline, single)]
                if step % 10 == 0 and 0 in many.ranks:
                    print(f"step {step:4d}  {count} devices {losses[0]:.9f}  one {losses[1]:.9f}")
                if losses[0] != losses[1]:
                    raise SystemExit(f"step {step}: the losses differ: {losses}")
    if 0 in many.ranks:
        print(f"{step} steps, every loss equal to the last bit")
    return OK


def _loss(figures: dict[str, float]) -> float:
    return figures["nll_nll"] / figures["nll_count"]


def main(network: Callable[[], Symbol], devices: Devices, count: int, about: str | None) -> int:
    """The command line of an example that trains on `count` devices, and beside that on one."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's IDX files")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--micro-batches", type=int, default=2)
    parser.add_argument("--schedule", default="1f1b", help="gpipe or 1f1b")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    options = parser.parse_args()
    return status_of(lambda: run(network(), devices, count, options))
