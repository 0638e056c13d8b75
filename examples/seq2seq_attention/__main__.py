"""Training: the encoder on one device, the decoder on another, one bucket of lengths per step.

    python -m examples.seq2seq_attention [--epochs 8] [--units 64] [--devices 2] [--schedule 1f1b]
    mpiexec -n 2 python -m examples.seq2seq_attention

After 8 epochs almost all held-out answers are right, in less than a minute on two cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial

import numpy as np

import symgraph as sg
from examples.arguments import positive
from examples.seq2seq_attention.network import network
from examples.seq2seq_attention.numerals import BUCKETS, DIGITS, Pair, batches, pairs, provide
from runtime import (
    Buckets,
    BucketSession,
    Cluster,
    Options,
    initialize,
    launched_by_mpi,
    limit_blas,
    make_cluster,
)
from symgraph.command_line import OK, status_of
from symgraph.errors import ConfigError

BATCH, RATE, CLIP, SEED = 64, 0.003, 5.0, 1


def make_buckets(units: int, devices: int, schedule: str = "1f1b") -> Buckets:
    """Make the plans: `encoder` on the first device, `decoder` on the last."""
    contexts = tuple(sg.cpu(i) for i in range(devices))
    options = Options(
        {"encoder": contexts[0], "decoder": contexts[-1]},
        contexts[0],
        contexts,
        schedule,
        micro_batches=2,
        update=True,
    )
    data, label = provide(BUCKETS[-1], BATCH)
    return Buckets(partial(network, units=units), BUCKETS[-1], [*data, *label], options)


def make_sessions(buckets: Buckets, cluster: Cluster) -> tuple[BucketSession, BucketSession]:
    """Make sessions for training and scoring, with the same parameters and memory."""
    arrays = initialize(buckets.default, cluster, sg.init.Xavier(), SEED)
    adam = sg.optimizer.create("adam", learning_rate=RATE)
    training = BucketSession(buckets, cluster, arrays, optimizer=adam, clip=CLIP)
    return training, BucketSession(buckets.scoring(), cluster, arrays, resources=training.resources)


def train_epoch(session: BucketSession, train: list[Pair], epoch: int) -> float:
    """Train on every batch once; return the mean negative log-likelihood per word."""
    nll = words = 0.0
    for batch in batches(train, BATCH, np.random.default_rng((SEED, epoch))):
        figures = session.step_batches([batch])
        nll, words = nll + figures["nll_nll"], words + figures["nll_count"]
    return nll / words


def accuracy(session: BucketSession, held_out: list[Pair]) -> float:
    """Return the share of pairs whose whole answer is right."""
    for batch in batches(held_out, BATCH):
        session.step_batches([batch])
    return session.collect()["right_output"] / len(held_out)


def run(options: argparse.Namespace) -> int:
    """Train, and print the accuracy after each epoch."""
    if options.digits > DIGITS:
        raise ConfigError(f"--digits {options.digits} is more than {DIGITS}: no bucket is as long")
    train, held_out = pairs(options.numbers, SEED, options.digits)
    if not held_out:
        raise ConfigError(
            f"--numbers {options.numbers} with --digits {options.digits} gives fewer than 10 "
            "different numbers, so none is held out; give more"
        )
    buckets = make_buckets(options.units, options.devices, options.schedule)
    transport = "mpi" if launched_by_mpi(os.environ) else "threads"
    with make_cluster(transport, options.devices) as cluster, limit_blas(1):
        training, scoring = make_sessions(buckets, cluster)
        start = time.perf_counter()
        for epoch in range(options.epochs):
            loss = train_epoch(training, train, epoch)
            share = accuracy(scoring, held_out)
            if 0 in cluster.ranks:
                print(
                    f"epoch {epoch}: loss per word {loss:.4f}, {share:.1%} of {len(held_out)} "
                    f"held-out answers right, {time.perf_counter() - start:.0f} s",
                    flush=True,
                )
    return OK


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.seq2seq_attention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--epochs", type=positive, default=8)
    parser.add_argument(
        "--numbers", type=positive, default=20_000, help="numbers to draw, with repetitions"
    )
    parser.add_argument(
        "--digits", type=positive, default=DIGITS, help="digits of the longest numbers"
    )
    parser.add_argument("--units", type=positive, default=64)
    parser.add_argument("--devices", type=positive, default=2)
    parser.add_argument("--schedule", default="1f1b")
    return status_of(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
