"""The epoch of a search: which buckets come together in its steps, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from runtime.planning.buckets import largest_first
from runtime.training.batches import source
from symgraph.app.config import Config
from symgraph.app.corpus import Corpus

STEPS = 500  # that are looked at
MOST = 12  # mixtures, the most frequent; the others count as these do

Epoch = tuple[tuple[tuple[Hashable, ...], float], ...]  # mixtures and their parts of all steps
ALIKE: Epoch = (((None,), 1.0),)  # without buckets


def epoch_of(config: Config, corpus: Corpus) -> Epoch:
    """The mixtures of a config with buckets, the most frequent first, as they come in training."""
    steps = source(corpus.train, config.data, config.train.seed)
    some = range(min(STEPS, len(steps)))
    keys = ([b.bucket_key for b in largest_first(steps.batches(n))] for n in some)
    often = Counter(map(tuple, keys)).most_common(MOST)
    total = sum(times for _, times in often)
    return tuple((mixture, times / total) for mixture, times in often)
