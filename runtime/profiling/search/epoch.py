"""The epoch of a search: which mixtures of buckets its steps have, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from runtime.planning.buckets import largest_first
from runtime.training.data.base import Dataset
from symgraph.app.config import Config

SAMPLED_STEPS = 500
MAX_MIXTURES = 12  # the most frequent ones, which stand for the others

Epoch = tuple[tuple[tuple[Hashable, ...], float], ...]  # mixtures and their shares of all steps
ALIKE: Epoch = (((None,), 1.0),)  # without buckets


def epoch_of(config: Config, data: Dataset) -> Epoch:
    """Return the mixtures of buckets in training, the most frequent first, with their shares."""
    steps = data.source("training", config, None)
    assert steps is not None, "all data has a training part"
    some = range(min(SAMPLED_STEPS, len(steps)))
    keys = ([b.bucket_key for b in largest_first(steps.batches(n))] for n in some)
    often = Counter(map(tuple, keys)).most_common(MAX_MIXTURES)
    total = sum(times for _, times in often)
    return tuple((mixture, times / total) for mixture, times in often)
