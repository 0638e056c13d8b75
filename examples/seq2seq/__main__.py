"""Translation from English, read on one rank and written on another: ChainerMN's seq2seq.

    python -m examples.seq2seq [--language de] [--epochs 8] [--layers 2] [--units 128]
    python -m examples.seq2seq --pairs FILE [--held-out 500] [--least 3]
    mpiexec -n 2 python -m examples.seq2seq

It learns dates and names of territories (from CLDR; extra `examples`), or the lines of a file, each
of which is a text, a tab and its translation. After each epoch it translates held-out texts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import symgraph as sg
from examples.arguments import positive
from examples.seq2seq.batches import Batches, Key, choose_buckets, encode, provide
from examples.seq2seq.bleu import bleu
from examples.seq2seq.network import READER, WRITER, Sizes, training
from examples.seq2seq.pairs import Corpus, Pair, cldr, tab_separated
from examples.seq2seq.translator import Translator
from examples.seq2seq.vocabulary import Vocabulary
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

RATE, WARM_UP, CLIP, SEED = 0.005, 50, 5.0, 1
REPEATS = 8  # of each name per epoch: a name is one text, but a month's name is in thousands
SAMPLES = 8  # held-out texts to print


class Task:
    """The task to learn: pairs, the vocabularies of both languages, and buckets of lengths."""

    def __init__(self, corpus: Corpus, options: argparse.Namespace) -> None:
        self.corpus = corpus
        texts = [*corpus.train, *corpus.names]
        self.source, self.target = (
            Vocabulary([pair[side] for pair in texts], options.least) for side in (0, 1)
        )
        self.sizes = Sizes(len(self.source), len(self.target), options.units, options.layers)
        pairs = [*corpus.train, *corpus.names * REPEATS]
        train, held_out = (encode(p, self.source, self.target) for p in (pairs, corpus.held_out))
        self.buckets: list[Key] = choose_buckets([*train, *held_out], options.batch)
        self.batches = Batches(train, self.buckets, options.batch, SEED)


def make_buckets(task: Task, options: argparse.Namespace) -> Buckets:
    """Make the plans: rank 0 on the first device, rank 1 on the second."""
    contexts = (sg.cpu(0), sg.cpu(1))
    groups = {f"rank{READER}": contexts[0], f"rank{WRITER}": contexts[1]}
    placement = Options(
        groups, contexts[0], contexts, options.schedule, options.micro_batches, update=True
    )
    data, label = provide(task.buckets[-1], options.batch)
    gen = partial(training, sizes=task.sizes)
    return Buckets(gen, task.buckets[-1], [*data, *label], placement)


def make_session(task: Task, cluster: Cluster, options: argparse.Namespace) -> BucketSession:
    """Make a session with new parameters, which Adam trains with a rate that sinks to almost 0."""
    buckets = make_buckets(task, options)
    arrays = initialize(buckets.default, cluster, sg.init.Xavier(), SEED)
    updates = len(task.batches) * options.epochs
    rates = sg.lr_scheduler.CosineScheduler(
        max_update=updates,
        base_lr=RATE,
        final_lr=RATE / 50,
        warmup_steps=min(WARM_UP, updates // 2),
    )
    adam = sg.optimizer.create("adam", lr_scheduler=rates)
    return BucketSession(buckets, cluster, arrays, optimizer=adam, clip=CLIP)


def train_epoch(session: BucketSession, batches: Batches, number: int) -> float:
    """Train on every batch once; return the mean negative log-likelihood per word."""
    nll = words = 0.0
    for batch in batches.epoch(number):
        figures = session.step_batches([batch])
        nll, words = nll + figures["nll_nll"], words + figures["nll_count"]
    return nll / words


def exact(translations: Sequence[str], pairs: Sequence[Pair]) -> str:
    """Say how many translations equal the pairs' targets."""
    equal = sum(text == target for text, (_, target) in zip(translations, pairs, strict=True))
    return f"{equal / len(pairs):.1%} of {len(pairs)}"


def report(translator: Translator, task: Task) -> None:
    """Print some held-out texts with their translations, and the scores of all."""
    held_out, names = task.corpus.held_out, task.corpus.names
    translations = translator([source for source, _ in held_out])
    translated_names = translator([source for source, _ in names])
    if not translator.writes:
        return
    for text, (source, target) in list(zip(translations, held_out, strict=True))[:SAMPLES]:
        print(f"  {source}  ->  {text}" + ("" if text == target else f"   (should be: {target})"))
    if names:
        print(f"{exact(translated_names, names)} learned names exact")
    split = task.target.split
    score = bleu([split(text) for text in translations], [split(target) for _, target in held_out])
    print(f"{exact(translations, held_out)} held-out texts exact, BLEU {score:.4f}", flush=True)


def run(options: argparse.Namespace) -> int:
    """Train, and print progress on the rank that writes."""
    start = time.perf_counter()
    if options.pairs:
        corpus = tab_separated(options.pairs, options.held_out, SEED)
    else:
        corpus = cldr(options.language, options.days, options.held_out, SEED)
    task = Task(corpus, options)
    transport = "mpi" if launched_by_mpi(os.environ) else "threads"
    with make_cluster(transport, 2) as cluster, limit_blas(1):
        session = make_session(task, cluster, options)
        translator = Translator(session, task.buckets, task.sizes, (task.source, task.target))
        for number in range(options.epochs):
            loss = train_epoch(session, task.batches, number)
            translations = translator([source for source, _ in corpus.held_out])
            if translator.writes:
                score = exact(translations, corpus.held_out)
                seconds = time.perf_counter() - start
                print(
                    f"epoch {number}: loss per word {loss:.9f}, {score} held-out texts exact, "
                    f"{seconds:.0f} s",
                    flush=True,
                )
        report(translator, task)
    return OK


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.seq2seq",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--language", default="de", help="target language, such as de, fr or pt_BR")
    parser.add_argument(
        "--days", type=int, default=5000, help="number of days whose dates are learned"
    )
    parser.add_argument("--pairs", type=Path, help="learn a tab-separated file instead")
    parser.add_argument(
        "--held-out", type=int, default=500, help="days, or pairs of the file, to hold out"
    )
    parser.add_argument("--least", type=int, default=1, help="texts with a word, or it is spelled")
    parser.add_argument("--epochs", type=positive, default=8)
    parser.add_argument("--batch", type=positive, default=48)
    parser.add_argument("--units", type=positive, default=128)
    parser.add_argument("--layers", type=positive, default=2)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--micro-batches", type=positive, default=2)
    return status_of(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
