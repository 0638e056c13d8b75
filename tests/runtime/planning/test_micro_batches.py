"""Micro-batches by predicted time: the best cuts, recipes that hold every step, equal gradients."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain, combinations

import numpy as np
import pytest

from runtime.planning.buckets import Buckets, MicroBatchKey
from runtime.planning.costs.prices import NOMINAL
from runtime.planning.micro_batches import Recipes, Times, best_cut, least_padding
from runtime.training.data.timed import TimedSentences
from runtime.transports import ThreadCluster
from symgraph.core.errors import ConfigError, LimitError
from tests.helpers.buckets import (
    PAD,
    VOCAB,
    batch,
    gradients_of,
    judge,
    lstm,
    make_buckets,
    options,
    padded,
    start,
)

TIMES = Times(fill=1.0, begin=2.0, time_step=0.5, word=0.25, rows=(1, 2, 4))
LENGTHS = [2, 3, 5, 9]


def falling(rng, count, most=9):
    return np.sort(rng.integers(1, most + 1, count))[::-1]


def every_cut(sentences, lengths, times):
    """All ways to cut the sentences into runs, each with the fewest rows and steps that hold it."""
    if not len(sentences):
        yield ()
    for count in range(1, min(len(sentences), times.rows[-1]) + 1):
        length = min(n for n in lengths if n >= sentences[0])
        for rows in times.rows:
            if rows >= count:
                for rest in every_cut(sentences[count:], lengths, times):
                    yield (MicroBatchKey(length, rows), *rest)


@pytest.mark.parametrize("fill", [0.0, 0.4, 3.0])
@pytest.mark.parametrize("seed", range(3))
def test_no_other_cut_takes_less_time(seed, fill):
    sentences = falling(np.random.default_rng(seed), 6)
    times = Times(fill, 2.0, 0.5, 0.25, (1, 2, 4))
    best = best_cut(sentences, LENGTHS, times)
    least = min(map(times.of_step, every_cut(sentences, LENGTHS, times)))
    assert times.of_step(best) == pytest.approx(least)


def test_a_long_bubble_makes_micro_batches_shorter():
    sentences = np.full(16, 9)
    longest = [
        max(key.rows for key in best_cut(sentences, LENGTHS, Times(fill, 2.0, 0.0, 1.0, (2, 4, 8))))
        for fill in (0.0, 1.0)
    ]
    assert longest == [8, 2]


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_no_other_lengths_need_fewer_pads(count):
    sizes = np.random.default_rng(count).integers(1, 8, 30)

    def pads(lengths):
        return int((np.array(lengths)[np.searchsorted(lengths, sizes)] - sizes).sum())

    found = least_padding(sizes, count)
    distinct = sorted({*sizes.tolist()})
    assert len(found) <= count
    all_of_them = (
        [*some, distinct[-1]] for some in combinations(distinct[:-1], min(count, len(distinct)) - 1)
    )
    assert pads(found) == min(map(pads, all_of_them))


def chosen(steps, most=4):
    return Recipes.choose(steps, LENGTHS, TIMES, sentences=8, most=most)


def test_a_step_gets_the_quickest_of_few_recipes_that_hold_it():
    rng = np.random.default_rng(5)
    seen, others = ([falling(rng, n) for n in rng.integers(1, 9, 30)] for _ in range(2))
    recipes = chosen(seen)
    assert len(recipes.known) <= 4
    for sentences in [*seen, *others, np.full(8, 9)]:

        def holds(recipe, sentences=sentences):
            slots = [key.bucket for key in recipe for _ in range(key.rows)]
            pairs = zip(sentences, slots, strict=False)
            return len(slots) >= len(sentences) and all(n <= slot for n, slot in pairs)

        seconds = [TIMES.of_step(recipe) for recipe in recipes.known if holds(recipe)]
        mine = recipes.for_step(sentences)
        assert holds(mine)
        assert TIMES.of_step(mine) == pytest.approx(min(seconds))


def test_further_recipes_save_time():
    steps = [falling(np.random.default_rng(i), 8, most=2 + i % 8) for i in range(12)]
    totals = [
        sum(TIMES.of_step(chosen(steps, most).for_step(s)) for s in steps) for most in (1, 2, 8)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[-1] < 0.7 * totals[0]


def test_recipes_fit_the_memory():
    """With a limit, a step of many rows at once is an error when it comes."""

    def require(recipe):
        if max(key.rows * key.bucket for key in recipe) > 18:
            raise LimitError("too large")

    steps = [falling(np.random.default_rng(i), 8) for i in range(6)]
    recipes = Recipes.choose(steps, LENGTHS, TIMES, sentences=8, require=require)
    largest = {max(key.rows * key.bucket for key in recipe) for recipe in recipes.known}
    assert max(largest) <= 18
    assert len(recipes.known) > 1
    with pytest.raises(LimitError, match="too large"):
        Recipes.choose(steps, LENGTHS, replace(TIMES, rows=(4, 8)), sentences=8, require=require)


def test_recipes_go_through_json():
    recipes = chosen([falling(np.random.default_rng(i), 8) for i in range(20)])
    again = Recipes.from_data(json.loads(json.dumps(recipes.data())))
    assert again == recipes
    assert all(isinstance(key, MicroBatchKey) for recipe in again.known for key in recipe)


# -- sentences -------------------------------------------------------------------------------------


def ids(count=40, longest=9, seed=3):
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCAB, n) for n in rng.integers(1, longest + 1, count)]


def timed(sentences, seed=0, window=2, **more):
    given = {"batches_per_step": 2, "invalid_label": PAD, "window": window, "seed": seed, **more}
    return TimedSentences(sentences, 4, 9, (2, 4), **given)


def planned(source, sym_gen=None, devices=2, schedule="1f1b") -> Buckets:
    """The buckets of a network, by whose nominal prices the source has chosen recipes."""
    how = options(devices, schedule, pricing=lambda graph, contexts: NOMINAL)
    buckets = make_buckets(sym_gen or lstm(), batch(9), how)
    source.plan(buckets)
    return buckets


def words_of(batches):
    """The sentences of batches, as sorted texts; their pads are at the ends."""
    rows = [row[row != PAD].tolist() for b in batches for row in b.data[0]]
    return sorted(map(str, filter(None, rows)))


def test_an_epoch_has_every_sentence_once_and_a_step_the_same_ones_by_any_recipe():
    given = ids()
    source, other = timed(given), timed(given)
    planned(source)
    other.recipes = Recipes.choose(other.some, other.lengths, TIMES, sentences=8, most=1)
    steps = [words_of(source.batches(n)) for n in range(len(source))]
    assert sorted(chain(*steps)) == sorted(str(s.tolist()) for s in given)
    assert steps == [words_of(other.batches(n)) for n in range(len(source))]
    assert source.recipes != other.recipes
    assert source.begins_epoch(5)
    following = [words_of(source.batches(n)) for n in range(5, 10)]
    assert sorted(chain(*following)) == sorted(chain(*steps))
    assert following != steps
    assert steps[3] == words_of(source.batches(3))  # out of order
    for step in range(5):
        labels = [b.label[0] for b in source.batches(step)]
        assert source.count(step) == sum(int((label != PAD).sum()) for label in labels)


def test_a_step_has_long_and_short_sentences():
    given = [[1] * n for n in range(1, 10)]
    source = TimedSentences(given, 1, 9, (1,), batches_per_step=3, window=3)
    steps = sorted([source._sizes[source._members(n)].tolist() for n in range(3)])
    assert steps == [[7, 6, 1], [8, 5, 2], [9, 4, 3]]


def test_sentences_too_long_are_counted():
    with pytest.warns(UserWarning, match="1 of 3 sentences are longer than the longest bucket"):
        source = timed([[1, 2], [3], [1] * 10])
    assert source.discarded == 1
    with pytest.raises(ConfigError, match="no sentence has 9 words or fewer"):
        timed([[1] * 10])
    with pytest.raises(ConfigError, match=r"^there are no sentences$"):
        timed([])


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_a_steps_gradient_is_that_of_its_sentences(schedule):
    source = timed(ids(12), window=1)
    buckets = planned(source, schedule=schedule)
    source.recipes = Recipes(
        (tuple(MicroBatchKey(*key) for key in ((9, 4), (7, 2), (9, 2))),), (1.0,), 8
    )
    with ThreadCluster(2) as cluster:
        session, _ = start(buckets, cluster)
        for step in range(2):  # 8 sentences, and the rest of the epoch
            before = {n: a.copy() for n, a in session.parameters().items()}
            batches = source.batches(step)
            figures = session.step_batches(batches)
            members = [source.sentences[i] for i in source._members(step)]
            want, nll, words = judge(lstm(), [padded(members, 9)], before)
            assert figures["nll_count"] == words == source.count(step)
            assert figures["nll_nll"] == pytest.approx(nll)
            for name, value in gradients_of(session).items():
                np.testing.assert_allclose(value, want[name], rtol=1e-10, atol=1e-12)


def test_a_model_gets_its_rows():
    asked = []

    def sym_gen(length, rows=None):
        asked.append((length, rows))
        return lstm()(length)

    buckets = planned(timed(ids()), sym_gen, devices=1)
    assert (9, None) in asked
    assert {rows for _, rows in asked} == {None, 2, 4}
    assert all(plan.sizes == (key.rows,) for key, plan in buckets._plans.items() if key != 9)
