"""VGG-16 on images of 32x32, the channels of each convolution shared out among ranks.

    python -m examples.vgg_channel_parallel [--ranks 2] [--convolution sharded] [--data PATH]
    mpiexec -n 2 python -m examples.vgg_channel_parallel

As ChainerMN's parallel convolution example. `--convolution parallel` (default) is its layer, a
grouped convolution with 1/ranks of the parameters; `sharded` is the full one. Between convolutions
each rank normalises, clips and pools its own channels, so that nothing is done twice, and what the
ranks hand round is pooled already.

It learns scikit-learn's digits, scaled up, or with --data files in the formats of CIFAR-10 and
CIFAR-100, binary or for Python.
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
from runtime.chainermn import ParallelConvolution2D, ShardedConvolution
from symgraph.errors import ConfigError

import symgraph as sg
from examples.cifar import SIDE, Images, load
from runtime import Options, Session, initialize, make_cluster, plan
from runtime.backends.device.processor import limit_blas
from runtime.transports import Cluster, launched_by_mpi
from symgraph import Feed, Symbol, TensorType
from symgraph.app.command_line import OK, status_of

LAYERS = {"parallel": ParallelConvolution2D, "sharded": ShardedConvolution}
BLOCKS = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))  # filters, in first ones'; convolutions
SEED = 1


@dataclass(frozen=True)
class VGG:
    """The network's settings. first: filters of the first block. dropout: after each layer, as a
    probability (ChainerMN's example has 0.3 to 0.5, for many more images than the digits are).
    """

    ranks: int
    convolution: str = "parallel"
    classes: int = 10
    first: int = 64
    dropout: float = 0.1

    def network(self) -> Symbol:
        """The loss, summed negative log-likelihood and number of images, and how many are right."""
        layer, groups = LAYERS[self.convolution], [f"rank{r}" for r in range(self.ranks)]
        every = [sg.sym.Variable("data")] * self.ranks
        for block, (width, depth) in enumerate(BLOCKS, 1):
            for number in range(1, depth + 1):
                name = f"conv{block}_{number}"
                own = layer(
                    every,
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
                        own[rank] = self.channelwise(own[rank], f"{name}_{rank}", number == depth)
                if (block, number) != (len(BLOCKS), depth):
                    every = sg.sym.comm.allgather(own, axis=1, name=name)
        with sg.AttrScope(ctx_group=groups[0]):
            return self.head(sg.sym.comm.gather(own, groups[0], axis=1))

    def channelwise(self, x: Symbol, name: str, last: bool) -> Symbol:
        """What follows a convolution; last: of its block."""
        x = normalised(x, name)
        if not last:
            return self.dropped(x, name)
        return sg.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), name=f"{name}_pool")

    def dropped(self, x: Symbol, name: str) -> Symbol:
        return sg.sym.Dropout(x, p=self.dropout, name=f"{name}_drop") if self.dropout else x

    def head(self, x: Symbol) -> Symbol:
        label = sg.sym.Variable("label")
        x = self.dropped(sg.sym.Flatten(x), "fc1")
        x = sg.sym.FullyConnected(x, num_hidden=8 * self.first, no_bias=True, name="fc1")
        x = self.dropped(normalised(x, "fc1"), "fc2")
        x = sg.sym.FullyConnected(x, num_hidden=self.classes, no_bias=True, name="fc2")
        loss = sg.sym.SoftmaxOutput(x, label, normalization="batch", name="softmax")
        best, wanted = (
            sg.sym.Cast(y, dtype="float32") for y in (sg.sym.argmax(loss, axis=1), label)
        )
        right = sg.sym.BlockGrad(sg.sym.sum(best == wanted), name="right")
        return sg.sym.Group([loss, sg.sym.nll_stats(loss, label, name="nll"), right])


def normalised(x: Symbol, name: str) -> Symbol:
    x = sg.sym.BatchNorm(x, fix_gamma=False, name=f"{name}_norm")
    return sg.sym.Activation(x, act_type="relu", name=f"{name}_relu")


def batches(given: Images, size: int, rng: Any = None) -> Iterator[dict[str, Any]]:
    """Whole batches, in an order that is the same on every rank."""
    order = np.arange(len(given)) if rng is None else rng.permutation(len(given))
    for start in range(0, len(order) - size + 1, size):
        rows = order[start : start + size]
        yield {"data": given.images[rows], "label": given.labels[rows]}


def make_sessions(
    symbol: Symbol, cluster: Cluster, size: int, rate: float
) -> tuple[Session, Session]:
    """To train and to test, with the same parameters; rank i's group is on device i."""
    contexts = tuple(sg.cpu(i) for i in range(cluster.size))
    groups = {f"rank{i}": device for i, device in enumerate(contexts)}
    feeds = {
        "data": Feed(TensorType((size, 3, SIDE, SIDE), "float32")),
        "label": Feed(TensorType((size,), "int32")),
    }
    made = plan(symbol, feeds, Options(groups, contexts[0], contexts, update=True), wrt=None)
    scoring = plan(symbol, feeds, Options(groups, contexts[0], contexts))
    arrays = initialize(made, cluster, sg.init.MSRAPrelu("in", 0.0), SEED)
    sgd = sg.optimizer.SGD(rate, momentum=0.9, wd=5e-4)
    training = Session(made, cluster, arrays, optimizer=sgd)
    return training, Session(scoring, cluster, arrays, resources=training.resources)


def train_epoch(session: Session, given: Images, options: argparse.Namespace, epoch: int) -> str:
    """A step for each batch; the mean loss and the seconds of a step, in words."""
    steps, loss, images = 0, 0.0, 0.0
    begun = time.perf_counter()
    order = batches(given, options.batch, np.random.default_rng((SEED, epoch)))
    for feeds in islice(order, options.steps):
        figures = session.step(feeds)
        steps, loss = steps + 1, loss + figures["nll_nll"]
        images += figures["nll_count"]
    seconds = (time.perf_counter() - begun) / steps
    return f"loss {loss / images:.6f}, {seconds:.3f} s a step"


def accuracy(session: Session, given: Images, size: int) -> str:
    """The share of images that are recognised, in words; less than a batch is left out."""
    for feeds in batches(given, size):
        session.step(feeds)
    found = session.collect()
    count = found["nll_count"]
    return f"{found['right_output'] / count:.1%} of {count:.0f} test images right"


def run(options: argparse.Namespace) -> int:
    """Train and print what was learnt after each epoch."""
    train, test = load(options.data)
    for images in (train, test):
        if len(images) < options.batch:
            raise ConfigError(
                f"--batch {options.batch} is more than the {len(images)} images "
                "that there are to train or to test on"
            )
    vgg = VGG(options.ranks, options.convolution, train.classes, options.first, options.dropout)
    transport = "mpi" if launched_by_mpi(os.environ) else "threads"
    with make_cluster(transport, options.ranks) as cluster, limit_blas(1):
        training, scoring = make_sessions(
            vgg.network(), cluster, options.batch, options.learning_rate
        )
        for epoch in range(options.epochs):
            learnt = train_epoch(training, train, options, epoch)
            known = accuracy(scoring, test, options.batch)
            if 0 in cluster.ranks:
                print(f"epoch {epoch}: {known}, {learnt}", flush=True)
    return OK


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.vgg_channel_parallel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--convolution", choices=LAYERS, default="parallel")
    parser.add_argument("--data", type=Path, help="a file or folder in CIFAR's formats")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="of an epoch; by default all its batches")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--first", type=int, default=64, help="filters of the first block")
    parser.add_argument("--dropout", type=float, default=0.1, help="after each layer")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    return status_of(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
