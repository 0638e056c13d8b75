"""Micro-batches by predicted time: which sentences of a step go through the pipeline together.

The idea is DynaPipe's (Jiang et al., EuroSys 2024): the sentences of a step are sorted by length
and cut into runs, each of which is a micro-batch with its own length and number of rows. The best
cut is found by dynamic programming over the sorted sentences; its price is

    the sum of all micro-batches + fill * the longest micro-batch

where `fill` is the bubble of the schedule in micro-batches, as simulated for the default bucket.

    17 16 14 13 | 9 9 8 8 7 7 6 6 | 4 4 4 3 3 3 3 2     20 sentences: 17x4, 9x8 and 4x8

A combination of micro-batches (a *recipe*) has programs of its own, which take longer to make than
a step takes to run. So a few recipes are chosen beforehand, on many steps, and every step uses the
one that holds its sentences in the least predicted time.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise, product
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.planning.buckets import Buckets, MicroBatchKey
from runtime.schedule.replay import simulate
from symgraph.core.errors import LimitError
from symgraph.frontend.io import DataDesc

RECIPES = 16  # the most that are chosen: each takes memory, and time to prepare
SAMPLED = 256  # steps on which they are chosen
GROUPS = (1, 4, 16, 64)  # groups of alike steps for which there is a recipe that holds them all
GAIN = 0.002  # share of the steps' time that a further recipe must save
CAPS = 12  # bounds on the longest micro-batch that are tried

Lengths = npt.NDArray[np.int64]  # of a step's sentences, the longest first
Recipe = tuple[MicroBatchKey, ...]  # of lengths, the longest first
Require = Callable[[Recipe], object]
Provide = Callable[[MicroBatchKey], Iterable[DataDesc]]


@dataclass(frozen=True)
class Times:
    """Predicted seconds of micro-batches."""

    fill: float
    """The bubble of a step, in times of its longest micro-batch."""
    begin: float
    """Seconds of any micro-batch: its gradients are added to those of the others."""
    time_step: float
    """Seconds per time step."""
    word: float
    """Seconds per word or pad."""
    rows: tuple[int, ...]
    """The numbers of rows that a micro-batch may have, in rising order."""

    @classmethod
    def of(
        cls, buckets: Buckets, lengths: Sequence[int], rows: Sequence[int], provide: Provide
    ) -> Times:
        """Plan a few micro-batches, and predict all others from them.

        All are predicted by the three terms that fit those few best (non-negative least squares of
        the relative errors), so that a kernel that was measured for one of them only, or badly,
        does not favour it.

        Args:
            buckets: the plans and their prices.
            lengths: the lengths of micro-batches, in rising order.
            rows: their numbers of samples, in rising order.
            provide: describes the data and labels of a micro-batch.
        """
        optimize = importlib.import_module("scipy.optimize")
        corners = product({lengths[0], lengths[len(lengths) // 2]}, {rows[0], rows[-1]})
        known = sorted(corners)
        seconds = np.array([_seconds(buckets, MicroBatchKey(*key), provide) for key in known])
        terms = np.array([[1, length, length * count] for length, count in known])
        fitted, _ = optimize.nnls(terms / seconds[:, None], np.ones(len(known)))
        begin, time_step, word = map(float, fitted)
        return cls(_fill(buckets), begin, time_step, word, tuple(rows))

    def of_one(self, key: MicroBatchKey) -> float:
        """Return the seconds of a micro-batch on its busiest rank."""
        assert isinstance(key.bucket, int)
        return self.begin + key.bucket * (self.time_step + self.word * key.rows)

    def of_step(self, recipe: Recipe) -> float:
        """Return the seconds of a step, without its update."""
        seconds = [self.of_one(key) for key in recipe]
        return sum(seconds) + self.fill * max(seconds)


def _seconds(buckets: Buckets, key: MicroBatchKey, provide: Provide) -> float:
    """Return the seconds of a micro-batch on its busiest rank, one of several in a step."""
    plan = buckets.plan(key, provide(key))
    costs = buckets.prices.costs(plan.partition, plan.overheads(plan.partition, 4))
    busy = [0.0] * plan.partition.ranks
    for body in plan.partition.bodies:
        busy[plan.partition.rank(body)] += float(costs.run(body))
    return max(busy)


def _fill(buckets: Buckets) -> float:
    """Return the bubble of a step of the default bucket, in times of one of its micro-batches."""
    plan = buckets.default
    if plan.partition.ranks == 1:
        return 0.0
    costs = buckets.prices.costs(plan.partition, plan.overheads())
    timeline = simulate(plan.schedule, plan.partition, costs)
    busy = timeline.busy()
    rank = int(np.argmax(busy))
    updates = (float(costs.update(s)) for s, r in enumerate(plan.partition.rank_of) if r == rank)
    bubble = timeline.makespan - busy[rank]
    return max(0.0, bubble) * len(plan.sizes) / (busy[rank] - sum(updates))


def least_padding(sizes: Lengths, count: int) -> list[int]:
    """Return lengths for which the fewest pads are needed if sentences are padded to the next one.

    Args:
        sizes: the lengths of sentences.
        count: the most lengths.
    """
    distinct, often = np.unique(sizes, return_counts=True)
    words = [0, *accumulate((distinct * often).tolist())]
    below = [0, *accumulate(often.tolist())]
    # [sentences up to this length]: (pads, lengths), with one more length in each round
    unknown: tuple[int, tuple[int, ...]] = 1 << 62, ()
    best = [(0, unknown[1]), *[unknown] * len(distinct)]
    for _ in range(min(count, len(distinct))):
        best = [
            min(
                [best[end]]
                + [
                    (pads + top * (below[end] - below[i]) - (words[end] - words[i]), (*used, top))
                    for i, (pads, used) in enumerate(best[:end])
                    if pads < 1 << 62
                ]
            )
            for end, top in enumerate([0, *distinct.tolist()])
        ]
    return [*best[-1][1]]


def best_cut(sentences: Lengths, lengths: Sequence[int], times: Times) -> Recipe:
    """Return the recipe of the least predicted time for some sentences.

    Args:
        sentences: the length of each, falling.
        lengths: the lengths that micro-batches may have, rising; the last holds all sentences.
        times: the predicted seconds, which also say how many rows micro-batches may have.
    """
    fitting = [lengths[i] for i in np.searchsorted(lengths, sentences)]
    keys = {MicroBatchKey(length, rows) for length in fitting for rows in times.rows}
    seconds = {key: times.of_one(key) for key in keys}
    distinct = sorted({*seconds.values()})
    caps = [distinct[-1]]
    if times.fill:
        caps = [distinct[i] for i in np.linspace(0, len(distinct) - 1, CAPS).astype(int)]
    found = (_cut(fitting, seconds, cap, times.rows) for cap in dict.fromkeys(caps))
    return min(filter(None, found), key=lambda recipe: (times.of_step(recipe), recipe))


def _cut(
    fitting: Sequence[int], seconds: Mapping[MicroBatchKey, float], cap: float, rows: Sequence[int]
) -> Recipe | None:
    """Return the cut of the least sum with no micro-batch above the cap; None if there is none.

    A micro-batch takes as many of the sentences that are left as it has rows: fewer and shorter
    ones never take longer.
    """
    least = [np.inf] * len(fitting) + [0.0]  # [sentence]: seconds from it to the last one
    chosen: list[MicroBatchKey | None] = [None] * len(fitting)
    for first in range(len(fitting) - 1, -1, -1):
        for count in rows:
            key = MicroBatchKey(fitting[first], count)
            if seconds[key] > cap:
                continue
            total = seconds[key] + least[min(first + count, len(fitting))]
            if total < least[first]:
                least[first], chosen[first] = total, key
    recipe, at = [], 0
    while at < len(fitting):
        own = chosen[at]
        if own is None:
            return None
        recipe.append(own)
        at += own.rows
    return tuple(recipe)


@dataclass(frozen=True)
class Recipes:
    """The recipes of a run; every step uses one of them."""

    known: tuple[Recipe, ...]
    """The recipes, by falling use; the last one holds all sentences."""
    seconds: tuple[float, ...]
    """The predicted seconds of each."""
    sentences: int
    """The most sentences of a step."""

    @classmethod
    def choose(
        cls,
        steps: Sequence[Lengths],
        lengths: Sequence[int],
        times: Times,
        *,
        sentences: int,
        most: int = RECIPES,
        require: Require | None = None,
    ) -> Recipes:
        """Choose recipes for steps such as these, and one that holds any sentences.

        Args:
            steps: the lengths of the sentences of some steps, each falling.
            lengths: the lengths that micro-batches may have, rising.
            times: the predicted seconds.
            sentences: the most sentences of a step.
            most: the most recipes.
            require: raises LimitError for a recipe that needs too much memory.

        Raises:
            LimitError: any recipe for the longest sentences needs too much memory.
        """
        longest = np.full(sentences, lengths[-1])
        wanted = [longest, *_hulls(steps, sentences)]
        candidates = list(dict.fromkeys(best_cut(some, lengths, times) for some in wanted))
        if require is not None:
            candidates[0] = _holding_all(longest, lengths, times, require)
        costs = np.array([times.of_step(recipe) for recipe in candidates])
        slots = np.array([_slots(recipe, sentences) for recipe in candidates])
        filled = [_filled(some, sentences) for some in steps]
        # [recipe, step]: the seconds of a step with it
        table = np.array([np.where((slots >= some).all(1), costs, np.inf) for some in filled]).T
        chosen, best = [0], table[0]
        while len(chosen) < most:
            totals = np.minimum(table, best).sum(1)
            more = int(np.argmin(totals))
            if totals[more] > best.sum() * (1 - GAIN):
                break
            if require is not None and not _is_allowed(candidates[more], require):
                table[more] = np.inf
                continue
            chosen.append(more)
            best = np.minimum(best, table[more])
        used = np.argmin(table[chosen], 0)
        often = sorted(range(1, len(chosen)), key=lambda i: -np.count_nonzero(used == i))
        order = [chosen[i] for i in (*often, 0)]
        seconds = [float(costs[i]) for i in order]
        return cls(tuple(candidates[i] for i in order), tuple(seconds), sentences)

    @classmethod
    def from_data(cls, data: Any) -> Recipes:
        """Make recipes of what `data` returned."""
        known = [tuple(MicroBatchKey(*key) for key in recipe) for recipe in data["recipes"]]
        return cls(tuple(known), tuple(data["seconds"]), data["sentences"])

    def data(self) -> dict[str, Any]:
        """Return the recipes as JSON-able data."""
        recipes = [[list(key) for key in recipe] for recipe in self.known]
        return {"recipes": recipes, "seconds": [*self.seconds], "sentences": self.sentences}

    @cached_property
    def _slots(self) -> npt.NDArray[np.int64]:
        """[recipe, sentence]: the length of the micro-batch that the sentence is put into."""
        return np.array([_slots(recipe, self.sentences) for recipe in self.known])

    def for_step(self, sentences: Lengths) -> Recipe:
        """Return the recipe that holds these sentences in the least predicted time.

        Args:
            sentences: the length of each, falling.
        """
        holds = (self._slots >= _filled(sentences, self.sentences)).all(1)
        return self.known[int(np.argmin(np.where(holds, self.seconds, np.inf)))]


def _is_allowed(recipe: Recipe, require: Require) -> bool:
    try:
        require(recipe)
    except LimitError:
        return False
    return True


def _holding_all(
    longest: Lengths, lengths: Sequence[int], times: Times, require: Require
) -> Recipe:
    """Return the best recipe for the longest sentences, with fewer rows if it is too large."""
    counts = range(len(times.rows), 0, -1)
    best = (best_cut(longest, lengths, replace(times, rows=times.rows[:n])) for n in counts)
    even = even_recipes(lengths[-1], times.rows, len(longest))
    return first_allowed(chain(best, even), require)


def even_recipes(length: int, rows: Sequence[int], sentences: int) -> list[Recipe]:
    """Return the recipes for that many sentences whose micro-batches are alike, the largest first.

    Args:
        length: the length of all sentences.
        rows: the numbers of rows that micro-batches may have.
        sentences: how many there are.
    """
    falling = sorted(rows, reverse=True)
    return [(MicroBatchKey(length, count),) * -(-sentences // count) for count in falling]


def first_allowed(recipes: Iterable[Recipe], require: Require) -> Recipe:
    """Return the first recipe that keeps to the memory limit.

    Raises:
        LimitError: none does; it names the smallest limit with which one would.
    """
    errors: list[LimitError] = []
    for recipe in recipes:
        try:
            require(recipe)
        except LimitError as error:
            errors.append(error)
        else:
            return recipe
    raise min(errors, key=lambda error: error.smallest)


def _hulls(steps: Sequence[Lengths], sentences: int) -> list[Lengths]:
    """Return the steps, and for groups of alike ones the sentences that hold each of a group."""
    filled = np.array([_filled(s, sentences) for s in steps])
    filled = filled[np.lexsort(filled.T[::-1])]
    hulls = {tuple(row[row >= 0].tolist()): None for row in filled}
    for groups in GROUPS:
        bounds = np.linspace(0, len(filled), min(groups, len(filled)) + 1).astype(int)
        for begin, end in pairwise(bounds):
            most = filled[begin:end].max(0)
            hulls[tuple(most[most >= 0].tolist())] = None
    return [np.array(hull) for hull in hulls]


def _filled(sentences: Lengths, count: int) -> Lengths:
    """Return as many lengths as that, -1 where there is no sentence."""
    return np.concatenate([sentences, np.full(count - len(sentences), -1)])


def _slots(recipe: Recipe, count: int) -> Lengths:
    """Return the length of the micro-batch of each sentence, -1 where there is none."""
    slots = np.concatenate([np.full(key.rows, key.bucket) for key in recipe])[:count]
    return _filled(slots, count)
