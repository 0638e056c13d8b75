"""The epoch of a search: which mixtures of buckets its steps have, and how often."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable

from runtime.planning.buckets import largest_first
from runtime.training.data.base import Dataset, Source
from runtime.training.data.timed import TimedSentences
from runtime.training.job import Planned
from symgraph.app.config import Config

SAMPLED_STEPS = 500
MAX_MIXTURES = 12  # the most frequent ones, which stand for the others

Epoch = tuple[tuple[tuple[Hashable, ...], float], ...]  # mixtures and their shares of all steps
EpochOf = Callable[[Planned], Epoch]
ALIKE: Epoch = (((None,), 1.0),)  # without buckets


def alike(planned: Planned) -> Epoch:
    """Return the epoch of a plan without buckets."""
    return ALIKE


def epoch_of(config: Config, data: Dataset) -> EpochOf:
    """Return a function from a plan to the mixtures of buckets in training, and their shares.

    The most frequent mixtures come first. Micro-batches by time depend on the plan's prices; all
    other mixtures are those of the data, whatever the plan.
    """
    steps = data.source("training", config, None)
    assert steps is not None, "all data has a training part"
    if not isinstance(steps, TimedSentences):
        same = _counted(steps)
        return lambda planned: same

    def of_plan(planned: Planned) -> Epoch:
        own = data.source("training", planned.config, None)
        assert isinstance(own, TimedSentences)
        assert planned.buckets is not None
        own.plan(planned.buckets)
        return _counted(own)

    return of_plan


def _counted(steps: Source) -> Epoch:
    some = range(min(SAMPLED_STEPS, len(steps)))
    keys = ([b.bucket_key for b in largest_first(steps.batches(n))] for n in some)
    often = Counter(map(tuple, keys)).most_common(MAX_MIXTURES)
    total = sum(times for _, times in often)
    return tuple((mixture, times / total) for mixture, times in often)
