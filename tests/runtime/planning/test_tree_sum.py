"""Sums over micro-batches: one order of additions, whatever the order of the terms."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from runtime.planning.memory.tree_sum import Keep, TreeSum

COUNTS = range(1, 10)
SHAPES = [(3, 4), (), (0, 3)]


def terms(count: int, shape: tuple[int, ...] = (3, 4), dtype: str = "float32") -> list[np.ndarray]:
    """Terms of very different sizes, so that every order of additions gives other bits."""
    rng = np.random.default_rng(count)
    scales = 10.0 ** rng.integers(-4, 5, (count, *shape))
    return [np.asarray(part, dtype) for part in rng.standard_normal((count, *shape)) * scales]


def added(parts: list[np.ndarray], order) -> np.ndarray:
    """The parts, added by the steps that a TreeSum tells."""
    tree, sums = TreeSum(len(parts)), {}
    for index in order:
        for step in tree.add(int(index)):
            if isinstance(step, Keep):
                sums[step.number] = parts[index].copy()
            else:
                more = sums.pop(step.number) if step.ends else parts[index]
                np.add(sums[step.into], more, out=sums[step.into])
        assert sorted(sums) == sorted(tree.waiting)
    (total,) = sums.values()
    return total


def by_the_tree(parts: list[np.ndarray]) -> np.ndarray:
    """((g0 + g1) + (g2 + g3)) + g4, by levels."""
    while len(parts) > 1:
        pairs = [np.asarray(a + b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(parts) - len(parts) % 2 :]
    return parts[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", COUNTS)
def test_the_sum_is_the_trees_in_every_order(count, shape):
    parts = terms(count, shape)
    want = by_the_tree(parts)
    rng = np.random.default_rng(0)
    orders = [range(count), range(count)[::-1], *(rng.permutation(count) for _ in range(20))]
    for order in orders:
        assert added(parts, order).tobytes() == want.tobytes()


def test_all_orders_of_five():
    parts = terms(5)
    assert len({added(parts, order).tobytes() for order in permutations(range(5))}) == 1


def test_the_terms_would_tell_another_order():
    """Else the tests above could not fail."""
    parts = terms(5)
    assert sum(parts).tobytes() != by_the_tree(parts).tobytes()


@pytest.mark.parametrize("count", COUNTS)
def test_terms_are_not_changed(count):
    parts = terms(count)
    before = [p.copy() for p in parts]
    added(parts, np.random.default_rng(1).permutation(count))
    for part, old in zip(parts, before, strict=True):
        assert part.tobytes() == old.tobytes()


def test_a_term_that_is_the_same_array_twice():
    part = terms(1)[0]
    np.testing.assert_array_equal(added([part] * 4, range(4)), 4 * part)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 64, 100])
def test_few_sums_wait_when_terms_come_in_order(count):
    for order in (range(count), range(count)[::-1]):
        tree = TreeSum(count)
        for index in order:
            tree.add(index)
            assert len(tree.waiting) <= np.log2(count) + 1
        assert len(tree.waiting) == 1
