"""Sentences in micro-batches by predicted time."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from runtime.planning.buckets import Buckets, MicroBatchKey
from runtime.planning.micro_batches import SAMPLED, Lengths, Recipe, Recipes, Times, least_padding
from symgraph.core.errors import ConfigError
from symgraph.core.types import Array
from symgraph.frontend.io import DataBatch, DataDesc
from symgraph.rnn.io import encoded, sentence_batch

WINDOW = 64
LENGTHS = 12  # that are chosen if none are given


class TimedSentences:
    """The steps of sentences, each in micro-batches that are predicted to take the least time.

    Which sentences a step has depends on the seed, the epoch and the lengths only. The sentences of
    `window` steps are shuffled, sorted by length and cut into batches. A step has long and short
    ones, so that all have about as many words, and the steps come in random order:

        batches by length   9 8 7 | 6 5 4 | 3 2 1        steps   9 4 3    8 5 2    7 6 1

    How a step's sentences form micro-batches depends on the recipes that `plan` has chosen, or that
    a checkpoint holds; see runtime.planning.micro_batches. `discarded` counts sentences that are
    longer than `longest`, which are in no step.
    """

    def __init__(
        self,
        sentences: Iterable[Sequence[int] | Array],
        batch_size: int,
        longest: int,
        rows: Iterable[int],
        lengths: Iterable[int] | None = None,
        invalid_label: int = -1,
        data_name: str = "data",
        label_name: str = "softmax_label",
        dtype: str = "int32",
        layout: str = "NT",
        *,
        batches_per_step: int = 1,
        window: int = WINDOW,
        seed: int = 0,
        data_pad: int | None = None,
    ) -> None:
        """Sort out the sentences; `plan` must choose recipes before the first batch.

        Args:
            sentences: lists of ids.
            batch_size: the sentences of a batch, which are of similar length.
            longest: the words of the longest sentence to use.
            rows: the numbers of sentences that micro-batches may have.
            lengths: the lengths that micro-batches may have, besides `longest`; None: twelve, for
                which the fewest pads are needed.
            batches_per_step: the batches of a step.
            window: steps whose sentences are sorted by length together.
            seed: the seed of the order.

        For the other arguments see symgraph.rnn.BucketSentenceIter.

        Raises:
            ConfigError: no sentence fits the lengths, or ids do not fit the dtype.
        """
        self.batch_size, self.batches_per_step = batch_size, batches_per_step
        self.window, self.seed = window, seed
        self.names, self.dtype, self.layout = (data_name, label_name), dtype, layout
        self.invalid_label, self.data_pad = invalid_label, data_pad
        every = [encoded(number, s, dtype) for number, s in enumerate(sentences)]
        self.sentences = [s for s in every if len(s) <= longest]
        self._sizes = np.array([*map(len, self.sentences)])
        self.discarded = len(every) - len(self.sentences)
        self._check(longest, every)
        if lengths is None:
            lengths = least_padding(self._sizes, LENGTHS)
        self.lengths, self.rows = sorted({*lengths, longest}), sorted({*rows})
        self._recipes: Recipes | None = None
        self._epoch = lru_cache(maxsize=2)(self._order)

    def _check(self, longest: int, every: Sequence[Array]) -> None:
        if not every:
            raise ConfigError("there are no sentences")
        if not self.sentences:
            raise ConfigError(f"no sentence has {longest} words or fewer; add a longer bucket")
        if self.discarded:
            warnings.warn(
                f"{self.discarded} of {len(every)} sentences are longer than the longest bucket "
                f"({longest}) and are left out; add a bucket of {max(map(len, every))}",
                stacklevel=3,
            )

    @property
    def step_size(self) -> int:
        """The sentences of a step; the last one of an epoch may have fewer."""
        return self.batch_size * self.batches_per_step

    def __len__(self) -> int:
        return -(-len(self.sentences) // self.step_size)

    def begins_epoch(self, step: int) -> bool:
        return step % len(self) == 0

    def count(self, step: int) -> int:
        """Return how many labels count in a step: all words of its sentences but the first."""
        return int(np.maximum(self._lengths(step) - 1, 0).sum())

    @cached_property
    def some(self) -> list[Lengths]:
        """The lengths of the sentences of the first steps, on which recipes are chosen."""
        return [self._lengths(step) for step in range(min(SAMPLED, len(self)))]

    @property
    def recipes(self) -> Recipes:
        """The micro-batches of which steps are made."""
        assert self._recipes is not None, "plan comes first"
        return self._recipes

    @recipes.setter
    def recipes(self, recipes: Recipes) -> None:
        self._recipes = recipes

    def plan(self, buckets: Buckets) -> None:
        """Choose the recipes by the prices of the buckets.

        Raises:
            LimitError: a step of the longest sentences needs more memory than the limit.
        """
        times = Times.of(buckets, self.lengths, self.rows, self.describe)

        def require_memory(recipe: Recipe) -> None:
            for key in recipe:
                buckets.plan(key, self.describe(key))
            buckets.step(recipe)

        self.recipes = Recipes.choose(
            self.some,
            self.lengths,
            times,
            sentences=self.step_size,
            require=require_memory if buckets.limited else None,
        )

    def describe(self, key: MicroBatchKey) -> list[DataDesc]:
        """Describe the data and the label of a micro-batch."""
        assert isinstance(key.bucket, int)
        shape = (key.bucket, key.rows) if self.layout == "TN" else (key.rows, key.bucket)
        return [DataDesc(name, shape, self.dtype, self.layout) for name in self.names]

    def batches(self, step: int) -> list[DataBatch]:
        """Return the micro-batches of a step."""
        members = self._members(step)
        found, begin = [], 0
        for key in self.recipes.for_step(self._sizes[members]):
            own = members[begin : begin + key.rows]
            begin += key.rows
            found.append(
                sentence_batch(
                    [self.sentences[i] for i in own],
                    self.describe(key),
                    key,
                    self.invalid_label,
                    self.data_pad,
                )
            )
        return found

    def _lengths(self, step: int) -> Lengths:
        return self._sizes[self._members(step)]

    def _members(self, step: int) -> npt.NDArray[np.int64]:
        """Return the numbers of a step's sentences, the longest first."""
        epoch, at = divmod(step, len(self))
        return self._epoch(epoch)[at]

    def _order(self, epoch: int) -> list[npt.NDArray[np.int64]]:
        rng = np.random.default_rng((self.seed, epoch))
        order = rng.permutation(len(self.sentences))
        together = self.window * self.step_size
        steps = []
        for begin in range(0, len(order), together):
            some = order[begin : begin + together]
            steps += self._dealt(some[np.argsort(-self._sizes[some], kind="stable")])
        return [steps[i] for i in rng.permutation(len(steps))]

    def _dealt(self, some: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Deal the batches of sorted sentences to steps, there and back, the longest first."""
        batches = [some[i : i + self.batch_size] for i in range(0, len(some), self.batch_size)]
        count = -(-len(some) // self.step_size)
        rounds = [batches[i : i + count] for i in range(0, len(batches), count)]
        dealt = [together[:: 1 - 2 * (n % 2)] for n, together in enumerate(rounds)]
        return [
            np.concatenate([batch for batch in step if batch is not None])
            for step in zip_longest(*dealt)
        ]
