"""Data and training of the perceptron examples, on several devices and on one for comparison.

Without a folder of MNIST's IDX files they learn scikit-learn's digits, enlarged from 8x8 to 28x28.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import symgraph as sg
from examples.arguments import positive
from examples.datasets import enlarged_digits
from runtime import Options, Session, initialize, launched_by_mpi, limit_blas, make_cluster, plan
from runtime.training.data.files import read_arrays
from symgraph import Feed, Symbol, TensorType
from symgraph.command_line import OK, status_of
from symgraph.core.reading import reading
from symgraph.errors import ConfigError

BATCH = 100
SIDE, HIDDEN, CLASSES = 28, 1000, 10
PIXELS = SIDE * SIDE
FEEDS = {
    "data": Feed(TensorType((BATCH, PIXELS), "float32")),
    "label": Feed(TensorType((BATCH,), "int32")),
}
Devices = Mapping[str, int | tuple[int, ...]]  # group -> its device's number, or one per copy


def softmax_loss(scores: Symbol, label: Symbol) -> Symbol:
    """Return the loss, and the summed negative log-likelihood with the number of images."""
    loss = sg.sym.SoftmaxOutput(scores, label, normalization="batch", name="softmax")
    return sg.sym.Group([loss, sg.sym.nll_stats(loss, label, name="nll")])


def digits(side: int = SIDE) -> tuple[Any, Any]:
    """Load scikit-learn's 1,797 digits: (N, side * side) float32 from 0 to 1, and int32 labels."""
    images, labels = enlarged_digits(side)
    return images.reshape(-1, side * side).astype("float32"), labels.astype("int32")


def mnist(folder: Path) -> tuple[Any, Any]:
    """Load MNIST's training images and labels from its IDX files, plain or gzipped."""
    arrays, _ = read_arrays(str(folder))
    with reading(folder, "folder of MNIST's files"):
        images, labels = arrays["data"].reshape(-1, PIXELS), arrays["label"]
    if len(images) != len(labels):
        raise ConfigError(f"--mnist: {folder} has {len(images)} images, but {len(labels)} labels")
    return (images / np.float32(255)).astype("float32"), labels.astype("int32")


def batches(images: Any, labels: Any, epochs: int) -> Iterator[dict[str, Any]]:
    """Yield full batches, in an order that is the same on every rank."""
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(len(images))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            yield {"data": images[rows], "label": labels[rows]}


def make_session(
    network: Symbol, cluster: Any, devices: Devices, options: argparse.Namespace
) -> Session:
    """Make a session that trains the network with its groups on these devices."""
    contexts = tuple(sg.cpu(i) for i in range(cluster.size))
    groups = {
        group: contexts[at] if isinstance(at, int) else tuple([contexts[i] for i in at])
        for group, at in devices.items()
    }
    training_plan = plan(
        network,
        FEEDS,
        wrt=None,
        options=Options(
            groups, contexts[0], contexts, options.schedule, options.micro_batches, update=True
        ),
    )
    arrays = initialize(training_plan, cluster, sg.init.Xavier(), seed=1)
    return Session(
        training_plan, cluster, arrays, optimizer=sg.optimizer.SGD(options.learning_rate)
    )


def run(network: Symbol, devices: Devices, count: int, options: argparse.Namespace) -> int:
    """Train on several devices and on one, print the losses and compare them."""
    images, labels = mnist(options.mnist) if options.mnist else digits()
    if len(images) < BATCH:
        raise ConfigError(f"{options.mnist} has {len(images)} images; a batch needs {BATCH}")
    transport = "mpi" if launched_by_mpi(os.environ) else "threads"
    with make_cluster(transport, count) as many, limit_blas(1):
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
        print(f"{step} steps, all losses equal bit for bit")
    return OK


def _loss(figures: dict[str, float]) -> float:
    return figures["nll_nll"] / figures["nll_count"]


def main(network: Callable[[], Symbol], devices: Devices, count: int, about: str | None) -> int:
    """Run the command line of an example that trains on `count` devices and on one."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's IDX files")
    parser.add_argument("--epochs", type=positive, default=3)
    parser.add_argument("--micro-batches", type=positive, default=2)
    parser.add_argument("--schedule", default="1f1b", help="gpipe or 1f1b")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    options = parser.parse_args()
    return status_of(lambda: run(network(), devices, count, options))
