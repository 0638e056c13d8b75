"""English into another language, read on one rank and written on another: ChainerMN's seq2seq.

    python -m examples.seq2seq [--language de] [--epochs 8] [--layers 2] [--units 128]
    python -m examples.seq2seq --pairs FILE [--held-out 500] [--least 3]
    mpiexec -n 2 python -m examples.seq2seq

It learns dates and names of territories (from CLDR; extra `examples`), or the lines of a file,
each a text, a tab and its translation. Held-out texts are translated after each epoch.
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
from examples.seq2seq.batches import Batches, Key, choose_buckets, encode, provide
from examples.seq2seq.bleu import bleu
from examples.seq2seq.network import READER, WRITER, Sizes, training
from examples.seq2seq.pairs import Corpus, Pair, cldr, tab_separated
from examples.seq2seq.translator import Translator
from examples.seq2seq.vocabulary import Vocabulary
from runtime import Buckets, BucketSession, Options, initialize, make_cluster
from runtime.backends.device.processor import limit_blas
from runtime.transports import Cluster, launched_by_mpi
from symgraph.app.command_line import OK, status_of

RATE, WARM_UP, CLIP, SEED = 0.005, 50, 5.0, 1
REPEATS = 8  # of a name in an epoch, because it is one text; a month's name is in thousands
SAMPLES = 8


class Task:
    """What is learnt: pairs, the vocabularies of both languages, and buckets of lengths."""

    def __init__(self, corpus: Corpus, options: argparse.Namespace) -> None:
        self.corpus = corpus
        texts = [*corpus.train, *corpus.names]
        self.source, self.target = (
            Vocabulary([pair[side] for pair in texts], options.least) for side in (0, 1)
        )
        self.sizes = Sizes(len(self.source), len(self.target), options.units, options.layers)
        given = [*corpus.train, *corpus.names * REPEATS]
        learnt, judged = (encode(p, self.source, self.target) for p in (given, corpus.held_out))
        self.buckets: list[Key] = choose_buckets([*learnt, *judged], options.batch)
        self.batches = Batches(learnt, self.buckets, options.batch, SEED)


def make_buckets(task: Task, options: argparse.Namespace) -> Buckets:
    """The plans: rank 0 on the first device, rank 1 on the second."""
    contexts = (sg.cpu(0), sg.cpu(1))
    groups = {f"rank{READER}": contexts[0], f"rank{WRITER}": contexts[1]}
    placed = Options(
        groups, contexts[0], contexts, options.schedule, options.micro_batches, update=True
    )
    data, label = provide(task.buckets[-1], options.batch)
    gen = partial(training, sizes=task.sizes)
    return Buckets(gen, task.buckets[-1], [*data, *label], placed)


def make_session(task: Task, cluster: Cluster, options: argparse.Namespace) -> BucketSession:
    """Fresh parameters, to be trained by Adam with a rate that sinks to nearly nothing."""
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
    """A step for each batch; the mean negative log-likelihood of their words."""
    nll = words = 0.0
    for batch in batches.epoch(number):
        figures = session.step_batches([batch])
        nll, words = nll + figures["nll_nll"], words + figures["nll_count"]
    return nll / words


def exact(found: Sequence[str], pairs: Sequence[Pair]) -> str:
    right = sum(f == target for f, (_, target) in zip(found, pairs, strict=True))
    return f"{right / len(pairs):.1%} of {len(pairs)}"


def report(translator: Translator, task: Task) -> None:
    """Some held-out texts, their translations, and where one is wrong, what it should be."""
    held_out, names = task.corpus.held_out, task.corpus.names
    found = translator([source for source, _ in held_out])
    learnt = translator([source for source, _ in names])
    if not translator.writes:
        return
    for text, (source, target) in list(zip(found, held_out, strict=True))[:SAMPLES]:
        print(f"  {source}  ->  {text}" + ("" if text == target else f"   (should be: {target})"))
    if names:
        print(f"{exact(learnt, names)} learnt names exact")
    split = task.target.split
    score = bleu([split(text) for text in found], [split(target) for _, target in held_out])
    print(f"{exact(found, held_out)} held-out texts exact, BLEU {score:.4f}", flush=True)


def run(options: argparse.Namespace) -> int:
    """Train, and print on the writing rank what was learnt."""
    begun = time.perf_counter()
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
            found = translator([source for source, _ in corpus.held_out])
            if translator.writes:
                print(
                    f"epoch {number}: loss a word {loss:.9f}, {exact(found, corpus.held_out)} "
                    f"held-out texts exact, {time.perf_counter() - begun:.0f} s",
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
    parser.add_argument("--language", default="de", help="of the translations, as de, fr or pt_BR")
    parser.add_argument("--days", type=int, default=5000, help="whose dates are learnt")
    parser.add_argument("--pairs", type=Path, help="a tab-separated file instead")
    parser.add_argument("--held-out", type=int, default=500, help="days, or pairs of the file")
    parser.add_argument("--least", type=int, default=1, help="rarer words are spelled")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--units", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--micro-batches", type=int, default=2)
    return status_of(lambda: run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
