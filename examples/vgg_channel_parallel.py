"""VGG-16 on images of 32x32, with the channels of each convolution divided among ranks.

    python -m examples.vgg_channel_parallel [--ranks 2] [--convolution sharded] [--data PATH]
    mpiexec -n 2 python -m examples.vgg_channel_parallel

As ChainerMN's parallel convolution example. `--convolution parallel` (default) is its layer, a
grouped convolution with 1/ranks of the parameters; `sharded` is the full convolution. Between
convolutions each rank normalizes, rectifies and pools its own channels, so no work is duplicated,
and the ranks exchange pooled activations.

It learns scikit-learn's digits, enlarged, or with --data the binary files of CIFAR-10 and
CIFAR-100.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import symgraph as sg
from examples.arguments import positive
from examples.cifar import SIDE, Images, load
from runtime import (
    Cluster,
    Options,
    Session,
    chainermn,
    initialize,
    launched_by_mpi,
    limit_blas,
    make_cluster,
    plan,
)
from symgraph import Feed, Symbol, TensorType
from symgraph.command_line import OK, status_of
from symgraph.errors import ConfigError

LAYERS = {"parallel": chainermn.ParallelConvolution2D, "sharded": chainermn.ShardedConvolution}
# (filters in multiples of the first block's, convolutions)
BLOCKS = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
SEED = 1


@dataclass(frozen=True)
class VGG:
    """Settings of the network."""

    ranks: int
    #: A key of LAYERS.
    convolution: str = "parallel"
    classes: int = 10
    #: Filters of the first block.
    first: int = 64
    #: Probability of dropout after each layer. ChainerMN's example has 0.3 to 0.5, for many more
    #: images than the digits.
    dropout: float = 0.1

    def network(self) -> Symbol:
        """Return the loss, (summed NLL, number of images), and the number of right predictions."""
        layer, groups = LAYERS[self.convolution], [f"rank{r}" for r in range(self.ranks)]
        inputs = [sg.sym.Variable("data")] * self.ranks
        for block, (width, depth) in enumerate(BLOCKS, 1):
            for number in range(1, depth + 1):
                name = f"conv{block}_{number}"
                outputs = layer(
                    inputs,
                    groups=groups,
                    num_filter=width * self.first,
                    kernel=(3, 3),
                    pad=(1, 1),
                    no_bias=True,
                    joined=False,
                    name=name,
                )
                for rank, group in enumerate(groups):
                    with sg.AttrScope(ctx_group=group):
                        outputs[rank] = self.channelwise(
                            outputs[rank], f"{name}_{rank}", number == depth
                        )
                if (block, number) != (len(BLOCKS), depth):
                    inputs = sg.sym.comm.allgather(outputs, axis=1, name=name)
        with sg.AttrScope(ctx_group=groups[0]):
            return self.head(sg.sym.comm.gather(outputs, groups[0], axis=1))

    def channelwise(self, x: Symbol, name: str, last: bool) -> Symbol:
        """Apply the layers after a convolution; last: it is the last one of its block."""
        x = normalized(x, name)
        if not last:
            return self.with_dropout(x, name)
        return sg.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), name=f"{name}_pool")

    def with_dropout(self, x: Symbol, name: str) -> Symbol:
        return sg.sym.Dropout(x, p=self.dropout, name=f"{name}_drop") if self.dropout else x

    def head(self, x: Symbol) -> Symbol:
        label = sg.sym.Variable("label")
        x = self.with_dropout(sg.sym.Flatten(x), "fc1")
        x = sg.sym.FullyConnected(x, num_hidden=8 * self.first, no_bias=True, name="fc1")
        x = self.with_dropout(normalized(x, "fc1"), "fc2")
        x = sg.sym.FullyConnected(x, num_hidden=self.classes, no_bias=True, name="fc2")
        loss = sg.sym.SoftmaxOutput(x, label, normalization="batch", name="softmax")
        predicted, labels = (
            sg.sym.Cast(y, dtype="float32") for y in (sg.sym.argmax(loss, axis=1), label)
        )
        right = sg.sym.BlockGrad(sg.sym.sum(predicted == labels), name="right")
        return sg.sym.Group([loss, sg.sym.nll_stats(loss, label, name="nll"), right])


def normalized(x: Symbol, name: str) -> Symbol:
    x = sg.sym.BatchNorm(x, fix_gamma=False, name=f"{name}_norm")
    return sg.sym.Activation(x, act_type="relu", name=f"{name}_relu")


def batches(images: Images, size: int, rng: Any = None) -> Iterator[dict[str, Any]]:
    """Yield full batches, in an order that is the same on every rank."""
    order = np.arange(len(images)) if rng is None else rng.permutation(len(images))
    for start in range(0, len(order) - size + 1, size):
        rows = order[start : start + size]
        yield {"data": images.images[rows], "label": images.labels[rows]}


def make_sessions(
    symbol: Symbol, cluster: Cluster, size: int, rate: float
) -> tuple[Session, Session]:
    """Make sessions for training and testing, with the same parameters.

    The group of rank i is on device i.
    """
    contexts = tuple(sg.cpu(i) for i in range(cluster.size))
    groups = {f"rank{i}": device for i, device in enumerate(contexts)}
    feeds = {
        "data": Feed(TensorType((size, 3, SIDE, SIDE), "float32")),
        "label": Feed(TensorType((size,), "int32")),
    }
    training_plan = plan(
        symbol, feeds, Options(groups, contexts[0], contexts, update=True), wrt=None
    )
    scoring_plan = plan(symbol, feeds, Options(groups, contexts[0], contexts))
    arrays = initialize(training_plan, cluster, sg.init.MSRAPrelu("in", 0.0), SEED)
    sgd = sg.optimizer.SGD(rate, momentum=0.9, wd=5e-4)
    training = Session(training_plan, cluster, arrays, optimizer=sgd)
    return training, Session(scoring_plan, cluster, arrays, resources=training.resources)


def train_epoch(session: Session, images: Images, options: argparse.Namespace, epoch: int) -> str:
    """Train on every batch once; return a text with the mean loss and the seconds per step."""
    steps, loss, count = 0, 0.0, 0.0
    start = time.perf_counter()
    order = batches(images, options.batch, np.random.default_rng((SEED, epoch)))
    for feeds in islice(order, options.steps):
        figures = session.step(feeds)
        steps, loss = steps + 1, loss + figures["nll_nll"]
        count += figures["nll_count"]
    seconds = (time.perf_counter() - start) / steps
    return f"loss {loss / count:.6f}, {seconds:.3f} s per step"


def accuracy(session: Session, images: Images, size: int) -> str:
    """Return a text with the share of right predictions on all full batches."""
    for feeds in batches(images, size):
        session.step(feeds)
    figures = session.collect()
    count = figures["nll_count"]
    return f"{figures['right_output'] / count:.1%} of {count:.0f} test images right"


def run(options: argparse.Namespace) -> int:
    """Train, and print loss and accuracy after each epoch."""
    train, test = load(options.data)
    for images in (train, test):
        if len(images) < options.batch:
            raise ConfigError(
                f"--batch {options.batch} is more than the {len(images)} images "
                "available for training or testing"
            )
    vgg = VGG(options.ranks, options.convolution, train.classes, options.first, options.dropout)
    transport = "mpi" if launched_by_mpi(os.environ) else "threads"
    with make_cluster(transport, options.ranks) as cluster, limit_blas(1):
        training, scoring = make_sessions(
            vgg.network(), cluster, options.batch, options.learning_rate
        )
        for epoch in range(options.epochs):
            progress = train_epoch(training, train, options, epoch)
            share = accuracy(scoring, test, options.batch)
            if 0 in cluster.ranks:
                print(f"epoch {epoch}: {share}, {progress}", flush=True)
    return OK


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.vgg_channel_parallel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=positive, default=2)
    parser.add_argument("--convolution", choices=LAYERS, default="parallel")
    parser.add_argument("--data", type=Path, help="a file or folder of CIFAR's binary files")
    parser.add_argument("--epochs", type=positive, default=5)
    parser.add_argument("--steps", type=positive, help="steps per epoch; by default all batches")
    parser.add_argument("--batch", type=positive, default=64)
    parser.add_argument("--first", type=positive, default=64, help="filters of the first block")
    parser.add_argument("--dropout", type=float, default=0.1, help="after each layer")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    return status_of(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
